"""How a read is split: limits per batch, ranges, tasks. Pure functions over plain dicts.

Invariants: no client, no Spark, no clock. Offsets are `{topic: {"partition": offset}}` with the
partition as text, because Spark stores them as JSON in a checkpoint (do not change: stored). Ends
are exclusive.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

from headrace.pipeline.errors import RecordsLost, RecordUnreadable

if TYPE_CHECKING:
    from collections.abc import Iterator

Offsets = dict[str, dict[str, int]]


class OffsetRange(NamedTuple):
    """The records [start, end) of one topic partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets (records may be fewer, because logs have holes)."""
        return self.end - self.start

    def lost(self, offset: int) -> RecordsLost:
        """The error that an offset of it has been deleted."""
        return RecordsLost(
            f"{self.topic}-{self.partition}: offset {offset} is no longer in the log. Set"
            " failOnDataLoss=false to read the remaining records.",
            topic=self.topic,
            partition=self.partition,
        )

    def unreadable(self, offset: int, reason: object) -> RecordUnreadable:
        """The error that a batch of it cannot be read."""
        return RecordUnreadable(
            f"{self.topic}-{self.partition}: the record batch at offset {offset} cannot be read: "
            f"{reason}. Check the broker's disk and other replicas, or start after that batch.",
            topic=self.topic,
            partition=self.partition,
            offset=offset,
        )


def walk(offsets: Offsets) -> Iterator[tuple[str, int, int]]:
    """Yield (topic, partition, offset) in order."""
    for topic in sorted(offsets):
        for number, offset in sorted(offsets[topic].items(), key=lambda item: int(item[0])):
            yield topic, int(number), offset


def offset_of(offsets: Offsets, topic: str, partition: int, default: int) -> int:
    """Return the offset of one partition, or `default` if it is not listed."""
    return offsets.get(topic, {}).get(str(partition), default)


def build(entries: Iterator[tuple[str, int, int]] | list[tuple[str, int, int]]) -> Offsets:
    """The inverse of `walk`."""
    offsets: Offsets = {}
    for topic, partition, offset in entries:
        offsets.setdefault(topic, {})[str(partition)] = offset
    return offsets


def larger(left: Offsets, right: Offsets) -> Offsets:
    """Per partition the larger offset; a partition in only one of them is taken from there."""
    merged = build(list(walk(left)))
    for topic, partition, offset in walk(right):
        known = offset_of(merged, topic, partition, offset)
        merged.setdefault(topic, {})[str(partition)] = max(known, offset)
    return merged


def total(start: Offsets, end: Offsets) -> int:
    """The number of offsets between; a partition that only `end` lists counts from 0."""
    return sum(
        max(0, offset - offset_of(start, topic, partition, 0))
        for topic, partition, offset in walk(end)
    )


def limited(start: Offsets, end: Offsets, records_max: int | None) -> Offsets:
    """Return an end at most `records_max` after `start`, shared among partitions by backlog.

    A partition with a backlog always advances by at least one, so none starves. Never moves
    backwards: where `end` lies before `start`, `start` is kept.
    """
    backlog = [
        (topic, partition, begin, max(0, offset - begin))
        for topic, partition, offset in walk(end)
        for begin in (offset_of(start, topic, partition, 0),)
    ]
    whole = sum(size for *_, size in backlog)
    if records_max is None or whole <= records_max:
        return build([(topic, part, begin + size) for topic, part, begin, size in backlog])
    return build(
        [
            (topic, part, begin + (min(size, max(1, size * records_max // whole))))
            for topic, part, begin, size in backlog
        ]
    )


def ranges_between(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Return the non-empty ranges of [start, end); a new partition begins at 0."""
    found = [
        OffsetRange(topic, partition, offset_of(start, topic, partition, 0), offset)
        for topic, partition, offset in walk(end)
    ]
    return [piece for piece in found if piece.size > 0]


def split(
    ranges: list[OffsetRange], tasks_min: int | None, records_per_task_max: int | None
) -> list[OffsetRange]:
    """Split large ranges into at least `tasks_min` tasks, none larger than the maximum.

    Pieces of a range have nearly equal sizes and are in order. A piece has at least one offset.
    With neither bound given, each range is one task.
    """
    whole = sum(piece.size for piece in ranges)
    pieces: list[OffsetRange] = []
    for piece in ranges:
        cuts = 1
        if tasks_min is not None and tasks_min > len(ranges):
            cuts = max(cuts, -(-piece.size * tasks_min // whole))
        if records_per_task_max is not None:
            cuts = max(cuts, -(-piece.size // records_per_task_max))
        cuts = min(cuts, piece.size)
        edges = [piece.start + piece.size * index // cuts for index in range(cuts + 1)]
        pieces.extend(
            piece._replace(start=low, end=high) for low, high in itertools.pairwise(edges)
        )
    return pieces
