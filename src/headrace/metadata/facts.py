"""The typed values of the metadata store, their JSON and their keys.

Rules of the room: knows names and shapes, not who uses them. A fact is a value: read it, change
a copy (`dataclasses.replace`), put it back with the version that was read. Do not change: stored.

    /topics/<name>                     TopicFact
    /partitions/<topic id, hex>/<n>    PartitionFact, with its chain of ledgers
    /brokers/<id>                      BrokerFact (ephemeral: there while the broker lives)
    /config/broker                     BrokerConfigFact (cluster-wide dynamic settings)
    /cluster/id                        ClusterFact
    /producer-ids/next                 the first producer id that nobody has been given

How it works: a JSON object with `v`, the version of its shape. Decoding is strict about fields
it knows and keeps those it does not (`unknown`), so an older broker that rewrites a fact does not
lose what a newer one added. A change that old brokers must not overlook raises `v`.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.errors import DataCorrupt, FormatUnsupported, MetadataUnavailable, VersionConflict
from headrace.metadata.store import ABSENT, MetadataStore

if TYPE_CHECKING:
    from headrace.runtime.randomness import Randomness

FACT_VERSION = 1
TOPICS = "/topics/"
PARTITIONS = "/partitions/"
BROKERS = "/brokers/"
CLUSTER_ID = "/cluster/id"
BROKER_CONFIG = "/config/broker"
PRODUCER_IDS_NEXT = "/producer-ids/next"

_ATTEMPTS_MAX = 1_000  # of a compare-and-set: each loss means that a rival won, so this is ample
_INT64_MAX = (1 << 63) - 1
_Json = dict[str, Any]


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


def partition_of_key(key: str) -> tuple[UUID, int]:
    """The topic id and partition in a key under PARTITIONS. Raises DataCorrupt on another key."""
    topic_id, _, partition = key.removeprefix(PARTITIONS).partition("/")
    try:
        return UUID(hex=topic_id), int(partition)
    except ValueError as error:
        raise DataCorrupt(f"{key!r} is not the key of a partition: remove it", key=key) from error


def broker_key(broker_id: int) -> str:
    """The key of a live broker's fact."""
    return f"{BROKERS}{broker_id}"


# --- values ----------------------------------------------------------------------------------


class _Reader:
    """Takes the known fields out of one decoded JSON object, strictly."""

    __slots__ = ("_fields", "_what")

    def __init__(self, what: str, fields: Any) -> None:
        self._what = what
        if not isinstance(fields, dict):
            raise self.corrupt("is no JSON object")
        self._fields: _Json = fields

    @classmethod
    def parse(cls, what: str, value: bytes) -> _Reader:
        """The reader of a whole stored value, its `v` checked."""
        try:
            reader = cls(what, json.loads(value))
        except (ValueError, RecursionError) as error:
            raise DataCorrupt(
                f"the stored {what} is no JSON ({error}): restore the metadata from a backup",
                fact=what,
            ) from error
        version = reader.integer("v", 1)
        if version > FACT_VERSION:
            raise FormatUnsupported(
                f"the stored {what} has version {version}, this Headrace reads up to"
                f" {FACT_VERSION}: start a newer one",
                fact=what,
                version=version,
            )
        return reader

    def corrupt(self, problem: str) -> DataCorrupt:
        """The error to raise."""
        return DataCorrupt(
            f"the stored {self._what} {problem}: restore the metadata from a backup",
            fact=self._what,
        )

    def take(self, name: str) -> Any:
        """The field, which must be there."""
        if name not in self._fields:
            raise self.corrupt(f"lacks {name!r}")
        return self._fields.pop(name)

    def integer(self, name: str, least: int) -> int:
        """An integer of at least `least`."""
        value = self.take(name)
        if type(value) is not int or not least <= value <= _INT64_MAX:
            raise self.corrupt(f"has {name!r} {value!r}, not an integer from {least}")
        return value

    def integer_or_none(self, name: str, least: int) -> int | None:
        """An integer of at least `least`, or null, or nothing at all."""
        if self._fields.get(name) is None:
            self._fields.pop(name, None)
            return None
        return self.integer(name, least)

    def text(self, name: str) -> str:
        """A string."""
        value = self.take(name)
        if not isinstance(value, str):
            raise self.corrupt(f"has {name!r} {value!r}, not a string")
        return value

    def text_or_none(self, name: str) -> str | None:
        """A string, or null, or nothing at all."""
        if self._fields.get(name) is None:
            self._fields.pop(name, None)
            return None
        return self.text(name)

    def texts(self, name: str) -> dict[str, str]:
        """An object of strings."""
        value = self.take(name)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self.corrupt(f"has {name!r} {value!r}, not an object of strings")
        return value

    def objects(self, name: str, what: str) -> list[_Reader]:
        """A list of objects."""
        value = self.take(name)
        if not isinstance(value, list):
            raise self.corrupt(f"has {name!r} {value!r}, not a list")
        return [_Reader(what, item) for item in value]

    def rest(self) -> _Json:
        """The fields that nobody took."""
        return self._fields


def _shown(fact: Any) -> _Json:
    """A fact's fields by their names, as JSON takes them. So a field's name is stored, too."""
    shown: _Json = {}
    for item in dataclass_fields(fact):
        value = getattr(fact, item.name)
        if isinstance(value, UUID):
            value = value.hex
        elif isinstance(value, list):
            value = [_shown(item) for item in value]
        if value is not None and item.name != "unknown":
            shown[item.name] = value
    return shown | dict(fact.unknown)


def _encode(fields: _Json) -> bytes:
    return json.dumps({"v": FACT_VERSION, **fields}, separators=(",", ":")).encode()


@dataclass(slots=True)
class TopicFact:
    """One topic: what was asked for when it was made, and its configuration overrides."""

    name: str
    id: UUID
    partition_count: int
    replication_factor: int
    configs: dict[str, str]
    created_ms: int
    unknown: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Its stored bytes."""
        return _encode(_shown(self))

    @classmethod
    def decode(cls, value: bytes) -> TopicFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = _Reader.parse("topic", value)
        text = reader.text("id")
        try:
            topic_id = UUID(hex=text)
        except ValueError as error:
            raise reader.corrupt(f"has the impossible id {text!r}") from error
        return cls(
            reader.text("name"),
            topic_id,
            reader.integer("partition_count", 1),
            reader.integer("replication_factor", 1),
            reader.texts("configs"),
            reader.integer("created_ms", 0),
            reader.rest(),
        )


@dataclass(slots=True)
class LedgerLink:
    """One ledger in a partition's chain; the last three fields are there once it is sealed."""

    ledger: int
    base_offset: int
    leader_epoch: int
    first_timestamp_ms: int | None = None
    size_bytes: int | None = None
    end_offset: int | None = None
    max_timestamp_ms: int | None = None
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def is_sealed(self) -> bool:
        """Whether it takes no more records, and the chain says where it ends."""
        return self.end_offset is not None

    @classmethod
    def read(cls, reader: _Reader) -> LedgerLink:
        """Take it out of one JSON object. Raises DataCorrupt."""
        link = cls(
            reader.integer("ledger", 0),
            reader.integer("base_offset", 0),
            reader.integer("leader_epoch", 0),
            reader.integer_or_none("first_timestamp_ms", -1),
            reader.integer_or_none("size_bytes", 0),
            reader.integer_or_none("end_offset", 0),
            reader.integer_or_none("max_timestamp_ms", -1),
            reader.rest(),
        )
        if link.end_offset is not None and link.end_offset < link.base_offset:
            raise reader.corrupt(f"ends at {link.end_offset}, before its base {link.base_offset}")
        return link


@dataclass(slots=True)
class PartitionFact:
    """One partition: where its log starts, its newest epoch, its ledgers from old to new."""

    log_start_offset: int = 0
    leader_epoch: int = 0
    ledgers: list[LedgerLink] = field(default_factory=list)
    unknown: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Its stored bytes."""
        return _encode(_shown(self))

    @classmethod
    def decode(cls, value: bytes) -> PartitionFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = _Reader.parse("partition", value)
        fact = cls(
            reader.integer("log_start_offset", 0),
            reader.integer("leader_epoch", 0),
            [LedgerLink.read(item) for item in reader.objects("ledgers", "ledger link")],
            reader.rest(),
        )
        for before, after in zip(fact.ledgers, fact.ledgers[1:], strict=False):
            if after.base_offset < (before.end_offset or before.base_offset):
                raise reader.corrupt(f"has ledger {after.ledger} overlapping {before.ledger}")
        return fact


@dataclass(slots=True)
class BrokerFact:
    """One live broker and where clients reach it."""

    id: int
    kafka_host: str
    kafka_port: int
    http_host: str
    http_port: int
    started_ms: int
    rack: str | None = None
    unknown: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Its stored bytes."""
        return _encode(_shown(self))

    @classmethod
    def decode(cls, value: bytes) -> BrokerFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = _Reader.parse("broker", value)
        return cls(
            reader.integer("id", 0),
            reader.text("kafka_host"),
            reader.integer("kafka_port", 0),
            reader.text("http_host"),
            reader.integer("http_port", 0),
            reader.integer("started_ms", 0),
            reader.text_or_none("rack"),
            reader.rest(),
        )


@dataclass(slots=True)
class BrokerConfigFact:
    """Settings of all brokers that were changed while they ran."""

    configs: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Its stored bytes."""
        return _encode(_shown(self))

    @classmethod
    def decode(cls, value: bytes) -> BrokerConfigFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = _Reader.parse("broker configuration", value)
        return cls(reader.texts("configs"), reader.rest())


@dataclass(slots=True)
class ClusterFact:
    """The cluster's name for itself: 22 characters, as Kafka's clients expect."""

    id: str
    unknown: dict[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Its stored bytes."""
        return _encode(_shown(self))

    @classmethod
    def decode(cls, value: bytes) -> ClusterFact:
        """Read stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = _Reader.parse("cluster id", value)
        return cls(reader.text("id"), reader.rest())


# --- what several brokers settle by compare-and-set ------------------------------------------


async def ensure_cluster_id(store: MetadataStore, randomness: Randomness) -> str:
    """The cluster's id; the first broker of all makes it. Raises MetadataUnavailable."""
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(CLUSTER_ID)
        if entry is not None:
            return ClusterFact.decode(entry.value).id
        text = base64.urlsafe_b64encode(randomness.uuid().bytes).rstrip(b"=").decode()
        try:
            await store.put(CLUSTER_ID, ClusterFact(text).encode(), ABSENT)
        except VersionConflict:
            continue
        return text
    raise MetadataUnavailable("the cluster id keeps changing: look at the metadata store")


async def allocate_producer_ids(store: MetadataStore, count: int) -> range:
    """`count` producer ids that nobody was or will be given. Raises MetadataUnavailable."""
    assert count >= 1, count
    for _ in range(_ATTEMPTS_MAX):
        entry = await store.get(PRODUCER_IDS_NEXT)
        first, version, unknown = 0, ABSENT, _Json()
        if entry is not None:
            reader = _Reader.parse("next producer id", entry.value)
            first, version, unknown = reader.integer("next", 0), entry.version, reader.rest()
        try:
            value = _encode({"next": first + count} | unknown)
            await store.put(PRODUCER_IDS_NEXT, value, version)
        except VersionConflict:
            continue
        return range(first, first + count)
    raise MetadataUnavailable(f"lost {_ATTEMPTS_MAX} races for a block of producer ids: try again")
