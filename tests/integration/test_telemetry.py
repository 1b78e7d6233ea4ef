"""What a broker sends by OpenTelemetry, as a collector receives it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread

import grpc
import pytest
from confluent_kafka import Producer
from tests.integration.broker import Broker

pytest.importorskip("opentelemetry.proto")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace.rocketmq import wire

TIMEOUT_S = 120
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


class Collector:
    """An OTLP receiver that keeps what it gets."""

    def __init__(self) -> None:
        self.bodies: dict[str, list[bytes]] = defaultdict(list)
        self._changed = Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers.get("Content-Encoding", "identity") == "identity"
                with collector._changed:
                    collector.bodies[self.path].append(body)
                    collector._changed.notify_all()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        Thread(target=self._server.serve_forever, daemon=True).start()

    def wait(self, holds) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, TIMEOUT_S), dict(self.bodies)

    def spans(self) -> list:
        found = map(ExportTraceServiceRequest.FromString, self.bodies["/v1/traces"])
        return [
            span
            for request in found
            for one in request.resource_spans
            for scope in one.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict:
        """The last value of each."""
        found = map(ExportMetricsServiceRequest.FromString, self.bodies["/v1/metrics"])
        return {
            metric.name: (one.resource, metric)
            for request in found
            for one in request.resource_metrics
            for scope in one.scope_metrics
            for metric in scope.metrics
        }

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def query_route(address: str, topic: str) -> None:
    """A call of a RocketMQ client."""
    request = wire.request_of("QueryRoute")(topic={"name": topic})
    metadata = [("x-mq-client-id", "one"), ("traceparent", PARENT)]
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(f"/{wire.SERVICE}/QueryRoute")
        call(request.SerializeToString(), timeout=TIMEOUT_S, metadata=metadata)


def ask(broker: Broker, path: str, **headers: str) -> str:
    request = urllib.request.Request(f"http://{broker.http}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return answer.read().decode()


def test_spans_and_metrics_reach_a_collector(collector, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-queue")
    broker = Broker(tmp_path, "--rocketmq", "127.0.0.1:0").start()
    try:
        producer = Producer({"bootstrap.servers": broker.kafka})
        producer.produce("orders", b"1")
        assert producer.flush(TIMEOUT_S) == 0
        ask(broker, "/v1/topics", traceparent=PARENT)
        query_route(json.loads((tmp_path / "ready.json").read_text())["rocketmq"], "orders")

        def spans_by_name() -> dict:
            return {span.name: span for span in collector.spans()}

        traced = {"listTopics", "QueryRoute"}
        collector.wait(lambda: {"Produce", *traced} <= spans_by_name().keys())
        ours = [one for one in collector.spans() if one.trace_id.hex() == TRACE_ID]
        assert {one.name for one in ours} == traced
        for one in ours:
            assert one.parent_span_id.hex() == SPAN_ID
            assert one.end_time_unix_nano > one.start_time_unix_nano
        produced = spans_by_name()["Produce"]
        assert {one.key: one.value.string_value for one in produced.attributes}[
            "client.address"
        ] == "127.0.0.1"

        def latencies() -> list:
            found = collector.metrics().get("headrace_request_duration_seconds")
            points = found[1].histogram.data_points if found else ()
            apis = {one.value.string_value: p for p in points for one in p.attributes}
            return [p for api, p in apis.items() if api == "Produce" and p.count]

        collector.wait(latencies)
        (point,) = latencies()
        assert sum(point.bucket_counts) == point.count
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        resource, topics = collector.metrics()["headrace_topics"]
        told = {one.key: one.value.string_value for one in resource.attributes}
        assert told["service.name"] == "orders-queue"
        assert topics.gauge.data_points[0].as_int == 1
        shown = ask(broker, "/metrics", Accept="application/openmetrics-text")
        traced = re.findall(r'api="Produce",le="\S+"} \S+ # {trace_id="(\w+)"}', shown)
        assert traced
        collector.wait(lambda: {*traced} <= {span.trace_id.hex() for span in collector.spans()})
    finally:
        broker.stop()


def test_a_client_s_trace_is_an_exemplar_without_any_collector(broker):
    ask(broker, "/v1/topics", traceparent=PARENT)
    shown = ask(broker, "/metrics", Accept="application/openmetrics-text")
    assert f'# {{trace_id="{TRACE_ID}"}}' in shown
    assert "trace_id" not in ask(broker, "/metrics"), "the older format has no exemplars"
    modules = "import sys, headrace.server.assemble; print('opentelemetry' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", modules], text=True).strip() == "False"


def test_an_unreachable_collector_does_not_disturb_the_broker(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
    broker = Broker(tmp_path).start()
    try:
        ask(broker, "/v1/topics")
    finally:
        broker.stop()
    assert "Traceback" not in broker.log()


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin", "use otlp or none"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "use http/protobuf"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often", "not a number of milliseconds"),
    ],
)
def test_unsupported_telemetry_settings_are_refused_at_start(
    tmp_path, monkeypatch, variable, value, told
):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv(variable, value)
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--kafka", "127.0.0.1:0"]
    command += ["--http", "127.0.0.1:0", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
