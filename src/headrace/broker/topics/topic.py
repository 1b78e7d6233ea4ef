"""One topic as this broker sees it.

Rules of the room: a value with its partitions' logs; who changes it is `topics`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import TopicUnknown
from headrace.records.identifiers import INTERNAL_TOPICS

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import TopicFact


class Topic:
    """One topic and its partitions' logs."""

    __slots__ = ("fact", "partitions", "version")

    def __init__(self, fact: TopicFact, version: int, partitions: list[PartitionLog]) -> None:
        self.fact = fact
        self.version = version
        self.partitions = partitions

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
        """Whether Headrace itself writes it."""
        return self.fact.name in INTERNAL_TOPICS

    def require_partition(self, number: int) -> PartitionLog:
        """The log of one partition. Raises TopicUnknown."""
        partition = self.partition(number)
        if partition is None:
            raise TopicUnknown(f"topic {self.name} has no partition {number}")
        return partition

    def partition(self, number: int) -> PartitionLog | None:
        """The log of one partition, or None."""
        return self.partitions[number] if 0 <= number < len(self.partitions) else None
