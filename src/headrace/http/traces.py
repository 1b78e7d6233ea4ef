"""Traces of messages over HTTP: at once, or as a task.

Invariants: parses and encodes; what a trace holds is in `broker/services/trace`. A broker answers
for the partitions that it serves and names the others with their brokers (`elsewhere`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.services.trace import Trace, Tracer
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
    text,
)
from headrace.http.problems import Contradiction
from headrace.http.search import partitions_elsewhere, shown_message
from headrace.records.attributes import TIME_MS_MAX, TRACEPARENT, find_header

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.services.background_tasks import BackgroundTask, BackgroundTasks
    from headrace.broker.services.search import Search
    from headrace.broker.services.trace import TraceEvent
    from headrace.broker.topics.topic import Topic
    from headrace.http.schemas import Schema

TIME_MS: Final = 5_000
TIME_MS_MAX_OF_CALL: Final = 30_000
TASK_TIME_MS: Final = 3_600_000


class TraceOperations:
    """The operations on traces."""

    def __init__(self, node: Node, search: Search, tasks: BackgroundTasks) -> None:
        self._node = node
        self._search = search
        self._tasks = tasks
        self._tracer = Tracer(search, node.shares, node.timers)
        of_message: dict[str, Schema] = {
            "message_id": text(255, 1),
            "partition": PARTITION,
            "offset": OFFSET,
        }
        asked = {"topic": TOPIC, **of_message,
                 "time_ms": integer(1, TIME_MS_MAX_OF_CALL, default=TIME_MS)}  # fmt: skip
        body = fields(["topic"], topic=TOPIC, **of_message)
        started = TaskOperations(tasks, "trace", "Trace a message in a task.", body, self._begin)
        self.operations = [
            Operation("GET", "/v1/topics/{topic}/trace", "traceMessage",
                      "Trace a message, by its id or its partition and offset.",
                      self._trace, asked),
            *started.operations,
        ]  # fmt: skip

    async def _trace(self, call: Call) -> Json:
        topic, trace = self._node.topics.get(call.path["topic"]), Trace()
        await self._fill(topic, call.query, call.query.get("time_ms", TIME_MS), trace)
        return self._shown(topic, call.query, trace)

    async def _fill(self, topic: Topic, given: Json, time_ms: int, trace: Trace) -> None:
        _check(given)
        if "message_id" in given:
            await self._tracer.by_id(topic, given["message_id"], time_ms, trace)
        else:
            number, offset = given["partition"], given["offset"]
            await self._tracer.by_offset(topic, number, offset, time_ms, trace)

    def _shown(self, topic: Topic, given: Json, trace: Trace) -> Json:
        topics = [] if "partition" in given else self._search.topics(topic)
        parents = {
            value.decode(errors="replace"): None
            for found in trace.messages
            if (value := find_header(found.record.headers, TRACEPARENT)) is not None
        }
        return {
            "topic": topic.name,
            "broker": self._node.config.broker_id,
            "events": [_event(event) for event in trace.events],
            "messages": [shown_message(found) for found in trace.messages],
            "traceparents": [*parents],
            "unknown": trace.unknown,
            "is_complete": trace.is_complete,
            "elsewhere": partitions_elsewhere(self._node, *topics),
        }

    async def _begin(self, call: Call) -> BackgroundTask:
        body, topic = call.body, self._node.topics.get(call.body["topic"])
        _check(body)

        async def work(task: BackgroundTask) -> None:
            trace = Trace()
            await self._fill(topic, body, TASK_TIME_MS, trace)
            task.progress = {"records": trace.records}
            task.add(self._shown(topic, body, trace), 0)

        return self._tasks.start("trace", body, work)


def _check(given: Json) -> None:
    """Raises Contradiction."""
    is_by_offset = "partition" in given and "offset" in given
    is_partial = ("partition" in given) != ("offset" in given)
    if is_partial or is_by_offset == ("message_id" in given):
        raise Contradiction("name the message by message_id, or by partition and offset")


def _event(event: TraceEvent) -> Json:
    shown: Json = {"event": event.event}
    if event.at_ms < TIME_MS_MAX:
        shown["at_ms"] = event.at_ms
    shown |= {"topic": event.topic, "partition": event.partition}
    if event.offset >= 0:
        shown["offset"] = event.offset
    return shown | event.details
