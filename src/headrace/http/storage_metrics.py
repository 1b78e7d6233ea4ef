"""Figures of storage: disks, ledgers, logs, topics, compaction, object storage, the cluster.

Invariants: see `metrics`. Each function gets the part that it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace.broker.housekeeping.replication import count_partitions
from headrace.http.metric_table import Buckets, family, figure, histogram
from headrace.log.tiering import local_size_bytes
from headrace.runtime.session import SessionState
from headrace.storage.ledger import CachesBytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from headrace.broker.housekeeping.compactor import Compactor
    from headrace.broker.housekeeping.ledger_garbage import LedgerGarbageCollector
    from headrace.broker.housekeeping.replication import Replication
    from headrace.broker.housekeeping.tiering import Tiering
    from headrace.broker.services.health import Health
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.runtime.histogram import Histogram
    from headrace.storage.ledger import ReportsSpace

TOPICS_MAX: Final = 1_000


class Counters(Protocol):
    """What the storage counts."""

    appends: int
    groups: int
    append_bytes: int
    sync_durations: Histogram
    sync_ns_last: int
    wal_bytes: int
    checkpoints: int
    errors: int


def counter_metrics(counters: Counters | None, store: object) -> Iterable[Metric]:
    """Of the ledgers; `counters` is None if they are not on this machine."""
    if isinstance(store, CachesBytes):
        yield figure("headrace_cache_bytes", store.cached_bytes)
    if counters is None:
        return
    yield figure("headrace_storage_appends", counters.appends)
    yield figure("headrace_storage_groups", counters.groups)
    yield figure("headrace_storage_bytes", counters.append_bytes)
    yield figure("headrace_storage_wal_bytes", counters.wal_bytes)
    yield histogram("headrace_storage_sync_duration_seconds", Buckets((), counters.sync_durations))
    yield figure("headrace_storage_checkpoints", counters.checkpoints)
    yield figure("headrace_storage_errors", counters.errors)


def disk_metrics(disk: ReportsSpace | None) -> Iterable[Metric]:
    """Of the data directory's disk."""
    if disk is None:
        return
    try:
        space = disk.space()
    except OSError:
        return  # a gap in the series; `/readyz` logs why
    yield figure("headrace_disk_free_bytes", space.free_bytes)
    yield figure("headrace_disk_total_bytes", space.total_bytes)
    yield figure("headrace_disk_reserve_bytes", space.reserve_bytes)
    yield figure("headrace_disk_is_full", float(space.is_full))


def topic_metrics(topics: Topics) -> Iterable[Metric]:
    """What went in and out."""
    shown = list(topics.traffic.items())[:TOPICS_MAX]
    for name in ("in_records", "in_bytes", "out_records", "out_bytes"):
        counter = family(f"headrace_topic_{name}")
        for topic, partitions in shown:
            total = sum(getattr(traffic, name) for traffic in partitions.values())
            counter.add_metric([topic], total)
        yield counter
    yield figure("headrace_topics_without_series", len(topics.traffic) - len(shown))


def log_metrics(topics: Topics, health: Health, partitions_max: int) -> Iterable[Metric]:
    """Of the partitions that are loaded here. So many have series of their own: four each, which
    would make a scrape slow for all clients, and fill the monitoring system."""
    sizes = family("headrace_topic_size_bytes")
    end = family("headrace_log_end_offset")
    start = family("headrace_log_start_offset")
    size = family("headrace_log_size_bytes")
    local = family("headrace_log_local_size_bytes")
    count = loaded = 0
    for rank, topic in enumerate(topics.by_name.values()):
        count += len(topic.partitions)
        topic_bytes = 0
        for number, partition in topic.logs:
            if not partition.is_loaded:
                continue
            loaded += 1
            topic_bytes += partition.size_bytes
            if loaded > partitions_max:
                continue
            at = [topic.name, str(number)]
            end.add_metric(at, partition.high_watermark)
            start.add_metric(at, partition.log_start_offset)
            size.add_metric(at, partition.size_bytes)
            local.add_metric(at, local_size_bytes(partition))
        if rank < TOPICS_MAX:
            sizes.add_metric([topic.name], topic_bytes)
    yield figure("headrace_topics", len(topics.by_name))
    yield figure("headrace_partitions", count)
    yield figure("headrace_partitions_damaged", len(health.damaged_partitions()))
    yield figure("headrace_problems", len(health.problems()))
    yield figure("headrace_partitions_without_series", max(loaded - partitions_max, 0))
    yield from (sizes, end, start, size, local)


def garbage_metrics(garbage: LedgerGarbageCollector | None) -> Iterable[Metric]:
    """What the last sweep found to be lost."""
    if garbage is not None:
        found = garbage.found
        count = len(found.missing) + len(found.proved) + len(found.lost_topics)
        yield figure("headrace_facts_lost", count)


def cluster_metrics(
    topics: Topics, ownership: Ownership, replication: Replication | None
) -> Iterable[Metric]:
    """Of the cluster; `replication` is None for files."""
    lacking = {} if replication is None else replication.lacking
    counts = count_partitions(topics, ownership, lacking)
    yield figure("headrace_partitions_owned", counts.owned)
    yield figure("headrace_partitions_offline", counts.offline)
    if replication is None:
        return
    yield figure("headrace_partitions_under_replicated", counts.under_replicated)
    yield figure("headrace_copies_missing", sum(lacking.values()))
    yield figure("headrace_can_write", float(replication.obstacle() is None))
    replicas = replication.ledgers.replication()
    bookies = family("headrace_bookies")
    for state, names in (
        ("known", replicas.known),
        ("registered", replicas.registered),
        ("writable", replicas.writable),
        ("read_only", replicas.read_only),
        ("quarantined", replicas.quarantined),
    ):
        bookies.add_metric([state], len(names))
    yield bookies
    damaged = family("headrace_copies_damaged")
    for bookie, count in replicas.damaged.items():
        damaged.add_metric([bookie], count)
    yield damaged
    session = family("headrace_zookeeper_session")
    for one in SessionState:
        session.add_metric([one.value], float(replication.session.state is one))
    yield session


def tiering_metrics(tiering: Tiering) -> Iterable[Metric]:
    """Of object storage."""
    figures = tiering.figures()
    counters = figures.counters
    yield figure("headrace_tier_away", float(figures.is_away))
    yield figure("headrace_tier_pending_ledgers", figures.pending_ledgers)
    yield figure("headrace_tier_pending_bytes", figures.pending_bytes)
    for name, value in (
        ("offloads", counters.offloads),
        ("offload_bytes", counters.offload_bytes),
        ("cold_reads", counters.cold_reads),
        ("cold_read_bytes", counters.cold_bytes),
        ("corrupt_blocks", counters.corrupt_blocks),
        ("deletes", counters.deletes),
        ("failures", counters.failures),
    ):
        yield figure(f"headrace_tier_{name}", value)


def compaction_metrics(compactor: Compactor) -> Iterable[Metric]:
    """Of log compaction."""
    yield figure("headrace_compaction_dirty_ratio", compactor.dirty_ratio)
    yield figure("headrace_compaction_last_round_seconds", compactor.last_round_ms / 1000)
    for name, value in (
        ("rounds", compactor.rounds),
        ("failures", compactor.failures),
        ("read_bytes", compactor.read_bytes),
        ("written_bytes", compactor.written_bytes),
        ("removed_records", compactor.removed_records),
    ):
        yield figure(f"headrace_compaction_{name}", value)
