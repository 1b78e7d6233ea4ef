"""The logs of internal topics that this broker coordinates.

Invariants: whoever owns a partition coordinates what is in it; what another broker owns is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.errors import NotCoordinator

if TYPE_CHECKING:
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock


class CoordinatedLogs:
    """See the module."""

    def __init__(self, topics: Topics, ownership: Ownership, clock: Clock) -> None:
        self._topics = topics
        self._ownership = ownership
        self._clock = clock

    def require(self, name: str, number: int) -> PartitionLog:
        """The log of a partition. Raises NotCoordinator."""
        topic = self._topics.by_name.get(name)
        if topic is None:
            raise NotCoordinator(
                f"this broker coordinates nothing: topic {name} does not exist yet"
            )
        if number >= len(topic.partitions) or not self._ownership.is_mine(topic, number):
            raise NotCoordinator("another broker coordinates this key: look up the coordinator")
        return topic.require_log(number)

    def shard_log(self, name: str, number: int) -> InternalPartition:
        """The same, as a log of coordinator records. Raises NotCoordinator."""
        return InternalPartition(self.require(name, number), self._clock)
