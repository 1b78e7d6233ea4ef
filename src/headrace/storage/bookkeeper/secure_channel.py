"""How a connection to a bookie begins: at once, or behind START_TLS.

Invariants: opens a connection for a protocol that knows nothing of TLS. Bookies listen at
one port: a client asks there, in a message of protocol version 3, for TLS, and goes on inside of it
in the version it likes. Whether a bookie serves those that do not ask is its own setting: its
`BookieAuthZFactory` refuses clients whose certificate does not name a role that it knows.
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
    """Asks for TLS; `answer` is the status that comes back."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        cast("asyncio.Transport", transport).write(START_TLS_FRAME)

    def data_received(self, data: bytes) -> None:
        """Wait for the whole of the answer."""
        self._data += data
        size = 4 + int.from_bytes(self._data[:4])
        if self.answer.done() or len(self._data) < min(size, ANSWER_BYTES_MAX):
            return
        try:
            if len(self._data) != size:
                raise MalformedFrame("something else in the place of an answer to START_TLS")
            self.answer.set_result(start_tls_status(memoryview(self._data)[4:]))
        except MalformedFrame as error:
            self.answer.set_exception(ConnectionError(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Then there is no answer."""
        if not self.answer.done():
            self.answer.set_exception(ConnectionError(f"closed instead of TLS: {exc}"))


async def open_channel(
    protocol: asyncio.Protocol, host: str, port: int, tls: ssl.SSLContext | None
) -> None:
    """Connect `protocol`, which is told by `connection_made`. Raises OSError, ssl.SSLError too."""
    loop = asyncio.get_running_loop()
    if tls is None:
        await loop.create_connection(lambda: protocol, host, port)
        return
    transport, asking = await loop.create_connection(_Asking, host, port)
    try:
        status = await asking.answer
        if status != STATUS_OK:
            raise ConnectionRefusedError(
                f"the bookie has no TLS (status {status}): give it tlsProviderFactoryClass"
            )
        secured = await loop.start_tls(transport, protocol, tls, server_hostname=host)
    except BaseException:
        transport.abort()
        raise
    assert secured is not None, "it raises where there is no TLS"
    protocol.connection_made(secured)
