"""A ledger that this store created and writes to: appends become entries.

Invariants: executes what `ledger_handle` decides. Appends in one turn of the loop go into one
entry; while several entries are in flight, appends of later turns are batched, too, up to a size.
Positions count appended bytes, without the heads of entries.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import (
    HeadraceError,
    LedgerFenced,
    LedgerLost,
    LedgerSealed,
    LedgerUnknown,
    MetadataUnavailable,
)
from headrace.storage.bookkeeper.entries import DATA, FRAGMENT, checkpoint_entries, trailer_entries
from headrace.storage.bookkeeper.entry_builder import DATA_AT, BuiltEntry, EntryBuilder
from headrace.storage.bookkeeper.ledger_handle import (
    Acknowledge,
    ChangeEnsemble,
    Close,
    Fail,
    LedgerHandle,
    Send,
    put_end,
    put_ensemble,
)
from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from headrace.storage.bookkeeper.wire import FENCED, OK, PAYLOAD_AT, UNAUTHORIZED, seal_add

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.completion import Completion
    from headrace.storage.bookkeeper.ledger_handle import Effect
    from headrace.storage.bookkeeper.open_ledger import OpenLedger, StoreState
    from headrace.storage.ledger import Buffer

log = logging.getLogger(__name__)

SPARES_RETRY_S: Final = 2.0
CHANGE_SLOW_S: Final = 0.1
"""If a change of ensemble takes longer, acknowledgements that can do without it no longer wait.
They wait until then, because what is acknowledged meanwhile lacks a copy."""


class WritingLedger:
    """See the module."""

    def __init__(
        self, opened: OpenLedger, cluster: StoreState, master_key: bytes, copies_short: int = 0
    ) -> None:
        """`copies_short`: how many copies of each entry fewer than requested are made."""
        self.opened = opened
        self._copies_short = copies_short
        self.error: HeadraceError | None = None
        """Why appends are refused; None while they are accepted."""
        self.handle = LedgerHandle(opened.versioned.metadata, cluster.choose_spare)
        self._cluster = cluster
        self._ledger = opened.ledger
        self._master_key = master_key
        self._loop = asyncio.get_running_loop()
        settings = cluster.settings
        self._eager_entries = settings.eager_entries
        self._builder = EntryBuilder(settings.entry_bytes_max, settings.entry_bytes_target)
        self._is_turn_ending = False
        self._is_trailer_queued = False
        self._acknowledged = -1
        self._sent: dict[int, BuiltEntry] = {}
        self._last_checkpoint = -1
        """The last entry of the newest inline checkpoint."""
        self._is_in_line = False
        """Whether it waits in line for in-flight room."""
        self._footer: bytes | None = None
        self._closing: asyncio.Future[Close] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        """When it gives up waiting for an ack quorum of bookies."""
        self._is_watching = False
        self._is_released = False

    @property
    def is_lacking(self) -> bool:
        """Whether copies are missing, or would be for the next entry."""
        handle = self.handle
        return bool(handle.lost or handle.copies_missing or self._copies_short)

    @property
    def copies_missing(self) -> int:
        """Missing copies of acknowledged entries."""
        handle = self.handle
        return handle.copies_missing + self._copies_short * (handle.confirmed + 1)

    # --- appending ---------------------------------------------------------------------------

    def append(self, parts: Sequence[Buffer], size: int) -> tuple[int, Completion]:
        """See LedgerStore."""
        if self.error is not None:
            raise copy_of(self.error)
        if self._footer is not None:
            raise sealed(self._ledger)
        self._send_soon()
        return self._builder.append(parts, size)

    def append_checkpoint(self, data: bytes) -> None:
        """See StoresInlineCheckpoints. Its entries are queued last, so their numbers are known."""
        if self.error is not None:
            raise copy_of(self.error)
        if self._footer is not None:
            raise sealed(self._ledger)
        builder = self._builder
        builder.flush()
        first = self.handle.next_entry + len(builder.queue)
        payloads = checkpoint_entries(
            data, builder.end, first, self._last_checkpoint, self._cluster.settings.entry_bytes_max
        )
        builder.add_beside(payloads)
        self._last_checkpoint = first + len(payloads) - 1
        self._send_soon()

    def _send_soon(self) -> None:
        if not self._is_turn_ending:
            self._is_turn_ending = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """End the turn, after which the caller may reuse its buffers."""
        self._is_turn_ending = False
        if self.error is not None:
            return
        builder = self._builder
        if builder.is_gathering:
            if len(self._sent) < self._eager_entries and not builder.queue:
                builder.flush()
            else:
                builder.end_turn()
        self._send_queue()

    def _send_queue(self) -> None:
        if self.handle.failure is not None:
            return
        queue = self._builder.queue
        while queue and not self._is_in_line:
            if not self._cluster.room.take(len(queue[0].frame)):
                self._is_in_line = True
                self._cluster.room.wait(self._have_room)
                return
            self._send_entry(queue.popleft())
        if self._is_trailer_queued and not queue:
            self._is_trailer_queued = False
            self._carry_out(self.handle.close())

    def _have_room(self) -> None:
        self._is_in_line = False
        if self.error is None:
            self._send_queue()
        if not self._is_in_line:
            self._cluster.room.release(0)  # pass the remaining room to the next in line

    def _send_entry(self, entry: BuiltEntry) -> None:
        frame = entry.frame
        added = self.handle.append(len(frame) - PAYLOAD_AT)
        seal_add(
            frame, self._ledger, added.entry, added.confirmed, added.length, self._master_key, 0
        )
        self._sent[added.entry] = entry
        self.opened.index.add(added.entry, entry.position)
        for send in added.sends:
            self._send(send, frame)

    def _send(self, send: Send, frame: bytearray) -> None:
        connection = self._cluster.bookies[send.bookie]
        connection.add(self._ledger, send.entry, frame, self._answered, send)

    def _answered(self, code: int, _body: memoryview, send: Send) -> None:
        if code not in {OK, FENCED, UNAUTHORIZED}:
            self._cluster.bookie_failed(send.bookie, code)
        effects = self.handle.responded(send, code)
        if effects or self.handle.lost:  # a loss without a spare has no effects
            self._carry_out(effects)

    # --- effects -----------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Acknowledge):
                self._acknowledge(effect.entry)
            elif isinstance(effect, Send):
                sent = self._sent.get(effect.entry)
                if sent is not None:
                    self._send(effect, sent.frame)
            elif isinstance(effect, ChangeEnsemble):
                self._cluster.tasks.spawn(
                    self._change_ensemble(effect.ensemble),
                    f"change the ensemble of ledger {self._ledger}",
                )
            elif isinstance(effect, Close):
                assert self._closing is not None
                if not self._closing.done():
                    self._closing.set_result(effect)
            else:
                self._fail(effect)
        if self.error is None and (self.handle.lost or self._stall is not None):
            self._look_after_lost()

    def _look_after_lost(self) -> None:
        is_done = self.opened.is_sealed or (self._is_released and not self._sent)
        if self.handle.lost and self._retry is None and not is_done:
            self._retry = self._loop.call_later(SPARES_RETRY_S, self._retry_spares)
        is_stalled = self.handle.is_stalled
        if is_stalled and self._stall is None:
            stall_s = self._cluster.settings.stall_ms / 1000
            self._stall = self._loop.call_later(stall_s, self._give_up)
        elif self._stall is not None and not is_stalled:
            self._stall.cancel()
            self._stall = None

    def _give_up(self) -> None:
        self._stall = None
        if self.error is None:
            self._carry_out(self.handle.give_up())

    def _acknowledge(self, last: int) -> None:
        opened, cache = self.opened, self._cluster.cache
        completions = []
        first, self._acknowledged = self._acknowledged + 1, last
        for number in range(first, last + 1):
            sent = self._sent.pop(number)
            self._cluster.room.release(len(sent.frame))
            if sent.kind not in {DATA, FRAGMENT}:
                continue
            opened.last_entry = number
            cache.put(self._ledger, sent.position, memoryview(sent.frame)[DATA_AT:])
            if sent.kind == DATA:
                opened.end = sent.end
            if sent.completion is not None:
                completions.append(sent.completion)
        builder = self._builder
        if (
            builder.is_gathering
            and not self._is_turn_ending
            and (len(self._sent) < self._eager_entries)
        ):
            builder.flush()
        if builder.queue or self._is_trailer_queued:
            self._send_queue()
        for completion in completions:
            completion.succeed()

    def _fail(self, failure: Fail) -> None:
        kind = LedgerFenced if failure.is_fenced else LedgerLost
        what = (
            "this broker can no longer write to it"
            if failure.is_fenced
            else "the outcome of its last appends is unknown: recover it"
        )
        message = f"ledger {self._ledger}: {failure.reason}; {what}"
        self.end(kind(message, ledger=self._ledger))

    def end(self, error: HeadraceError) -> None:
        """Refuse further appends; unacknowledged ones fail with `error`."""
        if self.error is not None:
            return
        self.error = error
        log.info("%s", error)
        # If the failure is external: later answers from bookies must not change anything.
        _ = self.handle.change_failed(is_fenced=False, reason=str(error))
        sent, self._sent = self._sent, {}
        for one in sent.values():
            self._cluster.room.release(len(one.frame))
        completions = [one.completion for one in sent.values() if one.completion is not None]
        completions += self._builder.drop()
        for timer in (self._retry, self._stall):
            if timer is not None:
                timer.cancel()
        self._retry = self._stall = None
        if self._closing is not None and not self._closing.done():
            self._closing.set_exception(copy_of(error))
            self._closing.exception()  # there may be no caller
        for completion in completions:
            completion.fail(copy_of(error))

    # --- ensembles and metadata --------------------------------------------------------------

    def spares_changed(self) -> None:
        """There may be a bookie for a lost slot."""
        if self.handle.lost and self.error is None:
            self._carry_out(self.handle.spares_changed())

    def _retry_spares(self) -> None:
        self._retry = None
        if self.error is None:
            self._carry_out(self.handle.spares_changed())

    async def _change_ensemble(self, wanted: Ensemble) -> None:
        known = self.opened.versioned
        change = put_ensemble(known.metadata.last_ensemble, wanted)
        slow = self._loop.call_later(CHANGE_SLOW_S, self._change_is_slow)
        try:
            found = await self._cluster.service.update(self._ledger, known, change)
        except LedgerUnknown as error:
            self._carry_out(self.handle.change_failed(is_fenced=True, reason=str(error)))
            return
        except MetadataUnavailable as error:
            self._put_off(wanted, error)
            return
        except HeadraceError as error:
            self._carry_out(self.handle.change_failed(is_fenced=False, reason=str(error)))
            return
        finally:
            slow.cancel()
        self._learn(found.version, found.metadata)
        if found.metadata.state is LedgerState.OPEN and found.metadata.last_ensemble == wanted:
            log.info("ledger %s is on %s", self._ledger, wanted)
            self._carry_out(self.handle.ensemble_changed())
        else:
            is_fenced = found.metadata.state is not LedgerState.OPEN
            reason = f"another writer changed its metadata: {found.metadata.state.name}"
            self._carry_out(self.handle.change_failed(is_fenced=is_fenced, reason=reason))

    def _change_is_slow(self) -> None:
        if self.error is None:
            self._carry_out(self.handle.change_is_slow())

    def _put_off(self, wanted: Ensemble, error: MetadataUnavailable) -> None:
        """The outcome of the change is unknown: retry later, if the ledger can do without it."""
        handle = self.handle
        if self.error is not None:
            return
        if not handle.quorum.can_acknowledge_without(handle.lost.keys()):
            self._carry_out(handle.change_failed(is_fenced=False, reason=str(error)))
            return
        log.info("ledger %s is not yet on %s: %s", self._ledger, wanted, error)
        self._loop.call_later(SPARES_RETRY_S, self._change_again, wanted)

    def _change_again(self, wanted: Ensemble) -> None:
        if self.error is None:
            self._carry_out([ChangeEnsemble(wanted)])

    def _learn(self, version: int, metadata: LedgerMetadata) -> bool:
        versioned = self.opened.versioned
        if version <= versioned.version:
            return False
        self.opened.versioned = versioned._replace(metadata=metadata, version=version)
        return True

    def release(self) -> None:
        """Nothing more will be appended: pending entries complete without a watch."""
        self._is_released = True

    def watch(self) -> None:
        """Watch the metadata; end if another writer changes it."""
        if self._is_released:
            return
        if not self._is_watching and self.error is None and not self.opened.is_sealed:
            self._is_watching = True
            self._cluster.tasks.spawn(self._look(), f"look at the metadata of {self._ledger}")

    def _changed(self) -> None:
        self._is_watching = False
        self.watch()

    async def _look(self) -> None:
        try:
            # After an outage all ledgers reread at once: the semaphore keeps them from flooding
            # ZooKeeper.
            async with self._cluster.looks:
                if self._is_released or self.error is not None:
                    return
                found = await self._cluster.service.read(self._ledger, self._changed)
        except MetadataUnavailable:
            # Safe without the watch, because bookies fence on a takeover. Retry later.
            spread = 1 + self._cluster.randomness.below(1_000) / 1_000
            self._loop.call_later(SPARES_RETRY_S * spread, self._changed)
            return
        except HeadraceError as error:
            self._carry_out(self.handle.change_failed(is_fenced=True, reason=str(error)))
            return
        if self._learn(found.version, found.metadata) and self.error is None:
            self._carry_out(self.handle.metadata_seen(found.metadata))

    # --- sealing -----------------------------------------------------------------------------

    async def seal(self, footer: bytes) -> None:
        """Write the trailer and close. Raises LedgerFenced, LedgerLost, LedgerSealed."""
        if self._footer is None:
            if self.error is not None:
                raise copy_of(self.error)
            self._footer = footer
            self._closing = self._loop.create_future()
            self._builder.flush()
            self._send_queue()
            last: Completion | None = None
            for entry in (*self._sent.values(), *self._builder.queue):
                last = entry.completion or last
            if last is not None:
                await last.wait()
            self._queue_trailer(footer)
        elif self._footer != footer:
            raise sealed(self._ledger)
        assert self._closing is not None
        close = await asyncio.shield(self._closing)
        await self._close(close)
        self.opened.is_sealed, self.opened.footer = True, footer

    def _queue_trailer(self, footer: bytes) -> None:
        builder, settings = self._builder, self._cluster.settings
        first = self.handle.next_entry + len(builder.queue)
        builder.add_beside(
            trailer_entries(self.opened.index, footer, builder.end, first, settings.entry_bytes_max)
        )
        self._is_trailer_queued = True
        self._send_queue()

    async def _close(self, close: Close) -> None:
        found = await self._cluster.service.update(
            self._ledger, self.opened.versioned, put_end(close)
        )
        self._learn(found.version, found.metadata)
        metadata = found.metadata
        if metadata.state is LedgerState.CLOSED and (metadata.last_entry, metadata.length) == (
            close.last_entry,
            close.length,
        ):
            return
        error = LedgerFenced(
            f"ledger {self._ledger} was taken over while it was sealed: its metadata says"
            f" {metadata.state.name}",
            ledger=self._ledger,
        )
        self.end(error)
        raise copy_of(error)


def sealed(ledger: int) -> LedgerSealed:
    """The error for an append to a sealed ledger."""
    return LedgerSealed(f"ledger {ledger} is sealed: append to the next ledger", ledger=ledger)


def copy_of(error: HeadraceError) -> HeadraceError:
    """A copy to raise: an instance raised repeatedly would accumulate tracebacks."""
    return type(error)(str(error), **error.fields)
