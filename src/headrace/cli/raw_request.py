"""One request of Kafka's protocol to one broker, for APIs that the client library lacks.

Invariants: one connection per request; bodies are opaque.
"""

from __future__ import annotations

from headrace.cli.session import host_and_port
from headrace.kafka.client.blocking import BlockingConnection

_CLIENT_ID = b"headrace-cli"


def ask(
    address: str, api_key: int, version: int, body: bytes, timeout_s: float, *, is_flexible: bool
) -> bytes:
    """Return the body of the response. Raises OSError."""
    with BlockingConnection(host_and_port(address), timeout_s, _CLIENT_ID) as connection:
        return connection.call(api_key, version, body, is_flexible=is_flexible)
