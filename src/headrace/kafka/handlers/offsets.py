"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

Invariants: offsets of logs; `group_offsets` handles those of groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import (
    HeadraceError,
    PolicyViolation,
    VersionUnsupported,
)
from headrace.kafka import apis
from headrace.kafka.error_codes import code_of
from headrace.log.largest_timestamp import offset_of_max_timestamp
from headrace.log.reading import (
    TimedOffset,
    end_offset_of_epoch,
    epoch_of_offset,
)
from headrace.log.tiering import (
    first_pending_offset,
    last_offloaded_offset,
    local_start_offset,
)

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer
    from headrace.log.partition_log import PartitionLog


_FIRST_VERSIONS = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11}
"""Special timestamps of ListOffsets, and the first version that supports each: -3 since KIP-734, -4
KIP-405, -5 KIP-1005, -6 KIP-1023, as in Kafka 4.2."""


def _check_timestamp(timestamp_ms: int, version: int) -> None:
    if timestamp_ms < 0 and version < _FIRST_VERSIONS.get(timestamp_ms, version + 1):
        raise VersionUnsupported(
            f"ListOffsets v{version} does not support timestamp {timestamp_ms}"
        )


async def _offset(partition: PartitionLog, timestamp_ms: int, isolation: int) -> TimedOffset:
    match timestamp_ms:
        case -1:  # latest
            return TimedOffset(-1, partition.visibility.bound(isolation).offset)
        case -2:  # earliest
            return TimedOffset(-1, partition.log_start_offset)
        case -3:  # max timestamp
            return await offset_of_max_timestamp(partition, isolation)
        case -4:  # earliest local (KIP-405)
            return TimedOffset(-1, local_start_offset(partition))
        case -5:  # latest tiered (KIP-1005)
            return TimedOffset(-1, last_offloaded_offset(partition))
        case -6:  # earliest pending upload (KIP-1023)
            return TimedOffset(-1, first_pending_offset(partition))
        case _:
            return await partition.reader.offset_of_time(timestamp_ms, isolation)


async def list_offsets(node: Node, request: Any, context: Context) -> Answer:
    """ListOffsets: earliest, latest, by timestamp, of the largest timestamp."""
    topics: list[dict[str, Any]] = []
    isolation = request.isolation_level  # since version 2
    for topic in request.topics:
        partitions: list[dict[str, Any]] = []
        for item in topic.partitions:
            found, epoch = TimedOffset(-1, -1), -1
            error: HeadraceError | None = None
            try:
                name, number = topic.name, item.partition_index
                partition = await node.services.topics.readable_log(name, number)
                partition.check_leader_epoch(item.current_leader_epoch)
                _check_timestamp(item.timestamp, context.version)
                found = await _offset(partition, item.timestamp, isolation)
                epoch = epoch_of_offset(partition, found.offset) if found.offset >= 0 else -1
            except HeadraceError as refused:
                error = refused
            partitions.append(
                {
                    "partition_index": item.partition_index,
                    "error_code": code_of(error),
                    "timestamp": found.timestamp_ms,
                    "offset": found.offset,
                    "leader_epoch": epoch,
                }
            )
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def offset_for_leader_epoch(node: Node, request: Any, _context: Context) -> Answer:
    """OffsetForLeaderEpoch: the end of an epoch, by which a consumer detects truncation."""
    topics: list[dict[str, Any]] = []
    for topic in request.topics:
        partitions: list[dict[str, Any]] = []
        for item in topic.partitions:
            epoch, end_offset = -1, -1
            error: HeadraceError | None = None
            try:
                partition = await node.services.topics.readable_log(topic.topic, item.partition)
                partition.check_leader_epoch(item.current_leader_epoch)
                epoch, end_offset = end_offset_of_epoch(partition, item.leader_epoch)
            except HeadraceError as refused:
                error = refused
            partitions.append(
                {
                    "error_code": code_of(error),
                    "partition": item.partition,
                    "leader_epoch": epoch,
                    "end_offset": end_offset,
                }
            )
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


async def delete_records(node: Node, request: Any, _context: Context) -> Answer:
    """DeleteRecords: advance the log start offset; -1: to the high watermark."""
    topics: list[dict[str, Any]] = []
    for topic in request.topics:
        partitions: list[dict[str, Any]] = []
        for item in topic.partitions:
            low_watermark = -1
            error: HeadraceError | None = None
            try:
                known = node.services.topics.find(topic.name)
                if known is not None and known.is_internal:
                    raise PolicyViolation(
                        f"{topic.name} is an internal topic: its records cannot be deleted"
                    )
                partition = await node.services.topics.log(topic.name, item.partition_index)
                offset = partition.high_watermark if item.offset == -1 else item.offset
                await partition.trim(offset)
                low_watermark = partition.log_start_offset
            except HeadraceError as refused:
                error = refused
            partitions.append(
                {
                    "partition_index": item.partition_index,
                    "low_watermark": low_watermark,
                    "error_code": code_of(error),
                }
            )
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


HANDLERS: dict[int, Handler] = {
    apis.LIST_OFFSETS: list_offsets,
    apis.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    apis.DELETE_RECORDS: delete_records,
}
