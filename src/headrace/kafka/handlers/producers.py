"""InitProducerId: ids of idempotent and of transactional producers (KIP-98, KIP-360)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.services.fair_shares import user_of
from headrace.coordination.transactions.commands import InitProducerIdCommand
from headrace.coordination.transactions.state_records import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from headrace.errors import HeadraceError, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, code_of
from headrace.records.identifiers import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.messages import InitProducerIdRequest
    from headrace.kafka.wire.schema import Answer

FENCED_SINCE = 4
"""The first version whose clients know PRODUCER_FENCED."""


def fencing_code(code: int, version: int, known_since: int) -> int:
    """PRODUCER_FENCED, or INVALID_PRODUCER_EPOCH for older clients that do not know it."""
    return INVALID_PRODUCER_EPOCH if code == PRODUCER_FENCED and version < known_since else code


async def init_producer_id(node: Node, request: InitProducerIdRequest, context: Context) -> Answer:
    """A new id; for a transactional id, the next epoch of its existing one.

    As in Kafka, an idempotent producer always gets a new id, whichever it names: only the record of
    a transactional id says which producer id is whose.
    """
    producer_id, epoch = -1, -1
    error: HeadraceError | None = None
    try:
        if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
            raise RequestInvalid("a producer id and its epoch must be sent together")
        if (name := request.transactional_id) is not None:
            producer_id, epoch = await _init_transactional(node, name, request, context)
        else:
            producer_id, epoch = await node.services.producer_ids.take(), 0
    except HeadraceError as refused:
        error = refused
    return {
        "error_code": fencing_code(code_of(error), context.version, FENCED_SINCE),
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "ongoing_txn_producer_id": -1,
        "ongoing_txn_producer_epoch": -1,
    }


async def _init_transactional(
    node: Node, transactional_id: str, request: InitProducerIdRequest, context: Context
) -> tuple[int, int]:
    await node.services.topics.create_internal(TRANSACTIONS_TOPIC)
    command = InitProducerIdCommand(
        transactional_id,
        request.transaction_timeout_ms,
        request.producer_id,
        request.producer_epoch,
    )
    reply = await node.services.transactions.submit(command, user_of(context.session))
    if reply.error is not None:
        raise reply.error
    return reply.producer_id, reply.producer_epoch


HANDLERS: dict[int, Handler] = {apis.INIT_PRODUCER_ID: init_producer_id}
