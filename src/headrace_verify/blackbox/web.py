"""An HTTP client for the brokers under test, without a library.

Invariants: one connection per address, one request at a time, no retries. A broken connection or a
time-out is an OSError: the request's effect is unknown.
"""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_verify.real_broker import addresses_in

if TYPE_CHECKING:
    from headrace_verify.blackbox.context import Context

TIMEOUT_S = 4.0
OK_STATUS, UNAVAILABLE = 200, 503


class Answer(NamedTuple):
    """A response."""

    status: int
    body: Any


class Web:
    """One client's connections to all brokers."""

    def __init__(self, context: Context, timeout_s: float = TIMEOUT_S) -> None:
        self.addresses = addresses_in(context.spec.options["http"])
        self._timeout_s = timeout_s
        self._open: dict[int, http.client.HTTPConnection] = {}

    def get(self, at: int, path: str) -> Answer:
        """Send a request to the broker at address number `at`. Raises OSError."""
        return self._ask(at, "GET", path, None)

    def post(self, at: int, path: str, body: dict[str, Any]) -> Answer:
        """The same, with a body. Raises OSError."""
        return self._ask(at, "POST", path, json.dumps(body).encode())

    def _ask(self, at: int, method: str, path: str, data: bytes | None) -> Answer:
        # Brokers on loopback accept only their machine's names as Host, and links have other names.
        headers = {"Content-Type": "application/json", "Host": "localhost"}
        connection = self._open.get(at)
        if connection is None:
            connection = http.client.HTTPConnection(*self.addresses[at], timeout=self._timeout_s)
            self._open[at] = connection
        try:
            connection.request(method, path, data, headers)
            answer = connection.getresponse()
            return Answer(answer.status, json.loads(answer.read() or b"null"))
        except (http.client.HTTPException, ValueError) as error:
            self.drop(at)
            raise ConnectionError(f"incomplete response to {path}: {error!r}") from error
        except OSError:
            self.drop(at)
            raise

    def drop(self, at: int) -> None:
        """Close a connection."""
        connection = self._open.pop(at, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for at in list(self._open):
            self.drop(at)
