"""Delayed records and half messages over HTTP: list, cancel, settle, and long-polled checks.

Invariants: parses and encodes; what waits is in `broker/timers`, and any broker answers for all
partitions (`broker/services/message_timers`). Receipts and page tokens are opaque to clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.services.message_timers import HalfOutcome, HalfReference
from headrace.broker.services.timer_receipts import (
    DelayedReceipt,
    HalfReceipt,
    numbers_of,
    token_of,
)
from headrace.coordination.timers.state_records import COMMITTED, EXPIRED, Settled
from headrace.errors import HeadraceError, Retriable
from headrace.http.operations import (
    DRY_RUN,
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
from headrace.http.partitions import failed_brokers, failed_partitions
from headrace.http.records import as_text, shown_content

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence
    from typing import Protocol

    from headrace.broker.services.message_timers import DelayedShown
    from headrace.broker.services.services import Services
    from headrace.broker.timers.half_messages import HalfShown
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.timers.commands import Half
    from headrace.http.schemas import Schema

    Outcomes = tuple[
        list[bool | HeadraceError], list[int | HeadraceError], Mapping[int, HeadraceError]
    ]

    class Change(Protocol):
        """`MessageTimers.cancel`, or `deliver`."""

        def __call__(
            self,
            topic: Topic,
            receipts: Sequence[tuple[int, int, int]],
            message_ids: Sequence[str],
            *,
            is_dry_run: bool = False,
        ) -> Awaitable[Outcomes]: ...


CHECKS_MAX: Final = 1_000
WAIT_MS_MAX: Final = 60_000
ITEMS_MAX: Final = 1_000
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

    def __init__(self, services: Services) -> None:
        self._services = services
        self._timers = services.timers
        topic, named = "/v1/topics/{topic}", {"topic": TOPIC}
        paged: dict[str, Schema] = {**named, **PAGE, "partition": PARTITION}
        changing: dict[str, Schema] = {**named, "dry_run": DRY_RUN}
        states: Schema = {"type": "string", "enum": ["pending", "settled"]}
        cancel = fields(
            receipts=listing(_RECEIPT, ITEMS_MAX), message_ids=listing(_MESSAGE_ID, ITEMS_MAX)
        ) | {"minProperties": 1}
        settle = fields(
            commit=listing(_REFERENCE, ITEMS_MAX), rollback=listing(_REFERENCE, ITEMS_MAX)
        ) | {"minProperties": 1}
        poll = fields(max=integer(1, CHECKS_MAX), wait_ms=integer(0, WAIT_MS_MAX))
        self.operations = [
            Operation("GET", f"{topic}/delayed", "listDelayed",
                      "List delayed records, partition by partition.",
                      self._list, paged),
            Operation("POST", f"{topic}/delayed/cancel", "cancelDelayed",
                      "Cancel scheduled records.", self._cancel, changing, cancel),
            Operation("POST", f"{topic}/delayed/deliver", "deliverDelayed",
                      "Deliver scheduled records now.", self._deliver, changing, cancel),
            Operation("GET", f"{topic}/delayed/refused", "listRefusedDelayed",
                      "List due records that could not be read, with the reason: the newest 100 of"
                      " each partition since its broker began to serve it.",
                      self._list_refused, {"topic": TOPIC}),
            Operation("GET", f"{topic}/half", "listHalfMessages",
                      "List pending half messages, or the outcomes of settled ones.",
                      self._halves, {**paged, "state": states}),
            Operation("POST", f"{topic}/half/settle", "settleHalfMessages",
                      "Commit or roll back half messages.", self._settle, changing, settle),
            Operation("POST", "/v1/half/{group}/checks", "pollHalfChecks",
                      "Wait for check-backs: half messages whose outcome is requested.",
                      self._checks, {"group": GROUP}, poll, is_body_required=False, is_read=True),
        ]  # fmt: skip

    def _answer(self, topic: Topic, failed: Mapping[int, HeadraceError]) -> Json:
        """The fields of every answer for a topic."""
        return {
            "topic": topic.name,
            "reads_attributes": self._reads_attributes(topic),
            **failed_partitions(failed),
        }

    def _reads_attributes(self, topic: Topic) -> bool:
        return self._services.topics.reads_attributes(topic)

    # --- delayed records ---------------------------------------------------------------------

    async def _list(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        limit = call.query.get("limit", LIMIT_DEFAULT)
        first, due_ms, offset = _page(call, 3)
        found, is_more, failed = await self._timers.list_delayed(
            topic, _numbers(call, topic), (first, due_ms, offset), limit
        )
        _raise_single(call, failed)
        answer = self._answer(topic, failed) | {"delayed": [_shown(one) for one in found]}
        if is_more:
            last = found[-1]
            answer["next_page_token"] = token_of(last.partition, last.due_ms, last.offset)
        return answer

    async def _list_refused(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        found, failed = await self._timers.list_refused(topic)
        names = ("offset", "refused_ms", "reason")
        return self._answer(topic, failed) | {
            "refused": [
                {"partition": number, **dict(zip(names, one, strict=True))}
                for number, some in found.items()
                for one in some
            ]
        }

    async def _cancel(self, call: Call) -> Json:
        return await self._each(call, "cancelled", self._timers.cancel)

    async def _deliver(self, call: Call) -> Json:
        return await self._each(call, "delivered", self._timers.deliver)

    async def _each(self, call: Call, done: str, work: Change) -> Json:
        """What became of each record that the body names; `done`: the field that counts them."""
        topic = self._services.topics.get(call.path["topic"])
        message_ids = call.body.get("message_ids", [])
        results: list[Json] = [{"receipt": one} for one in call.body.get("receipts", ())]
        results += [{"message_id": one} for one in message_ids]
        known: dict[int, tuple[int, int, int]] = {}
        for place, receipt in enumerate(call.body.get("receipts", ())):
            try:
                known[place] = parsed = DelayedReceipt.parse(receipt)
                topic.check_partition(parsed.partition)
            except HeadraceError as error:
                results[place] |= {done: 0, **_problem(error)}
        by_receipt, by_id, failed = await work(
            topic, [*known.values()], message_ids, is_dry_run=call.is_dry_run
        )
        outcomes: dict[int, int | HeadraceError] = dict(zip(known, by_receipt, strict=True))
        outcomes |= enumerate(by_id, len(results) - len(by_id))
        for place, outcome in outcomes.items():
            if isinstance(outcome, HeadraceError):
                results[place] |= {done: 0, **_problem(outcome)}
            else:
                results[place][done] = int(outcome)
        return self._answer(topic, failed) | {"results": results, "dry_run": call.is_dry_run}

    # --- half messages -----------------------------------------------------------------------

    async def _halves(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        limit = call.query.get("limit", LIMIT_DEFAULT)
        is_settled = call.query.get("state") == "settled"
        first, number = _page(call, 2)
        found, failed = await self._timers.list_halves(
            topic, _numbers(call, topic), (first, number), limit, is_settled=is_settled
        )
        _raise_single(call, failed)
        answer = self._answer(topic, failed)
        answer["half"] = [_shown_half(*one) for one in found[:limit]]
        if len(found) > limit:
            partition, last = found[limit - 1]
            answer["next_page_token"] = token_of(partition, last.number)
        return answer

    async def _settle(self, call: Call) -> Json:
        topic = self._services.topics.get(call.path["topic"])
        results: list[Json] = []
        known: dict[int, HalfReference] = {}
        for name in ("commit", "rollback"):
            for one in call.body.get(name, ()):
                result = {part: one[part] for part in ("receipt", "message_id") if part in one}
                try:
                    known[len(results)] = _reference(topic, one, is_commit=name == "commit")
                except HeadraceError as error:
                    result |= {"ok": False, **_problem(error)}
                results.append(result)
        references = [*known.values()]
        outcomes, failed = await self._timers.settle(topic, references, is_dry_run=call.is_dry_run)
        for place, outcome in zip(known, outcomes, strict=True):
            results[place] |= _outcome_shown(outcome)
        return self._answer(topic, failed) | {"results": results, "dry_run": call.is_dry_run}

    async def _checks(self, call: Call) -> Json:
        group = call.path["group"]
        wait_s = call.body.get("wait_ms", 0) / 1000
        found, failed = await self._timers.poll_checks(group, call.body.get("max", 100), wait_s)
        return {"group": group, "checks": [_check(one) for one in found], **failed_brokers(failed)}


def _numbers(call: Call, topic: Topic) -> Sequence[int]:
    """The partitions that are meant: the one that is named, else all. Raises TopicUnknown."""
    if "partition" not in call.query:
        return range(len(topic.partitions))
    topic.check_partition(call.query["partition"])
    return [call.query["partition"]]


def _raise_single(call: Call, failed: Mapping[int, HeadraceError]) -> None:
    """Raise the error of the only partition that is meant."""
    if "partition" in call.query:
        for error in failed.values():
            raise error


def _reference(topic: Topic, one: Json, *, is_commit: bool) -> HalfReference:
    """Raises ReceiptInvalid, TopicUnknown."""
    reason = one.get("reason", "")
    if "receipt" not in one:
        return HalfReference(-1, -1, one["message_id"], is_commit, reason)
    partition, number = HalfReceipt.parse(one["receipt"])
    topic.check_partition(partition)
    return HalfReference(partition, number, "", is_commit, reason)


def _outcome_shown(outcome: HalfOutcome | HeadraceError | None) -> Json:
    if isinstance(outcome, HalfOutcome):
        verb = _verb(outcome.outcome)
        return {"ok": True, "outcome": verb, "settled_now": outcome.settled}
    if isinstance(outcome, HeadraceError):
        return {"ok": False, **_problem(outcome)}
    return {
        "ok": False,
        "outcome": "unknown",
        "error": "the half message does not exist: it was settled long ago, or never sent",
        "retriable": False,
    }


# --- shapes ----------------------------------------------------------------------------------


def _page(call: Call, count: int) -> list[int]:
    """The place after which a page begins. Raises ReceiptInvalid."""
    token = call.query.get("page_token", "")
    return numbers_of(token, count) if token else [-1] * count


def _shown(one: DelayedShown) -> Json:
    return {
        "receipt": DelayedReceipt(one.partition, one.due_ms, one.number).text,
        "partition": one.partition,
        "due_ms": one.due_ms,
        "timestamp_ms": one.timestamp_ms,
        "message_id": as_text(one.message_id)[0],
        "key": as_text(one.key)[0],
        "value_bytes": one.value_bytes,
    }


def _half(partition: int, half: Half) -> Json:
    return {
        "receipt": HalfReceipt(partition, half.number).text,
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


def _verb(outcome: int) -> str:
    if outcome == COMMITTED:
        return "committed"
    return "expired" if outcome == EXPIRED else "rolled back"


def _outcome(partition: int, settled: Settled) -> Json:
    return {
        "receipt": HalfReceipt(partition, settled.number).text,
        "partition": partition,
        "state": _verb(settled.outcome),
        "message_id": settled.message_id,
        "group": settled.group,
        "received_ms": settled.received_ms,
        "settled_ms": settled.at_ms,
        "reason": settled.reason,
    }


def _check(one: HalfShown) -> Json:
    return {"topic": one.topic, **_half(one.partition, one.half), **shown_content(one.body)}


def _problem(error: HeadraceError) -> Json:
    return {"error": str(error), "retriable": isinstance(error, Retriable)}
