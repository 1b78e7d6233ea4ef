"""The sparse index of a ledger: positions by offset and by time, in memory.

Invariants: knows offsets, positions and timestamps; reads nothing itself. Every entry refers to the
first byte of a batch. A batch that begins at least `INTERVAL_BYTES` after the last entry gets an
entry, so batches of 4 KiB and more are found without a scan.

`max_timestamps[i]` is the largest timestamp from the ledger's start to the end of interval `i`,
so it never decreases, and "the first record not older than T" is found by bisection, too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import Final

from headrace.errors import DataCorrupt

INTERVAL_BYTES: Final = 4096
_COUNT: Final = Struct(">I")


class OffsetIndex:
    """The sparse index of one ledger."""

    __slots__ = ("max_timestamps", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.max_timestamps = array("q")

    def add(self, base_offset: int, position: int, max_timestamp_ms: int) -> None:
        """Add a batch appended at `position`."""
        positions = self.positions
        if not positions:
            self.offsets.append(base_offset)
            positions.append(position)
            self.max_timestamps.append(max_timestamp_ms)
            return
        if position - positions[-1] >= INTERVAL_BYTES:
            self.offsets.append(base_offset)
            positions.append(position)
            last = self.max_timestamps[-1]
            self.max_timestamps.append(max(max_timestamp_ms, last))
        elif max_timestamp_ms > self.max_timestamps[-1]:
            self.max_timestamps[-1] = max_timestamp_ms

    def truncate(self, end_position: int, max_timestamp_ms: int) -> None:
        """Discard the batches at and after `end_position`, whose append failed.

        `max_timestamp_ms` is the largest of the others: the last interval may include a larger
        one, of a discarded batch.
        """
        keep = bisect_left(self.positions, end_position)
        del self.offsets[keep:]
        del self.positions[keep:]
        del self.max_timestamps[keep:]
        if keep and self.max_timestamps[-1] > max_timestamp_ms:
            self.max_timestamps[-1] = max_timestamp_ms

    def since(self, count: int) -> OffsetIndex:
        """The entries after the first `count`, and the last of those, which may have changed since
        it was added."""
        part, at = OffsetIndex(), max(count - 1, 0)
        part.offsets, part.positions = self.offsets[at:], self.positions[at:]
        part.max_timestamps = self.max_timestamps[at:]
        return part

    def extend(self, part: OffsetIndex) -> None:
        """Append the entries of `since`, the first of which may replace the last one here."""
        keep = bisect_left(self.positions, part.positions[0]) if part.positions else None
        for column, more in (
            (self.offsets, part.offsets),
            (self.positions, part.positions),
            (self.max_timestamps, part.max_timestamps),
        ):
            if keep is not None:
                del column[keep:]
            column.extend(more)

    def position_before(self, offset: int) -> int:
        """The indexed position of the last indexed batch that begins at or before `offset`."""
        at = bisect_right(self.offsets, offset) - 1
        return self.positions[at] if at >= 0 else 0

    def boundary_between(self, start: int, limit: int) -> tuple[int, int] | None:
        """(position, offset) of the last indexed batch boundary in (start, limit], or None."""
        at = bisect_right(self.positions, limit) - 1
        if at >= 0 and self.positions[at] > start:
            return self.positions[at], self.offsets[at]
        return None

    def offset_at(self, position: int) -> int | None:
        """The base offset of the batch that begins at `position`, if it is indexed."""
        at = bisect_left(self.positions, position)
        if at < len(self.positions) and self.positions[at] == position:
            return self.offsets[at]
        return None

    def position_of_time(self, timestamp_ms: int) -> int | None:
        """Where to start searching for the first batch with a timestamp >= `timestamp_ms`."""
        at = bisect_left(self.max_timestamps, timestamp_ms)
        return self.positions[at] if at < len(self.positions) else None

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp in the ledger, -1 if it is empty."""
        return self.max_timestamps[-1] if self.max_timestamps else -1

    def encode(self) -> bytes:
        """Encode for a sealed ledger's footer (`docs/FORMAT.md`). Do not change: stored."""
        out = [_COUNT.pack(len(self.offsets))]
        for column in (self.offsets, self.positions, self.max_timestamps):
            big = array("q", column)
            big.byteswap()
            out.append(big.tobytes())
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> OffsetIndex:
        """Decode. Raises DataCorrupt."""
        if len(data) < _COUNT.size:
            raise DataCorrupt("a ledger footer's index is truncated")
        (count,) = _COUNT.unpack_from(data)
        if len(data) != _COUNT.size + 24 * count:
            raise DataCorrupt(f"a ledger footer's index of {count} entries has the wrong size")
        index = cls()
        start = _COUNT.size
        for column in (index.offsets, index.positions, index.max_timestamps):
            column.frombytes(data[start : start + 8 * count])
            column.byteswap()
            start += 8 * count
        return index
