"""Records read from the Parquet files of a topic's table.

Invariants: runs in threads, knows files and rows, not ledgers. Memory is bounded: each reader
decodes about `BATCH_BYTES` of rows at a time, a row group of more than `GROUP_BYTES_MAX` lends
nothing, and at most `CURSORS_MAX` files stay open besides those being read, each where a reader was
last, so that reading on decodes nothing twice. A reader of one file does not wait for that of
another, except for its turn to decode. A file that cannot be read is an error and never an empty
answer.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.records.batch import NO_TIMESTAMP
from headrace.records.codec import header_name
from headrace.storage.tiering.table_sources import (
    READ_BYTES,
    Ranges,
    TableSources,
    Turns,
    translated,
    unreadable,
)

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Sequence

    from headrace.records.codec import Headers
    from headrace.storage.tiering.recipe_format import TableFile

BATCH_ROWS_MAX: Final = 4096
BATCH_BYTES: Final = 8 << 20
GROUP_BYTES_MAX: Final = 256 << 20
"""Uncompressed: what a batch of rows takes at most, if a few of them have most of the bytes."""
CURSORS_MAX: Final = 4
_COLUMNS: Final = ("offset", "timestamp", "key", "headers", "value", "raw")
_HEADER_ROWS_MIN: Final = 256
_PLAIN_BYTES_MIN: Final = 8
"""Bytes for each value of a column that has most of its values as they are."""


class Rows(NamedTuple):
    """Records as columns: an object for each would cost the cycle collector more than the rest."""

    offsets: list[int]
    times_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers | None]

    def part(self, first: int, end: int) -> Rows:
        """Some of the rows."""
        return Rows._make(column[first:end] for column in self)


_NO_ROWS: Final = Rows([], [], [], [], [])


class _Cursor:
    """A file, open at a row."""

    def __init__(self, file: TableFile, sources: TableSources, turns: Turns) -> None:
        self.file = _opened(file, sources, turns)
        metadata = self.file.metadata
        counts = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        self.starts = list(accumulate(counts, initial=0))
        self.rows_max = _rows_max(metadata)
        self.batches: Iterator[Any] | None = None
        self.rows = _NO_ROWS
        """The rows decoded last, which begin at `first`; `row` is where the reader is."""
        self.first = self.row = 0

    def seek(self, row: int) -> None:
        """Continue at `row`: in what is decoded, later in its row group, or from its start."""
        if self.first <= row < self.first + len(self.rows.offsets):
            self.row = row
            return
        group = bisect_right(self.starts, row) - 1
        if self.batches is None or not self.starts[group] <= self.row <= row:
            groups = list(range(group, len(self.starts) - 1))
            # Without threads, for it is this one that has the turn to decode.
            batches = self.file.iter_batches(
                self.rows_max, groups, list(_COLUMNS), use_threads=False
            )
            self.batches = chain.from_iterable(map(_parts, batches))
            self.rows, self.first = _NO_ROWS, self.starts[group]
        self.row = row
        while self.first + len(self.rows.offsets) <= row:
            self._decode(row)

    def _decode(self, row: int) -> None:
        """Decode the next batch of rows, if it reaches `row`. Raises StopIteration at the end."""
        assert self.batches is not None
        batch = next(self.batches)
        self.first += len(self.rows.offsets)
        if self.first + batch.num_rows <= row:
            self.first += batch.num_rows
            self.rows = _NO_ROWS
        else:
            self.rows = _columns(batch)

    def take(self, count: int) -> Rows:
        """The next `count` records."""
        parts: list[Rows] = []
        left = count
        while True:
            at = self.row - self.first
            part = self.rows.part(at, at + left)
            parts.append(part)
            self.row += len(part.offsets)
            left -= len(part.offsets)
            if not left:
                break
            self._decode(self.row)
        if len(parts) == 1:
            return part
        return Rows._make(
            list(chain.from_iterable(columns)) for columns in zip(*parts, strict=True)
        )

    def close(self) -> None:
        """Close the file."""
        self.file.close(force=True)


class TableRows:
    """Rows of data files, for all ledgers together."""

    def __init__(self, sources: TableSources | None = None) -> None:
        self.sources = sources or TableSources()
        self.turns = Turns()
        self._lock = threading.Lock()
        self._idle: dict[TableFile, _Cursor] = {}
        self._forgotten = 0
        """How often files were forgotten: a cursor that was in use then is not kept."""

    def read(self, file: TableFile, first_row: int, count: int) -> Rows:
        """Exactly `count` records from a row on. Raises StorageUnavailable, DataCorrupt."""
        with self._lock:
            cursor, age = self._idle.pop(file, None), self._forgotten
        with translated(file), self.turns.taken():
            cursor = cursor or _Cursor(file, self.sources, self.turns)
            try:
                cursor.seek(first_row)
                records = cursor.take(count)
            except StopIteration:
                raise unreadable(file, f"it has no {count} rows from {first_row} on") from None
        with self._lock:
            idle = [self._idle.pop(file, None)]
            if age == self._forgotten:
                self._idle[file] = cursor
            else:
                idle.append(cursor)
            while len(self._idle) > CURSORS_MAX:
                idle.append(self._idle.pop(next(iter(self._idle))))
        for one in idle:
            if one is not None:
                one.close()
        return records

    def forget(self, files: Sequence[TableFile]) -> None:
        """Close these files, which may have been replaced."""
        with self._lock:
            self._forgotten += 1
            idle = [self._idle.pop(file, None) for file in files]
        for cursor in idle:
            if cursor is not None:
                cursor.close()

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            while self._idle:
                self._idle.popitem()[1].close()


def offsets_of(file: TableFile, sources: TableSources) -> array[int]:
    """The offset of each row of a file; none if it is not fit to lend its rows.

    Raises StorageUnavailable, DataCorrupt.
    """
    from array import array

    with translated(file), _opened(file, sources) as opened:
        if max(_group_sizes(opened.metadata), default=0) > GROUP_BYTES_MAX:
            return array("q")
        found = array("q")
        for chunk in opened.read(["offset"]).column("offset").chunks:
            if chunk.null_count:
                return array("q")
            data = memoryview(chunk.buffers()[1]).cast("B")
            first = chunk.offset * found.itemsize
            found.frombytes(data[first : first + len(chunk) * found.itemsize])
        return found


def _opened(file: TableFile, sources: TableSources, turns: Turns | None = None) -> Any:
    from pyarrow import parquet

    metadata = parquet.read_metadata(source := sources.open(file, turns))
    _check_columns(metadata, file.size_bytes)
    # A value that is stored once for many rows stays so until the rows are asked for.
    once = {one.path_in_schema for one in _repeating(metadata)} & {"key", "value"}
    return parquet.ParquetFile(
        source, metadata=metadata, read_dictionary=sorted(once), buffer_size=READ_BYTES,
        pre_buffer=False,
    )  # fmt: skip


class _NoBytesError(Exception):
    """What the metadata says of all columns was accepted."""


def _no_bytes(_start: int, _count: int) -> bytes:
    raise _NoBytesError


def _check_columns(metadata: Any, size: int) -> None:
    """Raise OSError for metadata of columns that is damaged.

    pyarrow ends the process if it is asked for such a column (`metadata.row_group(0).column(0)`),
    but raises an error where it prepares to decode one, before it reads.
    """
    import pyarrow as pa
    from pyarrow import parquet

    source = pa.PythonFile(Ranges(_no_bytes, size), mode="r")
    file = parquet.ParquetFile(source, metadata=metadata, buffer_size=READ_BYTES, pre_buffer=False)
    for group in range(metadata.num_row_groups):
        with suppress(_NoBytesError, StopIteration):
            next(file.iter_batches(1, [group], list(_COLUMNS), use_threads=False))


def _repeating(metadata: Any) -> Iterator[Any]:
    """The column chunks, of those that were checked, that have some values once for many rows."""
    columns = [
        column
        for column in range(metadata.num_columns)
        if metadata.schema.column(column).path.partition(".")[0] in _COLUMNS
    ]
    for group in range(metadata.num_row_groups):
        for column in columns:
            chunk = metadata.row_group(group).column(column)
            if chunk.has_dictionary_page:
                yield chunk


def _rows_max(metadata: Any) -> int:
    """Rows of about BATCH_BYTES in any row group.

    Of headers that repeat, only the size of what is stored is known: a row may take all of that.
    """
    groups = (metadata.row_group(at) for at in range(metadata.num_row_groups))
    means = (one.total_byte_size / max(1, one.num_rows) for one in groups)
    rows = min(BATCH_ROWS_MAX, max(1, int(BATCH_BYTES / max([1, *means]))))
    for chunk in _repeating(metadata):
        stored = chunk.total_uncompressed_size
        if chunk.path_in_schema.startswith("headers.") and (
            stored < _PLAIN_BYTES_MIN * chunk.num_values
        ):
            rows = min(rows, max(_HEADER_ROWS_MIN, BATCH_BYTES // stored))
    return rows


def _group_sizes(metadata: Any) -> list[int]:
    """Uncompressed bytes of each row group."""
    return [metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups)]


def _parts(batch: Any) -> Iterator[Any]:
    """A batch of rows, halved until each part is small as Python's objects, too."""
    if batch.num_rows <= 1 or _decoded_bytes(batch) <= BATCH_BYTES:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))


def _decoded_bytes(batch: Any) -> int:
    """Bytes of the payload columns whose values are stored once for many rows."""
    import pyarrow as pa
    from pyarrow import compute

    total = 0
    for column in (batch.column("key"), batch.column("value")):
        if pa.types.is_dictionary(column.type):
            lengths = compute.binary_length(column.dictionary).take(column.indices)
            total += compute.sum(lengths).as_py() or 0
    return total


def _plain(column: Any) -> Any:
    import pyarrow as pa

    return column.cast(pa.binary()) if pa.types.is_dictionary(column.type) else column


def _columns(batch: Any) -> Rows:
    """The rows of an Arrow batch, each as it was produced."""
    import pyarrow as pa

    offsets, times, keys, headers, values, raw = (batch.column(name) for name in _COLUMNS)
    micros = times.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    count = len(offsets)
    heads: list[Headers | None] = [None] * count
    if raw.null_count == count and not times.null_count:
        times_ms = [time // 1000 for time in micros]
        if headers.null_count < count:
            heads = [_headers(head, None) if head else None for head in headers.to_pylist()]
    else:
        strange = raw.to_pylist()
        times_ms = [_time_ms(time, odd) for time, odd in zip(micros, strange, strict=True)]
        heads = [
            _headers(head, odd) if head else None
            for head, odd in zip(headers.to_pylist(), strange, strict=True)
        ]
    keys, values = _plain(keys), _plain(values)
    return Rows(offsets.to_pylist(), times_ms, keys.to_pylist(), values.to_pylist(), heads)


def _time_ms(micros: int | None, odd: dict[str, Any] | None) -> int:
    if odd is not None and odd["timestampMs"] is not None:
        return int(odd["timestampMs"])
    return NO_TIMESTAMP if micros is None else micros // 1000


def _headers(
    head: list[dict[str, Any]], odd: dict[str, Any] | None
) -> list[tuple[str, bytes | None]]:
    names = odd["headerKeys"] if odd is not None else None
    if names is None:
        return [(one["key"], one["value"]) for one in head]
    return [(header_name(name), one["value"]) for name, one in zip(names, head, strict=True)]
