"""Reads the records in the journal of a partition's share groups, for those who only look.

Invariants: reads the journal, never changes it. The loop runs other work after every part, which
takes a few milliseconds at most.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.shares.state_records import decode
from headrace.errors import RecordInvalid
from headrace.records.batch import iterate_headers
from headrace.records.codec import checked_payload, iterate_payload

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from headrace.coordination.shares.state_records import StoredRecord
    from headrace.log.partition_log import PartitionLog
    from headrace.records.codec import Record

READ_BYTES: Final = 64 * 1024
PART_BYTES: Final = 4096
"""Of values, and of RECORD_BYTES for each record: 100 small records, or 1,000 runs of one."""
RECORD_BYTES: Final = 40
"""The cost of a record, expressed in bytes of values."""


class StoredAt(NamedTuple):
    """A record of a journal."""

    offset: int
    timestamp_ms: int
    stored: StoredRecord | None
    """None: not readable, or not known to this version."""


class JournalPart(NamedTuple):
    """The next records, and the offset after them."""

    records: list[StoredAt]
    end: int
    is_gap: bool = False
    """The journal was compacted up to `end` before the records up to there were read."""


async def journal_parts(
    journal: PartitionLog, start: int, end: int
) -> AsyncGenerator[JournalPart, None]:
    """The records of a loaded journal from `start` to `end` (exclusive); after a gap, to the high
    watermark. Raises what reading raises."""
    at = start
    while at < end:
        begin, fetched = await journal.reader.fetch_from(at, READ_BYTES)
        if begin != at:
            at, end = begin, journal.high_watermark
            yield JournalPart([], begin, is_gap=True)
        data = bytes(fetched.data)
        if not data:
            return  # everything was deleted during the read
        for position, header in iterate_headers(data):
            if header.base_offset >= end:
                return
            records: list[StoredAt] = []
            size_bytes = 0
            for some in iterate_payload(checked_payload(data, position)[0], header, at):
                for record in some:
                    if record.offset < at:
                        continue
                    records.append(_stored(record))
                    size_bytes += RECORD_BYTES + len(record.value or b"")
                    if size_bytes >= PART_BYTES:
                        yield JournalPart(records, record.offset + 1)
                        await asyncio.sleep(0)
                        records, size_bytes = [], 0
            at = header.last_offset + 1
            if records:
                yield JournalPart(records, at)
                await asyncio.sleep(0)


def _stored(record: Record) -> StoredAt:
    try:
        stored = decode(record.key, record.value) if record.key else None
    except RecordInvalid:  # as when the journal is replayed
        stored = None
    return StoredAt(record.offset, record.timestamp_ms, stored)
