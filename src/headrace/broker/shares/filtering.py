"""Filters of groups and of receives, applied to records in turns of the event loop.

Invariants: changes no group. An expression of the longest kind takes milliseconds for a record with
long headers, and some kilobytes may hold thousands of these. So few records are matched at once and
others have the loop between two parts; one batch at a time is decompressed for that on a broker,
users in turns; and what is done for one has a bound.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.broker.shares.share_reads import blind_rows, parts_by_batch, rows_of
from headrace.errors import HeadraceError
from headrace.records.batch import read_header
from headrace.records.codec import iterate_records
from headrace.runtime.fair_locks import FairLock, Hold

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


class Filtering:
    """See the module. One for a broker."""

    def __init__(self) -> None:
        self._lock = FairLock(hold=Hold.LONG)

    async def rows(
        self, batch: bytes, start: int, reader: RowReader
    ) -> tuple[list[RecordOrder], int]:
        """(`rows_of` the first records of the batch from `start` on, the offset up to which)."""
        end = read_header(batch).last_offset + 1
        if not reader.filters:
            return rows_of(batch, start, reader), end
        at_once = _at_once(reader.filters)
        rows: list[RecordOrder] = []
        async with self._lock:
            try:
                wanted = (one for one in iterate_records(batch) if one.offset >= start)
                for count, record in enumerate(islice(wanted, PARTS_MAX * at_once), 1):
                    rows.append(reader.row(record))
                    if count % at_once == 0:
                        await asyncio.sleep(0)
            except HeadraceError as error:
                return blind_rows(batch, start, reader, error), end
        is_whole = len(rows) < PARTS_MAX * at_once
        return rows, end if is_whole else rows[-1].offset + 1

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
            inside = (one for one in iterate_records(batch) if first <= one.offset <= last)
            async with self._lock:
                try:
                    wanted = {record.offset for record in await matching(inside, filters)}
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
