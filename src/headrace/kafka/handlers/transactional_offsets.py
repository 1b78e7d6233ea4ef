"""TxnOffsetCommit: a group's progress as part of a producer's transaction.

Invariants: as in `group_offsets`. Before anything is stored the transaction's coordinator has to
know that the group's partition takes part: it is verified, or, for a client of transaction version
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
    from headrace.kafka.handlers.context import Context
    from headrace.kafka.wire.schema import Answer

ADDING_SINCE = 5
"""Clients of transaction version 2 send no AddOffsetsToTxn before."""


async def txn_offset_commit(node: Node, request: Any, context: Context) -> Answer:
    """TxnOffsetCommit: what a partition's error is, is said beside it."""
    await ensure_offsets_topic(node)
    codes: dict[tuple[str, int], int] = {}
    offsets: list[OffsetToCommit] = []
    for topic in request.topics:
        for item in topic.partitions:
            place = topic.name, item.partition_index
            try:
                known = node.topics.get(topic.name)
                known.require_partition(item.partition_index)
            except HeadraceError as error:
                codes[place] = code_of(error)
                continue
            offsets.append(
                OffsetToCommit(
                    *place,
                    item.committed_offset,
                    getattr(item, "committed_leader_epoch", -1),
                    item.committed_metadata,
                    known.id,
                )
            )
    command = TransactionalCommitCommand(
        request.group_id,
        request.producer_id,
        request.producer_epoch,
        getattr(request, "generation_id", -1),
        getattr(request, "member_id", ""),
        getattr(request, "group_instance_id", None),
        offsets,
    )
    refusal = await node.transaction_checks.check(
        request.transactional_id,
        (request.producer_id, request.producer_epoch),
        frozenset({(OFFSETS_TOPIC, node.groups.partition_for(request.group_id))}),
        is_adding=context.version >= ADDING_SINCE,
    )
    if isinstance(refusal, TransactionUnverified):
        # What clients of this API know to retry.
        refusal = CoordinatorUnavailable(str(refusal))
    if refusal is None:
        reply = await node.groups.commit_in_transaction(command)
    else:
        reply = command.refused(refusal)
    codes.update(((r.topic, r.partition), code_of(r.error)) for r in reply.results)
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


HANDLERS = {apis.TXN_OFFSET_COMMIT: txn_offset_commit}
