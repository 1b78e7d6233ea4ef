"""TxnOffsetCommit: offset commits as part of a producer's transaction.

Invariants: as in `group_offsets`. Before anything is stored, the transaction's coordinator has to
know that the group's partition takes part: it is verified or, for a client of transaction version
2, added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.coordination.groups.commands import OffsetToCommit, TransactionalCommitCommand
from headrace.errors import CoordinatorUnavailable, HeadraceError, TransactionUnverified
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of
from headrace.kafka.handlers.groups import ensure_offsets_topic
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.coordination.groups.commands import CommitReply
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

ADDING_SINCE = 5
"""Clients of transaction version 2 do not send AddOffsetsToTxn first."""


async def txn_offset_commit(node: Node, request: Any, context: Context) -> Answer:
    """TxnOffsetCommit: errors are returned per partition."""
    await ensure_offsets_topic(node)
    codes: dict[tuple[str, int], int] = {}
    offsets: list[OffsetToCommit] = []
    for topic in request.topics:
        for item in topic.partitions:
            place = topic.name, item.partition_index
            try:
                known = node.topics.get(topic.name)
                known.check_partition(item.partition_index)
            except HeadraceError as error:
                codes[place] = code_of(error)
                continue
            offsets.append(
                OffsetToCommit(
                    *place,
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
        request.generation_id,
        request.member_id,
        request.group_instance_id,
        offsets,
    )
    reply = await _commit_verified(node, request, context, command)
    codes.update(((r.topic, r.partition), _code(r.error)) for r in reply.results)
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": item.partition_index,
                        "error_code": codes[topic.name, item.partition_index],
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
    number = node.groups.partition_for(request.group_id)
    held = node.topics.get(OFFSETS_TOPIC).require_log(number)
    # A marker that arrives before the offsets are appended invalidates the coordinator's answer.
    held.begin_verification(request.producer_id)
    refusal = await node.transaction_checks.check(
        request.transactional_id,
        (request.producer_id, request.producer_epoch),
        frozenset({(OFFSETS_TOPIC, number)}),
        is_adding=context.version >= ADDING_SINCE,
    )
    if refusal is None:
        return await node.groups.commit_in_transaction(command)
    held.end_verification(request.producer_id)
    return command.refused(refusal)


def _code(error: HeadraceError | None) -> int:
    if isinstance(error, TransactionUnverified):
        # An error that clients of this API retry.
        error = CoordinatorUnavailable(str(error))
    return code_of(error)


HANDLERS: dict[int, Handler] = {apis.TXN_OFFSET_COMMIT: txn_offset_commit}
