"""The idle connections by which brokers notice at once that another one's process has died.

Invariants: the opener introduces itself by the client id of an ApiVersions request, so that both
ends know whose death the end of the connection may mean. When a process is killed, the connections
that it has opened here end before those of its clients (`early_close`): a client that asks for the
new leaders because its connection broke asks a broker that knows the reason.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.kafka import apis
from headrace.kafka.client.asynchronous import AsyncConnection
from headrace.kafka.wire.schema import write_request
from headrace.runtime.early_close import connect_early

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.kafka.peers.client import PeerAccess
    from headrace.metadata.facts import BrokerFact

CLIENT_ID_PREFIX = "headrace-broker/"
VERSION = 3


class PeerLine(AsyncConnection):
    """Implements `broker.topics.ownership.PeerLine`."""

    def __init__(self, incarnation: str, on_end: Callable[[], None]) -> None:
        super().__init__((CLIENT_ID_PREFIX + incarnation).encode())
        self.ended = asyncio.Event()
        self._on_end = on_end

    async def ping(self) -> None:
        """See PeerLine."""
        names = {"client_software_name": "headrace-broker", "client_software_version": "1"}
        request = write_request(apis.API_VERSIONS, VERSION, names)
        await self.ask(apis.API_VERSIONS, VERSION, request, is_flexible=True)

    def eof_received(self) -> None:
        """See asyncio."""
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        self._end()

    def _end(self) -> None:
        if not self.ended.is_set():
            self.ended.set()
            self._on_end()


async def open_line(
    way: PeerAccess, broker: BrokerFact, incarnation: str, on_end: Callable[[], None]
) -> PeerLine:
    """Connect to `broker`; `incarnation` is the caller's. Raises OSError."""
    loop = asyncio.get_running_loop()
    line = PeerLine(incarnation, on_end)
    address, access, log_in = way.target(broker)
    tls = access.arguments(address[0])
    made = await connect_early(*address)
    if made is None:
        await loop.create_connection(lambda: line, *address, **tls)
    else:
        await loop.create_connection(lambda: line, sock=made, **tls)
    try:
        if log_in is not None:
            await log_in(line)
        await line.ping()
    except BaseException:
        line.abort()
        raise
    return line


def incarnation_in(client_id: str) -> str | None:
    """The incarnation of the broker that opened a connection; None: a client did."""
    if client_id.startswith(CLIENT_ID_PREFIX):
        return client_id.removeprefix(CLIENT_ID_PREFIX)
    return None
