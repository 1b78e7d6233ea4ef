"""InitProducerId: ids for idempotent producers (KIP-98, KIP-360)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context
    from headrace.kafka.wire.schema import Answer

INT16_MAX = 2**15 - 1


async def init_producer_id(node: Node, request: Any, _context: Context) -> Answer:
    """A new id, or the next epoch of the id that the producer has already."""
    producer_id, epoch = -1, -1
    error: HeadraceError | None = None
    try:
        if request.transactional_id is not None:
            raise RequestInvalid("this broker has no transactions yet")
        known, known_epoch = getattr(request, "producer_id", -1), -1
        if known >= 0:
            known_epoch = request.producer_epoch
        if known >= 0 and 0 <= known_epoch < INT16_MAX - 1:
            producer_id, epoch = known, known_epoch + 1
        else:
            producer_id, epoch = await node.producer_ids.take(), 0
    except HeadraceError as refused:
        error = refused
    return {"error_code": code_of(error), "producer_id": producer_id, "producer_epoch": epoch}


HANDLERS = {apis.INIT_PRODUCER_ID: init_producer_id}
