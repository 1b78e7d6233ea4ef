"""Reads the records that wait in a timer companion, by offset, and caches some of them.

Invariants: reads the companion log, never writes it. The cache is bounded by bytes.

How it works: records with a short delay stay in memory, and those that are due soon are read ahead
in log order, so that due records are seldom read one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.timers import state_records
from headrace.coordination.timers.state_records import HalfKept, Moved, Scheduled
from headrace.errors import DataCorrupt, RecordInvalid
from headrace.records.batch import iterate_headers
from headrace.records.codec import decode_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.log.partition_log import PartitionLog

CACHE_BYTES: Final = 16 * 1024 * 1024
"""Of one partition."""
READ_BYTES: Final = 256 * 1024
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
        at = size = 0
        while at < len(wanted) and size < bytes_max:
            data = await self._companion.reader.read(wanted[at], READ_BYTES)
            reached = at
            for position, header in iterate_headers(data):
                upto = bisect_right(wanted, header.last_offset, at)
                if upto > at:
                    inside = set(wanted[at:upto])
                    for record in decode_batch(data, position):
                        if record.offset in inside:
                            timer = stored_timer(record.offset, record.key, record.value)
                            if timer is not None:
                                found[record.offset] = timer
                                size += len(timer.body) + OVERHEAD_BYTES
                    at = upto
                if at == len(wanted):
                    break
            if at == reached:
                raise DataCorrupt(
                    f"{self._companion.name} has no record at offset {wanted[at]}",
                    offset=wanted[at],
                )
        return found


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
