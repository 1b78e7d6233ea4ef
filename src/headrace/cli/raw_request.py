"""One request of Kafka's protocol by hand, for what the client library does not offer.

Invariants: a connection for each request; knows headers, not what the bodies mean.
"""

from __future__ import annotations

import socket
import struct

from headrace.cli.session import host_and_port

_CLIENT_ID = b"headrace-cli"
_CORRELATION_ID = 1


def ask(
    address: str, api_key: int, version: int, body: bytes, timeout_s: float, *, is_flexible: bool
) -> bytes:
    """The answer's bytes from its correlation id on. Raises OSError, struct.error."""
    head = struct.pack(">hhih", api_key, version, _CORRELATION_ID, len(_CLIENT_ID)) + _CLIENT_ID
    request = head + (b"\x00" if is_flexible else b"") + body
    with socket.create_connection(host_and_port(address), timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            return stream.read(size)
