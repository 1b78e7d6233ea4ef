"""Partition placement as every broker computes it from its view.

Invariants: results are cached until the view of who may own what changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.placement.rendezvous import place
from headrace.metadata.facts import OwnerFact, PinFact, owner_key, pin_key
from headrace.metadata.store import ABSENT, MultiOperation

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence
    from uuid import UUID

    from headrace.broker.ownership.cluster_view import ClusterView
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import TopicFact


class Placement:
    """The placement of all topics on the brokers of a view."""

    def __init__(self, view: ClusterView, slots: Sequence[int]) -> None:
        """`slots`: see SharedOwnership."""
        self._view = view
        self._slots = slots
        self.is_fixed = bool(slots)
        """Whether partitions stay with their first owner."""
        self._placed: dict[UUID, tuple[tuple[int, int, int], list[int]]] = {}
        self.without = -1
        """A broker that gets no partitions because it is about to leave."""

    def target(self, topic: Topic, number: int) -> int:
        """The broker that should serve a partition, or NO_BROKER."""
        if self._slots:
            owner = self._view.owners.get((topic.id, number))
            if owner is not None:
                return owner.fact.broker
        elif self._view.moves and number not in self._view.pins.get(topic.id, {}):
            moved_to = self._view.moved_to((topic.id, number))
            if moved_to is not None and self.may_own(moved_to):
                return moved_to
        return self.by_count(topic, number)

    def by_count(self, topic: Topic, number: int) -> int:
        """The broker that should serve a partition regardless of load, or NO_BROKER."""
        count = len(topic.partitions)
        stamp = (self._view.members_version, count, self.without)
        known = self._placed.get(topic.id)
        if known is None or known[0] != stamp:
            known = self._placed[topic.id] = (stamp, self.place(topic.id, count))
        return known[1][number]

    def place(
        self, topic_id: UUID, count: int, assigned: Mapping[int, int] | None = None
    ) -> list[int]:
        """The broker for each partition of a topic; `assigned` are pins that are not stored yet."""
        brokers = self._slots or [b for b in self._view.brokers if self.may_own(b)]
        pins = {**self._view.pins.get(topic_id, {}), **(assigned or {})}
        return place(topic_id, count, brokers, pins)

    def first_owners(
        self, fact: TopicFact, numbers: range, assigned: Mapping[int, int]
    ) -> list[MultiOperation]:
        """See Ownership."""
        operations: list[MultiOperation] = []
        placed = self.place(fact.id, fact.partition_count, assigned)
        for number in numbers:
            broker_id = placed[number]
            if number in assigned and not self._slots:  # workers stay with their partitions anyway
                pin = PinFact(assigned[number]).encode()
                operations.append(MultiOperation(pin_key(fact.id, number), pin, ABSENT))
            broker = self._view.brokers.get(broker_id)
            if broker is not None and broker.incarnation is not None:
                owner = OwnerFact(broker_id, broker.incarnation, 0)
                operations.append(
                    MultiOperation(owner_key(fact.id, number), owner.encode(), ABSENT)
                )
        return operations

    def may_own(self, broker: int) -> bool:
        """Whether a broker may get partitions: it is neither draining nor stopping."""
        view = self._view
        if broker in view.draining or broker == self.without:
            return False
        fact = view.brokers.get(broker)
        return fact is None or not fact.is_leaving

    def forget_all_but(self, topics: Container[UUID]) -> None:
        """Drop the cached placement of deleted topics."""
        for topic_id in [topic_id for topic_id in self._placed if topic_id not in topics]:
            del self._placed[topic_id]
