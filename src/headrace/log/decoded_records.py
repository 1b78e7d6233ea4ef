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
from headrace.records.codec import DECODED_AT_ONCE, checked_payload, iterate_payload
from headrace.records.validation import INLINE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headrace.records.batch import BatchHeader, Buffer
    from headrace.records.codec import Record

OFFSET_LAST: Final = 2**63 - 1


async def decoded_parts(
    batch: Buffer, first: int = 0, last: int = OFFSET_LAST
) -> AsyncGenerator[list[Record], None]:
    """The records of the batch at the start of `batch`, in order, DECODED_AT_ONCE at a time; those
    before offset `first` and after `last` may be omitted.

    Raises BatchCorrupt, also after a part; UnsupportedForMessageFormat.
    """
    payload, header = await _opened(batch)
    for records in iterate_payload(payload, header, first, last):
        yield records
        if len(records) == DECODED_AT_ONCE:
            await asyncio.sleep(0)


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
