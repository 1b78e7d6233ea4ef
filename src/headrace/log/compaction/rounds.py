"""Log compaction of a partition, without I/O: decides which records are retained.

Invariants: pure; knows batches, not ledgers or stores. A round has two passes. The first adds the
records of committed transactions, and those outside transactions, to the key map: the latest
offset of each key in the dirty range. The second reads every batch from the start of the log to the
end of the map, in order. A record is retained if it is the latest of its key, and has a value or is
a tombstone before its delete horizon. Records of aborted transactions are never added to the map,
so they replace nothing, and are not retained.

A tombstone, or a marker of a transaction with no batch left, gets its delete horizon in the first
round that retains it, and is removed by a round at or after that time. So a reader that started
before it has `delete.retention.ms` to read it. A marker is retained while a batch of its
transaction is: without an abort marker, `read_committed` clients would skip what follows it.

Batches at or after the end of the map are not changed. The caller retains the first and the last
batch of a ledger (`is_edge`), if necessary without records, so that a ledger itself shows its
offset range, and every offset has a batch at or after it in its ledger.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator
from itertools import compress, repeat
from operator import ge
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headrace.errors import BatchCorrupt
from headrace.records.batch import CONTROL, TRANSACTIONAL, iterate_headers, read_header
from headrace.records.marker import read_marker
from headrace.records.rewriting import (
    Columns,
    check_end,
    delete_horizon_ms,
    empty_batch,
    payload_of,
    read_all_columns,
    read_columns,
    rewrite_batch,
)
from headrace.records.survivors import WHOLE_KEY_BYTES, Survivors, digest_of, enter_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.records.batch import BatchHeader, Buffer

STEP_RECORDS: Final = 500
"""Records to process per step, about 1 ms of work."""
KEYS_MAX: Final = 1_000_000
"""Limit of the key map: about 200 bytes each."""
MARKS_MAX: Final = 64 << 20
"""Limit of offsets in a dirty range, one byte each, for marking survivors; beyond it, lookups."""


_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""Work on one batch, which may have a million records: the caller may do other work between steps.
The generator returns the result."""


class BatchRun(NamedTuple):
    """Consecutive whole batches of a ledger."""

    data: Buffer
    batches: list[tuple[int, BatchHeader]]
    """(position in `data`, header) of each."""

    @classmethod
    def of(cls, data: Buffer) -> BatchRun:
        """The whole batches in `data`. Raises BatchCorrupt."""
        return cls(data, list(iterate_headers(data)))

    def whole(self) -> memoryview:
        """The bytes of its batches; `data` may end with a partial one."""
        at, header = self.batches[-1]
        return memoryview(self.data)[self.batches[0][0] : at + header.size]


class Left(NamedTuple):
    """What a round retains of a run."""

    batches: list[Buffer | None]
    """For each batch, its own bytes, its replacement, or None."""
    removed_records: int
    dropped_markers: list[int]
    """Offsets of the transaction markers that were removed."""


class AbortedRanges:
    """The offsets that belong to aborted transactions, by producer."""

    def __init__(self, transactions: Iterable[tuple[int, int, int]] = ()) -> None:
        """`transactions`: (producer id, first offset, offset of the marker)."""
        self._first: dict[int, list[int]] = {}
        self._markers: dict[int, list[int]] = {}
        for producer_id, first, marker in sorted(transactions):
            self._first.setdefault(producer_id, []).append(first)
            self._markers.setdefault(producer_id, []).append(marker)

    def has(self, header: BatchHeader) -> bool:
        """Whether a batch of records belongs to an aborted transaction."""
        if not header.attributes & TRANSACTIONAL:
            return False
        first = self._first.get(header.producer_id)
        if first is None:
            return False
        at = bisect_right(first, header.base_offset) - 1
        return at >= 0 and self._markers[header.producer_id][at] > header.base_offset


class KeyMap:
    """The latest offset of each key in the dirty range."""

    def __init__(self, aborted: AbortedRanges, keys_max: int = KEYS_MAX) -> None:
        self._aborted = aborted
        self._keys_max = keys_max
        self._offsets: dict[bytes | int | None, int] = {}
        self._first_offset = -1
        self._marks = bytearray()
        """A 1 for each latest offset, starting at `_first_offset`."""
        self.undecodable: set[int] = set()
        """Base offsets of batches that cannot be decoded: none of their keys counts."""
        self.end_offset = 0
        """Batches at or after this offset are not in the map."""

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether the next batch has to wait for the next round."""
        return len(self._offsets) >= self._keys_max

    def add(self, data: Buffer, position: int, header: BatchHeader) -> Steps[None]:
        """Add the next batch of the dirty range."""
        assert header.base_offset >= self.end_offset, "batches come in order"
        if self._first_offset < 0:
            self._first_offset = header.base_offset
        if not header.attributes & CONTROL and not self._aborted.has(header):
            try:
                self._offsets.update((yield from self._keys_of(data, position, header)))
            except BatchCorrupt:
                # Its CRC is right: a producer sent it so, before batches were validated. Readers
                # cannot see its records, so they replace none.
                self.undecodable.add(header.base_offset)
        self.end_offset = header.last_offset + 1

    @staticmethod
    def _keys_of(
        data: Buffer, position: int, header: BatchHeader
    ) -> Steps[dict[bytes | int | None, int]]:
        """The latest offset of each key of a batch. Raises BatchCorrupt."""
        found: dict[bytes | int | None, int] = {}
        payload = payload_of(data, position, header)
        at, left = payload.begin, header.record_count
        while left > 0:
            count = min(left, STEP_RECORDS)
            at = enter_keys(payload, at, count, header.base_offset, found)
            left -= count
            if count == STEP_RECORDS:
                yield
        if at != payload.end:
            raise BatchCorrupt(f"{payload.end - at} bytes follow the batch's last record")
        return found

    def mark(self) -> None:
        """Mark the latest offsets, once the map is complete."""
        first, size = self._first_offset, self.end_offset - self._first_offset
        if first < 0 or size > MARKS_MAX:
            return
        marks = bytearray(size)
        for offset in self._offsets.values():
            if not 0 <= offset - first < size:
                return  # a malformed record with an offset out of range
            marks[offset - first] = 1
        self._marks = marks

    def marks_of(self, header: BatchHeader) -> bytes | None:
        """A 1 for each offset delta that is the latest of its key; None if there are no marks."""
        begin = header.base_offset - self._first_offset
        end = header.last_offset + 1 - self._first_offset
        if begin < 0 or end > len(self._marks):
            return None
        return bytes(self._marks[begin:end])

    def latest(self, keys: Sequence[bytes | None]) -> Iterable[int]:
        """The latest offset of each key in the dirty range, -1 if it does not occur there."""
        return map(self._offsets.get, _short(keys), repeat(-1))


def _parts(columns: Columns, record_count: int) -> Iterator[slice]:
    """Decode all records of a batch, one step at a time. Raises BatchCorrupt."""
    for begin in range(0, record_count, STEP_RECORDS):
        end = min(begin + STEP_RECORDS, record_count)
        read_columns(columns, end - begin)
        yield slice(begin, end)
    check_end(columns)


def _short(keys: Sequence[bytes | None]) -> Sequence[bytes | int | None]:
    """The keys, with long ones replaced by digests."""
    if max(map(len, filter(None, keys)), default=0) <= WHOLE_KEY_BYTES:
        return keys
    return [
        digest_of(key) if key is not None and len(key) > WHOLE_KEY_BYTES else key for key in keys
    ]


class Compaction:
    """The second pass of a round."""

    def __init__(
        self, keys: KeyMap, aborted: AbortedRanges, now_ms: int, delete_retention_ms: int
    ) -> None:
        self._keys = keys
        self._aborted = aborted
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, 2**63 - 1)
        self._with_data: set[int] = set()
        """Producers with a retained batch in their current transaction."""
        self.dropped_markers: list[int] = []
        """Offsets of the transaction markers that were removed."""
        self.removed_records = 0

    def rewrite(
        self, data: Buffer, position: int, header: BatchHeader, *, is_edge: bool
    ) -> Steps[Buffer | None]:
        """The retained form of the next batch: its own bytes, its replacement, or None.

        A batch that cannot be decoded keeps its bytes.
        """
        stored = memoryview(data)[position : position + header.size]
        if header.base_offset >= self._keys.end_offset:
            left: Buffer | None = stored
        elif header.attributes & CONTROL:
            return self._rewrite_marker(stored, header, is_edge=is_edge)
        elif self._aborted.has(header):
            self.removed_records += header.record_count
            left = None
        else:
            removed_records = self.removed_records
            try:
                if header.base_offset in self._keys.undecodable:
                    left = stored
                else:
                    left = yield from self._rewrite_records(data, position, header)
            except BatchCorrupt:  # in the clean range, which is not in the map
                left, self.removed_records = stored, removed_records
        if left is None and is_edge:
            left = stored if not header.record_count else empty_batch(header)
        if left is not None and header.attributes & TRANSACTIONAL:
            if header.attributes & CONTROL:
                self._with_data.discard(header.producer_id)
            else:
                self._with_data.add(header.producer_id)
        return left

    def _rewrite_records(
        self, data: Buffer, position: int, header: BatchHeader
    ) -> Steps[Buffer | None]:
        marks = self._keys.marks_of(header)
        if marks is None:
            return (yield from self._look_up(data, position, header))
        if 1 not in marks:
            self.removed_records += header.record_count
            return None
        survivors, left = Survivors(payload_of(data, position, header)), header.record_count
        while left > 0:
            count = min(left, STEP_RECORDS)
            survivors.take(count, marks)
            left -= count
            if count == STEP_RECORDS:
                yield
        survivors.check_end()
        if survivors.has_tombstone:
            return (yield from self._look_up(data, position, header))
        self.removed_records += header.record_count - survivors.count
        if not survivors.count:
            return None
        if survivors.count == header.record_count:
            return memoryview(data)[position : position + header.size]
        return survivors.batch(header)

    def _look_up(self, data: Buffer, position: int, header: BatchHeader) -> Steps[Buffer | None]:
        """Like `_rewrite_records`, but looks up the records' keys."""
        stored = memoryview(data)[position : position + header.size]
        columns = Columns(payload_of(data, position, header))
        kept: list[int] = []
        for part in _parts(columns, header.record_count):
            kept += self._kept(columns, part, header.base_offset)
            if part.stop - part.start == STEP_RECORDS:
                yield
        horizon_ms = delete_horizon_ms(header)
        has_tombstone = False
        if columns.tombstones:
            tombstones = set(columns.tombstones)
            if horizon_ms is not None and self._now_ms >= horizon_ms:
                kept = [index for index in kept if index not in tombstones]
            has_tombstone = not tombstones.isdisjoint(kept)
        self.removed_records += header.record_count - len(kept)
        if not kept:
            return None
        needs_horizon = has_tombstone and horizon_ms is None
        if len(kept) == header.record_count and not needs_horizon:
            return stored
        new_horizon_ms = self._horizon_ms if needs_horizon else None
        return rewrite_batch(header, columns, kept, new_horizon_ms)

    def _kept(self, columns: Columns, part: slice, base_offset: int) -> Iterable[int]:
        """The records of a part that have a key, and are the latest with it."""
        keys = columns.keys[part]
        offsets = map(base_offset.__add__, columns.deltas[part])
        are_latest: Iterable[bool] = map(ge, offsets, self._keys.latest(keys))
        if None in keys:
            both = zip(keys, are_latest, strict=True)
            are_latest = [is_latest and key is not None for key, is_latest in both]
        return compress(range(part.start, part.stop), are_latest)

    def _rewrite_marker(
        self, stored: Buffer, header: BatchHeader, *, is_edge: bool
    ) -> Buffer | None:
        if not header.record_count or read_marker(stored) is None:
            return stored  # a control record of another kind
        if header.producer_id in self._with_data:
            self._with_data.discard(header.producer_id)
            return stored
        horizon_ms = delete_horizon_ms(header)
        if horizon_ms is None:
            columns = read_all_columns(payload_of(stored, 0, header), header.record_count)
            return rewrite_batch(header, columns, range(len(columns)), self._horizon_ms)
        if self._now_ms < horizon_ms or is_edge:
            return stored
        self.dropped_markers.append(header.base_offset)
        self.removed_records += 1
        return None


def map_run(keys: KeyMap, run: BatchRun, from_offset: int) -> Steps[bool]:
    """Add a run to the map, except batches that end before `from_offset`. Returns whether the map
    is full, so that the rest has to wait. Raises BatchCorrupt."""
    unpaused = 0
    for at, header in run.batches:
        if header.last_offset < from_offset:
            keys.end_offset = header.last_offset + 1
            continue
        if keys.is_full:
            return True
        yield from keys.add(run.data, at, header)
        unpaused += header.record_count % STEP_RECORDS
        if unpaused >= STEP_RECORDS:
            unpaused = 0
            yield
    return False


def rewrite_run(
    compaction: Compaction, run: BatchRun, base_offset: int, end_offset: int
) -> Steps[Left]:
    """The retained form of a run, in a ledger with this offset range. Raises BatchCorrupt."""
    batches: list[Buffer | None] = []
    removed, dropped = compaction.removed_records, len(compaction.dropped_markers)
    unpaused = 0
    for at, header in run.batches:
        is_edge = header.base_offset == base_offset or header.last_offset + 1 == end_offset
        batches.append((yield from compaction.rewrite(run.data, at, header, is_edge=is_edge)))
        unpaused += header.record_count % STEP_RECORDS
        if unpaused >= STEP_RECORDS:
            unpaused = 0
            yield
    return Left(batches, compaction.removed_records - removed, compaction.dropped_markers[dropped:])


def whole_of(run: BatchRun, left: Left) -> tuple[list[Buffer], bool]:
    """The retained batches of a run, and whether anything has changed. Raises BatchCorrupt unless
    each retained batch has the offsets of its original."""
    kept: list[Buffer] = []
    is_changed = False
    for (_, header), batch in zip(run.batches, left.batches, strict=True):
        if batch is None:
            is_changed = True
            continue
        after = read_header(batch)
        _check_left(batch, header, after)
        is_changed = is_changed or after != header
        kept.append(batch)
    return kept, is_changed


def _check_left(left: Buffer, header: BatchHeader, after: BatchHeader) -> None:
    """Raises BatchCorrupt unless `after`, the retained batch's header, matches the original's."""
    if (
        after.size != len(left)
        or after.base_offset != header.base_offset
        or after.last_offset != header.last_offset
        or after.leader_epoch != header.leader_epoch
        or after.producer_id != header.producer_id
        or after.record_count > header.record_count
    ):
        raise BatchCorrupt(f"compaction corrupted the batch at offset {header.base_offset}")
