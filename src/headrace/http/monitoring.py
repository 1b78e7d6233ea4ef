"""Health and metrics of a broker, over HTTP: what probes and monitoring systems ask for.

Invariants: reads, never changes. The listeners share one rendering, so that however many clients
ask for metrics, a bounded part of the loop's time goes to them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.services.readiness import readiness_of
from headrace.http.access import MONITOR, SEE_CLUSTER
from headrace.http.authorization import Rights
from headrace.http.metrics import Metrics, encoding_for
from headrace.http.operations import session_of
from headrace.http.problems import PathRoute
from headrace.http.request_figures import HttpFigures
from headrace.metadata.health_facts import PROBLEMS_MAX
from headrace.records.written_names import with_written_names

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.broker.security.listener import ListenerSecurity
    from headrace.http.face import HttpFace
    from headrace.http.metrics import Encoding

RENDER_REST = 4
"""A request for metrics that comes before four times the duration of the last rendering has passed
waits until then: at most a fifth of the loop's time goes to metrics, whatever clients do."""
RENDER_REST_S_MAX = 1.0
ASKING_MAX = 64
"""Requests for metrics at once; health checks are answered meanwhile."""


class Rendering:
    """The text of the metrics, rendered once in each format for all clients that wait for it."""

    def __init__(self, face: HttpFace) -> None:
        self._face = face
        self.http = HttpFigures(face.connection_count, face.slow)
        """Counted by the operations."""
        authorizer = face.services.authorizer
        sources = [*face.sources, self.http.figures]
        self._metrics = Metrics(sources, lambda: authorizer.has_tenants)
        face.metrics = self._metrics
        self._next: dict[str, asyncio.Task[tuple[bytes, str]]] = {}
        """By content type: at most the few that the client library writes."""
        self._rest_until_s = 0.0
        self._asking = 0

    async def response(self, accepted: str) -> Response:
        """The metrics in a format that is `accepted`, or 503 if too many clients ask for them."""
        if self._asking >= ASKING_MAX:
            return PlainTextResponse("too many ask for metrics at once: ask again\n", 503)
        self._asking += 1
        try:
            text, content_type = await asyncio.shield(self._fresh(encoding_for(accepted)))
        finally:
            self._asking -= 1
        return Response(text, headers={"Content-Type": content_type})

    def _fresh(self, encoding: Encoding) -> asyncio.Task[tuple[bytes, str]]:
        """The next rendering, for all who ask before it begins."""
        found = self._next.get(encoding.content_type)
        if found is None:
            found = self._face.tasks.start(self._render(encoding), "metrics")
            self._next[encoding.content_type] = found
        return found

    async def _render(self, encoding: Encoding) -> tuple[bytes, str]:
        now_s = asyncio.get_running_loop().time
        # Another format may be rendered first, which adds to the time.
        while (rest_s := self._rest_until_s - now_s()) > 0:  # noqa: ASYNC110  # waits for time
            await asyncio.sleep(rest_s)
        # who asks from here on wants to see what has happened since
        del self._next[encoding.content_type]
        begun_s = now_s()
        try:
            return self._metrics.render(encoding)
        finally:
            taken_s = now_s() - begun_s
            self._rest_until_s = now_s() + min(taken_s * RENDER_REST, RENDER_REST_S_MAX)


class Monitoring:
    """The paths of one listener: `/healthz`, `/readyz`, `/metrics`."""

    def __init__(self, face: HttpFace, security: ListenerSecurity, rendering: Rendering) -> None:
        self._face = face
        self._security = security
        self._rendering = rendering
        self.routes = [
            PathRoute("/healthz", self._healthz),
            PathRoute("/readyz", self._readyz),
            PathRoute("/metrics", self._serve_metrics),
        ]

    async def _healthz(self, _request: Request) -> Response:
        """Report that the process is alive and its event loop runs."""
        return PlainTextResponse("ok\n")

    async def _readyz(self, request: Request) -> Response:
        """Clients can be served, and what they send can be stored."""
        services = self._face.services
        found, verdict = services.health.problems(), readiness_of(services)
        is_ready = self._face.is_ready and verdict.is_ready
        answer: dict[str, Any] = {"ready": is_ready}
        if not self._may_monitor(request):
            return JSONResponse(answer, 200 if is_ready else 503)
        if verdict.is_disk_full:
            answer["disk_full"] = True
        if verdict.reason is not None:
            answer["reason"] = verdict.reason
        if found:
            answer["problems"] = [one._asdict() for one in found[:PROBLEMS_MAX]]
            answer["damaged_partitions"] = services.health.damaged_partitions()
        if services.authorizer.has_tenants:
            answer = with_written_names(answer)
        return JSONResponse(answer, 200 if is_ready else 503)

    def _may_monitor(self, request: Request) -> bool:
        """Whether the client may see figures and problems, which name topics and groups."""
        services = self._face.services
        if self._security.is_sasl and session_of(request).principal == ANONYMOUS:
            return False
        return Rights(services, session_of(request), MONITOR, "metrics").may(*SEE_CLUSTER)

    async def _serve_metrics(self, request: Request) -> Response:
        if not self._may_monitor(request):
            return PlainTextResponse("metrics need the right to DESCRIBE the cluster\n", 403)
        return await self._rendering.response(request.headers.get("accept", ""))
