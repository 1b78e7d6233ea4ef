"""The ownership interface that protocol faces use, and its stand-alone implementation.

Invariants: the seam. `SharedOwnership` implements it where several brokers share the partitions.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.metadata.facts import broker_key
from headrace.metadata.store import ANY

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Collection, Mapping, Sequence

    from headrace.broker.session_guard import SessionGuard
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import BrokerFact, TopicFact
    from headrace.metadata.store import MetadataStore, MultiOperation

NO_LEADER = -1


NOT_ASSIGNED: Mapping[int, int] = MappingProxyType({})
"""Of new partitions, none is assigned to a broker."""


class Leader(NamedTuple):
    """The broker that serves a partition (NO_LEADER: none at the moment), and its leader epoch."""

    broker: int
    leader_epoch: int


class PeerLine(Protocol):
    """An idle connection to another broker."""

    ended: asyncio.Event

    async def ping(self) -> None:
        """Wait for a response. Raises OSError."""
        ...

    def abort(self) -> None:
        """Close it at once."""
        ...


OpenLine = Callable[["BrokerFact", str, Callable[[], None]], Awaitable[PeerLine]]
"""Connects to a broker, introduced by the caller's incarnation; the callback is called when the
connection ends, before anything else that arrives later is handled. Raises OSError."""


class Ownership(Protocol):
    """Partition ownership."""

    @property
    def guard(self) -> SessionGuard | None:
        """Decides whether this broker may answer as an owner now; None: it always may."""
        ...

    @property
    def damaged_facts(self) -> Mapping[str, str]:
        """Facts about owners and brokers that cannot be decoded: key -> reason."""
        ...

    async def join(self, fact: BrokerFact) -> None:
        """Register this broker with the cluster; from now on it may own partitions."""
        ...

    async def leave(self) -> None:
        """Hand over the partitions that this broker owns."""
        ...

    def leader(self, topic: Topic, partition: int) -> Leader:
        """The broker that serves a partition."""
        ...

    def led_for_s(self, topic: Topic, partition: int) -> float:
        """For how many seconds this broker has known the present leader."""
        ...

    async def wait_settled(self) -> None:
        """Wait, up to a limit, until the partitions of brokers that have died, or may have, have
        new leaders."""
        ...

    def is_mine(self, topic: Topic, partition: int) -> bool:
        """Whether this broker serves a partition."""
        ...

    def brokers(self) -> Sequence[BrokerFact]:
        """The live brokers, by id."""
        ...

    def listed_brokers(self) -> Sequence[BrokerFact]:
        """The live brokers and those that left a moment ago, by id: for clients that move away."""
        ...

    def line_ended(self, incarnation: str) -> None:
        """A connection by which that broker watched this one has ended."""
        ...

    def topics_changed(self) -> None:
        """Topics or partitions were created or deleted."""
        ...

    def first_owners(
        self, fact: TopicFact, numbers: range, assigned: Mapping[int, int]
    ) -> Sequence[MultiOperation]:
        """Operations to write together with these new partitions, so that they have owners from
        the start: those `assigned` (partition -> broker), and others by placement."""
        ...

    async def wait_served(self, topic: Topic, numbers: Collection[int] | None = None) -> None:
        """Wait, up to a limit, until these partitions of a new topic (None: all) have owners, and
        those that this broker owns are served here."""
        ...

    async def wait_ended(self, topic: Topic, timeout_s: float) -> bool:
        """Wait until no other live broker serves a deleted topic; whether it ended in time."""
        ...


class SoleOwnership:
    """The ownership of a stand-alone broker, which serves every partition."""

    def __init__(self, broker_id: int, metadata: MetadataStore) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._brokers: list[BrokerFact] = []
        self.guard: SessionGuard | None = None
        self.damaged_facts: Mapping[str, str] = {}

    async def join(self, fact: BrokerFact) -> None:
        """See Ownership."""
        self._brokers = [fact]
        await self._metadata.put(broker_key(fact.id), fact.encode(), ANY, ephemeral=True)

    async def leave(self) -> None:
        """See Ownership: there is no other broker to hand over to."""

    def leader(self, topic: Topic, partition: int) -> Leader:
        """See Ownership."""
        return Leader(self._broker_id, topic.require_log(partition).leader_epoch)

    def led_for_s(self, topic: Topic, partition: int) -> float:
        """See Ownership."""
        return math.inf

    async def wait_settled(self) -> None:
        """See Ownership."""

    def is_mine(self, topic: Topic, partition: int) -> bool:
        """See Ownership."""
        return True

    def brokers(self) -> Sequence[BrokerFact]:
        """See Ownership."""
        return self._brokers

    def listed_brokers(self) -> Sequence[BrokerFact]:
        """See Ownership."""
        return self._brokers

    def line_ended(self, incarnation: str) -> None:
        """See Ownership."""

    def topics_changed(self) -> None:
        """See Ownership."""

    def first_owners(
        self, fact: TopicFact, numbers: range, assigned: Mapping[int, int]
    ) -> Sequence[MultiOperation]:
        """See Ownership."""
        return ()

    async def wait_served(self, topic: Topic, numbers: Collection[int] | None = None) -> None:
        """See Ownership."""

    async def wait_ended(self, topic: Topic, timeout_s: float) -> bool:
        """See Ownership."""
        return True
