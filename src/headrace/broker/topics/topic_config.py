"""Topic configuration: names, defaults and validation.

Invariants: one table with Kafka's names and meanings. A setting that Kafka has and Headrace does
not use is accepted and stored (`is_inert`), so that tools which set it work; an unknown name is
refused. `flush.ms` is the one default that differs: 0, so acknowledged records are synced.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.coordination.timers.config import DAY_MS, HalfConfig
from headrace.errors import ConfigInvalid
from headrace.log.log_config import MIB
from headrace.records.attributes import DELAY_MS_MAX
from headrace.records.compression import CODEC_NAMES
from headrace.storage.ledger import Copies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# ConfigDef.Type of DescribeConfigs v3. Do not change: on the wire.
BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)


@dataclass(slots=True, frozen=True)
class ConfigDefinition:
    """One setting: its type on the wire, default and validation."""

    name: str
    type: int
    default: str
    documentation: str
    check: Callable[[str], bool]
    is_inert: bool = False

    def accept(self, value: str | None) -> None:
        """Raise ConfigInvalid if `value` is none that this setting can have."""
        if value is not None and self.check(value):
            return
        shown = None if value is None else value[:100]
        expected = f"expected {self.check}. " if isinstance(self.check, (Between, OneOf)) else ""
        raise ConfigInvalid(f"{self.name}={shown!r} is not valid: {expected}{self.documentation}")


_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Between:
    """Accepts integers from `low` to `high`."""

    low: int
    high: int

    def __call__(self, text: str) -> bool:
        """Whether `text` is one of them."""
        # Python accepts `1_000`, blanks and the digits of other scripts; other tools do not.
        return bool(_INTEGER.fullmatch(text)) and self.low <= int(text) <= self.high

    def __str__(self) -> str:
        return f"an integer from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """Accepts these words."""

    words: tuple[str, ...]

    def __call__(self, text: str) -> bool:
        """Whether `text` is one of them."""
        return text in self.words

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


_THREE = re.compile(r"([0-9]{1,3}),([0-9]{1,3}),([0-9]{1,3})")
ENSEMBLE_MAX = 32
"""A sanity limit: each bookie of a ledger is a connection of every broker."""
QUORUM = "headrace.quorum"
ATTRIBUTES = "headrace.message.attributes"
MESSAGE_TYPE = "headrace.message.type"
AUTO, NORMAL, MIXED, LITE = "auto", "normal", "mixed", "lite"
LITE_EXPIRATION = "headrace.lite.expiration.ms"
LITE_MAX = "headrace.lite.topics.max"
ATTRIBUTE_TYPES = ("fifo", "delay", "transaction", "priority", MIXED)
"""The message types that need queue attributes."""
DEAD_LETTERS = "errors.deadletterqueue.group.enable"
VALIDATION = "headrace.record.validation"
ONE_COPY = "1,1,1"
_CLEANUPS = 2
"""Each policy once: an unbounded list would be stored with the topic."""


def _fraction(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= 1.0
    except ValueError:
        return False


def _cleanup(text: str) -> bool:
    parts = [part.strip() for part in text.split(",")]
    return len(parts) <= _CLEANUPS and set(parts) <= {"delete", "compact"}


def _quorum(text: str) -> bool:
    return parse_copies(text) is not None


def parse_copies(text: str) -> Copies | None:
    """Parse `E,W,A`; None if it is not valid."""
    found = _THREE.fullmatch(text)
    if found is None:
        return None
    ensemble, write, ack = map(int, found.groups())
    fits = ENSEMBLE_MAX >= ensemble >= write >= ack >= 1
    return Copies(ensemble, write, ack) if fits else None


_boolean = OneOf(("true", "false"))
_COMPRESSIONS = ("producer", "uncompressed", *(n for n in CODEC_NAMES if n != "none"))

_USED = (
    ConfigDefinition(
        "cleanup.policy",
        LIST,
        "delete",
        "delete: drop old ledgers; compact: keep the latest record of each key; or both.",
        _cleanup,
    ),
    ConfigDefinition(
        "compression.type",
        STRING,
        "producer",
        "The compression codec of stored batches; producer: keep the producer's codec.",
        OneOf((*_COMPRESSIONS,)),
    ),
    ConfigDefinition(
        "delete.retention.ms",
        LONG,
        "86400000",
        "With compaction: how long tombstones and transaction markers are retained after "
        "the first round that retained them.",
        Between(0, INT64_MAX),
    ),
    ConfigDefinition(
        DEAD_LETTERS,
        BOOLEAN,
        "true",
        "Whether share groups may use the topic as their dead letter topic (KIP-1191). Kafka's "
        "default is false.",
        _boolean,
    ),
    ConfigDefinition(
        "flush.ms",
        LONG,
        "0",
        "0: sync every record to disk before acknowledging it. Larger: acknowledge "
        "immediately and sync within this time; a power failure may then lose "
        "records acknowledged during that time.",
        Between(0, INT64_MAX),
    ),
    ConfigDefinition(
        ATTRIBUTES,
        STRING,
        "refuse",
        "read (or true): queue attributes in record headers (headrace-delay, headrace-priority and "
        "others) take effect; this requires decompressing batches. refuse: records that ask for an "
        "effect are refused; with headrace.record.validation=header, those of Kafka clients are "
        "not looked at. ignore (or false): records of Kafka clients are stored with them, without "
        "effect, such as copies made by a mirror; HTTP refuses such records.",
        OneOf(("read", "refuse", "ignore", "true", "false")),
    ),
    ConfigDefinition(
        "headrace.message.ttl.ms",
        LONG,
        "-1",
        "Share groups skip or dead-letter (headrace.share.expired) records older "
        "than this; -1: never. An earlier headrace-expire-at of a record takes "
        "precedence.",
        Between(-1, INT64_MAX),
    ),
    ConfigDefinition(
        MESSAGE_TYPE,
        STRING,
        AUTO,
        "What RocketMQ's clients may send to the topic: normal, fifo, delay, transaction or "
        "priority messages, or mixed: all of them; or lite: messages of lite topics, of which it is"
        " the parent. Every type but normal and lite has queue attributes take "
        "effect, as with headrace.message.attributes=read. auto: mixed if the topic reads queue "
        "attributes, otherwise normal. Other protocols' clients are not restricted by it.",
        OneOf((AUTO, NORMAL, LITE, *ATTRIBUTE_TYPES)),
    ),
    ConfigDefinition(
        LITE_EXPIRATION,
        LONG,
        "-1",
        "A lite topic of this topic to which nothing was sent for this long expires: groups get no"
        " more of its messages, consumed or not. Other consumers of the topic still do. -1: never.",
        Between(-1, INT64_MAX),
    ),
    ConfigDefinition(
        LITE_MAX,
        INT,
        "100000",
        "With headrace.message.type=lite: how many lite topics a partition may have, each of "
        "300 bytes of memory or more. Beyond that, records of new ones are refused, and those that"
        " are there go on. Checked once a lite consumer has read from the partition's owner.",
        Between(1, INT32_MAX),
    ),
    ConfigDefinition(
        VALIDATION,
        STRING,
        "full",
        "What is checked before a batch is stored. full: that its records can be decoded and agree"
        " with its header, which requires decompressing it; a wrong maximum timestamp is corrected."
        " header: the header and CRC alone, so a faulty producer can store records that consumers "
        "cannot read, or that are deleted too early, or whose queue attributes have no effect.",
        OneOf(("full", "header")),
    ),
    ConfigDefinition(
        "headrace.table",
        STRING,
        "none",
        "append: `headrace pipeline tables` keeps the topic's records in an Iceberg table; upsert: "
        "the latest record of each key, for compacted topics. See `headrace table`.",
        OneOf(("none", "append", "upsert")),
    ),
    ConfigDefinition(
        "headrace.table.replaces.objects",
        BOOLEAN,
        "false",
        "With headrace.table=append and remote.storage.enable: object storage gives up records that"
        " the topic's table has, and consumers get them from the table's files (headrace serve "
        "--tables). Who deletes files of the table then deletes records of the topic.",
        _boolean,
    ),
    ConfigDefinition(
        "headrace.table.value",
        STRING,
        "binary",
        "What the table's column value is: bytes, or columns by the latest schema of the topic's "
        "subject in the service's schema registry.",
        OneOf(("binary", "avro", "json", "protobuf")),
    ),
    ConfigDefinition(
        QUORUM,
        STRING,
        ONE_COPY,
        "With BookKeeper: E,W,A, that is ensemble size, write quorum and ack quorum "
        "of a ledger; E >= W >= A >= 1. A change applies to the next ledger. "
        "Default: the broker's --quorum.",
        _quorum,
    ),
    ConfigDefinition(
        "headrace.delay.max.ms",
        LONG,
        str(10 * 366 * DAY_MS),
        "The maximum delivery delay of a record (headrace-deliver-at, "
        "headrace-delay); longer delays are rejected.",
        Between(0, DELAY_MS_MAX),
    ),
    ConfigDefinition(
        "headrace.half.audit.ms",
        LONG,
        str(HalfConfig().audit_ms),
        "How long the outcome of a half message is retained for listing.",
        Between(0, DELAY_MS_MAX),
    ),
    ConfigDefinition(
        "headrace.half.check.first.ms",
        LONG,
        str(HalfConfig().first_check_ms),
        "The delay between the arrival of a half message and its first check-back.",
        Between(1, DELAY_MS_MAX),
    ),
    ConfigDefinition(
        "headrace.half.check.interval.ms",
        LONG,
        str(HalfConfig().check_interval_ms),
        "The interval between check-backs of a half message.",
        Between(1, DELAY_MS_MAX),
    ),
    ConfigDefinition(
        "headrace.half.check.max",
        INT,
        str(HalfConfig().checks_max),
        "The number of unanswered check-backs after which a half message is rolled back.",
        Between(1, 10_000),
    ),
    ConfigDefinition(
        "local.retention.bytes",
        LONG,
        "-2",
        "With remote.storage.enable: drop the oldest local copies of offloaded "
        "ledgers while those of a partition exceed this size; -1: never; -2: as "
        "retention.bytes.",
        Between(-2, INT64_MAX),
    ),
    ConfigDefinition(
        "local.retention.ms",
        LONG,
        "-2",
        "With remote.storage.enable: drop local copies of offloaded ledgers whose newest record is"
        " older than this; -1: never; -2: as retention.ms.",
        Between(-2, INT64_MAX),
    ),
    ConfigDefinition(
        "max.compaction.lag.ms",
        LONG,
        str(INT64_MAX),
        "With compaction: the maximum time until a record is compacted, regardless "
        "of the dirty ratio.",
        Between(1, INT64_MAX),
    ),
    ConfigDefinition(
        "max.message.bytes",
        INT,
        str(MIB + 12),
        "The maximum size of a stored record batch.",
        Between(0, INT32_MAX),
    ),
    ConfigDefinition(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whether records carry the producer's timestamp or the broker's append time.",
        OneOf(("CreateTime", "LogAppendTime")),
    ),
    ConfigDefinition(
        "message.timestamp.before.max.ms",
        LONG,
        str(INT64_MAX),
        "How far in the past a record's timestamp may be.",
        Between(0, INT64_MAX),
    ),
    ConfigDefinition(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "How far in the future a record's timestamp may be.",
        Between(0, INT64_MAX),
    ),
    ConfigDefinition(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "With compaction: a round starts when more than this fraction of the bytes is uncompacted.",
        _fraction,
    ),
    ConfigDefinition(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "With compaction: a ledger is not compacted until its newest record is older than this.",
        Between(0, INT64_MAX),
    ),
    ConfigDefinition(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        "Copy sealed ledgers to the broker's object storage (headrace serve --objects).",
        _boolean,
    ),
    ConfigDefinition(
        "retention.bytes",
        LONG,
        "-1",
        "Drop the oldest ledgers of a partition while its size exceeds this; -1: never.",
        Between(-1, INT64_MAX),
    ),
    ConfigDefinition(
        "retention.ms",
        LONG,
        str(7 * 24 * 3600 * 1000),
        "Drop ledgers whose newest record is older than this; -1: never.",
        Between(-1, INT64_MAX),
    ),
    ConfigDefinition(
        "segment.bytes",
        INT,
        str(1024 * MIB),
        "Start a new ledger when the open one reaches this size.",
        Between(14, INT32_MAX),
    ),
    ConfigDefinition(
        "segment.ms",
        LONG,
        str(7 * 24 * 3600 * 1000),
        "Start a new ledger when the open one reaches this age.",
        Between(1, INT64_MAX),
    ),
)


def _inert(name: str, kind: int, default: str, check: Callable[[str], bool]) -> ConfigDefinition:
    return ConfigDefinition(
        name,
        kind,
        default,
        "Accepted for compatibility with Kafka's tools; has no effect.",
        check,
        True,
    )


_LONG = Between(0, INT64_MAX)
_INERT = (
    _inert("compression.gzip.level", INT, "-1", Between(-1, 9)),
    _inert("compression.lz4.level", INT, "9", Between(1, 17)),
    _inert("compression.zstd.level", INT, "3", Between(-131072, 22)),
    _inert("file.delete.delay.ms", LONG, "60000", _LONG),
    _inert("flush.messages", LONG, "1", Between(1, INT64_MAX)),
    _inert("index.interval.bytes", INT, "4096", Between(0, INT32_MAX)),
    _inert("min.insync.replicas", INT, "1", Between(1, INT32_MAX)),
    _inert("preallocate", BOOLEAN, "false", _boolean),
    _inert("segment.index.bytes", INT, "10485760", Between(4, INT32_MAX)),
    _inert("segment.jitter.ms", LONG, "0", _LONG),
    _inert("unclean.leader.election.enable", BOOLEAN, "false", _boolean),
)
DEFINITIONS: Mapping[str, ConfigDefinition] = {
    definition.name: definition
    for definition in sorted((*_USED, *_INERT), key=lambda definition: definition.name)
}


def likely(name: str, known: Collection[str]) -> str:
    """What a user meant by the name of a setting that there is not, as a question, or where all are
    listed."""
    ours = f"headrace.{name}"
    near = [ours] if ours in known else difflib.get_close_matches(name[:100], known, 1, 0.8)
    return f"did you mean {near[0]}?" if near else "docs/reference/settings.md lists all settings"


def check_config(name: str, value: str | None) -> None:
    """Raise ConfigInvalid unless `name` exists and accepts `value`."""
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise ConfigInvalid(
            f"unknown topic configuration {name[:100]!r}: {likely(name, DEFINITIONS)}"
        )
    definition.accept(value)
