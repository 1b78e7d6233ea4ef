"""Figures of storage: disks, ledgers, logs, topics, compaction, object storage, the cluster.

Invariants: see `runtime.figures`. Each function gets the part that it reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.housekeeping.replication import count_partitions
from headrace.log.tiering import local_size_bytes
from headrace.runtime.figures import Figures, figure
from headrace.runtime.session import SessionState
from headrace.storage.ledger import CachesBytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.broker.housekeeping.compactor import Compactor
    from headrace.broker.housekeeping.ledger_garbage import LedgerGarbageCollector
    from headrace.broker.housekeeping.replication import Replication
    from headrace.broker.housekeeping.tiering import Tiering
    from headrace.broker.services.configurations import Configurations
    from headrace.broker.services.health import Health
    from headrace.broker.services.topic_service import TopicService
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.storage.files.wal_sync import Counters

TOPICS_MAX: Final = 1_000


def cache_figures(store: object) -> Iterable[Figures]:
    """Of the entries of ledgers that are kept in memory, if they are."""
    if isinstance(store, CachesBytes):
        yield figure("headrace_cache_bytes", store.cached_bytes)


def counter_figures(counters: Counters) -> Iterable[Figures]:
    """Of ledgers on this machine."""
    yield figure("headrace_storage_appends", counters.appends)
    yield figure("headrace_storage_groups", counters.groups)
    yield figure("headrace_storage_bytes", counters.append_bytes)
    yield figure("headrace_storage_wal_bytes", counters.wal_bytes)
    yield figure("headrace_storage_sync_duration_seconds", counters.sync_durations)
    yield figure("headrace_storage_checkpoints", counters.checkpoints)
    yield figure("headrace_storage_errors", counters.errors)


def disk_figures(topics: TopicService) -> Iterable[Figures]:
    """Of the data directory's disk."""
    disk = topics.disk
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


def topic_figures(topics: Topics) -> Iterable[Figures]:
    """What went in and out."""
    shown = list(topics.logs.traffic.items())[:TOPICS_MAX]
    for name in ("in_records", "in_bytes", "out_records", "out_bytes"):
        counter = Figures(f"headrace_topic_{name}")
        for topic, partitions in shown:
            total = sum(getattr(traffic, name) for traffic in partitions.values())
            counter.add([topic], total)
        yield counter
    yield figure("headrace_topics_without_series", len(topics.logs.traffic) - len(shown))


def log_figures(
    topics: Topics, health: Health, configurations: Configurations
) -> Iterable[Figures]:
    """Of the partitions that are loaded here. A few have series of their own: four each, which
    would make a scrape slow for all clients, and fill the monitoring system."""
    partitions_max = configurations.series_partitions_max
    sizes = Figures("headrace_topic_size_bytes")
    end = Figures("headrace_log_end_offset")
    start = Figures("headrace_log_start_offset")
    size = Figures("headrace_log_size_bytes")
    local = Figures("headrace_log_local_size_bytes")
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
            end.add(at, partition.high_watermark)
            start.add(at, partition.log_start_offset)
            size.add(at, partition.size_bytes)
            local.add(at, local_size_bytes(partition))
        if rank < TOPICS_MAX:
            sizes.add([topic.name], topic_bytes)
    yield figure("headrace_topics", len(topics.by_name))
    yield figure("headrace_partitions", count)
    yield figure("headrace_partitions_damaged", len(health.damaged_partitions()))
    yield figure("headrace_problems", len(health.problems()))
    yield figure("headrace_partitions_without_series", max(loaded - partitions_max, 0))
    yield from (sizes, end, start, size, local)


def garbage_figures(garbage: LedgerGarbageCollector) -> Iterable[Figures]:
    """What the last sweep found to be lost."""
    found = garbage.found
    count = len(found.missing) + len(found.proved) + len(found.lost_topics)
    yield figure("headrace_facts_lost", count)


def cluster_figures(
    topics: Topics, ownership: Ownership, replication: Replication | None
) -> Iterable[Figures]:
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
    bookies = Figures("headrace_bookies")
    for state, names in (
        ("known", replicas.known),
        ("registered", replicas.registered),
        ("writable", replicas.writable),
        ("read_only", replicas.read_only),
        ("quarantined", replicas.quarantined),
    ):
        bookies.add([state], len(names))
    yield bookies
    damaged = Figures("headrace_copies_damaged")
    for bookie, count in replicas.damaged.items():
        damaged.add([bookie], count)
    yield damaged
    session = Figures("headrace_zookeeper_session")
    for one in SessionState:
        session.add([one.value], float(replication.session.state is one))
    yield session


def tiering_figures(tiering: Tiering) -> Iterable[Figures]:
    """Of object storage."""
    figures = tiering.figures()
    counters = figures.counters
    yield figure("headrace_tier_away", float(figures.is_away))
    tabling = tiering.tabling
    yield figure("headrace_tier_table_missing", 0 if tabling is None else tabling.missing)
    yield figure("headrace_tier_table_unread", 0 if tabling is None else tabling.unread)
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


def compaction_figures(compactor: Compactor) -> Iterable[Figures]:
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
