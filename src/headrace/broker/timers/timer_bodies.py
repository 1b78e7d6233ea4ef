"""Reads the records that wait in a timer companion, by offset, and caches some of them.

Invariants: reads the companion log, never writes it. The cache is bounded by bytes.

How it works: records with a short delay stay in memory, and those that are due soon are read ahead
in log order, so that due records are seldom read one by one. Of a batch only the records that are
wanted are decoded, and those near them. What the page cache holds is read without waiting, so the
loop gets a turn after WORK_RECORDS.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.timers import state_records
from headrace.coordination.timers.state_records import HalfKept, Moved, Scheduled
from headrace.errors import DataCorrupt, RecordInvalid
from headrace.records.batch import iterate_headers
from headrace.records.codec import PayloadCursor, checked_payload, iterate_payload

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.log.partition_log import PartitionLog
    from headrace.records.batch import Buffer

CACHE_BYTES: Final = 16 * 1024 * 1024
"""Of one partition."""
READ_BYTES: Final = 256 * 1024
NEAR: Final = 16
"""Records that are this close are decoded with those between them, and looked for in one read."""
WORK_RECORDS: Final = 2_000
"""Decoded in a turn of the loop: 6 ms."""
SKIPPED_AS_ONE: Final = 16
"""To skip so many records of different sizes takes as long as to decode one."""
LEADING_COUNT: Final = 16
"""Records read at first where only bytes limit their number; then twice as many."""
OVERHEAD_BYTES: Final = 200
"""Per entry in memory, besides its body."""


class StoredTimer(NamedTuple):
    """A record as stored in the companion."""

    due_ms: int
    """0 for a half message that is due as soon as it is committed."""
    timestamp_ms: int
    tag: int
    number: int
    """The offset under which it was first stored."""
    body: bytes


class TimerBodies:
    """The stored records of one companion."""

    def __init__(self, companion: PartitionLog) -> None:
        self._companion = companion
        self._cached: dict[int, StoredTimer] = {}
        self._cached_bytes = 0

    def keep(self, offset: int, timer: StoredTimer) -> bool:
        """Cache a record if there is room; whether it is cached."""
        size = len(timer.body) + OVERHEAD_BYTES
        if offset in self._cached:
            return True
        if self._cached_bytes + size > CACHE_BYTES:
            return False
        self._cached[offset] = timer
        self._cached_bytes += size
        return True

    def forget(self, offsets: Sequence[int]) -> None:
        """These records are no longer needed."""
        for offset in offsets:
            timer = self._cached.pop(offset, None)
            if timer is not None:
                self._cached_bytes -= len(timer.body) + OVERHEAD_BYTES

    async def read_ahead(self, offsets: Sequence[int]) -> None:
        """Cache as many of these records as there is room for."""
        wanted = sorted(offset for offset in offsets if offset not in self._cached)
        if wanted and self._cached_bytes < CACHE_BYTES // 2:
            found = await self._read(wanted, CACHE_BYTES // 2)
            for offset, timer in found.items():
                self.keep(offset, timer)

    async def get(self, offsets: Sequence[int]) -> dict[int, StoredTimer]:
        """The records at these offsets. Raises DataCorrupt, and what reading raises."""
        cached = self._cached
        found = {offset: cached[offset] for offset in offsets if offset in cached}
        wanted = sorted(offset for offset in offsets if offset not in found)
        if wanted:
            found |= await self._read(wanted)
            missing = [offset for offset in wanted if offset not in found]
            if missing:
                raise DataCorrupt(
                    f"{self._companion.name} holds no delayed record at offset {missing[0]}",
                    offset=missing[0],
                )
        return found

    async def leading(self, offsets: Sequence[int], bytes_max: int) -> list[StoredTimer]:
        """The records at the first of these offsets, up to `bytes_max`; at least one.

        Raises DataCorrupt, and what reading raises.
        """
        found: list[StoredTimer] = []
        count = LEADING_COUNT
        while len(found) < len(offsets) and bytes_max > 0:
            some = offsets[len(found) : len(found) + count]
            held = {offset: self._cached[offset] for offset in some if offset in self._cached}
            wanted = sorted(offset for offset in some if offset not in held)
            if wanted:
                held |= await self._read(wanted, bytes_max)
            for offset in some:
                if offset not in held or bytes_max <= 0:
                    # The log has them in a different order, and the first one did not fit.
                    return found or [*(await self.get([offset])).values()]
                found.append(held[offset])
                bytes_max -= len(held[offset].body) + OVERHEAD_BYTES
            count *= 2
        return found

    async def _read(self, wanted: Sequence[int], bytes_max: int = 2**62) -> dict[int, StoredTimer]:
        """Those of the records at `wanted`, ascending, that fit into `bytes_max`."""
        found: dict[int, StoredTimer] = {}
        at = size = work = 0
        while at < len(wanted) and size < bytes_max:
            is_near = at + 1 < len(wanted) and wanted[at + 1] - wanted[at] <= NEAR
            data = await self._companion.reader.read(wanted[at], READ_BYTES if is_near else 1)
            reached = at
            for position, header in iterate_headers(data):
                upto = bisect_right(wanted, header.last_offset, at)
                if upto > at:
                    work += header.record_count // SKIPPED_AS_ONE
                    for timer_offset, timer in _timers_of(data, position, wanted[at:upto]):
                        found[timer_offset] = timer
                        size += len(timer.body) + OVERHEAD_BYTES
                        work += 1
                    at = upto
                if work > WORK_RECORDS:
                    work = 0
                    await asyncio.sleep(0)
                if at == len(wanted):
                    break
            if at == reached:
                raise DataCorrupt(
                    f"{self._companion.name} has no record at offset {wanted[at]}",
                    offset=wanted[at],
                )
        return found


def _timers_of(
    data: Buffer, position: int, wanted: Sequence[int]
) -> Iterator[tuple[int, StoredTimer]]:
    """(offset, record) of those that the batch at `position` has at these offsets, ascending."""
    payload, header = checked_payload(data, position)
    inside, place = set(wanted), PayloadCursor()
    for first, last in _spans(wanted):
        for records in iterate_payload(payload, header, first, last, place):
            for record in records:
                if record.offset in inside:
                    timer = stored_timer(record.offset, record.key, record.value)
                    if timer is not None:
                        yield record.offset, timer


def _spans(wanted: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and last of those that are near each other."""
    first = last = wanted[0]
    for offset in wanted[1:]:
        if offset - last > NEAR:
            yield first, last
            first = offset
        last = offset
    yield first, last


def stored_timer(offset: int, key: bytes | None, value: bytes | None) -> StoredTimer | None:
    """Decode a record of the companion; None if it stores no delayed record. Raises
    RecordInvalid."""
    if not key:
        raise RecordInvalid("a record of a timer companion has no key")
    if key[0] not in {state_records.SCHEDULED, state_records.HALF, state_records.MOVED}:
        return None
    record = state_records.decode(key, value or b"")
    if isinstance(record, Moved):
        where = record.due_ms, record.timestamp_ms, record.tag, record.number
        return StoredTimer(*where, record.body)
    if isinstance(record, Scheduled | HalfKept):
        return StoredTimer(record.due_ms, record.timestamp_ms, record.tag, offset, record.body)
    return None
