"""A client's messages as columns of Python lists, with their size, split into batches.

Invariants: no Arrow, no connection. Every byte of every column counts towards a batch's size, which
is at most `BATCH_BYTES_MAX`, or one record. Work is per slice of messages where possible: row sizes
are computed only for a slice that must be split.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_BYTES_MAX = 32 << 20
_ROW_BYTES = 64
"""A row's numeric columns, and the end positions of its variable-length columns."""
_HEADER_BYTES = 8

Headers = list[tuple[str, bytes | None]]
RawHeaders = list[tuple[bytes, bytes | None]]
ReadRawHeaders = Callable[[Sequence[int]], dict[int, RawHeaders]]
"""Rereads the headers of records at given offsets, without decoding their keys."""


@dataclass(slots=True)
class RecordColumns:
    """Records of one partition; all lists have the same length.

    `raw_keys` has the raw header keys of records with a key that is not UTF-8, by offset; in
    `headers`, such a key has replacement characters.
    """

    offsets: list[int] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[Headers | None] = field(default_factory=list)
    raw_keys: dict[int, list[bytes]] = field(default_factory=dict)
    size_bytes: int = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def extend(self, more: RecordColumns) -> None:
        """Append the rows of `more`."""
        self.offsets += more.offsets
        self.kinds += more.kinds
        self.times_ms += more.times_ms
        self.keys += more.keys
        self.values += more.values
        self.headers += more.headers
        self.raw_keys |= more.raw_keys
        self.size_bytes += more.size_bytes

    def cut(self, begin: int, end: int, size_bytes: int) -> RecordColumns:
        """Return the rows in [begin, end), whose size is given."""
        offsets = self.offsets[begin:end]
        raw_keys = {each: self.raw_keys[each] for each in offsets if each in self.raw_keys}
        return RecordColumns(
            offsets,
            self.kinds[begin:end],
            self.times_ms[begin:end],
            self.keys[begin:end],
            self.values[begin:end],
            self.headers[begin:end],
            raw_keys,
            size_bytes,
        )

    def row_sizes(self) -> list[int]:
        """Return the size of each row; their sum is `size_bytes`."""
        return [
            _ROW_BYTES + len(key or b"") + len(value or b"") + _size_of_headers(headers)
            for key, value, headers in zip(self.keys, self.values, self.headers, strict=True)
        ]


def columns_of(
    messages: Sequence[Any], *, include_headers: bool, read_raw_headers: ReadRawHeaders
) -> RecordColumns:
    """Convert a client's messages to columns; raises what `read_raw_headers` raises."""
    offsets = [message.offset() for message in messages]
    times = [message.timestamp() for message in messages]
    keys = [message.key() for message in messages]
    values = [message.value() for message in messages]
    headers: list[Headers | None] = []
    raw_keys: dict[int, list[bytes]] = {}
    if include_headers:
        headers, raw_keys = _headers_of(messages, offsets, read_raw_headers)
    else:
        headers = [None] * len(offsets)
    return RecordColumns(
        offsets,
        [kind for kind, _ in times],
        [time_ms for _, time_ms in times],
        keys,
        values,
        headers,
        raw_keys,
        size_bytes=_ROW_BYTES * len(offsets)
        + sum(map(len, filter(None, keys)))
        + sum(map(len, filter(None, values)))
        + sum(map(_size_of_headers, filter(None, headers))),
    )


def batches_of(slices: Iterator[RecordColumns], rows_max: int) -> Iterator[RecordColumns]:
    """Yield the rows in batches of at most `rows_max` rows and `BATCH_BYTES_MAX`, or one row."""
    held = RecordColumns()
    for rows in slices:
        if _fits(held, rows, rows_max):
            held.extend(rows)
        else:
            if held:
                yield held
            *full, held = _split(rows, rows_max)
            yield from full
        if len(held) >= rows_max:
            yield held
            held = RecordColumns()
    if held:
        yield held


def _fits(held: RecordColumns, rows: RecordColumns, rows_max: int) -> bool:
    if len(held) + len(rows) > rows_max:
        return False
    return held.size_bytes + rows.size_bytes <= BATCH_BYTES_MAX


def _split(rows: RecordColumns, rows_max: int) -> list[RecordColumns]:
    """Split `rows` into pieces within the bounds; a larger row becomes its own piece."""
    if _fits(RecordColumns(), rows, rows_max):
        return [rows]
    pieces = []
    begin = size = 0
    for index, row_size in enumerate(rows.row_sizes()):
        is_full = size + row_size > BATCH_BYTES_MAX or index - begin >= rows_max
        if is_full and index > begin:
            pieces.append(rows.cut(begin, index, size))
            begin, size = index, 0
        size += row_size
    pieces.append(rows.cut(begin, len(rows), size))
    return pieces


def _size_of_headers(headers: Headers | None) -> int:
    if not headers:
        return 0
    return sum([_HEADER_BYTES + len(key) + len(value or b"") for key, value in headers])


def _headers_of(
    messages: Sequence[Any], offsets: list[int], read_raw_headers: ReadRawHeaders
) -> tuple[list[Headers | None], dict[int, list[bytes]]]:
    """Return the headers of each message, and the raw keys of those that the client cannot decode.

    A client that fails to decode a key returns a list with holes while an exception is set. Only a
    checked call, such as `methodcaller` makes, raises it immediately; a call specialized by the
    interpreter would not. The list stays in the message, so each message's headers are read once.
    """
    ask = map(methodcaller("headers"), messages)
    headers: list[Headers | None] = []
    undecoded: list[int] = []
    while True:
        try:
            for each in ask:
                headers.append(each)  # noqa: PERF402 - what came before a failure is kept
            break
        except (SystemError, UnicodeDecodeError):
            undecoded.append(len(headers))
            headers.append(None)
    if not undecoded:
        return headers, {}
    found = read_raw_headers([offsets[index] for index in undecoded])
    raw_keys = {}
    for index in undecoded:
        raw = found[offsets[index]]
        headers[index] = [(key.decode("utf-8", "replace"), value) for key, value in raw]
        raw_keys[offsets[index]] = [key for key, _ in raw]
    return headers, raw_keys
