"""OpenTelemetry: spans of requests, and the broker's metrics, sent where OTEL_* variables say.

Invariants: without these variables nothing is imported, and no request does more than before. The
figures are those of `/metrics`; they are read on the event loop, and a thread sends them. A
collector that is slow or away costs a bounded queue of spans, never a request. A span names an
operation, a client's address and an outcome, never the content of a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Final

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.http.face import HttpFace
    from headrace.runtime.clock import Clock
    from headrace.runtime.slow_requests import SlowRequests
    from headrace.runtime.tasks import Tasks
    from headrace.server.otlp import MetricSender, SpanSender

log = logging.getLogger(__name__)

TRACES: Final = "TRACES"
METRICS: Final = "METRICS"
INTERVAL_MS: Final = 60_000
"""OTEL_METRIC_EXPORT_INTERVAL's default."""
_BINARY: Final = "http/protobuf"


def wanted(environment: Mapping[str, str]) -> set[str]:
    """Which signals are to be sent. Raises RequestInvalid.

    The standard sends all by default, to this machine. Here a signal needs its exporter, or an
    endpoint, to be named.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return set()
    found = set()
    for signal in (TRACES, METRICS):
        exporter = environment.get(f"OTEL_{signal}_EXPORTER", "")
        if exporter not in {"", "otlp", "none"}:
            raise RequestInvalid(
                f"OTEL_{signal}_EXPORTER={exporter[:50]} is not supported; nothing was started: use"
                " otlp or none (Prometheus reads /metrics)"
            )
        named = (f"OTEL_EXPORTER_OTLP_{part}ENDPOINT" for part in ("", f"{signal}_"))
        if exporter == "otlp" or (not exporter and any(map(environment.get, named))):
            _check_protocol(environment, signal)
            found.add(signal)
    return found


def _check_protocol(environment: Mapping[str, str], signal: str) -> None:
    for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        protocol = environment.get(variable) or _BINARY
        if protocol != _BINARY:
            raise RequestInvalid(
                f"{variable}={protocol[:50]} is not supported; nothing was started: use {_BINARY}"
                " (port 4318 of a collector)"
            )


def _interval_s(environment: Mapping[str, str]) -> float:
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL") or str(INTERVAL_MS)
    if not text.isdecimal() or int(text) < 1:
        raise RequestInvalid(
            f"OTEL_METRIC_EXPORT_INTERVAL={text[:50]} is no number of milliseconds; nothing was"
            " started: correct it"
        )
    return int(text) / 1_000


def send_telemetry(
    slow: SlowRequests, http: HttpFace, tasks: Tasks, clock: Clock, instance: str
) -> Telemetry | None:
    """Send what this process's variables ask for; None if that is nothing. Raises
    RequestInvalid."""
    signals = wanted(os.environ)
    if not signals:
        return None
    interval_s = _interval_s(os.environ)
    try:
        from headrace.server.otlp import MetricSender, SpanSender, resource
    except ImportError as error:
        raise RequestInvalid(
            f"OTEL_* variables ask for telemetry, which needs a package that is not installed"
            f" ({error.name}); nothing was started: pip install 'headrace[otel]', or set"
            " OTEL_SDK_DISABLED=true"
        ) from error
    try:
        about = resource(instance)
        spans = SpanSender(about, clock) if TRACES in signals else None
        metrics = MetricSender(about, clock) if METRICS in signals else None
    except ValueError as error:
        raise RequestInvalid(
            f"an OTEL_* variable cannot be used ({error}); nothing was started: correct it"
        ) from error
    if spans is not None:
        slow.trace_by(spans.ended)
    telemetry = Telemetry(spans, metrics, http)
    if metrics is not None:
        tasks.spawn(telemetry.run(interval_s), "metrics for OpenTelemetry")
    log.info("sending %s by OpenTelemetry", " and ".join(sorted(signals)).lower())
    return telemetry


class Telemetry:
    """What one broker sends."""

    def __init__(
        self, spans: SpanSender | None, metrics: MetricSender | None, http: HttpFace
    ) -> None:
        self._spans = spans
        self._metrics = metrics
        self._http = http

    async def run(self, interval_s: float) -> None:
        """Send the metrics at each interval."""
        while True:
            await asyncio.sleep(interval_s)
            await self._send()

    async def _send(self) -> None:
        if self._metrics is not None and self._http.metrics is not None:
            prepared = self._metrics.prepare(self._http.metrics.collect())
            await asyncio.get_running_loop().run_in_executor(None, self._metrics.send, prepared)

    async def close(self) -> None:
        """Send what is left."""
        await self._send()
        loop = asyncio.get_running_loop()
        for sender in (self._spans, self._metrics):
            if sender is not None:
                await loop.run_in_executor(None, sender.close)
