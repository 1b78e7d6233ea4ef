"""Settings of groups, with Kafka's names and defaults beside each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class GroupConfig:
    """The limits and delays of one group coordinator."""

    session_timeout_min_ms: int = 6_000
    """group.min.session.timeout.ms"""
    session_timeout_max_ms: int = 1_800_000
    """group.max.session.timeout.ms"""
    initial_rebalance_delay_ms: int = 100
    """group.initial.rebalance.delay.ms. Kafka waits 3,000: that saves rebalances when a fleet is
    rolled out, and makes every test and every single consumer wait three seconds. Each arrival
    within the delay extends it, so 100 ms still collects consumers that start together."""
    group_size_max: int = 2_147_483_647
    """group.max.size"""
    consumer_group_size_max: int = 2_147_483_647
    """group.consumer.max.size"""
    consumer_session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms, for members without a heartbeat since a load"""
    streams_group_size_max: int = 2_147_483_647
    """group.streams.max.size"""
    streams_session_timeout_ms: int = 45_000
    """group.streams.session.timeout.ms, for members without a heartbeat since a load"""
    assignment_interval_ms: int = 200
    """group.consumer.assignment.interval.ms (Kafka: 1,000): the minimum interval between
    computations of a group's target, so that many members that join together cost few of them"""
    new_member_timeout_ms: int = 300_000
    """How long a member that has not received any response may wait in a rebalance: its connection
    may be broken without notice (Kafka's constant of five minutes)."""
    offset_metadata_size_max: int = 4_096
    """offset.metadata.max.bytes, counted in characters as Kafka does"""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """offsets.retention.minutes (10,080)"""
    retention_check_interval_ms: int = 600_000
    """offsets.retention.check.interval.ms"""
    member_metadata_bytes_max: int = 1_048_576
    """All protocols of one member together: larger ones would not fit into a record that clients
    can read."""
    assignment_bytes_max: int = 16_777_216
    """All assignments of one generation together: they are stored as one record."""
    expired_offsets_per_tick_max: int = 1_000
    """Tombstones written at a time, so that an expiry wave does not block live groups."""
    offsets_examined_per_tick_max: int = 10_000
    """Offsets examined for expiry at a time: a few milliseconds."""
