"""Prometheus figures, read off the parts when somebody asks.

Invariants: parts keep plain integers, and nothing here runs between two scrapes. A scrape loads no
log, reads nothing that is not in memory, and waits for nothing. Every metric is a row of
`metric_table`.
"""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from headrace.http.client_figures import client_figures
from headrace.http.group_metrics import (
    consumer_group_metrics,
    consumer_lags,
    dead_letter_metrics,
    share_group_metrics,
    share_lags,
    timer_metrics,
)
from headrace.http.metric_table import Buckets, family, figure, histogram
from headrace.http.storage_metrics import (
    cluster_metrics,
    compaction_metrics,
    counter_metrics,
    disk_metrics,
    garbage_metrics,
    log_metrics,
    tiering_metrics,
    topic_metrics,
)
from headrace.runtime import compiled
from headrace.runtime.process_memory import process_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from headrace.broker.node import Node
    from headrace.http.request_figures import HttpFigures
    from headrace.http.storage_metrics import Counters
    from headrace.runtime.histogram import Histogram
    from headrace.runtime.loop_lag import LoopLag

SOFTWARE_MAX = 100
"""Names and versions of client software with series of their own."""
OTHER = "other"


class Encoding(NamedTuple):
    """A format of metrics."""

    encode: Callable[[CollectorRegistry], bytes]
    content_type: str


TEXT = Encoding(generate_latest, CONTENT_TYPE_PLAIN_0_0_4)
OPEN_METRICS = Encoding(openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST)


def encoding_for(accepted: str) -> Encoding:
    """The format for an Accept header: OpenMetrics if it is named, as Prometheus does."""
    return OPEN_METRICS if "application/openmetrics-text" in accepted else TEXT


class KafkaFigures(Protocol):
    """What the Kafka face counts."""

    connections: Any
    produce: Any
    fetch: Any

    def request_figures(self) -> Iterable[tuple[str, int, Histogram]]:
        """(API name, requests, durations) of each API."""
        ...

    def error_figures(self) -> Iterable[tuple[str, str, int]]:
        """(API name, error name, count) of the errors in responses."""
        ...


class Metrics(Collector):
    """All figures of one broker."""

    def __init__(
        self,
        node: Node,
        kafka: KafkaFigures,
        counters: Counters | None,
        http: HttpFigures | None = None,
    ) -> None:
        self._node = node
        self._kafka = kafka
        self._counters = counters
        self._http = http
        self.certificate_expiries: Callable[[], Sequence[tuple[str, int]]] = list
        self.loop_lag: LoopLag | None = None
        self._process = ProcessCollector(registry=None)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    async def render(self, encoding: Encoding = TEXT) -> tuple[bytes, str]:
        """(the text, its content type)."""
        return encoding.encode(self._registry), encoding.content_type

    async def lags(self) -> list[tuple[str, str, int, int]]:
        """(group, topic, partition, records) of all groups on the partitions served here, as far
        as they are loaded."""
        node, shares = self._node, self._node.services.shares
        found = [
            *consumer_lags(node.groups, node.topics),
            *share_lags(shares, node.topics, node.ownership),
        ]
        return [(one.group, one.topic, one.partition, one.records) for one in found]

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        node, services = self._node, self._node.services
        topics, ownership, clock = node.topics, node.ownership, node.clock
        yield from self._requests()
        yield from self._clients()
        yield from self._logins()
        yield from self._throttling()
        if self._http is not None:
            yield from self._http.metrics()
        yield from counter_metrics(self._counters, node.store)
        yield from disk_metrics(services.topics.disk)
        yield from topic_metrics(topics)
        partitions_max = services.configurations.series_partitions_max
        yield from log_metrics(topics, services.health, partitions_max)
        yield from consumer_group_metrics(node.groups, topics, clock)
        yield from share_group_metrics(services.shares, topics, ownership, clock)
        yield from dead_letter_metrics(node.dead_letters)
        yield from timer_metrics(node.timers, clock)
        if node.tiering is not None:
            yield from tiering_metrics(node.tiering)
        yield from compaction_metrics(node.compactor)
        yield from cluster_metrics(topics, ownership, node.replication)
        yield from garbage_metrics(node.ledger_garbage)
        yield from client_figures(services.telemetry)
        yield from self._certificates()
        yield from self._runtime()

    def _requests(self) -> Iterable[Metric]:
        kafka = self._kafka
        requests = family("headrace_requests")
        used: list[Buckets] = []
        for name, count, durations in kafka.request_figures():
            requests.add_metric([name], count)
            if count:
                used.append(Buckets((name,), durations))
        yield requests
        yield histogram("headrace_request_duration_seconds", *used)
        errors = family("headrace_request_errors")
        for name, error, count in kafka.error_figures():
            errors.add_metric([name, error], count)
        yield errors
        appends = self._node.services.appends
        yield figure("headrace_produce_records", appends.records_total)
        yield figure("headrace_produce_bytes", appends.bytes_total)
        yield figure("headrace_produce_batches", appends.batches_total)
        yield figure("headrace_delayed_records", appends.delayed_total)
        yield figure("headrace_named_duplicates", appends.duplicates_total)
        yield figure("headrace_unread_attributes_batches", appends.unread_attributes_total)
        yield figure("headrace_produce_errors", kafka.produce.errors_total)
        yield figure("headrace_fetch_bytes", kafka.fetch.bytes_total)
        yield figure("headrace_fetches_waiting", kafka.fetch.waiting)
        yield figure("headrace_fetch_sessions", len(kafka.fetch.sessions))

    def _clients(self) -> Iterable[Metric]:
        connections = self._kafka.connections
        yield figure("headrace_connections", len(connections))
        found = Counter(
            (one.session.software_name, one.session.software_version) for one in connections
        )
        family_of_software = family("headrace_client_connections")
        for (name, number), count in found.most_common(SOFTWARE_MAX):
            family_of_software.add_metric([name, number], count)
        others = sum(count for _, count in found.most_common()[SOFTWARE_MAX:])
        if others:
            family_of_software.add_metric([OTHER, OTHER], others)
        yield family_of_software

    def _logins(self) -> Iterable[Metric]:
        figures = self._node.services.authentication.logins.figures
        logins = family("headrace_logins")
        for outcome, counts in (("success", figures.succeeded), ("failure", figures.failed)):
            for mechanism, count in counts.items():
                logins.add_metric([mechanism, outcome], count)
        yield logins

    def _throttling(self) -> Iterable[Metric]:
        counts = family("headrace_throttled_requests")
        times = family("headrace_throttle_time_seconds")
        for key, figures in self._node.services.quotas.throttled.items():
            counts.add_metric([key], figures.count)
            times.add_metric([key], figures.time_ms / 1_000)
        yield counts
        yield times

    def _certificates(self) -> Iterable[Metric]:
        expiries = self.certificate_expiries()
        if not expiries:
            return
        now_s = self._node.clock.now_ms() / 1_000
        seconds = family("headrace_certificate_expires_seconds")
        for listener, at_s in expiries:
            seconds.add_metric([listener], at_s - now_s)
        yield seconds

    def _runtime(self) -> Iterable[Metric]:
        build = family("headrace_build_info")
        core = "compiled" if compiled.is_used() else "pure"
        build.add_metric([version("headrace"), platform.python_version(), core], 1)
        yield build
        yield from self._process.collect()
        peak_bytes = process_memory().peak_bytes
        yield figure("headrace_process_max_resident_bytes", peak_bytes)
        yield figure("headrace_tasks", len(asyncio.all_tasks()))
        if self.loop_lag is not None:
            yield histogram("headrace_loop_lag_seconds", Buckets((), self.loop_lag.histogram))
