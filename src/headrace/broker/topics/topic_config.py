"""The configuration of topics: names, defaults and checks.

Invariants: one table, Kafka's names and meanings. A name that Kafka knows and Headrace has
no use for is taken and kept (`is_inert`), so that tools which set it work; an unknown name is
refused. `flush.ms` is the one default that differs: 0, so what is acknowledged is synced.
"""

from __future__ import annotations

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
    from collections.abc import Callable, Mapping

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

# ConfigDef.Type of DescribeConfigs v3. Do not change: on the wire.
BOOLEAN, STRING, INT, SHORT, LONG, DOUBLE, LIST, CLASS, PASSWORD = range(1, 10)


@dataclass(slots=True, frozen=True)
class ConfigDefinition:
    """One setting: its type on the wire, default and check."""

    name: str
    type: int
    default: str
    documentation: str
    check: Callable[[str], bool]
    is_inert: bool = False


_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


def _integer(low: int, high: int) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        # Python would take `1_000`, blanks and the digits of other scripts; other tools would not.
        return bool(_INTEGER.fullmatch(text)) and low <= int(text) <= high

    return check


_THREE = re.compile(r"([0-9]{1,3}),([0-9]{1,3}),([0-9]{1,3})")
ENSEMBLE_MAX = 32
"""More bookies for one ledger than anybody has asked for; each is a connection of every broker."""
QUORUM = "headrace.quorum"
ATTRIBUTES = "headrace.message.attributes"
ONE_COPY = "1,1,1"
_CLEANUPS = 2
"""Each once: a list without end would be kept with the topic."""


def _fraction(text: str) -> bool:
    try:
        return 0.0 <= float(text) <= 1.0
    except ValueError:
        return False


def _one_of(*values: str) -> Callable[[str], bool]:
    return lambda text: text in values


def _cleanup(text: str) -> bool:
    parts = [part.strip() for part in text.split(",")]
    return len(parts) <= _CLEANUPS and set(parts) <= {"delete", "compact"}


def _quorum(text: str) -> bool:
    return parse_copies(text) is not None


def parse_copies(text: str) -> Copies | None:
    """What `E,W,A` says; None where it says nothing that can be."""
    found = _THREE.fullmatch(text)
    if found is None:
        return None
    ensemble, write, ack = map(int, found.groups())
    fits = ENSEMBLE_MAX >= ensemble >= write >= ack >= 1
    return Copies(ensemble, write, ack) if fits else None


_boolean = _one_of("true", "false")
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
        "The codec in which batches are stored; producer: as they come.",
        _one_of(*_COMPRESSIONS),
    ),
    ConfigDefinition(
        "delete.retention.ms",
        LONG,
        "86400000",
        "With compaction: how long tombstones and transaction markers stay after the first round"
        " that has kept them.",
        _integer(0, INT64_MAX),
    ),
    ConfigDefinition(
        "flush.ms",
        LONG,
        "0",
        "0: every acknowledged record is synced to disk first. More: acknowledge at once, and sync"
        " within this time; a power loss may then cost that much.",
        _integer(0, INT64_MAX),
    ),
    ConfigDefinition(
        ATTRIBUTES,
        BOOLEAN,
        "false",
        "Read queue attributes from record headers (headrace-delay, headrace-priority and others);"
        " batches are opened for it. false: batches are stored unopened, and these headers have no"
        " effect.",
        _boolean,
    ),
    ConfigDefinition(
        "headrace.message.ttl.ms",
        LONG,
        "-1",
        "Share groups skip or dead-letter (headrace.share.expired) records older than this; -1:"
        " never. headrace-expire-at of a record counts where it comes first.",
        _integer(-1, INT64_MAX),
    ),
    ConfigDefinition(
        QUORUM,
        STRING,
        ONE_COPY,
        "Over BookKeeper: E,W,A, the bookies a ledger is spread over, those that get each entry,"
        " and how many of these must have synced it before it is acknowledged; E >= W >= A >= 1."
        " It counts from the next ledger on. By default the broker's --quorum.",
        _quorum,
    ),
    ConfigDefinition(
        "headrace.delay.max.ms",
        LONG,
        str(10 * 366 * DAY_MS),
        "How far ahead a record may be due (headrace-deliver-at, headrace-delay); a later one is"
        " refused.",
        _integer(0, DELAY_MS_MAX),
    ),
    ConfigDefinition(
        "headrace.half.audit.ms",
        LONG,
        str(HalfConfig().audit_ms),
        "How long the outcome of a half message can be listed.",
        _integer(0, DELAY_MS_MAX),
    ),
    ConfigDefinition(
        "headrace.half.check.first.ms",
        LONG,
        str(HalfConfig().first_check_ms),
        "How long after its arrival a half message's producer group is first asked about it.",
        _integer(1, DELAY_MS_MAX),
    ),
    ConfigDefinition(
        "headrace.half.check.interval.ms",
        LONG,
        str(HalfConfig().check_interval_ms),
        "The time between two checks of a half message.",
        _integer(1, DELAY_MS_MAX),
    ),
    ConfigDefinition(
        "headrace.half.check.max",
        INT,
        str(HalfConfig().checks_max),
        "After so many checks without an answer a half message is rolled back.",
        _integer(1, 10_000),
    ),
    ConfigDefinition(
        "local.retention.bytes",
        LONG,
        "-2",
        "With remote.storage.enable: drop the oldest local copies of offloaded ledgers while a"
        " partition holds more than this here; -1: never; -2: as retention.bytes.",
        _integer(-2, INT64_MAX),
    ),
    ConfigDefinition(
        "local.retention.ms",
        LONG,
        "-2",
        "With remote.storage.enable: drop local copies of offloaded ledgers whose newest record is"
        " older than this; -1: never; -2: as retention.ms.",
        _integer(-2, INT64_MAX),
    ),
    ConfigDefinition(
        "max.compaction.lag.ms",
        LONG,
        str(INT64_MAX),
        "With compaction: a record is compacted after this time at the latest, however few are.",
        _integer(1, INT64_MAX),
    ),
    ConfigDefinition(
        "max.message.bytes",
        INT,
        str(MIB + 12),
        "The largest record batch, as it is stored.",
        _integer(0, INT32_MAX),
    ),
    ConfigDefinition(
        "message.timestamp.type",
        STRING,
        "CreateTime",
        "Whose clock gives a record its timestamp: the producer's, or the broker's.",
        _one_of("CreateTime", "LogAppendTime"),
    ),
    ConfigDefinition(
        "message.timestamp.before.max.ms",
        LONG,
        str(INT64_MAX),
        "How far in the past a timestamp may lie.",
        _integer(0, INT64_MAX),
    ),
    ConfigDefinition(
        "message.timestamp.after.max.ms",
        LONG,
        "3600000",
        "How far in the future a timestamp may lie.",
        _integer(0, INT64_MAX),
    ),
    ConfigDefinition(
        "min.cleanable.dirty.ratio",
        DOUBLE,
        "0.5",
        "With compaction: a round begins when more than this part of the bytes is uncompacted.",
        _fraction,
    ),
    ConfigDefinition(
        "min.compaction.lag.ms",
        LONG,
        "0",
        "With compaction: a ledger stays as it is until its newest record is older than this.",
        _integer(0, INT64_MAX),
    ),
    ConfigDefinition(
        "remote.storage.enable",
        BOOLEAN,
        "false",
        "Copy closed ledgers to the broker's object storage (headrace serve --objects).",
        _boolean,
    ),
    ConfigDefinition(
        "retention.bytes",
        LONG,
        "-1",
        "Drop the oldest ledgers of a partition while it holds more than this; -1: never.",
        _integer(-1, INT64_MAX),
    ),
    ConfigDefinition(
        "retention.ms",
        LONG,
        str(7 * 24 * 3600 * 1000),
        "Drop ledgers whose newest record is older than this; -1: never.",
        _integer(-1, INT64_MAX),
    ),
    ConfigDefinition(
        "segment.bytes",
        INT,
        str(1024 * MIB),
        "Begin a new ledger when one holds this much.",
        _integer(14, INT32_MAX),
    ),
    ConfigDefinition(
        "segment.ms",
        LONG,
        str(7 * 24 * 3600 * 1000),
        "Begin a new ledger when one is this old.",
        _integer(1, INT64_MAX),
    ),
)


def _inert(name: str, kind: int, default: str, check: Callable[[str], bool]) -> ConfigDefinition:
    return ConfigDefinition(name, kind, default, "Kept for tools; no effect here.", check, True)


_LONG = _integer(0, INT64_MAX)
_INERT = (
    _inert("compression.gzip.level", INT, "-1", _integer(-1, 9)),
    _inert("compression.lz4.level", INT, "9", _integer(1, 17)),
    _inert("compression.zstd.level", INT, "3", _integer(-131072, 22)),
    _inert("file.delete.delay.ms", LONG, "60000", _LONG),
    _inert("flush.messages", LONG, "1", _integer(1, INT64_MAX)),
    _inert("index.interval.bytes", INT, "4096", _integer(0, INT32_MAX)),
    _inert("min.insync.replicas", INT, "1", _integer(1, INT32_MAX)),
    _inert("preallocate", BOOLEAN, "false", _boolean),
    _inert("segment.index.bytes", INT, "10485760", _integer(4, INT32_MAX)),
    _inert("segment.jitter.ms", LONG, "0", _LONG),
    _inert("unclean.leader.election.enable", BOOLEAN, "false", _boolean),
)
DEFINITIONS: Mapping[str, ConfigDefinition] = {
    definition.name: definition
    for definition in sorted((*_USED, *_INERT), key=lambda definition: definition.name)
}


def check_config(name: str, value: str | None) -> None:
    """Raises ConfigInvalid unless `name` exists and takes `value`."""
    definition = DEFINITIONS.get(name)
    if definition is None:
        raise ConfigInvalid(
            f"unknown topic configuration {name[:100]!r}: see `headrace topic describe` for those"
            " there are"
        )
    if value is None or not definition.check(value):
        shown = None if value is None else value[:100]
        raise ConfigInvalid(f"{name}={shown!r} is out of range: {definition.documentation}")
