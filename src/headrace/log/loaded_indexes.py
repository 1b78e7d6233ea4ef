"""Limits the memory for indexes of closed ledgers, over all partitions of a broker.

Invariants: an index read from a ledger's footer can be read again, so the least recently read one
is evicted when there are too many. Without this, reading a long history once would keep 6 MiB per
GiB in memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.log.segment import Segment

ENTRIES_MAX = 1_000_000
"""Entries of 24 bytes; a ledger of 1 GiB in batches of 16 KiB has 65,536."""


class LoadedIndexes:
    """The segments with an index in memory, least recently read first."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._entries: dict[Segment, int] = {}
        self.entry_count = 0

    def note(self, segment: Segment) -> None:
        """The index of `segment` was just read: evict others if necessary."""
        self.forget(segment)
        count = segment.index_entry_count
        self._entries[segment] = count
        self.entry_count += count
        while self.entry_count > self._entries_max and len(self._entries) > 1:
            oldest = next(iter(self._entries))
            self.forget(oldest)
            oldest.unload_index()

    def forget(self, segment: Segment) -> None:
        """Stop counting the index of `segment`."""
        self.entry_count -= self._entries.pop(segment, 0)
