"""Reads entries from the bookies that store them.

Invariants: knows replicas, digests and time-outs, not positions. Every entry's digest is verified;
if a bookie does not answer, lacks the entry or returns a corrupt one, the next bookie is tried; if
it is slow, the next one is asked concurrently (a hedged read).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, HeadraceError, StorageUnavailable
from headrace.storage.bookkeeper.metadata_service import unknown
from headrace.storage.bookkeeper.wire import (
    DAMAGED,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    Entry,
    MalformedFrame,
    batch_entries,
    check_entry,
    code_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from headrace.storage.bookkeeper.bookie_connection import Bookies
    from headrace.storage.bookkeeper.ledger_metadata import LedgerMetadata

RUNS_IN_FLIGHT = 2
SLOW_S = 10.0
"""How long a bookie that was slow or did not answer is tried last."""


class _BatchRead:
    """One batch read of consecutive entries, tried on one bookie after another."""

    __slots__ = (
        "_bookies",
        "_codes",
        "_count",
        "_damaged",
        "_first",
        "_hedge_s",
        "_ledger",
        "_left",
        "_outstanding",
        "_reproach",
        "_size",
        "_timer",
        "future",
    )

    def __init__(
        self,
        ledger: int,
        first: int,
        count: int,
        size: int,
        left: list[str],
        hedge_s: float,
        reproach: Callable[[str], None],
        damaged: Callable[[str, int, int], None],
    ) -> None:
        self._reproach = reproach
        self._damaged = damaged
        self._ledger = ledger
        self._first = first
        self._count = count
        self._size = size
        self._left = left
        self._hedge_s = hedge_s
        self._codes: dict[str, int] = {}
        self._outstanding = 0
        self._timer: asyncio.TimerHandle | None = None
        self._bookies: Bookies
        self.future: asyncio.Future[list[Entry]] = asyncio.get_running_loop().create_future()

    async def read(self, bookies: Bookies) -> list[Entry]:
        self._bookies = bookies
        self._try_next()
        try:
            return await self.future
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _try_next(self) -> None:
        bookie = self._left.pop(0)
        self._outstanding += 1
        self._bookies[bookie].batch_read(
            self._ledger, self._first, self._count, self._size, self._answered, bookie
        )
        if self._left:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._hedge_s, self._hedge, bookie)

    def _hedge(self, slow: str) -> None:
        self._timer = None
        if not self.future.done() and self._left:
            self._reproach(slow)
            self._try_next()

    def _answered(self, code: int, body: memoryview, bookie: str) -> None:
        self._outstanding -= 1
        if self.future.done():
            return
        if code == OK:
            entries = self._check(body)
            if entries:
                self.future.set_result(entries)
                return
            code = DAMAGED
            self._damaged(bookie, self._ledger, self._first)
        self._codes[bookie] = code
        if code not in {DAMAGED, NO_ENTRY, NO_LEDGER}:
            self._reproach(bookie)
        if self._left:
            if self._timer is not None:
                self._timer.cancel()
            self._try_next()
        elif not self._outstanding:
            self.future.set_exception(self._error())

    def _check(self, body: memoryview) -> list[Entry]:
        """The valid entries at the start of the response."""
        entries: list[Entry] = []
        try:
            for data in batch_entries(body)[: self._count]:
                entry = check_entry(self._ledger, self._first + len(entries), data)
                if entry is None:
                    break
                entries.append(entry)
        except MalformedFrame:
            pass
        return entries

    def _error(self) -> HeadraceError:
        codes = set(self._codes.values())
        what = f"entry {self._first} of ledger {self._ledger}"
        said = ", ".join(f"{bookie} {code_text(code)}" for bookie, code in self._codes.items())
        if codes == {NO_LEDGER}:
            return unknown(self._ledger)
        if codes <= {DAMAGED, NO_ENTRY, NO_LEDGER}:
            return DataCorrupt(
                f"{what} is corrupt or missing on every bookie that stores it ({said}): it is not"
                " served; restore a bookie from a backup",
                ledger=self._ledger,
                entry=self._first,
            )
        return StorageUnavailable(f"cannot read {what} now ({said}): try again")


class EntryReader:
    """Reads entries of any ledger."""

    def __init__(
        self,
        bookies: Bookies,
        is_suspect: Callable[[str], bool],
        damaged: Callable[[str, int, int], None],
        *,
        hedge_ms: int,
    ) -> None:
        """`damaged` is told of each damaged copy: bookie, ledger, entry."""
        self._bookies = bookies
        self._damaged = damaged
        self._is_suspect = is_suspect
        self._hedge_s = hedge_ms / 1000
        self._slow_until: dict[str, float] = {}

    def _reproach(self, bookie: str) -> None:
        self._slow_until[bookie] = asyncio.get_running_loop().time() + SLOW_S

    async def read(
        self,
        ledger: int,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        size: int,
        ensembles: int = 1,
    ) -> list[Entry]:
        """Entries from `first` to at most `last`, at least one; about `size` bytes of each of up to
        `ensembles` ensembles, which are read at the same time.

        Raises DataCorrupt, StorageUnavailable, LedgerUnknown.
        """
        assert first <= last, "there is at least one entry to read"
        quorum = metadata.quorum
        runs: list[Coroutine[None, None, list[Entry]]] = []
        if quorum.write == quorum.ensemble:
            begin = first
            while begin <= last and len(runs) < ensembles:
                end = _end(metadata, begin, last)
                # Each bookie has all entries; the choice depends on the ledger, to spread the load.
                bookies = metadata.ensemble_of(begin)
                at = ledger % len(bookies)
                order = self._order([*bookies[at:], *bookies[:at]])
                count = end - begin
                run = self._run(ledger, begin, count, size, order)
                runs.append(run.read(self._bookies))
                begin = end
            return await runs[0] if len(runs) == 1 else await _joined(runs)
        end = _end(metadata, first, last)
        for begin in range(first, min(end, first + quorum.write * RUNS_IN_FLIGHT), quorum.write):
            count = min(quorum.write, end - begin)
            # The last slot of an entry also stores the next W - 1 entries.
            order = self._order(metadata.bookies_of(begin)[::-1])
            run = self._run(ledger, begin, count, size, order)
            runs.append(run.read(self._bookies))
        return await _joined(runs)

    def _run(self, ledger: int, begin: int, count: int, size: int, order: list[str]) -> _BatchRead:
        return _BatchRead(
            ledger, begin, count, size, order, self._hedge_s, self._reproach, self._damaged
        )

    def _order(self, bookies: list[str]) -> list[str]:
        """The bookies, with those last that failed or were slow recently."""
        now, slow = asyncio.get_running_loop().time(), self._slow_until
        return sorted(
            bookies, key=lambda bookie: slow.get(bookie, 0) > now or self._is_suspect(bookie)
        )


def _end(metadata: LedgerMetadata, first: int, last: int) -> int:
    """After the entries up to `last` in the ensemble of `first`."""
    boundary = metadata.ensemble_end(first)
    return last + 1 if boundary is None else min(last + 1, boundary)


async def _joined(runs: Sequence[Coroutine[None, None, list[Entry]]]) -> list[Entry]:
    """The entries of consecutive runs, up to the first that is missing."""
    entries: list[Entry] = []
    for found in await asyncio.gather(*runs, return_exceptions=True):
        if isinstance(found, BaseException):
            if not entries:
                raise found
            break
        if entries and found[0].entry != entries[-1].entry + 1:
            break  # an earlier bookie returned fewer entries than requested
        entries += found
    return entries
