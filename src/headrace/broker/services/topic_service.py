"""Topics for every face: look up, describe, create, extend and delete them.

Invariants: knows no protocol. A dry run makes every check of the real change and changes nothing.
`Topics` writes the metadata. What a description says of a partition's log, only its owner knows.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.topics.overrides import delay_max_ms, message_type
from headrace.broker.topics.tenant_room import held_by
from headrace.broker.topics.topic_config import LITE
from headrace.errors import (
    AssignmentInvalid,
    HeadraceError,
    MetadataUnavailable,
    PartitionsInvalid,
    RequestInvalid,
    StorageUnavailable,
    TopicExists,
    TopicUnknown,
)
from headrace.records.identifiers import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import (
        AsyncGenerator,
        Awaitable,
        Callable,
        Collection,
        Mapping,
        Sequence,
    )
    from uuid import UUID

    from headrace.broker.topics.ownership import Leader
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.log.producer_state import ProducerDescription
    from headrace.metadata.facts import TopicFact
    from headrace.storage.ledger import ReportsSpace

log = logging.getLogger(__name__)

BROKER_DEFAULT = -1
"""The broker's settings decide the partition count or replication factor."""

NEW_TOPIC_WAIT_S = 1.0
FIRST_OWNER_WAIT_S = 2.0
"""With the time for a new topic, less than another broker waits for an answer."""

Assignment = tuple[int, tuple[int, ...]]
"""(partition, the brokers assigned to it)"""


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] | None = None
    assignments: Sequence[Assignment] = ()
    """In place of a partition count: the first broker of each partition is to own it."""


class PartitionState(NamedTuple):
    """One partition, as this broker knows it."""

    number: int
    leader: Leader
    offsets: tuple[int, int] | None
    """(log start offset, high watermark), if this broker serves it and has loaded its log."""
    size_bytes: int | None = None
    """Under the same condition."""


class DiskSpace(NamedTuple):
    """The disk that holds the ledgers."""

    total_bytes: int
    usable_bytes: int
    """For records: free bytes without the reserve (KIP-827)."""


class TopicLookup(Protocol):
    """Topics, for a face that keeps what it found."""

    version: int
    """Changes with the topics, their settings and owners: what was found before is found again."""

    def get(self, name: str) -> Topic:
        """The topic of a name. Raises TopicUnknown."""
        ...

    def get_by_id(self, topic_id: UUID) -> Topic:
        """The topic of an id. Raises TopicIdUnknown."""
        ...


class TopicService:
    """See the module."""

    def __init__(
        self,
        topics: Topics,
        broker_id: int,
        forget_progress: Callable[[str, UUID], Awaitable[None]],
        disk: ReportsSpace | None = None,
    ) -> None:
        """`forget_progress`: deletes what this broker's groups keep for a deleted topic. `disk`:
        None if the ledgers are not on this machine."""
        self._topics = topics
        self._ownership = topics.ownership
        self._broker_id = broker_id
        self._forget_progress = forget_progress
        self.disk = disk
        self.lookup: TopicLookup = topics
        self.readable = topics.readable
        """Those that clients may read, with topics that a tenant shares."""
        self.get = topics.get
        """The topic of a name. Raises TopicUnknown."""
        self.get_by_id = topics.get_by_id
        """The topic of an id. Raises TopicIdUnknown."""
        self.names = topics.names
        """The names of all topics, sorted."""
        self.find = topics.by_name.get
        """The topic of a name, or None."""
        self.find_by_id = topics.by_id.get
        """The topic of an id, or None."""
        self.new_id = topics.randomness.uuid
        """A random id, which no topic has."""
        self.create_internal = topics.ensure_internal
        """An internal topic, created if it does not exist. Raises HeadraceError."""

    def held_by(self, tenant: str) -> dict[str, int]:
        """How many topics and partitions a tenant has."""
        return held_by(tenant, (one.fact for one in self._topics.by_name.values()))

    # --- look up -----------------------------------------------------------------------------

    async def look_up(self, name: str) -> None:
        """Get a topic that another broker may have created, or a tenant accepted there, just now,
        and wait for its owners."""
        if self.readable.find(name) is not None:
            return
        with suppress(MetadataUnavailable):  # then it is answered from what is known here
            await self.readable.refresh(name)
            topic = self.readable.find(name)
            if topic is not None:
                await self._ownership.wait_served(topic)

    async def of_another(self, topic_id: UUID, numbers: Sequence[int]) -> Topic:
        """The topic that another broker's request is about. That broker may know it already, and
        that these partitions are this broker's, before this one has: this is waited for.

        Raises TopicIdUnknown, TopicUnknown.
        """
        if self.readable.find_by_id(topic_id) is None:
            await self._topics.arrivals.wait(topic_id, NEW_TOPIC_WAIT_S)
        topic = self.readable.get_by_id(topic_id)
        for number in numbers:
            topic.check_partition(number)
        with suppress(TimeoutError):  # then the caller is told that they are not served here
            async with asyncio.timeout(FIRST_OWNER_WAIT_S):
                await self._ownership.wait_served(topic, numbers)
        return topic

    async def get_or_create(self, name: str, *, may_create: bool) -> Topic:
        """The topic; created with the broker's defaults if it may be, or if it is internal.

        Raises TopicUnknown, and what `create` raises.
        """
        try:
            return self.readable.get(name)
        except TopicUnknown:
            if name in INTERNAL_TOPICS:
                return await self.create_internal(name)
            if not may_create:
                raise
            if await self.readable.is_reserved(name):
                return self.readable.get(name)
        try:
            await self._topics.create(name)
        except TopicExists:
            log.debug("another request has created topic %s", name)
        return self.get(name)

    async def log(self, name: str, number: int) -> PartitionLog:
        """The log of a partition of this broker, once it is loaded.

        Raises TopicUnknown, NotOwner, and what prevents loading.
        """
        return await self._loaded(self.get(name), number)

    async def readable_log(self, name: str, number: int) -> PartitionLog:
        """The same to be read only, also of a topic that a tenant shares."""
        return await self._loaded(self.readable.get(name), number)

    @staticmethod
    async def _loaded(topic: Topic, number: int) -> PartitionLog:
        partition = topic.require_log(number)
        await partition.wait_loaded()
        return partition

    # --- describe ----------------------------------------------------------------------------

    def leader(self, topic: Topic, number: int) -> Leader:
        """The broker that serves the partition, and its epoch."""
        return self._ownership.leader(topic, number)

    def describe(self, topic: Topic) -> list[PartitionState]:
        """All partitions of the topic."""
        found: list[PartitionState] = []
        for number in range(len(topic.partitions)):
            partition, offsets, size_bytes = topic.log(number), None, None
            if (
                partition is not None
                and partition.is_loaded
                and self._ownership.is_mine(topic, number)
            ):
                offsets = partition.log_start_offset, partition.high_watermark
                size_bytes = partition.size_bytes
            found.append(PartitionState(number, self.leader(topic, number), offsets, size_bytes))
        return found

    def reads_attributes(self, topic: Topic) -> bool:
        """Whether records of the topic have queue attributes."""
        return self._topics.logs.config_of(topic.fact).has_attributes

    def plain_bytes_max(self, topic: Topic) -> int | None:
        """What a record of the topic may take before it is compressed; None: it is compressed by
        the broker, and only its size after that is limited."""
        config = self._topics.logs.config_of(topic.fact)
        return (
            config.max_message_bytes if config.compression in {"producer", "uncompressed"} else None
        )

    @staticmethod
    def message_type(topic: Topic) -> str:
        """The type of messages that RocketMQ's clients may send: see `overrides.message_type`."""
        return message_type(topic.fact.configs)

    @staticmethod
    def delay_max_ms(topic: Topic) -> int:
        """How far in the future a record of the topic may be due."""
        return delay_max_ms(topic.fact.configs)

    async def sizes(
        self, wanted: Mapping[str, Collection[int]] | None
    ) -> dict[str, dict[int, int]]:
        """The bytes of these partitions, or (None) of all, that this broker serves: without those
        that cannot be loaded."""
        if wanted is None:
            wanted = {name: range(len(self.get(name).partitions)) for name in self.names()}
        found: dict[str, dict[int, int]] = {}
        for name, numbers in wanted.items():
            topic = self.find(name)
            for number, partition in () if topic is None else topic.logs:
                if number in numbers:
                    with suppress(HeadraceError):  # another broker's, or damaged
                        await partition.wait_loaded()
                        found.setdefault(name, {})[number] = partition.size_bytes
        return found

    def space(self) -> DiskSpace | None:
        """None if the ledgers are not on this machine. Raises StorageUnavailable."""
        if self.disk is None:
            return None
        try:
            space = self.disk.space()
        except OSError as error:
            raise StorageUnavailable(f"cannot read the free space of the disk: {error}") from error
        usable = 0 if space.is_full else max(space.free_bytes - space.reserve_bytes, 0)
        return DiskSpace(space.total_bytes, usable)

    async def producers(
        self, name: str, number: int
    ) -> AsyncGenerator[Sequence[ProducerDescription], None]:
        """The recent producers of a partition of this broker, and their open transactions
        (KIP-664), some in each turn of the event loop. Raises what `log` raises."""
        for some in (await self.log(name, number)).producers.describe():
            yield some
            await asyncio.sleep(0)

    # --- change ------------------------------------------------------------------------------

    async def create(self, new: NewTopic, *, is_dry_run: bool = False) -> TopicFact:
        """Create a topic; returns its fact, real or simulated.

        Raises TopicExists, TopicNameInvalid, PartitionsInvalid, ReplicationFactorInvalid,
        AssignmentInvalid, ConfigInvalid, RequestInvalid, PolicyViolation, MetadataUnavailable.
        """
        count, factor = new.partition_count, new.replication_factor
        assigned: dict[int, int] = {}
        if new.assignments:
            count, factor = self._assigned_count(new), len(new.assignments[0][1])
            assigned = self._owners(new.assignments)
        if count < 1 and count != BROKER_DEFAULT:
            raise PartitionsInvalid(f"{count} partitions are not possible: use at least 1")
        return await self._topics.create(
            new.name, count, factor, new.configs, assigned, is_validated_only=is_dry_run
        )

    def _assigned_count(self, new: NewTopic) -> int:
        """The partition count that an explicit assignment implies."""
        if (new.partition_count, new.replication_factor) != (BROKER_DEFAULT, BROKER_DEFAULT):
            raise RequestInvalid("give either a partition count or an assignment, not both")
        numbers = sorted(number for number, _brokers in new.assignments)
        if numbers != list(range(len(numbers))):
            raise AssignmentInvalid("an assignment must name each partition from 0 on exactly once")
        return len(numbers)

    def _owners(self, assignments: Sequence[Assignment]) -> dict[int, int]:
        """The owner of each partition: the first broker, since the storage keeps the copies.

        Kafka's rules (`ReplicationControlManager.validateManualPartitionAssignment`). Raises
        AssignmentInvalid.
        """
        live = {broker.id for broker in self._ownership.brokers()} or {self._broker_id}
        for number, brokers in assignments:
            problem = ""
            if not brokers:
                problem = "has no broker"
            elif len(set(brokers)) != len(brokers):
                problem = "names a broker twice"
            elif len(brokers) != len(assignments[0][1]):
                problem = "has another number of brokers than the first one"
            elif unknown := sorted(set(brokers) - live):
                shown = ", ".join(map(str, sorted(live)))
                problem = f"names broker {unknown[0]}, which is not live: live are {shown}"
            if problem:
                raise AssignmentInvalid(
                    f"the assignment of partition {number} {problem}; nothing was changed"
                )
        return {number: brokers[0] for number, brokers in assignments}

    async def add_partitions(
        self,
        name: str,
        count: int,
        assignments: Sequence[Assignment] = (),
        *,
        is_dry_run: bool = False,
    ) -> None:
        """Raise the number of a topic's partitions to `count`.

        Raises TopicUnknown, PartitionsInvalid, AssignmentInvalid, MetadataUnavailable.
        """
        topic = self._topics.get(name)
        if self.message_type(topic) == LITE:
            raise PartitionsInvalid(
                f"topic {name!r} has lite topics, each of which lies in the partition of its name:"
                " create another topic with more partitions"
            )
        assigned: dict[int, int] = {}
        if assignments:
            first = topic.fact.partition_count
            if first < count != first + len(assignments):
                raise AssignmentInvalid(
                    f"{len(assignments)} assignments for {count - first} new partitions of topic"
                    f" {name!r}: give one for each"
                )
            owners = self._owners(assignments)
            assigned = {first + number: broker for number, broker in owners.items()}
        await self._topics.add_partitions(topic, count, assigned, is_validated_only=is_dry_run)

    async def delete(
        self, name: str | None = None, topic_id: UUID | None = None, *, is_dry_run: bool = False
    ) -> tuple[str, UUID | None]:
        """Delete a topic by name or id; returns (name, id).

        Finishes a deletion that was begun before, which no longer has an id. Raises TopicUnknown,
        TopicIdUnknown, RequestInvalid, PolicyViolation, StorageUnavailable, MetadataUnavailable.
        """
        if (name is None) == (topic_id is None):
            raise RequestInvalid("give either the name or the id of the topic")
        topics = self._topics
        if name is not None and name in topics.deletions:
            if not is_dry_run:
                await topics.deletions.finish(name, self._ownership)
            return name, None
        if topic_id is not None:
            topic = topics.get_by_id(topic_id)
        else:
            assert name is not None
            topic = topics.get(name)
        topics.check_deletable(topic)
        if not is_dry_run:
            await topics.delete(topic, self._forget_progress)
        return topic.name, topic.id
