"""The typed values of the metadata store, their JSON and their keys.

Invariants: knows names and shapes, not who uses them. A fact is a value: read it, change
a copy (`dataclasses.replace`), put it back with the version that was read. Do not change: stored.

    /topics/<name>                     TopicFact
    /partitions/<topic id, hex>/<n>    PartitionFact, with its chain of ledgers; companions, too
    /groups/<group id, hex>            GroupFact: settings of a group
    /deleted/<name>                    there until groups have forgotten a deleted topic
    /owners/<topic id, hex>/<n>        OwnerFact: which broker serves the partition
    /pins/<topic id, hex>/<n>          PinFact: which broker an operator wants to serve it
    /draining/<id>                     there (`{}`) while a broker is to own nothing
    /brokers/<id>                      BrokerFact (ephemeral: there while the broker lives)
    /broker-configs/all, .../<id>      settings changed while brokers run (`config_facts`)
    /cluster/id                        ClusterFact
    /producer-ids/next                 the first producer id that was not given out yet, and a copy
                                       of the cluster's id
    /load/<id>, /moves/by-load         load, and what was moved because of it (`load_facts`)

How it works: a JSON object with `v`, the version of its shape. Decoding is strict about fields
it knows and keeps those it does not (`unknown`), so an older broker that rewrites a fact does not
lose what a newer one added. A change that old brokers must not overlook raises `v`.
"""

from __future__ import annotations

import base64
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.errors import DataCorrupt, FactMissing, MetadataUnavailable, VersionConflict
from headrace.metadata.endpoints import KAFKA, Endpoint
from headrace.metadata.fact_json import FactReader, Json, encode_fact, shown_fields
from headrace.metadata.store import ABSENT, MetadataStore

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
"""Topic id and number."""

_CLUSTER_COPY = "cluster"
"""Do not change: stored. Brokers that do not know the field keep it."""
_ATTEMPTS_MAX = 1_000  # of a compare-and-set: each loss means that a rival won, so this is ample


# --- keys ------------------------------------------------------------------------------------


def topic_key(name: str) -> str:
    """The key of a topic's fact."""
    return TOPICS + name


def topic_of_key(key: str) -> str:
    """The topic name in a key under TOPICS."""
    assert key.startswith(TOPICS), key
    return key[len(TOPICS) :]


def partitions_prefix(topic_id: UUID) -> str:
    """What the keys of all partitions of one topic start with. Listed by text: 10 before 2."""
    return f"{PARTITIONS}{topic_id.hex}/"


def partition_key(topic_id: UUID, partition: int) -> str:
    """The key of one partition's fact."""
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
    """A companion log: SHARES holds the journal of share groups, TIMERS delayed records and half
    messages. Do not change: stored."""

    SHARES = 1
    TIMERS = 2


COMPANION_SHIFT = 24
"""A companion's number is the partition's, with its kind in the bits above. Do not change: stored.
A topic has far fewer partitions, and versions without companions take it for one too many."""


def companion_number(partition: int, kind: CompanionKind) -> int:
    """Under which number a companion of a partition has its chain of ledgers."""
    assert partition >> COMPANION_SHIFT == 0, partition
    return partition | kind << COMPANION_SHIFT


def partition_of_companion(number: int) -> int:
    """The partition that a companion, or the partition itself, belongs to."""
    return number & ((1 << COMPANION_SHIFT) - 1)


def owner_key(topic_id: UUID, partition: int) -> str:
    """The key of the fact that says which broker serves a partition."""
    return f"{OWNERS}{topic_id.hex}/{partition}"


def pin_key(topic_id: UUID, partition: int) -> str:
    """The key of an operator's wish for a partition."""
    return f"{PINS}{topic_id.hex}/{partition}"


def draining_key(broker_id: int) -> str:
    """The key that is there while a broker is to own nothing."""
    return f"{DRAINING}{broker_id}"


def broker_key(broker_id: int) -> str:
    """The key of a live broker's fact."""
    return f"{BROKERS}{broker_id}"


# --- values ----------------------------------------------------------------------------------


class StoredFact:
    """What all facts have in common: a dataclass whose fields are stored by their names."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Its stored bytes."""
        return encode_fact(shown_fields(self))


@dataclass(slots=True)
class TopicFact(StoredFact):
    """One topic: what was asked for when it was made, and its configuration overrides."""

    name: str
    id: UUID
    partition_count: int
    replication_factor: int
    configs: dict[str, str]
    created_ms: int
    deleted_ms: int | None = None
    """When it was deleted: the fact stays until no broker can accept records for it."""
    chain_count: int | None = None
    """The chains of so many partitions, from 0 on, were written before the topic named them: where
    one of these is missing, it was lost. None: made by a version that did not write them ahead."""
    ended_ms: int | None = None
    """When its deletion was complete, so that its name is free. The fact is kept for a time, since
    the version of a key begins again when it is deleted: a broker that has not heard of the
    deletion would take a later topic of this name, at the same version, for this one."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def is_deleted(self) -> bool:
        """Whether the topic was deleted: its name alone is left, until that is free."""
        return self.deleted_ms is not None

    @property
    def is_ended(self) -> bool:
        """Whether its deletion is complete: as if there were no fact, but for the key's version."""
        return self.ended_ms is not None

    def has_chain(self, partition: int) -> bool:
        """Whether the chain of a partition was written: then it must be there."""
        return partition < (self.chain_count or 0)

    @classmethod
    def decode(cls, value: bytes) -> TopicFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
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
    """One ledger in a partition's chain. What may be None is there once it is sealed, or tiered."""

    ledger: int
    base_offset: int
    leader_epoch: int
    first_timestamp_ms: int | None = None
    size_bytes: int | None = None
    end_offset: int | None = None
    max_timestamp_ms: int | None = None
    offloaded_ms: int | None = None
    """When a whole, verified copy of it lay in object storage."""
    local_deleted_ms: int | None = None
    """When the copy in object storage was left as the only one; its own bytes go after that."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def is_sealed(self) -> bool:
        """Whether it takes no more records, and the chain says where it ends."""
        return self.end_offset is not None

    @classmethod
    def read(cls, reader: FactReader) -> LedgerLink:
        """Take it out of one JSON object. Raises DataCorrupt."""
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
            reader.rest(),
        )
        if link.end_offset is not None and link.end_offset < link.base_offset:
            raise reader.corrupt(f"ends at {link.end_offset}, before its base {link.base_offset}")
        if link.offloaded_ms is not None and link.end_offset is None:
            raise reader.corrupt("is offloaded before it is sealed")
        if link.local_deleted_ms is not None and link.offloaded_ms is None:
            raise reader.corrupt("has no copy left: it was deleted, and never offloaded")
        return link


@dataclass(slots=True)
class PartitionFact(StoredFact):
    """One partition: where its log starts, its newest epoch, its ledgers from old to new."""

    log_start_offset: int = 0
    leader_epoch: int = 0
    ledgers: list[LedgerLink] = field(default_factory=list)
    companions: int | None = None
    """A bit for each kind of log that was begun beside this one: its chain must be there."""
    cleaned_offset: int | None = None
    """Before it, compaction has left one record of each key; None: it never ran."""
    unknown: dict[str, Any] = field(default_factory=dict)

    def has_companion(self, kind: CompanionKind) -> bool:
        """Whether a log of this kind was begun."""
        return bool((self.companions or 0) >> kind & 1)

    @property
    def end_offset_or_none(self) -> int | None:
        """The offset after the last record; None where a ledger may still grow, or none is left."""
        last = self.ledgers[-1].end_offset if self.ledgers else None
        return None if last is None else max(last, self.log_start_offset)

    @property
    def local_ledgers(self) -> set[int]:
        """The ledgers whose bytes are not in object storage alone."""
        return {link.ledger for link in self.ledgers if link.local_deleted_ms is None}

    @classmethod
    def decode(cls, value: bytes) -> PartitionFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("partition", value)
        fact = cls(
            reader.integer("log_start_offset", 0),
            reader.integer("leader_epoch", 0),
            [LedgerLink.read(item) for item in reader.objects("ledgers", "ledger link")],
            reader.integer_or_none("companions", 0),
            reader.integer_or_none("cleaned_offset", 0),
            reader.rest(),
        )
        for before, after in zip(fact.ledgers, fact.ledgers[1:], strict=False):
            if after.base_offset < (before.end_offset or before.base_offset):
                raise reader.corrupt(f"has ledger {after.ledger} overlapping {before.ledger}")
        return fact


@dataclass(slots=True)
class OwnerFact(StoredFact):
    """Which broker serves a partition, and for the how-many-eth time it changed hands.

    `incarnation` is one life of that broker: after a restart it is another, which owns nothing yet.
    """

    broker: int
    incarnation: str
    leader_epoch: int
    successor: int | None = None
    """The broker that it is about to be handed over to; None while that is not planned."""
    is_ready: int | None = None
    """1 when the successor has read ahead, and waits to be named."""
    ledger_ahead: int | None = None
    """The ledger that the successor has created for its epoch; in no chain yet."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> OwnerFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
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
    """Which broker an operator wants to serve a partition, while that broker lives."""

    broker: int
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> PinFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("pin", value)
        return cls(reader.integer("broker", 0), reader.rest())


@dataclass(slots=True)
class BrokerFact(StoredFact):
    """One live broker and where clients reach it."""

    id: int
    kafka_host: str
    kafka_port: int
    http_host: str
    http_port: int
    started_ms: int
    rack: str | None = None
    incarnation: str | None = None
    """Drawn anew at each start."""
    moves_version: int | None = None
    """Which moves by load it follows (`load_facts`); None: none, and then no broker may."""
    warm_version: int | None = None
    """How it gets ready for partitions that it is announced for; None: it does not."""
    is_leaving: int | None = None
    """1 while it stops: it hands over what it owns, and is to be given nothing."""
    endpoints: list[Endpoint] | None = None
    """All its addresses; None: `kafka_host` and `http_host` alone, of an earlier version."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> BrokerFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
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
            reader.rest(),
        )

    def kafka_address(self, listener: str) -> tuple[str, int]:
        """Where clients that came through this listener reach the broker; its first Kafka address
        where it has no such listener, as brokers of an earlier version have not."""
        for endpoint in self.endpoints or ():
            if endpoint.listener == listener and endpoint.face == KAFKA:
                return endpoint.host, endpoint.port
        return self.kafka_host, self.kafka_port


@dataclass(slots=True)
class ClusterFact(StoredFact):
    """The cluster's name for itself: 22 characters, as Kafka's clients expect."""

    id: str
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, value: bytes) -> ClusterFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("cluster id", value)
        return cls(reader.text("id"), reader.rest())


# --- what several brokers settle by compare-and-set ------------------------------------------


async def ensure_cluster_id(store: MetadataStore, randomness: Randomness) -> str:
    """The cluster's id; the first broker of all makes it.

    A copy lies beside the next producer id, and takes the place of an id that was lost. Raises
    FactMissing where there are topics and neither, MetadataUnavailable.
    """
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(CLUSTER_ID)
        if entry is not None:
            return ClusterFact.decode(entry.value).id
        counter = await _ProducerIdCounter.read(store)
        text = counter.unknown.get(_CLUSTER_COPY)
        if text is None and await store.list(TOPICS):
            raise FactMissing(
                f"{CLUSTER_ID} is missing, and there are topics: a new id would make every ledger"
                " another cluster's; restore it, from a back-up or a ledger's label `cluster`",
                key=CLUSTER_ID,
            )
        if text is None:
            text = base64.urlsafe_b64encode(randomness.uuid().bytes).rstrip(b"=").decode()
        try:
            await store.put(CLUSTER_ID, ClusterFact(text).encode(), ABSENT)
        except VersionConflict:
            continue
        return text
    raise MetadataUnavailable("the cluster id keeps changing: look at the metadata store")


async def copy_cluster_id(store: MetadataStore, cluster_id: str) -> None:
    """Keep a copy of the cluster's id, when no fact was refused. Raises MetadataUnavailable."""
    for _ in range(_ATTEMPTS_MAX):
        counter = await _ProducerIdCounter.read(store)
        if _CLUSTER_COPY in counter.unknown:
            return
        counter.unknown[_CLUSTER_COPY] = cluster_id
        with suppress(VersionConflict):
            await counter.put(store, counter.first)
    raise MetadataUnavailable("the producer ids' counter keeps changing: try again")


@dataclass(slots=True)
class _ProducerIdCounter:
    """The first producer id that was not given out yet; what else is stored there; its version."""

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
    """`count` producer ids, none below `least`, that no producer was or will be given.

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
    raise MetadataUnavailable(f"lost {_ATTEMPTS_MAX} races for a block of producer ids: try again")
