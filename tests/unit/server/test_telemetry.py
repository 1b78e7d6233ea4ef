"""What leaves by OpenTelemetry, and what becomes of a stop while the collector is away."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("opentelemetry.proto")

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

from headrace.errors import RequestInvalid
from headrace.runtime.clock import SystemClock
from headrace.runtime.slow_requests import Ended
from headrace.server.otlp import MetricSender, SpanSender, resource
from headrace.server.telemetry import CLOSE_S, METRICS, TRACES, Telemetry, wanted

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
PROTOCOL_TRACES = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOL_METRICS = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"
GIVEN = {ENDPOINT: "http://127.0.0.1:4318"}


@pytest.fixture
def silent_collector(monkeypatch):
    """It takes connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.getsockname()[1]}")
        yield


def encoded(*families) -> dict:
    sender = MetricSender(resource("1"), SystemClock())
    prepared = sender.prepare(families)
    (about,) = encode_metrics(prepared).resource_metrics
    return {one.name: one for one in about.scope_metrics[0].metrics}


def test_a_counter_has_the_name_of_metrics():
    family = CounterMetricFamily("headrace_bytes", "Bytes.", labels=["topic"], created=None)
    family.add_metric(["t"], 7)
    assert family.samples[0].name == "headrace_bytes_total", "as in /metrics"
    (point,) = encoded(family)["headrace_bytes_total"].sum.data_points
    assert point.as_double == 7 or point.as_int == 7


def test_a_histogram_claims_no_smallest_or_largest_value():
    family = HistogramMetricFamily("headrace_seconds", "Seconds.")
    family.add_metric([], [("0.1", 1), ("+Inf", 3)], 4.0)
    (point,) = encoded(family)["headrace_seconds"].histogram.data_points
    assert (point.count, point.sum, [*point.bucket_counts]) == (3, 4.0, [1, 2])
    assert not point.HasField("min")
    assert not point.HasField("max")


@pytest.mark.parametrize(
    "protocols",
    [
        {PROTOCOL: "http/protobuf"},
        {PROTOCOL: "grpc", PROTOCOL_TRACES: "http/protobuf", PROTOCOL_METRICS: "http/protobuf"},
    ],
)
def test_the_protocol_of_a_signal_takes_precedence(protocols):
    assert wanted(GIVEN | protocols) == {TRACES, METRICS}


@pytest.mark.parametrize(
    ("protocols", "named"),
    [
        ({PROTOCOL: "grpc"}, PROTOCOL),
        ({PROTOCOL: "grpc", PROTOCOL_TRACES: "http/protobuf"}, PROTOCOL),
        ({PROTOCOL_METRICS: "grpc", PROTOCOL: "http/protobuf"}, PROTOCOL_METRICS),
    ],
)
def test_a_protocol_that_is_not_supported_is_refused_by_its_variable(protocols, named):
    with pytest.raises(RequestInvalid, match=f"^{named}=grpc is not supported"):
        wanted(GIVEN | protocols)


@pytest.mark.usefixtures("silent_collector")
def test_a_collector_that_does_not_answer_delays_the_stop_by_seconds_at_most():
    clock = SystemClock()
    about = resource("1")
    spans, metrics = SpanSender(about, clock), MetricSender(about, clock)
    http = SimpleNamespace(metrics=SimpleNamespace(collect=lambda: ()))
    telemetry = Telemetry(spans, metrics, http)

    async def main() -> None:
        sending = asyncio.ensure_future(telemetry.run(0.01))
        spans.ended(Ended("kafka", "Produce", "127.0.0.1:1", 1))
        await asyncio.sleep(0.1)  # a round is being sent
        await telemetry.close()
        sending.cancel()

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < CLOSE_S + 2
