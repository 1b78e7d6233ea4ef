"""The topics this broker knows, and the operations on them.

Invariants: the metadata store holds the truth; this is a cached copy, changed only after the store
has accepted a change, by this broker or, through `apply`, by another. `version` counts changes, so
that encoded responses can be cached. Topics are found by name and by id; a topic recreated under
the same name has a new id, new partitions and new ledgers, so old data never reappears.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.broker.topics.arrivals import TopicArrivals
from headrace.broker.topics.deletion import Deletions
from headrace.broker.topics.ownership import NOT_ASSIGNED, Ownership
from headrace.broker.topics.shared_topics import ReadableTopics
from headrace.broker.topics.tenant_room import TenantRoom
from headrace.broker.topics.topic import ForeignPartition, Topic
from headrace.broker.topics.topic_checks import TopicChecks
from headrace.broker.topics.topic_logs import TopicLogs
from headrace.broker.topics.topic_writes import first_chains
from headrace.errors import (
    FactMissing,
    HeadraceError,
    MetadataUnavailable,
    NotOwner,
    PartitionsInvalid,
    PolicyViolation,
    TopicExists,
    TopicIdUnknown,
    TopicUnknown,
    VersionConflict,
)
from headrace.log.fencing import EPOCH_OF_DELETED
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import (
    PartitionFact,
    TopicFact,
    partitions_prefix,
    topic_key,
    topic_of_key,
)
from headrace.metadata.store import MultiOperation
from headrace.records.identifiers import INTERNAL_TOPICS, OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from uuid import UUID

    from headrace.broker.broker_config import BrokerConfig
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.store import MetadataEntry
    from headrace.runtime.randomness import Randomness

    ForgetProgress = Callable[[str, UUID], Awaitable[None]]

log = logging.getLogger(__name__)


def topic_id_unknown(topic_id: UUID) -> TopicIdUnknown:
    """The error for an id that no topic has."""
    return TopicIdUnknown(f"no topic has id {topic_id}: refresh the metadata")


_INTERNAL_CONFIGS = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(64 * 1024 * 1024),
    "segment.bytes": str(100 * 1024 * 1024),
}


class Topics:
    """All topics of the cluster, as this broker sees them."""

    def __init__(
        self,
        environment: Environment,
        config: BrokerConfig,
        randomness: Randomness,
        own: Callable[[Topics], Ownership],
        limits_of: Callable[[str], Mapping[str, float]] | None = None,
        *,
        is_standalone: bool = True,
    ) -> None:
        """`own`: makes what says who serves these topics. `limits_of`: those of a tenant.
        `is_standalone`: this broker serves every partition, so each has its log from the start."""
        self._environment = environment
        self.logs = TopicLogs(environment, config)
        self._config = config
        self._is_standalone = is_standalone
        self.checks = TopicChecks(environment, config, is_standalone=is_standalone)
        self.by_name: dict[str, Topic] = {}
        self.room = TenantRoom(environment.metadata, limits_of, self.by_name)
        self.randomness = randomness
        self._changing = FairLock()
        self.deletions = Deletions(environment, self.logs)
        self.by_id: dict[UUID, Topic] = {}
        self.arrivals = TopicArrivals(self.by_id)
        self.ids: dict[str, UUID] = {}
        self.version = 0
        self.readable = ReadableTopics(self)
        self.damaged_facts: dict[str, str] = {}
        self._vanished: dict[str, UUID] = {}
        """Topics whose fact disappeared without a mark: deleted, or lost."""
        self.ownership = own(self)

    def apply(self, key: str, entry: MetadataEntry | None) -> Topic | None:
        """Apply the entry stored under a topic's key, None if the key was deleted. Returns the
        topic that this removes: deleted, or deleted and recreated before this broker noticed.

        Raises DataCorrupt, FormatUnsupported.
        """
        name = topic_of_key(key)
        known = self.by_name.get(name)
        removed: Topic | None = None
        fact = None if entry is None else decode_fact(TopicFact, entry)
        if fact is not None:
            self._vanished.pop(name, None)
        if known is not None and (fact is None or fact.is_deleted or known.id != fact.id):
            self._remove(known)
            if fact is None:
                self._vanished[name] = known.id
            known, removed = None, known
        if entry is None or fact is None:
            self.deletions.ended(name)
        elif fact.ended_ms is not None:
            self.deletions.ended(name, (entry.version, fact.ended_ms))
        elif fact.is_deleted:
            self.deletions.marked(Topic(fact, entry.version, []))
        elif known is None:
            if not self.deletions.holds(fact.id):
                self.deletions.ended(name)
                self._add(fact, entry.version)
        elif known.version < entry.version:
            known.fact, known.version = fact, entry.version
            self._extend(known)
            self.logs.configure(known)
            self.version += 1
        return removed

    async def is_lost(self, name: str) -> bool:
        """Whether a topic of this name existed whose fact was lost, not deleted.

        Only over shared storage, where a deletion closes the chains. Raises MetadataUnavailable,
        StorageUnavailable.
        """
        evidence, topic_id = self._environment.evidence, self._vanished.get(name)
        if evidence is None:
            return False
        if topic_id is not None:
            for entry in await self._environment.metadata.list(partitions_prefix(topic_id)):
                chain = decode_fact(PartitionFact, entry)
                if chain.ledgers and chain.leader_epoch < EPOCH_OF_DELETED:
                    return True
            self._vanished.pop(name, None)
        return name in await evidence.lost_names(name)

    async def refresh(self, name: str) -> None:
        """Apply what the store holds for one topic. Raises MetadataUnavailable."""
        key = topic_key(name)
        self.apply(key, await self._environment.metadata.get(key))

    def _remove(self, topic: Topic) -> None:
        """Remove the topic; operations in progress in its logs fail."""
        del self.by_name[topic.name], self.by_id[topic.id], self.ids[topic.name]
        self.logs.forget(topic.name)
        for _, partition in topic.logs:
            partition.tenure.topic_deleted()
            if not self._is_standalone:
                partition.abandon(NotOwner(f"topic {topic.name!r} was deleted"))
        self.version += 1
        self.readable.topics_changed(topic.name)

    def _extend(self, topic: Topic) -> None:
        """Create the partitions that the topic's fact has in addition."""
        for number in range(len(topic.partitions), topic.fact.partition_count):
            topic.partitions.append(self._first(topic.fact, number))
        self.version += 1
        self.ownership.topics_changed()

    def _first(self, fact: TopicFact, number: int) -> PartitionLog | ForeignPartition:
        if self._is_standalone:
            return self.logs.make(fact, number)
        return ForeignPartition(fact.name, number)

    def leave(self, topic: Topic, number: int) -> None:
        """The partition no longer has a log here."""
        if self.by_id.get(topic.id) is topic:
            topic.partitions[number] = ForeignPartition(topic.name, number)
            self.version += 1

    def _add(self, fact: TopicFact, version: int) -> Topic:
        partitions = [self._first(fact, number) for number in range(fact.partition_count)]
        topic = Topic(fact, version, partitions)
        self.by_name[fact.name] = self.by_id[fact.id] = topic
        self.ids[fact.name] = fact.id
        self.arrivals.came(fact.id)
        self.version += 1
        self.readable.topics_changed(fact.name)
        self.ownership.topics_changed()
        return topic

    def defaults_changed(self) -> None:
        """Apply the new defaults of topic settings, already in the config, to all logs."""
        for topic in self.by_id.values():
            self.logs.configure(topic)
        self.version += 1

    def get(self, name: str) -> Topic:
        """The topic. Raises TopicUnknown."""
        topic = self.by_name.get(name)
        if topic is None:
            raise TopicUnknown(f"topic {name[:249]!r} does not exist")
        return topic

    def get_by_id(self, topic_id: UUID) -> Topic:
        """The topic. Raises TopicIdUnknown."""
        topic = self.by_id.get(topic_id)
        if topic is None:
            raise topic_id_unknown(topic_id)
        return topic

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self.by_name)

    # --- changes -----------------------------------------------------------------------------

    async def create(
        self,
        name: str,
        partition_count: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        assigned: Mapping[int, int] = NOT_ASSIGNED,
        *,
        is_validated_only: bool = False,
    ) -> TopicFact:
        """Create a topic; -1 stands for the broker's default. Raises what `TopicChecks` raises."""
        if name in INTERNAL_TOPICS and name not in self.by_name:
            raise PolicyViolation(
                f"{name} is an internal topic: it is created when a client first needs it"
            )
        for is_last in (False, True):
            if not is_validated_only:
                await self.deletions.finish(name, self.ownership)
            try:
                new = name, partition_count, replication_factor, configs, assigned
                return await self._create(*new, is_validated_only=is_validated_only)
            except TopicExists:
                if is_last or name not in self.deletions:  # otherwise the event has just arrived
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _create(
        self,
        name: str,
        partition_count: int,
        replication_factor: int,
        configs: Mapping[str, str] | None,
        assigned: Mapping[int, int] = NOT_ASSIGNED,
        *,
        is_validated_only: bool = False,
    ) -> TopicFact:
        if partition_count == -1:
            partition_count = self._config.partition_count_default
        if replication_factor == -1:
            replication_factor = 1
        overrides = dict(configs or {})
        if name not in self.by_name and await self.is_lost(name):
            raise FactMissing(
                f"cannot create topic {name!r}: a topic of this name has lost its fact, and "
                "its records would be hidden; restore it with `headrace cluster repair`",
                topic=name,
            )
        async with self._changing:
            await self.refresh(name)  # the fact that remains of an earlier topic has a version
            if self.readable.is_shared(name):
                raise TopicExists(f"topic {name!r} already exists")
            self.checks.check_new(
                name, partition_count, replication_factor, overrides, self.by_name
            )
            fact = TopicFact(
                name,
                self.randomness.uuid(),
                partition_count,
                replication_factor,
                overrides,
                self._environment.clock.now_ms(),
                chain_count=partition_count,
            )
            if is_validated_only:
                await self.room.place(name, partition_count)
                return fact
            numbers = range(partition_count)
            owners = self.ownership.first_owners(fact, numbers, assigned)
            parts = [*owners, *first_chains(fact, numbers)]
            version = await self._put_new(fact, parts)
            self.deletions.ended(name)
            topic = self.by_name.get(name) or self._add(fact, version)
            log.info("created topic %s with %d partitions", name, partition_count)
        await self.ownership.wait_served(topic)
        return fact

    async def _put_new(self, fact: TopicFact, parts: Sequence[MultiOperation]) -> int:
        """Store a new topic; returns its version. Raises TopicExists, MetadataUnavailable."""
        name = fact.name
        expected = self.deletions.version_of_free(name)
        try:
            step = MultiOperation(topic_key(name), fact.encode(), expected)
            return await self.room.put(step, parts, fact.partition_count)
        except VersionConflict as error:
            await self.refresh(name)
            if name in self.by_name or name in self.deletions:  # another request was faster
                raise TopicExists(f"topic {name!r} already exists") from error
            raise MetadataUnavailable(
                f"another topic {name!r} was created and deleted meanwhile: try again"
            ) from error

    async def ensure_internal(self, name: str) -> Topic:
        """The internal topic, created if it does not exist."""
        if name not in self.by_name:
            counts = {
                OFFSETS_TOPIC: self._config.offsets_partition_count,
                TRANSACTIONS_TOPIC: self._config.transactions_partition_count,
            }
            try:
                await self._create(name, counts[name], 1, _INTERNAL_CONFIGS)
            except TopicExists:  # created in the meantime
                log.debug("another broker has created internal topic %s", name)
        return self.get(name)

    @staticmethod
    def check_deletable(topic: Topic) -> None:
        """Raise PolicyViolation for internal topics."""
        if topic.is_internal:
            raise PolicyViolation(
                f"{topic.name} is an internal topic and cannot be deleted: it holds the state "
                "of coordinators"
            )

    async def delete(self, topic: Topic, forget_progress: ForgetProgress) -> None:
        """Delete the topic and all its records; on return no broker accepts records for it.
        `forget_progress` deletes the offsets that this broker's groups have committed for it.

        Raises StorageUnavailable if it is deleted but that cannot be confirmed.
        """
        self.check_deletable(topic)
        async with self._changing:
            self._check_current(topic)
            if self._is_standalone:
                await self._put(topic, None)
            else:
                deleted_ms = self._environment.clock.now_ms()
                await self._put(topic, replace(topic.fact, deleted_ms=deleted_ms))
                self.deletions.marked(topic)
            if self.by_id.get(topic.id) is topic:  # the store's own event may have been faster
                self._remove(topic)
            try:
                await forget_progress(topic.name, topic.id)
            except HeadraceError as error:
                log.warning(
                    "cannot delete offsets committed for deleted topic %s; they are dropped when"
                    " read: %s",
                    *(topic.name, error),
                )
        log.info("deleted topic %s", topic.name)
        if self._is_standalone:
            # In the background, after the response; after a crash, `collect_orphans` of the next
            # start does it.
            clearing = self.deletions.clear_alone(topic)
            self._environment.tasks.spawn(clearing, f"delete {topic.name}")
        else:  # the garbage collector deletes ledgers once they can no longer be written to
            self.ownership.topics_changed()
            await self.deletions.finish(topic.name, self.ownership)
            self._environment.tasks.spawn(
                self.deletions.forget_old(), "remove facts of deleted topics"
            )

    async def add_partitions(
        self,
        topic: Topic,
        count: int,
        assigned: Mapping[int, int] = NOT_ASSIGNED,
        *,
        is_validated_only: bool = False,
    ) -> None:
        """Raise the number of partitions to `count`. Raises PartitionsInvalid, PolicyViolation."""
        async with self._changing:
            self._check_current(topic)
            self.checks.check_partition_count(count)
            if count <= topic.fact.partition_count:
                raise PartitionsInvalid(
                    f"topic {topic.name!r} has {topic.fact.partition_count} partitions, and "
                    f"{count} is not more: the number of partitions cannot be reduced"
                )
            if topic.is_internal:
                raise PolicyViolation(
                    f"{topic.name} is an internal topic: more partitions would move its keys"
                )
            if is_validated_only:
                await self.room.place(topic.name, count - topic.fact.partition_count)
                return
            await self._add_partitions(topic, count, assigned)
            self._extend(topic)
        await self.ownership.wait_served(topic)

    async def _add_partitions(self, topic: Topic, count: int, assigned: Mapping[int, int]) -> None:
        """Store the new number and the chains of the additional partitions."""
        fact = replace(topic.fact, partition_count=count)
        # no earlier version of Headrace has changed it
        if fact.chain_count == topic.fact.partition_count:
            fact.chain_count = count
        metadata = self._environment.metadata
        # Some exist if an earlier attempt was interrupted.
        known = {entry.key for entry in await metadata.list(partitions_prefix(fact.id))}
        numbers = range(topic.fact.partition_count, count)
        added = [step for step in first_chains(fact, numbers) if step.key not in known]
        if assigned:
            added += self.ownership.first_owners(fact, numbers, assigned)
        await self._put(topic, fact, added)

    async def change_configs(
        self,
        topic: Topic,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        is_validated_only: bool = False,
    ) -> None:
        """Apply `change` to the overrides, so that concurrent changes are not lost. Raises
        ConfigInvalid."""
        async with self._changing:
            self._check_current(topic)
            configs = change(topic.fact.configs)
            self.checks.check_configs(configs, topic.fact.configs)
            if is_validated_only:
                return
            await self._put(topic, replace(topic.fact, configs=dict(configs)))
            self.logs.configure(topic)
            self.version += 1

    def _check_current(self, topic: Topic) -> None:
        """Raise TopicUnknown if `topic` was deleted: another topic may have its name."""
        if self.by_id.get(topic.id) is not topic:
            raise TopicUnknown(f"topic {topic.name!r} was deleted in the meantime")

    async def _put(
        self, topic: Topic, fact: TopicFact | None, parts: Sequence[MultiOperation] = ()
    ) -> None:
        """Store the topic's fact; None deletes it. Raises TopicUnknown, MetadataUnavailable."""
        value = None if fact is None else fact.encode()
        try:
            step = MultiOperation(topic_key(topic.name), value, topic.version)
            added = 0 if fact is None else fact.partition_count - topic.fact.partition_count
            version = await self.room.put(step, parts, added)
        except VersionConflict as error:  # another broker was faster
            await self.refresh(topic.name)
            self._check_current(topic)
            raise MetadataUnavailable(
                f"topic {topic.name!r} was changed meanwhile: try again"
            ) from error
        if fact is not None:
            topic.version, topic.fact = version, fact
