"""Creating, growing and deleting topics: one service for every face.

Invariants: knows no protocol. A dry run makes every check that the change itself makes, and changes
nothing. What the metadata store has to take is done by `Topics`.
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
"""A partition count or replication factor that the broker's settings decide."""

Assignment = tuple[int, tuple[int, ...]]
"""(partition, the brokers that are to hold it)"""


class NewTopic(NamedTuple):
    """A topic to create."""

    name: str
    partition_count: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] | None = None
    assignments: Sequence[Assignment] = ()
    """Instead of a partition count; every partition on this broker."""


class TopicAdministration:
    """See the module."""

    def __init__(self, topics: Topics, ownership: Ownership, broker_id: int) -> None:
        self._topics = topics
        self._ownership = ownership
        self._broker_id = broker_id

    async def create(self, new: NewTopic, *, is_dry_run: bool = False) -> TopicFact:
        """Create a topic; what it was, or would be, created as.

        Raises TopicExists, TopicNameInvalid, PartitionsInvalid, ReplicationFactorInvalid,
        AssignmentInvalid, ConfigInvalid, RequestInvalid, PolicyViolation, MetadataUnavailable.
        """
        count, factor = new.partition_count, new.replication_factor
        if new.assignments:
            count, factor = self._assigned_count(new), 1
        if count < 1 and count != BROKER_DEFAULT:
            raise PartitionsInvalid(f"{count} partitions are not possible: ask for at least 1")
        return await self._topics.create(
            new.name, count, factor, new.configs, is_validated_only=is_dry_run
        )

    def _assigned_count(self, new: NewTopic) -> int:
        """The partition count that an explicit assignment means."""
        if (new.partition_count, new.replication_factor) != (BROKER_DEFAULT, BROKER_DEFAULT):
            raise RequestInvalid("give either a partition count or an assignment, not both")
        numbers = sorted(number for number, _brokers in new.assignments)
        if numbers != list(range(len(numbers))):
            raise AssignmentInvalid("an assignment names each partition from 0 on once")
        self._check_brokers(new.assignments)
        return len(numbers)

    def _check_brokers(self, assignments: Sequence[Assignment]) -> None:
        if any(brokers != (self._broker_id,) for _number, brokers in assignments):
            raise AssignmentInvalid(
                f"the only broker to assign partitions to is {self._broker_id}: name it, or leave"
                " the assignment out"
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
        """Delete a topic, named by its name or its id; (name, id) of what was deleted.

        A deletion that was begun and not finished is finished, and has no id any more.
        Raises TopicUnknown, TopicIdUnknown, RequestInvalid, PolicyViolation, StorageUnavailable,
        MetadataUnavailable.
        """
        if (name is None) == (topic_id is None):
            raise RequestInvalid("name a topic either by its name or by its id")
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
