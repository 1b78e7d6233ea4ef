"""The brokers of the cluster, and which of them is responsible for what.

Invariants: knows no protocol; answers from what this broker knows now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import CoordinatorUnavailable, PolicyViolation
from headrace.metadata.endpoints import HTTP, KAFKA, address_of
from headrace.metadata.facts import BrokerFact
from headrace.metadata.followed_facts import (
    DELETED_FACTS,
    FACTS_VERSION,
    TENANTS_CLUSTER_IDS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.coordinators.coordinator_shards import CoordinatorShards
    from headrace.broker.session_guard import SessionGuard
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.metadata.endpoints import Endpoint
    from headrace.runtime.clock import Clock

    Shards = CoordinatorShards[Any, Any, Any]


class Cluster:
    """See the module."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        ownership: Ownership,
        clock: Clock,
    ) -> None:
        self.broker_id = config.broker_id
        self._rack = config.rack
        self._clock = clock
        self._fact: BrokerFact | None = None
        """What this broker has registered."""
        self.id = ""
        """Set when the broker has opened."""
        self.wait_settled = ownership.wait_settled
        """See `Ownership.wait_settled`."""
        self.line_ended = ownership.line_ended
        """See `Ownership.line_ended`."""
        self.kafka_address = ("", 0)
        """Advertised address of this broker's first Kafka listener, or of that for brokers."""
        self.endpoints: list[Endpoint] = []
        """Advertised endpoints of this broker's listeners."""
        self._topics = topics
        self._ownership = ownership

    @property
    def guard(self) -> SessionGuard | None:
        """How long this broker may act as an owner; None if nothing limits it."""
        return self._ownership.guard

    async def register(
        self, kafka: tuple[str, int] | None = None, http: tuple[str, int] | None = None
    ) -> None:
        """Join the cluster with the endpoints that the faces have added, or with the given ones."""
        self.kafka_address = kafka or self.kafka_address
        http = http or address_of(self.endpoints, HTTP)
        self._fact = self._own_fact(http, self._clock.now_ms(), list(self.endpoints))
        await self._ownership.join(self._fact)

    def _own_fact(
        self, http: tuple[str, int], started_ms: int, endpoints: list[Endpoint]
    ) -> BrokerFact:
        return BrokerFact(
            self.broker_id,
            *self.kafka_address,
            *http,
            started_ms,
            self._rack,
            endpoints=endpoints,
            facts_version=FACTS_VERSION,
        )

    def brokers(self) -> Sequence[BrokerFact]:
        """The live brokers, including this one before it has registered."""
        return self._ownership.brokers() or [
            self._fact or self._own_fact(("", 0), 0, self.endpoints)
        ]

    @property
    def hidden_id(self) -> str:
        """The cluster's own id, which clients of tenants do not see. Empty while there is a broker
        of a version that shows it: a client is to see one id from all brokers."""
        return self.id if self.all_know(TENANTS_CLUSTER_IDS) else ""

    def may_delete_facts(self) -> bool:
        """Whether this broker is to delete facts of which nothing is left: one does, and none if
        there is one of a version that could not follow it."""
        return self.all_know(DELETED_FACTS) and (
            min(fact.id for fact in self.brokers()) == self.broker_id
        )

    def all_know(self, facts_version: int) -> bool:
        """Whether no live broker is of a version that does not know these facts."""
        return not self._not_knowing(facts_version)

    def _not_knowing(self, facts_version: int) -> list[int]:
        return [one.id for one in self.brokers() if (one.facts_version or 0) < facts_version]

    def check_known(self, facts_version: int, effect: str) -> None:
        """Raise PolicyViolation while a live broker does not know these facts. `effect`: what it
        would do."""
        if older := self._not_knowing(facts_version):
            named = ", ".join(map(str, sorted(older)))
            raise PolicyViolation(
                f"a broker of an earlier version would {effect}: nothing was changed; try again"
                f" when all brokers have this version, which these have not: {named}"
            )

    def listed_brokers(self) -> Sequence[BrokerFact]:
        """See `Ownership.listed_brokers`."""
        return self._ownership.listed_brokers() or self.brokers()

    def add_endpoint(self, endpoint: Endpoint) -> None:
        """A face listens: this broker registers so."""
        self.endpoints.append(endpoint)
        if endpoint.face == KAFKA and not self.kafka_address[0]:
            self.kafka_address = endpoint.host, endpoint.port

    def leader_of(self, topic: Topic, number: int) -> BrokerFact | None:
        """The live broker that serves the partition; None if there is none."""
        broker_id = self._ownership.leader(topic, number).broker
        return next((one for one in self.brokers() if one.id == broker_id), None)

    def coordinator_of(self, shards: Shards, key: str) -> BrokerFact:
        """The broker that coordinates `key`. Raises CoordinatorUnavailable if there is none."""
        topic = self._topics.by_name.get(shards.topic)
        leader = None if topic is None else self.leader_of(topic, shards.partition_for(key))
        if leader is None:
            raise CoordinatorUnavailable("no broker coordinates this key at the moment: try again")
        return leader

    def coordinated_for_s(self, shards: Shards, key: str) -> float:
        """For how many seconds this broker has known the coordinator of `key`."""
        topic = self._topics.by_name.get(shards.topic)
        if topic is None:
            return 0.0
        return self._ownership.led_for_s(topic, shards.partition_for(key))
