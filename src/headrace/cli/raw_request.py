"""One request of Kafka's protocol to one broker, for APIs that the client library lacks.

Invariants: one connection per request; bodies are opaque.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.cli.session import host_and_port
from headrace.kafka.client.blocking import BlockingConnection

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

_CLIENT_ID = b"headrace-cli"


def ask(
    session: CliSession,
    address: str,
    api: tuple[int, int],
    body: bytes,
    *,
    is_flexible: bool,
) -> bytes:
    """Return the body of the response to a request of `api`, (key, version). Raises OSError."""
    api_key, version = api
    with BlockingConnection(
        host_and_port(address), session.timeout_s, _CLIENT_ID, access=session.access
    ) as connection:
        return connection.call(api_key, version, body, is_flexible=is_flexible)
