"""What leaves by OpenTelemetry, and what becomes of a stop while the collector is away."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("opentelemetry.proto")

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

from headrace.errors import RequestInvalid
from headrace.runtime.clock import SystemClock
from headrace.server import telemetry
from headrace.server.otlp import MetricSender, resource
from headrace.server.telemetry import METRICS, TRACES, wanted

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
PROTOCOL_TRACES = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
PROTOCOL_METRICS = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"
GIVEN = {ENDPOINT: "http://127.0.0.1:4318"}


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


def test_a_collector_that_does_not_answer_does_not_hold_up_a_stop(monkeypatch):
    """The SDK's own threads would go on in this process: what stands for it waits for an event."""
    answered = threading.Event()
    closing = SimpleNamespace(close=lambda: answered.wait(60))
    monkeypatch.setattr(telemetry, "CLOSE_S", 0.05)
    asyncio.run(telemetry.Telemetry(closing, None, None).close())
    assert not answered.is_set(), "the stop went on before"
    answered.set()
