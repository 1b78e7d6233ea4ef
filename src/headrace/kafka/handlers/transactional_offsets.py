"""TxnOffsetCommit: offset commits as part of a producer's transaction.

Invariants: as in `group_offsets`. Before anything is stored, the transaction's coordinator has to
know that the group's partition takes part: it is verified or, for a client of transaction version
2, added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.fair_shares import user_of
from headrace.coordination.groups.commands import OffsetToCommit, TransactionalCommitCommand
from headrace.errors import (
    CoordinatorUnavailable,
    HeadraceError,
    MemberEpochStale,
    TransactionUnverified,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import ILLEGAL_GENERATION, NONE, code_of
from headrace.kafka.handlers.group_offsets import note_commit, topic_name
from headrace.kafka.handlers.groups import ensure_offsets_topic
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.node import Node
    from headrace.coordination.groups.commands import CommitReply
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.messages import (
        TxnOffsetCommitRequest,
        TxnOffsetCommitRequest_TxnOffsetCommitRequestTopic,
    )
    from headrace.kafka.wire.schema import Answer

ADDING_SINCE = 5
"""Clients of transaction version 2 do not send AddOffsetsToTxn first."""
TOPIC_IDS_SINCE = 6
"""Topics are named by their ids (KIP-1319)."""


async def txn_offset_commit(
    node: Node, request: TxnOffsetCommitRequest, context: Context
) -> Answer:
    """TxnOffsetCommit: errors are returned per partition."""
    await ensure_offsets_topic(node)
    codes: dict[tuple[str | UUID | None, int], int] = {}
    offsets: list[OffsetToCommit] = []
    has_ids = context.version >= TOPIC_IDS_SINCE

    def key(topic: TxnOffsetCommitRequest_TxnOffsetCommitRequestTopic) -> str | UUID | None:
        return topic.topic_id if has_ids else topic.name

    for topic in request.topics:
        for item in topic.partitions:
            try:
                name = topic_name(node, topic, has_ids=has_ids)
                known = node.services.topics.readable.get(name)
                known.check_partition(item.partition_index)
            except HeadraceError as error:
                codes[key(topic), item.partition_index] = code_of(error)
                continue
            offsets.append(
                OffsetToCommit(
                    known.name,
                    item.partition_index,
                    item.committed_offset,
                    item.committed_leader_epoch,
                    item.committed_metadata,
                    known.id,
                )
            )
    command = TransactionalCommitCommand(
        request.group_id,
        request.producer_id,
        request.producer_epoch,
        request.generation_id_or_member_epoch,
        request.member_id,
        request.group_instance_id,
        offsets,
    )
    reply = await _commit_verified(node, request, context, command)
    for sent, result in zip(offsets, reply.results, strict=True):
        place = sent.topic_id if has_ids else sent.topic, sent.partition
        codes[place] = _code(result.error, context.version)
    note_commit(node, context, command, sum(code != NONE for code in codes.values()))
    return {
        "topics": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "error_code": codes[key(topic), item.partition_index],
                    }
                    for item in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def _commit_verified(
    node: Node, request: Any, context: Context, command: TransactionalCommitCommand
) -> CommitReply:
    """Have the transaction's coordinator verify the group's partition, then commit."""
    number = node.services.groups.partition_for(request.group_id)
    held = node.services.topics.get(OFFSETS_TOPIC).require_log(number)
    # A marker that arrives before the offsets are appended invalidates the coordinator's answer.
    held.begin_verification(request.producer_id)
    refusal = await node.services.transaction_checks.check(
        request.transactional_id,
        (request.producer_id, request.producer_epoch),
        frozenset({(OFFSETS_TOPIC, number)}),
        is_adding=context.version >= ADDING_SINCE,
    )
    if refusal is None:
        return await node.services.groups.submit(command, user_of(context.session))
    held.end_verification(request.producer_id)
    return command.refused(refusal)


def _code(error: HeadraceError | None, version: int) -> int:
    if isinstance(error, TransactionUnverified):
        # An error that clients of this API retry.
        error = CoordinatorUnavailable(str(error))
    elif isinstance(error, MemberEpochStale) and version < TOPIC_IDS_SINCE:
        return ILLEGAL_GENERATION  # as in Kafka: older clients do not know the other
    return code_of(error)


HANDLERS: dict[int, Handler] = {apis.TXN_OFFSET_COMMIT: txn_offset_commit}
