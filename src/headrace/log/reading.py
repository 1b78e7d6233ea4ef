"""Reads a partition: whole batches by offset, and offsets by time.

Invariants: nothing at or after the read's bound is read: the high watermark, or the last stable
offset for `read_committed`. A read returns whole batches as stored, at least one, the first of
which contains the requested offset (KIP-74). They include batches of aborted transactions, which
`aborted_now` lists. Functions ending in `_now` never wait for a disk: they return a Miss with what
is needed, and `LogReader.fetch` loads that and retries.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.errors import LedgerUnknown, OffsetOutOfRange, StorageUnavailable
from headrace.log.decoded_records import first_at_time
from headrace.log.remote_copies import unreachable
from headrace.log.segment import load_index_of
from headrace.log.visibility import NOT_LOCATED, READ_UNCOMMITTED, Bound
from headrace.records.batch import (
    HEADER_SIZE,
    Buffer,
    iterate_headers,
    read_header,
)
from headrace.runtime.file_bytes import FILE_BYTES_MIN
from headrace.storage.ledger import LocatesBytes

if TYPE_CHECKING:
    from headrace.log.log_state import LogState
    from headrace.log.segment import Segment
    from headrace.runtime.file_bytes import Sendable
    from headrace.storage.ledger import LedgerId, LedgerStore

WALK_BYTES: Final = 16 * 1024
"""Read size when scanning for a batch that the sparse index does not contain: a few intervals."""
BOUNDARIES_MAX: Final = 256
"""Limit of remembered reader positions; further readers scan one index interval instead."""
ATTEMPTS_MAX: Final = 64
"""Limit of attempts per read: each loads what the last one needed, so a handful is enough even for
a torn index."""


_END_OFFSET: Final = attrgetter("end_offset")


class Miss(NamedTuple):
    """What a read needs: the index of a ledger (`size` 0), or bytes that are not cached."""

    segment: Segment
    position: int
    size: int


class CachedReads(Protocol):
    """The part of LedgerStore that non-blocking reads use."""

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """See LedgerStore."""
        ...


class _Missing(Exception):
    """Not an error: carries a Miss out of nested calls."""

    def __init__(self, miss: Miss) -> None:
        self.miss = miss


def segment_index(log: LogState, offset: int) -> int:
    """The index of the segment that contains `offset`; the number of segments if none does."""
    segments = log.segments
    last = len(segments) - 1
    # Most readers are near the end: checking the last segment first saves 0.4 us.
    if last >= 0 and segments[last].base_offset <= offset < segments[last].end_offset:
        return last
    return bisect_right(segments, offset, key=_END_OFFSET)


def segment_of(log: LogState, offset: int) -> Segment | None:
    """The segment that contains `offset`; None at the end of the log or in a hole."""
    at = segment_index(log, offset)
    return log.segments[at] if at < len(log.segments) else None


def check_offset(log: LogState, offset: int) -> None:
    """Raises OffsetOutOfRange unless log start offset <= offset <= high watermark."""
    if not log.log_start_offset <= offset <= log.visibility.acknowledged.offset:
        raise OffsetOutOfRange(
            f"{log.name} has no offset {offset}: its log ranges from {log.log_start_offset} to"
            f" {log.high_watermark}"
        )


def _bytes_at(store: CachedReads, segment: Segment, position: int, size: int) -> Buffer:
    try:
        data = store.read_cached(segment.ledger, position, size)
    except LedgerUnknown as error:
        raise unreachable(segment, error) from error
    if data is None:
        raise _Missing(Miss(segment, position, size))
    if len(data) < size:
        raise segment.corrupt(position + len(data), "the ledger is truncated")
    if not (segment.verified_from <= position and position + len(data) <= segment.verified_to):
        segment.verify_crc(data, position)
    return data


def _whole_at(store: CachedReads, segment: Segment, position: int, size: int) -> Buffer:
    """Like `_bytes_at`, for a range that must consist of whole, verified batches.

    A corrupt, larger length would make the last batch seem to extend past the range read.
    """
    data = _bytes_at(store, segment, position, size)
    if not (segment.verified_from <= position and position + size <= segment.verified_to):
        raise segment.corrupt(position, "a batch extends past the range read")
    return data


def _visible_end(log: LogState, segment: Segment, bound: Bound) -> int:
    """The position after the last readable batch of `segment`; NOT_LOCATED if unknown."""
    if segment.end_offset <= bound.offset:
        return segment.end_position
    return bound.position


class _Range(NamedTuple):
    segment: Segment
    start: int
    size: int
    next_offset: int
    """After the last batch."""


def _batch_at_position(
    store: CachedReads, segment: Segment, start: int, end: int
) -> tuple[int, int]:
    """(size of the batch at `start`, the offset after it).

    Only the header is read, so the CRC is not checked.
    """
    try:
        data = store.read_cached(segment.ledger, start, HEADER_SIZE)
    except LedgerUnknown as error:
        raise unreachable(segment, error) from error
    if data is None:
        raise _Missing(Miss(segment, start, HEADER_SIZE))
    header = read_header(data)
    size = header.size
    if not HEADER_SIZE <= size <= end - start:
        raise segment.corrupt(start, f"invalid batch size {size}")
    return size, header.last_offset + 1


def aborted_now(log: LogState, offset: int, end_offset: int) -> list[tuple[int, int]] | Miss:
    """(first offset, producer id) of aborted transactions with records in a range, sorted.

    The range is below the last stable offset and in one ledger. The markers may be in later
    ledgers.
    """
    found: list[tuple[int, int]] = []
    at = segment_index(log, offset)
    while at < len(log.segments):
        segment = log.segments[at]
        if not segment.is_index_loaded:
            return Miss(segment, 0, 0)
        if segment.aborted is not None:
            found += segment.aborted.find(offset, end_offset)
        if segment.first_open_offset >= end_offset:
            break
        at += 1
    found.sort()
    return found


class _LoadedParts:
    """The bytes loaded for one read, independent of cache evictions meanwhile."""

    __slots__ = ("_parts", "_store")

    def __init__(self, store: LedgerStore) -> None:
        self._store = store
        self._parts: dict[tuple[LedgerId, int], Buffer] = {}

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """See LedgerStore."""
        data = self._parts.get((ledger, position))
        if data is not None and len(data) >= size:
            return memoryview(data)[:size]
        return self._store.read_cached(ledger, position, size)

    async def load(self, miss: Miss) -> None:
        """Load the bytes that a read needs."""
        ledger, position = miss.segment.ledger, miss.position
        try:
            self._parts[ledger, position] = await self._store.read(ledger, position, miss.size)
        except LedgerUnknown as error:
            raise unreachable(miss.segment, error) from error


class FetchedBatches(NamedTuple):
    """Batches, and the aborted transactions for a `read_committed` reader."""

    data: Buffer
    aborted: list[tuple[int, int]] | None = None
    """(first offset, producer id), sorted; None for `read_uncommitted`."""


class TimedOffset(NamedTuple):
    """An offset and its record's timestamp; (-1, -1) if there is none."""

    timestamp_ms: int
    offset: int


NO_OFFSET: Final = TimedOffset(-1, -1)


class LogReader:
    """Reads the log of one partition from its store's ledgers."""

    __slots__ = ("_boundaries", "_files", "_is_files_known", "_log", "_store")

    def __init__(self, log: LogState, store: LedgerStore) -> None:
        self._log = log
        self._store = store
        self._files: LocatesBytes | None = None
        self._is_files_known = False
        self._boundaries: dict[int, tuple[int, int]] = {}
        """Offset -> (ledger, position) where reads ended: where the next ones start."""

    def _locate(self, cached: CachedReads, segment: Segment, bound: Bound) -> int:
        """The position of the bound, which is a batch boundary in `segment`. Raises _Missing."""
        log = self._log
        end = _visible_end(log, segment, log.visibility.acknowledged)
        bound.position = self._position_of(cached, segment, bound.offset, end)
        return bound.position

    def _position_of(self, cached: CachedReads, segment: Segment, offset: int, end: int) -> int:
        """The position in `segment` of the batch that contains `offset`."""
        known = self._boundaries.get(offset)
        if known is not None and known[0] == segment.ledger:
            return known[1]
        position = segment.index.position_before(offset)
        if segment.index.offset_at(position) == offset:
            return position
        want = WALK_BYTES
        while position < end:
            data = _bytes_at(cached, segment, position, min(want, end - position))
            reached = 0
            for at, header in iterate_headers(data):
                if header.last_offset >= offset:
                    return position + at
                reached = at + header.size
            if reached:
                position += reached
            elif want >= end - position:
                raise segment.corrupt(position, "a batch extends past the end")
            else:
                # A truncated batch: read all of it before moving on.
                want = max(read_header(data).size, want * 2)
        return end

    def read_now(
        self, offset: int, bytes_max: int, bound: Bound | None = None
    ) -> tuple[Buffer, int] | Miss:
        """(batches from `offset` on, the offset after them), without waiting.

        About `bytes_max` bytes of whole batches, but at least one batch; empty at the bound, by
        default the high watermark. Raises OffsetOutOfRange and DataCorrupt.
        """
        bound = bound or self._log.visibility.acknowledged
        return self._read_now(self._store, offset, bytes_max, bound)

    def _read_now(
        self, cached: CachedReads, offset: int, bytes_max: int, bound: Bound
    ) -> tuple[Buffer, int] | Miss:
        check_offset(self._log, offset)
        if offset >= bound.offset:
            return b"", offset
        try:
            found = self._range_at(cached, offset, bytes_max, bound)
            return _whole_at(cached, found.segment, found.start, found.size), found.next_offset
        except _Missing as missing:
            return missing.miss

    def locate_now(self, offset: int, bytes_max: int, bound: Bound) -> tuple[Sendable, int] | Miss:
        """The batches that `read_now` returns, as a file range if they can be sent from the file.

        That requires a large range in which each batch's CRC was already verified.
        """
        check_offset(self._log, offset)
        if offset >= bound.offset:
            return b"", offset
        try:
            segment, start, size, next_offset = self._range_at(
                self._store, offset, bytes_max, bound
            )
            is_verified = segment.verified_from <= start and start + size <= segment.verified_to
            if size >= FILE_BYTES_MIN and is_verified:
                files = self._files if self._is_files_known else self._find_files()
                if files is not None:
                    located = files.locate_cached(segment.ledger, start, size)
                    if located is not None:
                        return located, next_offset
            return _whole_at(self._store, segment, start, size), next_offset
        except _Missing as missing:
            return missing.miss

    def _find_files(self) -> LocatesBytes | None:
        """The store, if it can locate files; checked once, when a read is first large enough.

        The Protocol check takes 5 us, too long for each read and for each log at start-up.
        """
        self._is_files_known = True
        self._files = self._store if isinstance(self._store, LocatesBytes) else None
        return self._files

    def _range_at(self, cached: CachedReads, offset: int, bytes_max: int, bound: Bound) -> _Range:
        """The range of the batches from `offset` on. Raises _Missing."""
        log = self._log
        at = segment_index(log, offset)
        assert at < len(log.segments), "an offset below the high watermark has a segment"
        segment = log.segments[at]
        if not segment.is_index_loaded:
            raise _Missing(Miss(segment, 0, 0))
        end = _visible_end(log, segment, bound)
        if end == NOT_LOCATED:
            end = self._locate(cached, segment, bound)
        start = self._position_of(cached, segment, offset, end)
        limit = start + bytes_max
        if limit >= end:
            limit = end
            next_offset = min(segment.end_offset, bound.offset)
            self._remember(next_offset, segment, limit)
        else:
            boundary = segment.index.boundary_between(start, limit)
            if boundary is None:
                size, next_offset = _batch_at_position(cached, segment, start, end)
                limit = start + size
            else:
                limit, next_offset = boundary
        return _Range(segment, start, limit - start, next_offset)

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """Remember that the batch at `offset`, present or future, is at `position`."""
        boundaries = self._boundaries
        if len(boundaries) >= BOUNDARIES_MAX:
            boundaries.clear()
        boundaries[offset] = (segment.ledger, position)

    async def load_index(self, segment: Segment) -> None:
        """Load the index of a closed ledger, unless it is in memory. Raises what storage raises."""
        log = self._log
        if not segment.is_index_loaded:
            segments = list(log.segments)
            if segment not in segments:  # trimmed or replaced since the reader got it
                segments = [segment]
            at = segments.index(segment)
            try:
                await load_index_of(segments[: at + 1], at, self._store)
            except LedgerUnknown as error:
                raise unreachable(segments[at], error) from error
            if log.indexes is not None:
                log.indexes.note(segment)

    async def _load_missing(self, held: _LoadedParts, miss: Miss) -> None:
        if miss.size == 0:
            await self.load_index(miss.segment)
        else:
            await held.load(miss)

    async def fetch(self, offset: int, bytes_max: int, isolation: int) -> FetchedBatches:
        """Like `read_now`, but waits for the disk if needed. Also raises StorageUnavailable."""
        log = self._log
        held = _LoadedParts(self._store)
        for _ in range(ATTEMPTS_MAX):
            found = self._read_now(held, offset, bytes_max, log.visibility.bound(isolation))
            if not isinstance(found, Miss):
                data, next_offset = found
                if isolation == READ_UNCOMMITTED:
                    return FetchedBatches(data)
                return FetchedBatches(data, await self._aborted(offset, next_offset))
            await self._load_missing(held, found)
        raise StorageUnavailable(f"{log.name}: offset {offset} cannot be read from the disk now")

    async def _aborted(self, offset: int, end_offset: int) -> list[tuple[int, int]]:
        """As `aborted_now`.

        Each index is used in the turn in which it is loaded, since it may be evicted for the next.
        """
        log = self._log
        found: list[tuple[int, int]] = []
        for segment in log.segments[segment_index(log, offset) :]:
            await self.load_index(segment)
            if segment.aborted is not None:
                found += segment.aborted.find(offset, end_offset)
            if segment.first_open_offset >= end_offset:
                break
        found.sort()
        return found

    async def read(self, offset: int, bytes_max: int) -> Buffer:
        """The acknowledged batches from `offset` on; see `fetch`."""
        return (await self.fetch(offset, bytes_max, READ_UNCOMMITTED)).data

    async def fetch_from(
        self, offset: int, bytes_max: int, isolation: int = READ_UNCOMMITTED
    ) -> tuple[int, FetchedBatches]:
        """Like `fetch`, but begins at the log start offset if the records before it are deleted,
        even during the read; returns the offset at which it begins, too."""
        while True:
            offset = max(offset, self._log.log_start_offset)
            try:
                return offset, await self.fetch(offset, bytes_max, isolation)
            except OffsetOutOfRange:
                if self._log.log_start_offset <= offset:
                    raise

    async def offset_of_time(
        self,
        timestamp_ms: int,
        isolation: int = READ_UNCOMMITTED,
    ) -> TimedOffset:
        """The first record with a timestamp >= `timestamp_ms` (ListOffsets by time).

        With READ_COMMITTED, records at or after the last stable offset are ignored; so are the
        records of a batch that cannot be decoded.
        """
        log = self._log
        for segment in list(log.segments):
            if (
                segment.max_timestamp_ms < timestamp_ms
                or segment.end_offset <= log.log_start_offset
            ):
                continue
            await self.load_index(segment)
            position = segment.index.position_of_time(timestamp_ms)
            if position is None:
                continue
            offset = segment.index.offset_at(position)
            assert offset is not None, "an index entry refers to a batch"
            offset = max(offset, log.log_start_offset)
            while offset < min(segment.end_offset, log.visibility.bound(isolation).offset):
                start, (data, _) = await self.fetch_from(offset, 1)
                if start > offset:  # deleted during the read: `start` may not be visible
                    offset = start
                    continue
                header = read_header(data)
                if header.newest_ms >= timestamp_ms:
                    record = await first_at_time(data, timestamp_ms, log.log_start_offset)
                    if record is not None:
                        return TimedOffset(record.timestamp_ms, record.offset)
                offset = header.last_offset + 1
                # Usually one or two batches; a whole ledger if headers misstate timestamps.
                await asyncio.sleep(0)
        return NO_OFFSET


# --- by leader epoch -------------------------------------------------------------------------


def epoch_of_offset(log: LogState, offset: int) -> int:
    """The leader epoch of the record at `offset`; at the end of the log, that of the next record.

    ListOffsets returns it with an offset. The current leader epoch instead would change with each
    owner, and librdkafka resets when the same offset has a different epoch.
    """
    segment = segment_of(log, offset)
    return log.leader_epoch if segment is None else segment.leader_epoch


def end_offset_of_epoch(log: LogState, leader_epoch: int) -> tuple[int, int]:
    """(the largest epoch <= `leader_epoch`, the offset after its last record).

    For OffsetForLeaderEpoch (KIP-101, KIP-320). (-1, -1): the epoch is unknown. For an epoch before
    the log start offset the result is that offset, as in Kafka: a reader that has reached it has
    lost nothing, and would otherwise fall back to `auto.offset.reset`.
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
