"""Predicates of a query that the source applies itself: on topic, partition, offset, time and key.

Invariants: pure until `apply`, which needs Arrow. A predicate is taken only if it is applied
exactly, nulls included; Spark evaluates all others. Those on partitions and offsets decide what is
fetched, those on times also where a fetch begins; times and keys are compared per row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from headrace.pipeline.planning import Offsets, build, offset_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql.datasource import Filter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class Span:
    """The integers in [first, end)."""

    first: int = -INT64_MAX - 1
    end: int = INT64_MAX

    def and_with(self, other: Span) -> Span:
        """The integers in both."""
        return Span(max(self.first, other.first), min(self.end, other.end))

    @property
    def is_all(self) -> bool:
        """Whether it excludes nothing."""
        return self == Span()


@dataclass(frozen=True)
class RowFilter:
    """The conjunction of what was taken. Times are microseconds since 1970; None: any."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    partition_span: Span = Span()
    offsets: Span = Span()
    times_us: Span = Span()
    keys: frozenset[bytes] | None = None

    def with_predicate(self, predicate: Filter) -> RowFilter | None:
        """Return the filter with this predicate, or None if it is not taken."""
        name = type(predicate).__name__
        column: tuple[str, ...] = getattr(predicate, "attribute", ())
        value: Any = getattr(predicate, "value", None)
        if len(column) != 1:
            return None
        try:
            if name in ("EqualTo", "EqualNullSafe") and value is not None:
                return self._with_values(column[0], [value])
            if name == "In" and None not in value:
                return self._with_values(column[0], value)
            if name in _SPANS:
                return self._with_span(column[0], _SPANS[name](_number(value)))
        except (TypeError, OverflowError):  # a value of another type: Spark compares it
            pass
        return None

    def _with_values(self, column: str, values: Iterable[Any]) -> RowFilter | None:
        if column == "key":
            keys = frozenset(map(_octets, values))
            return replace(self, keys=keys if self.keys is None else self.keys & keys)
        if column == "topic":
            topics = frozenset(map(_text, values))
            return replace(self, topics=topics if self.topics is None else self.topics & topics)
        if column == "partition":
            found = frozenset(map(_number, values))
            known = self.partitions
            return replace(self, partitions=found if known is None else known & found)
        numbers = [_number(value) for value in values]
        if len(numbers) != 1:
            return None
        return self._with_span(column, Span(numbers[0], numbers[0] + 1))

    def _with_span(self, column: str, span: Span) -> RowFilter | None:
        if column == "offset":
            return replace(self, offsets=self.offsets.and_with(span))
        if column == "timestamp":
            return replace(self, times_us=self.times_us.and_with(span))
        if column == "partition":
            return replace(self, partition_span=self.partition_span.and_with(span))
        return None

    def chosen(self, partitions: Offsets) -> Offsets:
        """Those partitions that may have rows."""
        return build(
            [
                (topic, number, offset)
                for topic, number, offset in walk(partitions)
                if (self.topics is None or topic in self.topics)
                and (self.partitions is None or number in self.partitions)
                and self.partition_span.first <= number < self.partition_span.end
            ]
        )

    def bounded(self, start: Offsets, end: Offsets) -> tuple[Offsets, Offsets]:
        """[start, end) of each partition, without offsets that are excluded."""
        starts, stops = [], []
        for topic, number, stop in walk(end):
            begin = offset_of(start, topic, number, 0)
            first = max(begin, min(self.offsets.first, stop))
            starts.append((topic, number, first))
            stops.append((topic, number, max(first, min(stop, self.offsets.end))))
        return build(starts), build(stops)

    @property
    def time_ms_min(self) -> int | None:
        """The first millisecond that rows may have, for finding where to begin."""
        return None if self.times_us.first <= 0 else self.times_us.first // 1000

    def apply(self, batch: Any) -> Any:
        """The rows of an Arrow batch that pass on time and key."""
        if self.times_us.is_all and self.keys is None:
            return batch
        import pyarrow as pa
        from pyarrow import compute

        if not self.times_us.is_all:
            times = batch.column("timestamp").cast(pa.int64())
            first, end = pa.scalar(self.times_us.first), pa.scalar(self.times_us.end)
            is_after = compute.greater_equal(times, first)
            batch = batch.filter(compute.and_(is_after, compute.less(times, end)))
        if self.keys is not None:
            wanted = pa.array(sorted(self.keys), pa.binary())
            batch = batch.filter(compute.is_in(batch.column("key"), wanted))
        return batch


_SPANS: dict[str, Callable[[int], Span]] = {
    "GreaterThan": lambda value: Span(value + 1),
    "GreaterThanOrEqual": Span,
    "LessThan": lambda value: Span(end=value),
    "LessThanOrEqual": lambda value: Span(end=value + 1),
}


def _number(value: Any) -> int:
    """An integer; of a time, its microseconds. Raises TypeError."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TypeError("a time without a zone")
        return (value - _EPOCH) // _MICROSECOND
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} is not a number")
    return value


def _octets(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{type(value).__name__} is not binary")
    return bytes(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not text")
    return value
