"""Batches that were read for a share group, and which of their records are for consumers.

Invariants: pure; offsets without a record for consumers (markers, aborted records, compacted
offsets) are listed once and in order.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from zlib import crc32

from headrace.coordination.shares.commands import RecordOrder
from headrace.errors import HeadraceError, RecordInvalid
from headrace.records.attributes import (
    MESSAGE_GROUP,
    PRIORITY_DEFAULT,
    expire_at_ms,
    find_header,
    priority,
)
from headrace.records.batch import CONTROL, TRANSACTIONAL, iterate_headers, read_header
from headrace.records.codec import DECOMPRESSED_BYTES_MAX, iterate_records
from headrace.records.filters import parse_sql, parse_tags
from headrace.records.keys import batch_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.coordination.shares.commands import Acquired
    from headrace.coordination.shares.config import ShareConfig
    from headrace.records.attributes import Headers
    from headrace.records.codec import Record
    from headrace.records.filters import Filter

log = logging.getLogger(__name__)


class BatchesRead:
    """The batches of one receive."""

    __slots__ = ("batches", "size", "skipped", "within")

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.size = 0
        self.within: list[tuple[int, int]] = []
        self.skipped: list[tuple[int, int]] = []
        """Offsets without a record for consumers, ascending."""

    def add(self, data: bytes, offset: int, last: int, aborted: Sequence[tuple[int, int]]) -> int:
        """Add batches that were read from `offset` on; returns the offset after those that were
        added, and after the gap that compaction has left behind them.

        Batches that begin after `last` are not added. `aborted`: (first offset, producer id) of
        aborted transactions among them.
        """
        reached = offset
        open_aborts: dict[int, int] = {}
        starts = sorted(aborted, reverse=True)
        for at, header in iterate_headers(data):
            base_offset, last_offset = header.base_offset, header.last_offset
            if base_offset > last:
                if base_offset > reached:  # or a gap longer than the range would never be passed
                    self.skipped.append((reached, base_offset - 1))
                reached = max(reached, base_offset)
                break
            while starts and starts[-1][0] <= last_offset:
                first_offset, producer_id = starts.pop()
                open_aborts[producer_id] = first_offset
            if base_offset > reached:  # compacted
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

    def take(self, batch: bytes, first: int, last: int) -> None:
        """Add one batch for consumers, with these offsets, as it is."""
        self.batches.append(batch)
        self.within.append((first, last))
        self.size += len(batch)

    def holding(self, acquired: Sequence[Acquired]) -> list[bytes]:
        """The batches that contain any of these records; both ascend."""
        found: list[bytes] = []
        at = 0
        for (first, last), data in zip(self.within, self.batches, strict=True):
            while at < len(acquired) and acquired[at].last < first:
                at += 1
            if at < len(acquired) and acquired[at].first <= last:
                found.append(data)
        return found


class Selection(NamedTuple):
    """The records that one receive asks for, by their headers."""

    tags: str = ""
    """A tag expression (`records/filters`); empty: all."""
    sql: str = ""
    """An SQL92 expression, the same. Both must hold."""
    leaves_others: bool = False
    """Whether the other records stay available, for receives that select them. Otherwise they are
    skipped for the group: acknowledged, and counted as filtered, as RocketMQ does with messages
    that do not match a subscription. Records that are left fill the group's window
    (`share.partition.max.record.locks`) until another receive takes them."""


LENGTH_ORDINARY: Final = 128
"""Of expressions: one of these takes 13 kB when it is parsed, the longest 220 kB."""


def filters_of(selection: Selection) -> tuple[Filter, ...]:
    """The parsed filters of a selection. Raises ConfigInvalid."""
    is_long = len(selection.tags) + len(selection.sql) > LENGTH_ORDINARY
    return (_long_filters if is_long else _ordinary_filters)(selection.tags, selection.sql)


def parts_by_batch(
    found: BatchesRead, ranges: Sequence[tuple[int, int]]
) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
    """Each batch that holds any of `ranges`, with these parts of it; all ascend."""
    at = 0
    for (first, last), batch in zip(found.within, found.batches, strict=True):
        while at < len(ranges) and ranges[at][1] < first:
            at += 1
        parts: list[tuple[int, int]] = []
        for low, high in islice(ranges, at, None):
            if low > last:
                break
            parts.append((max(low, first), min(high, last)))
        if parts:
            yield batch, parts


SERIAL_KEY: Final = 0
"""The key hash of every record if the group takes the records of a partition one at a time."""


class RowReader:
    """Creates rows from records, under one group's settings."""

    __slots__ = ("_config", "_reads_keys_alone", "filters")

    def __init__(self, config: ShareConfig) -> None:
        self._config = config
        self.filters = _filters(config.filter_tags, config.filter_sql)
        self._reads_keys_alone = not (self.filters or config.has_attributes or config.ttl_ms >= 0)

    def rows(self, batch: bytes, start: int, bytes_max: int) -> list[RecordOrder]:
        """The rows of the records of one batch, from `start` on. Raises as `decode_batch`, which
        `bytes_max` is for."""
        if not self._reads_keys_alone:
            records = iterate_records(batch, decompressed_bytes_max=bytes_max)
            return [self.row(record) for record in records if record.offset >= start]
        keys = batch_keys(batch, bytes_max)
        if self._config.is_serial:
            return [_row(offset, SERIAL_KEY) for offset, _ in keys if offset >= start]
        return [
            _row(offset, -1 - offset if key is None else crc32(key))
            for offset, key in keys
            if offset >= start
        ]

    def row(self, record: Record) -> RecordOrder:
        """The row of one record. A malformed attribute counts as not set: its topic accepted it
        while attributes were off."""
        config, headers = self._config, record.headers
        key = -1
        if config.is_serial:
            key = SERIAL_KEY
        elif config.is_ordered and record.key is not None:
            key = crc32(record.key)
        rank, expires_ms = 0, -1
        if config.ttl_ms >= 0 and record.timestamp_ms >= 0:
            expires_ms = record.timestamp_ms + config.ttl_ms
        if config.has_attributes:
            rank = PRIORITY_DEFAULT
            if headers:
                rank, expires_ms = _attributes(headers, expires_ms)
                group = None if config.is_serial else find_header(headers, MESSAGE_GROUP)
                if group:  # it orders the record in place of its key, in every group
                    key = crc32(group)
        is_wanted = all(one.matches(headers) for one in self.filters)
        return RecordOrder(
            record.offset, key if key >= 0 else -1 - record.offset, rank, expires_ms, is_wanted
        )

    def blind_row(self, offset: int) -> RecordOrder:
        """The row of an offset whose record cannot be read."""
        return RecordOrder(offset, SERIAL_KEY if self._config.is_serial else -1 - offset)


def _row(offset: int, key_hash: int) -> RecordOrder:
    """A row with only a key hash: in a third of the time of Row()."""
    return tuple.__new__(RecordOrder, (offset, key_hash, 0, -1, True))


def _attributes(headers: Headers, expires_ms: int) -> tuple[int, int]:
    """(priority, expiry time) of a record; `expires_ms`: by its topic's setting."""
    rank = PRIORITY_DEFAULT
    try:
        rank = priority(headers)
        own_ms = expire_at_ms(headers)
    except RecordInvalid:
        return rank, expires_ms
    if own_ms is None:
        return rank, expires_ms
    return rank, own_ms if expires_ms < 0 else min(own_ms, expires_ms)


def row_reader(config: ShareConfig) -> RowReader:
    """The reader for a group with these settings."""
    is_long = len(config.filter_tags) + len(config.filter_sql) > LENGTH_ORDINARY
    return (_long_readers if is_long else _ordinary_readers)(config)


_ordinary_readers: Final = lru_cache(maxsize=1_000)(RowReader)
_long_readers: Final = lru_cache(maxsize=64)(RowReader)


def _filters(tags: str, sql: str) -> tuple[Filter, ...]:
    """Parse the filters, which were validated when they were set."""
    found = (parse_tags(tags) if tags else None, parse_sql(sql) if sql else None)
    return tuple(one for one in found if one is not None)


_ordinary_filters: Final = lru_cache(maxsize=1_000)(_filters)
_long_filters: Final = lru_cache(maxsize=64)(_filters)


def rows_of(batch: bytes, start: int, reader: RowReader) -> list[RecordOrder]:
    """The rows of the records of one batch, from `start` on.

    A record without a key has no order relative to others: it is a key of its own. So is each
    offset of a batch that cannot be decoded, except in partition order: its consumers detect the
    error, and the group continues.
    """
    try:
        return reader.rows(batch, start, DECOMPRESSED_BYTES_MAX)
    except HeadraceError as error:
        end = read_header(batch).last_offset + 1
        return blind_rows(batch, range(start, end), reader, error)


def blind_rows(
    batch: bytes, offsets: range, reader: RowReader, error: HeadraceError
) -> list[RecordOrder]:
    """The rows of these offsets of a batch that cannot be decoded, as `error` says."""
    first = read_header(batch).base_offset
    log.warning("cannot decode the batch at offset %d: %s", first, error)
    return [reader.blind_row(offset) for offset in range(max(first, offsets.start), offsets.stop)]
