"""ShareGroupHeartbeat and ShareGroupDescribe: membership of share groups (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.fair_shares import user_of
from headrace.coordination.kit.member_epochs import JOIN_EPOCH
from headrace.coordination.shares.membership import (
    ASSIGNOR_NAME,
    Assignment,
    ShareHeartbeat,
    ShareMember,
)
from headrace.errors import HeadraceError
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.groups import GROUP_OPERATIONS, NOT_ASKED, ensure_offsets_topic

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer


def _by_topic(assignment: Assignment) -> dict[UUID, list[int]]:
    found: dict[UUID, list[int]] = {}
    for topic_id, number in assignment:
        found.setdefault(topic_id, []).append(number)
    return found


async def share_group_heartbeat(node: Node, request: Any, context: Context) -> Answer:
    """ShareGroupHeartbeat: join (epoch 0), stay, or leave (-1)."""
    await ensure_offsets_topic(node)
    beat = ShareHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        request.subscribed_topic_names,
        request.rack_id,
        context.client_id,
        f"/{context.client_host}",
    )
    try:
        members = node.services.share_members
        is_new = beat.member_epoch == JOIN_EPOCH and not members.exists(beat.group_id)
        if is_new and beat.group_id:
            await node.services.groups.check_is_free_for_shares(beat.group_id)
        answer = await members.heartbeat(beat, user_of(context.session))
    except HeadraceError as error:
        return {
            "error_code": code_of(error),
            "error_message": message_of(error),
            "member_id": request.member_id,
            "member_epoch": JOIN_EPOCH,
            "heartbeat_interval_ms": 0,
            "assignment": None,
        }
    assignment = answer.reply.assignment
    return {
        "error_code": 0,
        "error_message": None,
        "member_id": request.member_id,
        "member_epoch": answer.reply.member_epoch,
        "heartbeat_interval_ms": answer.interval_ms,
        "assignment": None
        if assignment is None
        else {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": numbers}
                for topic_id, numbers in _by_topic(assignment).items()
            ]
        },
    }


def _member(node: Node, member: ShareMember) -> dict[str, Any]:
    find = node.services.topics.readable.find_by_id
    return {
        "member_id": member.member_id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed,
        "assignment": {
            "topic_partitions": [
                {"topic_id": topic_id, "topic_name": topic.name, "partitions": numbers}
                for topic_id, numbers in _by_topic(member.assigned).items()
                if (topic := find(topic_id)) is not None
            ]
        },
    }


async def share_group_describe(node: Node, request: Any, _context: Context) -> Answer:
    """ShareGroupDescribe."""
    await ensure_offsets_topic(node)
    groups: list[dict[str, Any]] = []
    for group_id in request.group_ids:
        error: HeadraceError | None = None
        described: dict[str, Any] = {"group_epoch": 0, "members": [], "group_state": "Dead"}
        try:
            known = node.services.share_groups.members(group_id)
            described["group_epoch"] = known.epoch
            described["group_state"] = "Stable" if known.members else "Empty"
            described["members"] = [_member(node, member) for member in known.members.values()]
        except HeadraceError as refused:
            error = refused
        groups.append(
            {
                "error_code": code_of(error),
                "error_message": message_of(error),
                "group_id": group_id,
                "assignment_epoch": described["group_epoch"],
                "assignor_name": ASSIGNOR_NAME,
                "authorized_operations": GROUP_OPERATIONS
                if request.include_authorized_operations
                else NOT_ASKED,
                **described,
            }
        )
    return {"groups": groups}


HANDLERS: dict[int, Handler] = {
    apis.SHARE_GROUP_HEARTBEAT: share_group_heartbeat,
    apis.SHARE_GROUP_DESCRIBE: share_group_describe,
}
