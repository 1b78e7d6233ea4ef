"""Reassignments: operators choose the brokers that serve partitions (KIP-455).

Invariants: a reassignment is a pin, and its first broker is to own the partition; copies are kept
by the storage, so the other brokers of a list say nothing. It is under way until that broker owns
the partition, and continues to hold afterwards: while the broker runs, it serves the partition.
Only brokers over shared storage can do this: elsewhere a partition stays where its ledgers are.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.ownership.pins import Pins
from headrace.broker.ownership.shared_ownership import SharedOwnership
from headrace.errors import (
    AssignmentInvalid,
    HeadraceError,
    NoReassignment,
    ReplicationFactorInvalid,
    RequestInvalid,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.metadata.store import MetadataStore

PARTITIONS_MAX: Final = 10_000
"""Per request: each is a write to the metadata store."""


class Reassignment(NamedTuple):
    """A request for one partition."""

    topic: str
    partition: int
    brokers: Sequence[int] | None
    """None: cancel the reassignment that is under way."""


class Move(NamedTuple):
    """A reassignment that is under way."""

    topic: str
    partition: int
    source: int
    """The present owner; NO_LEADER if there is none."""
    target: int


class InMotion(NamedTuple):
    """A partition that a live broker owns, and another one is to own."""

    move: Move
    reason: str
    """`reassigned` by an operator, `drained` from a broker that drains or stops, `balanced` by
    load, `placed`: brokers came or left."""


class Drain(NamedTuple):
    """A broker that gets no partitions, because an operator drains it."""

    owned_before: int
    """Partitions when its drain began; -1: before this broker had started."""


class Reassignments:
    """See the module."""

    def __init__(self, topics: Topics, metadata: MetadataStore, broker_id: int) -> None:
        self._topics = topics
        ownership = self._ownership = topics.ownership
        self._broker_id = broker_id
        self._pins: Pins | None = None
        """None if partitions cannot move."""
        if isinstance(ownership, SharedOwnership) and not ownership.placement.is_fixed:
            self._pins = Pins(metadata, ownership)

    async def alter(
        self, asked: Sequence[Reassignment], *, may_change_factor: bool = True
    ) -> list[HeadraceError | None]:
        """Begin or cancel reassignments; returns the error of each, or None.

        TopicUnknown, AssignmentInvalid, ReplicationFactorInvalid, NoReassignment,
        MetadataUnavailable, RequestInvalid for those beyond PARTITIONS_MAX.
        """
        results: list[HeadraceError | None] = []
        moves: list[tuple[Topic, int, int]] = []
        places: list[int] = []
        for place, one in enumerate(asked):
            error: HeadraceError | None = None
            try:
                if place >= PARTITIONS_MAX:
                    raise RequestInvalid(
                        f"a request can reassign at most {PARTITIONS_MAX} partitions: split it"
                    )
                topic = self._topics.get(one.topic)
                topic.check_partition(one.partition)
                if one.brokers is None:
                    await self._cancel(topic, one.partition)
                else:
                    target = self._target(topic, one, may_change_factor=may_change_factor)
                    if self._pins is not None:
                        moves.append((topic, one.partition, target))
                        places.append(place)
            except HeadraceError as refused:
                error = refused
            results.append(error)
        if self._pins is not None and moves:
            try:
                await self._pins.write(moves)
            except HeadraceError as refused:
                for place in places:
                    results[place] = refused
        return results

    def _target(self, topic: Topic, one: Reassignment, *, may_change_factor: bool) -> int:
        """The future owner. Kafka's rules (`ReplicationControlManager`), and those of the place.

        Raises AssignmentInvalid, ReplicationFactorInvalid.
        """
        brokers = one.brokers or ()
        live = {broker.id for broker in self._ownership.brokers()} or {self._broker_id}
        problem = ""
        if not brokers:
            problem = "names no broker"
        elif len(set(brokers)) != len(brokers):
            problem = "names a broker twice"
        elif unknown := sorted(set(brokers) - live):
            shown = ", ".join(map(str, sorted(live)))
            problem = f"names broker {unknown[0]}, which is not live: live are {shown}"
        elif self._pins is not None and self._pins.is_draining(brokers[0]):
            problem = f"names broker {brokers[0]}, which gets no partitions: it is draining"
        elif (
            self._pins is None and brokers[0] != self._ownership.leader(topic, one.partition).broker
        ):
            problem = (
                f"names broker {brokers[0]}, but each broker keeps its ledgers in a folder of its"
                " own here: partitions move only in a cluster over BookKeeper"
            )
        if problem:
            raise AssignmentInvalid(
                f"the assignment of {one.topic}-{one.partition} {problem}; it was not changed"
            )
        _check_factor(topic, len(brokers), may_change=may_change_factor)
        return brokers[0]

    async def _cancel(self, topic: Topic, partition: int) -> None:
        """Raises NoReassignment, MetadataUnavailable."""
        if self._pins is None or self._pins.moving_to(topic, partition) is None:
            raise NoReassignment(
                f"{topic.name}-{partition} is not being reassigned: there is nothing to cancel"
            )
        await self._pins.cancel(topic, partition)

    def drain_of(self, broker_id: int) -> Drain | None:
        """How a broker is drained; None if it is not."""
        if self._pins is None or broker_id not in self._pins.view.draining:
            return None
        return Drain(self._pins.view.drained_from.get(broker_id, -1))

    async def in_motion(self) -> list[InMotion]:
        """All partitions that move, or wait to move, from one live broker to another."""
        found: list[InMotion] = []
        if self._pins is not None:
            for topic in list(self._topics.by_id.values()):
                for number in range(len(topic.partitions)):
                    move = self._pins.move_of(topic, number)
                    if move is not None:
                        found.append(InMotion(Move(topic.name, number, *move[:2]), move[2]))
                await asyncio.sleep(0)  # however many topics there are
        return found

    def under_way(self, topics: Iterable[Topic]) -> list[Move]:
        """The reassignments of these topics whose target does not own the partition yet."""
        if self._pins is None:
            return []
        found: list[Move] = []
        for topic in topics:
            for number in range(len(topic.partitions)):
                target = self._pins.moving_to(topic, number)
                if target is not None:
                    source = self._ownership.leader(topic, number).broker
                    found.append(Move(topic.name, number, source, target))
        return [move for move in found if move.source != move.target]


def _check_factor(topic: Topic, count: int, *, may_change: bool) -> None:
    """A list of one broker keeps the number of copies, as Metadata shows one replica; so does one
    of as many as the topic was created with."""
    stored = topic.fact.replication_factor
    if count in {1, stored}:
        return
    step = (
        "the number of copies is the topic's setting headrace.quorum: name one broker"
        if may_change
        else "and the request forbids to change the replication factor"
    )
    raise ReplicationFactorInvalid(
        f"{count} brokers for a partition of topic {topic.name!r}, which has the replication"
        f" factor {stored}: {step}; it was not changed"
    )
