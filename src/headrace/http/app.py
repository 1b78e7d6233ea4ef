"""The HTTP servers of a broker: one for each listener.

Invariants: an admin listener has no operations. A listener of this machine alone is asked under no
other host's name: a page in a browser here, whose name resolves to 127.0.0.1 on the second look,
would read what its owner may not.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.routing import Router

from headrace.http.acls import AclOperations
from headrace.http.broker_config import BrokerConfigOperations
from headrace.http.broker_figures import BrokerFigures
from headrace.http.cluster import ClusterOperations
from headrace.http.connection import HttpConnection
from headrace.http.console import console_routes
from headrace.http.dead_letters import DeadLetterOperations
from headrace.http.delayed import DelayedOperations
from headrace.http.diagnoses import DiagnosisOperations
from headrace.http.groups import GroupOperations
from headrace.http.history import History, reader
from headrace.http.keys import KeyOperations
from headrace.http.ledgers import LedgerOperations
from headrace.http.logins import AuthenticatedApp
from headrace.http.monitoring import Monitoring, Rendering
from headrace.http.openapi import document
from headrace.http.operations import SLASH, routes
from headrace.http.overview import OverviewOperations
from headrace.http.parked import ParkedOperations
from headrace.http.problems import PathRoute, not_found, problem
from headrace.http.queries import queries
from headrace.http.queues import Queues
from headrace.http.quotas import QuotaOperations
from headrace.http.records import RecordOperations
from headrace.http.sessions import SessionOperations
from headrace.http.tenants import TenantOperations
from headrace.http.topic_shares import TopicShareOperations
from headrace.http.topics import TopicOperations
from headrace.http.users import UserOperations
from headrace.http.verdict import Verdict
from headrace.runtime.tls_server import TlsServer

TASKS_MAX = 4096
"""Requests that are being answered, those included whose clients have hung up."""

_OWN_HOST = re.compile(
    rb"(localhost|\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:.]{2,45}\])?(:\d{1,5})?", re.IGNORECASE
)
"""A numeric address belongs to no domain."""

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.broker.security.connection_limits import ConnectionLimits
    from headrace.broker.security.listener import ListenerSecurity
    from headrace.http.face import HttpFace, HttpListener


class _Server(uvicorn.Server):
    """Uvicorn inside a loop and a process that it does not own, with bounded handshakes."""

    def __init__(
        self, config: uvicorn.Config, listener: ListenerSecurity, limits: ConnectionLimits | None
    ) -> None:
        super().__init__(config)
        self._listener = listener
        self._limits = limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets."""
        await self.lifespan.startup()
        config = self.config
        loop = asyncio.get_running_loop()
        self.servers: list[asyncio.Server] = []

        def protocol() -> asyncio.Protocol:
            return HttpConnection(
                listener=self._listener,
                limits=self._limits,
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        tls = self._listener.tls
        for one in sockets or ():
            if tls is None:
                server = await loop.create_server(protocol, sock=one, backlog=config.backlog)
                self.servers.append(server)
            else:
                encrypted = TlsServer([one], protocol, tls)
                await encrypted.start_serving()
                self.servers.append(cast("asyncio.Server", encrypted))
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process handles its signals itself."""
        yield


class _Api:
    """The routes of a listener for clients: operations, health and metrics."""

    def __init__(
        self,
        face: HttpFace,
        listener: HttpListener,
        rendering: Rendering,
        history: History,
        figures: BrokerFigures,
    ) -> None:
        parts = (
            Queues,  # routes are tried one by one, and these are asked for most often
            TopicOperations,
            LedgerOperations,
            RecordOperations,
            DelayedOperations,
            GroupOperations,
            ParkedOperations,
            QuotaOperations,
            DiagnosisOperations,
            DeadLetterOperations,
            KeyOperations,
            AclOperations,
            TenantOperations,
            TopicShareOperations,
            UserOperations,
            BrokerConfigOperations,
        )
        services = face.services
        operations = [one for part in parts for one in part(services).operations]
        operations += SessionOperations(services, listener.security).operations
        operations += ClusterOperations(
            services, lambda: face.kafka.connections, figures
        ).operations
        operations += OverviewOperations(services, history, figures).operations
        operations += queries(services)
        self._document = document(operations)
        self.routes = [
            *routes(
                services,
                operations,
                is_local=listener.is_local,
                figures=rendering.http,
                bodies=face.bodies,
                answers=face.answers,
            ),
            *Monitoring(face, listener.security, rendering).routes,
            PathRoute("/openapi.json", self._openapi),
        ]

    async def _openapi(self, _request: Request) -> Response:
        return JSONResponse(self._document)


async def _admin_only(scope: Scope, receive: Receive, send: Send) -> None:
    refusal = problem(
        404,
        "this listener serves /healthz, /readyz and /metrics alone",
        "use the broker's HTTP address (--http)",
    )
    await refusal(scope, receive, send)


def path_of_parts(raw: bytes) -> str:
    """A path in which an escaped slash remains a part of its name."""
    parts = raw.decode("ascii", "replace").split("/")
    return "/".join(unquote(part).replace("/", SLASH) for part in parts)


def is_own_host(host: bytes) -> bool:
    """Whether a Host header names this machine: `localhost`, or an address in figures."""
    return _OWN_HOST.fullmatch(host) is not None


class _Guard:
    """What holds for every request."""

    def __init__(self, app: ASGIApp, *, is_local: bool) -> None:
        self._app = app
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if b"%2f" in scope.get("raw_path", b"").lower():
            scope = dict(scope, path=path_of_parts(scope["raw_path"]))
        hosts = [value for name, value in scope.get("headers", ()) if name == b"host"]
        if self._is_local and not all(map(is_own_host, hosts)):
            refusal = problem(
                421,
                "this listener serves its own machine alone",
                "use localhost or the listener's address, and no other host's name",
            )
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def make_servers(face: HttpFace) -> list[uvicorn.Server]:
    """A server for each listener of the face, whose sockets are open already."""
    rendering = Rendering(face)
    services = face.services
    history = History(services.appends.clock, reader(services, face.kafka))
    face.tasks.spawn(history.run(), "history of figures")
    figures = BrokerFigures(services, history, Verdict(services).problems, face.tasks)
    parts = rendering, history, figures
    return [_make_server(face, listener, *parts) for listener in face.listeners]


def _make_server(
    face: HttpFace,
    listener: HttpListener,
    rendering: Rendering,
    history: History,
    figures: BrokerFigures,
) -> uvicorn.Server:
    """Starlette's router without its two layers for errors: a request that fails is logged, and
    answered with 500, by uvicorn."""
    app: ASGIApp
    if listener.is_admin:
        app = Router(Monitoring(face, listener.security, rendering).routes, default=_admin_only)
    else:
        api = _Api(face, listener, rendering, history, figures)
        app = Router([*api.routes, *console_routes()], default=not_found)
    if listener.security.is_sasl:
        app = AuthenticatedApp(app, face.services, listener.security)
    config = uvicorn.Config(
        _Guard(app, is_local=listener.is_local),
        log_config=None,
        access_log=False,
        lifespan="off",
        http=HttpConnection,
        ws="none",
        server_header=False,
        proxy_headers=False,
        headers=[("X-Content-Type-Options", "nosniff")],
        limit_concurrency=TASKS_MAX,
        timeout_graceful_shutdown=1,
    )
    return _Server(config, listener.security, face.services.connections)
