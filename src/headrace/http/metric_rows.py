"""The rows of the table of metrics. See `metric_table`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Row(NamedTuple):
    """One metric."""

    name: str
    """A counter's without `_total`."""
    type: str
    help: str
    labels: tuple[str, ...] = ()
    bound: str = ""
    """What limits the number of series."""


def _counter(name: str, text: str, *labels: str, bound: str = "") -> Row:
    return Row(f"headrace_{name}", "counter", text, labels, bound)


def _gauge(name: str, text: str, *labels: str, bound: str = "") -> Row:
    return Row(f"headrace_{name}", "gauge", text, labels, bound)


def _histogram(name: str, text: str, *labels: str, bound: str = "") -> Row:
    return Row(f"headrace_{name}", "histogram", text, labels, bound)


_TOPICS: Final = "the first 1,000 topics; headrace_topics_without_series counts the others"
_PARTITIONS: Final = "headrace.metrics.partitions.max partitions that are loaded, by default none"
_GROUPS: Final = "5,000 partitions of groups that this broker coordinates"
_QUEUES: Final = "1,000 groups and topics, those used last"
_APIS: Final = "the APIs that were used"

SECTIONS: Final[Mapping[str, Sequence[Row]]] = {
    "Process": (
        _gauge(
            "build_info",
            "Always 1; the labels are the version of Headrace, the version of Python, and whether"
            " the core is compiled or pure Python.",
            *("version", "python", "core"),
            bound="one",
        ),
        Row("process_cpu_seconds", "counter", "Total user and system CPU time spent in seconds."),
        Row("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
        Row("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes."),
        Row(
            "process_start_time_seconds",
            "gauge",
            "Start time of the process since unix epoch in seconds.",
        ),
        Row("process_open_fds", "gauge", "Number of open file descriptors."),
        Row("process_max_fds", "gauge", "Maximum number of open file descriptors."),
        _gauge("process_max_resident_bytes", "The largest resident memory size since the start."),
        _gauge("tasks", "Number of asyncio tasks."),
        _histogram(
            "loop_lag_seconds",
            "How late the event loop ran a timer, measured four times a second. Requests wait at"
            " least this long.",
        ),
        _gauge(
            "certificate_expires_seconds",
            "Time until a certificate of a TLS listener expires; negative once it has expired. The"
            " server name is empty for the listener's own.",
            "listener",
            "server_name",
            bound="the TLS listeners, and headrace.sni.certificates",
        ),
        _gauge(
            "trusted_ca_expires_seconds",
            "Time until the first of the CA certificates that a TLS listener trusts"
            " (ssl.truststore) expires; negative once it has expired.",
            "listener",
            bound="the TLS listeners",
        ),
    ),
    "Kafka requests": (
        _counter("requests", "Requests received, by API.", "api", bound=_APIS),
        _histogram(
            "request_duration_seconds",
            "Time from receiving a request to sending its response, by API. For Fetch and other"
            " requests that wait for data, this includes the wait. Requests without a response"
            " (acks=0) are not included.",
            "api",
            bound=_APIS,
        ),
        _counter(
            "request_errors",
            "Errors in responses, by API and Kafka error name: one for each partition, group or"
            " resource that failed.",
            *("api", "error"),
            bound="the APIs and errors that occurred",
        ),
        _gauge("connections", "Open Kafka connections."),
        _gauge(
            "client_connections",
            "Open Kafka connections, by the client software and version that the client reports.",
            *("software", "version"),
            bound='100 pairs; others are counted as "other", clients that do not say as "unknown"',
        ),
        _counter(
            "logins",
            "Authentication attempts, by mechanism and outcome (success or failure).",
            *("mechanism", "outcome"),
            bound="the mechanisms",
        ),
        _counter("produce_records", "Records appended by clients of this broker."),
        _counter("produce_bytes", "Bytes of record batches appended by clients of this broker."),
        _counter("produce_batches", "Record batches appended by clients of this broker."),
        _counter("produce_errors", "Record batches of Produce requests that were refused."),
        _counter("delayed_records", "Records that were stored for delayed delivery."),
        _counter(
            "named_duplicates",
            "Records that were not appended because a record with the same producer and sequence"
            " header was appended before.",
        ),
        _counter(
            "unread_attributes_batches",
            "Opened batches with queue attributes on topics that ignore them.",
        ),
        _counter("fetch_bytes", "Bytes of Fetch responses."),
        _gauge("fetches_waiting", "Fetch requests that are waiting for data."),
        _gauge("fetch_sessions", "Cached incremental fetch sessions (KIP-227)."),
        _counter(
            "throttled_requests",
            "Requests and connections that were throttled by a quota, by type of quota.",
            "quota",
            bound="the types of quotas",
        ),
        _counter(
            "throttle_time_seconds",
            "Total throttle time, by type of quota.",
            "quota",
            bound="the types of quotas",
        ),
        _counter(
            "tenant_share_waits",
            "Requests that waited for room in the share of their tenant"
            " (headrace.tenant.queued.max.request.bytes).",
        ),
        _counter("client_pushes", "Client metrics that were pushed by clients (KIP-714)."),
        _counter(
            "client_pushes_refused",
            "Requests about client metrics that were refused: too early, too large or malformed.",
        ),
        _gauge(
            "client_metric",
            "The last value of a metric that a client has pushed (KIP-714).",
            *("client_id", "instance", "software", "metric", "attributes"),
            bound="20,000 values of 16,384 clients",
        ),
    ),
    "HTTP requests": (
        _histogram(
            "http_request_duration_seconds",
            "Time from receiving an HTTP request to the end of its response, by operation of the"
            " API. Long polls and streams include their wait.",
            "operation",
            bound="the operations of the API",
        ),
        _counter(
            "http_requests",
            "HTTP requests, by operation of the API and status code.",
            *("operation", "status"),
            bound="the operations and status codes that occurred",
        ),
        _gauge("http_connections", "Open HTTP connections."),
    ),
    "Topics": (
        _gauge("topics", "Topics in the cluster."),
        _gauge("topics_without_series", "Topics without series of their own below."),
        _counter(
            "topic_in_records",
            "Records appended to a topic's partitions on this broker, with transaction markers.",
            "topic",
            bound=_TOPICS,
        ),
        _counter(
            "topic_in_bytes",
            "Bytes of record batches appended to a topic's partitions on this broker.",
            "topic",
            bound=_TOPICS,
        ),
        _counter(
            "topic_out_records",
            "Records of a topic that this broker sent to consumers: offsets passed, so records that"
            " compaction removed count as well.",
            "topic",
            bound=_TOPICS,
        ),
        _counter(
            "topic_out_bytes",
            "Bytes of a topic's record batches that this broker sent to consumers.",
            "topic",
            bound=_TOPICS,
        ),
        _gauge("partitions", "Partitions in the cluster."),
        _gauge("partitions_owned", "Partitions that this broker serves."),
        _gauge("partitions_offline", "Partitions of the cluster that no live broker serves."),
        _gauge(
            "partitions_damaged",
            "Partitions that are not served because their data is damaged or missing.",
        ),
        _gauge(
            "problems",
            "Things that this broker cannot serve, or not as configured; /readyz and `headrace"
            " health` list them with reasons.",
        ),
        _gauge(
            "topic_size_bytes",
            "Size of a topic's partitions that are loaded here, including offloaded data.",
            "topic",
            bound="the first 1,000 topics",
        ),
        _gauge(
            "partitions_without_series",
            "Loaded partitions beyond headrace.metrics.partitions.max.",
        ),
        _gauge(
            "log_end_offset",
            "The high watermark of a partition.",
            *("topic", "partition"),
            bound=_PARTITIONS,
        ),
        _gauge(
            "log_start_offset",
            "The first offset of a partition.",
            *("topic", "partition"),
            bound=_PARTITIONS,
        ),
        _gauge(
            "log_size_bytes",
            "Size of a partition, including offloaded data.",
            *("topic", "partition"),
            bound=_PARTITIONS,
        ),
        _gauge(
            "log_local_size_bytes",
            "Size of a partition without data that is in object storage only.",
            *("topic", "partition"),
            bound=_PARTITIONS,
        ),
    ),
    "Consumer groups": (
        _gauge("groups", "Consumer groups that this broker coordinates."),
        _gauge("group_members", "Members of the consumer groups that this broker coordinates."),
        _counter("group_rebalances", "Rebalances of consumer groups."),
        _counter("group_commits", "Offset commits."),
        _gauge(
            "group_lag_records",
            "Records between a group's committed offset and the high watermark of a partition.",
            *("group", "topic", "partition"),
            bound=_GROUPS,
        ),
        _gauge(
            "group_lag_seconds",
            "Age of the first record that a group has not committed, over the partitions of a"
            " topic: the largest. 0 without lag; absent if that record is not in memory.",
            *("group", "topic"),
            bound=_GROUPS,
        ),
    ),
    "Queues": (
        _gauge(
            "share_group_lag_records",
            "Records that a share group has not finished yet.",
            *("group", "topic", "partition"),
            bound=_PARTITIONS,
        ),
        _counter(
            "queue_delivered_records",
            "Records delivered to a share group's consumers; redeliveries count again.",
            *("group", "topic"),
            bound=_QUEUES,
        ),
        _counter(
            "queue_acknowledged_records",
            "Records that consumers acknowledged.",
            *("group", "topic"),
            bound=_QUEUES,
        ),
        _counter(
            "queue_filtered_records",
            "Records that were skipped because the group or a receive does not select them.",
            *("group", "topic"),
            bound=_QUEUES,
        ),
        _counter(
            "queue_released_records",
            "Records that consumers released for redelivery (nack).",
            *("group", "topic"),
            bound=_QUEUES,
        ),
        _counter(
            "queue_timed_out_records",
            "Records whose lock expired before they were settled.",
            *("group", "topic"),
            bound=_QUEUES,
        ),
        _counter(
            "queue_given_up_records",
            "Records that were rejected or delivered too often, with or without a copy in a dead"
            " letter topic.",
            *("group", "topic"),
            bound=_QUEUES,
        ),
        _gauge(
            "queue_in_flight_records",
            "Records that consumers of a share group hold.",
            *("group", "topic"),
            bound=_PARTITIONS,
        ),
        _gauge(
            "queue_oldest_seconds",
            "Age of the first unfinished record of a share group; absent if there is none, or if"
            " it is not in memory.",
            *("group", "topic"),
            bound=_PARTITIONS,
        ),
        _counter("dead_letters_copied", "Records copied to dead letter topics."),
        _counter("dead_letters_failed", "Failed attempts to copy a record to a dead letter topic."),
        _counter(
            "dead_letters_given_up", "Records that could not be copied to a dead letter topic."
        ),
    ),
    "Delayed and half messages": (
        _gauge("delayed_pending", "Records waiting for their delivery time."),
        _gauge(
            "delayed_next_due_seconds",
            "Time until the next delayed record is due; negative if it is late, -1 without any.",
        ),
        _gauge("delayed_delivering", "Delayed records that are due and being appended."),
        _counter("delayed_delivered", "Delayed records that were delivered."),
        _counter(
            "delayed_refused",
            "Delayed records that were due and could not be read; the log names each.",
        ),
        _histogram(
            "delayed_lateness_seconds",
            "Time from the delivery time of a delayed record to its append.",
        ),
        _gauge("half_pending", "Half messages that are neither committed nor rolled back."),
        _gauge("timer_log_bytes", "Size of the logs of delayed and half messages."),
    ),
    "Storage": (
        _gauge("cache_bytes", "Memory of the entry cache."),
        _counter("storage_appends", "Appends to ledgers."),
        _counter("storage_groups", "Group commits."),
        _counter("storage_bytes", "Bytes appended to ledgers."),
        _counter("storage_wal_bytes", "Bytes written to the write-ahead log."),
        _histogram(
            "storage_sync_duration_seconds",
            "Duration of a sync of the write-ahead log. Acknowledgements wait for it.",
        ),
        _counter("storage_checkpoints", "Checkpoints of the write-ahead log."),
        _counter("storage_errors", "Failed writes and syncs."),
        _gauge("disk_free_bytes", "Free space of the data directory's disk."),
        _gauge("disk_total_bytes", "Size of the data directory's disk."),
        _gauge("disk_reserve_bytes", "Space that is reserved for metadata."),
        _gauge("disk_is_full", "1 while records are refused for lack of disk space, otherwise 0."),
        _gauge(
            "compaction_dirty_ratio",
            "The largest uncompacted part of a compacted partition, from 0 to 1.",
        ),
        _gauge(
            "compaction_last_round_seconds",
            "When the last round of compaction ended, in seconds since 1970; 0 for never.",
        ),
        _counter("compaction_rounds", "Rounds of compaction that succeeded."),
        _counter("compaction_failures", "Rounds of compaction that failed."),
        _counter("compaction_read_bytes", "Bytes read by compaction."),
        _counter("compaction_written_bytes", "Bytes written by compaction."),
        _counter("compaction_removed_records", "Records removed by compaction."),
    ),
    "Object storage": (
        _gauge("tier_away", "1 while object storage fails, otherwise 0."),
        _gauge(
            "tier_table_missing",
            "Ledgers whose records are in a topic's table alone, and for which the last daily audit"
            " missed a file or a tag of the table.",
        ),
        _gauge(
            "tier_table_unread",
            "Topics whose records are in their table alone, and whose table's tags the last daily"
            " audit could not read.",
        ),
        _gauge("tier_pending_ledgers", "Ledgers that wait to be offloaded."),
        _gauge("tier_pending_bytes", "Bytes of ledgers that wait to be offloaded."),
        _counter("tier_offloads", "Ledgers offloaded."),
        _counter("tier_offload_bytes", "Bytes offloaded."),
        _counter("tier_cold_reads", "Requests to object storage for reads."),
        _counter("tier_cold_read_bytes", "Bytes read from object storage."),
        _counter("tier_corrupt_blocks", "Reads of objects that were damaged."),
        _counter("tier_deletes", "Objects deleted."),
        _counter("tier_failures", "Failed operations of object storage."),
    ),
    "Cluster": (
        _gauge(
            "partitions_under_replicated",
            "Owned partitions with entries that lack copies, or without enough bookies for the"
            " next ones.",
        ),
        _gauge("copies_missing", "Missing copies of entries of owned partitions."),
        _counter(
            "copies_damaged",
            "Damaged copies of entries that reads and recoveries met; other copies were used.",
            "bookie",
            bound="the bookies",
        ),
        _gauge("can_write", "1 if enough bookies are writable; 0 while /readyz says why not."),
        _gauge("bookies", "Bookies by state.", "state", bound="five states"),
        _gauge(
            "zookeeper_session",
            "1 for the current state of the ZooKeeper session, 0 for the others.",
            "state",
            bound="the states of a session",
        ),
        _gauge(
            "facts_lost",
            "Chains of ledgers and topics found lost by this broker's last sweep, if it sweeps.",
        ),
    ),
}
"""By the headings of the reference page."""
