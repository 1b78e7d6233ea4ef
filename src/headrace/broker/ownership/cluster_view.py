"""One broker's view of its cluster: live brokers, owners, and operators' placement wishes.

Invariants: a cached view, kept current by MetadataCaches; it makes no decisions. An owner that this
broker has written itself is entered at once (`own`), and an older read never overwrites a newer
one.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.ownership.departures import Departures
from headrace.broker.ownership.metadata_cache import MetadataCache
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import (
    BROKERS,
    DRAINING,
    OWNERS,
    PINS,
    BrokerFact,
    OwnerFact,
    PinFact,
    owner_key,
    partition_of_key,
)
from headrace.metadata.load_facts import (
    MOVES,
    MOVES_FOLDER,
    MOVES_VERSION,
    MovedPartition,
    MovesFact,
)
from headrace.metadata.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from headrace.broker.topics.topics import Topics
    from headrace.metadata.facts import PartitionKey
    from headrace.metadata.store import MetadataEntry, MetadataStore
    from headrace.runtime.tasks import Tasks


class Owner(NamedTuple):
    """The stored owner of a partition, the version to change it from, and since when, by the loop's
    clock, this broker has known the tenure."""

    fact: OwnerFact
    version: int
    since_s: float


class ClusterView:
    """Live brokers, owners, pins, moves and draining brokers."""

    def __init__(self, metadata: MetadataStore, tasks: Tasks, changed: Callable[[], None]) -> None:
        """`changed` is called after each batch of changes."""
        self.brokers: dict[int, BrokerFact] = {}
        self.owners: dict[PartitionKey, Owner] = {}
        self.pins: dict[UUID, dict[int, int]] = {}
        self.draining: set[int] = set()
        self.drained_from: dict[int, int] = {}
        """Partitions that draining brokers owned when this broker learned that they drain; none of
        those that drained before it had started."""
        self.moves: Mapping[PartitionKey, MovedPartition] = {}
        """Partitions moved by load, which override placement while all brokers support moves."""
        self.dirty: set[PartitionKey] = set()
        """Partitions whose owner changed; the reader removes them."""
        self.departures = Departures()
        self.members_version = 0
        """Counts changes of who may own what: brokers, pins, moves and draining."""
        self.damaged_facts: dict[str, str] = {}
        """Keys of facts that cannot be decoded, with the reason."""
        self._caches = [
            MetadataCache(metadata, prefix, take, changed, tasks, self.damaged_facts)
            for prefix, take in (
                (BROKERS, self._take_broker),
                (PINS, self.take_pin),
                (DRAINING, self._take_draining),
                (MOVES_FOLDER, self._take_moves),
                (OWNERS, self._take_owner),
            )
        ]

    async def start(self) -> None:
        """Read everything, then follow changes. Raises MetadataUnavailable."""
        for cache in self._caches:
            await cache.start()

    def is_alive(self, owner: OwnerFact) -> bool:
        """Whether that incarnation of the broker is live."""
        broker = self.brokers.get(owner.broker)
        return broker is not None and broker.incarnation == owner.incarnation

    def is_trusted(self, owner: OwnerFact) -> bool:
        """Whether it is live, and nothing suggests that it has died."""
        return self.is_alive(owner) and owner.incarnation not in self.departures.doubtful

    def next_owner(
        self, key: PartitionKey, incarnation: str, leader_epoch: int, target: int
    ) -> OwnerFact | None:
        """The fact that names `target` as successor of that incarnation in that epoch; None if the
        owner has changed or `target` cannot take over."""
        owner, broker = self.owners.get(key), self.brokers.get(target)
        if owner is None or broker is None or broker.incarnation is None:
            return None
        if (owner.fact.incarnation, owner.fact.leader_epoch) != (incarnation, leader_epoch):
            return None
        return OwnerFact(target, broker.incarnation, leader_epoch + 1)

    def own(self, key: PartitionKey, fact: OwnerFact, version: int) -> None:
        """Enter an owner that this broker has just written or read."""
        known = self.owners.get(key)
        if known is not None and known.version >= version:
            return
        if known is not None and known.fact.leader_epoch == fact.leader_epoch:
            since_s = known.since_s
        else:
            since_s = asyncio.get_running_loop().time()
        self._enter(key, Owner(fact, version, since_s))

    def _enter(self, key: PartitionKey, owner: Owner | None) -> None:
        before = self.owners.get(key)
        if owner is not None:
            self.owners[key] = owner
        elif before is not None:
            del self.owners[key]
        self.departures.owner_changed(
            None if before is None else before.fact.incarnation,
            None if owner is None else owner.fact.incarnation,
        )

    def _take_broker(self, key: str, entry: MetadataEntry | None) -> None:
        broker_id = int(key.removeprefix(BROKERS))
        self.members_version += 1
        before = self.brokers.get(broker_id)
        now = None if entry is None else decode_fact(BrokerFact, entry)
        if now is not None:
            self.brokers[broker_id] = now
        elif before is not None:
            del self.brokers[broker_id]
        if before is not None and (now is None or now.incarnation != before.incarnation):
            self.departures.left(before)

    def _take_owner(self, key: str, entry: MetadataEntry | None) -> None:
        partition = partition_of_key(key)
        self.dirty.add(partition)
        if entry is None:
            self._enter(partition, None)
            return
        self.own(partition, decode_fact(OwnerFact, entry), entry.version)

    def take_pin(self, key: str, entry: MetadataEntry | None) -> None:
        """Enter the pin stored under a key, as read or as this broker has just written it."""
        topic_id, partition = partition_of_key(key)
        self.members_version += 1
        pins = self.pins.setdefault(topic_id, {})
        if entry is None:
            pins.pop(partition, None)
        else:
            pins[partition] = decode_fact(PinFact, entry).broker

    def _take_moves(self, key: str, entry: MetadataEntry | None) -> None:
        if key == MOVES:
            self.members_version += 1
            self.moves = {} if entry is None else decode_fact(MovesFact, entry).by_partition

    def moved_to(self, key: PartitionKey) -> int | None:
        """The live broker to which load has moved a partition; None if it was not moved.

        Also None while any live broker does not support moves: it would move the partition back
        endlessly.
        """
        move = self.moves.get(key)
        if move is None or move.broker not in self.brokers:
            return None
        follow = all(fact.moves_version == MOVES_VERSION for fact in self.brokers.values())
        return move.broker if follow else None

    def _take_draining(self, key: str, entry: MetadataEntry | None) -> None:
        broker_id = int(key.removeprefix(DRAINING))
        self.members_version += 1
        if entry is None:
            self.draining.discard(broker_id)
            self.drained_from.pop(broker_id, None)
        elif broker_id not in self.draining:  # a fact that is read again changes nothing
            self.draining.add(broker_id)
            if owned := sum(one.fact.broker == broker_id for one in self.owners.values()):
                self.drained_from[broker_id] = owned


async def adopt_partitions(metadata: MetadataStore, topics: Topics, broker_id: int) -> None:
    """Assign the partitions without an owner to the broker that was stand-alone until now."""
    owned = {partition_of_key(entry.key) for entry in await metadata.list(OWNERS)}
    for topic in topics.by_id.values():
        for number in range(len(topic.partitions)):
            if (topic.id, number) not in owned:
                fact = OwnerFact(broker_id, "", 0)  # no incarnation: the fact will be claimed
                await metadata.put(owner_key(topic.id, number), fact.encode(), ABSENT)
