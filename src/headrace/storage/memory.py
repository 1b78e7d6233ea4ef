"""Ledgers in memory: for tests, simulations and embedded throw-away brokers.

Invariants: the same contract as on disk, except that nothing outlives the process. Appends made in
one turn of the loop complete together at its end, like a group commit. `beside` gives another
broker's view of the same ledgers: then `recover` fences and seals, as with shared storage.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, LedgerFenced, LedgerSealed, LedgerUnknown, Rejected
from headrace.runtime.completion import Completion
from headrace.storage.ledger import (
    FOOTER_BYTES_MAX,
    Buffer,
    Copies,
    InlineCheckpoint,
    LedgerId,
    LedgerInfo,
    LedgerRecord,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _Ledger:
    __slots__ = (
        "closed",
        "data",
        "end",
        "footer",
        "is_fenced",
        "is_sealed",
        "labels",
        "notes",
        "readable",
        "writer",
    )

    def __init__(self, writer: MemoryLedgerStore, labels: Mapping[str, bytes]) -> None:
        self.writer = writer
        self.labels = labels
        self.is_fenced = False
        self.data = bytearray()
        self.end = 0
        self.readable = 0
        self.is_sealed = False
        self.footer: bytes | None = None
        self.notes: list[InlineCheckpoint] = []
        self.closed = asyncio.Event()
        """Set when it is sealed or deleted."""


class MemoryLedgerStore:
    """See LedgerStore."""

    def __init__(self) -> None:
        self._ledgers: dict[int, _Ledger] = {}
        self._ids = count(1)
        self._is_shared = False
        self._group: Completion | None = None
        self._pending: list[tuple[int, list[Buffer], Completion]] = []

    def beside(self) -> MemoryLedgerStore:
        """Another broker's view of the same ledgers."""
        other = MemoryLedgerStore()
        other._ledgers, other._ids = self._ledgers, self._ids
        other._is_shared = self._is_shared = True
        return other

    async def close(self) -> None:
        """Complete pending appends; the ledgers are lost with the object."""
        await self._barrier().wait()

    async def create(
        self, labels: Mapping[str, bytes] | None = None, copies: Copies | None = None
    ) -> LedgerId:
        """See LedgerStore."""
        ledger = LedgerId(next(self._ids))
        self._ledgers[ledger] = _Ledger(self, dict(labels or {}))
        return ledger

    def append(
        self, ledger: LedgerId, parts: Sequence[Buffer], size: int, flush_ms: int | None
    ) -> tuple[int, Completion]:
        """See LedgerStore; `flush_ms` makes no difference."""
        found = self._find(ledger)
        if found.is_sealed:
            raise _fenced(ledger) if found.is_fenced else _sealed(ledger)
        assert found.writer is self, "only its creator writes to a ledger"
        position = found.end
        found.end += size
        # If shared, one completion per append: another broker may fence this ledger only.
        completion = Completion() if self._is_shared else self._barrier()
        self._barrier()
        self._pending.append((ledger, list(parts), completion))
        return position, completion

    def append_checkpoint(self, ledger: LedgerId, data: bytes) -> None:
        """See StoresInlineCheckpoints."""
        found = self._find(ledger)
        if found.is_sealed:
            raise _fenced(ledger) if found.is_fenced else _sealed(ledger)
        found.notes.append(InlineCheckpoint(found.end, data))

    async def checkpoints(self, ledger: LedgerId) -> Sequence[InlineCheckpoint]:
        """See StoresInlineCheckpoints."""
        found = self._find(ledger)
        return [note for note in found.notes if note.position <= found.readable]

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """See LedgerStore; never None."""
        found = self._find(ledger)
        return bytes(found.data[position : min(position + size, found.readable)])

    async def read(self, ledger: LedgerId, position: int, size: int) -> Buffer:
        """See LedgerStore."""
        data = self.read_cached(ledger, position, size)
        assert data is not None, "memory needs no disk"
        return data

    async def seal(self, ledger: LedgerId, footer: bytes) -> None:
        """See LedgerStore. Sealing again with the same footer changes nothing."""
        found = self._find(ledger)
        if len(footer) > FOOTER_BYTES_MAX:
            raise Rejected(
                f"a footer of {len(footer)} bytes: the limit is {FOOTER_BYTES_MAX}",
                limit=FOOTER_BYTES_MAX,
                actual=len(footer),
            )
        if found.is_sealed:
            if found.footer == footer:
                return
            raise _sealed(ledger)
        found.is_sealed = True
        found.footer = bytes(footer)
        found.closed.set()
        await self._barrier().wait()

    async def open_when_sealed(self, ledger: LedgerId) -> None:
        """See FollowsSeals."""
        await self._find(ledger).closed.wait()
        self._find(ledger)

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        """See LedgerStore."""
        found = self._find(ledger)
        if self._is_shared and not found.is_sealed:
            found.is_sealed = found.is_fenced = True
            found.end = found.readable
            found.closed.set()
        if found.end != found.readable:
            await self._barrier().wait()
            found = self._find(ledger)
        return LedgerInfo(ledger, found.readable, found.is_sealed, found.footer)

    async def delete(self, ledger: LedgerId) -> None:
        """See LedgerStore."""
        self._find(ledger).closed.set()
        del self._ledgers[ledger]
        await self._barrier().wait()

    async def all_ledgers(self) -> Sequence[LedgerId]:
        """All ledgers, of every creator."""
        return [LedgerId(number) for number in sorted(self._ledgers)]

    async def ledger_ids(self) -> Sequence[LedgerId]:
        """All ledger ids, sorted."""
        return await self.all_ledgers()

    async def records_of(self, ledgers: Sequence[LedgerId]) -> Sequence[LedgerRecord]:
        """The records of these ledgers, read without opening them."""
        return [
            LedgerRecord(ledger, found.is_sealed, 0, found.labels, found.readable)
            for ledger in ledgers
            if (found := self._ledgers.get(ledger)) is not None
        ]

    def list(self) -> Sequence[LedgerInfo]:
        """See LedgerStore."""
        return [
            LedgerInfo(LedgerId(number), found.readable, found.is_sealed, found.footer)
            for number, found in sorted(self._ledgers.items())
        ]

    def _find(self, ledger: LedgerId) -> _Ledger:
        found = self._ledgers.get(ledger)
        if found is None:
            raise LedgerUnknown(
                f"ledger {ledger} does not exist: it was deleted or never created", ledger=ledger
            )
        return found

    def _barrier(self) -> Completion:
        group = self._group
        if group is None:
            group = self._group = Completion()
            asyncio.get_running_loop().call_soon(self._commit)
        return group

    def _commit(self) -> None:
        group, self._group = self._group, None
        assert group is not None, "scheduled once per group"
        pending, self._pending = self._pending, []
        done: dict[Completion, HeadraceError | None] = {}
        for number, parts, completion in pending:
            ledger = self._ledgers.get(number)
            error: HeadraceError | None = None
            if ledger is None or ledger.is_fenced:
                error = _fenced(number)
            else:
                ledger.data += b"".join(parts)
                ledger.readable = len(ledger.data)
            done[completion] = error if self._is_shared else None
        for completion, error in done.items():
            if completion is group:
                continue
            if error is None:
                completion.succeed()
            else:
                completion.fail(error)
        group.succeed()


def _fenced(ledger: int) -> LedgerFenced:
    return LedgerFenced(
        f"another broker has taken over ledger {ledger}: this one can no longer write to it",
        ledger=ledger,
    )


def _sealed(ledger: LedgerId) -> LedgerSealed:
    return LedgerSealed(f"ledger {ledger} is sealed: append to the next ledger", ledger=ledger)
