"""Broker settings, under Kafka's names where Kafka has one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.transactions.config import TransactionConfig

ACL: Final = "acl"
"""The authorizer with access control lists."""


@dataclass(slots=True)
class BrokerConfig:
    """The settings that the broker itself reads."""

    broker_id: int = 0
    """node.id"""
    auto_create_topics: bool = True
    """auto.create.topics.enable"""
    partition_count_default: int = 1
    """num.partitions"""
    partition_count_max: int = 10_000
    """Per topic. A request for millions of partitions would exhaust the broker's memory."""
    offsets_partition_count: int = 16
    """offsets.topic.num.partitions (Kafka: 50; here a partition is a unit of placement, not of
    throughput)"""
    transactions_partition_count: int = 16
    """transaction.state.log.num.partitions (Kafka: 50; as above)"""
    transaction_timeout_ms_max: int = 15 * 60 * 1000
    """transaction.max.timeout.ms"""
    transactional_id_expiration_ms: int = 7 * 24 * 3600 * 1000
    """transactional.id.expiration.ms"""
    group_session_timeout_min_ms: int = 6_000
    """group.min.session.timeout.ms"""
    group_session_timeout_max_ms: int = 1_800_000
    """group.max.session.timeout.ms"""
    group_initial_rebalance_delay_ms: int = 100
    """group.initial.rebalance.delay.ms (Kafka: 3,000; see `coordination.groups.config`)"""
    group_size_max: int = 2_147_483_647
    """group.max.size"""
    groups_max: int = 250_000
    """headrace.groups.max: about 400 bytes each, with an offset"""
    members_bytes_max: int = 256 * 1024 * 1024
    """headrace.group.members.max.bytes"""
    transactional_ids_max: int = 500_000
    """headrace.transactional.ids.max: about 1 KB each. Stream processors use many but once: Flink
    one for each checkpoint and writer, of which each is kept for a week"""
    delayed_bytes_max: int = 256 * 1024 * 1024
    """headrace.delayed.max.bytes: 9 each, 300 where due times are hours apart"""
    producer_ids_max: int = 1_000_000
    """headrace.producer.ids.max: about 500 bytes each"""
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    """producer.id.expiration.ms"""
    group_consumer_size_max: int = 2_147_483_647
    """group.consumer.max.size"""
    group_consumer_session_timeout_ms: int = 45_000
    """group.consumer.session.timeout.ms"""
    group_consumer_heartbeat_interval_ms: int = 5_000
    """group.consumer.heartbeat.interval.ms"""
    group_consumer_assignment_interval_ms: int = 200
    """group.consumer.assignment.interval.ms (Kafka: 1,000)"""
    group_streams_size_max: int = 2_147_483_647
    """group.streams.max.size"""
    group_streams_session_timeout_ms: int = 45_000
    """group.streams.session.timeout.ms"""
    group_streams_heartbeat_interval_ms: int = 5_000
    """group.streams.heartbeat.interval.ms"""
    group_streams_num_standby_replicas: int = 0
    """group.streams.num.standby.replicas"""
    group_streams_initial_rebalance_delay_ms: int = 100
    """group.streams.initial.rebalance.delay.ms (Kafka: 3,000; as for classic groups)"""
    offset_metadata_size_max: int = 4_096
    """offset.metadata.max.bytes"""
    offsets_retention_minutes: int = 7 * 24 * 60
    """offsets.retention.minutes"""
    offsets_retention_check_interval_ms: int = 600_000
    """offsets.retention.check.interval.ms"""
    topic_defaults: dict[str, str] = field(default_factory=dict)
    """Topic settings whose default on this broker differs from the table of topic settings."""
    retention_check_interval_ms: int = 300_000
    """log.retention.check.interval.ms"""
    compaction_interval_ms: int = 15_000
    """log.cleaner.backoff.ms"""
    compaction_bytes_per_s: int = 32 * 1024 * 1024
    """log.cleaner.io.max.bytes.per.second (Kafka: unbounded), read and written; 0: unbounded."""
    compaction_keys_max: int = 1_000_000
    """Keys per compaction round, about 200 bytes each (Kafka: log.cleaner.dedupe.buffer.size);
    records with further keys wait for the next round."""
    compaction_process_bytes_min: int = 16 * 1024 * 1024
    """A compaction round that reads more than this runs in a process of its own."""
    request_bytes_max: int = 100 * 1024 * 1024
    """socket.request.max.bytes"""
    metrics_partitions_max: int = 0
    """headrace.metrics.partitions.max"""
    connections_max: int = 2_147_483_647
    """max.connections"""
    connections_per_ip_max: int = 2_147_483_647
    """max.connections.per.ip"""
    connections_per_ip_overrides: str = ""
    """max.connections.per.ip.overrides"""
    connections_per_user_max: int = 2_147_483_647
    """headrace.max.connections.per.user"""
    connection_rate_max: int = 2_147_483_647
    """max.connection.creation.rate"""
    connections_idle_max_ms: int = 600_000
    """connections.max.idle.ms"""
    fetch_bytes_max: int = 55 * 1024 * 1024
    """fetch.max.bytes"""
    request_memory_bytes_max: int = 256 * 1024 * 1024
    """queued.max.request.bytes"""
    tenant_request_bytes_max: int = 512 * 1024
    """headrace.tenant.queued.max.request.bytes"""
    response_bytes_max: int = 256 * 1024 * 1024
    """queued.max.response.bytes"""
    fetch_sessions_max: int = 1_000
    """max.incremental.fetch.session.cache.slots"""
    ledger_quorum: str | None = None
    """E,W,A of new ledgers whose topic does not set it; None if ledgers are not replicated."""
    rack: str | None = None
    """broker.rack"""
    join_timeout_ms: int = 60_000
    """How long to wait for the session of this broker's previous incarnation to end."""
    rebalance_delay_ms: int = 3_000
    """Delay after a membership change before partitions move between live brokers."""
    hand_over_timeout_ms: int = 15_000
    """Time that a stopping broker has to hand over its partitions."""
    tiering_interval_ms: int = 30_000
    """remote.log.manager.task.interval.ms"""
    offloads_at_once: int = 2
    """remote.log.manager.copier.thread.pool.size (Kafka: 10); each takes about 30 MiB of memory."""
    orphan_grace_ms: int = 24 * 3600 * 1000
    """An object is deleted once no partition has named it for this long."""
    balance_interval_ms: int = 30_000
    """How often a broker publishes its load and the balancer evaluates all loads; 0: never."""
    is_balancing: bool = True
    """Whether this broker moves partitions by load when it is the balancer."""
    balance_threshold_percent: int = 150
    """Percent of the mean load above which a broker is overloaded. Pulsar: 10 percentage points
    above."""
    balance_cpu_percent_min: int = 30
    """Percent of a core: a broker that uses less is never overloaded, however uneven the loads
    are."""
    balance_patience: int = 10
    """Consecutive evaluations that must find a broker overloaded before a partition moves."""
    balance_rest_ms: int = 30 * 60 * 1000
    """How long a partition stays put after a move by load."""
    sweep_interval_ms: int = 600_000
    """How often one of the brokers that share storage looks for orphaned ledgers and facts."""
    sweep_grace_ms: int = 3_600_000
    """How long a ledger or fact must have been orphaned before it is deleted."""

    authorizer: str = "auto"
    """headrace.authorizer; the server replaces `auto`, which is like `none` here"""
    audit_topic: str = ""
    """headrace.audit.topic"""
    super_users: str = ""
    """super.users"""
    tenants: str = ""
    """headrace.tenants"""
    browser_session_lifetime_ms: int = 12 * 3600 * 1000
    """headrace.http.session.lifetime.ms (a working day)"""
    token_lifetime_ms_max: int = 7 * 24 * 3600 * 1000
    """delegation.token.max.lifetime.ms"""
    token_expiry_ms: int = 24 * 3600 * 1000
    """delegation.token.expiry.time.ms"""
    signature_window_ms: int = 300_000
    """headrace.rocketmq.signature.window.ms"""
    signature_offsets_s: tuple[int, ...] = ()
    """headrace.rocketmq.signature.utc.offsets"""
    allow_everyone_if_no_acl: bool = False
    """allow.everyone.if.no.acl.found"""

    def group_config(self) -> GroupConfig:
        """The part that group coordinators read."""
        return GroupConfig(
            self.group_session_timeout_min_ms,
            self.group_session_timeout_max_ms,
            self.group_initial_rebalance_delay_ms,
            self.group_size_max,
            consumer_group_size_max=self.group_consumer_size_max,
            consumer_session_timeout_ms=self.group_consumer_session_timeout_ms,
            streams_group_size_max=self.group_streams_size_max,
            streams_session_timeout_ms=self.group_streams_session_timeout_ms,
            assignment_interval_ms=self.group_consumer_assignment_interval_ms,
            offset_metadata_size_max=self.offset_metadata_size_max,
            offsets_retention_ms=self.offsets_retention_minutes * 60_000,
            retention_check_interval_ms=self.offsets_retention_check_interval_ms,
        )

    def transaction_config(self) -> TransactionConfig:
        """The part that transaction coordinators read."""
        return TransactionConfig(
            self.transaction_timeout_ms_max, self.transactional_id_expiration_ms
        )
