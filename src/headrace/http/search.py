"""Find messages over HTTP: page by page, or as a task.

Invariants: parses and encodes; what is searched, and how, is in `broker/services/search` and
`message_search`. Partitions whose owner could not be asked are named (`failed`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import Operation as Right
from headrace.broker.security.authorizer import ResourceType
from headrace.broker.services.batch_search import record_bytes
from headrace.broker.services.search import DEAD, FIRST, LOG, SearchBounds, SearchPosition
from headrace.http.background import TaskOperations, decode_token, encode_token
from headrace.http.decoded import DECODE, add_decoded, check_decode
from headrace.http.operations import (
    INT64_MAX,
    LIMIT_DEFAULT,
    OFFSET,
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
from headrace.http.problems import Contradiction, details
from headrace.http.records import shown
from headrace.records.cel_syntax import LENGTH_MAX, ExpressionInvalid
from headrace.records.letters import SHARE
from headrace.records.matching import TIME_MAX, Condition
from headrace.records.record_filter import RecordFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.services.background_tasks import BackgroundTask, BackgroundTasks
    from headrace.broker.services.search import FoundMessage, Page
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.shares.commands import DeliveryState
    from headrace.errors import HeadraceError
    from headrace.http.schemas import Schema

TIME_MS: Final = 2_000
TIME_MS_MAX: Final = 30_000
TASK_STEP: Final = SearchBounds(100, 500)
"""Of a task before it notes its progress."""
RESULTS_MAX: Final = 10_000
HEADERS_MAX: Final = 16
_WORD: Final = text(4_096, 1)
_MEASURES: Final = ("message_id", "key", "tag")
WHERE: Final = text(
    LENGTH_MAX,
    1,
    description="A filter expression (a subset of CEL), such as value.amount > 100.",
)

_COMMON: Final[dict[str, Schema]] = {
    **dict.fromkeys(_MEASURES, _WORD),
    **dict.fromkeys(("since_ms", "until_ms"), integer(0, INT64_MAX)),
    "where": WHERE,
}
CONDITIONS: Final[dict[str, Schema]] = {
    **_COMMON,
    "header": text(8_192, 3, pattern=r"^[^=]+=[\s\S]+$", description="NAME=VALUE"),
    "offset": OFFSET | {"description": "With a partition: where in it to begin."},
}
"""Of a query that searches; beside them stands `partition`."""


class SearchOperations:
    """The operations that find messages."""

    def __init__(self, services: Services, tasks: BackgroundTasks) -> None:
        self._services = services
        self._search = services.search
        self._tasks = tasks
        asked: dict[str, Schema] = {
            "topic": TOPIC,
            **CONDITIONS,
            "partition": PARTITION,
            "time_ms": integer(1, TIME_MS_MAX, default=TIME_MS),
            **PAGE,
            **DECODE,
        }
        body = fields(
            ["topic"],
            topic=TOPIC,
            **_COMMON,
            headers=listing(listing(_WORD, 2, 2), HEADERS_MAX),
            partition=PARTITION,
            max=integer(1, RESULTS_MAX, default=1_000),
            page_token=text(2_000, description="Where another search ended: `next_page_token`."),
        )
        started = TaskOperations(services, "search", "Find messages in a task.", body, self._begin)
        self.operations = [
            Operation("GET", "/v1/topics/{topic}/messages", "findMessages",
                      "Find messages by id, key, tag, header, time or an expression, with states.",
                      self._find, asked),
            *started.operations,
        ]  # fmt: skip

    async def _find(self, call: Call) -> Json:
        check_decode(self._services, call)
        topic, query = self._services.topics.readable.get(call.path["topic"]), call.query
        condition, start = asked_condition(query), asked_start(topic.name, query)
        bounds = SearchBounds(query.get("limit", LIMIT_DEFAULT), query.get("time_ms", TIME_MS))
        page = await self._search.page(
            topic, condition, start, bounds, query.get("partition"), covers=_readable(call)
        )
        messages = [shown_message(one) for one in page.found]
        names, records = [one.topic for one in page.found], [one.record for one in page.found]
        await add_decoded(self._services, call, names, records, messages)
        answer: Json = {
            "topic": topic.name,
            "messages": messages,
            "is_complete": page.next is None and not page.failed,
            "searched": _progress(page),
            **failed_places(page.failed),
        }
        if page.next is not None:
            answer["next_page_token"] = encode_token([*page.next])
        return answer

    async def _begin(self, call: Call) -> BackgroundTask:
        topic, body = self._services.topics.readable.get(call.body["topic"]), call.body
        condition = parse_condition(body, body.get("headers", ()))
        number, begun = body.get("partition"), parse_place(body.get("page_token", ""))
        if number is not None:
            topic.check_partition(number)

        def left(task: BackgroundTask) -> int:
            return int(body.get("max", 1_000)) - len(task.results)

        async def work(task: BackgroundTask) -> None:
            task.progress = {"records": 0, "bytes": 0, "is_complete": False}
            if (size_bytes := self._size_bytes(topic, number)) is not None:
                task.progress["bytes_at_most"] = size_bytes
            failed: dict[tuple[str, int], HeadraceError] = {}
            place: SearchPosition | None = begun
            while place is not None:
                bounds = TASK_STEP._replace(count_max=min(TASK_STEP.count_max, left(task)))
                page = await self._search.page(
                    topic, condition, place, bounds, number, covers=_readable(call)
                )
                failed |= page.failed
                for one in page.found:
                    task.add(shown_message(one), record_bytes(one.record) + 500)
                _note(task.progress, page)
                place = page.next
                task.progress.pop("next_page_token", None)
                if place is not None:  # where another search can go on
                    task.progress["next_page_token"] = encode_token([*place])
                if place is not None and (left(task) <= 0 or task.is_full):
                    task.progress["is_cut"] = True
                    return
            task.progress |= {"is_complete": not failed, **failed_places(failed)}

        return self._tasks.start("search", body, work, call.holder)

    def _size_bytes(self, topic: Topic, number: int | None) -> int | None:
        """What a search has to read at most of the log; None: not known on this broker."""
        states = self._services.topics.describe(topic)
        sizes = [one.size_bytes for one in states if number in {None, one.number}]
        known = [one for one in sizes if one is not None]
        return sum(known) if len(known) == len(sizes) else None


def _readable(call: Call) -> Callable[[str], bool]:
    """Whether the client may READ a topic: it learns nothing of others, not even that they are dead
    letter topics."""
    return lambda name: call.rights.may(Right.READ, ResourceType.TOPIC, name)


def failed_places(failed: Mapping[tuple[str, int], HeadraceError]) -> Json:
    """The field `failed` of an answer about several topics; no field if there is nothing to say."""
    if not failed:
        return {}
    return {
        "failed": [
            {"topic": topic, "partition": number, "error": details(error)}
            for (topic, number), error in sorted(failed.items(), key=lambda item: item[0])
        ]
    }


def _note(progress: Json, page: Page) -> None:
    for name, value in _progress(page).items():
        is_count = name in {"records", "bytes", "unreadable_batches", "not_evaluated"}
        progress[name] = progress.get(name, 0) + value if is_count else value


def _progress(page: Page) -> Json:
    found: Json = {"records": page.records, "bytes": page.size_bytes}
    if page.unreadable:
        found["unreadable_batches"] = page.unreadable
    if page.failures:
        found |= {"not_evaluated": page.failures, "not_evaluated_because": page.first_failure}
    if page.next is not None:
        place = page.next
        found["up_to"] = {"topic": place.topic, "partition": place.partition}
        if page.up_to_ms >= 0:
            found["up_to"]["timestamp_ms"] = page.up_to_ms
    return found


def asked_condition(query: Json) -> Condition:
    """The condition of a query. Raises Contradiction."""
    headers = []
    if "header" in query:
        headers = [query["header"].split("=", 1)]
    return parse_condition(query, headers)


def asked_start(topic: str, query: Json) -> SearchPosition:
    """Where the search of a query begins. Raises Contradiction."""
    if "page_token" in query or "offset" not in query:
        return parse_place(query.get("page_token", ""))
    if "partition" not in query:
        raise Contradiction("'offset' is one of a partition: name that, too")
    return SearchPosition(0, topic, query["partition"], 0, query["offset"])


def parse_condition(given: Json, headers: Any) -> Condition:
    """Raises Contradiction."""
    since_ms, until_ms = given.get("since_ms", 0), given.get("until_ms", TIME_MAX)
    if until_ms < since_ms:
        raise Contradiction("'until_ms' is before 'since_ms': no message can match")
    pairs = tuple((name, value) for name, value in headers)
    words = {name: given.get(name, "") for name in (*_MEASURES, "where")}
    if words["where"]:
        try:
            RecordFilter(words["where"])
        except ExpressionInvalid as error:  # any text fits the schema
            raise Contradiction(str(error)) from error
    return Condition(**words, headers=pairs, since_ms=since_ms, until_ms=until_ms)


def parse_place(token: str) -> SearchPosition:
    """Where a page ended. Raises Contradiction."""
    if not token:
        return FIRST
    rank, topic, *numbers = decode_token(token, (int, str, int, int, int, int))
    place = SearchPosition(int(rank), str(topic), *map(int, numbers))
    if place.kind not in range(3):
        raise Contradiction("page_token is not one that this interface returned")
    return place


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
            name.removeprefix(SHARE): value
            for name, value, *_ in record["headers"]
            if name.startswith(SHARE)
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
