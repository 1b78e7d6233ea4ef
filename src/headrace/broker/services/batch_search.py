"""Selects records of one batch, within bounds; large batches are read in a thread.

Invariants: pure except for the thread. A batch is decompressed once, and the selected records are
bounded by count and bytes, however large it becomes. Batches come from clients: a small one may
decompress to DECOMPRESSED_BYTES_MAX.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.shares.held_batches import HeldBatch
from headrace.errors import BatchCorrupt
from headrace.records.batch import COMPRESSION_MASK, read_header
from headrace.records.codec import checked_payload, iterate_payload
from headrace.records.validation import INLINE_BYTES_MAX, INLINE_RECORDS_MAX
from headrace.runtime.slow_calls import loop_first

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.records.batch import BatchHeader
    from headrace.records.codec import PayloadCursor, Record

DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
OFFSET_LAST: Final = 2**63 - 1
OVERHEAD_BYTES: Final = 200
"""Per record in memory, besides its bytes."""


class Wanted(NamedTuple):
    """The records to select from a batch; the last one may exceed `bytes_max`."""

    first: int
    """The first offset."""
    last: int
    """The last offset."""
    count_max: int
    bytes_max: int
    matches: Callable[[Record], bool] | None = None
    """None: all records."""
    needles: Sequence[bytes] = ()
    """Byte strings that a batch must contain to have any match."""
    is_costly: bool = False
    """Whether `matches` may take milliseconds for a record: then never on the event loop."""


async def wanted_records(batch: bytes, wanted: Wanted) -> list[Record]:
    """The selected records of one batch, in order, up to the bounds.

    Raises BatchCorrupt, UnsupportedForMessageFormat.
    """
    if isinstance(batch, HeldBatch) and batch.opened is not None:
        payload, header, place = batch.opened
        if wanted.is_costly:
            with loop_first():
                return await asyncio.to_thread(_kept_of, payload, header, wanted, place)
        return _kept_of(payload, header, wanted, place)
    if (
        len(batch) <= INLINE_BYTES_MAX
        and read_header(batch).record_count <= INLINE_RECORDS_MAX
        and not wanted.is_costly
    ):
        try:
            return _kept(batch, wanted, INLINE_BYTES_MAX)
        except BatchCorrupt:
            if not read_header(batch).attributes & COMPRESSION_MASK:
                raise
            # It may be too large only for the inline path.
    with loop_first():
        return await asyncio.to_thread(_kept, batch, wanted, DECOMPRESSED_BYTES_MAX)


def record_bytes(record: Record) -> int:
    """Approximate size of a record in memory."""
    size = OVERHEAD_BYTES + len(record.key or b"") + len(record.value or b"")
    for name, value in record.headers:
        size += len(name)
        if value:
            size += len(value)
    return size


def _kept(batch: bytes, wanted: Wanted, decompressed_bytes_max: int) -> list[Record]:
    payload, header = checked_payload(batch, 0, decompressed_bytes_max)
    if isinstance(batch, HeldBatch):
        batch.note_opened(payload, header)
    return _kept_of(payload, header, wanted)


def _kept_of(
    payload: bytes, header: BatchHeader, wanted: Wanted, place: PayloadCursor | None = None
) -> list[Record]:
    kept: list[Record] = []
    if not all(needle in payload for needle in wanted.needles):
        return kept
    first, last, count_max, bytes_left, matches, _needles, _is_costly = wanted
    is_small = len(payload) + OVERHEAD_BYTES * header.record_count <= bytes_left
    for records in iterate_payload(payload, header, first, last, place):
        if (
            matches is None
            and is_small
            and first <= records[0].offset <= records[-1].offset <= last
        ):
            kept += records[: count_max - len(kept)]
            if len(kept) >= count_max:
                return kept
            continue
        for record in records:
            if first <= record.offset <= last and (matches is None or matches(record)):
                kept.append(record)
                bytes_left -= record_bytes(record)
                if len(kept) >= count_max or bytes_left <= 0:
                    return kept
    return kept
