"""Whether the brokers are well, their figures of an hour, and the stream of those to come.

Invariants: reads state that exists anyway, and loads no log; what is of all brokers comes from
`broker_figures`, the stream shows one broker. However many watch, a sample is taken once; a stream
holds no events for a client that reads slowly, and continues after `Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.authorizer import ResourceType
from headrace.broker.security.tenant_shares import SharedPlaces
from headrace.errors import HeadraceError
from headrace.http.event_streams import EventStream, event
from headrace.http.history import INTERVAL_S, SAMPLES_MAX, History
from headrace.http.login_watch import LOGIN_CHECK_S
from headrace.http.operations import (
    TOPIC,
    Call,
    Json,
    Operation,
    integer,
    text,
)
from headrace.http.partitions import failed_brokers
from headrace.http.problems import details
from headrace.http.verdict import PROBLEMS_MAX, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from headrace.broker.services.services import Services
    from headrace.http.broker_figures import BrokerFigures

STREAMS_MAX: Final = 64
LAGS_MAX: Final = 20


class OverviewOperations:
    """The operations on a broker's state."""

    def __init__(self, services: Services, history: History, figures: BrokerFigures) -> None:
        self._services = services
        self._history = history
        self._figures = figures
        self._verdict = Verdict(services)
        self._found: tuple[int, list[Json]] = (-1, [])
        self._streams = SharedPlaces("clients that follow events", STREAMS_MAX)
        watched = TOPIC | {"description": "Also its offsets."}
        points = integer(1, SAMPLES_MAX, default=180)
        after = {"last-event-id": text(60, description="Continue after this event.")}
        self.operations = [
            Operation("GET", "/v1/overview", "getOverview",
                      "Are the brokers well, and if not, why and what to do; counts, lag, disk.",
                      self._overview),
            Operation("GET", "/v1/history", "getHistory",
                      "Rates and levels of the last hour, of this broker or of all together.",
                      self._get_history, {"points": points, "all_brokers": {"type": "boolean"}}),
            Operation("GET", "/v1/events", "followEvents",
                      "Stream rates, problems and, of one topic, offsets as server-sent events.",
                      self._follow, {"topic": watched, "after": text(60)}, headers=after,
                      media_type="text/event-stream"),
        ]  # fmt: skip

    # --- overview ----------------------------------------------------------------------------

    async def _overview(self, call: Call) -> Json:
        services = self._services
        topics = [services.topics.get(name) for name in services.topics.names()]
        state = await self._figures.of_cluster()
        lags = [one._asdict() for one in state.lags]
        problems = state.problems(services.cluster.broker_id, self._problems())
        found: Json = {
            "is_well": not problems,
            "problems": problems[:PROBLEMS_MAX],
            "cluster_id": services.cluster.id,
            "broker": services.cluster.broker_id,
            "brokers": len(services.cluster.brokers()),
            "topics": sum(not topic.is_internal for topic in topics),
            "partitions": sum(len(topic.partitions) for topic in topics if not topic.is_internal),
            "lag_records": sum(one.records for one in state.lags),
            "lag_is_partial": state.lacks_groups or any(one.is_partial for one in state.lags),
            "lags": call.rights.shown(lags, "lags")[:LAGS_MAX],
            "dead_letters": state.dead_letters(),
            "disk": state.fullest_disk(),
            **failed_brokers(state.failed),
        }
        replication = services.replication
        if replication is not None:
            bookies = replication.ledgers.replication()
            found["bookies"] = {
                "known": len(bookies.known),
                "registered": len(bookies.registered),
                "writable": len(bookies.writable),
            }
            found["zookeeper"] = replication.session.state.value
        return found

    def _problems(self) -> list[Json]:
        """Looked for once after each sample, however many ask."""
        if self._found[0] != self._history.taken:
            self._found = self._history.taken, self._verdict.problems()
        return self._found[1]

    # --- history -----------------------------------------------------------------------------

    async def _get_history(self, call: Call) -> Json:
        count_max, failed = call.query.get("points", 180), dict[int, HeadraceError]()
        if call.query.get("all_brokers"):
            points, failed = await self._figures.history(count_max)
        else:
            points = self._history.points(count_max)
        return {
            "interval_ms": INTERVAL_S * 1_000,
            "last_event_id": self._id(self._history.taken - 1),
            "points": points,
            **failed_brokers(failed),
        }

    # --- events ------------------------------------------------------------------------------

    async def _follow(self, call: Call) -> Response:
        name = call.query.get("topic")
        _require_seen(call, name)
        if name is not None:
            self._services.topics.get(name)
        after = call.request.headers.get("last-event-id", call.query.get("after", ""))
        events = self._events(call, name, self._place(after))
        return EventStream(events, self._streams.take(call.holder))

    def _id(self, number: int) -> str:
        """A sample's number is that of one run of the broker, which its first sample names."""
        return f"{self._history.started_ms:x}-{number}"

    def _place(self, after: str) -> int:
        """The number of the first sample to send; an id of another run starts with the last."""
        run, _, number = after.partition("-")
        last = max(self._history.taken - 1, 1)
        if run != f"{self._history.started_ms:x}" or not (number.isascii() and number.isdigit()):
            return last
        return max(min(int(number) + 1, self._history.taken), self._history.first + 1)

    async def _events(self, call: Call, name: str | None, number: int) -> AsyncIterator[bytes]:
        history = self._history
        shown: dict[str, Any] = {}
        try:
            while True:
                sees_cluster = _require_seen(call, name)
                states = self._cluster_states() if sees_cluster else []
                for kind, data in [*states, *self._topic_states(call, name)]:
                    if shown.get(kind) != data:
                        shown[kind] = data
                        yield event(kind, data)
                number = max(number, history.first + 1)
                while number < history.taken:
                    if sees_cluster:
                        yield event("rates", history.point(number, number - 1), self._id(number))
                    number += 1
                await self._wait_next(call)
        except HeadraceError as error:  # the head of the response was sent: say it in the stream
            yield event("problem", call.shown(details(error)))

    async def _wait_next(self, call: Call) -> None:
        """Return when another sample was taken. Raises what `check_again` raises."""
        number = self._history.taken
        while self._history.taken == number:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._history.wait_next(), LOGIN_CHECK_S)
            call.check_again()

    def _cluster_states(self) -> list[tuple[str, Json]]:
        """What is sent when it changes."""
        problems = self._problems()
        return [("health", {"is_well": not problems, "problems": problems})]

    def _topic_states(self, call: Call, name: str | None) -> list[tuple[str, Json]]:
        if name is None:
            return []
        topic = self._services.topics.get(name)
        offsets = [
            [one.number, *one.offsets]
            for one in self._services.topics.describe(topic)
            if one.offsets is not None
        ]
        return [("topic", call.shown({"topic": name, "offsets": offsets}))]


def _require_seen(call: Call, name: str | None) -> bool:
    """Whether the client sees the cluster, too, and not a topic alone: clients of tenants do not.
    Raises Unauthorized if it may see nothing of what it asks for."""
    if name is not None:
        call.rights.require(Right.DESCRIBE, ResourceType.TOPIC, name)
        return call.rights.may(Right.DESCRIBE, ResourceType.CLUSTER)
    call.rights.require(Right.DESCRIBE, ResourceType.CLUSTER)
    return True
