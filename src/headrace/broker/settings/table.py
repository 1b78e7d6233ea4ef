"""Every setting of a broker, defined once.

Invariants: data only. A row gives the command-line option of `headrace serve`, its environment
variable, the key of the configuration file, the type and range, what DescribeConfigs returns, the
reference page, and whether the setting can change while the broker runs. Names are Kafka's where
Kafka has the setting; others begin with `headrace.`. Options and variables are part of the public
interface: do not rename.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.broker.broker_config import ACL
from headrace.broker.security.connection_limits import UNLIMITED
from headrace.broker.settings.kinds import (
    ROCKETMQ_LISTENER,
    Addresses,
    HostAndPort,
    Listeners,
    LogLevelMap,
    OneOf,
    Overrides,
    PathName,
    Switch,
    Text,
    TopicDefault,
    Whole,
)
from headrace.broker.settings.of_authentication import AUTHENTICATION
from headrace.broker.settings.of_clusters import BALANCE, JOINING, TLS
from headrace.broker.settings.of_listeners import SECURITY, TLS_OF_LISTENERS
from headrace.broker.settings.of_schemas import SCHEMAS
from headrace.broker.settings.setting import DURATION, INTERVAL, LIVE, BrokerSetting, of_config
from headrace.broker.topics.topic_config import DEFINITIONS, INT64_MAX
from headrace.errors import ConfigInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACES = (
    BrokerSetting(
        "log.dirs",
        PathName(is_folder=True),
        "Data directory for records and metadata; created if missing.",
        "headrace-data",
        spelling="data-dir",
        is_sensitive=True,
        is_common=True,
    ),
    BrokerSetting(
        "listeners",
        Listeners(),
        "Address for Kafka clients; port 0 selects a free port. Several"
        " listeners need names:"
        " CLIENT://10.0.0.5:9092,INTERNAL://127.0.0.1:9093.",
        "PLAINTEXT://127.0.0.1:9092",
        spelling="kafka",
        is_common=True,
    ),
    BrokerSetting(
        "advertised.listeners",
        Listeners(also=ROCKETMQ_LISTENER),
        "Addresses by listener that clients should connect to, if they differ"
        " from --kafka. Clients receive the addresses of the listener that they"
        " connected to. ROCKETMQ stands for --rocketmq: the address to which other brokers"
        " send RocketMQ's clients.",
        spelling="advertise",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.http",
        Addresses(),
        "Address of the HTTP API, /healthz, /readyz and /metrics; port 0 selects a free port. May"
        " be repeated: the first listener is HTTP, further ones HTTP_2, HTTP_3 ..., each with the"
        " protocol that listener.security.protocol.map gives it, or that of"
        " headrace.http.security.protocol.",
        "127.0.0.1:9180",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.admin.address",
        HostAndPort(),
        "A further address that serves /healthz, /readyz and /metrics alone, for probes and"
        " Prometheus on other machines; --http may stay on loopback. It reads and changes no"
        " records, so it needs no --insecure. Default: none.",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.rocketmq",
        HostAndPort(),
        "Address for RocketMQ 5 clients (gRPC), such as 127.0.0.1:8081; port 0 selects a free"
        " port. Not set: they are not served. Requires the package headrace[rocketmq].",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.workers",
        Whole(1, 64),
        "Number of brokers to run on this machine, one per available core. They"
        " share the partitions and listen on consecutive ports. Default: the"
        " number that the data directory was used with.",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.log.format",
        OneOf(("text", "json")),
        "Format of the log: a line of text, or a JSON object with `time` (UTC), `level`, `logger`,"
        " `message` and, after an internal error, `trace`.",
        "text",
    ),
    BrokerSetting(
        "headrace.log.levels",
        LogLevelMap(),
        "Levels of parts of the broker, in place of headrace.log.level: LOGGER=LEVEL,... with the"
        " names that the log shows, such as headrace.kafka=debug or headrace.log=warning.",
        "",
        **LIVE,
    ),
    BrokerSetting(
        "headrace.log.slow.request.ms",
        Whole(-1, 86_400_000),
        "Log requests that take at least this long, with the client and what they waited for:"
        " logger headrace.runtime.slow_requests, level info. The time that a Fetch waits for data"
        " is not counted, nor are receives of RocketMQ's clients; HTTP requests and others that"
        " wait on request include it. 0 logs every request, -1 none.",
        "-1",
        **LIVE,
    ),
    BrokerSetting(
        "headrace.log.level",
        OneOf(("debug", "info", "warning", "error")),
        "Minimum severity of logged messages. SIGHUP applies a new value in the"
        " configuration file.",
        "info",
        is_common=True,
        **LIVE,
    ),
)

_TOPICS = (
    of_config(
        "auto.create.topics.enable",
        "auto_create_topics",
        Switch(),
        "Create a topic when a client first uses it.",
        spelling="auto-create-topics",
        negative="no-auto-create-topics",
        is_common=True,
        **LIVE,
    ),
    of_config(
        "num.partitions",
        "partition_count_default",
        Whole(1, 10_000),
        "Default number of partitions of a new topic.",
        spelling="partitions",
        is_common=True,
        **LIVE,
    ),
    of_config(
        "headrace.partitions.max",
        "partition_count_max",
        Whole(1, 100_000),
        "Maximum number of partitions per topic.",
        **LIVE,
    ),
    of_config(
        "headrace.delayed.max.bytes",
        "delayed_bytes_max",
        Whole(0),
        "Bytes of memory that this broker uses for delayed records (9 each, 300 where due times"
        " are hours apart) and half messages (850). Beyond it, or a user's share (two thirds if"
        " there is one user), new ones are refused.",
        **LIVE,
    ),
)

_TOPIC_DEFAULTS: Final = {
    "compression.type": "compression.type",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.retention.bytes": "retention.bytes",
    "log.retention.ms": "retention.ms",
    "log.roll.ms": "segment.ms",
    "log.segment.bytes": "segment.bytes",
    "message.max.bytes": "max.message.bytes",
}
"""Kafka's names of the defaults of topic settings. `flush.ms` is deliberately absent: a topic
gives up synced acknowledgements only explicitly. So is `cleanup.policy`: which records may be
deleted is a decision for each topic."""

_OF_TOPICS = tuple(
    BrokerSetting(
        name,
        TopicDefault(DEFINITIONS[topic_name]),
        f"Default of the topic setting `{topic_name}`: {DEFINITIONS[topic_name].documentation}",
        DEFINITIONS[topic_name].default,
        can_change=True,
    )
    for name, topic_name in _TOPIC_DEFAULTS.items()
)

_GROUPS = (
    of_config(
        "group.consumer.assignment.interval.ms",
        "group_consumer_assignment_interval_ms",
        Whole(0),
        "New group protocol: minimum interval between assignments of a group.",
    ),
    of_config(
        "group.consumer.heartbeat.interval.ms",
        "group_consumer_heartbeat_interval_ms",
        Whole(100, 60_000),
        "New group protocol: heartbeat interval of members. A group's"
        " `consumer.heartbeat.interval.ms` overrides it.",
    ),
    of_config(
        "group.consumer.max.size",
        "group_consumer_size_max",
        Whole(1),
        "New group protocol: maximum number of members per group.",
    ),
    of_config(
        "group.consumer.session.timeout.ms",
        "group_consumer_session_timeout_ms",
        Whole(1_000, 30 * 60_000),
        "New group protocol: a member without a heartbeat for this long is"
        " removed. A group's `consumer.session.timeout.ms` overrides it.",
    ),
    of_config(
        "group.streams.heartbeat.interval.ms",
        "group_streams_heartbeat_interval_ms",
        Whole(100, 60_000),
        "Heartbeat interval of members of streams groups. A group's"
        " `streams.heartbeat.interval.ms` overrides it.",
    ),
    of_config(
        "group.streams.initial.rebalance.delay.ms",
        "group_streams_initial_rebalance_delay_ms",
        Whole(0, 10 * 60_000),
        "How long a new streams group waits for more members before it assigns"
        " tasks. A group's `streams.initial.rebalance.delay.ms` overrides it.",
    ),
    of_config(
        "group.streams.max.size",
        "group_streams_size_max",
        Whole(1),
        "Maximum number of members per streams group.",
    ),
    of_config(
        "group.streams.num.standby.replicas",
        "group_streams_num_standby_replicas",
        Whole(0, 10),
        "Number of standby tasks for each stateful task of a streams group. A"
        " group's `streams.num.standby.replicas` overrides it.",
    ),
    of_config(
        "group.streams.session.timeout.ms",
        "group_streams_session_timeout_ms",
        Whole(1_000, 30 * 60_000),
        "A member of a streams group without a heartbeat for this long is"
        " removed. A group's `streams.session.timeout.ms` overrides it.",
    ),
    of_config(
        "group.initial.rebalance.delay.ms",
        "group_initial_rebalance_delay_ms",
        Whole(0),
        "How long a new group waits for more members before its first"
        " rebalance; each arrival extends it.",
    ),
    of_config(
        "group.max.session.timeout.ms",
        "group_session_timeout_max_ms",
        Whole(1),
        "Maximum session timeout of consumers.",
    ),
    of_config(
        "group.max.size",
        "group_size_max",
        Whole(1),
        "Maximum number of members per group.",
    ),
    of_config(
        "headrace.group.members.max.bytes",
        "members_bytes_max",
        Whole(0),
        "Bytes that this broker keeps of what members of groups, share groups too, say of"
        " themselves (descriptions, subscriptions, assignments). Beyond it, or a user's share, new"
        " members are refused.",
        **LIVE,
    ),
    of_config(
        "headrace.groups.max",
        "groups_max",
        Whole(0),
        "Maximum number of groups that this broker coordinates, share groups with members included,"
        " and of share groups that have begun in the cluster. An id counts once more for each 512"
        " bytes. Beyond it, or a user's share (two thirds if there is one user), new ones are"
        " refused.",
        **LIVE,
    ),
    of_config(
        "group.min.session.timeout.ms",
        "group_session_timeout_min_ms",
        Whole(1),
        "Minimum session timeout of consumers.",
    ),
    of_config(
        "offset.metadata.max.bytes",
        "offset_metadata_size_max",
        Whole(0),
        "Maximum length, in characters, of the metadata of a committed offset.",
    ),
    of_config(
        "offsets.retention.check.interval.ms",
        "offsets_retention_check_interval_ms",
        INTERVAL,
        "Interval between checks for committed offsets that have expired.",
    ),
    of_config(
        "offsets.retention.minutes",
        "offsets_retention_minutes",
        Whole(1),
        "How long the committed offsets of a group without members are retained.",
    ),
    of_config(
        "offsets.topic.num.partitions",
        "offsets_partition_count",
        Whole(1, 10_000),
        "Number of partitions of `__consumer_offsets` when it is created.",
    ),
)

_TRANSACTIONS = (
    of_config(
        "headrace.producer.ids.max",
        "producer_ids_max",
        Whole(0),
        "Number of idempotent producers that this broker remembers in its partitions. Beyond it,"
        " the longest idle ones are forgotten, as after producer.id.expiration.ms.",
        **LIVE,
    ),
    of_config(
        "headrace.transactional.ids.max",
        "transactional_ids_max",
        Whole(0),
        "Maximum number of transactional ids that this broker coordinates; one counts once more for"
        " each 512 bytes. Beyond it, or a user's share (two thirds if there is one user), ids that"
        " the user has not used for an hour are removed, as after transactional.id.expiration.ms,"
        " and without any new ones are refused.",
        **LIVE,
    ),
    of_config(
        "producer.id.expiration.ms",
        "producer_id_expiration_ms",
        Whole(1),
        "How long a partition remembers an idempotent producer that writes nothing.",
        **LIVE,
    ),
    of_config(
        "transaction.max.timeout.ms",
        "transaction_timeout_ms_max",
        Whole(1),
        "Maximum transaction timeout of producers.",
    ),
    of_config(
        "transaction.state.log.num.partitions",
        "transactions_partition_count",
        Whole(1, 10_000),
        "Number of partitions of `__transaction_state` when it is created.",
    ),
    of_config(
        "transactional.id.expiration.ms",
        "transactional_id_expiration_ms",
        Whole(1),
        "How long an unused transactional id is retained.",
    ),
)

_HOUSEKEEPING = (
    of_config(
        "log.retention.check.interval.ms",
        "retention_check_interval_ms",
        INTERVAL,
        "Interval between checks for records that exceed their topic's retention.",
        spelling="retention-check-interval-ms",
        is_common=True,
        **LIVE,
    ),
    of_config(
        "log.cleaner.backoff.ms",
        "compaction_interval_ms",
        INTERVAL,
        "Interval between checks for partitions to compact.",
        spelling="compaction-interval-ms",
        is_common=True,
        **LIVE,
    ),
    of_config(
        "log.cleaner.io.max.bytes.per.second",
        "compaction_bytes_per_s",
        DURATION,
        "Maximum bytes per second that compaction reads and writes; 0: no limit.",
        **LIVE,
    ),
    of_config(
        "headrace.log.cleaner.keys.max",
        "compaction_keys_max",
        Whole(1_000, 100_000_000),
        "Maximum number of keys in a compaction round; each uses about 200 bytes of memory.",
        **LIVE,
    ),
    of_config(
        "headrace.log.cleaner.process.bytes.min",
        "compaction_process_bytes_min",
        DURATION,
        "Compaction rounds with more dirty bytes than this run in a separate"
        " process; smaller ones run in the broker between requests.",
        **LIVE,
    ),
)

_TIERS = (
    BrokerSetting(
        "headrace.objects",
        Text("URL"),
        "Object storage for sealed ledgers of topics with"
        " remote.storage.enable: s3://bucket/prefix, gs://, az:// or"
        " file:///folder. Credentials come from the environment (see"
        " docs/TIERING.md).",
        is_sensitive=True,
        is_common=True,
    ),
    BrokerSetting(
        "headrace.tables",
        Text("PLACE"),
        "The --warehouse of `headrace pipeline tables`, for topics with"
        " headrace.table.replaces.objects: consumers get old records from the tables' files (see"
        " docs/TIERING.md). A directory, s3://bucket/prefix, or what a REST catalog calls it.",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.tables.catalog",
        Text("CATALOG"),
        "The --catalog of `headrace pipeline tables`, if --tables is not a directory that has it:"
        " rest:URL, or a directory. Credentials come from the environment (see docs/PIPELINE.md).",
        is_common=True,
    ),
    BrokerSetting(
        "headrace.offload.mib.per.s",
        Whole(0, 1_000_000),
        "Maximum rate of offloading to object storage, in MiB per second; 0: no limit.",
        "128",
        is_common=True,
    ),
    of_config(
        "remote.log.manager.task.interval.ms",
        "tiering_interval_ms",
        INTERVAL,
        "Interval between checks for ledgers to offload.",
        spelling="tiering-interval-ms",
        **LIVE,
    ),
    of_config(
        "remote.log.manager.copier.thread.pool.size",
        "offloads_at_once",
        Whole(1, 64),
        "Number of ledgers offloaded concurrently; each uses about 30 MiB of memory.",
        **LIVE,
    ),
    of_config(
        "headrace.orphan.grace.ms",
        "orphan_grace_ms",
        Whole(60_000, INT64_MAX),
        "How long an object must have been unreferenced before it is deleted.",
        **LIVE,
    ),
)

_CONNECTIONS = (
    of_config(
        "headrace.metrics.partitions.max",
        "metrics_partitions_max",
        Whole(0, 5_000),
        "Partitions that have metrics of their own (`headrace_log_*`, four series each): the first"
        " that are loaded; `headrace_partitions_without_series` counts the others. 0: none; sizes"
        " of topics are in `headrace_topic_size_bytes`.",
        **LIVE,
    ),
    of_config(
        "max.connections",
        "connections_max",
        Whole(0, UNLIMITED),
        "Maximum number of client connections; further ones are closed at once. The inter-broker"
        " listener, if it is not the only one, is exempt. `listener.name.<name>.max.connections`"
        " limits one listener, and needs a restart.",
        can_differ=True,
        **LIVE,
    ),
    of_config(
        "max.connections.per.ip",
        "connections_per_ip_max",
        Whole(0, UNLIMITED),
        "Maximum number of connections from one address, of all listeners together. With the"
        " default, an address beyond loopback has 8,192, or a quarter of the descriptors that the"
        " broker may open if that is less; max.connections.per.ip.overrides can lift this for one."
        " Of IPv6, a /64 is one address, but for addresses with an override.",
        **LIVE,
    ),
    of_config(
        "max.connections.per.ip.overrides",
        "connections_per_ip_overrides",
        Overrides(),
        "Other limits for some addresses: ADDRESS:COUNT,...",
        **LIVE,
    ),
    of_config(
        "headrace.max.connections.per.user",
        "connections_per_user_max",
        Whole(0, UNLIMITED),
        "Maximum number of Kafka connections of one authenticated principal.",
        **LIVE,
    ),
    of_config(
        "max.connection.creation.rate",
        "connection_rate_max",
        Whole(1, UNLIMITED),
        "New connections per second: further ones are served later, those over HTTP are closed."
        " `listener.name.<name>.max.connection.creation.rate` limits one listener, and needs a"
        " restart. Limits of one address are quotas (connection_creation_rate).",
        can_differ=True,
        **LIVE,
    ),
    of_config(
        "connections.max.idle.ms",
        "connections_idle_max_ms",
        Whole(1_000, INT64_MAX),
        "How long a connection may be idle before it is closed.",
        **LIVE,
    ),
    of_config(
        "fetch.max.bytes",
        "fetch_bytes_max",
        Whole(1_024),
        "Maximum bytes of records in a fetch response.",
    ),
    of_config(
        "max.incremental.fetch.session.cache.slots",
        "fetch_sessions_max",
        Whole(0, 1_000_000),
        "Maximum number of incremental fetch sessions.",
    ),
    of_config(
        "queued.max.request.bytes",
        "request_memory_bytes_max",
        Whole(16 * 1024 * 1024),
        "Memory for large requests that are received or handled. When it is short, further ones"
        " wait, and clients that have begun a request and send nothing more are disconnected.",
    ),
    of_config(
        "headrace.tenant.queued.max.request.bytes",
        "tenant_request_bytes_max",
        Whole(64 * 1024),
        "What each tenant may have of requests that are handled at a time, with 4 KiB for each"
        " request; further ones wait, and their connections are not read. So a tenant waits for no"
        " more than this of another tenant's. One that writes over a slow disk may need more.",
        **LIVE,
    ),
    of_config(
        "queued.max.response.bytes",
        "response_bytes_max",
        Whole(16 * 1024 * 1024),
        "Memory for large responses that wait for their clients to read them, over Kafka's"
        " protocol, and as much over HTTP. When it is short, reads get smaller or wait, and clients"
        " that read nothing are disconnected.",
    ),
    of_config(
        "socket.request.max.bytes",
        "request_bytes_max",
        Whole(65_536),
        "Maximum size of a request.",
    ),
)

_ACCESS = (
    of_config(
        "headrace.authorizer",
        "authorizer",
        OneOf(("auto", ACL, "none")),
        "Who decides what clients may do: acl (access control lists, as Kafka's"
        " StandardAuthorizer), none (everybody may do everything), or auto: acl if a listener"
        " authenticates its clients, otherwise none.",
        is_common=True,
    ),
    of_config(
        "headrace.audit.topic",
        "audit_topic",
        Text("TOPIC"),
        "Topic that gets the audit log, too: denials and administrative changes, one JSON object a"
        " record. Created with one partition if it is missing. Default: only the log file.",
    ),
    of_config(
        "super.users",
        "super_users",
        Text("PRINCIPALS"),
        "Principals that may do everything, separated by semicolons: User:admin;User:ops.",
        is_common=True,
    ),
    of_config(
        "headrace.tenants",
        "tenants",
        Text("TENANTS"),
        "Principals of tenants besides those of `headrace tenant`, separated by semicolons:"
        " acme=User:alice;acme=User:bob;beta=User:carol. Each tenant has its own names of topics,"
        " groups and transactional ids. Needs access control lists, and the same value on every"
        " broker.",
    ),
    of_config(
        "allow.everyone.if.no.acl.found",
        "allow_everyone_if_no_acl",
        Switch(),
        "Whether everybody may use a resource that no access control list names.",
    ),
)

SECTIONS: Mapping[str, tuple[BrokerSetting, ...]] = {
    "Listeners and files": _PLACES,
    "Security of listeners": SECURITY,
    "TLS of listeners": TLS_OF_LISTENERS,
    "Authentication": AUTHENTICATION,
    "Topics": _TOPICS,
    "Defaults of topic settings": _OF_TOPICS,
    "Groups": _GROUPS,
    "Transactions": _TRANSACTIONS,
    "Retention and compaction": _HOUSEKEEPING,
    "Object storage": _TIERS,
    "Schemas of values": SCHEMAS,
    "Connections and requests": _CONNECTIONS,
    "Authorization": _ACCESS,
    "Cluster": JOINING,
    "TLS within a cluster": TLS,
    "Balance and housekeeping of a cluster": BALANCE,
}
"""In the order of the reference page."""
SETTINGS: Mapping[str, BrokerSetting] = {
    setting.name: setting for section in SECTIONS.values() for setting in section
}


_OF_LISTENER: Final = re.compile(r"listener\.name\.[a-z0-9_]{1,64}\.(.{1,100})")


def setting_named(name: str) -> BrokerSetting:
    """The setting, which may be one of a listener (`listener.name.internal.ssl.client.auth`).
    Raises ConfigInvalid."""
    setting = SETTINGS.get(name)
    own = _OF_LISTENER.fullmatch(name)
    if own is not None and (base := SETTINGS.get(own[1])) is not None and base.can_differ:
        return replace(base, name=name, default=None, is_common=False)
    if setting is None:
        raise ConfigInvalid(
            f"unknown broker setting {name[:100]!r}; nothing was changed. See"
            " `headrace config list --all`"
        )
    return setting


def topic_default_of(setting: BrokerSetting) -> str | None:
    """The topic setting whose default this is; None for other settings."""
    return _TOPIC_DEFAULTS.get(setting.name)
