"""What is noted of ended requests: a log line of those that took long, a span of each if wanted.

Invariants: costs one comparison for each request that need not be noted. Times that a client asked
for (long polls) do not count as slow. What is noted of a request is its kind and client, never its
content.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

OFF_NS: Final = 1 << 62
_MS_NS: Final = 1_000_000
_SHARE: Final = 10
"""A cause is named if it took a tenth of the time, or more."""


@dataclass(slots=True)
class EndedRequest:
    """A request that was answered."""

    protocol: str
    what: str
    """The operation."""
    client: str
    """Its address."""
    took_ns: int
    waited_ns: int = 0
    """Of that, as long as the client asked the broker to wait."""
    throttle_ms: int = 0
    status: int = 0
    """Of HTTP."""
    traceparent: str = ""
    """The client's own span (W3C Trace Context)."""
    port: int = 0
    """Of the client; 0: not known."""


class SlowRequests:
    """What one broker notes of its requests."""

    def __init__(self) -> None:
        self.noted_from_ns = OFF_NS
        """Requests from this duration on, without the time that clients asked for, are to be
        noted."""
        self._threshold_ns = OFF_NS
        self._trace: Callable[[EndedRequest], str] | None = None
        self.causes: list[tuple[str, Callable[[], int]]] = []
        """What may have taken the time, and how long it took last, in nanoseconds."""

    def set_threshold(self, threshold_ms: int) -> None:
        """Log requests from this duration on; 0: all; negative: none."""
        self._threshold_ns = OFF_NS if threshold_ms < 0 else threshold_ms * _MS_NS
        self.noted_from_ns = self._threshold_ns if self._trace is None else 0

    def trace_by(self, trace: Callable[[EndedRequest], str]) -> None:
        """Give each request to `trace`, which returns the id of its trace; "" if it made none."""
        self._trace = trace
        self.noted_from_ns = 0

    def note(self, request: EndedRequest) -> str:
        """A request took at least `noted_from_ns`. Returns its trace id; "" without one."""
        if request.took_ns - request.waited_ns >= self._threshold_ns:
            self._log(request)
        return "" if self._trace is None else self._trace(request)

    def _log(self, request: EndedRequest) -> None:
        took_ns, throttle_ms = request.took_ns - request.waited_ns, request.throttle_ms
        reasons = [
            f"{cause} for {last_ns / _MS_NS:.1f} ms"
            for cause, last in self.causes
            if (last_ns := last()) * _SHARE >= took_ns > 0
        ]
        if throttle_ms:
            reasons.append(f"a quota throttles the client for {throttle_ms} ms")
        why = f" ({'; '.join(reasons)})" if reasons else ""
        what = f"HTTP {request.what} ({request.status})" if request.status else request.what
        client = f"{request.client}:{request.port}" if request.port else request.client
        log.info("%s from %s took %.1f ms%s", what, client, took_ns / _MS_NS, why)
