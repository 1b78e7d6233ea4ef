"""Whether a broker is well, its figures of an hour, and the stream of those to come.

Invariants: reads state that exists anyway, and loads no log; asks other brokers for the lag of
groups alone. A problem says what is affected, why, and what to do next. However many watch, a
sample is taken once; a stream holds no events for a client that reads slowly, and continues after
`Last-Event-ID`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.authorizer import ResourceType
from headrace.errors import HeadraceError, StorageUnavailable
from headrace.http.event_streams import EventStream, event
from headrace.http.history import INTERVAL_S, SAMPLES_MAX, History
from headrace.http.operations import TOPIC, Call, Json, Operation, integer, text
from headrace.http.partitions import failed_brokers
from headrace.http.problems import details

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.responses import Response

    from headrace.broker.services.services import Services

STREAMS_MAX: Final = 64
PROBLEMS_MAX: Final = 100
LAGS_MAX: Final = 20


class Verdict:
    """What is wrong on a broker, for people."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def problems(self) -> list[Json]:
        """Everything that this broker knows to be wrong, the worst first."""
        found = [*self._storage(), *self._partitions()]
        for one in self._services.health.problems()[:PROBLEMS_MAX]:
            cause, _, step = one.reason.rpartition(": ")
            found.append(_problem(one.what, cause or one.reason, step, is_passing=one.is_passing))
        return found[:PROBLEMS_MAX]

    def _storage(self) -> list[Json]:
        found = []
        disk, replication = self._services.topics.disk, self._services.replication
        try:
            is_full = disk is not None and disk.space().is_full
        except OSError:
            is_full = False
            found.append(_problem("the disk", "its free space cannot be read", "check the disk"))
        if is_full:
            step = "make room on the broker's disk, or shorten the retention of large topics"
            found.append(_problem("the disk", "it is full, and records are refused", step))
        obstacle = None if replication is None else replication.obstacle()
        if obstacle is not None:
            step = "check ZooKeeper and the bookies: headrace cluster status"
            found.append(_problem("storage", obstacle, step))
        return found

    def _partitions(self) -> list[Json]:
        offline = self._offline()
        found = []
        if offline:
            step = "start the brokers that are down: headrace cluster status"
            cause = f"no live broker serves {len(offline)} of the cluster's partitions"
            found.append(_problem(", ".join(offline[:3]), cause, step))
        replication = self._services.replication
        missing = 0 if replication is None else sum(replication.lacking.values())
        if missing:
            step = "wait for BookKeeper's AutoRecovery, or start the bookies that are down"
            cause = f"{missing} copies of entries of this broker's partitions are missing"
            found.append(_problem("copies", cause, step, is_passing=True))
        return found

    def _offline(self) -> list[str]:
        topics = self._services.topics
        brokers = {one.id for one in self._services.cluster.brokers()}
        return [
            f"{topic.name}-{number}"
            for topic in map(topics.get, topics.names())
            for number in range(len(topic.partitions))
            if topics.leader(topic, number).broker not in brokers
        ]


def _problem(what: str, cause: str, step: str, *, is_passing: bool = False) -> Json:
    return {
        "what": what,
        "cause": cause,
        "next_step": step or "see the broker's log",
        "is_passing": is_passing,
    }


class OverviewOperations:
    """The operations on a broker's state."""

    def __init__(self, services: Services, history: History) -> None:
        self._services = services
        self._history = history
        self._verdict = Verdict(services)
        self._measured: tuple[int, list[Json], Json] = (-1, [], {})
        self._measuring = asyncio.Lock()
        self._found: tuple[int, list[Json]] = (-1, [])
        self._streams = 0
        watched = text(249, 1, pattern=TOPIC["pattern"], description="Also its offsets.")
        points = integer(1, SAMPLES_MAX, default=180)
        after = {"last-event-id": text(60, description="Continue after this event.")}
        self.operations = [
            Operation("GET", "/v1/overview", "getOverview",
                      "Is the broker well, and if not, why and what to do; counts, lag, disk.",
                      self._overview),
            Operation("GET", "/v1/history", "getHistory",
                      "Rates and levels of the last hour.", self._get_history, {"points": points}),
            Operation("GET", "/v1/events", "followEvents",
                      "Stream rates, problems and, of one topic, offsets as server-sent events.",
                      self._follow, {"topic": watched, "after": text(60)}, headers=after,
                      media_type="text/event-stream"),
        ]  # fmt: skip

    # --- overview ----------------------------------------------------------------------------

    async def _overview(self, call: Call) -> Json:
        services = self._services
        topics = [services.topics.get(name) for name in services.topics.names()]
        problems = self._problems()
        lags, failed = await self._measure()
        found: Json = {
            "is_well": not problems,
            "problems": problems,
            "cluster_id": services.cluster.id,
            "broker": services.cluster.broker_id,
            "brokers": len(services.cluster.brokers()),
            "topics": sum(not topic.is_internal for topic in topics),
            "partitions": sum(len(topic.partitions) for topic in topics if not topic.is_internal),
            "lag_records": sum(one["records"] for one in lags),
            "lags": call.rights.shown(lags, "lags")[:LAGS_MAX],
            "dead_letters": {
                "copied": services.dead_letters.copied_total,
                "failed": services.dead_letters.failed_total,
                "given_up": services.dead_letters.given_up_total,
            },
            "disk": self._disk(),
            **failed,
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

    def _disk(self) -> Json | None:
        try:
            disk = self._services.topics.disk
            space = None if disk is None else disk.space()
        except OSError:
            return None  # the verdict says so
        if space is None:
            return None
        return {
            "free_bytes": space.free_bytes,
            "total_bytes": space.total_bytes,
            "reserve_bytes": space.reserve_bytes,
            "is_full": space.is_full,
        }

    async def _measure(self) -> tuple[list[Json], Json]:
        """(the lag of each group, the largest first, the field `failed`): of the whole cluster,
        measured once after each sample, however many ask."""
        async with self._measuring:
            if self._measured[0] != self._history.taken:
                taken = self._history.taken
                found, failed = await self._services.lags.now()
                lags = [{"group": group, "records": count} for group, count in found.items()]
                self._measured = taken, lags, failed_brokers(failed)
            return self._measured[1:]

    # --- history -----------------------------------------------------------------------------

    async def _get_history(self, call: Call) -> Json:
        return {
            "interval_ms": INTERVAL_S * 1_000,
            "last_event_id": self._id(self._history.taken - 1),
            "points": self._history.points(call.query.get("points", 180)),
        }

    # --- events ------------------------------------------------------------------------------

    async def _follow(self, call: Call) -> Response:
        name = call.query.get("topic")
        if name is not None:
            call.rights.require(Right.DESCRIBE, ResourceType.TOPIC, name)
            self._services.topics.get(name)
        if self._streams >= STREAMS_MAX:
            raise StorageUnavailable(f"{STREAMS_MAX} clients follow events already: try later")
        after = call.request.headers.get("last-event-id", call.query.get("after", ""))
        self._streams += 1
        return EventStream(self._events(call, name, self._place(after)), self._end)

    def _end(self) -> None:
        self._streams -= 1

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
                call.check_again()  # rights may have been withdrawn
                for kind, data in self._states(call, name):
                    if shown.get(kind) != data:
                        shown[kind] = data
                        yield event(kind, data)
                number = max(number, history.first + 1)
                while number < history.taken:
                    yield event("rates", history.point(number, number - 1), self._id(number))
                    number += 1
                await history.wait_next()
        except HeadraceError as error:  # the head of the response was sent: say it in the stream
            yield event("problem", details(error))

    def _states(self, call: Call, name: str | None) -> list[tuple[str, Json]]:
        """What is sent when it changes."""
        problems = self._problems()
        found: list[tuple[str, Json]] = [
            ("health", {"is_well": not problems, "problems": problems})
        ]
        if name is not None:
            call.rights.require(Right.DESCRIBE, ResourceType.TOPIC, name)
            topic = self._services.topics.get(name)
            offsets = [
                [one.number, *one.offsets]
                for one in self._services.topics.describe(topic)
                if one.offsets is not None
            ]
            found.append(("topic", {"topic": name, "offsets": offsets}))
        return found
