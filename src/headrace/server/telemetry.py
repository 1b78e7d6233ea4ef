"""OpenTelemetry: spans of requests, and the broker's metrics, sent where OTEL_* variables say.

Invariants: without these variables nothing is imported, and no request does more than before. The
figures are those of `/metrics`; they are read on the event loop, and a thread sends them, which no
stop waits for longer than CLOSE_S. A collector that is slow or away costs a bounded queue of spans,
never a request. A span names an operation, a client's address and an outcome, never the content of
a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Final

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
CLOSE_S: Final = 3
"""How long a stop waits until the rest is sent: storage is open meanwhile."""
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
    variable = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"  # takes precedence
    if not environment.get(variable):
        variable = "OTEL_EXPORTER_OTLP_PROTOCOL"
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
            f"OTEL_METRIC_EXPORT_INTERVAL={text[:50]} is not a number of milliseconds; nothing was"
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
            prepared = self._prepared()
            if prepared is not None:
                await _begun(prepared).wait()

    def _prepared(self) -> Callable[[], None] | None:
        """What sends the metrics as they are now."""
        if self._metrics is None or self._http.metrics is None:
            return None
        return partial(self._metrics.send, self._metrics.prepare(self._http.metrics.collect()))

    async def close(self) -> None:
        """Send what is left, or give it up after CLOSE_S."""
        sent = []
        if self._spans is not None:
            sent.append(_begun(self._spans.close))
        if self._metrics is not None:
            prepared = self._prepared()
            works = [self._metrics.close] if prepared is None else [prepared, self._metrics.close]
            sent.append(_begun(*works))
        try:
            async with asyncio.timeout(CLOSE_S):
                for one in sent:
                    await one.wait()
        except TimeoutError:
            log.warning(
                "OpenTelemetry's collector did not take the last spans and metrics within %d s:"
                " they are lost; the broker stops",
                CLOSE_S,
            )


def _begun(*works: Callable[[], None]) -> asyncio.Event:
    """Is set once these calls have ended, which a thread makes that ends with the process: a stop
    would wait for those of the event loop's executor."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        try:
            for work in works:
                work()
        except Exception:
            log.exception("OpenTelemetry's SDK failed; the broker is not affected")
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

    Thread(target=run, name="headrace-telemetry", daemon=True).start()
    return ended
