"""The HTTP face: is it alive, is it ready, how is it doing.

Rules of the room: reads, never changes. Binds to loopback unless told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.http.metrics import Counters, KafkaFigures, Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from headrace.broker.node import Node


class _Server(uvicorn.Server):
    """Uvicorn inside a loop and a process that belong to somebody else."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process handles its signals itself."""
        yield


class HttpFace:
    """`/healthz`, `/readyz`, `/metrics`."""

    def __init__(self, node: Node, kafka: KafkaFigures, counters: Counters) -> None:
        self.is_ready = False
        self._metrics = Metrics(node, kafka, counters)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._node = node

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Serve HTTP; the address. Raises OSError."""
        routes = [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._serve_metrics),
        ]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError:
            listener.close()
            raise
        config = uvicorn.Config(
            Starlette(routes=routes),
            log_config=None,
            access_log=False,
            lifespan="off",
            http="h11",
            ws="none",
            server_header=False,
            limit_concurrency=256,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._task = self._node.tasks.start(self._server.serve(sockets=[listener]), "http")
        address = listener.getsockname()
        return address[0], address[1]

    async def close(self) -> None:
        """Stop serving."""
        self.is_ready = False
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task], timeout=3)

    async def _healthz(self, _request: Request) -> Response:
        """The process is alive and its loop turns."""
        return PlainTextResponse("ok\n")

    async def _readyz(self, _request: Request) -> Response:
        """Clients can be served."""
        answer: dict[str, Any] = {"ready": self.is_ready}
        damaged = [
            partition.name
            for topic in self._node.topics.by_name.values()
            for partition in topic.partitions
            if partition.failure is not None
        ]
        if damaged:
            answer["damaged_partitions"] = damaged
        return JSONResponse(answer, 200 if self.is_ready else 503)

    async def _serve_metrics(self, _request: Request) -> Response:
        text, content_type = await self._metrics.render()
        return Response(text, media_type=content_type)
