"""A high dynamic range histogram: durations from 1 ns to hours, with three significant digits.

Invariants: pure; knows numbers, not where they come from. Coordinated omission is corrected only by
the start of a duration: the time at which its message was due (see `latency`).

How it works (as in HdrHistogram): values below 2,048 have a bucket each; above, each power of two
is divided into 1,024 buckets, so that a bucket is at most a thousandth of its value wide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SUB_BITS = 11  # 2,048 sub-buckets: three decimal digits
_HALF = 1 << (_SUB_BITS - 1)


def bucket_of(value: int) -> int:
    """The bucket of a value; buckets are ordered by value."""
    shift = max(0, value.bit_length() - _SUB_BITS)
    return shift * _HALF + (value >> shift)


def highest_in(bucket: int) -> int:
    """The largest value in a bucket."""
    shift = max(0, bucket // _HALF - 1)
    return ((bucket - shift * _HALF + 1) << shift) - 1


class HdrHistogram:
    """Integers (here nanoseconds), counted by bucket; can be merged and stored as JSON."""

    __slots__ = ("_counts", "_max", "count")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._counts: dict[int, int] = {}
        self._max = 0
        self.count = 0
        for value in values:
            self.add(value)

    def add(self, value: int) -> None:
        """Count one value; values below 0 count as 0."""
        value = max(0, value)
        bucket = bucket_of(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._max = max(self._max, value)
        self.count += 1

    def merge(self, other: HdrHistogram) -> None:
        """Add the counts of `other`."""
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count
        self._max = max(self._max, other._max)
        self.count += other.count

    def at(self, share: float) -> int:
        """The value that a fraction `share` (0 to 1) of all values do not exceed; 0 if empty."""
        wanted = max(1, -(-share * self.count // 1)) if self.count else 0
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(highest_in(bucket), self._max)
        return self._max

    def as_json(self) -> dict[str, int]:
        """Bucket -> count, and the largest value, for JSON."""
        return {**{str(b): n for b, n in sorted(self._counts.items())}, "max": self._max}

    @classmethod
    def from_json(cls, kept: Mapping[str, int]) -> HdrHistogram:
        """The inverse of `as_json`."""
        histogram = cls()
        histogram._counts = {int(b): n for b, n in kept.items() if b != "max"}
        histogram._max = kept.get("max", 0)
        histogram.count = sum(histogram._counts.values())
        return histogram
