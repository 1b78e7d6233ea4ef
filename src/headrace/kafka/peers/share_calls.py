"""Calls of a share group's coordinator to the owners of its partitions, over Kafka's APIs.

Invariants: error codes of other brokers become errors here; what a response omits is omitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.coordinators.peer_calls import ShareState
from headrace.coordination.groups.commands import GroupListing
from headrace.errors import GroupUnknown
from headrace.kafka import apis
from headrace.kafka.error_codes import error_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from headrace.broker.coordinators.peer_calls import Outcomes, ShareStates
    from headrace.coordination.transactions.state_records import Partition
    from headrace.kafka.wire.schema import Answer
    from headrace.metadata.facts import BrokerFact, PartitionKey

SUMMARY_VERSION, INITIALIZE_VERSION, DELETE_VERSION, OFFSETS_VERSION = 1, 0, 0, 7
LIST_VERSION: Final = 5
CLASSIC_VERSION, CONSUMER_VERSION = 6, 1
"""DescribeGroups v6 reports an unknown group instead of describing an empty one."""
LATEST: Final = -1


class SharePeers:
    """Implements `broker.coordinators.peer_calls.SharePeerCalls`."""

    def __init__(self, call: Callable[[BrokerFact, int, int, Answer], Awaitable[Any]]) -> None:
        """`call(broker, api key, version, body)` sends a request to a broker; raises
        BrokerUnreachable."""
        self._call = call

    async def list_groups(
        self, broker: BrokerFact, states: Sequence[str], types: Sequence[str]
    ) -> Sequence[GroupListing]:
        """See SharePeerCalls."""
        body = {"states_filter": [*states], "types_filter": [*types]}
        answer = await self._call(broker, apis.LIST_GROUPS, LIST_VERSION, body)
        error = error_of(answer.error_code)
        if error is not None:
            raise error
        return [
            GroupListing(one.group_id, one.protocol_type, one.group_state, one.group_type)
            for one in answer.groups
        ]

    async def has_consumer_group(self, broker: BrokerFact, group_id: str) -> bool:
        """See SharePeerCalls."""
        options = {"include_authorized_operations": False}
        classic = await self._call(
            broker, apis.DESCRIBE_GROUPS, CLASSIC_VERSION, {"groups": [group_id], **options}
        )
        consumer = await self._call(
            broker, apis.CONSUMER_GROUP_DESCRIBE, CONSUMER_VERSION,
            {"group_ids": [group_id], **options},
        )  # fmt: skip
        errors = [error_of(one.error_code) for one in (*classic.groups, *consumer.groups)]
        for error in errors:
            if error is not None and not isinstance(error, GroupUnknown):
                raise error
        return None in errors

    async def share_states(
        self, broker: BrokerFact, group_id: str, partitions: Sequence[PartitionKey]
    ) -> ShareStates:
        """See SharePeerCalls."""
        body = _body(group_id, ((key, {"leader_epoch": -1}) for key in partitions))
        api = apis.READ_SHARE_GROUP_STATE_SUMMARY
        answer = await self._call(broker, api, SUMMARY_VERSION, body)
        return {
            (result.topic_id, item.partition): error_of(item.error_code)
            or ShareState(item.start_offset, item.delivery_complete_count, item.leader_epoch)
            for result in answer.results
            for item in result.partitions
        }

    async def end_offsets(
        self, broker: BrokerFact, partitions: Sequence[Partition]
    ) -> dict[Partition, int]:
        """See SharePeerCalls."""
        topics: dict[str, list[dict[str, Any]]] = {}
        for name, number in partitions:
            asked = {"partition_index": number, "current_leader_epoch": -1, "timestamp": LATEST}
            topics.setdefault(name, []).append(asked)
        body = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        }
        answer = await self._call(broker, apis.LIST_OFFSETS, OFFSETS_VERSION, body)
        return {
            (topic.name, item.partition_index): item.offset
            for topic in answer.topics
            for item in topic.partitions
            if not item.error_code
        }

    async def start_share_group(
        self, broker: BrokerFact, group_id: str, starts: Mapping[PartitionKey, int]
    ) -> Outcomes:
        """See SharePeerCalls."""
        parts = ((key, {"state_epoch": 0, "start_offset": start}) for key, start in starts.items())
        api = apis.INITIALIZE_SHARE_GROUP_STATE
        answer = await self._call(broker, api, INITIALIZE_VERSION, _body(group_id, parts))
        return _outcomes(answer)

    async def forget_share_group(
        self, broker: BrokerFact, group_id: str, partitions: Sequence[PartitionKey]
    ) -> Outcomes:
        """See SharePeerCalls."""
        body = _body(group_id, ((key, {}) for key in partitions))
        answer = await self._call(broker, apis.DELETE_SHARE_GROUP_STATE, DELETE_VERSION, body)
        return _outcomes(answer)


def _body(group_id: str, parts: Iterable[tuple[PartitionKey, dict[str, Any]]]) -> Answer:
    topics: dict[UUID, list[dict[str, Any]]] = {}
    for (topic_id, number), fields in parts:
        topics.setdefault(topic_id, []).append({"partition": number, **fields})
    return {
        "group_id": group_id,
        "topics": [{"topic_id": one, "partitions": items} for one, items in topics.items()],
    }


def _outcomes(answer: Any) -> Outcomes:
    return {
        (result.topic_id, item.partition): error_of(item.error_code)
        for result in answer.results
        for item in result.partitions
    }
