"""One topic as this broker sees it.

Invariants: a value with its partitions; `topics` and `ownership` change it. A partition has a log
here while this broker serves it or prepares to. For all other partitions, of which there may be
thousands, only what is needed to refuse a request is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import NotOwner, TopicUnknown
from headrace.records.identifiers import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import TopicFact


class ForeignPartition:
    """A partition that another broker, or no broker at the moment, serves."""

    __slots__ = ("_number", "_topic_name")

    def __init__(self, topic_name: str, number: int) -> None:
        self._topic_name = topic_name
        self._number = number

    @property
    def failure(self) -> NotOwner:
        """The error that refuses requests for it."""
        return self.failure_of(self._topic_name)

    def failure_of(self, topic_name: str) -> NotOwner:
        """The same by the name that a reader has for the topic."""
        return NotOwner(
            f"{topic_name}-{self._number} is not served by this broker: refresh the metadata"
        )


class Topic:
    """One topic and its partitions."""

    __slots__ = ("_home", "fact", "partitions", "version")

    def __init__(
        self,
        fact: TopicFact,
        version: int,
        partitions: list[PartitionLog | ForeignPartition],
        home: Topic | None = None,
    ) -> None:
        """`home`: see there."""
        self.fact = fact
        self.version = version
        self.partitions = partitions
        self._home = home

    @property
    def home(self) -> Topic:
        """The topic that has these partitions: another one if this is how a tenant sees a topic
        that is shared with it (`shared_topics`)."""
        return self._home or self

    @property
    def name(self) -> str:
        """Its name."""
        return self.fact.name

    @property
    def id(self) -> UUID:
        """Its id."""
        return self.fact.id

    @property
    def is_internal(self) -> bool:
        """Whether only Headrace itself writes to it."""
        return self.fact.name in INTERNAL_TOPICS

    @property
    def logs(self) -> Iterator[tuple[int, PartitionLog]]:
        """The partitions that have a log on this broker, with their numbers."""
        for number, partition in enumerate(self.partitions):
            if not isinstance(partition, ForeignPartition):
                yield number, partition

    def check_partition(self, number: int) -> None:
        """Raise TopicUnknown if there is no such partition."""
        if not 0 <= number < len(self.partitions):
            raise TopicUnknown(f"topic {self.name} has no partition {number}")

    def require_log(self, number: int) -> PartitionLog:
        """The log of one partition. Raises TopicUnknown; NotOwner if it has none here."""
        if not 0 <= number < len(self.partitions):
            self.check_partition(number)  # raises the specific error
        partition = self.partitions[number]
        if isinstance(partition, ForeignPartition):
            raise partition.failure_of(self.name)
        return partition

    def log(self, number: int) -> PartitionLog | None:
        """The log of one partition, None if it has none here."""
        partition = self.partitions[number] if 0 <= number < len(self.partitions) else None
        return None if isinstance(partition, ForeignPartition) else partition
