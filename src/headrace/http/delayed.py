"""Delayed records and half messages over HTTP: list, cancel, settle, and long-polled checks.

Invariants: parses and encodes; what waits is in `broker/timers`. A broker answers for the
partitions that it serves and names the others with their brokers (`elsewhere`). Receipts and page
tokens are opaque to clients.
"""

from __future__ import annotations

import base64
from heapq import nsmallest
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.topics.overrides import log_config
from headrace.coordination.timers.commands import SettleHalfCommand
from headrace.coordination.timers.schedule import ScheduleEntry
from headrace.coordination.timers.state_records import COMMITTED, EXPIRED, Settled
from headrace.errors import HeadraceError, RequestInvalid, Retriable
from headrace.http.operations import (
    GROUP,
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
from headrace.http.search import partitions_elsewhere
from headrace.records.attributes import MESSAGE_ID, find_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.node import Node
    from headrace.broker.timers.listing import Delayed
    from headrace.broker.timers.timer_partitions import HalfShown
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.timers.commands import Half
    from headrace.http.schemas import Schema
    from headrace.records.bodies import Body

CHECKS_MAX: Final = 1_000
WAIT_MS_MAX: Final = 60_000
ITEMS_MAX: Final = 1_000
PAGE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of the keys of one page; the last one may go beyond."""
REASON: Final = "reason"
_RECEIPT: Final = text(200, 1)
_MESSAGE_ID: Final = text(255, 1)
_REFERENCE: Final[Schema] = {
    "oneOf": [
        fields(required=["receipt"], receipt=_RECEIPT, reason=text(1_000)),
        fields(required=["message_id"], message_id=_MESSAGE_ID, reason=text(1_000)),
    ]
}


class DelayedOperations:
    """The operations on delayed records and half messages."""

    def __init__(self, node: Node) -> None:
        self._node = node
        topic, named = "/v1/topics/{topic}", {"topic": TOPIC}
        paged: dict[str, Schema] = {**named, **PAGE, "partition": PARTITION}
        states: Schema = {"type": "string", "enum": ["pending", "settled"]}
        cancel = fields(
            receipts=listing(_RECEIPT, ITEMS_MAX), message_ids=listing(_MESSAGE_ID, ITEMS_MAX)
        )
        settle = fields(
            commit=listing(_REFERENCE, ITEMS_MAX), rollback=listing(_REFERENCE, ITEMS_MAX)
        )
        poll = fields(max=integer(1, CHECKS_MAX), wait_ms=integer(0, WAIT_MS_MAX))
        self.operations = [
            Operation("GET", f"{topic}/delayed", "listDelayed",
                      "List scheduled records of the partitions that this broker serves.",
                      self._list, paged),
            Operation("POST", f"{topic}/delayed/cancel", "cancelDelayed",
                      "Cancel scheduled records.", self._cancel, named, cancel),
            Operation("GET", f"{topic}/delayed/refused", "listRefusedDelayed",
                      "List due records that could not be read, with the reason: the newest 100 of"
                      " each partition since its broker began to serve it.",
                      self._list_refused, {"topic": TOPIC}),
            Operation("GET", f"{topic}/half", "listHalfMessages",
                      "List pending half messages, or the outcomes of settled ones.",
                      self._halves, {**paged, "state": states}),
            Operation("POST", f"{topic}/half/settle", "settleHalfMessages",
                      "Commit or roll back half messages.", self._settle, named, settle),
            Operation("POST", "/v1/half/{group}/checks", "pollHalfChecks",
                      "Wait for check-backs: half messages whose outcome is requested.",
                      self._checks, {"group": GROUP}, poll, is_body_required=False, is_read=True),
        ]  # fmt: skip

    def _numbers(self, call: Call, topic: Topic) -> list[int]:
        """The partitions that are meant: the one that is named, else those served here."""
        if "partition" in call.query:
            topic.check_partition(call.query["partition"])
            return [call.query["partition"]]
        return [n for n, _ in topic.logs if self._node.ownership.is_mine(topic, n)]

    def _answer(self, topic: Topic, *, is_whole: bool = True) -> Json:
        """The fields of every answer for a topic; `is_whole`: all its partitions are meant."""
        return {
            "topic": topic.name,
            "reads_attributes": log_config(topic.fact.configs).has_attributes,
            "broker": self._node.config.broker_id,
            "elsewhere": partitions_elsewhere(self._node, topic) if is_whole else [],
        }

    # --- delayed records ---------------------------------------------------------------------

    async def _list(self, call: Call) -> Json:
        topic = self._node.topics.get(call.path["topic"])
        limit = call.query.get("limit", LIMIT_DEFAULT)
        first, *after = _parse(call.query.get("page_token", ""), 3) or (-1, -1, -1)
        found: list[Json] = []
        bytes_left, token, is_more = PAGE_BYTES_MAX, "", False
        for number in self._numbers(call, topic):
            if number < first or is_more:
                continue
            entry = ScheduleEntry(*after) if number == first else ScheduleEntry(-1, -1)
            while some := await self._node.timers.list_delayed(topic, number, entry, limit + 1):
                for one in some:
                    is_more = len(found) >= limit or bytes_left <= 0
                    if is_more:
                        break
                    found.append(_shown(one))
                    bytes_left -= len(one.body.key or b"")
                    token = _token(number, one.due_ms, one.offset)
                if is_more:
                    break
                entry = ScheduleEntry(some[-1].due_ms, some[-1].offset)
        answer = self._answer(topic, is_whole="partition" not in call.query)
        answer["delayed"] = found
        if is_more:
            answer["next_page_token"] = token
        return answer

    async def _list_refused(self, call: Call) -> Json:
        topic = self._node.topics.get(call.path["topic"])
        return self._answer(topic) | {
            "refused": [
                {"partition": number, **one._asdict()}
                for number in self._numbers(call, topic)
                for one in await self._node.timers.list_refused(topic, number)
            ]
        }

    async def _cancel(self, call: Call) -> Json:
        topic = self._node.topics.get(call.path["topic"])
        timers = self._node.timers
        results: list[Json] = []
        for receipt in call.body.get("receipts", ()):
            try:
                number, due_ms, timer = _parse(receipt, 3) or (-1, -1, -1)
                topic.check_partition(number)
                count = int(await timers.cancel(topic, number, due_ms, timer))
                results.append({"receipt": receipt, "cancelled": count})
            except HeadraceError as error:
                results.append({"receipt": receipt, "cancelled": 0, **_problem(error)})
        for message_id in call.body.get("message_ids", ()):
            count = 0
            for number in self._numbers(call, topic):
                count += await timers.cancel_by_id(topic, number, message_id)
            results.append({"message_id": message_id, "cancelled": count})
        return self._answer(topic) | {"results": results}

    # --- half messages -----------------------------------------------------------------------

    async def _halves(self, call: Call) -> Json:
        topic = self._node.topics.get(call.path["topic"])
        limit = call.query.get("limit", LIMIT_DEFAULT)
        is_settled = call.query.get("state") == "settled"
        after = tuple(_parse(call.query.get("page_token", ""), 2) or (-1, -1))
        rest: list[tuple[int, int, Json]] = []
        for number in self._numbers(call, topic):
            pending, outcomes = await self._node.timers.list_halves(topic, number)
            # There may be a million of them: only those of the page are written out.
            listed: list[Settled] | list[Half] = outcomes if is_settled else pending
            wanted = (one for one in listed if (number, one.number) > after)
            shown = nsmallest(limit + 1 - len(rest), wanted, key=lambda one: one.number)
            rest += [(number, one.number, _shown_half(number, one)) for one in shown]
        answer = self._answer(topic, is_whole="partition" not in call.query)
        answer["half"] = [json for *_, json in rest[:limit]]
        if len(rest) > limit:
            answer["next_page_token"] = _token(*rest[limit - 1][:2])
        return answer

    async def _settle(self, call: Call) -> Json:
        topic = self._node.topics.get(call.path["topic"])
        results = [
            await self._settle_one(call, topic, one, is_commit=name == "commit")
            for name in ("commit", "rollback")
            for one in call.body.get(name, ())
        ]
        return self._answer(topic) | {"results": results}

    async def _settle_one(self, call: Call, topic: Topic, one: Json, *, is_commit: bool) -> Json:
        reference: Json = {name: one[name] for name in ("receipt", "message_id") if name in one}
        if len(reference) != 1:
            raise RequestInvalid("name each message by its receipt or by its message_id")
        numbers: Sequence[int]
        try:
            if "receipt" in one:
                partition, number = _parse(one["receipt"], 2) or (-1, -1)
                topic.check_partition(partition)
                numbers = [partition]
                command = SettleHalfCommand(number, "", is_commit, one.get(REASON, ""))
            else:
                numbers = self._numbers(call, topic)
                command = SettleHalfCommand(-1, one["message_id"], is_commit, one.get(REASON, ""))
            for number in numbers:
                outcome = await self._node.timers.settle(topic, number, command)
                if outcome is not None:
                    return {**reference, "ok": True, "outcome": _verb(outcome)}
        except HeadraceError as error:
            return {**reference, "ok": False, **_problem(error)}
        return {
            **reference,
            "ok": False,
            "outcome": "unknown",
            "error": "there is no such half message: it was settled long ago, or another broker"
            " serves its partition",
            "retriable": False,
        }

    async def _checks(self, call: Call) -> Json:
        group = call.path["group"]
        wait_s = call.body.get("wait_ms", 0) / 1000
        count_max = call.body.get("max", 100)
        found = await self._node.timers.poll_checks(group, count_max, wait_s)
        return {"group": group, "checks": [_check(one) for one in found]}


# --- shapes ----------------------------------------------------------------------------------


def _token(*numbers: int) -> str:
    plain = ".".join(map(str, numbers))
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def _parse(token: str, count: int) -> list[int] | None:
    """The numbers of a receipt or page token, None of an empty one. Raises Contradiction."""
    if not token:
        return None
    try:
        plain = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
        numbers = [int(part) for part in plain.split(".")]
        if len(numbers) != count or any(not -1 <= n < 2**63 for n in numbers):
            raise ValueError
    except ValueError as error:
        raise Contradiction(
            "a receipt or page_token is not one that this interface returned: pass it as it came"
        ) from error
    return numbers


def _text(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()


def _content(body: Body) -> Json:
    shown: Json = {"headers": [[name, _text(value)] for name, value in body.headers]}
    for name, data in (("key", body.key), ("value", body.value)):
        shown[name] = _text(data)
        if data is not None and shown[name].encode() != data:
            shown[f"{name}_encoding"] = "base64"
    return shown


def _shown(one: Delayed) -> Json:
    return {
        "receipt": _token(one.partition, one.due_ms, one.number),
        "partition": one.partition,
        "due_ms": one.due_ms,
        "timestamp_ms": one.timestamp_ms,
        "message_id": _text(find_header(one.body.headers, MESSAGE_ID)),
        "key": _text(one.body.key),
        "value_bytes": len(one.body.value or b""),
    }


def _half(partition: int, half: Half) -> Json:
    return {
        "receipt": _token(partition, half.number),
        "partition": partition,
        "state": "pending",
        "message_id": half.message_id,
        "group": half.group,
        "received_ms": half.received_ms,
        "checks": half.checks,
        "next_check_ms": half.next_check_ms,
    }


def _shown_half(partition: int, one: Half | Settled) -> Json:
    return _outcome(partition, one) if isinstance(one, Settled) else _half(partition, one)


def _verb(settled: Settled) -> str:
    if settled.outcome == COMMITTED:
        return "committed"
    return "expired" if settled.outcome == EXPIRED else "rolled back"


def _outcome(partition: int, settled: Settled) -> Json:
    return {
        "receipt": _token(partition, settled.number),
        "partition": partition,
        "state": _verb(settled),
        "message_id": settled.message_id,
        "group": settled.group,
        "received_ms": settled.received_ms,
        "settled_ms": settled.at_ms,
        "reason": settled.reason,
    }


def _check(one: HalfShown) -> Json:
    return {"topic": one.topic, **_half(one.partition, one.half), **_content(one.body)}


def _problem(error: HeadraceError) -> Json:
    return {"error": str(error), "retriable": isinstance(error, Retriable)}
