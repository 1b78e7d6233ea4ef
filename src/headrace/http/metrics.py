"""Prometheus figures, read off the parts when somebody asks.

Invariants: parts keep plain integers; nothing here runs between two scrapes. A name ends in
its unit, counters in `_total`.
"""

from __future__ import annotations

import asyncio
import resource
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from headrace.broker.housekeeping.replication import count_partitions
from headrace.coordination.groups.commands import FetchOffsetsCommand, ListGroupsCommand
from headrace.errors import HeadraceError
from headrace.http.client_figures import client_figures
from headrace.log.reading import Miss
from headrace.log.tiering import local_size_bytes
from headrace.records.batch import read_header
from headrace.runtime.process_memory import process_memory
from headrace.runtime.session import SessionState
from headrace.storage.ledger import CachesBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.broker.node import Node
    from headrace.log.partition_log import PartitionLog
    from headrace.storage.ledger import Replicas

PARTITIONS_MAX = 5_000
"""Partitions that get series of their own: more would make a scrape slow for everybody."""
GROUPS_MAX = 1_000


class Counters(Protocol):
    """What the storage counts."""

    appends: int
    groups: int
    append_bytes: int
    syncs: int
    sync_ns_total: int
    wal_bytes: int
    checkpoints: int
    errors: int


class KafkaFigures(Protocol):
    """What the Kafka face counts."""

    connections: Any
    produce: Any
    fetch: Any

    def request_figures(self) -> Iterable[tuple[str, int]]:
        """(API name, requests) for each API."""
        ...


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _certificates(expiries: Sequence[tuple[str, int]], node: Node) -> Iterable[Metric]:
    if not expiries:
        return
    family = GaugeMetricFamily(
        "headrace_certificate_expires_seconds",
        "Until the certificate of a listener expires; negative: it has expired.",
        labels=["listener"],
    )
    now_s = node.clock.now_ms() / 1_000
    for listener, at_s in expiries:
        family.add_metric([listener], at_s - now_s)
    yield family


def _timestamp_ms(log: PartitionLog, offset: int) -> int:
    """The timestamp of the batch with this offset, if it is in memory, else -1."""
    try:
        found = log.reader.read_now(max(offset, log.log_start_offset), 1)
    except HeadraceError:
        return -1
    if isinstance(found, Miss) or not found[0]:
        return -1
    return read_header(found[0]).max_timestamp_ms


def _bookies(replicas: Replicas) -> Iterable[Metric]:
    bookies = GaugeMetricFamily("headrace_bookies", "Bookies by state.", labels=["state"])
    for state, names in (
        ("known", replicas.known),
        ("registered", replicas.registered),
        ("writable", replicas.writable),
        ("read_only", replicas.read_only),
        ("quarantined", replicas.quarantined),
    ):
        bookies.add_metric([state], len(names))
    yield bookies
    damaged = CounterMetricFamily(
        "headrace_copies_damaged",
        "Damaged copies of entries that were read since the start; other copies were used.",
        labels=["bookie"],
    )
    for bookie, count in replicas.damaged.items():
        damaged.add_metric([bookie], count)
    yield damaged


class Metrics(Collector):
    """All figures of one broker."""

    def __init__(self, node: Node, kafka: KafkaFigures, counters: Counters | None) -> None:
        self._node = node
        self._kafka = kafka
        self._counters = counters
        self._lags: list[tuple[str, str, int, int]] = []
        self._share_lags: list[tuple[str, str, int, int]] = []
        self._in_flight: dict[tuple[str, str], int] = {}
        self._oldest_ms: dict[tuple[str, str], int] = {}
        """(group, topic) -> the timestamp of the first unfinished record."""
        self.certificate_expiries: Callable[[], Sequence[tuple[str, int]]] = list
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def render(self) -> tuple[bytes, str]:
        """(the text, its content type)."""
        self._lags = await self._measure_lags()
        self._share_lags = self._measure_share_lags()
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    async def lags(self) -> list[tuple[str, str, int, int]]:
        """(group, topic, partition, records) of all groups on the partitions served here."""
        return [*await self._measure_lags(), *self._measure_share_lags()]

    async def _measure_lags(self) -> list[tuple[str, str, int, int]]:
        """(group, topic, partition, records behind) of all committed offsets."""
        listing = await self._node.groups.list_groups(ListGroupsCommand())
        lags: list[tuple[str, str, int, int]] = []
        for group in listing.groups[:GROUPS_MAX]:
            reply = await self._node.groups.submit(FetchOffsetsCommand(group.group_id))
            for offset in reply.offsets:
                topic = self._node.topics.by_name.get(offset.topic)
                partition = topic.log(offset.partition) if topic else None
                if partition is None or offset.offset < 0 or not partition.is_loaded:
                    continue  # a scrape loads none: eight that fail slowly took it 8 s
                behind = partition.high_watermark - offset.offset
                lags.append((group.group_id, offset.topic, offset.partition, max(behind, 0)))
        return lags

    def _measure_share_lags(self) -> list[tuple[str, str, int, int]]:
        """(group, topic, partition, unfinished records) of share groups on partitions served here.

        Those whose state is not loaded are left out: a scrape loads none.
        """
        self._in_flight.clear()
        self._oldest_ms.clear()
        lags: list[tuple[str, str, int, int]] = []
        for name, topic in list(self._node.topics.by_name.items()):
            for number, log in list(topic.logs):
                if not log.is_loaded or not self._node.ownership.is_mine(topic, number):
                    continue
                for one in self._node.shares.describe_loaded(topic, number):
                    behind = log.high_watermark - one.start - one.finished_records
                    lags.append((one.group_id, name, number, max(behind, 0)))
                    queue = one.group_id, name
                    flying = self._in_flight.get(queue, 0)
                    self._in_flight[queue] = flying + one.acquired_records
                    first_ms = _timestamp_ms(log, one.start) if behind > 0 else -1
                    if first_ms >= 0:
                        oldest_ms = self._oldest_ms.get(queue, first_ms)
                        self._oldest_ms[queue] = min(oldest_ms, first_ms)
        return lags

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        yield from self._requests()
        yield from self._quotas()
        yield from self._storage()
        yield from self._logs()
        yield from self._groups()
        yield from self._queues()
        yield from self._timers()
        yield from self._tiering()
        yield from self._compaction()
        yield from self._cluster()
        yield from client_figures(self._node.services.telemetry)
        yield from _certificates(self.certificate_expiries(), self._node)
        yield _gauge("headrace_tasks", "Tasks on the broker's loop.", len(asyncio.all_tasks()))
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime
        yield _counter("headrace_process_cpu_seconds", "CPU time of the broker.", cpu)
        memory = process_memory()
        yield _gauge("headrace_process_resident_bytes", "Memory held now.", memory.now_bytes)
        yield _gauge(
            "headrace_process_max_resident_bytes", "Most memory so far.", memory.peak_bytes
        )

    def _quotas(self) -> Iterable[Metric]:
        throttled = self._node.quotas.throttled
        counts = CounterMetricFamily(
            "headrace_throttled_requests", "Throttled requests and connections.", labels=["quota"]
        )
        times = CounterMetricFamily(
            "headrace_throttle_time_seconds", "Throttle time of answers.", labels=["quota"]
        )
        for key, figures in throttled.items():
            counts.add_metric([key], figures.count)
            times.add_metric([key], figures.time_ms / 1_000)
        yield counts
        yield times

    def _requests(self) -> Iterable[Metric]:
        kafka = self._kafka
        requests = CounterMetricFamily("headrace_requests", "Requests by API.", labels=["api"])
        for name, count in kafka.request_figures():
            requests.add_metric([name], count)
        yield requests
        produce, fetch = kafka.produce, kafka.fetch
        yield _gauge("headrace_connections", "Open Kafka connections.", len(kafka.connections))
        appends = self._node.appends
        yield _counter("headrace_produce_records", "Records appended.", appends.records_total)
        yield _counter("headrace_produce_bytes", "Bytes appended.", appends.bytes_total)
        yield _counter("headrace_produce_batches", "Batches appended.", appends.batches_total)
        yield _counter("headrace_delayed_records", "Records delayed.", appends.delayed_total)
        yield _counter(
            "headrace_named_duplicates",
            "Records left out because their named sequence had them already.",
            appends.duplicates_total,
        )
        yield _counter(
            "headrace_unread_attributes_batches",
            "Batches with queue attributes on topics that do not read them, of those opened.",
            appends.unread_attributes_total,
        )
        yield _counter("headrace_produce_errors", "Batches refused.", produce.errors_total)
        yield HistogramMetricFamily(
            "headrace_produce_latency_seconds",
            "From a Produce request to its answer; one request in 16 is measured.",
            buckets=produce.latency.cumulative(),
            sum_value=produce.latency.sum_s,
        )
        yield _counter("headrace_fetch_bytes", "Bytes sent to consumers.", fetch.bytes_total)
        yield _gauge("headrace_fetches_waiting", "Fetches in long poll.", fetch.waiting)
        yield _gauge("headrace_fetch_sessions", "Fetch sessions.", len(fetch.sessions))

    def _storage(self) -> Iterable[Metric]:
        store = self._node.store
        if isinstance(store, CachesBytes):
            yield _gauge(
                "headrace_cache_bytes", "Memory for what lies in ledgers.", store.cached_bytes
            )
        yield from self._disk()
        counters = self._counters
        if counters is None:  # the ledgers are not on this machine
            return
        yield _counter("headrace_storage_appends", "Appends to ledgers.", counters.appends)
        yield _counter("headrace_storage_groups", "Group commits.", counters.groups)
        yield _counter(
            "headrace_storage_bytes", "Bytes appended to ledgers.", counters.append_bytes
        )
        yield _counter("headrace_storage_wal_bytes", "Bytes written ahead.", counters.wal_bytes)
        yield _counter("headrace_storage_syncs", "Syncs of the log.", counters.syncs)
        yield _counter(
            "headrace_storage_sync_seconds", "Time spent in syncs.", counters.sync_ns_total / 1e9
        )
        yield _counter("headrace_storage_checkpoints", "Checkpoints.", counters.checkpoints)
        yield _counter("headrace_storage_errors", "Failed writes and syncs.", counters.errors)

    def _disk(self) -> Iterable[Metric]:
        disk = self._node.services.topics.disk
        if disk is None:
            return
        try:
            space = disk.space()
        except OSError:
            return  # a gap in the series; `/readyz` logs why
        yield _gauge("headrace_disk_free_bytes", "Free on the disk.", space.free_bytes)
        yield _gauge("headrace_disk_total_bytes", "Size of the disk.", space.total_bytes)
        yield _gauge("headrace_disk_reserve_bytes", "Kept free for metadata.", space.reserve_bytes)
        yield _gauge(
            "headrace_disk_is_full",
            "1 while records are refused for lack of disk space.",
            float(space.is_full),
        )

    def _logs(self) -> Iterable[Metric]:
        labels = ["topic", "partition"]
        end = GaugeMetricFamily("headrace_log_end_offset", "The next offset.", labels=labels)
        start = GaugeMetricFamily("headrace_log_start_offset", "The first offset.", labels=labels)
        size = GaugeMetricFamily("headrace_log_size_bytes", "Bytes kept.", labels=labels)
        local = GaugeMetricFamily(
            "headrace_log_local_size_bytes", "Bytes kept here, not only as objects.", labels=labels
        )
        count = loaded = 0
        for topic in self._node.topics.by_name.values():
            count += len(topic.partitions)
            for number, partition in topic.logs:
                if not partition.is_loaded or loaded >= PARTITIONS_MAX:
                    continue
                loaded += 1
                at = [topic.name, str(number)]
                end.add_metric(at, partition.high_watermark)
                start.add_metric(at, partition.log_start_offset)
                size.add_metric(at, partition.size_bytes)
                local.add_metric(at, local_size_bytes(partition))
        yield _gauge("headrace_topics", "Topics.", len(self._node.topics.by_name))
        yield _gauge("headrace_partitions", "Partitions.", count)
        yield _gauge(
            "headrace_partitions_damaged",
            "Partitions not served here: damaged, or without their chain of ledgers.",
            len(self._node.services.health.damaged_partitions()),
        )
        yield _gauge(
            "headrace_problems",
            "What is not served here, or not as it was set; see /readyz for the reasons.",
            len(self._node.services.health.problems()),
        )
        yield from (end, start, size, local)
        garbage = self._node.ledger_garbage
        if garbage is not None:
            found = garbage.found
            count = len(found.missing) + len(found.proved) + len(found.lost_topics)
            text = "Chains and topics that were lost, by this broker's last sweep, if it sweeps."
            yield _gauge("headrace_facts_lost", text, count)

    def _cluster(self) -> Iterable[Metric]:
        node, replication = self._node, self._node.replication
        lacking = {} if replication is None else replication.lacking
        counts = count_partitions(node.topics, node.ownership, lacking)
        yield _gauge("headrace_partitions_owned", "Served by this broker.", counts.owned)
        yield _gauge(
            "headrace_partitions_offline",
            "Partitions of the whole cluster that no living broker serves.",
            counts.offline,
        )
        if replication is None:
            return
        yield _gauge(
            "headrace_partitions_under_replicated",
            "Owned partitions that lack copies of entries, or a bookie for the next ones.",
            counts.under_replicated,
        )
        yield _gauge(
            "headrace_copies_missing",
            "Copies of entries of owned partitions that are missing.",
            sum(lacking.values()),
        )
        can_write = float(replication.obstacle() is None)
        yield _gauge("headrace_can_write", "0 while `/readyz` says why not.", can_write)
        replicas = replication.ledgers.replication()
        yield from _bookies(replicas)
        session = GaugeMetricFamily(
            "headrace_zookeeper_session", "1 for the state of the session.", labels=["state"]
        )
        for one in SessionState:
            session.add_metric([one.value], float(replication.session.state is one))
        yield session

    def _tiering(self) -> Iterable[Metric]:
        if self._node.tiering is None:
            return
        figures = self._node.tiering.figures()
        counters = figures.counters
        yield _gauge("headrace_tier_away", "1 while object storage fails.", float(figures.is_away))
        yield _gauge(
            "headrace_tier_pending_ledgers", "Ledgers to offload.", figures.pending_ledgers
        )
        yield _gauge("headrace_tier_pending_bytes", "Their bytes.", figures.pending_bytes)
        for name, text, value in (
            ("offloads", "Ledgers offloaded.", counters.offloads),
            ("offload_bytes", "Their bytes.", counters.offload_bytes),
            ("cold_reads", "Requests to object storage for reads.", counters.cold_reads),
            ("cold_read_bytes", "Bytes that they brought.", counters.cold_bytes),
            (
                "corrupt_blocks",
                "Reads of objects that were damaged: header, blocks, footer or checksums.",
                counters.corrupt_blocks,
            ),
            ("deletes", "Objects deleted.", counters.deletes),
            ("failures", "Failed operations of object storage.", counters.failures),
        ):
            yield _counter(f"headrace_tier_{name}", text, value)

    def _compaction(self) -> Iterable[Metric]:
        compactor = self._node.compactor
        yield _gauge(
            "headrace_compaction_dirty_ratio",
            "The largest part of a partition that compaction has not seen.",
            compactor.dirty_ratio,
        )
        yield _gauge(
            "headrace_compaction_last_round_seconds",
            "When the last round ended, since 1970; 0 for never.",
            compactor.last_round_ms / 1000,
        )
        for name, text, value in (
            ("rounds", "Rounds of log compaction that ended well.", compactor.rounds),
            ("failures", "Rounds that failed.", compactor.failures),
            ("read_bytes", "Bytes read by compaction.", compactor.read_bytes),
            ("written_bytes", "Bytes written by compaction.", compactor.written_bytes),
            ("removed_records", "Records removed by compaction.", compactor.removed_records),
        ):
            yield _counter(f"headrace_compaction_{name}", text, value)

    def _groups(self) -> Iterable[Metric]:
        figures = self._node.groups.counters()
        yield _gauge("headrace_groups", "Consumer groups.", figures.groups)
        yield _gauge("headrace_group_members", "Members of consumer groups.", figures.members)
        yield _counter("headrace_group_rebalances", "Rebalances.", figures.rebalances_total)
        yield _counter("headrace_group_commits", "Offset commits.", figures.commits_total)
        lag = GaugeMetricFamily(
            "headrace_group_lag_records",
            "Records that a group has not committed yet.",
            labels=["group", "topic", "partition"],
        )
        for group, topic, partition, behind in self._lags:
            lag.add_metric([group, topic, str(partition)], behind)
        yield lag
        share_lag = GaugeMetricFamily(
            "headrace_share_group_lag_records",
            "Records that a share group has not finished yet.",
            labels=["group", "topic", "partition"],
        )
        for group, topic, partition, behind in self._share_lags:
            share_lag.add_metric([group, topic, str(partition)], behind)
        yield share_lag
        letters = self._node.dead_letters
        for name, text, value in (
            ("copied", "Records copied to dead letter topics.", letters.copied_total),
            ("failed", "Failed attempts to copy records there.", letters.failed_total),
            ("given_up", "Records that cannot be copied there.", letters.given_up_total),
        ):
            yield _counter(f"headrace_dead_letters_{name}", text, value)

    def _queues(self) -> Iterable[Metric]:
        labels = ["group", "topic"]
        figures = list(self._node.shares.figures)
        for name, text in (
            ("delivered", "Records delivered, each time counted."),
            ("acknowledged", "Records acknowledged."),
            ("filtered", "Records skipped, because the group or a receive does not select them."),
            ("released", "Records released by consumers (nack)."),
            ("timed_out", "Records whose lock expired."),
            ("given_up", "Records rejected or delivered too often, with or without a copy."),
        ):
            counter = CounterMetricFamily(f"headrace_queue_{name}_records", text, labels=labels)
            for group, topic, counts in figures:
                counter.add_metric([group, topic], getattr(counts, name))
            yield counter
        flying = GaugeMetricFamily(
            "headrace_queue_in_flight_records", "Records that consumers hold.", labels=labels
        )
        for queue, count in self._in_flight.items():
            flying.add_metric([*queue], count)
        yield flying
        age = GaugeMetricFamily(
            "headrace_queue_oldest_seconds",
            "Age of the first unfinished record; none if there is none, or not in memory.",
            labels=labels,
        )
        for queue, first_ms in self._oldest_ms.items():
            age.add_metric([*queue], max(self._node.clock.now_ms() - first_ms, 0) / 1000)
        yield age

    def _timers(self) -> Iterable[Metric]:
        timers = self._node.timers.host
        states = [(hosted, state) for hosted in timers.hosted if (state := hosted.state)]
        due_ms = [ms for _, state in states if (ms := state.schedule.first_ms()) is not None]
        wait_s = (min(due_ms) - self._node.clock.now_ms()) / 1000 if due_ms else -1.0
        pending = sum(state.schedule.count for _, state in states)
        yield _gauge("headrace_delayed_pending", "Records that are due later.", pending)
        yield _gauge(
            "headrace_delayed_next_due_seconds",
            "Until the first of them is due, -1 without any; below 0: it is late.",
            wait_s,
        )
        taken = sum(state.outstanding_count for _, state in states)
        yield _gauge("headrace_delayed_delivering", "Records that are due and appended now.", taken)
        halves = sum(len(state.halves) for _, state in states)
        yield _gauge("headrace_half_pending", "Half messages that are not settled.", halves)
        stored = sum(hosted.companion.size_bytes for hosted, _ in states)
        yield _gauge("headrace_timer_log_bytes", "Bytes of timer companion logs.", stored)
        yield _counter(
            "headrace_delayed_delivered",
            "Delayed records delivered.",
            timers.figures.delivered_total,
        )
        yield _counter(
            "headrace_delayed_refused",
            "Delayed records that were due and could not be read: the log names each.",
            timers.figures.refused_total,
        )
        yield HistogramMetricFamily(
            "headrace_delayed_lateness_seconds",
            "From the time at which a record was due to its append.",
            buckets=timers.figures.lateness.cumulative(),
            sum_value=timers.figures.lateness.sum_s,
        )
