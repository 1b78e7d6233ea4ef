"""Decodes stored batches in turns of the event loop.

Invariants: batches come from clients, and some kilobytes may hold a million records: few are
objects at a time, others have the loop between two parts, and what becomes large is decompressed in
a thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.errors import BatchCorrupt, BatchExpandsTooFar
from headrace.records.batch import read_header
from headrace.records.codec import (
    DECODED_AT_ONCE,
    PayloadCursor,
    checked_payload,
    iterate_payload,
)
from headrace.records.skipping import record_position
from headrace.records.validation import INLINE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headrace.records.batch import BatchHeader, Buffer
    from headrace.records.codec import Record

OFFSET_LAST: Final = 2**63 - 1
PASSED_AT_ONCE: Final = 4_096
"""Records before the first one: 1 ms."""


async def decoded_parts(
    batch: Buffer, first: int = 0, last: int = OFFSET_LAST
) -> AsyncGenerator[list[Record], None]:
    """The records of the batch at the start of `batch`, in order, DECODED_AT_ONCE at a time; those
    before offset `first` and after `last` may be omitted.

    Raises BatchCorrupt, also after a part; UnsupportedForMessageFormat.
    """
    payload, header = await _opened(batch)
    place = await _passed(payload, header, first)
    for records in iterate_payload(payload, header, first, last, place):
        yield records
        if len(records) == DECODED_AT_ONCE:
            await asyncio.sleep(0)


async def _passed(payload: bytes, header: BatchHeader, first: int) -> PayloadCursor | None:
    """A place near the record at offset `first`; None if the batch has gaps. Raises BatchCorrupt.

    A receive that learns a large batch in parts passes over more records each time.
    """
    if header.record_count != header.last_offset_delta + 1:
        return None
    place = PayloadCursor()
    index = min(first - header.base_offset, header.record_count)
    try:
        while index - place.index > PASSED_AT_ONCE:
            place.at = record_position(payload, PASSED_AT_ONCE, place.at)
            place.index += PASSED_AT_ONCE
            await asyncio.sleep(0)
    except IndexError:
        base = header.base_offset
        raise BatchCorrupt("the batch ends inside a record", offset=base) from None
    return place


async def first_at_time(batch: Buffer, timestamp_ms: int, start: int) -> Record | None:
    """The first record from offset `start` on that is not older; None without one, or if the batch
    cannot be decoded."""
    found: Record | None = None
    try:
        async for records in decoded_parts(batch):
            if found is None:
                late = (one for one in records if one.timestamp_ms >= timestamp_ms)
                found = next((one for one in late if one.offset >= start), None)
    except BatchCorrupt:
        return None
    return found


async def _opened(batch: Buffer) -> tuple[bytes, BatchHeader]:
    if read_header(batch).size <= INLINE_BYTES_MAX:
        try:
            return checked_payload(batch, 0, INLINE_BYTES_MAX)
        except BatchExpandsTooFar:
            pass
    return await asyncio.to_thread(checked_payload, batch, 0)
