"""Topics, partitions and chains of ledgers, decoded from the metadata rows.

Invariants: knows facts and their contradictions, but no ledgers. Unknown keys are ignored: a later
version may have written them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.coordination.placement.rendezvous import place
from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.inspection.findings import (
    WHOLE_FOLDER,
    Finding,
    RecordRange,
    damage,
    note,
    unreadable,
)
from headrace.log.fencing import EPOCH_OF_DELETED
from headrace.metadata.acl_facts import ACLS, AclFact
from headrace.metadata.client_metrics_facts import CLIENT_METRICS, SubscriptionFact
from headrace.metadata.config_facts import BROKER_CONFIG, BROKER_CONFIGS, BrokerConfigFact
from headrace.metadata.facts import (
    BROKERS,
    CLUSTER_ID,
    COMPANION_SHIFT,
    GROUPS,
    OWNERS,
    PARTITIONS,
    PINS,
    TOPICS,
    BrokerFact,
    ClusterFact,
    CompanionKind,
    OwnerFact,
    PartitionFact,
    PinFact,
    TopicFact,
    companion_number,
    partition_of_companion,
    partition_of_key,
)
from headrace.metadata.group_facts import GroupFact
from headrace.metadata.issued_facts import ISSUED, IssuedFact
from headrace.metadata.load_facts import LOADS, MOVES, LoadFact, MovesFact
from headrace.metadata.quota_facts import QUOTAS, QuotaFact
from headrace.metadata.sqlite_file import METADATA
from headrace.metadata.tenant_facts import (
    TENANT_TOPICS,
    TENANTS,
    TOPIC_SHARES,
    TenantFact,
    TenantTopicsFact,
    TopicSharesFact,
)
from headrace.metadata.user_facts import SHARED_BY_BROKERS, USERS, BrokerSecretFact, UserFact

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.inspection.metadata_copy import MetadataCopy, MetadataRow
    from headrace.metadata.facts import LedgerLink, PartitionKey

_DECODERS: Final[tuple[tuple[str, Callable[[bytes], Any]], ...]] = (
    (TOPICS, TopicFact.decode),
    (PARTITIONS, PartitionFact.decode),
    (OWNERS, OwnerFact.decode),
    (PINS, PinFact.decode),
    (BROKERS, BrokerFact.decode),
    (GROUPS, GroupFact.decode),
    (BROKER_CONFIG, BrokerConfigFact.decode),
    (BROKER_CONFIGS, BrokerConfigFact.decode),
    (CLUSTER_ID, ClusterFact.decode),
    (LOADS, LoadFact.decode),
    (MOVES, MovesFact.decode),
    (QUOTAS, QuotaFact.decode),
    (ACLS, AclFact.decode),
    (USERS, UserFact.decode),
    (TENANTS, TenantFact.decode),
    (TENANT_TOPICS, TenantTopicsFact.decode),
    (TOPIC_SHARES, TopicSharesFact.decode),
    (SHARED_BY_BROKERS, BrokerSecretFact.decode),
    *((prefix, IssuedFact.decode) for prefix in ISSUED),
    (CLIENT_METRICS, SubscriptionFact.decode),
)
_STEP = f"restore {METADATA} from a backup"
_LOST = "the partition is not served: its records would be lost and their offsets reused"


class Chain(NamedTuple):
    """The ledgers of one log: a partition's, or a companion's."""

    topic: TopicFact
    number: int
    """The partition's number; for a companion log, with its kind in the high bits."""
    fact: PartitionFact

    @property
    def partition(self) -> int:
        """The partition that it is or belongs to."""
        return partition_of_companion(self.number)

    @property
    def companion(self) -> int | None:
        """The kind of a companion log; None for a partition."""
        return self.number >> COMPANION_SHIFT or None

    @property
    def name(self) -> str:
        """`orders-0`, or `orders-0 (shares)`."""
        text = f"{self.topic.name}-{self.partition}"
        kind = self.companion
        if kind is None:
            return text
        known = kind in CompanionKind.__members__.values()
        return f"{text} ({CompanionKind(kind).name.lower() if known else f'companion {kind}'})"

    def place(self, first: int | None = None, last: int | None = None) -> RecordRange:
        """A set of its offsets."""
        return RecordRange(None, self.topic.name, self.partition, first, last)

    def place_in(
        self, link: LedgerLink, first: int | None = None, last: int | None = None
    ) -> RecordRange:
        """The offsets of one of its ledgers."""
        return RecordRange(link.ledger, self.topic.name, self.partition, first, last)


class DecodedMetadata:
    """The decoded metadata, and the problems found in it."""

    def __init__(self, copy: MetadataCopy, worker_count: int) -> None:
        self.findings: list[Finding] = []
        self.topics: dict[Any, TopicFact] = {}
        self.chains: list[Chain] = []
        self.owners: dict[PartitionKey, int] = {}
        self._pins: dict[PartitionKey, int] = {}
        self._workers = range(worker_count)
        self._partitions: dict[PartitionKey, PartitionFact] = {}
        for row in copy.rows:
            if row.value is not None and row.is_intact:
                self._take(row, row.value)
        self._link()

    def _take(self, row: MetadataRow, value: bytes) -> None:
        try:
            fact = decode(row.key, value)
            key = (
                partition_of_key(row.key)
                if row.key.startswith((PARTITIONS, OWNERS, PINS))
                else None
            )
        except DataCorrupt as error:
            effect = f"{WHOLE_FOLDER}, or the part that depends on that key"
            cause = f"{row.key}: {error}"
            self.findings.append(damage("metadata-fact", METADATA, None, cause, effect, _STEP))
            return
        except FormatUnsupported as error:
            cause, step = f"{row.key}: {error}", "start the version that wrote it"
            self.findings.append(unreadable("metadata-fact", METADATA, cause, step))
            return
        if isinstance(fact, TopicFact):
            if not fact.is_ended:
                self.topics[fact.id] = fact
        elif isinstance(fact, PartitionFact) and key is not None:
            self._partitions[key] = fact
        elif isinstance(fact, OwnerFact) and key is not None:
            self.owners[key] = fact.broker
        elif isinstance(fact, PinFact) and key is not None:
            self._pins[key] = fact.broker

    def _link(self) -> None:
        for key, fact in sorted(
            self._partitions.items(), key=lambda one: (one[0][0].hex, one[0][1])
        ):
            topic = self.topics.get(key[0])
            if topic is None:
                if fact.leader_epoch < EPOCH_OF_DELETED:
                    cause = f"the chain of partition {key[1]} belongs to the unknown topic {key[0]}"
                    effect = "left by a deletion; the next start deletes it"
                    self.findings.append(note("stray-chain", METADATA, cause, effect))
                continue
            self.chains.append(Chain(topic, key[1], fact))
        for topic in self.topics.values():
            if not topic.is_deleted:
                self._expect_chains(topic)
        self.chains.sort(key=lambda one: (one.topic.name, one.partition, one.number))

    def _expect_chains(self, topic: TopicFact) -> None:
        for number in range(topic.partition_count):
            fact = self._partitions.get((topic.id, number))
            if fact is None:
                if topic.has_chain(number):
                    self._missing(topic, number, "its chain of ledgers is missing")
                continue
            for kind in CompanionKind:
                companion = companion_number(number, kind)
                if fact.has_companion(kind) and (topic.id, companion) not in self._partitions:
                    what = f"the chain of its {kind.name.lower()} log is missing"
                    self._missing(topic, number, what)

    def _missing(self, topic: TopicFact, number: int, what: str) -> None:
        cause = f"{topic.name}-{number}: {what}"
        place = RecordRange(None, topic.name, number)
        self.findings.append(damage("chain-missing", METADATA, None, cause, _LOST, _STEP, place))

    def worker_of(self, chain: Chain) -> int:
        """The worker whose folder holds the ledgers of a chain."""
        if len(self._workers) == 1:
            return 0
        key = (chain.topic.id, chain.partition)
        owner = self.owners.get(key)
        if owner is not None:
            return owner
        pins = {number: broker for (topic, number), broker in self._pins.items() if topic == key[0]}
        return place(key[0], chain.topic.partition_count, self._workers, pins)[chain.partition]

    def find(self, name: str, companion: int | None) -> Chain | None:
        """Find the log called `orders-0`, or a companion of it."""
        topic, _, number = name.rpartition("-")
        matching: Sequence[Chain] = [
            chain
            for chain in self.chains
            if chain.topic.name == topic
            and str(chain.partition) == number
            and chain.companion == companion
        ]
        return matching[0] if matching else None


def decode(key: str, value: bytes) -> Any:
    """Decode the fact under a key; None if the key is unknown.

    Raises DataCorrupt, FormatUnsupported.
    """
    for prefix, decoder in _DECODERS:
        if key == prefix or (prefix.endswith("/") and key.startswith(prefix)):
            return decoder(value)
    return None
