"""The typed values of the metadata store, with their JSON encoding and keys.

Invariants: knows names and shapes, not their users. A fact is a value: read it, change a copy
(`dataclasses.replace`), put it back with the version that was read. Do not change: stored.

    /topics/<name>                     TopicFact
    /partitions/<topic id, hex>/<n>    PartitionFact with its ledger chain; also of companion logs
    /groups/<group id, hex>            GroupFact: settings of a group
    /deleted/<name>                    exists until groups have dropped a deleted topic
    /owners/<topic id, hex>/<n>        OwnerFact: which broker serves the partition
    /pins/<topic id, hex>/<n>          PinFact: the broker an operator assigned
    /draining/<id>                     exists (`{}`) while a broker must not own partitions
    /brokers/<id>                      BrokerFact (ephemeral: exists while the broker lives)
    /acls/<type>,<pattern>,<name, hex> access control lists of a resource (`acl_facts`)
    /tenants/<name>                    TenantFact: the principals of a tenant (`tenant_facts`)
    /tenant-topics/<name>              TenantTopicsFact: orders changes of a tenant's topics
    /topic-shares/<name>               TopicSharesFact: topics that a tenant shares and reads
    /client-metrics/<name, hex>        client metrics subscriptions (`client_metrics_facts`)
    /broker-configs/all, .../<id>      settings changed while brokers run (`config_facts`)
    /cluster/id                        ClusterFact
    /producer-ids/next                 the next unallocated producer id, and a copy of the
                                       cluster id
    /load/<id>, /moves/by-load         load, and partitions moved because of it (`load_facts`)

A fact is a JSON object with `v`, the version of its schema. Decoding is strict about known fields
and preserves others (`unknown`), so an older broker that rewrites a fact does not lose what a
newer one added. A change that older brokers must not ignore increments `v`.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.errors import DataCorrupt, FactMissing, MetadataUnavailable, VersionConflict
from headrace.metadata.endpoints import KAFKA, Endpoint
from headrace.metadata.fact_json import FACT_VERSION, FactReader, Json, encode_fact, shown_fields
from headrace.metadata.store import ABSENT, MetadataStore
from headrace.records.identifiers import kafka_uuid

if TYPE_CHECKING:
    from headrace.runtime.randomness import Randomness

TOPICS = "/topics/"
PARTITIONS = "/partitions/"
OWNERS = "/owners/"
PINS = "/pins/"
DRAINING = "/draining/"
BROKERS = "/brokers/"
CLUSTER_ID = "/cluster/id"
GROUPS = "/groups/"
PRODUCER_IDS_NEXT = "/producer-ids/next"

PartitionKey = tuple[UUID, int]
"""Topic id and partition number."""

_CLUSTER_COPY = "cluster"
"""Do not change: stored. Brokers that do not know the field preserve it."""
_PARTITION_VERSION = 2
"""Of partitions with recipes; the others have version 1."""
_ATTEMPTS_MAX = 1_000  # of a compare-and-set: each loss means that another writer succeeded


# --- keys ------------------------------------------------------------------------------------


def topic_key(name: str) -> str:
    """The key of a topic's fact."""
    return TOPICS + name


def topic_of_key(key: str) -> str:
    """The topic name in a key under TOPICS."""
    assert key.startswith(TOPICS), key
    return key[len(TOPICS) :]


def partitions_prefix(topic_id: UUID) -> str:
    """The key prefix of a topic's partitions. Listed in text order: 10 before 2."""
    return f"{PARTITIONS}{topic_id.hex}/"


def partition_key(topic_id: UUID, partition: int) -> str:
    """The key of a partition's fact."""
    return f"{PARTITIONS}{topic_id.hex}/{partition}"


def partition_of_key(key: str) -> PartitionKey:
    """The topic id and partition in a key under PARTITIONS, OWNERS or PINS.

    Raises DataCorrupt on another key.
    """
    _, _, topic_id, partition = key.split("/") if key.count("/") == 3 else ("", "", "", key)
    try:
        return UUID(hex=topic_id), int(partition)
    except ValueError as error:
        raise DataCorrupt(f"{key!r} is not the key of a partition: remove it", key=key) from error


class CompanionKind(IntEnum):
    """A companion log: SHARES holds the state of share groups, TIMERS delayed records and half
    messages, LITE what groups have done in lite topics. Do not change: stored."""

    SHARES = 1
    TIMERS = 2
    LITE = 3


COMPANION_SHIFT = 24
"""A companion's number is the partition's with its kind in the bits above. Do not change: stored.
Topics have far fewer partitions, and versions without companions reject the number."""


def companion_number(partition: int, kind: CompanionKind) -> int:
    """The number under which a partition's companion log stores its ledger chain."""
    assert partition >> COMPANION_SHIFT == 0, partition
    return partition | kind << COMPANION_SHIFT


def partition_of_companion(number: int) -> int:
    """The partition of a companion's number, or of a partition's own."""
    return number & ((1 << COMPANION_SHIFT) - 1)


def owner_key(topic_id: UUID, partition: int) -> str:
    """The key of a partition's owner."""
    return f"{OWNERS}{topic_id.hex}/{partition}"


def pin_key(topic_id: UUID, partition: int) -> str:
    """The key of a partition's pin."""
    return f"{PINS}{topic_id.hex}/{partition}"


def draining_key(broker_id: int) -> str:
    """The key that exists while a broker must not own partitions."""
    return f"{DRAINING}{broker_id}"


def broker_key(broker_id: int) -> str:
    """The key of a live broker's fact."""
    return f"{BROKERS}{broker_id}"


# --- values ----------------------------------------------------------------------------------


class StoredFact:
    """Base of all facts: a dataclass whose fields are stored by name."""

    __slots__ = ()

    def encode(self) -> bytes:
        """The stored bytes."""
        return encode_fact(shown_fields(self))


@dataclass(slots=True)
class TopicFact(StoredFact):
    """A topic: the parameters of its creation, and its configuration overrides."""

    name: str
    id: UUID
    partition_count: int
    replication_factor: int
    configs: dict[str, str]
    created_ms: int
    deleted_ms: int | None = None
    """When it was deleted; the fact is kept until no broker can accept records for it."""
    chain_count: int | None = None
    """The first so many partitions had their chain written before the topic was created: if one
    of these is missing, it was lost. None: created by a version that did not do that."""
    ended_ms: int | None = None
    """When its deletion was complete and its name became free. The fact is then kept for a time:
    deleting the key would reset its version, and a broker that missed the deletion would mistake
    a later topic of this name, at the same version, for this one."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def is_deleted(self) -> bool:
        """Whether the topic was deleted; its name stays reserved until the deletion is complete."""
        return self.deleted_ms is not None

    @property
    def is_ended(self) -> bool:
        """Whether its deletion is complete; only the key's version still matters."""
        return self.ended_ms is not None

    def has_chain(self, partition: int) -> bool:
        """Whether the partition's chain was written, and therefore must exist."""
        return partition < (self.chain_count or 0)

    @classmethod
    def decode(cls, value: bytes) -> TopicFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("topic", value)
        topic_id = reader.uuid("id")
        return cls(
            reader.text("name"),
            topic_id,
            reader.integer("partition_count", 1),
            reader.integer("replication_factor", 1),
            reader.texts("configs"),
            reader.integer("created_ms", 0),
            reader.integer_or_none("deleted_ms", 0),
            reader.integer_or_none("chain_count", 0),
            reader.integer_or_none("ended_ms", 0),
            reader.rest(),
        )


@dataclass(slots=True)
class LedgerLink:
    """One ledger of a partition's chain. Optional fields are set when it is sealed or tiered."""

    ledger: int
    base_offset: int
    leader_epoch: int
    first_timestamp_ms: int | None = None
    size_bytes: int | None = None
    end_offset: int | None = None
    max_timestamp_ms: int | None = None
    offloaded_ms: int | None = None
    """When a complete, verified copy was in object storage."""
    local_deleted_ms: int | None = None
    """When the copy in object storage became the only one; the local bytes are deleted later."""
    unknown: dict[str, Any] = field(default_factory=dict)
    tabled_ms: int | None = None
    """When its recipe, which takes the records from the topic's table, replaced its object."""
    object_kept_until_ms: int | None = None
    """The table could not replace its object; the time before which that is not tried again."""
    object_kept_wait_ms: int | None = None
    """The wait until then; the next one is twice as long."""

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger is sealed and the chain records its end."""
        return self.end_offset is not None

    @classmethod
    def read(cls, reader: FactReader) -> LedgerLink:
        """Decode one JSON object. Raises DataCorrupt."""
        link = cls(
            reader.integer("ledger", 0),
            reader.integer("base_offset", 0),
            reader.integer("leader_epoch", 0),
            reader.integer_or_none("first_timestamp_ms", -1),
            reader.integer_or_none("size_bytes", 0),
            reader.integer_or_none("end_offset", 0),
            reader.integer_or_none("max_timestamp_ms", -1),
            reader.integer_or_none("offloaded_ms", 0),
            reader.integer_or_none("local_deleted_ms", 0),
            tabled_ms=reader.integer_or_none("tabled_ms", 0),
            object_kept_until_ms=reader.integer_or_none("object_kept_until_ms", 0),
            object_kept_wait_ms=reader.integer_or_none("object_kept_wait_ms", 0),
            unknown=reader.rest(),
        )
        if link.end_offset is not None and link.end_offset < link.base_offset:
            raise reader.corrupt(f"ends at {link.end_offset}, before its base {link.base_offset}")
        if link.offloaded_ms is not None and link.end_offset is None:
            raise reader.corrupt("is offloaded before it is sealed")
        if link.local_deleted_ms is not None and link.offloaded_ms is None:
            raise reader.corrupt("was deleted locally but never offloaded")
        if link.tabled_ms is not None and link.local_deleted_ms is None:
            raise reader.corrupt("has a recipe before its object was the only copy")
        return link


@dataclass(slots=True)
class PartitionFact(StoredFact):
    """A partition: log start offset, latest leader epoch, and ledgers from oldest to newest."""

    log_start_offset: int = 0
    leader_epoch: int = 0
    ledgers: list[LedgerLink] = field(default_factory=list)
    companions: int | None = None
    """One bit for each kind of companion log that was created: its chain must exist."""
    cleaned_offset: int | None = None
    """Compaction has left one record per key before it; None: it never ran."""
    unknown: dict[str, Any] = field(default_factory=dict)
    lost_offsets: str | None = None  # see `metadata/lost_offsets.py`; only a repair writes it

    def has_companion(self, kind: CompanionKind) -> bool:
        """Whether a companion log of this kind was created."""
        return bool((self.companions or 0) >> kind & 1)

    def with_companion(self, kind: CompanionKind) -> PartitionFact:
        """The fact once a companion log of this kind was created."""
        return replace(self, companions=(self.companions or 0) | 1 << kind)

    @property
    def end_offset_or_none(self) -> int | None:
        """The end offset of a log whose last ledger is sealed; None for an open or empty one."""
        last = self.ledgers[-1].end_offset if self.ledgers else None
        return None if last is None else max(last, self.log_start_offset)

    def encode(self) -> bytes:
        """The stored bytes. Versions of Headrace without recipes must not read what needs them."""
        has_recipes = any(link.tabled_ms is not None for link in self.ledgers)
        return encode_fact(shown_fields(self), _PARTITION_VERSION if has_recipes else FACT_VERSION)

    @property
    def local_ledgers(self) -> set[int]:
        """The ledgers that do not exist in object storage only."""
        return {link.ledger for link in self.ledgers if link.local_deleted_ms is None}

    @classmethod
    def decode(cls, value: bytes) -> PartitionFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("partition", value, _PARTITION_VERSION)
        fact = cls(
            reader.integer("log_start_offset", 0),
            reader.integer("leader_epoch", 0),
            [LedgerLink.read(item) for item in reader.objects("ledgers", "ledger link")],
            reader.integer_or_none("companions", 0),
            reader.integer_or_none("cleaned_offset", 0),
            lost_offsets=reader.text_or_none("lost_offsets"),
            unknown=reader.rest(),
        )
        for before, after in zip(fact.ledgers, fact.ledgers[1:], strict=False):
            if after.base_offset < (before.end_offset or before.base_offset):
                raise reader.corrupt(f"has ledger {after.ledger} overlapping {before.ledger}")
        return fact


@dataclass(slots=True)
class OwnerFact(StoredFact):
    """Which broker serves a partition, and since which leader epoch.

    `incarnation` identifies one run of that broker: after a restart it owns nothing yet.
    """

    broker: int
    incarnation: str
    leader_epoch: int
    successor: int | None = None
    """The broker that a planned handover will make the owner; None if there is none."""
    is_ready: int | None = None
    """1 when the successor has read ahead and is ready to take over."""
    ledger_ahead: int | None = None
    """The ledger that the successor has created for its epoch; not in a chain yet."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> OwnerFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("owner", value)
        return cls(
            reader.integer("broker", 0),
            reader.text("incarnation"),
            reader.integer("leader_epoch", 0),
            reader.integer_or_none("successor", 0),
            reader.integer_or_none("is_ready", 0),
            reader.integer_or_none("ledger_ahead", 0),
            reader.rest(),
        )


@dataclass(slots=True)
class PinFact(StoredFact):
    """The broker that an operator assigned to serve a partition while that broker lives."""

    broker: int
    unknown: dict[str, Any] = field(default_factory=dict)
    former: int | None = None
    """The broker of the pin that this one replaced, which a cancelled reassignment restores."""

    @classmethod
    def decode(cls, value: bytes) -> PinFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("pin", value)
        broker, former = reader.integer("broker", 0), reader.integer_or_none("former", 0)
        return cls(broker, reader.rest(), former)


@dataclass(slots=True)
class BrokerFact(StoredFact):
    """A live broker and its addresses."""

    id: int
    kafka_host: str
    kafka_port: int
    http_host: str
    http_port: int
    started_ms: int
    rack: str | None = None
    incarnation: str | None = None
    """A random id, new at each start."""
    moves_version: int | None = None
    """The version of load-based moves it follows (`load_facts`); None disables them everywhere."""
    warm_version: int | None = None
    """How it prepares for partitions it is a successor of; None: it does not."""
    is_leaving: int | None = None
    """1 while it shuts down: it hands over its partitions and must not get any."""
    endpoints: list[Endpoint] | None = None
    """All its addresses; None: only `kafka_host` and `http_host` (an earlier version)."""
    facts_version: int | None = None
    """Which deletions of facts it follows (`followed_facts`); None prevents them everywhere."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> BrokerFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("broker", value)
        endpoints = reader.objects_or_none("endpoints", "endpoint")
        return cls(
            reader.integer("id", 0),
            reader.text("kafka_host"),
            reader.integer("kafka_port", 0),
            reader.text("http_host"),
            reader.integer("http_port", 0),
            reader.integer("started_ms", 0),
            reader.text_or_none("rack"),
            reader.text_or_none("incarnation"),
            reader.integer_or_none("moves_version", 1),
            reader.integer_or_none("warm_version", 1),
            reader.integer_or_none("is_leaving", 0),
            None if endpoints is None else [Endpoint.read(item) for item in endpoints],
            reader.integer_or_none("facts_version", 1),
            reader.rest(),
        )

    def kafka_address(self, listener: str) -> tuple[str, int]:
        """The broker's address for clients of this listener; its first Kafka address if it has no
        such listener, as with earlier versions."""
        for endpoint in self.endpoints or ():
            if endpoint.listener == listener and endpoint.face == KAFKA:
                return endpoint.host, endpoint.port
        return self.kafka_host, self.kafka_port


@dataclass(slots=True)
class ClusterFact(StoredFact):
    """The cluster id: 22 characters, as Kafka clients expect."""

    id: str
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> ClusterFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("cluster id", value)
        return cls(reader.text("id"), reader.rest())


# --- decisions by compare-and-set ------------------------------------------------------------


async def ensure_cluster_id(store: MetadataStore, randomness: Randomness) -> str:
    """The cluster id, which the first broker of the cluster creates.

    A copy is stored beside the next producer id and replaces a lost id. Raises FactMissing if there
    are topics but neither id nor copy, MetadataUnavailable.
    """
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(CLUSTER_ID)
        if entry is not None:
            return ClusterFact.decode(entry.value).id
        counter = await _ProducerIdCounter.read(store)
        text = counter.unknown.get(_CLUSTER_COPY)
        if text is None and await store.list(TOPICS):
            raise FactMissing(
                f"{CLUSTER_ID} is missing although there are topics: with a new id, every ledger"
                " would belong to another cluster; restore it from a backup or a ledger's label"
                " `cluster`",
                key=CLUSTER_ID,
            )
        if text is None:
            text = kafka_uuid(randomness.uuid())
        try:
            await store.put(CLUSTER_ID, ClusterFact(text).encode(), ABSENT)
        except VersionConflict:
            continue
        return text
    raise MetadataUnavailable("the cluster id keeps changing: check the metadata store")


async def copy_cluster_id(store: MetadataStore, cluster_id: str) -> None:
    """Store a copy of the cluster id; called after startup checks. Raises MetadataUnavailable."""
    for _ in range(_ATTEMPTS_MAX):
        counter = await _ProducerIdCounter.read(store)
        if _CLUSTER_COPY in counter.unknown:
            return
        counter.unknown[_CLUSTER_COPY] = cluster_id
        with suppress(VersionConflict):
            await counter.put(store, counter.first)
    raise MetadataUnavailable("the producer id counter keeps changing: retry")


@dataclass(slots=True)
class _ProducerIdCounter:
    """The next unallocated producer id, other fields stored with it, and the key's version."""

    first: int
    unknown: Json
    version: int

    @classmethod
    async def read(cls, store: MetadataStore) -> _ProducerIdCounter:
        entry = await store.get(PRODUCER_IDS_NEXT)
        if entry is None:
            return cls(0, Json(), ABSENT)
        reader = FactReader.parse("next producer id", entry.value)
        return cls(reader.integer("next", 0), reader.rest(), entry.version)

    async def put(self, store: MetadataStore, first: int) -> None:
        """Raises VersionConflict, MetadataUnavailable."""
        await store.put(
            PRODUCER_IDS_NEXT, encode_fact({"next": first} | self.unknown), self.version
        )


async def allocate_producer_ids(store: MetadataStore, count: int, least: int = 0) -> range:
    """`count` producer ids, none below `least`, that were never allocated before.

    Raises MetadataUnavailable.
    """
    assert count >= 1, count
    for _ in range(_ATTEMPTS_MAX):
        counter = await _ProducerIdCounter.read(store)
        first = max(counter.first, least)
        try:
            await counter.put(store, first + count)
        except VersionConflict:
            continue
        return range(first, first + count)
    raise MetadataUnavailable(f"lost {_ATTEMPTS_MAX} races for a block of producer ids: retry")
