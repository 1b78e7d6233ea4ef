"""Reads a ledger by position: finds the entry, reads on from there, joins the bytes.

Invariants: knows positions and entries; `entry_reader` chooses the bookies. What is read is put
into the cache, where the caller's next lookup finds it.

The index gives an entry at or before the position, at most 64 KiB away. A recovered ledger has no
index: the entry is then found by interpolation between known entries, and entries seen on the way
are remembered. A read that continues where the last one ended reads ahead.
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
"""Bookies send up to 5 MiB (`nettyMaxFrameSizeBytes`)."""
ENSEMBLES_MAX = 16
"""Read at the same time, after it has shown that they have few entries."""
ENTRIES_WALKED = 16
"""Up to so many entries are scanned rather than searched."""
_LEDGERS_MAX, _READERS_MAX = 1_000, 8


class PositionReader:
    """See the module."""

    def __init__(self, reader: EntryReader, cache: EntryCache) -> None:
        self._reader = reader
        self._cache = cache
        self._ends: dict[int, deque[int]] = {}
        """Ledger -> end positions of its last reads."""

    async def read(self, opened: OpenLedger, position: int, size: int) -> Buffer:
        """Up to `size` bytes at `position`; fewer only at the end of the readable bytes.

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
        reached, ensembles = position, 1
        while reached < want:
            if entry > opened.last_entry:
                raise _torn(opened, reached, "no entry contains it")
            batch = min(want - reached + INDEX_INTERVAL_BYTES, BATCH_BYTES_MAX)
            entries = await self._reader.read(
                opened.ledger, opened.versioned.metadata, entry, opened.last_entry, batch, ensembles
            )
            for found in entries:
                begins, data = self._take(opened, found)
                if begins > reached:
                    raise _torn(opened, reached, f"entry {found.entry} begins at {begins}")
                if begins + len(data) > reached:
                    parts.append(data[reached - begins :])
                    reached = begins + len(data)
            entry = entries[-1].entry + 1
            # After bookies have failed many times, ensembles are short.
            is_cut = opened.versioned.metadata.ensemble_end(entry - 1) == entry
            ensembles = min(2 * ensembles, ENSEMBLES_MAX) if is_cut else 1
        self._remember(opened.ledger, reached)
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        return data[: end - position]

    async def entries(self, opened: OpenLedger, first: int, last: int) -> list[Entry]:
        """The entries from `first` to `last`; their ledger bytes are cached.

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
        """Cache an entry; returns (its position, its bytes)."""
        head = read_head(found.payload)
        if head.kind not in {DATA, FRAGMENT}:
            return head.position, found.payload[:0]  # part of an incomplete trailer
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
        """An entry that begins at, or slightly before, `position`."""
        low, low_at = opened.index.before(position)
        after = opened.index.after(position)
        high, high_at = after or (opened.last_entry + 1, opened.end)
        while high - low > ENTRIES_WALKED and position - low_at >= 2 * INDEX_INTERVAL_BYTES:
            share = (position - low_at) / max(high_at - low_at, 1)
            # Never the ends themselves, so that each step shrinks the range by at least a tenth.
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
        f"cannot read ledger {opened.ledger} at byte {position} ({problem}): its entries are"
        " inconsistent",
        ledger=opened.ledger,
        position=position,
    )
