"""One partition: an ordered, durable run of record batches over a chain of ledgers.

Rules of the room: batches stay opaque; their header alone is read. Appends are synchronous and
cheap; whatever may wait (making a ledger, rolling, sealing, loading) happens in `_maintain`, one
task at a time. Readers see offsets below the high watermark, and that moves only when storage has
said that the bytes are as safe as the topic asks.

How an append fails: storage forgets it (contract rule 2), and so do the offset index, the producer
states and the end offset here. No offset is given twice to bytes that anybody could have seen.

How a roll works: the next ledger is made and entered into the chain while appends go on; then
appends wait for the moment in which nothing is pending, the ledgers are switched, and the old one
is sealed behind the scenes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import (
    BatchTooLarge,
    DataCorrupt,
    HeadraceError,
    OffsetOutOfRange,
    RecordInvalid,
    StorageUnavailable,
)
from headrace.log.footer import Footer, encode_footer
from headrace.log.ledger_chain import LedgerChain
from headrace.log.producer_state import ProducerState
from headrace.log.segment import Segment
from headrace.log.waiters import Waiters
from headrace.records.batch import (
    CONTROL,
    NO_PRODUCER_ID,
    PLACEMENT,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
)
from headrace.runtime.completion import Completion
from headrace.storage.ledger import LedgerId, LedgerStore

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.log.log_config import LogConfig
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_DELAY_S = 0.5
"""After a failed roll or first ledger: long enough to be no load, short enough to go unnoticed."""
BOUNDARIES_MAX = 256
"""Places where readers stopped; more readers than that walk one index interval instead."""
PREPARE_FRACTION = 0.9
"""How full a ledger is when the next one is made."""


class Appended(NamedTuple):
    """Where a batch went. `completion` says when it is safe."""

    base_offset: int
    log_append_time_ms: int
    completion: Completion


class _Pending:
    """The appends that share one completion."""

    __slots__ = ("end_offset", "end_position", "is_void")

    def __init__(self, end_offset: int, end_position: int) -> None:
        self.end_offset = end_offset
        self.end_position = end_position
        self.is_void = False


class Environment(NamedTuple):
    """What all logs of a broker share."""

    store: LedgerStore
    metadata: MetadataStore
    clock: Clock
    tasks: Tasks


class PartitionLog:
    """The log of one partition; `ready` is None while appends and reads may go ahead."""

    __slots__ = (
        "_active",
        "_clock",
        "_environment",
        "_flush_ms",
        "_is_first_wanted",
        "_is_preparing",
        "_last_completion",
        "_maintain_task",
        "_pending",
        "_prepared",
        "_store",
        "_wants_roll",
        "boundaries",
        "chain",
        "config",
        "end_offset",
        "failure",
        "high_watermark",
        "is_deleted",
        "is_loaded",
        "leader_epoch",
        "log_start_offset",
        "name",
        "producers",
        "ready",
        "segments",
        "visible_position",
        "waiters",
    )

    def __init__(
        self,
        name: str,
        topic_id: UUID,
        partition: int,
        config: LogConfig,
        environment: Environment,
    ) -> None:
        self.name = name
        self.config = config
        self.segments: list[Segment] = []
        self.producers = ProducerState()
        self.waiters = Waiters()
        self.log_start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.visible_position = 0
        """Bytes of the active ledger that lie below the high watermark."""
        self.boundaries: dict[int, tuple[int, int]] = {}
        """Offset -> (ledger, position), where readers stopped: the next read goes on there."""
        self.leader_epoch = 0
        self.is_loaded = False
        self.is_deleted = False
        self.failure: HeadraceError | None = None
        """Why this partition cannot be served; None while all is well."""
        self.ready: Completion | None = Completion()
        self.chain = LedgerChain(environment.metadata, topic_id, partition)
        self._environment = environment
        self._store = environment.store
        self._clock = environment.clock
        self._active: Segment | None = None
        self._prepared: Segment | None = None
        self._pending: deque[_Pending] = deque()
        self._last_completion: Completion | None = None
        self._maintain_task: asyncio.Task[None] | None = None
        self._wants_roll = False
        self._is_first_wanted = False
        self._is_preparing = False
        self._flush_ms = config.flush_ms

    # --- append ------------------------------------------------------------------------------

    def append(self, batch: Buffer, header: BatchHeader) -> Appended | None:
        """Append one checked batch at the end.

        None: not now (the log is loading, or between two ledgers); wait for `ready`, then ask
        again. Raises what `RecordInvalid`, `BatchTooLarge`, producer checks and storage say; then
        nothing was appended.
        """
        active = self._active
        if self.ready is not None or active is None:
            self._require_active()
            return None
        config = self.config
        size = header.length + 12
        if size > config.max_message_bytes:
            raise BatchTooLarge(
                f"a batch of {size} bytes is more than max.message.bytes={config.max_message_bytes}"
                " of its topic: send smaller batches, or raise the limit",
                limit=config.max_message_bytes,
                actual=size,
            )
        now_ms = self._clock.now_ms()
        self._check_content(header, now_ms)
        producer_id = header.producer_id
        if producer_id != NO_PRODUCER_ID:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                return Appended(duplicate.base_offset, -1, self._safe_when(duplicate.base_offset))
        base_offset = self.end_offset
        placement = PLACEMENT.pack(base_offset, header.length, self.leader_epoch)
        parts = (placement, memoryview(batch)[16:])
        if not self._pending:
            # Changed only here: what is synced and what is not must not overtake each other.
            self._flush_ms = config.flush_ms
        position, completion = self._store.append(active.ledger, parts, size, self._flush_ms)
        assert position == active.end_position, "storage and log agree on where a ledger ends"
        active.index.add(base_offset, position, header.max_timestamp_ms)
        if active.max_timestamp_ms < header.max_timestamp_ms:
            active.max_timestamp_ms = header.max_timestamp_ms
        if active.first_append_ms < 0:
            active.first_append_ms = now_ms
        end_offset = base_offset + header.last_offset_delta + 1
        self.end_offset = active.end_offset = end_offset
        active.end_position = position + size
        if active.proved_to == position:
            active.proved_to = position + size
        if producer_id != NO_PRODUCER_ID:
            self.producers.apply(header, base_offset, now_ms)
        if completion is self._last_completion:
            pending = self._pending[-1]
            pending.end_offset = end_offset
            pending.end_position = active.end_position
        else:
            self._last_completion = completion
            pending = _Pending(end_offset, active.end_position)
            self._pending.append(pending)
            completion.then(self._stored, pending)
        if active.end_position >= config.segment_bytes * PREPARE_FRACTION or (
            now_ms - active.first_append_ms >= config.segment_ms
        ):
            self._begin_roll(now_ms)
        return Appended(base_offset, -1, completion)

    def _check_content(self, header: BatchHeader, now_ms: int) -> None:
        if header.attributes & (CONTROL | TRANSACTIONAL):
            raise RecordInvalid(
                "control and transactional batches are not accepted: this broker has no"
                " transactions yet"
            )
        config = self.config
        if header.max_timestamp_ms > now_ms + config.timestamp_after_max_ms:
            raise RecordInvalid(
                f"timestamp {header.max_timestamp_ms} lies more than"
                f" message.timestamp.after.max.ms={config.timestamp_after_max_ms} in the future",
                is_timestamp=True,
            )
        if header.first_timestamp_ms >= 0 and (
            now_ms - header.first_timestamp_ms > config.timestamp_before_max_ms
        ):
            raise RecordInvalid(
                f"timestamp {header.first_timestamp_ms} lies more than"
                f" message.timestamp.before.max.ms={config.timestamp_before_max_ms} in the past",
                is_timestamp=True,
            )

    def _safe_when(self, offset: int) -> Completion:
        if offset < self.high_watermark or self._last_completion is None:
            done = Completion()
            done.succeed()
            return done
        return self._last_completion

    def _stored(self, error: BaseException | None, pending: _Pending) -> None:
        if pending.is_void:
            return
        if error is not None:
            self._forget_pending()
            return
        first = self._pending.popleft()
        assert first is pending, "appends of one ledger complete in order"
        if not self._pending:
            self._last_completion = None
        self.high_watermark = pending.end_offset
        self.visible_position = pending.end_position
        if self.waiters:
            self.waiters.wake()
        if self._wants_roll and not self._pending:
            self._switch()

    def _forget_pending(self) -> None:
        """Take back all appends that are not safe: the first of them failed, so all did."""
        active = self._active
        assert active is not None
        for pending in self._pending:
            pending.is_void = True
        self._pending.clear()
        self._last_completion = None
        self.end_offset = active.end_offset = self.high_watermark
        self.producers.truncate(self.high_watermark)
        # The position comes from storage: with offsets alone it would take a walk.
        self._active = None
        self.ready = self.ready or Completion()
        self._maintain(self._resume(active), "resume")

    async def _resume(self, active: Segment) -> None:
        """Go on after a failed append, at the end that storage has kept."""
        info = await self._store.recover(active.ledger)
        active.index.truncate(info.end)
        active.end_position = info.end
        active.proved_to = min(active.proved_to, info.end)
        self._active = active
        self._open()

    # --- ledgers: the first, the next, the old -----------------------------------------------

    def _maintain(self, coroutine: object, what: str) -> None:
        """Run one step of upkeep behind whatever step is under way."""
        previous = self._maintain_task

        async def run() -> None:
            if previous is not None and not previous.done():
                await asyncio.wait([previous])
            try:
                await coroutine  # type: ignore[misc]  # a coroutine, given by the callers below
            except HeadraceError as error:
                log.warning("%s: %s failed: %s", self.name, what, error)
                self._fail_ready(error)

        self._maintain_task = self._environment.tasks.start(run(), f"{self.name} {what}")

    def _fail_ready(self, error: HeadraceError) -> None:
        if isinstance(error, DataCorrupt):
            self.failure = error
        ready = self.ready
        if ready is not None:
            # What waits is told; the next request tries again.
            self.ready = Completion()
            self._maintain_task = None
            ready.fail(error)

    def _open(self) -> None:
        ready, self.ready = self.ready, None
        if ready is not None:
            ready.succeed()

    def load(self) -> None:
        """Begin to read what is stored; `ready` completes when that is done."""
        if not self.is_loaded and self._maintain_task is None:
            self._maintain(self._load(), "load")

    async def _load(self) -> None:
        fact = await self.chain.load()
        now_ms = self._clock.now_ms()
        self.leader_epoch = fact.leader_epoch
        producers: ProducerState | None = None
        segments: list[Segment] = []
        end_offset = fact.log_start_offset
        for link in fact.ledgers:
            base = link.base_offset if link.is_sealed or not segments else end_offset
            segment = Segment(LedgerId(link.ledger), base, link.leader_epoch)
            if link.is_sealed:
                segment.is_sealed = True
                segment.is_index_loaded = False
                segment.end_offset = link.end_offset or base
                segment.end_position = link.size_bytes or 0
                segment.max_timestamp_ms = link.max_timestamp_ms or -1
                segment.first_append_ms = link.first_timestamp_ms or -1
            else:
                if producers is None:
                    producers = await self._producers_before(segments)
                info = await self._store.recover(segment.ledger)
                await segment.load_by_scan(self._store, info.end, producers, now_ms)
                segment.is_sealed = info.is_sealed
            segments.append(segment)
            end_offset = segment.end_offset
        self.producers = producers or await self._producers_before(segments)
        self.segments = segments
        self.log_start_offset = fact.log_start_offset
        self.end_offset = self.high_watermark = max(end_offset, fact.log_start_offset)
        for segment in segments[:-1]:
            if not any(link.ledger == segment.ledger and link.is_sealed for link in fact.ledgers):
                await self._seal(segment)
        if segments and not segments[-1].is_sealed:
            self._active = segments[-1]
            self.visible_position = segments[-1].end_position
        self.is_loaded = True
        self._open()

    async def _producers_before(self, segments: list[Segment]) -> ProducerState:
        return await segments[-1].load_index(self._store) if segments else ProducerState()

    def _require_active(self) -> None:
        if self.failure is not None:
            raise self.failure
        if not self.is_loaded:
            self.load()
            return
        if self.ready is None:
            self.ready = Completion()
        if not self._is_first_wanted:
            self._is_first_wanted = True
            self._maintain(self._first_ledger(), "first ledger")

    async def _new_segment(self) -> Segment:
        ledger = await self._store.create()
        segment = Segment(ledger, self.end_offset, self.leader_epoch)
        await self.chain.add(segment)
        return segment

    async def _first_ledger(self) -> None:
        self._is_first_wanted = False
        if self._active is None:
            segment = await self._new_segment()
            self.segments.append(segment)
            self._active = segment
            self.visible_position = 0
        self._open()

    def _begin_roll(self, now_ms: int) -> None:
        """Make the next ledger; when it is there and this one is full, switch."""
        active = self._active
        assert active is not None
        if self._prepared is None and not self._is_preparing:
            self._is_preparing = True
            self._maintain(self._prepare(), "next ledger")
        is_full = active.end_position >= self.config.segment_bytes or (
            now_ms - active.first_append_ms >= self.config.segment_ms
        )
        if is_full and self._prepared is not None and not self._wants_roll:
            self.roll()

    def roll(self) -> None:
        """Switch to the prepared ledger as soon as nothing is pending; appends wait for that."""
        self._wants_roll = True
        self.ready = self.ready or Completion()
        if not self._pending:
            self._switch()

    async def _prepare(self) -> None:
        try:
            if self._prepared is None:
                self._prepared = await self._new_segment()
        finally:
            self._is_preparing = False

    def _switch(self) -> None:
        old, new = self._active, self._prepared
        assert old is not None
        assert new is not None
        new.base_offset = new.end_offset = self.end_offset
        self.segments.append(new)
        old.is_sealed = True
        self._active, self._prepared, self._wants_roll = new, None, False
        self.visible_position = 0
        self._maintain(self._seal(old), "seal")
        self._open()

    async def _seal(self, segment: Segment) -> None:
        # The newest producer states go along: a little newer than this ledger does no harm,
        # since replaying the batches of the next one gives the same states again.
        producers = ProducerState.decode(self.producers.encode())
        producers.truncate(segment.end_offset)
        footer = Footer(segment.end_offset, segment.first_append_ms, segment.index, producers)
        await self._store.seal(segment.ledger, encode_footer(footer))
        segment.is_sealed = True
        await self.chain.sealed(segment)

    async def roll_if_older(self, before_ms: int) -> None:
        """Close an active ledger whose newest record is older than `before_ms`, for retention."""
        active = self._active
        if active is None or self.ready is not None or not active.end_position:
            return
        newest_ms = active.max_timestamp_ms
        if (
            not self._pending
            and (newest_ms if newest_ms >= 0 else active.first_append_ms) < before_ms
        ):
            await self.roll_now()

    async def roll_now(self) -> None:
        """Close the active ledger, if there is anything in it, and begin the next one."""
        active = self._active
        if active is None or not active.end_position:
            return
        await self._run(self._prepare(), "next ledger")
        if self._prepared is not None and self._active is active and not self._wants_roll:
            self.roll()
        if self._maintain_task is not None:
            await asyncio.wait([self._maintain_task])

    async def _run(self, coroutine: object, what: str) -> None:
        self._maintain(coroutine, what)
        task = self._maintain_task
        assert task is not None
        await asyncio.wait([task])

    # --- the log's start ---------------------------------------------------------------------

    async def trim(self, log_start_offset: int) -> None:
        """Drop what lies before `log_start_offset`: whole ledgers go, the rest is hidden.

        Raises OffsetOutOfRange beyond the high watermark.
        """
        if not 0 <= log_start_offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"{self.name} has no offset {log_start_offset}: its log runs from"
                f" {self.log_start_offset} to {self.high_watermark}"
            )
        outcome: list[BaseException] = []

        async def step() -> None:
            try:
                await self._trim(log_start_offset)
            except HeadraceError as error:
                outcome.append(error)

        await self._run(step(), "trim")
        if outcome:
            raise outcome[0]

    async def _trim(self, log_start_offset: int) -> None:
        if log_start_offset <= self.log_start_offset:
            return
        gone = [
            segment
            for segment in self.segments
            if segment is not self._active
            and segment.is_sealed
            and segment.end_offset <= log_start_offset
        ]
        await self.chain.trim(log_start_offset, {segment.ledger for segment in gone})
        self.log_start_offset = log_start_offset
        self.segments = [segment for segment in self.segments if segment not in gone]
        for segment in gone:
            await self._store.delete(segment.ledger)

    async def delete(self) -> None:
        """Remove all ledgers of a deleted topic."""
        self.is_deleted = True
        self.waiters.wake()
        if self._maintain_task is not None and not self._maintain_task.done():
            await asyncio.wait([self._maintain_task])
        if not self.is_loaded:
            fact = await self.chain.load()
            ledgers = [LedgerId(link.ledger) for link in fact.ledgers]
        else:
            ledgers = [segment.ledger for segment in self.segments]
            if self._prepared is not None:
                ledgers.append(self._prepared.ledger)
        for ledger in ledgers:
            try:
                await self._store.delete(ledger)
            except StorageUnavailable as error:
                log.warning("%s: ledger %s is not deleted yet: %s", self.name, ledger, error)

    # --- reading -----------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """Bytes in all ledgers."""
        return sum(segment.end_position for segment in self.segments)

    def remember_boundary(self, offset: int, segment: Segment, position: int) -> None:
        """A batch that begins at `offset`, now or later, lies at `position`."""
        boundaries = self.boundaries
        if len(boundaries) >= BOUNDARIES_MAX:
            boundaries.clear()
        boundaries[offset] = (segment.ledger, position)

    def segment_of(self, offset: int) -> Segment | None:
        """The segment that holds `offset`, None where nothing is (end of the log, or a hole)."""
        low, high = 0, len(self.segments)
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle].end_offset <= offset:
                low = middle + 1
            else:
                high = middle
        return self.segments[low] if low < len(self.segments) else None
