"""What OpenTelemetry's SDK sends for a broker: spans of ended requests, and metrics.

Invariants: imported only where it is asked for (`server.telemetry`): it needs the package's extra
`otel`. Endpoints, headers, timeouts, certificates, sampling and queues follow the SDK's own reading
of its OTEL_* variables.
"""

from __future__ import annotations

from collections import defaultdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric as Family

    from headrace.runtime.clock import Clock
    from headrace.runtime.slow_requests import EndedRequest

SCOPE: Final = "headrace"
_SERVER_ERROR: Final = 500
_MS_NS: Final = 1_000_000


def resource(instance: str) -> Resource:
    """What the sender is; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence."""
    own = {
        "service.name": "headrace",
        "service.version": version("headrace"),
        "service.instance.id": instance,
    }
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})


class SpanSender:
    """Makes a span of each request that has ended, and sends sampled ones from a thread."""

    def __init__(self, about: Resource, clock: Clock) -> None:
        """Raises ValueError."""
        self._clock = clock
        self._provider = TracerProvider(resource=about, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer(SCOPE, version("headrace"))

    def ended(self, request: EndedRequest) -> str:
        """The trace id of its span; "" if it was not sampled."""
        end_ns = self._clock.now_ms() * _MS_NS
        span = self._tracer.start_span(
            request.what,
            propagate.extract({"traceparent": request.traceparent}),
            SpanKind.SERVER,
            {
                "rpc.system": request.protocol,
                "rpc.method": request.what,
                "client.address": request.client,
                "headrace.waited_ms": request.waited_ns / _MS_NS,
                "headrace.throttle_ms": request.throttle_ms,
            },
            start_time=end_ns - request.took_ns,
        )
        if not span.is_recording():
            return ""
        if request.status:
            span.set_attribute("http.response.status_code", request.status)
        if request.status >= _SERVER_ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_ns)
        trace_id: str = format_trace_id(span.get_span_context().trace_id)
        return trace_id

    def close(self) -> None:
        """Send what is left; blocks."""
        self._provider.shutdown()


def _name(family: Family) -> str:
    """As in `/metrics`; the library's families of counters lack the end of their names."""
    return f"{family.name}_total" if family.type == "counter" else family.name


class MetricSender:
    """Sends the broker's metrics under their names in Prometheus."""

    def __init__(self, about: Resource, clock: Clock) -> None:
        """Raises ValueError."""
        self._about = about
        self._clock = clock
        self._exporter = OTLPMetricExporter()
        self._start_ns = clock.now_ms() * _MS_NS

    def prepare(self, families: Iterable[Family]) -> MetricsData:
        """The metrics as they are now."""
        now_ns = self._clock.now_ms() * _MS_NS
        metrics = [
            Metric(_name(family), family.documentation, family.unit, self._data(family, now_ns))
            for family in families
        ]
        scope = ScopeMetrics(InstrumentationScope(SCOPE, version("headrace")), metrics, "")
        return MetricsData([ResourceMetrics(self._about, [scope], "")])

    def _data(self, family: Family, now_ns: int) -> Sum | Gauge | Histogram:
        if family.type == "histogram":
            return Histogram(self._histograms(family, now_ns), AggregationTemporality.CUMULATIVE)
        points = [
            NumberDataPoint(sample.labels, self._start_ns, now_ns, sample.value)
            for sample in family.samples
        ]
        if family.type == "counter":
            return Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return Gauge(points)

    def _histograms(self, family: Family, now_ns: int) -> list[HistogramDataPoint]:
        totals: dict[tuple[tuple[str, str], ...], list[tuple[float, int]]] = defaultdict(list)
        sums: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in family.samples:
            labels = tuple(item for item in sample.labels.items() if item[0] != "le")
            if sample.name.endswith("_bucket"):
                totals[labels].append((float(sample.labels["le"]), int(sample.value)))
            elif sample.name.endswith("_sum"):
                sums[labels] = sample.value
        points = []
        for labels, buckets in totals.items():
            before = [0, *(total for _, total in buckets)]
            counts = [total - earlier for (_, total), earlier in zip(buckets, before, strict=False)]
            points.append(
                HistogramDataPoint(
                    dict(labels),
                    self._start_ns,
                    now_ns,
                    count=before[-1],
                    sum=sums[labels],
                    bucket_counts=counts,
                    explicit_bounds=[bound for bound, _ in buckets[:-1]],
                    min=None,  # type: ignore[arg-type]  # unknown, and optional on the wire
                    max=None,  # type: ignore[arg-type]
                )
            )
        return points

    def send(self, prepared: MetricsData) -> None:
        """Send them; blocks. The SDK logs what fails."""
        self._exporter.export(prepared)

    def close(self) -> None:
        """Close the connection; blocks."""
        self._exporter.shutdown()
