"""Reading a partition: whole batches by offset, and offsets by time.

Rules of the room: nothing at or behind the high watermark is read. A read returns whole batches
as they are stored, at least one, the first of which holds the offset asked for (KIP-74).
`read_now` never waits for a disk: it returns a Miss that says which bytes it lacks, and `read`
fetches those and tries again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.errors import OffsetOutOfRange, StorageUnavailable
from headrace.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    iterate_headers,
    read_header,
)
from headrace.records.codec import decode_batch
from headrace.runtime.file_bytes import FILE_BYTES_MIN

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.runtime.file_bytes import Sendable
    from headrace.storage.ledger import LedgerId, LedgerStore, LocatesBytes

WALK_BYTES: Final = 16 * 1024
"""What is read to find a batch that the sparse index does not name: a few intervals."""
ATTEMPTS_MAX: Final = 64
"""Of `read`: each fetches what the one before lacked, so a handful does even for a torn index."""


class Miss(NamedTuple):
    """What a read lacks: the index of a ledger (`size` 0), or bytes that are not in memory."""

    segment: Segment
    position: int
    size: int


class CachedReads(Protocol):
    """What a read that never waits asks of a LedgerStore."""

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """See LedgerStore."""
        ...


class _Missing(Exception):
    """No error: it carries a Miss out of nested calls."""

    def __init__(self, miss: Miss) -> None:
        self.miss = miss


def check_offset(log: PartitionLog, offset: int) -> None:
    """Raises OffsetOutOfRange unless log start offset <= offset <= high watermark."""
    if not log.log_start_offset <= offset <= log.high_watermark:
        raise OffsetOutOfRange(
            f"{log.name} has no offset {offset}: its log runs from {log.log_start_offset} to"
            f" {log.high_watermark}"
        )


def _bytes_at(store: CachedReads, segment: Segment, position: int, size: int) -> Buffer:
    data = store.read_cached(segment.ledger, position, size)
    if data is None:
        raise _Missing(Miss(segment, position, size))
    if len(data) < size:
        raise segment.corrupt(position + len(data), "the ledger ends there, and should not")
    if not (segment.proved_from <= position and position + len(data) <= segment.proved_to):
        segment.prove(data, position)
    return data


def _whole_at(store: CachedReads, segment: Segment, position: int, size: int) -> Buffer:
    """Like `_bytes_at`, of whole batches: that each of them is one has been proved, too.

    A length that grew would make the last of them look as if it went on behind what was read.
    """
    data = _bytes_at(store, segment, position, size)
    if not (segment.proved_from <= position and position + size <= segment.proved_to):
        raise segment.corrupt(position, "a batch reaches past those that are there")
    return data


def _visible_end(log: PartitionLog, segment: Segment) -> int:
    """The position behind the last readable batch of `segment`."""
    if segment.end_offset <= log.high_watermark:
        return segment.end_position
    return log.visibility.acknowledged.position


def _position_of(
    log: PartitionLog, store: CachedReads, segment: Segment, offset: int, end: int
) -> int:
    """Where the batch that holds `offset` begins in `segment`."""
    known = log.boundaries.get(offset)
    if known is not None and known[0] == segment.ledger:
        return known[1]
    position = segment.index.position_before(offset)
    if segment.index.offset_at(position) == offset:
        return position
    want = WALK_BYTES
    while position < end:
        data = _bytes_at(store, segment, position, min(want, end - position))
        reached = 0
        for at, header in iterate_headers(data):
            if header.last_offset >= offset:
                return position + at
            reached = at + header.size
        if reached:
            position += reached
        elif want >= end - position:
            raise segment.corrupt(position, "a batch reaches past the end")
        else:
            # A cut batch: take in all of it before moving on.
            want = max(read_header(data).size, want * 2)
    return end


def read_now(
    log: PartitionLog, store: CachedReads, offset: int, bytes_max: int
) -> tuple[Buffer, int] | Miss:
    """(batches from `offset` on, the offset behind them or -1 if unknown), without waiting.

    About `bytes_max` bytes of whole batches, yet always at least one batch; empty at the high
    watermark. Raises OffsetOutOfRange, DataCorrupt.
    """
    check_offset(log, offset)
    if offset >= log.high_watermark:
        return b"", offset
    try:
        found = _range_at(log, store, offset, bytes_max)
        return _whole_at(store, found.segment, found.start, found.size), found.next_offset
    except _Missing as missing:
        return missing.miss


def locate_now(
    log: PartitionLog, store: CachedReads, files: LocatesBytes | None, offset: int, bytes_max: int
) -> Sendable | Miss:
    """The batches that `read_now` returns, left in their file where they can be sent from there.

    That is so for many bytes at once, of which each batch's CRC has been checked before.
    """
    check_offset(log, offset)
    if offset >= log.high_watermark:
        return b""
    try:
        segment, start, size, _next_offset = _range_at(log, store, offset, bytes_max)
        is_proved = segment.proved_from <= start and start + size <= segment.proved_to
        if files is not None and size >= FILE_BYTES_MIN and is_proved:
            located = files.locate_cached(segment.ledger, start, size)
            if located is not None:
                return located
        return _whole_at(store, segment, start, size)
    except _Missing as missing:
        return missing.miss


class _Range(NamedTuple):
    segment: Segment
    start: int
    size: int
    next_offset: int
    """Behind the last batch; -1 if unknown."""


def _range_at(log: PartitionLog, store: CachedReads, offset: int, bytes_max: int) -> _Range:
    """Where the batches from `offset` on lie. Raises _Missing."""
    segment = log.segment_of(offset)
    assert segment is not None, "an offset below the high watermark has a segment"
    if not segment.is_index_loaded:
        raise _Missing(Miss(segment, 0, 0))
    end = _visible_end(log, segment)
    start = _position_of(log, store, segment, offset, end)
    limit = start + bytes_max
    next_offset = -1
    if limit >= end:
        limit = end
        next_offset = min(segment.end_offset, log.high_watermark)
    else:
        boundary = segment.index.boundary_between(start, limit)
        limit = boundary or start + _batch_size(store, segment, start, end)
    if next_offset >= 0:
        log.remember_boundary(next_offset, segment, limit)
    return _Range(segment, start, limit - start, next_offset)


def _batch_size(store: CachedReads, segment: Segment, start: int, end: int) -> int:
    """Bytes of the one batch at `start`. The header alone is read, so no CRC is checked here."""
    data = store.read_cached(segment.ledger, start, HEADER_SIZE)
    if data is None:
        raise _Missing(Miss(segment, start, HEADER_SIZE))
    size = read_header(data).size
    if not HEADER_SIZE <= size <= end - start:
        raise segment.corrupt(start, f"a batch of {size} bytes cannot be")
    return size


async def _load_index(log: PartitionLog, store: LedgerStore, segment: Segment) -> None:
    if not segment.is_index_loaded:
        await segment.load_index(store)
        if log.indexes is not None:
            log.indexes.note(segment)


class _Held:
    """What one read has fetched so far: it has it, whatever leaves the caches meanwhile."""

    __slots__ = ("_held", "_log", "_store")

    def __init__(self, log: PartitionLog, store: LedgerStore) -> None:
        self._log = log
        self._store = store
        self._held: dict[tuple[LedgerId, int], Buffer] = {}

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """See LedgerStore."""
        data = self._held.get((ledger, position))
        if data is not None and len(data) >= size:
            return memoryview(data)[:size]
        return self._store.read_cached(ledger, position, size)

    async def fetch(self, miss: Miss) -> None:
        """Wait for what a read lacked."""
        if miss.size == 0:
            await _load_index(self._log, self._store, miss.segment)
            return
        ledger, position = miss.segment.ledger, miss.position
        self._held[ledger, position] = await self._store.read(ledger, position, miss.size)


async def read(log: PartitionLog, store: LedgerStore, offset: int, bytes_max: int) -> Buffer:
    """Like `read_now`, waiting for the disk where it must. Raises StorageUnavailable besides."""
    held = _Held(log, store)
    for _ in range(ATTEMPTS_MAX):
        found = read_now(log, held, offset, bytes_max)
        if not isinstance(found, Miss):
            return found[0]
        await held.fetch(found)
    raise StorageUnavailable(f"{log.name}: offset {offset} cannot be read from the disk now")


# --- by time ---------------------------------------------------------------------------------


class TimedOffset(NamedTuple):
    """An offset and the timestamp of its record; (-1, -1) where there is none."""

    timestamp_ms: int
    offset: int


NO_OFFSET: Final = TimedOffset(-1, -1)


async def _batch_at(
    log: PartitionLog, store: LedgerStore, offset: int
) -> tuple[Buffer, BatchHeader]:
    data = await read(log, store, offset, 1)
    return data, read_header(data)


async def offset_of_time(log: PartitionLog, store: LedgerStore, timestamp_ms: int) -> TimedOffset:
    """The first record with a timestamp >= `timestamp_ms` (ListOffsets by time)."""
    for segment in list(log.segments):
        if segment.max_timestamp_ms < timestamp_ms or segment.end_offset <= log.log_start_offset:
            continue
        await _load_index(log, store, segment)
        position = segment.index.position_of_time(timestamp_ms)
        if position is None:
            continue
        offset = segment.index.offset_at(position)
        assert offset is not None, "an index entry names its batch"
        offset = max(offset, log.log_start_offset)
        while offset < min(segment.end_offset, log.high_watermark):
            data, header = await _batch_at(log, store, offset)
            if header.max_timestamp_ms >= timestamp_ms:
                for record in decode_batch(data):
                    if record.timestamp_ms >= timestamp_ms and (
                        record.offset >= log.log_start_offset
                    ):
                        return TimedOffset(record.timestamp_ms, record.offset)
            offset = header.last_offset + 1
            # One batch or two, as a rule; a whole ledger where headers lie about their records.
            await asyncio.sleep(0)
    return NO_OFFSET


async def offset_of_max_timestamp(log: PartitionLog, store: LedgerStore) -> TimedOffset:
    """The first record that has the largest timestamp of all (KIP-734)."""
    largest = max((segment.max_timestamp_ms for segment in log.segments), default=-1)
    return await offset_of_time(log, store, largest) if largest >= 0 else NO_OFFSET


# --- by leader epoch -------------------------------------------------------------------------


def epoch_of_offset(log: PartitionLog, offset: int) -> int:
    """The leader epoch of the record at `offset`, of the one to come at the log's end.

    What ListOffsets tells beside an offset. The leader's own would be another one after each change
    of owners, and librdkafka begins anew where the same offset comes with another epoch.
    """
    segment = log.segment_of(offset)
    return log.leader_epoch if segment is None else segment.leader_epoch


def end_offset_of_epoch(log: PartitionLog, leader_epoch: int) -> tuple[int, int]:
    """(the largest epoch <= `leader_epoch`, the offset behind its last record).

    What OffsetForLeaderEpoch asks (KIP-101, KIP-320). (-1, -1): of an epoch that is not known here.
    One from before the log's start is answered with that start, as Kafka does: who has read up to
    there has lost nothing, and would be sent to `auto.offset.reset` otherwise.
    """
    if not 0 <= leader_epoch <= log.leader_epoch:
        return -1, -1
    if leader_epoch == log.leader_epoch:
        return leader_epoch, log.high_watermark
    found, end_offset = leader_epoch, log.high_watermark
    for segment in log.segments:
        if segment.leader_epoch > leader_epoch:
            end_offset = segment.base_offset
            break
        found = segment.leader_epoch
    return found, max(end_offset, log.log_start_offset)
