"""Ledgers in memory: for tests, simulations and embedded throw-away brokers.

Rules of the room: the same contract as on disk, except that nothing outlives the process. What
was appended in one turn of the loop completes together at its end, as a group commit would.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import LedgerSealed, LedgerUnknown, Rejected
from headrace.runtime.completion import Completion
from headrace.storage.ledger import Buffer, LedgerId, LedgerInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

FOOTER_BYTES_MAX = 16 << 20


class _Ledger:
    __slots__ = ("data", "end", "footer", "is_sealed", "readable")

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0
        self.readable = 0
        self.is_sealed = False
        self.footer: bytes | None = None


class MemoryLedgerStore:
    """See LedgerStore."""

    def __init__(self) -> None:
        self._ledgers: dict[int, _Ledger] = {}
        self._next_ledger = 1
        self._group: Completion | None = None
        self._pending: list[tuple[_Ledger, list[Buffer]]] = []

    async def close(self) -> None:
        """Complete what was appended; all is forgotten with the object."""
        await self._barrier().wait()

    async def create(self) -> LedgerId:
        """See LedgerStore."""
        ledger = LedgerId(self._next_ledger)
        self._next_ledger += 1
        self._ledgers[ledger] = _Ledger()
        return ledger

    def append(
        self, ledger: LedgerId, parts: Sequence[Buffer], size: int, flush_ms: int | None
    ) -> tuple[int, Completion]:
        """See LedgerStore; `flush_ms` makes no difference."""
        found = self._find(ledger)
        if found.is_sealed:
            raise _sealed(ledger)
        position = found.end
        found.end += size
        self._pending.append((found, list(parts)))
        return position, self._barrier()

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
                f"a footer of {len(footer)} bytes: at most {FOOTER_BYTES_MAX} are kept",
                limit=FOOTER_BYTES_MAX,
                actual=len(footer),
            )
        if found.is_sealed:
            if found.footer == footer:
                return
            raise _sealed(ledger)
        found.is_sealed = True
        found.footer = bytes(footer)
        await self._barrier().wait()

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        """See LedgerStore."""
        found = self._find(ledger)
        if found.end != found.readable:
            await self._barrier().wait()
            found = self._find(ledger)
        return LedgerInfo(ledger, found.readable, found.is_sealed, found.footer)

    async def delete(self, ledger: LedgerId) -> None:
        """See LedgerStore."""
        self._find(ledger)
        del self._ledgers[ledger]
        await self._barrier().wait()

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
                f"ledger {ledger} does not exist: it was deleted or never made", ledger=ledger
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
        pending, self._pending = self._pending, []
        for ledger, parts in pending:
            for part in parts:
                ledger.data += part
            ledger.readable = len(ledger.data)
        assert group is not None, "scheduled once per group"
        group.succeed()


def _sealed(ledger: LedgerId) -> LedgerSealed:
    return LedgerSealed(
        f"ledger {ledger} is sealed: append to the ledger that follows it", ledger=ledger
    )
