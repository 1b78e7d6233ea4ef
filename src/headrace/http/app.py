"""What HTTP answers: is it alive, is it ready, how is it doing.

Rules of the room: reads, never changes.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from h11 import LocalProtocolError
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.http.metrics import Metrics

CONNECTIONS_MAX = 128
"""From here on the oldest that waits for its client is closed for each new one: health checks come
through beside however many that dribble."""

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from headrace.http.face import HttpFace


class _Server(uvicorn.Server):
    """Uvicorn inside a loop and a process that belong to somebody else."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process handles its signals itself."""
        yield


class _Protocol(H11Protocol):
    """Clients that ask for nothing, or never end asking, give way to those that come."""

    began_s = 0.0

    def connection_made(self, transport: Any) -> None:
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self.began_s = self.loop.time()
        if len(self.connections) > CONNECTIONS_MAX:
            others = cast("set[_Protocol]", self.connections) - {self}
            idle = (one for one in others if _is_idle(one))
            oldest = min(idle, key=lambda one: one.began_s, default=None)
            if oldest is not None:
                self.connections.discard(oldest)
                oldest.transport.abort()


def _is_idle(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete


class _App:
    """What answers."""

    def __init__(self, face: HttpFace) -> None:
        self._face = face
        self._metrics = Metrics(face.node, face.kafka, face.counters)
        self.routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._serve_metrics),
        ]

    async def _healthz(self, _request: Request) -> Response:
        """The process is alive and its loop turns."""
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        """Clients can be served."""
        answer: dict[str, Any] = {"ready": self._face.is_ready}
        damaged = [
            partition.name
            for topic in self._face.node.topics.by_name.values()
            for partition in topic.partitions
            if partition.failure is not None
        ]
        if damaged:
            answer["damaged_partitions"] = damaged
        return JSONResponse(answer, 200 if self._face.is_ready else 503)

    async def _serve_metrics(self, _request: Request) -> Response:
        text, content_type = await self._metrics.render()
        return Response(text, media_type=content_type)


def _is_ours(record: logging.LogRecord) -> bool:
    """Leave out the trouble of answering a client that has been told 400 within its request."""
    return record.exc_info is None or record.exc_info[0] is not LocalProtocolError


def make_server(face: HttpFace) -> uvicorn.Server:
    """A server for a socket that is open already."""
    logging.getLogger("uvicorn.error").addFilter(_is_ours)
    config = uvicorn.Config(
        Starlette(routes=_App(face).routes),
        log_config=None,
        access_log=False,
        lifespan="off",
        http=_Protocol,
        ws="none",
        server_header=False,
        limit_concurrency=256,
        timeout_graceful_shutdown=1,
    )
    return _Server(config)
