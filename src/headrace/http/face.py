"""Where HTTP begins: the socket is open at once, what answers on it is imported after that.

Invariants: nothing heavy is imported here. The web libraries take a fifth of a broker's
start; so they are loaded by a thread when the broker serves already. Who asks earlier waits in the
socket's queue for a moment.
"""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.broker.security.listener import OPEN
from headrace.broker.settings.kinds import ADMIN_LISTENER
from headrace.http.answer_room import AnswerMemory
from headrace.http.body_memory import BodyMemory
from headrace.metadata.endpoints import HTTP, Endpoint
from headrace.runtime.slow_requests import SlowRequests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.security.listener import ListenerSecurity
    from headrace.broker.services.services import Services
    from headrace.http.history import KafkaFigures
    from headrace.http.metrics import Metrics
    from headrace.runtime.figures import Source
    from headrace.runtime.tasks import Tasks

CLOSE_TIMEOUT_S = 3


@dataclass(slots=True)
class HttpListener:
    """One open socket."""

    accepting: socket.socket
    security: ListenerSecurity
    is_local: bool
    """Whether it is reached from this machine alone."""

    @property
    def is_admin(self) -> bool:
        """Whether it serves health and metrics alone."""
        return self.security.name == ADMIN_LISTENER


class HttpFace:
    """The HTTP face of one broker. See `broker.face.Face`."""

    name = HTTP

    def __init__(
        self,
        services: Services,
        tasks: Tasks,
        kafka: KafkaFigures,
        sources: Sequence[Source] = (),
        slow: SlowRequests | None = None,
    ) -> None:
        """`sources`: of metrics, beside those of the services and of this face."""
        self.services = services
        self.tasks = tasks
        self.kafka = kafka
        self.sources = sources
        self.listeners: list[HttpListener] = []
        self.is_ready = False
        """Whether Kafka clients can be served: what `/readyz` says."""
        self.slow = slow or SlowRequests()
        config = services.settings.current
        self.bodies = BodyMemory(config.request_memory_bytes_max)
        self.answers = AnswerMemory(config.response_bytes_max, asyncio.get_running_loop())
        self.metrics: Metrics | None = None
        """All of this broker, once HTTP is served."""
        self._begun = asyncio.Event()
        self._servers: list[Any] = []
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
        address = accepting.getsockname()
        is_local = ipaddress.ip_address(address[0]).is_loopback
        found = HttpListener(accepting, listener, is_local)
        self.listeners.append(found)
        if self._task is None:
            self._task = self.tasks.start(self._serve(), "http")
        if not found.is_admin:
            host, port = advertised or address[:2]
            port = port or address[1]
            self.services.cluster.add_endpoint(
                Endpoint(HTTP, listener.name, host, port, listener.protocol)
            )
        return address[0], address[1]

    def serve_ready(self) -> None:
        """Kafka clients can be served: say so, and load what says it."""
        self.is_ready = True
        self._begun.set()

    def connection_count(self) -> int:
        """How many connections are open."""
        return sum(len(server.server_state.connections) for server in self._servers)

    async def _serve(self) -> None:
        try:
            await self._begun.wait()
            loop = asyncio.get_running_loop()
            app = await loop.run_in_executor(None, importlib.import_module, "headrace.http.app")
            self._servers = app.make_servers(self)
            async with asyncio.TaskGroup() as group:
                for server, one in zip(self._servers, self.listeners, strict=True):
                    group.create_task(server.serve(sockets=[one.accepting]))
        finally:
            for one in self.listeners:
                one.accepting.close()

    async def close(self) -> None:
        """Stop serving."""
        self.is_ready = False
        task = self._task
        if task is None:
            return
        if not self._servers:
            task.cancel()
        for server in self._servers:
            server.should_exit = True
        await asyncio.wait([task], timeout=CLOSE_TIMEOUT_S)
