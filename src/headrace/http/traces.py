"""Traces of messages over HTTP: at once, or as a task.

Invariants: parses and encodes; what a trace holds is in `broker/services/trace`. Brokers that could
not be asked are named (`failed`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.http.background import TaskOperations
from headrace.http.operations import (
    OFFSET,
    PARTITION,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    integer,
    needing,
    text,
)
from headrace.http.partitions import failed_brokers
from headrace.http.problems import Contradiction
from headrace.http.search import shown_message
from headrace.records.attributes import TIME_MS_MAX, TRACEPARENT, find_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.services.background_tasks import BackgroundTask, BackgroundTasks
    from headrace.broker.services.services import Services
    from headrace.broker.services.trace import Trace, TraceEvent
    from headrace.broker.topics.topic import Topic
    from headrace.errors import HeadraceError
    from headrace.http.schemas import Schema

TIME_MS: Final = 5_000
TIME_MS_MAX_OF_CALL: Final = 30_000
TASK_TIME_MS: Final = 3_600_000
_NAME_ONE: Final = "name the message by message_id, or by partition and offset"


class TraceOperations:
    """The operations on traces."""

    def __init__(self, services: Services, tasks: BackgroundTasks) -> None:
        self._services = services
        self._search = services.search
        self._tasks = tasks
        of_message: dict[str, Schema] = {
            "message_id": text(255, 1),
            "partition": PARTITION,
            "offset": OFFSET,
        }
        asked = {"topic": TOPIC, **of_message,
                 "time_ms": integer(1, TIME_MS_MAX_OF_CALL, default=TIME_MS)}  # fmt: skip
        body: Schema = fields(["topic"], topic=TOPIC, **of_message) | {
            "description": _NAME_ONE,
            "anyOf": [needing("message_id"), needing("partition", "offset")],
            "not": {
                "description": _NAME_ONE,
                "anyOf": [needing("message_id", name) for name in ("partition", "offset")],
            },
        }
        started = TaskOperations(services, "trace", "Trace a message in a task.", body, self._begin)
        self.operations = [
            Operation("GET", "/v1/topics/{topic}/trace", "traceMessage",
                      "Trace a message, by its id or its partition and offset.",
                      self._trace, asked),
            *started.operations,
        ]  # fmt: skip

    async def _trace(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        return _shown(
            topic, *await self._find(topic, call.query, call.query.get("time_ms", TIME_MS))
        )

    async def _find(
        self, topic: Topic, given: Json, time_ms: int
    ) -> tuple[Trace, dict[int, HeadraceError]]:
        _check(given)
        if "message_id" in given:
            return await self._search.trace_by_id(topic, given["message_id"], time_ms)
        place = given["partition"], given["offset"]
        return await self._search.trace_by_offset(topic, *place, time_ms), {}

    async def _begin(self, call: Call) -> BackgroundTask:
        body, topic = call.body, self._services.topics.get(call.body["topic"])
        _check(body)

        async def work(task: BackgroundTask) -> None:
            trace, failed = await self._find(topic, body, TASK_TIME_MS)
            task.progress = {"records": trace.records}
            task.add(_shown(topic, trace, failed), 0)

        return self._tasks.start("trace", body, work, call.holder)


def _shown(topic: Topic, trace: Trace, failed: Mapping[int, HeadraceError]) -> Json:
    parents = {
        value.decode(errors="replace"): None
        for found in trace.messages
        if (value := find_header(found.record.headers, TRACEPARENT)) is not None
    }
    answer: Json = {
        "topic": topic.name,
        "events": [_event(event) for event in trace.events],
        "messages": [shown_message(found) for found in trace.messages],
        "traceparents": [*parents],
        "unknown": trace.unknown,
        "is_complete": trace.is_complete,
    }
    if trace.tables:
        answer["tables"] = trace.tables
    return answer | failed_brokers(failed)


def _check(given: Json) -> None:
    """Raises Contradiction."""
    is_by_offset = "partition" in given and "offset" in given
    is_partial = ("partition" in given) != ("offset" in given)
    if is_partial or is_by_offset == ("message_id" in given):
        raise Contradiction(_NAME_ONE)


def _event(event: TraceEvent) -> Json:
    shown: Json = {"event": event.event}
    if event.at_ms < TIME_MS_MAX:
        shown["at_ms"] = event.at_ms
    shown |= {"topic": event.topic, "partition": event.partition}
    if event.offset >= 0:
        shown["offset"] = event.offset
    return shown | event.details
