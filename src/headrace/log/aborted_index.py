"""The transactions aborted by markers in one ledger, which `read_committed` skips.

Invariants: knows offsets and producer ids; reads nothing. Entries are in marker order. The *stable
offset* of an entry is the last stable offset when its marker was appended: no transaction that ends
later begins before it. It never decreases, so a search stops at the first entry whose stable offset
is not below the end of the range (as with the same field in Kafka's transaction index).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.errors import DataCorrupt

if TYPE_CHECKING:
    from collections.abc import Sequence

ENTRIES_MAX = 100_000
"""Beyond this the log rolls: 32 bytes each must fit into a footer of 16 MiB, beside the offset
index."""
_COUNT: Final = Struct(">I")
_COLUMNS: Final = 4


class AbortedIndex:
    """The aborted transactions of one ledger."""

    __slots__ = ("first_offsets", "marker_offsets", "producer_ids", "stable_offsets")

    def __init__(self) -> None:
        self.producer_ids = array("q")
        self.first_offsets = array("q")
        self.marker_offsets = array("q")
        self.stable_offsets = array("q")

    def __len__(self) -> int:
        return len(self.marker_offsets)

    def add(
        self, producer_id: int, first_offset: int, marker_offset: int, stable_offset: int
    ) -> None:
        """Add a transaction aborted by the marker at `marker_offset`."""
        self.producer_ids.append(producer_id)
        self.first_offsets.append(first_offset)
        self.marker_offsets.append(marker_offset)
        self.stable_offsets.append(stable_offset)

    def truncate(self, end_offset: int) -> None:
        """Discard the markers at and after `end_offset`, whose append failed."""
        keep = bisect_left(self.marker_offsets, end_offset)
        for column in self._columns():
            del column[keep:]

    def since(self, count: int) -> AbortedIndex:
        """The entries after the first `count`."""
        part = AbortedIndex()
        for column, source in zip(part._columns(), self._columns(), strict=True):
            column.extend(source[count:])
        return part

    def extend(self, part: AbortedIndex) -> None:
        """Append entries that follow."""
        for column, more in zip(self._columns(), part._columns(), strict=True):
            column.extend(more)

    def without(self, marker_offsets: set[int]) -> AbortedIndex:
        """The entries without those whose marker is one of these."""
        left = AbortedIndex()
        for entry in zip(
            self.producer_ids,
            self.first_offsets,
            self.marker_offsets,
            self.stable_offsets,
            strict=True,
        ):
            if entry[2] not in marker_offsets:
                left.add(*entry)
        return left

    def find(self, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(first offset, producer id) of aborted transactions that may have records in a range.

        These began before `end_offset` and have their marker at or after `offset`.
        """
        found: list[tuple[int, int]] = []
        for at in range(bisect_left(self.marker_offsets, offset), len(self.marker_offsets)):
            if self.first_offsets[at] < end_offset:
                found.append((self.first_offsets[at], self.producer_ids[at]))
            if self.stable_offsets[at] >= end_offset:
                break
        return found

    def _columns(self) -> Sequence[array[int]]:
        return self.producer_ids, self.first_offsets, self.marker_offsets, self.stable_offsets

    def encode(self) -> bytes:
        """Encode for a sealed ledger's footer (`docs/FORMAT.md`). Do not change: stored."""
        out = [_COUNT.pack(len(self))]
        for column in self._columns():
            big = array("q", column)
            big.byteswap()
            out.append(big.tobytes())
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> AbortedIndex:
        """Decode. Raises DataCorrupt."""
        count = _COUNT.unpack_from(data)[0] if len(data) >= _COUNT.size else 0
        if len(data) < _COUNT.size + 8 * _COLUMNS * count:
            raise DataCorrupt("a ledger footer's aborted transactions are truncated")
        index = cls()
        start = _COUNT.size
        for column in index._columns():
            column.frombytes(data[start : start + 8 * count])
            column.byteswap()
            start += 8 * count
        return index
