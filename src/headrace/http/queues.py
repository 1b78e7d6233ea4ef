"""Queues over HTTP: receive records of a share group, and settle them.

Invariants: the same engine as Kafka's share groups (`broker/shares`), so both can consume
one group. Each receive is a member of its own; a receipt names it, so it alone settles what it got.
Receiving is in `receiving`: any broker serves all partitions of the topic.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from starlette.responses import Response

from headrace.broker.services.share_group_administration import once_coordinated
from headrace.broker.shares.queue_peers import MemberSettlements
from headrace.broker.shares.share_partitions import ReceiveRequest
from headrace.coordination.quotas.entities import CONSUMER
from headrace.errors import GroupUnknown, NotCoordinator, Rejected
from headrace.http import receipts
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
from headrace.http.problems import Contradiction
from headrace.http.receiving import Receiving
from headrace.http.search import partitions_elsewhere

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.broker.topics.topic import Topic
    from headrace.errors import HeadraceError
    from headrace.http.receipts import Asked, Item
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


class Queues:
    """The routes of queues."""

    def __init__(self, node: Node) -> None:
        self._node = node
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
        member = self._node.randomness.uuid().hex[:16]
        asked = ReceiveRequest(group_id, f"http-{member}", records_max, BYTES_MAX, True, lock_ms)
        asked.owner = f"http:{call.body.get('consumer', '')}"  # without a name they are one
        ends = call.body.get("ends")
        if ends is not None:
            ends = {int(one["partition"]): int(one["offset"]) for one in ends}
        await self._check_kind(group_id)
        receiving = Receiving(self._node, topic, asked, member, ends)
        await receiving.receive(wait_ms / 1000, call.request)
        answer: Json = {"topic": topic.name, "group": group_id}
        if receiving.messages:
            default_ms = self._node.group_configs.share_config(group_id).lock_ms
            lasts_ms = lock_ms if lock_ms > 0 else default_ms
            answer["lock_ends_ms"] = receiving.asked_at_ms + lasts_ms
        failed = receiving.failed
        answer |= failed_partitions(failed)
        if ends is not None:  # all up to there is wanted, so the caller may ask for the rest itself
            answer["broker"] = self._node.config.broker_id
            elsewhere = partitions_elsewhere(self._node, topic) if failed else []
            answer["elsewhere"] = [one for one in elsewhere if one["partition"] in failed]
        head = json.dumps(answer).removesuffix("}")
        data = f'{head}, "messages": [{",".join(receiving.messages)}]}}'
        return Response(data.encode(), media_type="application/json")

    async def _check_kind(self, group_id: str) -> None:
        """Raises Contradiction where the id is that of a consumer group.

        The group's coordinator alone knows that; it is asked until the share group has begun.
        """
        if self._node.share_groups.exists(group_id):
            return
        try:
            await once_coordinated(group_id, lambda: self._check_free(group_id))
        except GroupUnknown as error:
            raise Contradiction(str(error)) from error

    async def _check_free(self, group_id: str) -> None:
        node = self._node
        try:
            await node.groups.check_is_free_for_shares(group_id)
        except NotCoordinator:
            if node.topics.by_name.get(node.groups.shards.topic) is None:
                return  # no consumer group was ever stored
            coordinator = node.coordinator_of(node.groups.shards, group_id)
            await node.share_group_administration.check_is_free(group_id, coordinator)

    # --- settle ------------------------------------------------------------------------------

    async def _settle(self, call: Call) -> Response:
        topic, group_id = self._names(call)
        asked = receipts.parse(call.body)
        errors = await self._settle_merged(topic, group_id, asked)
        return Response(receipts.results(asked.receipts, errors), media_type="application/json")

    async def _settle_merged(
        self, topic: Topic, group_id: str, asked: Asked
    ) -> list[HeadraceError | None]:
        """One error or None for each receipt.

        Neighbours that are settled alike are asked for as one range, which costs a hundredth; the
        records of a range that is refused are asked for one by one.
        """
        errors: list[HeadraceError | None] = [None] * len(asked.receipts)
        for place, refusal in asked.refused.items():
            errors[place] = refusal
        deliveries: list[MemberSettlements] = []
        parts: list[list[Item]] = []
        for (number, member), items in asked.deliveries.items():
            if not items:
                continue
            deliveries.append(MemberSettlements(number, f"http-{member}", receipts.ranges(items)))
            parts.append(items)
        again: list[MemberSettlements] = []
        refused_parts: list[list[Item]] = []
        outcomes = await self._node.queue_owners.settle(topic, group_id, deliveries)
        for delivery, items, found in zip(deliveries, parts, outcomes, strict=True):
            if not any(found):
                continue
            refused: list[Item] = []
            at = 0
            for (first, last, *_), error in zip(delivery.settlements, found, strict=True):
                run = items[at : at + last - first + 1]
                at += len(run)
                if error is not None and len(run) > 1 and isinstance(error, Rejected):
                    refused += run
                else:
                    for item in run:
                        errors[item.place] = error
            if refused:
                again.append(delivery._replace(settlements=receipts.one_by_one(refused)))
                refused_parts.append(refused)
        if again:
            outcomes = await self._node.queue_owners.settle(topic, group_id, again)
            for items, found in zip(refused_parts, outcomes, strict=True):
                for item, error in zip(items, found, strict=True):
                    errors[item.place] = error
        return errors

    # --- describe ----------------------------------------------------------------------------

    async def _describe(self, call: Call) -> Json:
        topic, group_id = self._names(call)
        answer = await self._node.queue_administration.describe(topic, group_id)
        found, failed = of_partitions(answer)
        partitions = [
            {
                "partition": number,
                "start_offset": one.start_offset,
                "end_offset": one.end_offset,
                "in_flight": one.in_flight,
                "waiting_for_dead_letter_copy": one.archiving,
                "lag": one.lag,
            }
            for number, one in found.items()
            if one is not None
        ]
        terms = self._node.share_terms(group_id)
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
        return self._node.topics.get(call.path["topic"]), call.path["group"]
