"""Batches that were read for a share group: which of their records consumers get.

Invariants: pure; offsets without a record for consumers (markers, aborted records, offsets that
compaction has removed) are named once and in order.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.coordination.shares.commands import Row
from headrace.errors import HeadraceError
from headrace.records.batch import CONTROL, TRANSACTIONAL, iterate_headers, read_header
from headrace.records.codec import iterate_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.shares.commands import Acquired

log = logging.getLogger(__name__)


class BatchesRead:
    """Batches of one receive."""

    __slots__ = ("batches", "size", "skipped", "within")

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.size = 0
        self.within: list[tuple[int, int]] = []
        self.skipped: list[tuple[int, int]] = []
        """Offsets that hold nothing for consumers; they ascend."""

    def add(self, data: bytes, offset: int, last: int, aborted: Sequence[tuple[int, int]]) -> int:
        """Take batches that were read from `offset` on; the offset after those that were taken.

        Those that begin after `last` are left. `aborted`: (first offset, producer id) of aborted
        transactions among them.
        """
        reached = offset
        open_aborts: dict[int, int] = {}
        starts = sorted(aborted, reverse=True)
        for at, header in iterate_headers(data):
            base_offset, last_offset = header.base_offset, header.last_offset
            if base_offset > last:
                break
            while starts and starts[-1][0] <= last_offset:
                first_offset, producer_id = starts.pop()
                open_aborts[producer_id] = first_offset
            if base_offset > reached:  # compacted away
                self.skipped.append((reached, base_offset - 1))
            is_control = bool(header.attributes & CONTROL)
            if is_control:  # the marker that ends the producer's transaction
                open_aborts.pop(header.producer_id, None)
            is_aborted = (
                bool(header.attributes & TRANSACTIONAL) and header.producer_id in open_aborts
            )
            if is_control or is_aborted or not header.record_count:
                self.skipped.append((max(base_offset, reached), last_offset))
            else:
                self.batches.append(data[at : at + header.size])
                self.within.append((base_offset, last_offset))
                self.size += header.size
            reached = last_offset + 1
        return reached

    def holding(self, acquired: Sequence[Acquired]) -> list[bytes]:
        """The batches that hold any of these records; both ascend."""
        found: list[bytes] = []
        at = 0
        for (first, last), data in zip(self.within, self.batches, strict=True):
            while at < len(acquired) and acquired[at].last < first:
                at += 1
            if at < len(acquired) and acquired[at].first <= last:
                found.append(data)
        return found


def rows_of(batch: bytes, start: int) -> list[Row]:
    """The rows of the records of one batch, from `start` on.

    A record without a key has no order with others: it is a key of its own. So is each offset of a
    batch that cannot be decoded: its consumers find out, and the group goes on.
    """
    try:
        return [
            Row(record.offset, -1 - record.offset if record.key is None else crc32(record.key))
            for record in iterate_records(batch)
            if record.offset >= start
        ]
    except HeadraceError as error:
        header = read_header(batch)
        log.warning("the batch at offset %d cannot be decoded: %s", header.base_offset, error)
        first = max(header.base_offset, start)
        return [Row(offset, -1 - offset) for offset in range(first, header.last_offset + 1)]
