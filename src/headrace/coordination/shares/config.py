"""Settings of share groups, with Kafka's names and defaults (KIP-932, KIP-1240)."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import RecordStateInvalid

BACKOFF_STEPS_MAX = 30
LOCK_MS_MAX = 12 * 3_600_000
SHARED, FAILOVER, EXCLUSIVE = "shared", "failover", "exclusive"


@dataclass(slots=True, frozen=True)
class ShareConfig:
    """The settings of one share group that apply to its share partitions."""

    lock_ms: int = 30_000
    """share.record.lock.duration.ms"""
    delivery_count_max: int = 5
    """share.delivery.count.limit: deliveries after which a record is archived or dead-lettered"""
    unfinished_max: int = 2_000
    """share.partition.max.record.locks: unfinished records between start and end. Kafka counts
    finished ones as well, so one slow record stops its partition; here it does not."""
    can_renew: bool = True
    """share.renew.acknowledge.enable"""
    is_ordered: bool = False
    """headrace.share.key.order: records of one key are delivered one at a time, in order"""
    is_serial: bool = False
    """headrace.share.partition.order: all records of a partition are treated as one key"""
    backoff_ms: tuple[int, ...] = ()
    """headrace.share.retry.backoff.ms: delay before the 2nd, 3rd, ... delivery; the last repeats"""
    has_dead_letters: bool = False
    """Whether errors.deadletterqueue.topic.name is set (KIP-1191)"""
    are_expired_dead: bool = False
    """headrace.share.expired=dead-letter: expired records become dead letters, else they are
    skipped"""
    filter_tags: str = ""
    """headrace.share.filter.tags: the records to deliver; empty: all"""
    filter_sql: str = ""
    """headrace.share.filter.sql, the same"""
    subscription: str = SHARED
    """headrace.share.subscription: how members share a partition"""
    is_lite: bool = False
    """headrace.share.lite: the group consumes lite topics"""
    has_attributes: bool = False
    """headrace.message.attributes of the topic: records have priorities and expiry times"""
    ttl_ms: int = -1
    """headrace.message.ttl.ms of the topic, -1: none"""

    @property
    def is_sticky(self) -> bool:
        """Whether one member at a time gets all records of a partition."""
        return self.subscription != SHARED

    @property
    def needs_rows(self) -> bool:
        """Whether records are examined individually before they are delivered."""
        return (
            self.is_ordered
            or self.is_serial
            or self.has_attributes
            or self.ttl_ms >= 0
            or bool(self.filter_tags)
            or bool(self.filter_sql)
        )

    def reads_as(self, other: ShareConfig) -> bool:
        """Whether rows created under `other` are valid under this configuration."""
        return (
            self.is_ordered == other.is_ordered
            and self.is_serial == other.is_serial
            and self.has_attributes == other.has_attributes
            and self.ttl_ms == other.ttl_ms
            and self.filter_tags == other.filter_tags
            and self.filter_sql == other.filter_sql
        )

    def parking_refusal(self) -> RecordStateInvalid | None:
        """Why no key can be parked; None if keys can be parked."""
        if self.is_ordered and not self.is_serial:
            return None
        return RecordStateInvalid(
            "keys can be parked only in groups with key order: set "
            "headrace.share.key.order=true, without headrace.share.partition.order"
        )

    def retry_after_ms(self, delivery_count: int) -> int:
        """The delay of a record after `delivery_count` unsuccessful deliveries."""
        if not self.backoff_ms:
            return 0
        return self.backoff_ms[min(delivery_count, len(self.backoff_ms)) - 1]


def exponential_backoff(first_ms: int, largest_ms: int, factor: float = 2.0) -> tuple[int, ...]:
    """The delays of an exponential back-off: `first_ms`, then each `factor` times the previous
    one."""
    if first_ms <= 0:
        return ()
    waits = [first_ms]
    while waits[-1] < largest_ms and len(waits) < BACKOFF_STEPS_MAX:
        waits.append(min(round(waits[-1] * factor), largest_ms))
    return tuple(waits)
