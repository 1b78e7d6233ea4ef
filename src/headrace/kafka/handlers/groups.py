"""The group APIs: requests become commands of the coordinator, its replies become answers.

Rules of the room: no rule of groups lives here; those are in `coordination/groups`. Topics that
come as ids (OffsetCommit and OffsetFetch v10) are named here, for offsets are kept by name.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from headrace.coordination.groups.commands import (
    CommitCommand,
    DeleteOffsetsCommand,
    FetchedOffset,
    FetchOffsetsCommand,
    GroupDescription,
    HeartbeatCommand,
    JoinCommand,
    LeaveCommand,
    LeavingMember,
    ListGroupsCommand,
    OffsetToCommit,
    SyncCommand,
)
from headrace.errors import HeadraceError, TopicIdUnknown, TopicUnknown
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    INVALID_GROUP_ID,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    code_of,
    message_of,
)
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context
    from headrace.kafka.wire.schema import Answer

GROUP_OPERATIONS = 0b1_0100_1000
"""READ DELETE DESCRIBE: all, without ACLs."""
NOT_ASKED = -(2**31)


def _ms(duration: datetime.timedelta) -> int:
    return int(duration / datetime.timedelta(milliseconds=1))


async def _ensure(node: Node) -> None:
    if OFFSETS_TOPIC not in node.topics.by_name:
        await node.topics.ensure_internal(OFFSETS_TOPIC)


async def join_group(node: Node, request: Any, context: Context) -> Answer:
    """JoinGroup."""
    await _ensure(node)
    session_timeout_ms = _ms(request.session_timeout)
    rebalance = getattr(request, "rebalance_timeout", None)
    command = JoinCommand(
        request.group_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
        context.client_id,
        f"/{context.client_host}",
        session_timeout_ms,
        _ms(rebalance) if rebalance is not None else session_timeout_ms,
        request.protocol_type,
        [(protocol.name, protocol.metadata) for protocol in request.protocols],
        is_member_id_required=context.version >= 4,
        can_skip_assignment=context.version >= 9,
        reason=getattr(request, "reason", None) or "",
    )
    reply = await node.groups.join(command)
    name = reply.protocol_name
    return {
        "error_code": code_of(reply.error),
        "generation_id": reply.generation,
        "protocol_type": reply.protocol_type,
        "protocol_name": name if name is not None or context.version >= 7 else "",
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "metadata": member.metadata,
            }
            for member in reply.members
        ],
    }


async def sync_group(node: Node, request: Any, _context: Context) -> Answer:
    """SyncGroup."""
    await _ensure(node)
    command = SyncCommand(
        request.group_id,
        request.generation_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
        getattr(request, "protocol_type", None),
        getattr(request, "protocol_name", None),
        [(item.member_id, item.assignment) for item in request.assignments],
    )
    reply = await node.groups.sync(command)
    return {
        "error_code": code_of(reply.error),
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }


async def heartbeat(node: Node, request: Any, _context: Context) -> Answer:
    """Heartbeat."""
    await _ensure(node)
    command = HeartbeatCommand(
        request.group_id,
        request.generation_id,
        request.member_id,
        getattr(request, "group_instance_id", None),
    )
    reply = await node.groups.heartbeat(command)
    return {"error_code": code_of(reply.error)}


async def leave_group(node: Node, request: Any, context: Context) -> Answer:
    """LeaveGroup: one member, or from v3 on several."""
    await _ensure(node)
    if context.version >= 3:
        members = [
            LeavingMember(
                item.member_id, item.group_instance_id, getattr(item, "reason", None) or ""
            )
            for item in request.members
        ]
    else:
        members = [LeavingMember(request.member_id)]
    reply = await node.groups.leave(LeaveCommand(request.group_id, members))
    error = reply.error
    if context.version < 3 and error is None and reply.members:
        error = reply.members[0].error
    return {
        "error_code": code_of(error),
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "error_code": code_of(member.error),
            }
            for member in reply.members
        ],
    }


# --- offsets ---------------------------------------------------------------------------------


def _topic_name(node: Node, item: Any) -> str:
    """The name of a topic that a request names or (v10) gives the id of."""
    topic_id: UUID | None = getattr(item, "topic_id", None)
    if hasattr(item, "name"):
        return str(item.name)
    if topic_id is None:
        raise TopicIdUnknown("a topic id of zero")
    return node.topics.get_by_id(topic_id).name


def _check_partition(node: Node, name: str, number: int) -> None:
    if node.topics.get(name).partition(number) is None:
        raise TopicUnknown(f"topic {name} has no partition {number}")


async def offset_commit(node: Node, request: Any, _context: Context) -> Answer:
    """OffsetCommit: what a partition's error is, is said beside it."""
    await _ensure(node)
    errors: dict[tuple[int, int], HeadraceError | None] = {}
    accepted: list[tuple[int, int]] = []
    offsets: list[OffsetToCommit] = []
    for at, topic in enumerate(request.topics):
        for number, item in enumerate(topic.partitions):
            try:
                name = _topic_name(node, topic)
                _check_partition(node, name, item.partition_index)
            except HeadraceError as error:
                errors[at, number] = error
                continue
            accepted.append((at, number))
            offsets.append(
                OffsetToCommit(
                    name,
                    item.partition_index,
                    item.committed_offset,
                    getattr(item, "committed_leader_epoch", -1),
                    item.committed_metadata,
                )
            )
    command = CommitCommand(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        getattr(request, "group_instance_id", None),
        offsets,
    )
    reply = await node.groups.commit(command)
    for place, result in zip(accepted, reply.results, strict=True):
        errors[place] = result.error
    return {
        "topics": [
            {
                "name": getattr(topic, "name", ""),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "error_code": code_of(errors[at, number]),
                    }
                    for number, item in enumerate(topic.partitions)
                ],
            }
            for at, topic in enumerate(request.topics)
        ]
    }


async def _fetch_offsets(
    node: Node, group_id: str, topics: Any, context: Context
) -> tuple[int, list[dict[str, Any]]]:
    """(error code, topics) of one group; `topics` None stands for all."""
    unknown: list[dict[str, Any]] = []
    wanted: list[tuple[str, int]] | None = None
    if topics is not None:
        wanted = []
        for topic in topics:
            try:
                name = _topic_name(node, topic)
            except HeadraceError as error:
                unknown.append(_no_offsets(topic, code_of(error)))
                continue
            wanted.extend((name, number) for number in topic.partition_indexes)
    reply = await node.groups.fetch_offsets(FetchOffsetsCommand(group_id, wanted))
    by_topic: dict[str, list[FetchedOffset]] = {}
    for offset in reply.offsets:
        by_topic.setdefault(offset.topic, []).append(offset)
    answers: list[dict[str, Any]] = []
    for name, offsets in by_topic.items():
        known = node.topics.by_name.get(name)
        if known is None and context.version >= 10:
            continue  # it has no id any more, so it cannot be named
        answers.append(
            {
                "name": name,
                "topic_id": known.id if known else None,
                "partitions": [
                    {
                        "partition_index": offset.partition,
                        "committed_offset": offset.offset,
                        "committed_leader_epoch": offset.leader_epoch,
                        "metadata": offset.metadata,
                        "error_code": code_of(offset.error),
                    }
                    for offset in offsets
                ],
            }
        )
    return code_of(reply.error), answers + unknown


def _no_offsets(topic: Any, error_code: int) -> dict[str, Any]:
    return {
        "name": getattr(topic, "name", ""),
        "topic_id": getattr(topic, "topic_id", None),
        "partitions": [
            {
                "partition_index": number,
                "committed_offset": -1,
                "committed_leader_epoch": -1,
                "metadata": "",
                "error_code": error_code,
            }
            for number in topic.partition_indexes
        ],
    }


async def offset_fetch(node: Node, request: Any, context: Context) -> Answer:
    """OffsetFetch: of one group, or from v8 on of several."""
    await _ensure(node)
    if context.version < 8:
        topics = request.topics
        if context.version < 2 and topics is None:
            topics = ()
        error_code, answers = await _fetch_offsets(node, request.group_id, topics, context)
        if error_code != NONE and context.version < 2:
            answers = [_no_offsets(topic, error_code) for topic in request.topics or ()]
        return {"error_code": error_code, "topics": answers}
    groups: list[dict[str, Any]] = []
    for group in request.groups:
        error_code, answers = await _fetch_offsets(node, group.group_id, group.topics, context)
        groups.append({"group_id": group.group_id, "topics": answers, "error_code": error_code})
    return {"groups": groups}


async def offset_delete(node: Node, request: Any, _context: Context) -> Answer:
    """OffsetDelete (KIP-496)."""
    await _ensure(node)
    wanted = [
        (topic.name, item.partition_index) for topic in request.topics for item in topic.partitions
    ]
    reply = await node.groups.delete_offsets(DeleteOffsetsCommand(request.group_id, wanted))
    codes = {(r.topic, r.partition): code_of(r.error) for r in reply.results}
    return {
        "error_code": code_of(reply.error),
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "error_code": codes.get(
                            (topic.name, item.partition_index), UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    }
                    for item in topic.partitions
                ],
            }
            for topic in (request.topics if reply.error is None else ())
        ],
    }


# --- administration --------------------------------------------------------------------------


async def list_groups(node: Node, request: Any, _context: Context) -> Answer:
    """ListGroups."""
    await _ensure(node)
    command = ListGroupsCommand(
        list(getattr(request, "states_filter", ())), list(getattr(request, "types_filter", ()))
    )
    reply = await node.groups.list_groups(command)
    return {
        "error_code": code_of(reply.error),
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": group.group_type,
            }
            for group in reply.groups
        ],
    }


def _described(group: GroupDescription, context: Context, *, with_operations: bool) -> Answer:
    error_code = code_of(group.error)
    if group.state == "Dead" and context.version < 6:
        error_code = NONE  # older clients know a group that is not there by its state alone
    return {
        "error_code": error_code,
        "error_message": message_of(group.error),
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": GROUP_OPERATIONS if with_operations else NOT_ASKED,
    }


async def describe_groups(node: Node, request: Any, context: Context) -> Answer:
    """DescribeGroups."""
    await _ensure(node)
    groups = await node.groups.describe_groups([str(group) for group in request.groups])
    with_operations = getattr(request, "include_authorized_operations", False)
    return {
        "groups": [_described(group, context, with_operations=with_operations) for group in groups]
    }


async def delete_groups(node: Node, request: Any, _context: Context) -> Answer:
    """DeleteGroups."""
    await _ensure(node)
    results = await node.groups.delete_groups([str(group) for group in request.groups_names])
    return {
        "results": [
            {
                "group_id": result.group_id,
                "error_code": INVALID_GROUP_ID if not result.group_id else code_of(result.error),
            }
            for result in results
        ]
    }


HANDLERS = {
    apis.JOIN_GROUP: join_group,
    apis.SYNC_GROUP: sync_group,
    apis.HEARTBEAT: heartbeat,
    apis.LEAVE_GROUP: leave_group,
    apis.OFFSET_COMMIT: offset_commit,
    apis.OFFSET_FETCH: offset_fetch,
    apis.OFFSET_DELETE: offset_delete,
    apis.LIST_GROUPS: list_groups,
    apis.DESCRIBE_GROUPS: describe_groups,
    apis.DELETE_GROUPS: delete_groups,
}
