"""The offsets of share groups: describe, alter and delete (KIP-932, KIP-1226).

Invariants: clients send requests to a group's coordinator (Describe-, Alter-,
DeleteShareGroupOffsets); it calls the partitions' owners, if these are other brokers, through the
last three APIs here. The rules are in `broker/services/share_group_administration`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.broker.coordinators.groups_configured import GROUP_ID_LENGTH_MAX
from headrace.errors import GroupIdInvalid, HeadraceError, RequestInvalid, TopicUnknown
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.groups import ensure_offsets_topic
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from headrace.broker.node import Node
    from headrace.broker.services.share_group_administration import SharePosition
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

UNKNOWN = -1
NO_TOPIC = UUID(int=0)


def _check_group(group_id: str) -> None:
    if not 0 < len(name_in(group_id)) <= GROUP_ID_LENGTH_MAX:
        raise GroupIdInvalid(f"a share group id must have 1 to {GROUP_ID_LENGTH_MAX} characters")


def _error(error: HeadraceError | None) -> dict[str, Any]:
    return {"error_code": code_of(error), "error_message": message_of(error)}


def _topic_id(node: Node, name: str) -> UUID | None:
    topic = node.services.topics.readable.find(name)
    return topic.id if topic else None


# --- requests of clients ---------------------------------------------------------------------


async def describe_share_group_offsets(node: Node, request: Any, _context: Context) -> Answer:
    """DescribeShareGroupOffsets: positions of groups; without topics, of all."""
    await ensure_offsets_topic(node)
    groups: list[dict[str, Any]] = []
    for group in request.groups:
        wanted: list[tuple[str, int]] | None = None
        if group.topics is not None:
            wanted = [(one.topic_name, number) for one in group.topics for number in one.partitions]
        positions: Sequence[SharePosition] = ()
        error: HeadraceError | None = None
        try:
            _check_group(group.group_id)
            positions = await node.services.share_groups.positions(group.group_id, wanted)
        except HeadraceError as refused:
            error = refused
        groups.append(
            {"group_id": group.group_id, "topics": _described(node, positions), **_error(error)}
        )
    return {"groups": groups}


def _described(node: Node, positions: Sequence[SharePosition]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for one in positions:
        # As in Kafka, on a topic that does not exist a group has simply not begun.
        error = None if isinstance(one.error, TopicUnknown) else one.error
        topics.setdefault(one.topic, []).append(
            {
                "partition_index": one.partition,
                "start_offset": one.start_offset,
                "leader_epoch": one.leader_epoch,
                "lag": one.lag,
                **_error(error),
            }
        )
    return [
        {"topic_name": name, "topic_id": _topic_id(node, name), "partitions": parts}
        for name, parts in topics.items()
    ]


async def alter_share_group_offsets(node: Node, request: Any, _context: Context) -> Answer:
    """AlterShareGroupOffsets: only while the group has no members."""
    await ensure_offsets_topic(node)
    starts: dict[tuple[str, int], int] = {}
    responses: list[dict[str, Any]] = []
    error: HeadraceError | None = None
    try:
        _check_group(request.group_id)
        for topic in request.topics:
            for item in topic.partitions:
                if (topic.topic_name, item.partition_index) in starts:
                    raise RequestInvalid("a partition is named twice")
                starts[topic.topic_name, item.partition_index] = item.start_offset
        outcomes = await node.services.share_groups.move(request.group_id, starts)
        responses = [
            {
                "topic_name": topic.topic_name,
                "topic_id": _topic_id(node, topic.topic_name),
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        **_error(outcomes[topic.topic_name, item.partition_index]),
                    }
                    for item in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    except HeadraceError as refused:
        error = refused
    return {**_error(error), "responses": responses}


async def delete_share_group_offsets(node: Node, request: Any, _context: Context) -> Answer:
    """DeleteShareGroupOffsets: of whole topics, only while the group has no members."""
    await ensure_offsets_topic(node)
    results: Mapping[str, HeadraceError | None] = {}
    error: HeadraceError | None = None
    try:
        _check_group(request.group_id)
        names = [topic.topic_name for topic in request.topics]
        results = await node.services.share_groups.delete_positions(request.group_id, names)
    except HeadraceError as refused:
        error = refused
    return {
        **_error(error),
        "responses": [
            {"topic_name": name, "topic_id": _topic_id(node, name), **_error(found)}
            for name, found in results.items()
        ],
    }


# --- requests of coordinators ----------------------------------------------------------------


async def _each(
    request: Any, ask: Callable[[tuple[UUID, int], Any], Awaitable[dict[str, Any]]]
) -> Answer:
    """One result for each partition of `request`."""
    results: list[dict[str, Any]] = []
    for topic in request.topics:
        parts: list[dict[str, Any]] = []
        for item in topic.partitions:
            error: HeadraceError | None = None
            found: dict[str, Any] = {}
            try:
                _check_group(request.group_id)
                found = await ask((topic.topic_id or NO_TOPIC, item.partition), item)
            except HeadraceError as refused:
                error = refused
            parts.append({"partition": item.partition, **_error(error), **found})
        results.append({"topic_id": topic.topic_id, "partitions": parts})
    return {"results": results}


async def read_share_group_state_summary(node: Node, request: Any, _context: Context) -> Answer:
    """ReadShareGroupStateSummary."""

    async def read(key: tuple[UUID, int], _item: Any) -> dict[str, Any]:
        state = await node.services.share_groups.state_here(request.group_id, key)
        return {
            "state_epoch": 0,
            "leader_epoch": state.leader_epoch,
            "start_offset": state.start_offset,
            "delivery_complete_count": state.finished_records,
        }

    answer = await _each(request, read)
    for result in answer["results"]:
        for part in result["partitions"]:
            for name in ("state_epoch", "leader_epoch", "start_offset"):
                part.setdefault(name, UNKNOWN)
    return answer


async def initialize_share_group_state(node: Node, request: Any, _context: Context) -> Answer:
    """InitializeShareGroupState: reset a group to an offset."""

    async def start(key: tuple[UUID, int], item: Any) -> dict[str, Any]:
        await node.services.share_groups.move_here(request.group_id, key, item.start_offset)
        return {}

    return await _each(request, start)


async def delete_share_group_state(node: Node, request: Any, _context: Context) -> Answer:
    """DeleteShareGroupState: delete a group's state."""

    async def forget(key: tuple[UUID, int], _item: Any) -> dict[str, Any]:
        await node.services.share_groups.forget_here(request.group_id, key)
        return {}

    return await _each(request, forget)


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_SHARE_GROUP_OFFSETS: describe_share_group_offsets,
    apis.ALTER_SHARE_GROUP_OFFSETS: alter_share_group_offsets,
    apis.DELETE_SHARE_GROUP_OFFSETS: delete_share_group_offsets,
    apis.READ_SHARE_GROUP_STATE_SUMMARY: read_share_group_state_summary,
    apis.INITIALIZE_SHARE_GROUP_STATE: initialize_share_group_state,
    apis.DELETE_SHARE_GROUP_STATE: delete_share_group_state,
}
