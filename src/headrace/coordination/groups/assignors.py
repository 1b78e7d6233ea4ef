"""The assignors of the new consumer protocol, which assign partitions to members.

Invariants: pure functions of their arguments, with results independent of set order. Every
partition of a subscribed topic is assigned to exactly one of its subscribers. `uniform` keeps
existing assignments as far as the balance allows, then prefers a member in the rack of the
partition's owner. `range` assigns consecutive partitions of each topic to each member, so topics
with equal partition counts and the same subscribers are co-partitioned.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from uuid import UUID

    from headrace.coordination.kit.topic_view import TopicShape

UNIFORM: Final = "uniform"
RANGE: Final = "range"
ASSIGNORS: Final = (UNIFORM, RANGE)
"""The first is the default, as in Kafka's group.consumer.assignors."""

Partition = tuple[int, int]
"""(index of the topic, partition number)"""


class Subscriber(NamedTuple):
    """A member as an assignor sees it."""

    member_id: str
    instance_id: str | None
    rack: str | None
    topics: frozenset[UUID]


def assign(
    assignor: str,
    subscribers: Sequence[Subscriber],
    shapes: Mapping[UUID, TopicShape],
    previous: Mapping[str, Mapping[UUID, Collection[int]]],
) -> dict[str, dict[UUID, tuple[int, ...]]]:
    """The target assignment of every subscriber: partitions by topic, sorted."""
    if assignor == RANGE:
        return _assign_ranges(subscribers, shapes)
    topics = sorted(shapes, key=lambda topic_id: topic_id.int)
    work = _Uniform(subscribers, [shapes[topic_id] for topic_id in topics], previous)
    return {
        subscriber.member_id: _by_topic(topics, partitions)
        for subscriber, partitions in zip(subscribers, work.assign(), strict=True)
    }


def _by_topic(topics: list[UUID], partitions: set[Partition]) -> dict[UUID, tuple[int, ...]]:
    found: dict[UUID, list[int]] = {}
    for index, number in sorted(partitions):
        found.setdefault(topics[index], []).append(number)
    return {topic_id: tuple(numbers) for topic_id, numbers in found.items()}


def _assign_ranges(
    subscribers: Sequence[Subscriber], shapes: Mapping[UUID, TopicShape]
) -> dict[str, dict[UUID, tuple[int, ...]]]:
    found: dict[str, dict[UUID, tuple[int, ...]]] = {s.member_id: {} for s in subscribers}
    ordered = sorted(subscribers, key=lambda s: (s.instance_id or s.member_id, s.member_id))
    for topic_id in sorted(shapes, key=lambda topic_id: topic_id.int):
        takers = [s.member_id for s in ordered if topic_id in s.topics]
        count = shapes[topic_id].partition_count
        start = 0
        for place, member_id in enumerate(takers):
            end = start + count // len(takers) + (place < count % len(takers))
            if end > start:
                found[member_id][topic_id] = tuple(range(start, end))
            start = end
    return found


class _Uniform:
    """One computation of the uniform assignor. Members and topics are represented by indexes."""

    def __init__(
        self,
        subscribers: Sequence[Subscriber],
        shapes: list[TopicShape],
        previous: Mapping[str, Mapping[UUID, Collection[int]]],
    ) -> None:
        self._shapes = shapes
        self._racks = [s.rack for s in subscribers]
        place_of = {shape.id: index for index, shape in enumerate(shapes)}
        wanted = [{place_of[t] for t in s.topics if t in place_of} for s in subscribers]
        self._takers: list[list[int]] = [[] for _ in shapes]
        for taker, indexes in enumerate(wanted):
            for index in indexes:
                self._takers[index].append(taker)
        self._is_uniform = all(w == wanted[0] for w in wanted)
        self._owner: dict[Partition, int] = {}
        self._has: list[set[Partition]] = [set() for _ in subscribers]
        for taker, subscriber in enumerate(subscribers):
            for topic_id, numbers in previous.get(subscriber.member_id, {}).items():
                index = place_of.get(topic_id, -1)
                if index not in wanted[taker]:
                    continue
                for number in numbers:
                    partition = (index, number)
                    if number < shapes[index].partition_count and partition not in self._owner:
                        self._owner[partition] = taker
                        self._has[taker].add(partition)

    def assign(self) -> list[set[Partition]]:
        """The assignment of each subscriber."""
        if self._is_uniform:
            self._drop_surplus()
        free = self._free()
        if any(self._racks):
            free = self._give_by_rack(free)
        self._give(free)
        if not self._is_uniform:
            self._balance()
        return self._has

    def _quota(self) -> tuple[int, int]:
        """The minimum number per member, and how many members may have one more."""
        total = sum(s.partition_count for s, t in zip(self._shapes, self._takers, strict=True) if t)
        return divmod(total, len(self._has)) if self._has else (0, 0)

    def _drop_surplus(self) -> None:
        """Take surplus partitions away, highest numbers first."""
        least, extra = self._quota()
        # Members with a surplus keep one extra partition, so that fewest move.
        for taker in sorted(range(len(self._has)), key=lambda t: (-len(self._has[t]), t)):
            has = self._has[taker]
            allowed = least
            if extra and len(has) > least:
                allowed, extra = least + 1, extra - 1
            if len(has) > allowed:
                for partition in sorted(has)[allowed:]:
                    has.remove(partition)
                    del self._owner[partition]

    def _free(self) -> list[Partition]:
        """Unassigned partitions; those with the fewest possible subscribers first."""
        order = sorted(range(len(self._shapes)), key=lambda i: (len(self._takers[i]), i))
        return [
            (index, number)
            for index in order
            if self._takers[index]
            for number in range(self._shapes[index].partition_count)
            if (index, number) not in self._owner
        ]

    def _give_by_rack(self, free: list[Partition]) -> list[Partition]:
        """Assign partitions to members in their rack that have room; returns the rest."""
        least, extra = self._quota()
        extra -= sum(len(has) > least for has in self._has)
        left: list[Partition] = []
        for index, number in free:
            racks = self._shapes[index].racks
            rack = racks[number] if number < len(racks) else None
            near = [t for t in self._takers[index] if rack is not None and self._racks[t] == rack]
            taker = min(near, key=lambda t: (len(self._has[t]), t), default=None)
            size = 0 if taker is None else len(self._has[taker])
            if taker is None or size > least or (size == least and extra <= 0):
                left.append((index, number))
                continue
            extra -= size == least
            self._take(taker, (index, number))
        return left

    def _take(self, taker: int, partition: Partition) -> None:
        self._has[taker].add(partition)
        self._owner[partition] = taker

    def _give(self, free: list[Partition]) -> None:
        """Assign each partition to the least loaded of its subscribers."""
        heap: list[tuple[int, int]] = []
        heap_of = -1
        for partition in free:
            index = partition[0]
            if index != heap_of:
                if heap_of < 0 or self._takers[index] != self._takers[heap_of]:
                    heap = [(len(self._has[t]), t) for t in self._takers[index]]
                    heapify(heap)
                heap_of = index
            size, taker = heap[0]
            self._take(taker, partition)
            heapreplace(heap, (size + 1, taker))

    def _balance(self) -> None:
        """Move partitions from members with at least two more to members that can take them.

        Each move evens out the counts, so this terminates; the bound limits its running time.
        """
        moves_left = len(self._owner) + len(self._has)
        heap = [(-len(has), taker) for taker, has in enumerate(self._has)]
        heapify(heap)
        while heap and moves_left > 0:
            negative, taker = heap[0]
            if -negative != len(self._has[taker]):
                heapreplace(heap, (-len(self._has[taker]), taker))
                continue
            found = self._best_move(taker)
            if found is None:
                heappop(heap)
                continue
            partition, to = found
            self._has[taker].remove(partition)
            self._take(to, partition)
            moves_left -= 1
            heapreplace(heap, (-len(self._has[taker]), taker))

    def _best_move(self, taker: int) -> tuple[Partition, int] | None:
        """The best partition for this member to give away, and its recipient; None: no move
        helps."""
        has = self._has[taker]
        best: tuple[int, int, int] | None = None
        for index in sorted({index for index, _ in has}):
            to = min(self._takers[index], key=lambda t: (len(self._has[t]), t))
            if len(self._has[to]) + 1 < len(has) and (best is None or len(self._has[to]) < best[0]):
                best = (len(self._has[to]), index, to)
        if best is None:
            return None
        _, index, to = best
        return max(partition for partition in has if partition[0] == index), to
