"""The host of a partition log's lifecycle: performs its slow steps.

Invariants: steps (load, create ledger, roll, seal, trim, delete) run one at a time, in request
order. `lifecycle` decides how to react to events; this host performs the effects and reports how
they ended. While the log cannot accept appends, `ready` is a Completion that requests wait for; a
failed step fails it, and the next request retries.

To roll, the next ledger is created and added to the chain while appends continue; then they wait
until none is pending, the ledgers are switched, and the old one is sealed in the background.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from headrace.errors import (
    ChainMissing,
    DataCorrupt,
    HeadraceError,
    LedgerUnknown,
    NotOwner,
    OffsetOutOfRange,
    StorageUnavailable,
    TopicUnknown,
)
from headrace.log.lifecycle import Effect, Event, NextLedger, State
from headrace.log.loading import appendable, load_segments
from headrace.log.remote_copies import attach, discard
from headrace.log.sealing import release_open, seal
from headrace.log.segment import Segment
from headrace.log.step_queue import StepQueue
from headrace.runtime.completion import Completion
from headrace.storage.ledger import LedgerId, StoresInlineCheckpoints

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from headrace.log.environment import Environment
    from headrace.log.handover_preparation import HandoverPreparation
    from headrace.log.ledger_chain import LedgerChain
    from headrace.log.log_state import LogState

log = logging.getLogger(__name__)

HOLD_APPENDS_FRACTION = 1.25
"""The fill level at which appends wait for the next ledger, which storage has not created yet."""


class LifecycleHost:
    """The lifecycle host of one PartitionLog."""

    __slots__ = (
        "_chain",
        "_environment",
        "_handover",
        "_is_claimed",
        "_log",
        "_machine",
        "_prepared",
        "_steps",
        "_store",
        "to_resume",
        "wants_roll",
    )

    def __init__(
        self,
        log: LogState,
        chain: LedgerChain,
        handover: HandoverPreparation,
        environment: Environment,
        *,
        is_claimed: bool,
    ) -> None:
        self._log = log
        self._steps = StepQueue(log.name, environment.tasks, self.fail)
        self._is_claimed = is_claimed
        self._chain = chain
        self._environment = environment
        self._store = environment.store
        self._handover = handover
        self._prepared: Segment | None = None
        """The next ledger: in the chain, and empty."""
        self.to_resume: Segment | None = None
        """The ledger with failed appends, until it was recovered; set by steps."""
        self._machine = log.lifecycle
        self.wants_roll = False
        """Whether to call `settled` when nothing is pending; checked for each append."""

    @property
    def chain(self) -> LedgerChain:
        """The stored chain, for steps of other modules (`do`)."""
        return self._chain

    @property
    def state(self) -> State:
        """The lifecycle state of the log."""
        return self._machine.state

    @property
    def trouble(self) -> HeadraceError | None:
        """See StepQueue."""
        return self._steps.trouble

    def on(self, event: Event, error: HeadraceError | None = None) -> None:
        """Process an event of the lifecycle, and perform its effects."""
        effects = self._machine.on(event, error)
        self.wants_roll = self._machine.state is State.ROLLING
        for effect in effects:
            self._perform(effect, error)
        is_held = self._log.ready is not None
        assert is_held or self._machine.accepts_appends, "appends wait where none is accepted"

    def fail(self, error: HeadraceError, event: Event = Event.STEP_FAILED) -> None:
        """Process a failure. Corruption and the loss of ownership are final."""
        target = self._log
        if isinstance(error, DataCorrupt | NotOwner):
            event = Event.DAMAGED
        if isinstance(error, ChainMissing):
            # An append would be acknowledged in a ledger that no chain names.
            event, target.active = Event.CHAIN_LOST, None
        self.on(event, error)
        if isinstance(error, ChainMissing | NotOwner) and target.on_lost is not None:
            target.on_lost()

    @property
    def steps(self) -> StepQueue:
        """For steps of other modules."""
        return self._steps

    def take_prepared(self) -> Segment | None:
        """The next ledger, if it was created: it will not be used."""
        prepared, self._prepared = self._prepared, None
        return prepared

    async def do(self, step: Coroutine[None, None, None], what: str) -> None:
        """See StepQueue."""
        await self._steps.do(step, what)

    def _perform(self, effect: Effect, error: HeadraceError | None = None) -> None:
        target = self._log
        match effect:
            case Effect.BEGIN_LOAD:
                _ = self._steps.begin(self._load(), "load", Event.LOAD_FAILED)
            case Effect.CREATE_LEDGER:
                _ = self._steps.begin(self._first_ledger(), "first ledger", Event.LEDGER_FAILED)
            case Effect.BEGIN_RESUME:
                assert self.to_resume is not None
                _ = self._steps.begin(self._resume(self.to_resume), "resume", Event.RESUME_FAILED)
            case Effect.SWITCH:
                self._switch()
            case Effect.HOLD_APPENDS:
                if target.ready is None:
                    target.ready = Completion()
            case Effect.RELEASE_APPENDS:
                target.retries.reopened(self._environment.clock.now_ms())
                ready, target.ready = target.ready, None
                if ready is not None:
                    ready.succeed()
            case Effect.FAIL_WAITERS:
                ready = target.ready
                if ready is not None and error is not None:
                    target.ready, target.retries.has_failures = Completion(), True
                    ready.fail(error)
            case Effect.PUBLISH | Effect.UNPUBLISH:
                self._show(is_loaded=effect is Effect.PUBLISH)

    def _show(self, *, is_loaded: bool) -> None:
        if not is_loaded:
            self._log.waiters.wake()
        if (companioned := self._environment.companioned) is None:
            return
        if is_loaded and self._chain.fact.companions:
            companioned.add(self._log)
        else:
            companioned.discard(self._log)

    # --- loading -----------------------------------------------------------------------------

    def load(self) -> None:
        """Start loading, unless it is loaded, loading, or must not be."""
        self.on(Event.READ_REQUESTED)

    async def _load(self) -> None:
        target = self._log
        ahead: Segment | None = None
        if self._is_claimed:
            ahead = self._handover.ahead
            fact = await self._handover.begin(target.leader_epoch)
        else:
            fact = await self._chain.load()
            target.leader_epoch = fact.leader_epoch
        segments, producers = await load_segments(
            fact, ahead, self._environment, can_shrink=target.config.flush_ms is not None
        )
        if target.failure is not None and self.state is State.FAILED:
            raise target.failure  # abandoned during the load
        end_offset = max(segments[-1].end_offset if segments else 0, fact.log_start_offset)
        self._chain.check_end(end_offset, target.high_watermark)
        target.producers, target.segments = producers, segments
        target.log_start_offset, target.end_offset = fact.log_start_offset, end_offset
        active = appendable(segments, producers, target.end_offset, target.leader_epoch)
        target.active = active
        target.visibility.reset(
            target.end_offset,
            active.end_position if active else 0,
            fact.log_start_offset,
            producers.open_offsets,
        )
        self.to_resume = None
        if ahead is not None and any(link.ledger == ahead.ledger for link in fact.ledgers):
            self._handover.ahead = None  # it is an ordinary ledger from now on
        self.on(Event.LOADED_EMPTY if active is None else Event.LOADED_OPEN)
        target.waiters.wake()
        # After opening: readers need no seal, and during an outage seals fail.
        for segment, link in zip(segments, list(fact.ledgers), strict=True):
            if segment is active or link.is_sealed:
                continue
            # A crash preceded the seal, or its record in the chain.
            await self._seal(segment)

    # --- the first ledger, recovery from a failed append -------------------------------------

    def require_active(self) -> None:
        """Start whatever is needed for appends; `ready` completes when they can be retried."""
        self.on(Event.APPEND_REQUESTED)

    async def _first_ledger(self) -> None:
        target = self._log
        assert target.active is None, "only one ledger is open"
        target.segments.append(segment := await self._new_segment())
        target.active = segment
        target.visibility.switch()
        self.on(Event.LEDGER_CREATED)

    async def _new_segment(self) -> Segment:
        target = self._log
        ahead, self._handover.ahead = self._handover.ahead, None
        ledger = await self.create() if ahead is None else ahead.ledger
        # The lowest offset it could begin at: pending appends may still fail.
        segment = Segment(ledger, target.high_watermark, target.leader_epoch)
        try:
            await self._chain.add(segment)
        except HeadraceError:
            release_open([segment], self._store)  # it will never be appended to
            raise
        return segment

    async def create(self, *, is_ahead: bool = False) -> LedgerId:
        """Create a ledger; `is_ahead`: for a tenure that has not begun."""
        log = self._log
        labels = self._chain.labels(log.name, log.leader_epoch, is_ahead=is_ahead)
        return await self._store.create(labels, log.config.copies)

    def resume(self, segment: Segment) -> None:
        """Recover `segment` after a failed append, and continue at the end found in storage."""
        is_known, self.to_resume = self.to_resume is not None, segment
        if self.state is not State.DRAINING or not is_known:
            self.on(Event.APPEND_FAILED)

    async def _resume(self, segment: Segment) -> None:
        info = await self._store.recover(segment.ledger)
        if info.is_sealed:
            # On shared storage the recovery decides appends in doubt, so the log is reloaded. No
            # ledger may be added before that: its base offset would be too low.
            self._prepared, self._machine.next_ledger = None, NextLedger.NONE
            await self._load()
            return
        if info.end != self._log.visibility.acknowledged.position:
            # Continuing would reuse the offsets of these bytes.
            raise segment.corrupt(info.end, "it does not end with the last acknowledged append")
        segment.index.truncate(info.end, segment.max_timestamp_ms)
        segment.verified_to = min(segment.verified_to, info.end)
        self.to_resume = None
        self._log.active = segment
        self.on(Event.RECOVERED)

    def note(self) -> None:
        """Store the log's state in the active ledger, so that a takeover reads little.

        The appends it covers, acknowledged or not, precede it in the ledger. Only if recovery
        decides permanently what is in a ledger: otherwise covered appends may still disappear.
        """
        active = self._log.active
        if active is None:  # the append that triggered this failed at once
            return
        if self._environment.is_shared and isinstance(self._store, StoresInlineCheckpoints):
            self._store.append_checkpoint(
                active.ledger, active.encode_checkpoint(self._log.producers)
            )
        else:
            active.checkpoint_at = sys.maxsize

    # --- rolling -----------------------------------------------------------------------------

    def begin_roll(self, now_ms: int) -> None:
        """The open ledger is nearly full or old: create the next one, switch when it is time."""
        target = self._log
        active, config = target.active, target.config
        if active is None:  # the append that triggered this failed at once
            return
        lifecycle = self._machine
        if lifecycle.next_ledger is NextLedger.NONE:
            lifecycle.next_ledger = NextLedger.CREATING
            _ = self._steps.begin(self._prepare(), "next ledger")
        is_full = (
            active.end_position >= config.segment_bytes
            or now_ms - active.first_append_ms >= config.segment_ms
            or active.is_aborted_index_full
        )
        is_created = lifecycle.next_ledger is NextLedger.CREATED
        if is_full and is_created:
            self.on(Event.FULL)
            self.settled()
        elif not is_created and active.end_position >= config.segment_bytes * HOLD_APPENDS_FRACTION:
            self.on(Event.OVERFULL)

    async def _prepare(self) -> None:
        try:
            if self._prepared is None:
                self._prepared = await self._new_segment()
        finally:
            is_created = self._prepared is not None
            self._machine.next_ledger = NextLedger.CREATED if is_created else NextLedger.NONE
            self.on(Event.NEXT_CREATED if is_created else Event.NEXT_FAILED)
            self.settled()

    def settled(self) -> None:
        """Switch to the next ledger if that is due and no append is pending."""
        if not self._log.has_pending:
            self.on(Event.NONE_PENDING)

    def _switch(self) -> None:
        """Switch to the prepared ledger. No append may be pending."""
        target = self._log
        old, new = target.active, self._prepared
        assert old is not None
        assert new is not None
        assert not target.has_pending, "a ledger is closed after its last append is durable"
        new.base_offset = new.end_offset = target.end_offset
        # Now: by the time it is sealed, producers have advanced.
        old.footer = old.footer_with(target.producers)
        target.segments.append(new)
        target.active = new
        target.visibility.switch()
        self._prepared, self._machine.next_ledger = None, NextLedger.NONE
        _ = self._steps.begin(self._seal(old), "seal")

    async def _seal(self, segment: Segment) -> None:
        if segment not in self._log.segments:
            return  # already removed by retention
        await self.seal_ledger(segment)
        await self._chain.sealed(segment)

    async def seal_ledger(self, segment: Segment) -> None:
        """Seal a ledger in storage, without recording it in the chain."""
        if not segment.is_sealed:
            if segment.footer is None:
                assert segment.end_offset == self._log.end_offset, "producer state is at its end"
                segment.footer = segment.footer_with(self._log.producers)
            await seal(segment, segment.footer, self._store)

    def seal_again(self) -> None:
        """Retry failed seals."""
        if self._log.ready is None and self._steps.is_idle:
            noted = {link.ledger for link in self._chain.fact.ledgers if link.is_sealed}
            for segment in self._log.closed:
                if segment.ledger not in noted:
                    _ = self._steps.begin(self._seal(segment), "seal")

    async def roll_now(self) -> None:
        """Close the open ledger, unless it is empty, and start the next one."""
        active = self._log.active
        if active is None or not active.end_position or self.wants_roll:
            return
        await asyncio.wait([self._steps.begin(self._prepare(), "next ledger")])
        if self._prepared is not None and self._log.active is active:
            self.on(Event.FULL)
            self.settled()
        await self._steps.idle()

    # --- trim and end of life ----------------------------------------------------------------

    async def trim(self, log_start_offset: int) -> None:
        """Delete records before `log_start_offset`: whole ledgers are deleted, the rest hidden.

        Raises OffsetOutOfRange above the high watermark, and what storage and metadata raise.
        """
        target = self._log
        if not 0 <= log_start_offset <= target.high_watermark:
            ranges = f"{target.log_start_offset} to {target.high_watermark}"
            message = f"{target.name} has no offset {log_start_offset}: its log ranges from "
            raise OffsetOutOfRange(message + ranges)
        await self._steps.do(self._trim(log_start_offset), "trim")

    async def _trim(self, log_start_offset: int) -> None:
        target = self._log
        if log_start_offset <= target.log_start_offset:
            return
        gone = [segment for segment in target.closed if segment.end_offset <= log_start_offset]
        ledgers = {segment.ledger for segment in gone}

        def trimmed() -> None:
            target.log_start_offset = log_start_offset
            target.visibility.trim(log_start_offset)
            target.segments = [one for one in target.segments if one.ledger not in ledgers]

        bases = {segment.ledger: segment.base_offset for segment in target.segments}
        await self._chain.trim(log_start_offset, ledgers, bases, trimmed)
        if self._environment.is_shared:
            discard(gone, self._environment.tier, self._store)
            return
        for segment in gone:
            await self._store.delete(segment.ledger)

    async def delete(self) -> None:
        """Delete all ledgers of a deleted topic."""
        target = self._log
        self.on(Event.DELETION_BEGUN)
        target.waiters.wake()
        await self._steps.idle()
        if target.is_loaded:
            ledgers = [segment.ledger for segment in target.segments]
            if self._prepared is not None:
                ledgers.append(self._prepared.ledger)
        else:
            links = (await self._chain.load()).ledgers
            for link in links:
                attach(link, self._environment.tier)
            ledgers = [LedgerId(link.ledger) for link in links]
        self.on(Event.DELETED, TopicUnknown(f"{target.name} was deleted"))
        for ledger in ledgers:
            try:
                await self._store.delete(ledger)
            except (StorageUnavailable, LedgerUnknown) as error:
                log.warning("%s: cannot delete ledger %s yet: %s", target.name, ledger, error)
