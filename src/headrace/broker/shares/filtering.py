"""What a receive needs of the records that were read, in turns of the event loop: their rows, and
whether filters of the group and of the receive match them.

Invariants: changes no group. A batch of some kilobytes may hold a million records, and an
expression of the longest kind takes milliseconds for one with long headers. So few records are
decoded and matched at once, of a large batch only those that the receive may have, and others have
the loop between two parts; one such batch at a time is open on a broker, users in turns; and what
is done for one has a bound.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from headrace.broker.shares.share_reads import blind_rows, parts_by_batch, rows_of
from headrace.errors import HeadraceError
from headrace.log.decoded_records import decoded_parts
from headrace.records.batch import read_header
from headrace.records.validation import INLINE_BYTES_MAX
from headrace.runtime.fair_locks import FairLock, Hold
from headrace.runtime.slow_calls import loop_first

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.broker.shares.share_reads import BatchesRead, RowReader
    from headrace.coordination.shares.commands import RecordOrder
    from headrace.records.codec import Record
    from headrace.records.filters import Filter

log = logging.getLogger(__name__)

COST_AT_ONCE: Final = 8_192
"""Of filters times records: 4 records of the longest expressions, which may take 10 ms, and 200 of
ordinary ones."""
PARTS_MAX: Final = 256
"""Of the rows that are learned at a time: 3 s at worst, in which others wait for the same."""
ROWS_MAX: Final = 16_384
"""The same, of what has no filters; batches of fewer records are decoded at once, those that are
large in a thread."""


async def matching(records: Iterable[Record], filters: Sequence[Filter]) -> list[Record]:
    """Those that match all of the filters. Raises what iterating raises."""
    at_once = _at_once(filters)
    found: list[Record] = []
    for count, record in enumerate(records, 1):
        if all(one.matches(record.headers) for one in filters):
            found.append(record)
        if count % at_once == 0:
            await asyncio.sleep(0)
    return found


async def _first_rows(
    batch: bytes, start: int, reader: RowReader, rows_max: int
) -> list[RecordOrder]:
    """Raises as `decoded_parts`."""
    at_once = _at_once(reader.filters)
    rows: list[RecordOrder] = []
    async with aclosing(decoded_parts(batch, start)) as parts:
        async for records in parts:
            for record in records:
                if record.offset < start:
                    continue
                rows.append(reader.row(record))
                if len(rows) == rows_max:
                    return rows
                if len(rows) % at_once == 0:
                    await asyncio.sleep(0)
    return rows


class Filtering:
    """See the module. One for a broker."""

    def __init__(self) -> None:
        self._lock = FairLock(hold=Hold.LONG)

    async def rows(
        self, batch: bytes, start: int, reader: RowReader
    ) -> tuple[list[RecordOrder], int]:
        """(`rows_of` the first records of the batch from `start` on, the offset up to which)."""
        header = read_header(batch)
        end = header.last_offset + 1
        if not reader.filters and header.record_count <= ROWS_MAX:
            try:
                return reader.rows(batch, start, INLINE_BYTES_MAX), end
            except HeadraceError:  # it may be too large only for the event loop
                with loop_first():
                    return await asyncio.to_thread(rows_of, batch, start, reader), end
        rows_max = min(PARTS_MAX * _at_once(reader.filters), ROWS_MAX)
        try:
            async with self._lock:
                rows = await _first_rows(batch, start, reader, rows_max)
        except HeadraceError as error:
            end = min(end, max(header.base_offset, start) + ROWS_MAX)
            return blind_rows(batch, range(start, end), reader, error), end
        return rows, end if len(rows) < rows_max else rows[-1].offset + 1

    async def select(
        self, found: BatchesRead, ranges: Sequence[tuple[int, int]], filters: Sequence[Filter]
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """(selected, other) offsets of the parts of `ranges` that were read; all ascend.

        Offsets of a batch that cannot be decoded are selected: consumers detect the error.
        """
        selected: list[tuple[int, int]] = []
        others: list[tuple[int, int]] = []
        for batch, parts in parts_by_batch(found, ranges):
            first, last = parts[0][0], parts[-1][1]
            wanted: set[int] = set()
            async with self._lock:
                try:
                    async for records in decoded_parts(batch, first, last):
                        inside = (one for one in records if first <= one.offset <= last)
                        wanted.update(one.offset for one in await matching(inside, filters))
                except HeadraceError as error:
                    log.warning("cannot decode the batch at offset %d: %s", first, error)
                    wanted = {offset for low, high in parts for offset in range(low, high + 1)}
            for low, high in parts:
                for offset in range(low, high + 1):
                    _extend(selected if offset in wanted else others, offset)
        return selected, others


def _extend(ranges: list[tuple[int, int]], offset: int) -> None:
    """Add an offset that follows all of `ranges`."""
    if ranges and ranges[-1][1] == offset - 1:
        ranges[-1] = ranges[-1][0], offset
    else:
        ranges.append((offset, offset))


def _at_once(filters: Sequence[Filter]) -> int:
    """How many records are matched in one turn."""
    return max(COST_AT_ONCE // max(sum(one.cost for one in filters), 1), 1)
