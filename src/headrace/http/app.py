"""What HTTP answers: is it alive, is it ready, how is it doing.

Invariants: reads, never changes. A listener of this machine alone is asked under no other
host's name: a page in a browser here, whose name resolves to 127.0.0.1 on the second look, would
read what its owner may not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import uvicorn
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, Router

from headrace.broker.security.principal import ANONYMOUS
from headrace.http.access import MONITOR, SEE_CLUSTER
from headrace.http.authorization import Rights
from headrace.http.cluster import ClusterOperations
from headrace.http.connection import HttpConnection
from headrace.http.delayed import DelayedOperations
from headrace.http.groups import GroupOperations
from headrace.http.logins import Authenticated
from headrace.http.metrics import Metrics
from headrace.http.openapi import document
from headrace.http.operations import SLASH, routes, session_of
from headrace.http.parked import ParkedOperations
from headrace.http.queries import queries
from headrace.http.queues import Queues
from headrace.http.quotas import QuotaOperations
from headrace.http.records import RecordOperations
from headrace.http.topics import TopicOperations
from headrace.metadata.health_facts import PROBLEMS_MAX
from headrace.runtime.tls import server_arguments

RENDER_REST = 4
"""Who asks for metrics again before four times as long has gone by as they took, waits until then:
however many ask, and hang up before they are answered, a fifth of the loop's time goes to them."""
RENDER_REST_S_MAX = 1.0
ASKING_MAX = 64
"""For metrics at once; health checks come through beside them."""
TASKS_MAX = 4096
"""Requests that are being answered, those included whose clients have hung up."""

log = logging.getLogger(__name__)

_OWN_HOST = re.compile(
    rb"(localhost|\d{1,3}(\.\d{1,3}){3}|\[[0-9a-f:.]{2,45}\])?(:\d{1,5})?", re.IGNORECASE
)
"""A numeric address belongs to no domain."""

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headrace.broker.security.listener import ListenerSecurity
    from headrace.http.face import HttpFace


class _Server(uvicorn.Server):
    """Uvicorn inside a loop and a process that belong to somebody else, with bounded handshakes."""

    def __init__(self, config: uvicorn.Config, listener: ListenerSecurity) -> None:
        super().__init__(config)
        self._listener = listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on these sockets."""
        await self.lifespan.startup()
        config = self.config
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.Protocol:
            return HttpConnection(
                listener=self._listener,
                config=config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

        self.servers = [
            await loop.create_server(
                protocol, sock=one, backlog=config.backlog, **server_arguments(self._listener.tls)
            )
            for one in sockets or ()
        ]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process handles its signals itself."""
        yield


class _App:
    """What answers."""

    def __init__(self, face: HttpFace) -> None:
        self._face = face
        self._metrics = Metrics(face.node, face.kafka, face.counters)
        self._metrics.certificate_expiries = face.certificate_expiries
        self._next: asyncio.Task[tuple[bytes, str]] | None = None
        self._rendering = asyncio.Lock()
        self._rest_until_s = 0.0
        self._asking = 0
        parts = (
            Queues,  # routes are tried one by one, and these are asked for most often
            TopicOperations,
            RecordOperations,
            DelayedOperations,
            GroupOperations,
            ParkedOperations,
            QuotaOperations,
            ClusterOperations,
        )
        services = face.node.services
        operations = [one for part in parts for one in part(services).operations]
        operations += queries(services)
        self._document = document(operations)
        self.routes = [
            *routes(services, operations, is_local=face.is_local),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._serve_metrics),
            Route("/openapi.json", self._openapi),
        ]

    async def _healthz(self, _request: Request) -> Response:
        """Report that the process is alive and its event loop runs."""
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        """Clients can be served, and what they send can be stored."""
        is_full = self._is_disk_full()
        replication = self._face.node.replication
        reason = None if replication is None else replication.obstacle()
        health = self._face.node.services.health
        found, counts = health.problems(), health.opened()
        if reason is None and counts.refused and not counts.served:
            reason = f"none of the {counts.refused} partitions that this broker opened is served"
        is_ready = self._face.is_ready and not is_full and reason is None
        answer: dict[str, Any] = {"ready": is_ready}
        if not self._may_monitor(request):
            return JSONResponse(answer, 200 if is_ready else 503)
        if is_full:
            answer["disk_full"] = True
        if reason is not None:
            answer["reason"] = reason
        if found:
            answer["problems"] = [one._asdict() for one in found[:PROBLEMS_MAX]]
            answer["damaged_partitions"] = health.damaged_partitions()
        return JSONResponse(answer, 200 if is_ready else 503)

    def _is_disk_full(self) -> bool:
        space = self._face.node.services.topics.disk
        try:
            return space is not None and space.space().is_full
        except OSError as error:
            log.warning("how much of the disk is free cannot be found out: %s", error)
            return False

    async def _openapi(self, _request: Request) -> Response:
        return JSONResponse(self._document)

    def _may_monitor(self, request: Request) -> bool:
        """Whether the client may see figures and problems, which name topics and groups."""
        services = self._face.node.services
        if self._face.security.is_sasl and session_of(request).principal == ANONYMOUS:
            return False
        return Rights(services, session_of(request), MONITOR, "metrics").may(*SEE_CLUSTER)

    async def _serve_metrics(self, request: Request) -> Response:
        if not self._may_monitor(request):
            return PlainTextResponse("metrics need the right to DESCRIBE the cluster\n", 403)
        if self._asking >= ASKING_MAX:
            return PlainTextResponse("too many ask for metrics at once: ask again\n", 503)
        self._asking += 1
        try:
            text, content_type = await asyncio.shield(self._fresh())
        finally:
            self._asking -= 1
        return Response(text, media_type=content_type)

    def _fresh(self) -> asyncio.Task[tuple[bytes, str]]:
        """The next rendering, for all who ask before it begins."""
        if self._next is None:
            self._next = self._face.node.tasks.start(self._render(), "metrics")
        return self._next

    async def _render(self) -> tuple[bytes, str]:
        now_s = asyncio.get_running_loop().time
        async with self._rendering:
            await asyncio.sleep(max(0.0, self._rest_until_s - now_s()))
            self._next = None  # who asks from here on wants to see what has happened since
            begun_s = now_s()
            rendered = await self._metrics.render()
            taken_s = now_s() - begun_s
            self._rest_until_s = now_s() + min(taken_s * RENDER_REST, RENDER_REST_S_MAX)
        return rendered


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
            refusal = PlainTextResponse("this listener serves its own machine alone\n", 421)
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def make_server(face: HttpFace) -> uvicorn.Server:
    """A server for a socket that is open already.

    Starlette's router without its two layers for errors: a request that fails is logged, and
    answered with 500, by uvicorn.
    """
    app: ASGIApp = Router(_App(face).routes)
    if face.security.is_sasl:
        app = Authenticated(app, face.node.services.authentication, face.security.name)
    config = uvicorn.Config(
        _Guard(app, is_local=face.is_local),
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
    return _Server(config, face.security)
