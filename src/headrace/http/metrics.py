"""Prometheus' text of the figures of a broker's parts, made when a client asks.

Invariants: parts keep plain integers, and nothing here runs between two scrapes. Knows no part:
each hands its figures over (`runtime.figures`), and every metric is a row of `metric_table`.
"""

from __future__ import annotations

import asyncio
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from headrace.http.metric_table import metric_of
from headrace.runtime import compiled
from headrace.runtime.figures import Figures, figure
from headrace.runtime.process_memory import process_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client.metrics_core import Metric

    from headrace.runtime.figures import Source


class Encoding(NamedTuple):
    """A format of metrics."""

    encode: Callable[[CollectorRegistry], bytes]
    content_type: str


TEXT = Encoding(generate_latest, CONTENT_TYPE_PLAIN_0_0_4)
OPEN_METRICS = Encoding(openmetrics.generate_latest, openmetrics.CONTENT_TYPE_LATEST)


def encoding_for(accepted: str) -> Encoding:
    """The format for an Accept header: OpenMetrics if it is named, as Prometheus does."""
    return OPEN_METRICS if "application/openmetrics-text" in accepted else TEXT


class Metrics(Collector):
    """All figures of one process."""

    def __init__(
        self, sources: Sequence[Source], has_tenants: Callable[[], bool] = lambda: False
    ) -> None:
        self._has_tenants = has_tenants
        self._sources = [*sources, process_figures]
        self._process = ProcessCollector(registry=None)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, encoding: Encoding = TEXT) -> tuple[bytes, str]:
        """(the text, its content type)."""
        return encoding.encode(self._registry), encoding.content_type

    def collect(self) -> Iterable[Metric]:
        """See Collector."""
        for source in self._sources:
            for figures in source():
                yield metric_of(figures, has_tenants=self._has_tenants())
        yield from self._process.collect()


def process_figures() -> Iterable[Figures]:
    """Of this process, beside what Prometheus' own collector reads."""
    core = "compiled" if compiled.is_used() else "pure"
    build = Figures("headrace_build_info")
    build.add([version("headrace"), platform.python_version(), core], 1)
    yield build
    yield figure("headrace_process_max_resident_bytes", process_memory().peak_bytes)
    yield figure("headrace_tasks", len(asyncio.all_tasks()))
