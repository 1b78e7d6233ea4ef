"""OffsetCommit, OffsetFetch, OffsetDelete: the committed offsets of groups.

Invariants: as in `groups`. Topic ids (v10) are resolved to names here, since offsets are stored by
name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.fair_shares import user_of
from headrace.coordination.groups.commands import (
    CommitCommand,
    FetchedOffset,
    OffsetToCommit,
)
from headrace.errors import HeadraceError, TopicIdUnknown
from headrace.kafka import apis
from headrace.kafka.error_codes import NONE, UNKNOWN_TOPIC_OR_PARTITION, code_of

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.node import Node
    from headrace.coordination.groups.commands import TransactionalCommitCommand
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

TOPIC_IDS_SINCE = 10
"""The first version of OffsetCommit and OffsetFetch that identifies topics by id."""


def topic_name(node: Node, item: Any, *, has_ids: bool) -> str:
    """The name of a topic that a request identifies by name or, in newer versions, by id."""
    if not has_ids:
        return str(item.name)
    topic_id: UUID | None = item.topic_id
    if topic_id is None:
        raise TopicIdUnknown("the topic id is zero: send a valid topic id")
    return node.services.topics.readable.get_by_id(topic_id).name


def note_commit(
    node: Node,
    context: Context,
    command: CommitCommand | TransactionalCommitCommand,
    failed_count: int,
) -> None:
    """Have the audit log tell of offsets that are committed by no member of the group, whatever its
    id: as tools do that reset a group."""
    if command.generation >= 0:
        return
    resources = [command.group_id, *sorted({one.topic for one in command.offsets})]
    request = apis.APIS[context.api_key].name
    node.services.audit.changed_frequently(context.session, request, resources, failed_count)


async def offset_commit(node: Node, request: Any, context: Context) -> Answer:
    """OffsetCommit: errors are returned per partition."""
    errors: dict[tuple[int, int], HeadraceError | None] = {}
    named: list[tuple[int, int]] = []
    offsets: list[OffsetToCommit] = []
    for at, topic in enumerate(request.topics):
        try:
            name = topic_name(node, topic, has_ids=context.version >= TOPIC_IDS_SINCE)
        except HeadraceError as error:
            errors.update(((at, number), error) for number in range(len(topic.partitions)))
            continue
        for number, item in enumerate(topic.partitions):
            named.append((at, number))
            offsets.append(
                OffsetToCommit(
                    name,
                    item.partition_index,
                    item.committed_offset,
                    item.committed_leader_epoch,
                    item.committed_metadata,
                )
            )
    command = CommitCommand(
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        offsets,
    )
    reply = await node.services.groups.commit(command, user_of(context.session))
    for place, result in zip(named, reply.results, strict=True):
        errors[place] = result.error
    note_commit(node, context, command, sum(error is not None for error in errors.values()))
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
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
    node: Node, request: Any, context: Context, *, require_stable: bool
) -> tuple[int, list[dict[str, Any]]]:
    """(error code, topics) of one group; topics None: all."""
    topics = request.topics
    if context.version < 2 and topics is None:
        topics = ()
    member_id = getattr(request, "member_id", None)
    member = None if member_id is None else (member_id, request.member_epoch)
    unknown: list[dict[str, Any]] = []
    wanted: list[tuple[str, int]] | None = None
    if topics is not None:
        wanted = []
        for topic in topics:
            try:
                name = topic_name(node, topic, has_ids=context.version >= TOPIC_IDS_SINCE)
            except HeadraceError as error:
                unknown.append(_no_offsets(topic, code_of(error)))
                continue
            wanted.extend((name, number) for number in topic.partition_indexes)
    reply = await node.services.groups.offsets(
        request.group_id, wanted, require_stable=require_stable, member=member
    )
    by_topic: dict[str, list[FetchedOffset]] = {}
    for offset in reply.offsets:
        by_topic.setdefault(offset.topic, []).append(offset)
    answers: list[dict[str, Any]] = []
    for name, offsets in by_topic.items():
        known = node.services.topics.readable.find(name)
        if known is None and context.version >= TOPIC_IDS_SINCE:
            continue  # its topic was deleted, so it has no id to return
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
        "name": topic.name,
        "topic_id": topic.topic_id,
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
    stable: bool = request.require_stable
    if context.version < 8:
        error_code, answers = await _fetch_offsets(node, request, context, require_stable=stable)
        if error_code != NONE and context.version < 2:
            answers = [_no_offsets(topic, error_code) for topic in request.topics or ()]
        return {"error_code": error_code, "topics": answers}
    groups: list[dict[str, Any]] = []
    for group in request.groups:
        error_code, answers = await _fetch_offsets(node, group, context, require_stable=stable)
        groups.append({"group_id": group.group_id, "topics": answers, "error_code": error_code})
    return {"groups": groups}


async def offset_delete(node: Node, request: Any, _context: Context) -> Answer:
    """OffsetDelete (KIP-496)."""
    wanted = [
        (topic.name, item.partition_index) for topic in request.topics for item in topic.partitions
    ]
    reply = await node.services.groups.delete_offsets(request.group_id, wanted)
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


HANDLERS: dict[int, Handler] = {
    apis.OFFSET_COMMIT: offset_commit,
    apis.OFFSET_FETCH: offset_fetch,
    apis.OFFSET_DELETE: offset_delete,
}
