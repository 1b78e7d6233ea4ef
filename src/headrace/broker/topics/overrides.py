"""Translates topic configuration overrides for logs and timers.

Invariants: pure. Values were validated when they were set (`topic_config`); unset ones take the
defaults of that table.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.broker.topics.topic_config import (
    ATTRIBUTE_TYPES,
    ATTRIBUTES,
    AUTO,
    DEAD_LETTERS,
    DEFINITIONS,
    LITE,
    LITE_EXPIRATION,
    LITE_MAX,
    MESSAGE_TYPE,
    MIXED,
    NORMAL,
    QUORUM,
    VALIDATION,
    parse_copies,
)
from headrace.coordination.timers.config import HalfConfig
from headrace.log.log_config import LogConfig
from headrace.records.attributes import READING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.storage.ledger import Copies


def copies_of(configs: Mapping[str, str]) -> Copies | None:
    """The replication of a topic's ledgers; None if the topic does not set it."""
    return parse_copies(configs.get(QUORUM, ""))


def is_remote(configs: Mapping[str, str]) -> bool:
    """Whether closed ledgers of the topic are copied to object storage."""
    return configs.get("remote.storage.enable") == "true"


def replaces_objects(configs: Mapping[str, str]) -> bool:
    """Whether offloaded ledgers of the topic give up records that its table has."""
    return configs.get("headrace.table.replaces.objects") == "true"


def accepts_dead_letters(configs: Mapping[str, str]) -> bool:
    """Whether the topic may be the dead letter topic of share groups."""
    return configs.get(DEAD_LETTERS, DEFINITIONS[DEAD_LETTERS].default) == "true"


def reads_attributes(configs: Mapping[str, str]) -> bool:
    """Whether records of the topic have queue attributes."""
    is_read = configs.get(ATTRIBUTES, DEFINITIONS[ATTRIBUTES].default) in READING
    return is_read or configs.get(MESSAGE_TYPE) in ATTRIBUTE_TYPES


def message_type(configs: Mapping[str, str]) -> str:
    """The type of messages that the topic takes: `normal`, or one of ATTRIBUTE_TYPES."""
    found = configs.get(MESSAGE_TYPE, AUTO)
    if found != AUTO:
        return found
    return MIXED if reads_attributes(configs) else NORMAL


def delay_max_ms(configs: Mapping[str, str]) -> int:
    """How far in the future a record of the topic may be due."""
    return int(configs.get("headrace.delay.max.ms", DEFINITIONS["headrace.delay.max.ms"].default))


def lite_expiration_ms(configs: Mapping[str, str]) -> int:
    """How long after its last message a lite topic of the topic expires; -1: never."""
    return int(configs.get(LITE_EXPIRATION, DEFINITIONS[LITE_EXPIRATION].default))


def half_config(configs: Mapping[str, str]) -> HalfConfig:
    """The topic's settings for half messages."""
    names = ("check.first.ms", "check.interval.ms", "check.max", "audit.ms")
    values = [configs.get(f"headrace.half.{name}") for name in names]
    return HalfConfig._make(
        default if value is None else int(value)
        for value, default in zip(values, HalfConfig(), strict=True)
    )


def log_config(configs: Mapping[str, str]) -> LogConfig:
    """The log settings for a topic's overrides."""

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
        has_attributes=reads_attributes(configs),
        lite_topics_max=int(value(LITE_MAX)) if message_type(configs) == LITE else 0,
        refuses_attributes=value(ATTRIBUTES) == "refuse",
        is_validated=value(VALIDATION) == "full",
        is_remote_enabled=is_remote(configs),
        is_table_replacing=replaces_objects(configs),
        local_retention_ms=int(value("local.retention.ms")),
        local_retention_bytes=int(value("local.retention.bytes")),
        copies=copies_of(configs),
    )


@lru_cache(maxsize=1_000)
def shared_log_config(
    configs: tuple[tuple[str, str], ...], ledger_bytes_max: int | None
) -> LogConfig:
    """One shared object for all partitions with the same overrides, of which there may be many."""
    config = log_config(dict(configs))
    if ledger_bytes_max is None:
        return config
    return replace(config, segment_bytes=min(config.segment_bytes, ledger_bytes_max))
