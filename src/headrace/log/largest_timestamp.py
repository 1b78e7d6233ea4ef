"""The record with the largest timestamp of a partition (KIP-734).

Invariants: the headers of segments and batches say where to look. Only the segment in which the log
starts is read, and only if its largest timestamp may be that of a deleted record.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import BatchCorrupt
from headrace.log.decoded_records import decoded_parts
from headrace.log.reading import NO_OFFSET, TimedOffset
from headrace.log.visibility import READ_UNCOMMITTED
from headrace.records.batch import read_header

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.records.batch import Buffer


async def offset_of_max_timestamp(
    log: PartitionLog, isolation: int = READ_UNCOMMITTED
) -> TimedOffset:
    """The first record with the largest timestamp of all that are left; (-1, -1) if there is
    none, or if it is not visible with this isolation."""
    left = [one for one in log.segments if one.end_offset > log.log_start_offset]
    found = await _find(log, [one.max_timestamp_ms for one in left], isolation)
    if found != NO_OFFSET or not left or left[0].base_offset >= log.log_start_offset:
        return found
    times = [one.max_timestamp_ms for one in left[1:]]
    return await _find(log, [*times, await _largest_left(log, left[0], isolation)], isolation)


async def _find(log: PartitionLog, times: list[int], isolation: int) -> TimedOffset:
    largest = max(times, default=-1)
    return await log.reader.offset_of_time(largest, isolation) if largest >= 0 else NO_OFFSET


async def _largest_left(log: PartitionLog, segment: Segment, isolation: int) -> int:
    """The largest timestamp of a segment's records that are not deleted; -1 if there is none."""
    offset, largest = segment.base_offset, -1
    while offset < min(segment.end_offset, log.visibility.bound(isolation).offset):
        _, (data, _) = await log.reader.fetch_from(offset, 1)
        header = read_header(data)
        if header.base_offset >= log.log_start_offset:
            largest = max(largest, header.max_timestamp_ms)
        else:
            largest = max(largest, await _largest_of(data, log.log_start_offset))
        offset = header.last_offset + 1
        await asyncio.sleep(0)
    return largest


async def _largest_of(batch: Buffer, first: int) -> int:
    largest = -1
    try:
        async for records in decoded_parts(batch, first):
            times = (one.timestamp_ms for one in records if one.offset >= first)
            largest = max(largest, max(times, default=-1))
    except BatchCorrupt:
        return -1
    return largest
