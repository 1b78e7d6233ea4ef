"""Where HTTP begins: the socket is open at once, what answers on it is imported behind it.

Invariants: nothing heavy is imported here. The web libraries take a fifth of a broker's
start; so they are loaded by a thread when the broker serves already. Who asks earlier waits in the
socket's queue for a moment.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from headrace.broker.security.listener import OPEN
from headrace.metadata.endpoints import HTTP, Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.node import Node
    from headrace.broker.security.listener import ListenerSecurity
    from headrace.http.metrics import Counters, KafkaFigures

CLOSE_TIMEOUT_S = 3


class HttpFace:
    """The HTTP face of one broker. See `broker.face.Face`."""

    name = HTTP

    def __init__(self, node: Node, kafka: KafkaFigures, counters: Counters | None) -> None:
        self.node = node
        self.kafka = kafka
        self.counters = counters
        self.certificate_expiries: Callable[[], Sequence[tuple[str, int]]] = list
        """(listener, seconds since 1970) of the certificates that the broker's listeners show."""
        self.security: ListenerSecurity = OPEN
        """Of the listener."""
        self.is_ready = False
        """Whether Kafka clients can be served: what `/readyz` says."""
        self.is_local = True
        """Whether the listener is reached from this machine alone."""
        self._begun = asyncio.Event()
        self._server: Any = None
        self._task: asyncio.Task[None] | None = None

    async def listen(
        self,
        host: str,
        port: int,
        listener: ListenerSecurity = OPEN,
        advertised: tuple[str, int] | None = None,
    ) -> tuple[str, int]:
        """Serve HTTP at one address; see Face. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        accepting = socket.socket(family, socket.SOCK_STREAM)
        try:
            accepting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            accepting.bind((host, port))
            accepting.listen()
        except OSError:
            accepting.close()
            raise
        self._task = self.node.tasks.start(self._serve(accepting), "http")
        self.security = listener
        address = accepting.getsockname()
        self.is_local = ipaddress.ip_address(address[0]).is_loopback
        host, port = advertised or address[:2]
        port = port or address[1]
        self.node.endpoints.append(Endpoint(HTTP, listener.name, host, port, listener.protocol))
        return address[0], address[1]

    def serve_ready(self) -> None:
        """Kafka clients can be served: say so, and load what says it."""
        self.is_ready = True
        self._begun.set()

    async def _serve(self, listener: socket.socket) -> None:
        try:
            await self._begun.wait()
            loop = asyncio.get_running_loop()
            app = await loop.run_in_executor(None, importlib.import_module, "headrace.http.app")
            self._server = app.make_server(self)
            await self._server.serve(sockets=[listener])
        finally:
            listener.close()

    async def close(self) -> None:
        """Stop serving."""
        self.is_ready = False
        task = self._task
        if task is None:
            return
        if self._server is None:
            task.cancel()
        else:
            self._server.should_exit = True
        await asyncio.wait([task], timeout=CLOSE_TIMEOUT_S)
