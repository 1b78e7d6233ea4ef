"""The scheduled records of one partition, in 8 to 9 bytes each.

Invariants: holds due times and offsets of the companion log, never a record's bytes. Entries are
ordered by (due time, offset), so records that are due in the same millisecond keep their order of
arrival. A sealed part accepts no more entries.

How it works: a bucket covers 70 minutes of due times and consists of sorted parts. An entry is one
unsigned 64-bit number in its part: the due time within the bucket (22 bits), the offset relative to
the part's base (26 bits), and a tag (16 bits of the message id's checksum, by which a message is
found by its id without an index). New entries go to the bucket's last part until that is full.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right, insort
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

BUCKET_BITS: Final = 22
OFFSET_BITS: Final = 26
TAG_BITS: Final = 16
DUE_SHIFT: Final = OFFSET_BITS + TAG_BITS
TAG_MASK: Final = (1 << TAG_BITS) - 1
OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
DUE_MASK: Final = (1 << BUCKET_BITS) - 1
BEHIND_MAX: Final = 1 << 24
"""How far below a part's first offset later offsets may be: half messages are committed late."""
PART_ENTRIES_MAX: Final = 8_192
"""Inserting an entry moves at most 64 KiB, which takes 3 us."""
ENTRY_BYTES: Final = 9
PART_BYTES: Final = 300
"""Of a part beside its entries, with its bucket: where due times are far apart, each entry has one
of its own."""


class ScheduleEntry(NamedTuple):
    """A record's due time, and its offset in the companion log."""

    due_ms: int
    offset: int


class Part:
    """Sorted entries of one bucket; offsets are relative to `base`."""

    __slots__ = ("_high", "_low", "base", "entries", "is_sealed")

    def __init__(self, base: int, entries: array[int]) -> None:
        self.base = base
        self.entries = entries
        self.is_sealed = False
        self._low, self._high = (-1, -1) if entries else (1 << 63, -1)
        """All offsets are from `_low` to `_high`; -1: not known yet. Records arrive in the order
        of their offsets, so few parts of a bucket may have one."""

    def add(self, due: int, offset: int, tag: int) -> None:
        """Add an entry to a part that is not sealed."""
        self._low, self._high = min(self._low, offset), max(self._high, offset)
        insort(self.entries, due << DUE_SHIFT | (offset - self.base) << TAG_BITS | tag)

    def may_have(self, offset: int) -> bool:
        """Whether one of its entries may have this offset."""
        if self._low < 0 and self.entries:
            deltas = [entry >> TAG_BITS & OFFSET_MASK for entry in self.entries]
            self._low, self._high = self.base + min(deltas), self.base + max(deltas)
        return self._low <= offset <= self._high

    def stored(self) -> bytes:
        """The entries, little-endian. Do not change: stored."""
        if sys.byteorder == "little":
            return self.entries.tobytes()
        swapped = self.entries[:]
        swapped.byteswap()
        return swapped.tobytes()

    @classmethod
    def restored(cls, base: int, data: bytes) -> Part:
        """The inverse of `stored`. Raises ValueError."""
        entries = array("Q")
        entries.frombytes(data)
        if sys.byteorder != "little":
            entries.byteswap()
        return cls(base, entries)

    def place(self, due: int, offset: int) -> int:
        """The number of entries at or before (due time in the bucket, offset)."""
        delta = offset - self.base
        if delta < 0:
            return bisect_left(self.entries, due << DUE_SHIFT)
        delta = min(delta, OFFSET_MASK)
        return bisect_right(self.entries, due << DUE_SHIFT | delta << TAG_BITS | TAG_MASK)

    def tagged(
        self, bucket: int, tags: Collection[int], after: ScheduleEntry, count_max: int
    ) -> list[ScheduleEntry]:
        """The first entries after `after` that carry one of these tags, in order."""
        start_ms, base, first = bucket << BUCKET_BITS, self.base, 0
        if bucket <= after.due_ms >> BUCKET_BITS:
            is_same = bucket == after.due_ms >> BUCKET_BITS
            due = after.due_ms & DUE_MASK
            first = self.place(due, after.offset) if is_same else len(self.entries)
        found = (
            ScheduleEntry(start_ms + (entry >> DUE_SHIFT), base + (entry >> TAG_BITS & OFFSET_MASK))
            for entry in self.entries[first:]
            if entry & TAG_MASK in tags
        )
        return list(islice(found, count_max))

    def iterate(self, bucket: int, first: int) -> Iterator[ScheduleEntry]:
        """The entries from index `first` on."""
        start_ms, base = bucket << BUCKET_BITS, self.base
        for index in range(first, len(self.entries)):
            entry = self.entries[index]
            yield ScheduleEntry(
                start_ms + (entry >> DUE_SHIFT), base + (entry >> TAG_BITS & OFFSET_MASK)
            )


class Schedule:
    """See the module."""

    def __init__(self) -> None:
        self.count = 0
        self._part_count = 0
        self._buckets: dict[int, list[Part]] = {}
        self._numbers: list[int] = []
        """Bucket numbers, sorted."""
        self._first_ms: int | None = None
        self._is_first_known = True

    # --- changes -----------------------------------------------------------------------------

    def add(self, due_ms: int, offset: int, tag: int) -> None:
        """Add a record."""
        bucket = due_ms >> BUCKET_BITS
        parts = self._buckets.get(bucket)
        if parts is None:
            parts = self._add_bucket(bucket)
        part = parts[-1] if parts else None
        if (
            part is None
            or len(part.entries) >= PART_ENTRIES_MAX
            or part.is_sealed
            or not 0 <= offset - part.base <= OFFSET_MASK
        ):
            part = Part(max(offset - BEHIND_MAX, 0), array("Q"))
            parts.append(part)
            self._part_count += 1
        part.add(due_ms & DUE_MASK, offset, tag)
        self.count += 1
        if self._is_first_known and (self._first_ms is None or due_ms < self._first_ms):
            self._first_ms = due_ms

    def _add_bucket(self, bucket: int) -> list[Part]:
        parts: list[Part] = []
        self._buckets[bucket] = parts
        insort(self._numbers, bucket)
        return parts

    def add_part(self, bucket: int, part: Part) -> None:
        """Add a stored part."""
        parts = self._buckets.get(bucket)
        if parts is None:
            parts = self._add_bucket(bucket)
        part.is_sealed = True
        parts.insert(0, part)
        self._part_count += 1
        self.count += len(part.entries)
        self._is_first_known = False

    def seal(self) -> list[tuple[int, Part]]:
        """Seal all parts: only removals may change them; returns (bucket, part) of each."""
        parts = [(bucket, part) for bucket in self._numbers for part in self._buckets[bucket]]
        for _, part in parts:
            part.is_sealed = True
        return parts

    def discard(self, due_ms: int, offset: int) -> bool:
        """Remove one record; whether it was present."""
        bucket, due = due_ms >> BUCKET_BITS, due_ms & DUE_MASK
        found = self._find(bucket, due, offset)
        if found is None:
            return False
        part, index = found
        del part.entries[index]
        self.count -= 1
        self._is_first_known = False
        if not part.entries:
            self._drop_empty(bucket)
        return True

    def take(self, due_ms: int, offset: int) -> int:
        """Remove all records up to and including (due_ms, offset); returns their number."""
        last, taken = due_ms >> BUCKET_BITS, 0
        for bucket in self._numbers[: bisect_right(self._numbers, last)]:
            due = due_ms & DUE_MASK if bucket == last else DUE_MASK
            is_emptied = False
            bound = (due + 1) << DUE_SHIFT
            for part in self._buckets[bucket]:
                if part.entries[0] >= bound:
                    continue
                upto = part.place(due, offset) if bucket == last else len(part.entries)
                if upto:
                    del part.entries[:upto]
                    taken += upto
                    is_emptied = is_emptied or not part.entries
            if is_emptied:
                self._drop_empty(bucket)
        self.count -= taken
        self._is_first_known = False
        return taken

    def _drop_empty(self, bucket: int) -> None:
        kept = [part for part in self._buckets[bucket] if part.entries]
        self._part_count -= len(self._buckets[bucket]) - len(kept)
        if kept:
            self._buckets[bucket] = kept
        else:
            del self._buckets[bucket]
            del self._numbers[bisect_left(self._numbers, bucket)]

    # --- queries -----------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return ENTRY_BYTES * self.count + PART_BYTES * self._part_count

    def size_with(self, due_times: Collection[int]) -> int:
        """About how much more it would take with records that are due then."""
        buckets = {due_ms >> BUCKET_BITS for due_ms in due_times}
        new = sum(1 for bucket in buckets if bucket not in self._buckets)
        return ENTRY_BYTES * len(due_times) + PART_BYTES * new

    def first_ms(self) -> int | None:
        """When the first record is due; None without records."""
        if not self._is_first_known:
            self._first_ms = None
            if self._numbers:
                bucket = self._numbers[0]
                first = min(part.entries[0] >> DUE_SHIFT for part in self._buckets[bucket])
                self._first_ms = (bucket << BUCKET_BITS) + first
            self._is_first_known = True
        return self._first_ms

    def has(self, due_ms: int, offset: int) -> bool:
        """Whether the record is scheduled."""
        return self._find(due_ms >> BUCKET_BITS, due_ms & DUE_MASK, offset) is not None

    def _find(self, bucket: int, due: int, offset: int) -> tuple[Part, int] | None:
        for part in self._buckets.get(bucket, ()):
            if not part.may_have(offset):
                continue
            index = part.place(due, offset) - 1
            if index >= 0 and (
                part.entries[index] >> TAG_BITS == due << OFFSET_BITS | offset - part.base
            ):
                return part, index
        return None

    def due(self, until_ms: int, count_max: int) -> list[ScheduleEntry]:
        """The first records that are due at or before `until_ms`, in order."""
        found: list[ScheduleEntry] = []
        last = until_ms >> BUCKET_BITS
        for bucket in self._numbers:
            if bucket > last or len(found) >= count_max:
                break
            # Of a thousand parts, few have records that are due now.
            bound = 1 << 64 if bucket < last else ((until_ms & DUE_MASK) + 1) << DUE_SHIFT
            parts = [part for part in self._buckets[bucket] if part.entries[0] < bound]
            for entry in islice(
                merge(*(part.iterate(bucket, 0) for part in parts)), count_max - len(found)
            ):
                if entry.due_ms > until_ms:
                    break
                found.append(entry)
        return found

    def due_at(self, due_ms: int, after: int, count_max: int = sys.maxsize) -> list[int]:
        """The offsets after `after` of the records that are due in this millisecond; if there are
        more than `count_max`, some of them that are."""
        found: list[int] = []
        due = due_ms & DUE_MASK
        bound = (due + 1) << DUE_SHIFT
        for part in self._buckets.get(due_ms >> BUCKET_BITS, ()):
            if len(found) > count_max:
                break
            first = part.place(due, after)
            last = bisect_left(part.entries, bound, first)
            found += [
                part.base + (entry >> TAG_BITS & OFFSET_MASK) for entry in part.entries[first:last]
            ]
        found.sort()
        return found

    def after(self, entry: ScheduleEntry) -> Iterator[ScheduleEntry]:
        """All records after `entry`, in order; the schedule must not change meanwhile."""
        first = entry.due_ms >> BUCKET_BITS
        for bucket in self._numbers[bisect_left(self._numbers, first) :]:
            parts = self._buckets[bucket]
            due = entry.due_ms & DUE_MASK
            yield from merge(
                *(
                    part.iterate(bucket, part.place(due, entry.offset) if bucket == first else 0)
                    for part in parts
                )
            )

    def parts(self) -> list[tuple[int, Part]]:
        """(bucket, part) of all parts."""
        return [(bucket, part) for bucket in self._numbers for part in self._buckets[bucket]]

    def validate(self) -> None:
        """Assert that what is counted is there."""
        parts = [part for _bucket, part in self.parts()]
        assert self._part_count == len(parts)
        assert self.count == sum(len(part.entries) for part in parts)
