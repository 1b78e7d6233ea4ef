"""The configuration of topics: names, defaults, checks, and what they mean to a log.

Invariants: one table, Kafka's names and meanings. A name that Kafka knows and Headrace has
no use for is taken and kept (`is_inert`), so that tools which set it work; an unknown name is
refused. `flush.ms` is the one default that differs: 0, so what is acknowledged is synced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.coordination.timers.config import DAY_MS, HalfConfig
from headrace.errors import ConfigInvalid
from headrace.log.log_config import MIB, LogConfig
from headrace.log.tiering import SAME_AS_RETENTION
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
    return _copies(text) is not None


def _copies(text: str) -> Copies | None:
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


def check_tiering(
    configs: Mapping[str, str], before: Mapping[str, str], *, has_objects: bool
) -> None:
    """Raises ConfigInvalid where a topic's overrides contradict each other about tiers (KIP-405).

    `before` holds the overrides of now: what is on already stays on, whatever the broker has.
    """
    if not _is_remote(configs):
        return
    if not has_objects and not _is_remote(before):
        raise ConfigInvalid(
            "remote.storage.enable=true is impossible: this broker has no object storage; start it"
            " with --objects"
        )
    config = log_config(configs)
    for name, local, whole in (
        ("ms", config.local_retention_ms, config.retention_ms),
        ("bytes", config.local_retention_bytes, config.retention_bytes),
    ):
        if local != SAME_AS_RETENTION and whole != -1 and (local == -1 or local > whole):
            raise ConfigInvalid(
                f"local.retention.{name}={local} is more than retention.{name}={whole}: a local"
                " copy does not outlive its ledger; lower the one or raise the other"
            )


def check_quorum(
    configs: Mapping[str, str], before: Mapping[str, str], *, is_replicated: bool
) -> None:
    """Raises ConfigInvalid where copies are asked of a broker that keeps one of each ledger.

    `before` as for `check_tiering`.
    """
    asked = configs.get(QUORUM, ONE_COPY)
    if not is_replicated and asked not in {ONE_COPY, before.get(QUORUM)}:
        raise ConfigInvalid(
            f"{QUORUM}={asked} is impossible: this broker keeps its ledgers in files of its own,"
            " one copy of each; copies take BookKeeper (headrace serve --zookeeper)"
        )


def copies_of(configs: Mapping[str, str]) -> Copies | None:
    """How a topic wants its ledgers kept; None where it does not say."""
    return _copies(configs.get(QUORUM, ""))


def _is_remote(configs: Mapping[str, str]) -> bool:
    return configs.get("remote.storage.enable") == "true"


def delay_max_ms(configs: Mapping[str, str]) -> int:
    """How far ahead a record of the topic may be due."""
    return int(configs.get("headrace.delay.max.ms", DEFINITIONS["headrace.delay.max.ms"].default))


def half_config(configs: Mapping[str, str]) -> HalfConfig:
    """How the topic keeps half messages."""
    names = ("check.first.ms", "check.interval.ms", "check.max", "audit.ms")
    values = [configs.get(f"headrace.half.{name}") for name in names]
    return HalfConfig._make(
        default if value is None else int(value)
        for value, default in zip(values, HalfConfig(), strict=True)
    )


def log_config(configs: Mapping[str, str]) -> LogConfig:
    """What a topic's overrides mean to its logs. The values were checked when they were set."""

    def value(name: str) -> str:
        return configs.get(name, DEFINITIONS[name].default)

    flush_ms = int(value("flush.ms"))
    is_compacted = "compact" in value("cleanup.policy")
    lag_max_ms = int(value("max.compaction.lag.ms"))
    segment_ms = int(value("segment.ms"))
    return LogConfig(
        segment_bytes=int(value("segment.bytes")),
        # The open ledger is not compacted.
        segment_ms=min(segment_ms, lag_max_ms) if is_compacted else segment_ms,
        retention_ms=int(value("retention.ms")),
        retention_bytes=int(value("retention.bytes")),
        max_message_bytes=int(value("max.message.bytes")),
        flush_ms=flush_ms or None,
        is_log_append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_before_max_ms=int(value("message.timestamp.before.max.ms")),
        timestamp_after_max_ms=int(value("message.timestamp.after.max.ms")),
        is_deleted_by_retention="delete" in value("cleanup.policy"),
        is_compacted=is_compacted,
        compaction_lag_min_ms=int(value("min.compaction.lag.ms")),
        compaction_lag_max_ms=lag_max_ms,
        delete_retention_ms=int(value("delete.retention.ms")),
        dirty_ratio_min=float(value("min.cleanable.dirty.ratio")),
        compression=value("compression.type"),
        ttl_ms=int(value("headrace.message.ttl.ms")),
        has_attributes=value(ATTRIBUTES) == "true",
        is_remote_enabled=_is_remote(configs),
        local_retention_ms=int(value("local.retention.ms")),
        local_retention_bytes=int(value("local.retention.bytes")),
        copies=copies_of(configs),
    )


@lru_cache(maxsize=1_000)
def shared_log_config(
    configs: tuple[tuple[str, str], ...], ledger_bytes_max: int | None
) -> LogConfig:
    """One object for all partitions with the same overrides, which may be very many."""
    config = log_config(dict(configs))
    if ledger_bytes_max is None:
        return config
    return replace(config, segment_bytes=min(config.segment_bytes, ledger_bytes_max))
