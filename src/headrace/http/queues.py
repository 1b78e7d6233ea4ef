"""Queues over HTTP: receive records of a share group, and settle them.

Invariants: the same engine as Kafka's share groups (`broker/shares`), so both can consume
one group. Each receive is a member of its own; a receipt names it, so it alone settles what it got.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from headrace.broker.services.long_poll import wait_for_records
from headrace.broker.shares.share_partitions import ReceiveRequest
from headrace.coordination.quotas.entities import CONSUMER
from headrace.errors import (
    GroupUnknown,
    HeadraceError,
    NotCoordinator,
    NotOwner,
    RecordStateInvalid,
)
from headrace.http import receipts
from headrace.http.deliveries import Deliveries
from headrace.http.operations import (
    GROUP,
    INT64_MAX,
    PARTITION,
    TOPIC,
    Call,
    Json,
    Operation,
    fields,
    integer,
    listing,
)
from headrace.http.operations import text as words
from headrace.http.problems import Contradiction
from headrace.http.search import partitions_elsewhere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.node import Node
    from headrace.broker.shares.hosted_shares import Pause
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.shares.commands import Settlement, ShareDescription
    from headrace.http.receipts import Item
    from headrace.http.schemas import Schema

log = logging.getLogger(__name__)

RECORDS_MAX: Final = 1_000
WAIT_MS_MAX: Final = 60_000
LOCK_MS_MAX: Final = 12 * 3_600_000
BYTES_MAX: Final = 16 * 1024 * 1024
SETTLEMENTS_MAX: Final = 10_000
ENDS_MAX: Final = 10_000
CONSUMER_LENGTH_MAX: Final = 200
REASON_LENGTH_MAX: Final = 1_000
RETRY_S: Final = 1.0
"""Between two attempts while a partition returns an error and others have nothing."""
SETTLED_ROUNDS_MAX: Final = 64
"""Of one receive after its time is up: each has finished offsets that hold no message."""
DELAY_MS_MAX: Final = 365 * 24 * 3_600_000
_RECEIVE: Final[Schema] = {
    "type": "object",
    "properties": {
        "max": integer(1, RECORDS_MAX),
        "wait_ms": integer(0, WAIT_MS_MAX),
        "lock_ms": integer(-1, LOCK_MS_MAX),
        "consumer": words(CONSUMER_LENGTH_MAX, 1, description="Who asks, in a sticky group."),
        "ends": listing(
            fields(["partition", "offset"], partition=PARTITION, offset=integer(0, INT64_MAX)),
            ENDS_MAX,
        ),
    },
}


class _Round:
    """What one round over the partitions found."""

    __slots__ = ("error", "has_settled", "messages", "waiting")

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.waiting: list[tuple[int, Pause]] = []
        """(partition, what to wait for) of those that have nothing now."""
        self.has_settled = False
        """Whether offsets without a message were acquired and finished."""
        self.error: HeadraceError | None = None
        """Of a partition that could not be asked."""


class Queues:
    """The routes of queues."""

    def __init__(self, node: Node) -> None:
        self._node = node
        path = "/v1/queues/{topic}/{group}"
        named: dict[str, Schema] = {"topic": TOPIC, "group": GROUP}
        self.operations = [
            Operation("GET", path, "queue",
                      "Where a group stands on the topic's partitions that are served here.",
                      self._describe, named),
            Operation("POST", f"{path}/receive", "receive",
                      "Messages for this consumer alone, with receipts.",
                      self._receive, named, _RECEIVE, is_body_required=False, quota=CONSUMER),
            Operation("POST", f"{path}/settle", "settle",
                      "Acknowledge, give back, extend or dead-letter messages, each by receipt.",
                      self._settle, named, receipts.SETTLE, is_checked=False),
        ]  # fmt: skip

    # --- receive -----------------------------------------------------------------------------

    async def _receive(self, call: Call) -> Response:
        topic, group_id = self._names(call)
        records_max = int(call.body.get("max", 10))
        wait_ms = int(call.body.get("wait_ms", 0))
        lock_ms = int(call.body.get("lock_ms", -1))
        member = self._node.randomness.uuid().hex[:16]
        asked = ReceiveRequest(group_id, f"http-{member}", records_max, BYTES_MAX, True, lock_ms)
        asked.owner = f"http:{call.body.get('consumer', '')}"  # without a name they are one
        ends = call.body.get("ends")
        if ends is not None:
            ends = {int(one["partition"]): int(one["offset"]) for one in ends}
        await self._check_kind(group_id)
        messages = await self._receive_all(topic, asked, member, wait_ms / 1000, ends)
        answer: Json = {"topic": topic.name, "group": group_id}
        if ends is not None:  # all up to there is wanted, so other brokers are asked, too
            answer["broker"] = self._node.config.broker_id
            answer["elsewhere"] = partitions_elsewhere(self._node, topic)
        head = json.dumps(answer).removesuffix("}")
        data = f'{head}, "messages": [{",".join(messages)}]}}'
        return Response(data.encode(), media_type="application/json")

    async def _check_kind(self, group_id: str) -> None:
        """Raises Contradiction where the id is that of a consumer group.

        The group's coordinator alone knows that; it is asked until the share group has begun.
        """
        node = self._node
        if node.share_groups.exists(group_id):
            return
        try:
            try:
                await node.groups.check_is_free_for_shares(group_id)
            except NotCoordinator:
                if node.topics.by_name.get(node.groups.shards.topic) is None:
                    return  # no consumer group was ever stored
                coordinator = node.coordinator_of(node.groups.shards, group_id)
                await node.share_group_administration.check_is_free(group_id, coordinator)
        except GroupUnknown as error:
            raise Contradiction(str(error)) from error

    async def _receive_all(
        self,
        topic: Topic,
        asked: ReceiveRequest,
        member: str,
        wait_s: float,
        ends: dict[int, int] | None,
    ) -> list[str]:
        """Messages, as JSON texts, of the partitions that this broker serves, in any order.

        `ends`: partition -> the offset from which on it has nothing for this request; a partition
        that is not among them has nothing at all. None: no bound.
        Raises what a partition said only where there are no messages at all: what was acquired from
        others must reach the client, or it would lose a delivery.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        settled_rounds = 0
        await self._begin(topic, asked.group_id)
        while True:
            found = await self._receive_once(topic, asked, member, ends)
            left_s = deadline - loop.time()
            if found.messages:
                return found.messages
            if found.has_settled and (left_s > 0 or settled_rounds < SETTLED_ROUNDS_MAX):
                settled_rounds += 1
                continue  # all that was delivered is finished: there may be more
            if found.error is not None and (left_s <= 0 or not found.waiting):
                raise found.error
            if left_s <= 0 or not found.waiting:
                return []
            retry_s = left_s if found.error is None else min(left_s, RETRY_S)
            waiting = [(topic, number, pause) for number, pause in found.waiting]
            await wait_for_records(self._node.shares, waiting, retry_s)

    async def _begin(self, topic: Topic, group_id: str) -> None:
        """Begin on every partition, though messages of the first may be enough: else what comes to
        the others before the group reaches them would not be its backlog."""
        for number in self._served(topic):
            try:
                await self._node.shares.begin(topic, number, group_id)
            except HeadraceError as error:  # the receive itself reports it, unless others have some
                log.info("%s-%d: %s cannot begin yet: %s", topic.name, number, group_id, error)

    async def _receive_once(
        self, topic: Topic, asked: ReceiveRequest, member: str, ends: dict[int, int] | None
    ) -> _Round:
        """Ask each partition that this broker serves for what is left of the limits."""
        found = _Round()
        bytes_left = asked.bytes_max
        for number in self._served(topic):
            records_left = asked.records_max - len(found.messages)
            if records_left <= 0 or bytes_left <= 0:
                break
            if ends is not None and number not in ends:
                continue
            part = replace(asked, records_max=records_left, bytes_max=bytes_left)
            if ends is not None:
                part.end = ends[number]
            try:
                received = await self._node.shares.receive(topic, number, part)
            except HeadraceError as error:
                log.info("%s-%d: nothing can be received: %s", topic.name, number, error)
                found.error = error
                continue
            if received.pause is not None:
                found.waiting.append((number, received.pause))
                continue
            deliveries = Deliveries(number, member, bytes_left)
            await deliveries.add(received)
            bytes_left = deliveries.bytes_left
            found.messages += deliveries.messages
            if deliveries.settlements:
                await self._finish(topic, number, asked, deliveries.settlements)
                found.has_settled = True
        return found

    async def _finish(
        self, topic: Topic, number: int, asked: ReceiveRequest, settlements: list[Settlement]
    ) -> None:
        """Settle what was acquired and cannot be given to the client."""
        try:
            await self._node.shares.settle(
                topic, number, asked.group_id, asked.member_id, settlements, is_atomic=False
            )
        except HeadraceError as error:  # its locks end by themselves
            log.info("%s-%d: offsets without a message are kept: %s", topic.name, number, error)

    def _served(self, topic: Topic) -> list[int]:
        """The partitions to ask, each time beginning with another. Raises NotOwner."""
        count = len(topic.partitions)
        first = self._node.randomness.below(count)
        numbers = [(first + turn) % count for turn in range(count)]
        served = [n for n in numbers if self._node.ownership.is_mine(topic, n)]
        if not served:
            raise NotOwner(f"this broker serves no partition of {topic.name}: ask another one")
        return served

    # --- settle ------------------------------------------------------------------------------

    async def _settle(self, call: Call) -> Response:
        topic, group_id = self._names(call)
        asked = receipts.parse(call.body)
        errors: list[HeadraceError | None] = [None] * len(asked.receipts)
        for (number, member), items in asked.deliveries.items():
            place = topic, number, group_id, f"http-{member}"
            for item, error in zip(items, await self._settle_merged(*place, items), strict=True):
                errors[item.place] = error
        return Response(receipts.results(asked.receipts, errors), media_type="application/json")

    async def _settle_merged(
        self, topic: Topic, number: int, group_id: str, member_id: str, items: Sequence[Item]
    ) -> list[HeadraceError | None]:
        """One error or None for each item; they ascend by offset.

        Neighbours that are settled alike are asked for as one range, which costs a hundredth; the
        records of a range that is refused are asked for one by one.
        """
        runs = receipts.ranges(items)
        found = await self._settle_each(topic, number, group_id, member_id, runs)
        errors: list[HeadraceError | None] = []
        for run, error in zip(runs, found, strict=True):
            size = run.last - run.first + 1
            if error is None or size == 1:
                errors += [error] * size
                continue
            each = receipts.one_by_one(items[len(errors) : len(errors) + size])
            errors += await self._settle_each(topic, number, group_id, member_id, each)
        return errors

    async def _settle_each(
        self,
        topic: Topic,
        number: int,
        group_id: str,
        member_id: str,
        settlements: list[Settlement],
    ) -> Sequence[HeadraceError | None]:
        try:
            return await self._node.shares.settle(
                topic, number, group_id, member_id, settlements, is_atomic=False
            )
        except GroupUnknown:
            unknown = RecordStateInvalid("nothing of this partition was delivered to the group")
            return [unknown] * len(settlements)
        except HeadraceError as error:
            return [error] * len(settlements)

    # --- describe ----------------------------------------------------------------------------

    async def _describe(self, call: Call) -> Json:
        topic, group_id = self._names(call)
        partitions: list[Json] = []
        for number in sorted(self._served(topic)):
            log = topic.require_log(number)
            described = await self._node.shares.describe(topic, number, [group_id])
            partitions += [_described(number, found, log.high_watermark) for found in described]
        return {"topic": topic.name, "group": group_id, "partitions": partitions}

    def _names(self, call: Call) -> tuple[Topic, str]:
        """Raises TopicUnknown."""
        return self._node.topics.get(call.path["topic"]), call.path["group"]


# --- answers ---------------------------------------------------------------------------------


def _described(number: int, found: ShareDescription, high_watermark: int) -> Json:
    return {
        "partition": number,
        "start_offset": found.start,
        "end_offset": found.end,
        "in_flight": found.acquired_records,
        "waiting_for_dead_letter_copy": found.archiving_records,
        "lag": high_watermark - found.start - found.finished_records,
    }
