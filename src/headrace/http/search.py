"""Find messages over HTTP: page by page, or as a task.

Invariants: parses and encodes; what is searched, and how, is in `broker/services/search`. A broker
searches the partitions that it serves and names the others with their brokers (`elsewhere`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.batch_search import record_bytes
from headrace.broker.services.search import DEAD, FIRST, LOG, Search, SearchBounds, SearchPosition
from headrace.http.background import TaskOperations, decode_token, encode_token
from headrace.http.operations import (
    INT64_MAX,
    LIMIT_DEFAULT,
    PAGE,
    PARTITION,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    integer,
    listing,
    text,
)
from headrace.http.problems import Contradiction
from headrace.http.records import shown
from headrace.records.matching import TIME_MAX, Condition

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.services.background_tasks import BackgroundTask, BackgroundTasks
    from headrace.broker.services.search import FoundMessage, Page
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.shares.commands import DeliveryState
    from headrace.http.schemas import Schema

TIME_MS: Final = 2_000
TIME_MS_MAX: Final = 30_000
TASK_STEP: Final = SearchBounds(100, 500)
"""Of a task before it notes its progress."""
RESULTS_MAX: Final = 10_000
HEADERS_MAX: Final = 16
PREFIX: Final = "__dlq.errors."
_WORD: Final = text(4_096, 1)
_MEASURES: Final = ("message_id", "key", "tag")


def make_search(node: Node) -> Search:
    """The searches of a broker."""

    def dead_letter_topics() -> set[str]:
        return node.group_configs.values("errors.deadletterqueue.topic.name")

    return Search(node.topics, node.shares, node.timers, dead_letter_topics)


class SearchOperations:
    """The operations that find messages."""

    def __init__(self, node: Node, search: Search, tasks: BackgroundTasks) -> None:
        self._node = node
        self._search = search
        self._tasks = tasks
        conditions: dict[str, Schema] = dict.fromkeys(_MEASURES, _WORD)
        conditions |= dict.fromkeys(("since_ms", "until_ms"), integer(0, INT64_MAX))
        asked: dict[str, Schema] = {
            "topic": TOPIC,
            **conditions,
            "header": text(8_192, 3, description="NAME=VALUE"),
            "partition": PARTITION,
            "time_ms": integer(1, TIME_MS_MAX, default=TIME_MS),
            **PAGE,
        }
        body = fields(
            ["topic"],
            topic=TOPIC,
            **conditions,
            headers=listing(listing(_WORD, 2, 2), HEADERS_MAX),
            partition=PARTITION,
            max=integer(1, RESULTS_MAX, default=1_000),
        )
        started = TaskOperations(tasks, "search", "Find messages in a task.", body, self._begin)
        self.operations = [
            Operation("GET", "/v1/topics/{topic}/messages", "findMessages",
                      "Find messages by id, key, tag, header and time, each with its state.",
                      self._find, asked),
            *started.operations,
        ]  # fmt: skip

    async def _find(self, call: Call) -> Json:
        topic, query = self._node.topics.get(call.path["topic"]), call.query
        headers = []
        if "header" in query:
            name, is_pair, value = query["header"].partition("=")
            if not (is_pair and name and value):
                raise Contradiction("'header' is NAME=VALUE")
            headers = [[name, value]]
        condition = parse_condition(query, headers)
        start = _place(query.get("page_token", ""))
        bounds = SearchBounds(query.get("limit", LIMIT_DEFAULT), query.get("time_ms", TIME_MS))
        page = await self._search.page(topic, condition, start, bounds, query.get("partition"))
        answer: Json = {
            "topic": topic.name,
            "broker": self._node.config.broker_id,
            "messages": [shown_message(one) for one in page.found],
            "is_complete": page.next is None,
            "searched": _progress(page),
            "elsewhere": [] if "partition" in query else self._elsewhere(topic),
        }
        if page.next is not None:
            answer["next_page_token"] = encode_token([*page.next])
        return answer

    async def _begin(self, call: Call) -> BackgroundTask:
        topic, body = self._node.topics.get(call.body["topic"]), call.body
        condition = parse_condition(body, body.get("headers", ()))
        number = body.get("partition")
        if number is not None:
            topic.check_partition(number)
        served = self._search.served_places(topic)

        def left() -> list[Json]:
            return [] if number is not None else self._elsewhere(topic)

        async def work(task: BackgroundTask) -> None:
            task.progress = {"records": 0, "bytes": 0, "elsewhere": left(), "is_complete": False}
            place: SearchPosition | None = FIRST
            while place is not None:
                page = await self._search.page(topic, condition, place, TASK_STEP, number)
                place = page.next
                for one in page.found:
                    if len(task.results) >= body.get("max", 1_000) or task.is_full:
                        task.progress["is_cut"] = True
                        return
                    task.add(shown_message(one), record_bytes(one.record) + 500)
                _note(task.progress, page)
            # A partition that moved here or away meanwhile may have been missed. Where a single one
            # is searched, each page raises NotOwner once it has moved.
            is_same = number is not None or served == self._search.served_places(topic)
            task.progress |= {"elsewhere": left(), "is_complete": is_same}

        return self._tasks.start("search", body, work)

    def _elsewhere(self, topic: Topic) -> list[Json]:
        return partitions_elsewhere(self._node, *self._search.topics(topic))


def _note(progress: Json, page: Page) -> None:
    for name, value in _progress(page).items():
        is_count = name in {"records", "bytes", "unreadable_batches"}
        progress[name] = progress.get(name, 0) + value if is_count else value


def _progress(page: Page) -> Json:
    found: Json = {"records": page.records, "bytes": page.size_bytes}
    if page.unreadable:
        found["unreadable_batches"] = page.unreadable
    if page.next is not None:
        place = page.next
        found["up_to"] = {"topic": place.topic, "partition": place.partition}
        if page.up_to_ms >= 0:
            found["up_to"]["timestamp_ms"] = page.up_to_ms
    return found


def parse_condition(given: Json, headers: Any) -> Condition:
    """Raises Contradiction."""
    since_ms, until_ms = given.get("since_ms", 0), given.get("until_ms", TIME_MAX)
    if until_ms < since_ms:
        raise Contradiction("'until_ms' is before 'since_ms': no message can match")
    pairs = tuple((name, value) for name, value in headers)
    words = {name: given.get(name, "") for name in _MEASURES}
    return Condition(**words, headers=pairs, since_ms=since_ms, until_ms=until_ms)


def _place(token: str) -> SearchPosition:
    if not token:
        return FIRST
    rank, topic, *numbers = decode_token(token, (int, str, int, int, int, int))
    place = SearchPosition(int(rank), str(topic), *map(int, numbers))
    if place.kind not in range(3):
        raise Contradiction("page_token is not one that this interface returned")
    return place


def partitions_elsewhere(node: Node, *topics: Topic) -> list[Json]:
    """The partitions that other brokers serve, with these."""
    by_id = {broker.id: broker for broker in node.brokers()}
    found: list[Json] = []
    for topic in topics:
        for number in range(len(topic.partitions)):
            if node.ownership.is_mine(topic, number):
                continue
            broker = by_id.get(node.ownership.leader(topic, number).broker)
            item: Json = {"topic": topic.name, "partition": number}
            if broker is not None:
                address = f"{broker.http_host}:{broker.http_port}"
                item["broker"] = {"id": broker.id, "http": address}
            found.append(item)
    return found


# --- shapes ----------------------------------------------------------------------------------


def shown_message(found: FoundMessage) -> Json:
    """A message for a response."""
    record = shown(found.record)
    message: Json = {
        "state": found.state,
        "topic": found.topic,
        "partition": found.partition,
        **record,
    }
    if found.state not in {LOG, DEAD}:
        del message["offset"]  # it has none yet
    if found.due_ms >= 0:
        message["due_ms"] = found.due_ms
    if found.state == LOG:
        message["groups"] = [_group(one) for one in found.groups]
    if found.state == DEAD:
        message["origin"] = {
            name.removeprefix(PREFIX): value
            for name, value, *_ in record["headers"]
            if name.startswith(PREFIX)
        }
    return message


def _group(state: DeliveryState) -> Json:
    shown_state: Json = {
        "group": state.group_id,
        "state": state.state,
        "deliveries": state.deliveries,
    }
    if state.owner:
        shown_state |= {"member": state.owner, "lock_ends_ms": state.at_ms}
    elif state.at_ms and state.state == "available":
        shown_state["next_delivery_ms"] = state.at_ms
    return shown_state
