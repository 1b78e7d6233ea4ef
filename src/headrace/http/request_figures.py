"""What the HTTP face counts of requests: durations and statuses, by operation.

Invariants: an operation is one of the API's, so that clients cannot invent series.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.records.attributes import parse_trace_parent
from headrace.runtime.figures import Figures, figure
from headrace.runtime.histogram import Histogram
from headrace.runtime.slow_requests import EndedRequest, SlowRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class HttpFigures:
    """The figures of one broker."""

    def __init__(
        self, connections: Callable[[], int] = int, slow: SlowRequests | None = None
    ) -> None:
        """`connections`: how many are open now."""
        self._slow = slow or SlowRequests()
        self._connections = connections
        self._durations: dict[str, Histogram] = {}
        self._statuses: dict[tuple[str, int], int] = {}

    def note(
        self, operation: str, client: str, status: int, took_ns: int, traceparent: str = ""
    ) -> None:
        """A response has ended; `traceparent`: the client's header."""
        trace_id = _sampled_trace(traceparent) if traceparent else ""
        if took_ns >= self._slow.noted_from_ns:
            host, _, port = client.rpartition(":")
            request = EndedRequest(
                "http", operation, host, took_ns, 0, 0, status, traceparent, int(port or 0)
            )
            trace_id = self._slow.note(request) or trace_id
        durations = self._durations.get(operation)
        if durations is None:
            durations = self._durations[operation] = Histogram()
        durations.add(took_ns)
        if trace_id:
            durations.exemplify(took_ns, trace_id)
        key = operation, status
        self._statuses[key] = self._statuses.get(key, 0) + 1

    def figures(self) -> Iterable[Figures]:
        """See `runtime.figures`."""
        durations = Figures("headrace_http_request_duration_seconds")
        for operation, one in self._durations.items():
            durations.add([operation], one)
        yield durations
        requests = Figures("headrace_http_requests")
        for (operation, status), count in self._statuses.items():
            requests.add([operation, str(status)], count)
        yield requests
        yield figure("headrace_http_connections", self._connections())


def _sampled_trace(traceparent: str) -> str:
    """The trace id of a client that stores its trace; else ""."""
    found = parse_trace_parent(traceparent.encode(errors="replace"))
    return found.trace_id if found is not None and int(traceparent[53:55], 16) & 1 else ""
