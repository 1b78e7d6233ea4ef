"""Reading a ledger by position: find the entry, read on from there, put the bytes together.

Invariants: knows positions and entries; which bookie has them is for `entry_reader`. What is
read goes into the cache, so that the caller's next look finds it there.

How it works: the index names an entry at or before the position, 64 KiB away at most. A ledger that
was recovered has no index: then the entry is found by interpolation between what is known, and
what is seen on the way is remembered. A read that goes on where the last one ended reads ahead.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt
from headrace.storage.bookkeeper.entries import (
    DATA,
    FRAGMENT,
    HEAD,
    INDEX_INTERVAL_BYTES,
    read_head,
)

if TYPE_CHECKING:
    from headrace.storage.bookkeeper.entry_cache import EntryCache
    from headrace.storage.bookkeeper.entry_reader import EntryReader
    from headrace.storage.bookkeeper.open_ledger import OpenLedger
    from headrace.storage.bookkeeper.wire import Entry
    from headrace.storage.ledger import Buffer

READ_AHEAD_BYTES = 1 << 20
BATCH_BYTES_MAX = 4 << 20
"""Bookies answer up to 5 MiB (`nettyMaxFrameSizeBytes`)."""
ENTRIES_WALKED = 16
"""So many entries are read through rather than searched."""
_LEDGERS_MAX, _READERS_MAX = 1_000, 8


class PositionReader:
    """See the module."""

    def __init__(self, reader: EntryReader, cache: EntryCache) -> None:
        self._reader = reader
        self._cache = cache
        self._ends: dict[int, deque[int]] = {}
        """Ledger -> where the last reads of it ended."""

    async def read(self, opened: OpenLedger, position: int, size: int) -> Buffer:
        """Up to `size` bytes at `position`, fewer only at the end of what may be read.

        Raises DataCorrupt, StorageUnavailable, LedgerUnknown.
        """
        end = min(position + size, opened.end)
        if position >= end:
            return b""
        cached = self._cache.get(opened.ledger, position, end - position)
        if cached is not None:
            return cached
        want = end
        if any(position <= earlier <= end for earlier in self._ends.get(opened.ledger, ())):
            want = min(max(end, position + READ_AHEAD_BYTES), opened.end)
        entry = await self._find(opened, position)
        parts: list[memoryview] = []
        reached = position
        while reached < want:
            if entry > opened.last_entry:
                raise _torn(opened, reached, "no entry holds it")
            batch = min(want - reached + INDEX_INTERVAL_BYTES, BATCH_BYTES_MAX)
            entries = await self._reader.read(
                opened.ledger, opened.versioned.metadata, entry, opened.last_entry, batch
            )
            for found in entries:
                begins, data = self._take(opened, found)
                if begins > reached:
                    raise _torn(opened, reached, f"entry {found.entry} begins at {begins}")
                if begins + len(data) > reached:
                    parts.append(data[reached - begins :])
                    reached = begins + len(data)
            entry = entries[-1].entry + 1
        self._remember(opened.ledger, reached)
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        return data[: end - position]

    async def entries(self, opened: OpenLedger, first: int, last: int) -> list[Entry]:
        """The entries from `first` to `last`; bytes that lie in them stay in memory.

        Raises DataCorrupt, StorageUnavailable, LedgerUnknown.
        """
        found: list[Entry] = []
        while first + len(found) <= last:
            batch = await self._reader.read(
                opened.ledger,
                opened.versioned.metadata,
                first + len(found),
                last,
                BATCH_BYTES_MAX,
            )
            for entry in batch:
                self._take(opened, entry)
            found += batch
        return found

    def _take(self, opened: OpenLedger, found: Entry) -> tuple[int, memoryview]:
        """(where it begins, its bytes)."""
        head = read_head(found.payload)
        if head.kind not in {DATA, FRAGMENT}:
            return head.position, found.payload[:0]  # of a trailer that its writer did not finish
        data = found.payload[HEAD.size :]
        opened.index.add(found.entry, head.position)
        self._cache.put(opened.ledger, head.position, data)
        return head.position, data

    def _remember(self, ledger: int, position: int) -> None:
        ends = self._ends.pop(ledger, None)
        if ends is None:
            if len(self._ends) >= _LEDGERS_MAX:
                del self._ends[next(iter(self._ends))]
            ends = deque(maxlen=_READERS_MAX)
        ends.append(position)
        self._ends[ledger] = ends

    async def _find(self, opened: OpenLedger, position: int) -> int:
        """An entry that begins at or before `position`, and little before it."""
        low, low_at = opened.index.before(position)
        behind = opened.index.behind(position)
        high, high_at = behind or (opened.last_entry + 1, opened.end)
        while high - low > ENTRIES_WALKED and position - low_at >= 2 * INDEX_INTERVAL_BYTES:
            share = (position - low_at) / max(high_at - low_at, 1)
            # Never the ends themselves, so that every look narrows the range by a tenth at least.
            margin = (high - low) // 10 + 1
            middle = min(max(low + int((high - low) * share), low + margin), high - margin)
            head_entry = await self._reader.read(
                opened.ledger, opened.versioned.metadata, middle, middle, 1
            )
            begins, _data = self._take(opened, head_entry[0])
            if begins <= position:
                low, low_at = middle, begins
            else:
                high, high_at = middle, begins
        return low


def _torn(opened: OpenLedger, position: int, problem: str) -> DataCorrupt:
    return DataCorrupt(
        f"ledger {opened.ledger} cannot be read at byte {position} ({problem}): its entries do not"
        " fit together",
        ledger=opened.ledger,
        position=position,
    )
