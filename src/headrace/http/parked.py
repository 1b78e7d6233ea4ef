"""Parked keys over HTTP: set the messages of a key aside, list what is set aside, release it.

Invariants: parses and encodes; the rules are in `coordination/shares`. Any broker serves the whole
topic.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from headrace.broker.services.queue_service import KEYS_MAX
from headrace.coordination.shares.commands import NOT_PARKED
from headrace.errors import HeadraceError
from headrace.http.operations import (
    DRY_RUN,
    LIMIT_DEFAULT,
    PAGE,
    SET_GROUP,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    listing,
    page,
    text,
)
from headrace.http.page_tokens import key_before
from headrace.http.partitions import of_partitions
from headrace.http.problems import Contradiction
from headrace.http.records import as_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.shares.commands import ParkedKey
    from headrace.http.schemas import Schema


LISTED_AT_ONCE: Final = 16
"""Partitions, each of which may have 128 KiB of keys."""
_DIGITS: Final = 10
"""Of a partition's number in a place."""


class ParkedOperations:
    """The operations on parked keys."""

    def __init__(self, services: Services) -> None:
        self._services = services
        path = "/v1/queues/{topic}/{group}"
        named: dict[str, Schema] = {"topic": TOPIC, "group": SET_GROUP}
        changing: dict[str, Schema] = {**named, "dry_run": DRY_RUN}
        body = fields(
            ["keys"],
            keys=listing(text(4_096), KEYS_MAX, 1),
            key_encoding={"type": "string", "enum": ["text", "base64"], "default": "text"},
        )
        self.operations = [
            Operation("GET", f"{path}/parked", "listParkedKeys",
                      "List the parked keys of a group.", self._list, {**named, **PAGE}),
            Operation("POST", f"{path}/park", "parkKeys",
                      "Park keys: their messages are set aside, others are still delivered.",
                      self._park, changing, body),
            Operation("POST", f"{path}/unpark", "unparkKeys",
                      "Unpark keys: their messages are delivered again, from the first on.",
                      self._unpark, changing, body),
        ]  # fmt: skip

    async def _list(self, call: Call) -> Json:
        topic, group_id = self._services.topics.readable.get(call.path["topic"]), call.path["group"]
        after = key_before(call.query.get("page_token", ""))
        limit = call.query.get("limit", LIMIT_DEFAULT)
        first = after[:_DIGITS]
        answer: dict[int, Sequence[ParkedKey] | HeadraceError] = {}
        items: list[Json] = []
        async for some in self._parts(topic, group_id, int(first) if first.isdecimal() else 0):
            answer |= some
            items += [item for item in _placed(some) if item["place"] > after]
            if len(items) > limit:
                break
        _found, failed = of_partitions(answer)
        part = page(items, "place", call, "parked")
        part["parked"] = [_shown(*item["key"]) for item in part["parked"]]
        return {"topic": topic.name, "group": group_id, **part, **failed}

    async def _parts(
        self, topic: Topic, group_id: str, first: int = 0
    ) -> AsyncIterator[Mapping[int, Sequence[ParkedKey] | HeadraceError]]:
        """The parked keys of the partitions from `first` on."""
        count = len(topic.partitions)
        for at in range(first, count, LISTED_AT_ONCE):
            numbers = range(at, min(at + LISTED_AT_ONCE, count))
            yield await self._services.queues.list_parked(topic, group_id, numbers)

    async def _park(self, call: Call) -> Json:
        topic, group_id = self._services.topics.readable.get(call.path["topic"]), call.path["group"]
        queues, keys = self._services.queues, _keys(call.body)
        answer: Json = {"topic": topic.name, "group": group_id, "dry_run": call.is_dry_run}
        found, failed = of_partitions(await queues.look_at_keys(topic, group_id, keys))
        free = [one for part in found.values() for one in part if one.at_ms == NOT_PARKED]
        parked = {*keys} if failed else {one.key for one in free}  # if unknown, all that are named
        answer["parked"] = len(parked)
        if call.is_dry_run:
            return answer | {"records": _records(free)} | failed
        _found, failed = of_partitions(await queues.park(topic, group_id, keys))
        return answer | failed

    async def _unpark(self, call: Call) -> Json:
        topic, group_id = self._services.topics.readable.get(call.path["topic"]), call.path["group"]
        queues, keys = self._services.queues, _keys(call.body)
        answer: Json = {"topic": topic.name, "group": group_id, "dry_run": call.is_dry_run}
        if call.is_dry_run:
            named = {*keys}
            parked: dict[int, Sequence[ParkedKey] | HeadraceError] = {}
            async for some in self._parts(topic, group_id):
                parked |= {
                    number: part
                    if isinstance(part, HeadraceError)
                    else [one for one in part if one.key in named]
                    for number, part in some.items()
                }
            of_all, failed = of_partitions(parked)
            wanted = [one for part in of_all.values() for one in part]
            released = {one.key for one in wanted}
            answer["records"] = _records(wanted)
        else:
            found, failed = of_partitions(await queues.unpark(topic, group_id, keys))
            released = {key for part in found.values() for key in part}
        names = dict(zip(call.body["keys"], keys, strict=True))
        shown = [name for name, key in names.items() if key in released]
        return answer | {"released": len(shown), "keys": shown} | failed


def _placed(answer: Mapping[int, Sequence[ParkedKey] | HeadraceError]) -> list[Json]:
    """The parked keys of these partitions, by place."""
    items: list[Json] = [
        {"place": f"{number:0{_DIGITS}d} {one.key.hex()}", "key": (number, one)}
        for number, keys in answer.items()
        if not isinstance(keys, HeadraceError)
        for one in keys
    ]
    return sorted(items, key=lambda item: str(item["place"]))


def _records(keys: Sequence[ParkedKey]) -> int:
    """How many messages of the keys are known; more may follow in the log."""
    return sum(one.records for one in keys)


def _shown(partition: int, one: ParkedKey) -> Json:
    key, is_text = as_text(one.key)
    shown: Json = {"partition": partition, "key": key}
    if not is_text:
        shown["key_encoding"] = "base64"
    return shown | {"parked_ms": one.at_ms, "records": one.records}


def _keys(body: Json) -> list[bytes]:
    """Raises Contradiction."""
    if body.get("key_encoding", "text") == "text":
        return [key.encode() for key in body["keys"]]
    try:
        return [base64.b64decode(key, validate=True) for key in body["keys"]]
    except ValueError as error:
        raise Contradiction(f"a key is not base64: {error}"[:200]) from error
