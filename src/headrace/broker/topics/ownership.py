"""Who owns which partition: what the faces ask, and the answer of a broker that is alone.

Invariants: the seam. `SharedOwnership` answers where several brokers share the partitions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.metadata.facts import broker_key
from headrace.metadata.store import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.session_guard import SessionGuard
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import BrokerFact, TopicFact
    from headrace.metadata.store import MetadataStore, Operation

NO_LEADER = -1


class Leader(NamedTuple):
    """Which broker serves a partition (NO_LEADER: none now), since which epoch."""

    broker: int
    leader_epoch: int


class Ownership(Protocol):
    """Who owns which partition."""

    @property
    def guard(self) -> SessionGuard | None:
        """Whether this broker may answer as an owner now; None: it always may."""
        ...

    async def join(self, fact: BrokerFact) -> None:
        """Tell the cluster where this broker is reached; from now on it may own partitions."""
        ...

    async def leave(self) -> None:
        """Hand over what this broker owns."""
        ...

    def leader(self, topic: Topic, partition: int) -> Leader:
        """Who serves a partition."""
        ...

    def is_mine(self, topic: Topic, partition: int) -> bool:
        """Whether this broker serves a partition."""
        ...

    def brokers(self) -> Sequence[BrokerFact]:
        """The live brokers, by id."""
        ...

    def topics_changed(self) -> None:
        """Topics or partitions came or went."""
        ...

    def first_owners(self, fact: TopicFact) -> Sequence[Operation]:
        """What to write together with a new topic, so that it has owners when it is there."""
        ...

    async def wait_served(self, topic: Topic) -> None:
        """Wait, within reason, until each partition of a new topic has an owner."""
        ...

    async def wait_ended(self, topic: Topic, timeout_s: float) -> bool:
        """Wait until no other living broker serves a deleted topic; whether it was in time."""
        ...


class SoleOwnership:
    """Of a broker that is alone: it serves everything."""

    def __init__(self, broker_id: int, metadata: MetadataStore) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._brokers: list[BrokerFact] = []
        self.guard: SessionGuard | None = None

    async def join(self, fact: BrokerFact) -> None:
        """See Ownership."""
        self._brokers = [fact]
        await self._metadata.put(broker_key(fact.id), fact.encode(), ANY, ephemeral=True)

    async def leave(self) -> None:
        """See Ownership: there is no other broker to hand over to."""

    def leader(self, topic: Topic, partition: int) -> Leader:
        """See Ownership."""
        return Leader(self._broker_id, topic.require_log(partition).leader_epoch)

    def is_mine(self, topic: Topic, partition: int) -> bool:
        """See Ownership."""
        return True

    def brokers(self) -> Sequence[BrokerFact]:
        """See Ownership."""
        return self._brokers

    def topics_changed(self) -> None:
        """See Ownership."""

    def first_owners(self, fact: TopicFact) -> Sequence[Operation]:
        """See Ownership."""
        return ()

    async def wait_served(self, topic: Topic) -> None:
        """See Ownership."""

    async def wait_ended(self, topic: Topic, timeout_s: float) -> bool:
        """See Ownership."""
        return True
