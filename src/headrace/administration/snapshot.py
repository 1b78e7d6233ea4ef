"""All facts of a cluster at about one moment, and what they say about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.metadata.titles import log_title

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.metadata.facts import (
        BrokerFact,
        OwnerFact,
        PartitionKey,
        TopicFact,
    )
    from headrace.metadata.health_facts import Problem
    from headrace.metadata.load_facts import LoadFact


@dataclass(slots=True)
class ClusterSnapshot:
    """All facts of a cluster at about one moment."""

    cluster_id: str
    brokers: dict[int, BrokerFact]
    draining: set[int]
    topics: dict[UUID, TopicFact]
    owners: dict[PartitionKey, OwnerFact]
    pins: dict[PartitionKey, int]
    loads: dict[int, LoadFact]
    """The recent loads of the live brokers."""
    moves: dict[PartitionKey, int]
    """Partitions moved by load, and their brokers."""
    bookies: list[str]
    read_only_bookies: list[str]
    lost_bookies: list[str] = field(default_factory=list)
    """Bookies that belong to the cluster (they have cookies) and are not registered."""
    missing_chains: list[PartitionKey] = field(default_factory=list)
    """Partitions that are not served because their chain of ledgers was lost."""
    lost_topics: list[UUID] = field(default_factory=list)
    """Topics with chains but without a fact."""
    damaged_facts: list[str] = field(default_factory=list)
    """Facts that cannot be decoded, by key, with the reason."""
    reported: dict[int, list[Problem]] = field(default_factory=dict)
    """What each live broker says is wrong there."""

    @property
    def partitions(self) -> list[PartitionKey]:
        """Every partition that should be served."""
        return [
            (topic.id, number)
            for topic in sorted(self.topics.values(), key=lambda topic: topic.name)
            for number in range(topic.partition_count)
        ]

    def server_of(self, key: PartitionKey) -> int | None:
        """The live broker that owns a partition, or None."""
        owner = self.owners.get(key)
        broker = None if owner is None else self.brokers.get(owner.broker)
        if owner is None or broker is None or broker.incarnation != owner.incarnation:
            return None
        return owner.broker

    def name_of(self, key: PartitionKey) -> str:
        """`topic-number`."""
        return log_title(f"{self.topics[key[0]].name}-{key[1]}")

    @property
    def problems(self) -> list[str]:
        """What cannot be decoded, and what brokers report, as text."""
        return self._problems(with_passing=True)

    @property
    def lasting_problems(self) -> list[str]:
        """As `problems`, without attempts that failed and may succeed when they are repeated: what
        they met, such as lost ledgers, `verify` examines itself."""
        return self._problems(with_passing=False)

    def _problems(self, *, with_passing: bool) -> list[str]:
        return [
            *self.damaged_facts,
            *(
                f"broker {broker} reports: {one}"
                for broker, found in sorted(self.reported.items())
                for one in found
                if with_passing or not one.is_passing
            ),
        ]
