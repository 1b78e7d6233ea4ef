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
    """In place of a partition count; every partition on this broker."""


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
        if new.assignments:
            count, factor = self._assigned_count(new), 1
        if count < 1 and count != BROKER_DEFAULT:
            raise PartitionsInvalid(f"{count} partitions are not possible: use at least 1")
        return await self._topics.create(
            new.name, count, factor, new.configs, is_validated_only=is_dry_run
        )

    def _assigned_count(self, new: NewTopic) -> int:
        """The partition count that an explicit assignment implies."""
        if (new.partition_count, new.replication_factor) != (BROKER_DEFAULT, BROKER_DEFAULT):
            raise RequestInvalid("give either a partition count or an assignment, not both")
        numbers = sorted(number for number, _brokers in new.assignments)
        if numbers != list(range(len(numbers))):
            raise AssignmentInvalid("an assignment must name each partition from 0 on exactly once")
        self._check_brokers(new.assignments)
        return len(numbers)

    def _check_brokers(self, assignments: Sequence[Assignment]) -> None:
        if any(brokers != (self._broker_id,) for _number, brokers in assignments):
            raise AssignmentInvalid(
                f"partitions can be assigned to broker {self._broker_id} only: name it, or "
                "omit the assignment"
            )

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
        self._check_brokers(assignments)
        await self._topics.add_partitions(topic, count, is_validated_only=is_dry_run)

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
