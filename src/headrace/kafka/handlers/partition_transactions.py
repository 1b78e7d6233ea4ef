"""DescribeProducers: transactions as the owner of a partition sees them.

Invariants: knows partitions, not transactional ids: those belong to the transaction coordinators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.wire.codecs import Encoded
from headrace.kafka.wire.schema import encode_elements

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

_PRODUCER: Final = "ProducerState"


async def describe_producers(node: Node, request: Any, context: Context) -> Answer:
    """DescribeProducers: recent producers of a partition, and their open transactions (KIP-664)."""
    topics: list[dict[str, Any]] = []
    described: set[tuple[str, int]] = set()
    for topic in request.topics:
        partitions: list[dict[str, Any]] = []
        for number in topic.partition_indexes:
            if (topic.name, number) in described:
                continue  # again: each may have a million
            described.add((topic.name, number))
            error: HeadraceError | None = None
            found = Encoded()
            try:
                async for some in node.services.topics.producers(topic.name, number):
                    producers = [
                        {
                            "producer_id": one.producer_id,
                            "producer_epoch": one.epoch,
                            "last_sequence": one.last_sequence,
                            "last_timestamp": one.last_timestamp_ms,
                            "coordinator_epoch": one.coordinator_epoch,
                            "current_txn_start_offset": one.open_offset,
                        }
                        for one in some
                    ]
                    encode_elements(context.api_key, context.version, _PRODUCER, producers, found)
            except HeadraceError as refused:
                error = refused
            partitions.append(
                {
                    "partition_index": number,
                    "error_code": code_of(error),
                    "error_message": message_of(error),
                    "active_producers": found,
                }
            )
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_PRODUCERS: describe_producers,
}
