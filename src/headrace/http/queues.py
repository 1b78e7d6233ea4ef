"""Queues over HTTP: receive records of a share group, and settle them.

Invariants: the same engine as Kafka's share groups (`broker/shares`), so both can consume
one group. Each receive is a member of its own; a receipt names it, so it alone settles what it got.
What is received and settled, of whichever brokers, is in `broker/services/queue_service`.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response

from headrace.broker.services.owner_calls import split
from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.coordination.quotas.entities import CONSUMER
from headrace.http import receipts
from headrace.http.messages import messages_for
from headrace.http.operations import (
    INT64_MAX,
    PARTITION,
    SET_GROUP,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    integer,
    listing,
)
from headrace.http.operations import text as words
from headrace.http.partitions import failed_partitions, of_partitions

if TYPE_CHECKING:
    from starlette.requests import Request

    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.http.schemas import Schema

RECORDS_MAX: Final = 1_000
WAIT_MS_MAX: Final = 60_000
LOCK_MS_MAX: Final = 12 * 3_600_000
BYTES_MAX: Final = 16 * 1024 * 1024
SETTLEMENTS_MAX: Final = 10_000
ENDS_MAX: Final = 10_000
CONSUMER_LENGTH_MAX: Final = 200
REASON_LENGTH_MAX: Final = 1_000
DELAY_MS_MAX: Final = 365 * 24 * 3_600_000
_RECEIVE: Final[Schema] = fields(
    max=integer(1, RECORDS_MAX),
    wait_ms=integer(0, WAIT_MS_MAX),
    lock_ms=integer(-1, LOCK_MS_MAX),
    consumer=words(CONSUMER_LENGTH_MAX, 1, description="Who asks, in a sticky group."),
    ends=listing(
        fields(["partition", "offset"], partition=PARTITION, offset=integer(0, INT64_MAX)),
        ENDS_MAX,
    ),
)


_NEW_GROUP: Final = (
    "the group is new and begins at the end of the topic: it receives what is sent from now on. To"
    " receive the records that are there, move it (PUT /v1/groups/{group}/offsets with the position"
    " earliest), or set share.auto.offset.reset=earliest before its first receive"
)
"""Said once, when a group begins: its first receive is empty though the topic is not."""


def _member_id(member: str) -> str:
    """The group's member that a receipt names: no receipt names one of another protocol."""
    return f"http-{member}"


class RequestClient:
    """The client of a request whose body has been read. See queue_receive.Client."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def has_gone(self) -> bool:
        """In a hundredth of the time of the request's own `is_disconnected`, which starts a wait
        and cancels it."""
        receiving: Any = self._request.receive()
        try:
            receiving.send(None)  # one step: it waits unless there is something to say
        except StopIteration as ended:
            return bool(ended.value["type"] == "http.disconnect")
        receiving.close()
        return False

    async def wait_gone(self) -> None:
        """Return when the client's connection has ended."""
        message = await self._request.receive()
        if message["type"] != "http.disconnect":
            await asyncio.Event().wait()  # a server that does not say


class Queues:
    """The routes of queues."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._queues = services.queues
        path = "/v1/queues/{topic}/{group}"
        named: dict[str, Schema] = {"topic": TOPIC, "group": SET_GROUP}
        self.operations = [
            Operation("GET", path, "queue",
                      "Get a group's state on the partitions of a topic.",
                      self._describe, named),
            Operation("POST", f"{path}/receive", "receive",
                      "Receive messages for exclusive processing, with receipts.",
                      self._receive, named, _RECEIVE, is_body_required=False, quota=CONSUMER,
                      is_read=True),
            Operation("POST", f"{path}/settle", "settle",
                      "Acknowledge, release, extend or dead-letter messages by receipt.",
                      self._settle, named, receipts.SETTLE, is_checked=False),
        ]  # fmt: skip

    # --- receive -----------------------------------------------------------------------------

    async def _receive(self, call: Call) -> Response:
        topic, group_id = self._names(call)
        records_max = int(call.body.get("max", 10))
        wait_ms = int(call.body.get("wait_ms", 0))
        lock_ms = int(call.body.get("lock_ms", -1))
        member = self._queues.new_member()
        asked = ReceiveRequest(group_id, _member_id(member), records_max, BYTES_MAX, True, lock_ms)
        asked.owner = f"http:{call.body.get('consumer', '')}"  # without a name they are one
        ends = call.body.get("ends")
        if ends is not None:
            ends = {int(one["partition"]): int(one["offset"]) for one in ends}
        client = RequestClient(call.request)
        receiving = await self._queues.receive(
            topic, asked, messages_for(member), client, wait_ms / 1000, ends
        )
        # Without the tenant for its own client, since an answer with keys is parsed to turn them.
        prefix = call.view.prefix
        answer: Json = {
            "topic": topic.name.removeprefix(prefix),
            "group": group_id.removeprefix(prefix),
        }
        if receiving.messages:
            lasts_ms = lock_ms if lock_ms > 0 else self._queues.terms(group_id).config.lock_ms
            answer["lock_ends_ms"] = receiving.asked_at_ms + lasts_ms
        elif receiving.begins_after_records:
            answer["note"] = _NEW_GROUP
        answer |= failed_partitions(receiving.failed)
        head = json.dumps(answer).removesuffix("}")
        data = f'{head}, "messages": [{",".join(receiving.messages)}]}}'
        return Response(data.encode(), media_type="application/json")

    # --- settle ------------------------------------------------------------------------------

    async def _settle(self, call: Call) -> Response:
        topic, group_id = self._names(call)
        asked = receipts.parse(call.body)
        errors = await self._queues.settle(topic, group_id, asked, _member_id)
        return Response(receipts.results(asked.receipts, errors), media_type="application/json")

    # --- describe ----------------------------------------------------------------------------

    async def _describe(self, call: Call) -> Json:
        topic, group_id = self._names(call)
        answer = await self._queues.describe(topic, group_id)
        found, failed = of_partitions(answer)
        redelivered, _ = split(await self._services.topic_figures.redelivered(topic, group_id))
        partitions = [
            {
                "partition": number,
                "start_offset": one.start_offset,
                "end_offset": one.end_offset,
                "in_flight": one.in_flight,
                "waiting_for_dead_letter_copy": one.archiving,
                "lag": one.lag,
                "redelivered": redelivered.get(number),
            }
            for number, one in found.items()
            if one is not None
        ]
        terms = self._queues.terms(group_id)
        return {
            "topic": topic.name,
            "group": group_id,
            "dead_letter_topic": terms.dead_letter_topic or None,
            "delivery_count_limit": terms.config.delivery_count_max,
            "partitions": partitions,
            **failed,
        }

    def _names(self, call: Call) -> tuple[Topic, str]:
        """Raises TopicUnknown."""
        return self._services.topics.readable.get(call.path["topic"]), call.path["group"]
