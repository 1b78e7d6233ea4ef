"""How a read is cut: limits per batch, ranges, tasks. Pure functions over plain dicts.

Invariants: no client, no Spark, no clock. Offsets are `{topic: {"partition": offset}}`
with the partition as text, because that is what Spark stores in a checkpoint as JSON (do not
change: stored). An end is exclusive.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

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
        """How many offsets lie in it (records may be fewer: logs have holes)."""
        return self.end - self.start


def walk(offsets: Offsets) -> Iterator[tuple[str, int, int]]:
    """(topic, partition, offset) in order."""
    for topic in sorted(offsets):
        for number, offset in sorted(offsets[topic].items(), key=lambda item: int(item[0])):
            yield topic, int(number), offset


def offset_of(offsets: Offsets, topic: str, partition: int, default: int) -> int:
    """The offset of one partition, or `default` where it is not named."""
    return offsets.get(topic, {}).get(str(partition), default)


def build(entries: Iterator[tuple[str, int, int]] | list[tuple[str, int, int]]) -> Offsets:
    """The inverse of `walk`."""
    offsets: Offsets = {}
    for topic, partition, offset in entries:
        offsets.setdefault(topic, {})[str(partition)] = offset
    return offsets


def larger(left: Offsets, right: Offsets) -> Offsets:
    """Per partition the larger of both; what only one names is taken from it."""
    merged = build(list(walk(left)))
    for topic, partition, offset in walk(right):
        known = offset_of(merged, topic, partition, offset)
        merged.setdefault(topic, {})[str(partition)] = max(known, offset)
    return merged


def total(start: Offsets, end: Offsets) -> int:
    """How many offsets lie between; a partition that only `end` names counts from 0."""
    return sum(
        max(0, offset - offset_of(start, topic, partition, 0))
        for topic, partition, offset in walk(end)
    )


def limited(start: Offsets, end: Offsets, records_max: int | None) -> Offsets:
    """An end at most `records_max` after `start`, spread over partitions by their backlog.

    A partition with a backlog always advances by at least one, so none starves. Never goes
    back: where `end` lies before `start`, `start` stays.
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
    """The ranges of [start, end) that are not empty; a new partition begins at 0."""
    found = [
        OffsetRange(topic, partition, offset_of(start, topic, partition, 0), offset)
        for topic, partition, offset in walk(end)
    ]
    return [piece for piece in found if piece.size > 0]


def split(
    ranges: list[OffsetRange], tasks_min: int | None, records_per_task_max: int | None
) -> list[OffsetRange]:
    """Cut large ranges so that at least `tasks_min` tasks come out, none beyond the maximum.

    Pieces of one range are of near equal size and in order. A range is never cut below one
    offset a piece; with neither bound given, one range is one task.
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
