"""The transaction APIs: requests become commands of the coordinator, its replies become responses.

Invariants: contains no rules of transactions; those are in `coordination/transactions`. Clients
that do not know PRODUCER_FENCED get INVALID_PRODUCER_EPOCH, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.coordination.kit.machine import EndsTransaction
from headrace.coordination.transactions.commands import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    AddPartitionsCommand,
    DescribeTransactionCommand,
    EndTransactionCommand,
    ListTransactionsCommand,
    TransactionDescription,
)
from headrace.coordination.transactions.state_records import STATE_NAMES, Partition
from headrace.errors import GroupIdInvalid, HeadraceError, TopicUnknown
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    NONE,
    OPERATION_NOT_ATTEMPTED,
    TRANSACTION_ABORTABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    code_of,
)
from headrace.kafka.handlers.producers import fencing_code
from headrace.kafka.peers.client import by_topic
from headrace.records.identifiers import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

FENCED_SINCE = 2
"""The first version of these APIs whose clients know PRODUCER_FENCED."""
BATCHED_SINCE = 4
"""AddPartitionsToTxn between brokers, and from clients that know transaction version 2."""
BUMPING_SINCE = 5
"""EndTxn of transaction version 2."""


# --- AddPartitionsToTxn, AddOffsetsToTxn ---------------------------------------------------------


async def add_partitions_to_txn(node: Node, request: Any, context: Context) -> Answer:
    """AddPartitionsToTxn: one transaction, or from v4 on several, to add or to verify."""
    if context.version >= BATCHED_SINCE:
        results = await gather_charged(_add_batched(node, item) for item in request.transactions)
        return {"error_code": NONE, "results_by_transaction": results}
    topics = request.v3_and_below_topics
    code, codes = await _add(
        node,
        AddPartitionsCommand(
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            _partitions(topics),
            client_version=TRANSACTION_VERSION_1,
        ),
    )
    code = fencing_code(code, context.version, FENCED_SINCE)
    return {"results_by_topic_v3_and_below": _topic_results(topics, code, codes)}


async def _add_batched(node: Node, item: Any) -> dict[str, Any]:
    code, codes = await _add(
        node,
        AddPartitionsCommand(
            item.transactional_id,
            item.producer_id,
            item.producer_epoch,
            _partitions(item.topics),
            item.verify_only,
            TRANSACTION_VERSION_2,
        ),
    )
    return {
        "transactional_id": item.transactional_id,
        "topic_results": _topic_results(item.topics, code, codes),
    }


async def _add(node: Node, command: AddPartitionsCommand) -> tuple[int, dict[Partition, int]]:
    """(the code of all partitions, codes of individual partitions that differ)."""
    codes: dict[Partition, int] = {}
    if not command.is_verify_only:
        for name, number in command.partitions:
            if not _is_writable(node, name, number):
                codes[name, number] = UNKNOWN_TOPIC_OR_PARTITION
        if codes:
            return OPERATION_NOT_ATTEMPTED, codes
    reply = await node.services.transactions.submit(command)
    codes = dict.fromkeys(reply.absent, TRANSACTION_ABORTABLE)
    return code_of(reply.error), codes


def _is_writable(node: Node, name: str, number: int) -> bool:
    """Whether a transaction may add the partition. Of the internal topics only that of offsets."""
    if name == TRANSACTIONS_TOPIC:
        return False
    try:
        node.services.topics.get(name).check_partition(number)
    except TopicUnknown:
        return False
    return True


def _partitions(topics: Any) -> frozenset[Partition]:
    return frozenset((topic.name, number) for topic in topics for number in topic.partitions)


def _topic_results(topics: Any, code: int, codes: dict[Partition, int]) -> list[dict[str, Any]]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {
                    "partition_index": number,
                    "partition_error_code": codes.get((topic.name, number), code),
                }
                for number in topic.partitions
            ],
        }
        for topic in topics
    ]


async def add_offsets_to_txn(node: Node, request: Any, context: Context) -> Answer:
    """AddOffsetsToTxn: add the group's partition of `__consumer_offsets` to the transaction."""
    error: HeadraceError | None = None
    try:
        if not request.group_id:
            raise GroupIdInvalid("a group id must not be empty")
        await node.services.topics.create_internal(OFFSETS_TOPIC)
        place = OFFSETS_TOPIC, node.services.groups.partition_for(request.group_id)
        reply = await node.services.transactions.submit(
            AddPartitionsCommand(
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                frozenset({place}),
            )
        )
        error = reply.error
    except HeadraceError as refused:
        error = refused
    return {"error_code": fencing_code(code_of(error), context.version, FENCED_SINCE)}


# --- EndTxn, WriteTxnMarkers ---------------------------------------------------------------------


async def end_txn(node: Node, request: Any, context: Context) -> Answer:
    """EndTxn: commit or abort; from v5 on returns the epoch to continue with."""
    is_bumping = context.version >= BUMPING_SINCE
    reply = await node.services.transactions.submit(
        EndTransactionCommand(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            TRANSACTION_VERSION_2 if is_bumping else TRANSACTION_VERSION_1,
        )
    )
    return {
        "error_code": fencing_code(code_of(reply.error), context.version, FENCED_SINCE),
        "producer_id": reply.producer_id if is_bumping else -1,
        "producer_epoch": reply.producer_epoch if is_bumping else -1,
    }


async def write_txn_markers(node: Node, request: Any, _context: Context) -> Answer:
    """WriteTxnMarkers: from another broker's coordinator, or from an administrator."""
    markers = [
        (
            EndsTransaction(
                item.producer_id,
                item.producer_epoch,
                item.coordinator_epoch,
                item.transaction_result,
                max(item.transaction_version, TRANSACTION_VERSION_1),
            ),
            [(topic.name, number) for topic in item.topics for number in topic.partition_indexes],
        )
        for item in request.markers
    ]
    outcomes = await gather_charged(node.services.markers.write(*marker) for marker in markers)
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {
                                "partition_index": number,
                                "error_code": code_of(outcome[topic, number]),
                            }
                            for number in numbers
                        ],
                    }
                    for topic, numbers in by_topic(partitions).items()
                ],
            }
            for (marker, partitions), outcome in zip(markers, outcomes, strict=True)
        ]
    }


# --- administration ------------------------------------------------------------------------------


async def describe_transactions(node: Node, request: Any, _context: Context) -> Answer:
    """DescribeTransactions."""
    ids, submit = dict.fromkeys(request.transactional_ids), node.services.transactions.submit
    return {
        "transaction_states": [
            _described(await submit(DescribeTransactionCommand(transactional_id)))
            for transactional_id in ids
        ]
    }


def _described(found: TransactionDescription) -> dict[str, Any]:
    return {
        "error_code": code_of(found.error),
        "transactional_id": found.transactional_id,
        "transaction_state": found.state,
        "transaction_timeout_ms": found.timeout_ms,
        "transaction_start_time_ms": found.started_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": [
            {"topic": topic, "partitions": numbers}
            for topic, numbers in by_topic(found.partitions).items()
        ],
    }


async def list_transactions(node: Node, request: Any, context: Context) -> Answer:
    """ListTransactions, of the coordinators on this broker; with a pattern since v2 (KIP-1152)."""
    states = frozenset(request.state_filters)
    unknown = sorted(states.difference(STATE_NAMES))
    command = ListTransactionsCommand(
        states,
        frozenset(request.producer_id_filters),
        request.duration_filter,
    )
    pattern = request.transactional_id_pattern if context.version >= 2 else None
    reply = await node.services.transactions.list_transactions(command, pattern or "")
    return {
        "error_code": code_of(reply.error),
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": item.transactional_id,
                "producer_id": item.producer_id,
                "transaction_state": item.state,
            }
            for item in reply.transactions
        ],
    }


HANDLERS: dict[int, Handler] = {
    apis.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    apis.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    apis.END_TXN: end_txn,
    apis.WRITE_TXN_MARKERS: write_txn_markers,
    apis.DESCRIBE_TRANSACTIONS: describe_transactions,
    apis.LIST_TRANSACTIONS: list_transactions,
}
