"""The listener for RocketMQ's clients: gRPC, in plain text and over TLS at one port.

Invariants: clients that connect before the broker is ready wait in the socket's queue. A plain
listener takes clients with TLS, too, since Java's and Go's begin with it: its certificate, made at
the start, is vouched for by nobody, which these clients accept. Where clients sign their calls with
access keys (the protocols SASL_PLAINTEXT and SASL_SSL), each call is checked (`signed`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.client_addresses import client_address
from headrace.broker.security.listener import OPEN
from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.services.readiness import readiness_of
from headrace.grpc import descriptors
from headrace.grpc.health import SERVICE as HEALTH
from headrace.grpc.health import Health, Serving
from headrace.grpc.limits import Limits
from headrace.grpc.reflection import Reflection
from headrace.grpc.server import GrpcServer
from headrace.grpc.service import services_of
from headrace.metadata.endpoints import ROCKETMQ, Endpoint
from headrace.rocketmq import wire
from headrace.rocketmq.messaging import Messaging
from headrace.rocketmq.signed import SignedConnection
from headrace.runtime.new_certificates import Authority
from headrace.runtime.security_protocols import PLAINTEXT
from headrace.runtime.tls import TlsMaterial, server_context

if TYPE_CHECKING:
    import ssl

    from headrace.broker.security.connection_limits import ConnectionLimits
    from headrace.broker.security.listener import ListenerSecurity
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.services import Services
    from headrace.grpc.protocol import GrpcProtocol, Peer
    from headrace.grpc.service import Services as GrpcServices
    from headrace.runtime.slow_requests import SlowRequests
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

BACKLOG: Final = 1_024
CLOSE_S: Final = 1.0
HEALTH_S: Final = 2.0
"""How old the answer to a health check may be: it looks at all partitions."""
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of a batch of messages; one message has at most 4 MiB."""
CERTIFICATE_DAYS: Final = 3_650


class LimitedServer(GrpcServer):
    """A gRPC server within the broker's limits of connections."""

    def __init__(self, limits: ConnectionLimits, services: GrpcServices, **named: Any) -> None:
        super().__init__(services, Limits(message_bytes_max=REQUEST_BYTES_MAX), **named)
        self._of_broker = limits

    def opened(self, connection: GrpcProtocol) -> bool:
        """See protocol.Server."""
        limits, host = self._of_broker, connection.peer
        exceeded = limits.open(connection, self.name, host)
        if not exceeded and limits.delay_ms(self.name):
            exceeded = "max.connection.creation.rate"
        if exceeded:
            log.warning("client %s has more connections than allowed (%s)", host, exceeded)
        return super().opened(connection) and not exceeded

    def address(self, connection: GrpcProtocol) -> str:
        """See protocol.Server."""
        return client_address(connection.peer)

    def closed(self, connection: GrpcProtocol) -> None:
        """See protocol.Server."""
        self._of_broker.close(connection)
        super().closed(connection)


class RocketMqFace:
    """See `broker.face.Face`."""

    name = ROCKETMQ

    def __init__(
        self, services: Services, tasks: Tasks, endpoints: list[Endpoint], slow: SlowRequests
    ) -> None:
        """`endpoints`: what this broker registers."""
        self._services = services
        self._tasks = tasks
        self._endpoints = endpoints
        self._messaging = Messaging(services, tasks, slow)
        reflection = Reflection(
            [descriptors.HEALTH, *descriptors.REFLECTION, wire.FILE], [wire.SERVICE, HEALTH]
        )
        self._health = Health(wire.SERVICE)
        self._following: asyncio.Task[None] | None = None
        more = [*self._health.methods(), *reflection.methods()]
        self._methods = {**self._messaging.methods, **services_of(more)}
        self._listening: list[tuple[asyncio.Server, GrpcServer]] = []

    async def listen(
        self,
        host: str,
        port: int,
        listener: ListenerSecurity = OPEN,
        advertised: tuple[str, int] | None = None,
    ) -> tuple[str, int]:
        """See Face. Raises OSError."""
        is_plain = listener.tls is None
        server = LimitedServer(
            self._services.connections,
            self._methods,
            name=listener.name,
            tls=self._own_certificate(host) if is_plain else listener.tls,
            accepts_plain=is_plain,
            open_session=lambda peer: self._open_session(listener, peer),
            now_ns=self._services.appends.clock.now_ns,
        )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = await asyncio.get_running_loop().create_server(
            server.protocol, host, port, family=family, backlog=BACKLOG, start_serving=False
        )
        self._listening.append((listening, server))
        address = listening.sockets[0].getsockname()
        host, port = advertised or address[:2]
        port = port or address[1]
        self._endpoints.append(Endpoint(ROCKETMQ, listener.name, host, port, listener.protocol))
        return address[0], address[1]

    def _own_certificate(self, host: str) -> ssl.SSLContext:
        authority = Authority("headrace", self._services.appends.clock.now_ms(), CERTIFICATE_DAYS)
        made = authority.sign("headrace", [host, "localhost"], CERTIFICATE_DAYS)
        return server_context(TlsMaterial(made.certificate + authority.certificate, made.key))

    def _open_session(
        self, listener: ListenerSecurity, peer: Peer
    ) -> ClientSession | SignedConnection:
        """The session of a new connection. Raises AuthenticationFailed."""
        if listener.is_sasl:
            return SignedConnection(self._services, listener.name, peer.address)
        is_plain = listener.protocol == PLAINTEXT
        principal = ANONYMOUS if is_plain else listener.principal_of(peer.certificate)
        return self._services.authentication.open(listener, peer.address, principal)

    def serve_ready(self) -> None:
        """See Face."""
        if self._listening:
            self._messaging.clients.start()
            self._following = self._tasks.start(self._follow_health(), "rocketmq health")
        for listening, _server in self._listening:
            self._tasks.spawn(listening.start_serving(), "rocketmq listener")

    async def _follow_health(self) -> None:
        while True:
            await asyncio.sleep(HEALTH_S)
            is_ready = readiness_of(self._services).is_ready
            self._health.set_all(Serving.SERVING if is_ready else Serving.NOT_SERVING)

    async def close(self) -> None:
        """See Face."""
        if self._following is not None:
            self._following.cancel()
        self._health.set_all(Serving.NOT_SERVING)
        for listening, server in self._listening:
            listening.close()
            await server.close(CLOSE_S)
        self._messaging.close()
