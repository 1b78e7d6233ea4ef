"""The group APIs: requests become commands of the coordinator, its replies become responses.

Invariants: contains no rules of groups; those are in `coordination/groups`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.fair_shares import user_of
from headrace.coordination.groups.commands import (
    GroupDescription,
    HeartbeatCommand,
    JoinCommand,
    LeaveCommand,
    LeavingMember,
    SyncCommand,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    INVALID_GROUP_ID,
    NONE,
    code_of,
    message_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.messages import (
        DeleteGroupsRequest,
        DescribeGroupsRequest,
        HeartbeatRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        ListGroupsRequest,
        SyncGroupRequest,
    )
    from headrace.kafka.wire.schema import Answer

GROUP_OPERATIONS = 0b1101_0100_1000
"""READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS: all, without ACLs."""
NOT_ASKED = -(2**31)


async def ensure_offsets_topic(node: Node) -> None:
    """Create the internal topic that holds all groups if it does not exist."""
    await node.services.groups.ensure_offsets_topic()


async def describe_member_groups(
    node: Node,
    request: Any,
    command: Callable[[list[str]], Any],
    own: Callable[[Any], dict[str, Any]],
) -> Answer:
    """The answer to ConsumerGroupDescribe or StreamsGroupDescribe; `own` shows what only groups of
    this protocol have."""
    await ensure_offsets_topic(node)
    described = await node.services.groups.submit_each(command([str(i) for i in request.group_ids]))
    operations = GROUP_OPERATIONS if request.include_authorized_operations else NOT_ASKED
    groups = [
        {
            "error_code": code_of(group.error),
            "error_message": message_of(group.error),
            "group_id": group.group_id,
            "group_state": group.state,
            "group_epoch": group.epoch,
            "assignment_epoch": group.target_epoch,
            "authorized_operations": operations,
            **own(group),
        }
        for group in described
    ]
    return {"groups": groups}


async def join_group(node: Node, request: JoinGroupRequest, context: Context) -> Answer:
    """JoinGroup."""
    await ensure_offsets_topic(node)
    command = JoinCommand(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        context.client_id,
        f"/{context.client_host}",
        request.session_timeout_ms,
        request.rebalance_timeout_ms if context.version >= 1 else request.session_timeout_ms,
        request.protocol_type,
        [(protocol.name, protocol.metadata) for protocol in request.protocols],
        is_member_id_required=context.version >= 4,
        can_skip_assignment=context.version >= 9,
        reason=request.reason or "",
    )
    reply = await node.services.groups.submit(command, user_of(context.session))
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


async def sync_group(node: Node, request: SyncGroupRequest, context: Context) -> Answer:
    """SyncGroup."""
    await ensure_offsets_topic(node)
    command = SyncCommand(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        request.protocol_type,
        request.protocol_name,
        [(item.member_id, item.assignment) for item in request.assignments],
    )
    reply = await node.services.groups.submit(command, user_of(context.session))
    return {
        "error_code": code_of(reply.error),
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }


async def heartbeat(node: Node, request: HeartbeatRequest, _context: Context) -> Answer:
    """Heartbeat."""
    await ensure_offsets_topic(node)
    command = HeartbeatCommand(
        request.group_id,
        request.generation_id,
        request.member_id,
        request.group_instance_id,
    )
    reply = await node.services.groups.submit(command)
    return {"error_code": code_of(reply.error)}


async def leave_group(node: Node, request: LeaveGroupRequest, context: Context) -> Answer:
    """LeaveGroup: one member, or from v3 on several."""
    await ensure_offsets_topic(node)
    if context.version >= 3:
        members = [
            LeavingMember(item.member_id, item.group_instance_id, item.reason or "")
            for item in request.members
        ]
    else:
        members = [LeavingMember(request.member_id)]
    reply = await node.services.groups.submit(LeaveCommand(request.group_id, members))
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


# --- administration --------------------------------------------------------------------------


async def list_groups(node: Node, request: ListGroupsRequest, _context: Context) -> Answer:
    """ListGroups."""
    reply = await node.services.groups.list_groups(request.states_filter, request.types_filter)
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
        error_code = NONE  # older clients recognize an unknown group by its state only
    return {
        "error_code": error_code,
        "error_message": message_of(group.error),
        "group_id": group.group_id,
        "group_state": group.state,
        "group_type": group.group_type,  # for authorization: no client gets it
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


async def describe_groups(node: Node, request: DescribeGroupsRequest, context: Context) -> Answer:
    """DescribeGroups."""
    groups = await node.services.groups.describe([str(group) for group in request.groups])
    with_operations = request.include_authorized_operations
    return {
        "groups": [_described(group, context, with_operations=with_operations) for group in groups]
    }


async def delete_groups(node: Node, request: DeleteGroupsRequest, _context: Context) -> Answer:
    """DeleteGroups."""
    group_ids = [str(group) for group in request.groups_names]
    results = await node.services.groups.delete(group_ids)
    return {
        "results": [
            {
                "group_id": result.group_id,
                "error_code": INVALID_GROUP_ID if not result.group_id else code_of(result.error),
            }
            for result in results
        ]
    }


HANDLERS: dict[int, Handler] = {
    apis.JOIN_GROUP: join_group,
    apis.SYNC_GROUP: sync_group,
    apis.HEARTBEAT: heartbeat,
    apis.LEAVE_GROUP: leave_group,
    apis.LIST_GROUPS: list_groups,
    apis.DESCRIBE_GROUPS: describe_groups,
    apis.DELETE_GROUPS: delete_groups,
}
