"""Creates, extends and deletes topics, for every face.

Invariants: knows no protocol. A dry run makes every check of the real change and changes nothing.
`Topics` writes the metadata.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import AssignmentInvalid, PartitionsInvalid, RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.metadata.facts import TopicFact

BROKER_DEFAULT = -1
"""The broker's settings decide the partition count or replication factor."""

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


class TopicAdministration:
    """See the module."""

    def __init__(self, topics: Topics, ownership: Ownership, broker_id: int) -> None:
        self._topics = topics
        self._ownership = ownership
        self._broker_id = broker_id

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
            await topics.delete(topic)
        return topic.name, topic.id
