"""ConsumerGroupHeartbeat and ConsumerGroupDescribe: groups of the new protocol (KIP-848).

Invariants: as in `groups`. A client of version 1 generates its own member id; one of version 0 may
leave that to the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.fair_shares import user_of
from headrace.coordination.groups.consumer_commands import (
    ConsumerGroupDescription,
    ConsumerHeartbeatCommand,
    ConsumerHeartbeatReply,
    ConsumerMemberDescription,
    DescribeConsumerGroupsCommand,
)
from headrace.errors import RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.groups import describe_member_groups

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.messages import ConsumerGroupHeartbeatRequest
    from headrace.kafka.wire.schema import Answer

OWN_ID_SINCE = 1


def _owned(topics: Any) -> dict[UUID, frozenset[int]] | None:
    """The partitions that a member reports as owned; None: no report."""
    if topics is None:
        return None
    found: dict[UUID, frozenset[int]] = {}
    for topic in topics:
        if topic.topic_id is not None:
            found[topic.topic_id] = found.get(topic.topic_id, frozenset()) | {*topic.partitions}
    return found


async def consumer_group_heartbeat(
    node: Node, request: ConsumerGroupHeartbeatRequest, context: Context
) -> Answer:
    """ConsumerGroupHeartbeat: join (epoch 0), stay, or leave (-1, -2)."""
    await node.services.groups.ensure_offsets_topic()
    names = request.subscribed_topic_names
    command = ConsumerHeartbeatCommand(
        request.group_id,
        request.member_id,
        request.member_epoch,
        context.client_id,
        f"/{context.client_host}",
        request.instance_id,
        request.rack_id,
        request.rebalance_timeout_ms,
        None if names is None else [str(name) for name in names],
        request.subscribed_topic_regex,
        request.server_assignor,
        _owned(request.topic_partitions),
    )
    reply: ConsumerHeartbeatReply
    if context.version >= OWN_ID_SINCE and not command.member_id:
        reply = command.refused(RequestInvalid("a member of this version must send its own id"))
    else:
        reply = await node.services.groups.submit(command, user_of(context.session))
    assignment = reply.assignment
    return {
        "error_code": code_of(reply.error),
        "error_message": message_of(reply.error),
        "member_id": reply.member_id or None,
        "member_epoch": reply.member_epoch,
        "heartbeat_interval_ms": reply.heartbeat_interval_ms,
        "assignment": None
        if assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": numbers}
                for topic_id, numbers in assignment.items()
            ]
        },
    }


def _partitions(named: list[tuple[UUID, str, tuple[int, ...]]]) -> dict[str, Any]:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name, "partitions": numbers}
            for topic_id, name, numbers in named
        ]
    }


def _member(member: ConsumerMemberDescription) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.topics,
        "subscribed_topic_regex": member.pattern,
        "assignment": _partitions(member.assigned),
        "target_assignment": _partitions(member.target),
        "member_type": 0 if member.is_classic else 1,
    }


def _group(group: ConsumerGroupDescription) -> dict[str, Any]:
    return {"assignor_name": group.assignor, "members": [_member(one) for one in group.members]}


async def consumer_group_describe(node: Node, request: Any, _context: Context) -> Answer:
    """ConsumerGroupDescribe."""
    return await describe_member_groups(node, request, DescribeConsumerGroupsCommand, _group)


HANDLERS: dict[int, Handler] = {
    apis.CONSUMER_GROUP_HEARTBEAT: consumer_group_heartbeat,
    apis.CONSUMER_GROUP_DESCRIBE: consumer_group_describe,
}
