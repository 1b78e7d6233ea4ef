"""What the Kafka face counts of requests: durations and errors, by API.

Invariants: each response that leaves is counted once, by its connection; handlers count the errors
that they put into responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.runtime.histogram import Histogram
from headrace.runtime.slow_requests import EndedRequest, SlowRequests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.kafka.connection import Reply

ITEMS_MAX: Final = 1_000
"""Items of a response that are searched for errors: about 0.1 ms at most."""
ERROR_CODE: Final = "error_code"


class RequestFigures:
    """The figures of one broker."""

    def __init__(self, names: Mapping[int, str], slow: SlowRequests | None = None) -> None:
        """`names`: of the APIs, by key."""
        self._names = names
        self.slow = slow or SlowRequests()
        self.durations = {key: Histogram() for key in names}
        """From the arrival of a request to its response; by API key."""
        self.errors: dict[tuple[int, int], int] = {}
        """By (API key, error code)."""

    def answered(self, reply: Reply, now_ns: int) -> None:
        """A response leaves."""
        took_ns = now_ns - reply.started_ns
        durations = self.durations[reply.api_key]
        durations.add(took_ns)
        if took_ns - reply.waited_ns >= self.slow.noted_from_ns:
            connection = reply.connection
            name = self._names[reply.api_key]
            trace_id = self.slow.note(
                EndedRequest(
                    "kafka",
                    name,
                    connection.peer,
                    took_ns,
                    reply.waited_ns,
                    reply.throttle_ms,
                    port=connection.peer_port,
                )
            )
            if trace_id:
                durations.exemplify(took_ns, trace_id)

    def failed(self, api_key: int, code: int) -> None:
        """An error in a response."""
        key = api_key, code
        self.errors[key] = self.errors.get(key, 0) + 1

    def note_errors(self, api_key: int, answer: Any) -> None:
        """Count the errors of a response, in its first ITEMS_MAX items."""
        waiting = [answer]
        left = ITEMS_MAX
        while waiting and left:
            item = waiting.pop()
            left -= 1
            if isinstance(item, dict):
                code = item.get(ERROR_CODE, 0)
                if code:
                    self.failed(api_key, code)
                waiting += [value for value in item.values() if isinstance(value, list | tuple)]
            elif isinstance(item, list | tuple):
                waiting += [one for one in item[:left] if isinstance(one, dict)]
