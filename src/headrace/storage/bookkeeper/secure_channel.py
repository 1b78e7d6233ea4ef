"""Opens a connection to a bookie: plaintext, or TLS after START_TLS.

Invariants: opens a connection for a protocol that is unaware of TLS. Bookies listen on one port: a
client requests TLS there, in a message of protocol version 3, and then uses any version inside it.
Whether a bookie serves plaintext clients is the bookie's setting: its `BookieAuthZFactory` refuses
clients whose certificate does not name an authorized role.
Source: `BookieRequestProcessor`, `AuthHandler` and `BookieAuthZFactory` of BookKeeper 4.17.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from headrace.storage.bookkeeper.wire import (
    START_TLS_FRAME,
    STATUS_OK,
    MalformedFrame,
    start_tls_status,
)

if TYPE_CHECKING:
    import ssl

ANSWER_BYTES_MAX = 256


class _Asking(asyncio.Protocol):
    """Requests TLS; `answer` is the status of the response."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        cast("asyncio.Transport", transport).write(START_TLS_FRAME)

    def data_received(self, data: bytes) -> None:
        """Wait for the complete response."""
        self._data += data
        size = 4 + int.from_bytes(self._data[:4])
        if self.answer.done() or len(self._data) < min(size, ANSWER_BYTES_MAX):
            return
        try:
            if len(self._data) != size:
                raise MalformedFrame("an invalid response to START_TLS")
            self.answer.set_result(start_tls_status(memoryview(self._data)[4:]))
        except MalformedFrame as error:
            self.answer.set_exception(ConnectionError(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """There will be no response."""
        if not self.answer.done():
            self.answer.set_exception(ConnectionError(f"connection closed during START_TLS: {exc}"))


async def open_channel(
    protocol: asyncio.Protocol, host: str, port: int, tls: ssl.SSLContext | None
) -> None:
    """Connect `protocol` and call its `connection_made`. Raises OSError, ssl.SSLError."""
    loop = asyncio.get_running_loop()
    if tls is None:
        await loop.create_connection(lambda: protocol, host, port)
        return
    transport, asking = await loop.create_connection(_Asking, host, port)
    try:
        status = await asking.answer
        if status != STATUS_OK:
            raise ConnectionRefusedError(
                f"the bookie does not support TLS (status {status}): set tlsProviderFactoryClass"
            )
        secured = await loop.start_tls(transport, protocol, tls, server_hostname=host)
    except BaseException:
        transport.abort()
        raise
    assert secured is not None, "start_tls raises on failure"
    protocol.connection_made(secured)
