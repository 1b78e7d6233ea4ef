"""Takes over a ledger: marks it, fences it, recovers its tail, closes it, opens it for reading.

Invariants: executes what `recovery` decides, and reads what `seal` wrote.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import CopiesDamaged, MetadataUnavailable, StorageUnavailable
from headrace.storage.bookkeeper.entries import (
    TAIL,
    EntryIndex,
    end_after,
    read_head,
    read_trailer,
    trailer_begin,
)
from headrace.storage.bookkeeper.ledger_handle import Send
from headrace.storage.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from headrace.storage.bookkeeper.open_ledger import OpenLedger
from headrace.storage.bookkeeper.recovery import (
    Fence,
    FencingRead,
    RecoveredLedger,
    Recovery,
    RecoveryFailed,
    WriteAgain,
    mark,
    put_end,
)
from headrace.storage.bookkeeper.wire import (
    DAMAGED,
    FENCED,
    FLAG_HIGH_PRIORITY,
    FLAG_RECOVERY_ADD,
    LAST_ADD_CONFIRMED,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    UNAUTHORIZED,
    add_frame,
    check_entry,
    master_key,
)

if TYPE_CHECKING:
    from headrace.storage.bookkeeper.entry_reader import EntryReader
    from headrace.storage.bookkeeper.metadata_service import VersionedLedger
    from headrace.storage.bookkeeper.open_ledger import StoreState
    from headrace.storage.bookkeeper.recovery import Effect

log = logging.getLogger(__name__)

_ABOUT_THE_LEDGER = {OK, NO_ENTRY, NO_LEDGER, FENCED, UNAUTHORIZED, DAMAGED}
"""Answers that do not indicate a failure of the bookie."""
TRAILER_READ_BYTES = 4 << 20


class _RecoveryRun:
    """One recovery in progress."""

    def __init__(self, ledger: int, metadata: LedgerMetadata, cluster: StoreState) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._key = master_key(metadata.password)
        self._machine = Recovery(metadata, cluster.choose_spare)
        self._frames: dict[int, bytearray] = {}
        self._over: asyncio.Future[RecoveredLedger] = asyncio.get_running_loop().create_future()

    async def run(self) -> RecoveredLedger:
        self._carry_out(self._machine.start())
        return await self._over

    def _carry_out(self, effects: list[Effect]) -> None:
        bookies = self._cluster.bookies
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Fence):
                bookies[effect.bookie].fencing_read(
                    self._ledger, LAST_ADD_CONFIRMED, self._key, self._fenced, effect
                )
            elif isinstance(effect, FencingRead):
                bookies[effect.bookie].fencing_read(
                    self._ledger, effect.entry, self._key, self._read, effect
                )
            elif isinstance(effect, WriteAgain):
                self._frames[effect.entry] = add_frame(
                    self._ledger,
                    effect.entry,
                    effect.confirmed,
                    effect.length,
                    self._key,
                    FLAG_RECOVERY_ADD | FLAG_HIGH_PRIORITY,
                    effect.payload,
                )
                for send in effect.sends:
                    self._send(send)
            elif self._over.done():
                pass  # the caller was cancelled
            elif isinstance(effect, RecoveryFailed):
                self._over.set_exception(self._failure(effect))
            else:
                self._over.set_result(effect)

    def _failure(self, failed: RecoveryFailed) -> StorageUnavailable:
        text = f"cannot recover ledger {self._ledger} now: {failed.reason}; "
        if not failed.is_damaged:
            text += "nothing is lost, try again when more of its bookies are available"
            return StorageUnavailable(text, ledger=self._ledger)
        text += (
            "it may hold acknowledged records: start a bookie that has a sound copy, or restore the"
            " disk of one; this is tried again"
        )
        return CopiesDamaged(text, ledger=self._ledger)

    def _send(self, send: Send) -> None:
        connection = self._cluster.bookies[send.bookie]
        connection.add(self._ledger, send.entry, self._frames[send.entry], self._added, send)

    def _note(self, code: int, bookie: str) -> None:
        if code not in _ABOUT_THE_LEDGER:
            self._cluster.bookie_failed(bookie, code)

    def _fenced(self, code: int, body: memoryview, asked: Fence) -> None:
        self._note(code, asked.bookie)
        last = check_entry(self._ledger, LAST_ADD_CONFIRMED, body) if code == OK else None
        self._carry_out(self._machine.fenced(asked.slot, code, last))

    def _read(self, code: int, body: memoryview, asked: FencingRead) -> None:
        found = check_entry(self._ledger, asked.entry, body) if code == OK else None
        if code == OK and found is None:
            self._cluster.health.damaged(asked.bookie, self._ledger, asked.entry)
            code = DAMAGED
        self._note(code, asked.bookie)
        self._carry_out(self._machine.read(asked.entry, asked.bookie, code, found))

    def _added(self, code: int, _body: memoryview, sent: Send) -> None:
        self._note(code, sent.bookie)
        self._carry_out(self._machine.responded(sent, code))


async def recover_ledger(
    ledger: int, versioned: VersionedLedger, cluster: StoreState
) -> VersionedLedger:
    """Fence a ledger, find its end and close it there, unless it is already closed.

    Returns its CLOSED metadata. Raises StorageUnavailable, LedgerUnknown.
    """
    service = cluster.service
    try:
        while versioned.metadata.state is not LedgerState.CLOSED:
            for bookie in versioned.metadata.last_ensemble.bookies:
                cluster.bookies[bookie].prepare()  # connects while the metadata is updated
            versioned = await service.update(ledger, versioned, mark)
            if versioned.metadata.state is LedgerState.CLOSED:
                break
            marked = versioned.metadata
            found = await _RecoveryRun(ledger, marked, cluster).run()
            versioned = await service.update(ledger, versioned, put_end(marked, found))
    except MetadataUnavailable as error:
        raise StorageUnavailable(f"cannot recover ledger {ledger} now: {error}") from error
    return versioned


async def open_closed(
    ledger: int, versioned: VersionedLedger, reader: EntryReader, hint: EntryIndex | None = None
) -> OpenLedger:
    """Open a CLOSED ledger for reading: its end, and its index and footer if it was sealed.

    `hint` is the known part of its index if it has no trailer. Raises DataCorrupt,
    StorageUnavailable, LedgerUnknown.
    """
    metadata = versioned.metadata
    assert metadata.state is LedgerState.CLOSED, "only a closed ledger has an end"
    opened = OpenLedger(ledger, versioned)
    opened.is_sealed = True
    opened.index = hint or opened.index
    last = metadata.last_entry
    if last < 0:
        return opened
    tail = (await reader.read(ledger, metadata, last, last, 1))[0].payload
    opened.end, opened.last_entry = end_after(tail), last
    head = read_head(tail)
    if head.kind != TAIL:
        return opened  # in case of a partial trailer, reads stop at `end`
    first = trailer_begin(tail)
    payloads: list[memoryview] = []
    while first + len(payloads) < last:
        entries = await reader.read(
            ledger, metadata, first + len(payloads), last - 1, TRAILER_READ_BYTES
        )
        payloads += [entry.payload for entry in entries]
    opened.index, opened.footer = read_trailer([*payloads, tail])
    opened.last_entry = first - 1
    return opened
