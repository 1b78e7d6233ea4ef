"""Group configuration: names, defaults, validation, and its translation for each kind of group.

Invariants: one table with Kafka's names (KIP-932, KIP-1191, KIP-1240) and, under the prefix
`headrace.`, settings that Kafka does not have. Overrides are stored per group; a group without any
has the defaults. Invalid values are rejected when they are set.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.topics.topic_config import (
    BOOLEAN,
    INT,
    LIST,
    STRING,
    Between,
    ConfigDefinition,
    OneOf,
    likely,
)
from headrace.coordination.shares.config import ShareConfig
from headrace.errors import ConfigInvalid
from headrace.records.filters import parse_sql, parse_tags
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker_config import BrokerConfig

HOUR_MS: Final = 3_600_000
LITE: Final = "headrace.share.lite"
DEAD_LETTER_TOPIC: Final = "errors.deadletterqueue.topic.name"
BACKOFF_STEPS_MAX: Final = 64
BACKOFF_MS_MAX: Final = 365 * 24 * HOUR_MS
_BACKOFF: Final = re.compile(r"[0-9]{1,12}(,[0-9]{1,12})*|")
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{0,249}")
_DURATION: Final = re.compile(
    r"by_duration:P(?:(?P<d>[0-9]{1,5})D)?"
    r"(?:T(?:(?P<h>[0-9]{1,6})H)?(?:(?P<m>[0-9]{1,8})M)?(?:(?P<s>[0-9]{1,9})S)?)?"
)
DURATION_S_MAX: Final = 10 * 365 * 86_400
STANDBYS_MAX: Final = 10
"""Per task. Kafka's group.streams.max.standby.replicas is 2, and can be raised."""


def _backoff(text: str) -> bool:
    if not _BACKOFF.fullmatch(text):
        return False
    steps = [int(part) for part in text.split(",") if part]
    return len(steps) <= BACKOFF_STEPS_MAX and all(step <= BACKOFF_MS_MAX for step in steps)


def _tags(text: str) -> bool:
    if text:
        parse_tags(text)  # raises ConfigInvalid
    return True


def _sql(text: str) -> bool:
    if text:
        parse_sql(text)
    return True


def _is_dead_letter_topic(text: str) -> bool:
    name = name_in(text)  # a tenant without a name is no topic
    return bool(_TOPIC.fullmatch(name)) and not name.startswith("__") and bool(name or not text)


def _reset(text: str) -> bool:
    return text in {"earliest", "latest"} or duration_ms(text) is not None


def duration_ms(text: str) -> int | None:
    """The milliseconds of `by_duration:` and an ISO 8601 duration; None for anything else."""
    found = _DURATION.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        return None
    days, hours, minutes, seconds = (int(found[name] or 0) for name in "dhms")
    total = days * 86_400 + hours * 3_600 + minutes * 60 + seconds
    return total * 1_000 if total <= DURATION_S_MAX else None


_TABLE = (
    ConfigDefinition(
        "consumer.session.timeout.ms",
        INT,
        "45000",
        "A member of a consumer group of the new protocol that sends no heartbeat "
        "for this long is removed.",
        Between(1_000, 30 * 60_000),
    ),
    ConfigDefinition(
        "consumer.heartbeat.interval.ms",
        INT,
        "5000",
        "How often members of a consumer group of the new protocol send heartbeats; more often"
        " while the group changes.",
        Between(100, 60_000),
    ),
    ConfigDefinition(
        "streams.session.timeout.ms",
        INT,
        "45000",
        "A member of a streams group that sends no heartbeat for this long is removed.",
        Between(1_000, 30 * 60_000),
    ),
    ConfigDefinition(
        "streams.heartbeat.interval.ms",
        INT,
        "5000",
        "How often members of a streams group send heartbeats; more often while the group changes.",
        Between(100, 60_000),
    ),
    ConfigDefinition(
        "streams.num.standby.replicas",
        INT,
        "0",
        "The number of standby replicas of each stateful task of a streams group.",
        Between(0, STANDBYS_MAX),
    ),
    ConfigDefinition(
        "streams.initial.rebalance.delay.ms",
        INT,
        "100",
        "How long a new streams group waits for more members before it assigns tasks.",
        Between(0, 10 * 60_000),
    ),
    ConfigDefinition(
        "share.record.lock.duration.ms",
        INT,
        "30000",
        "How long a delivered record stays locked for its consumer before it is redelivered.",
        Between(1_000, HOUR_MS),
    ),
    ConfigDefinition(
        "share.delivery.count.limit",
        INT,
        "5",
        "The number of delivery attempts after which a record is archived or sent to "
        "the dead letter topic.",
        Between(2, 100),
    ),
    ConfigDefinition(
        "share.partition.max.record.locks",
        INT,
        "2000",
        "The maximum number of unfinished records per partition: acquired, or "
        "waiting for redelivery.",
        Between(100, 100_000),
    ),
    ConfigDefinition(
        "share.session.timeout.ms",
        INT,
        "45000",
        "A member of a share group that sends no heartbeat for this long is removed.",
        Between(1_000, 10 * 60_000),
    ),
    ConfigDefinition(
        "share.heartbeat.interval.ms",
        INT,
        "5000",
        "How often members of a share group send heartbeats.",
        Between(100, 60_000),
    ),
    ConfigDefinition(
        "share.auto.offset.reset",
        STRING,
        "latest",
        "The initial position of a share group in a partition: earliest, latest, or "
        "by_duration: with an ISO 8601 duration, such as by_duration:PT1H.",
        _reset,
    ),
    ConfigDefinition(
        "share.isolation.level",
        STRING,
        "read_uncommitted",
        "read_committed: do not deliver records of open and aborted transactions.",
        OneOf(("read_uncommitted", "read_committed")),
    ),
    ConfigDefinition(
        "share.renew.acknowledge.enable",
        BOOLEAN,
        "true",
        "Whether consumers may renew the lock of a record.",
        OneOf(("true", "false")),
    ),
    ConfigDefinition(
        "headrace.share.key.order",
        BOOLEAN,
        "false",
        "Deliver records with the same key one at a time and in order, independently "
        "of other keys.",
        OneOf(("true", "false")),
    ),
    ConfigDefinition(
        LITE,
        BOOLEAN,
        "false",
        "Consume lite topics: each client receives those that it subscribes to, and the group has"
        " a position in each. Only RocketMQ's lite consumers can consume with such a group, and"
        " they set it on the group that they create. With headrace.share.subscription=exclusive,"
        " the last client that subscribes to a lite topic is its only one.",
        OneOf(("true", "false")),
    ),
    ConfigDefinition(
        "headrace.share.subscription",
        STRING,
        "shared",
        "How members share a partition. shared: all members receive its records; "
        "failover: one member does, and another takes over when it leaves; "
        "exclusive: one member does, and others are rejected.",
        OneOf(("shared", "failover", "exclusive")),
    ),
    ConfigDefinition(
        "headrace.share.partition.order",
        BOOLEAN,
        "false",
        "Deliver the records of a partition one at a time and in order, across all members.",
        OneOf(("true", "false")),
    ),
    ConfigDefinition(
        "headrace.share.retry.backoff.ms",
        LIST,
        "",
        "The delays in ms before the 2nd, 3rd, ... delivery of a record; the last one repeats.",
        _backoff,
    ),
    ConfigDefinition(
        "headrace.share.expired",
        STRING,
        "skip",
        "How to handle expired records (headrace-expire-at, "
        "headrace.message.ttl.ms): skip or dead-letter.",
        OneOf(("skip", "dead-letter")),
    ),
    ConfigDefinition(
        "headrace.share.filter.tags",
        STRING,
        "",
        "Deliver only records with one of these tags (headrace-tag), such as order "
        "|| invoice; other records count as acknowledged.",
        _tags,
    ),
    ConfigDefinition(
        "headrace.share.filter.sql",
        STRING,
        "",
        "Deliver only records whose headers satisfy this SQL92 expression, such as "
        "region = 'eu' AND amount > 100; other records count as acknowledged.",
        _sql,
    ),
    ConfigDefinition(
        "errors.deadletterqueue.copy.record.enable",
        BOOLEAN,
        "true",
        "Whether dead letters contain the record (KIP-1191). Only true: whole records, with their "
        "headers, are always copied, so that none is lost when its own topic expires.",
        OneOf(("true",)),
    ),
    ConfigDefinition(
        "errors.deadletterqueue.topic.name",
        STRING,
        "",
        "The topic that receives copies of archived records; empty: none. Not an internal topic"
        " (__...), and not a topic that the group consumes.",
        _is_dead_letter_topic,
    ),
)
GROUP_DEFINITIONS: Mapping[str, ConfigDefinition] = {
    definition.name: definition for definition in sorted(_TABLE, key=lambda known: known.name)
}


def check_group_config(name: str, value: str | None) -> None:
    """Raise ConfigInvalid unless `name` exists and accepts `value`."""
    definition = GROUP_DEFINITIONS.get(name)
    if definition is None:
        raise ConfigInvalid(
            f"unknown group configuration {name[:100]!r}: {likely(name, GROUP_DEFINITIONS)}"
        )
    definition.accept(value)


def own_dead_letter_topic(group_id: str, topic: str) -> ConfigInvalid:
    """The error that a group's dead letter topic is one that it consumes."""
    return ConfigInvalid(
        f"share group {group_id!r} consumes {topic}, which cannot be its dead letter topic too:"
        f" what it gives up would come again; set {DEAD_LETTER_TOPIC} of the group to another topic"
    )


def shared_dead_letter_topic(topic: str) -> ConfigInvalid:
    """The error that a dead letter topic has the name of one that another tenant shares."""
    return ConfigInvalid(
        f"{topic} is the name of a topic that another tenant shares, to which nothing can be"
        f" written: set {DEAD_LETTER_TOPIC} of the group to another topic"
    )


def group_value(overrides: Mapping[str, str], name: str) -> str:
    """The value of one setting."""
    return overrides.get(name, GROUP_DEFINITIONS[name].default)


class ConsumerGroupSettings(NamedTuple):
    """Settings of a consumer group of the new protocol."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class StreamsGroupSettings(NamedTuple):
    """Settings of a streams group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    standby_count: int
    initial_delay_ms: int


SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
STREAMS_SESSION_TIMEOUT: Final = "streams.session.timeout.ms"
STREAMS_HEARTBEAT_INTERVAL: Final = "streams.heartbeat.interval.ms"
STREAMS_STANDBYS: Final = "streams.num.standby.replicas"
STREAMS_INITIAL_DELAY: Final = "streams.initial.rebalance.delay.ms"


def defaults_of_broker(config: BrokerConfig) -> dict[str, str]:
    """This broker's defaults of group settings."""
    return {
        SESSION_TIMEOUT: str(config.group_consumer_session_timeout_ms),
        HEARTBEAT_INTERVAL: str(config.group_consumer_heartbeat_interval_ms),
        STREAMS_SESSION_TIMEOUT: str(config.group_streams_session_timeout_ms),
        STREAMS_HEARTBEAT_INTERVAL: str(config.group_streams_heartbeat_interval_ms),
        STREAMS_STANDBYS: str(config.group_streams_num_standby_replicas),
        STREAMS_INITIAL_DELAY: str(config.group_streams_initial_rebalance_delay_ms),
    }


def consumer_group_settings(
    overrides: Mapping[str, str], config: BrokerConfig
) -> ConsumerGroupSettings:
    """The settings of a consumer group of the new protocol, from its overrides."""
    values = {**defaults_of_broker(config), **overrides}
    return ConsumerGroupSettings(int(values[SESSION_TIMEOUT]), int(values[HEARTBEAT_INTERVAL]))


def streams_group_settings(
    overrides: Mapping[str, str], config: BrokerConfig
) -> StreamsGroupSettings:
    """The settings of a streams group, from its overrides."""
    values = {**defaults_of_broker(config), **overrides}
    return StreamsGroupSettings(
        int(values[STREAMS_SESSION_TIMEOUT]),
        int(values[STREAMS_HEARTBEAT_INTERVAL]),
        int(values[STREAMS_STANDBYS]),
        int(values[STREAMS_INITIAL_DELAY]),
    )


def share_config(overrides: Mapping[str, str]) -> ShareConfig:
    """The settings of a group's share partitions, from its overrides, which were validated when
    set."""

    def value(name: str) -> str:
        return group_value(overrides, name)

    backoff = value("headrace.share.retry.backoff.ms")
    return ShareConfig(
        lock_ms=int(value("share.record.lock.duration.ms")),
        delivery_count_max=int(value("share.delivery.count.limit")),
        unfinished_max=int(value("share.partition.max.record.locks")),
        can_renew=value("share.renew.acknowledge.enable") == "true",
        is_ordered=value("headrace.share.key.order") == "true",
        is_serial=value("headrace.share.partition.order") == "true",
        subscription=value("headrace.share.subscription"),
        backoff_ms=tuple(int(part) for part in backoff.split(",") if part),
        has_dead_letters=bool(value("errors.deadletterqueue.topic.name")),
        are_expired_dead=value("headrace.share.expired") == "dead-letter",
        filter_tags=value("headrace.share.filter.tags"),
        filter_sql=value("headrace.share.filter.sql"),
        is_lite=value(LITE) == "true",
    )
