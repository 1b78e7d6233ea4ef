"""A link that can be cut: a user-space TCP proxy, which clients use as the broker's address.

Invariants: one thread with its own loop serves all links; it knows bytes, not protocols. A cut
holds bytes back, like a network that loses packets until they are retransmitted: data in flight
arrives after healing, unless an end has given up by then. A cut may affect one direction only, and
half of the connections.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import uvloop

from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_BYTES = 128 << 10
TO_BROKER, TO_CLIENTS = "to-broker", "to-clients"


class Link:
    """One listener for one address. Methods are thread-safe."""

    def __init__(
        self, network: Network, target: Callable[[], tuple[str, int]], name: str = "link"
    ) -> None:
        self.name = name
        self._network = network
        self._target = target
        self._tasks = Tasks()
        self._connections: dict[int, _Connection] = {}
        self._count = 0
        self._open = {TO_BROKER: asyncio.Event(), TO_CLIENTS: asyncio.Event()}
        self._is_for_all = True
        self.delay_s = 0.0
        self.accepted = 0
        """The number of connections so far."""
        self.address = ("127.0.0.1", 0)
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Listen on a free port."""
        for gate in self._open.values():
            gate.set()
        # Bound explicitly, so that the port stays reserved from the first broker to the last.
        listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._server = await asyncio.start_server(self._accept, sock=listener)
        self.address = listener.getsockname()[:2]

    async def close(self) -> None:
        """Close the listener and all connections."""
        if self._server is not None:
            self._server.close()
        await self._tasks.close()

    def cut(self, *directions: str, is_for_all: bool = True) -> None:
        """Block these directions."""

        def apply() -> None:
            self._is_for_all = is_for_all
            for direction in directions or (TO_BROKER, TO_CLIENTS):
                self._open[direction].clear()

        self._network.call(apply)

    def heal(self) -> None:
        """Unblock everything immediately."""

        def apply() -> None:
            self.delay_s = 0.0
            for gate in self._open.values():
                gate.set()

        self._network.call(apply)

    def slow(self, delay_s: float) -> None:
        """Delay every chunk by this much, in each direction."""

        def apply() -> None:
            self.delay_s = delay_s

        self._network.call(apply)

    def reset(self, *, is_for_all: bool = True) -> None:
        """Reset connections at both ends."""

        def apply() -> None:
            for number, connection in list(self._connections.items()):
                if is_for_all or number % 2:
                    connection.abort()

        self._network.call(apply)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        self.accepted += 1
        number = self._count
        connection = _Connection(writer)
        self._connections[number] = connection
        try:
            await self._pass(TO_BROKER, number)
            host, port = self._target()
            there, back = await asyncio.open_connection(host, port)
            connection.other = back
            pumps = [
                self._tasks.start(self._pump(reader, back, TO_BROKER, number), "to broker"),
                self._tasks.start(self._pump(there, writer, TO_CLIENTS, number), "to client"),
            ]
            # When one end is closed, close the other: half-closed connections are not supported.
            _, others = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in others:
                pump.cancel()
        except (OSError, RuntimeError):
            pass  # the broker is down
        finally:
            del self._connections[number]
            connection.abort()

    async def _pass(self, direction: str, number: int) -> None:
        gate = self._open[direction]
        while not gate.is_set() and (self._is_for_all or number % 2):
            await gate.wait()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        direction: str,
        number: int,
    ) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if not self._open[direction].is_set():
                    await self._pass(direction, number)
                    if getattr(reader, "_eof", False):  # closed before all was read
                        return  # the client has given up meanwhile: what it sent is lost
                writer.write(data)
                await writer.drain()
        except (OSError, RuntimeError):
            pass  # one end is closed; uvloop reports it as a RuntimeError


class _Connection:
    """The two ends of one connection."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.other: asyncio.StreamWriter | None = None

    def abort(self) -> None:
        """Abort both ends."""
        self.client.transport.abort()
        if self.other is not None:
            self.other.transport.abort()


class Network:
    """The thread in which all links run."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._links: list[Link] = []
        self._thread.start()

    def link(self, target: Callable[[], tuple[str, int]], name: str = "link") -> Link:
        """Create a link; `target` returns the address to connect to."""

        async def make() -> Link:
            link = Link(self, target, name)
            await link.listen()
            return link

        link = asyncio.run_coroutine_threadsafe(make(), self._loop).result(10)
        self._links.append(link)
        return link

    def call(self, action: Callable[[], None]) -> None:
        """Run a coroutine in the links' thread, and wait for it."""
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)

    def close(self) -> None:
        """End all links and the thread."""
        for link in self._links:
            asyncio.run_coroutine_threadsafe(link.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
