"""Records of batches as columns: positions in one buffer, instead of an object for each field.

Responsibilities: decodes decompressed batches for readers that want columns (Arrow). Knows no
Arrow: `RecordColumns` holds little-endian numbers, ready to be used as buffers of it.

Invariants: pure, and as in `codec`, batches are untrusted: a payload that `codec` refuses is
refused here, unless the damage is in headers that are not read, or in records that are not asked
for. Rows and bytes of the columns are bounded, whatever a batch contains; a batch that does not
fit is continued in the next columns.

A record costs 35 ns compiled and 2 us as pure Python. `BytesWriter` (of mypyc's own library, librt)
is what makes that possible: appending a number to it creates no object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.strings import BytesWriter, write_i64_le

from headrace.errors import BatchCorrupt
from headrace.records.batch import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_LOG_APPEND,
)
from headrace.records.codec import DECOMPRESSED_BYTES_MAX
from headrace.records.compression import NONE, decompress
from headrace.records.varints import VARINT_BITS_MAX, VARLONG_BITS_MAX, read_varint

if TYPE_CHECKING:
    from mypy_extensions import i64

    from headrace.records.batch import BatchHeader

ROW_BYTES: Final = 64
"""A row's numbers, and the positions of its fields."""
NO_KEY: Final = 1
NO_VALUE: Final = 2
NO_TIME: Final = 4
LOG_APPEND_TIME: Final = 8
"""Flags of a row; NO_VALUE also of a header."""
TIMESTAMP_MS_MIN: Final = -62_135_596_800_000
"""The first millisecond of the year 1: timestamps of SQL range from there to the year 9999."""
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1
_NEAR_MS: Final = 1 << 46
"""Times up to here, and their sums, are in SQL's range."""
_ABSENT: Final = -1
"""Microseconds that no time in milliseconds has."""


class RecordColumns:
    """Rows of one partition, at most `rows_max`, and `bytes_max` in all columns, or one row.

    `positions` has, after a zero, four per row: where the key begins and ends in `body()`, and
    where the value does (an empty range if null). `headers` has the same four per header, after a
    zero; `header_counts`, after a zero, the headers up to each row. `times` are microseconds, 0
    where the row is flagged NO_TIME; `strange_ms` has those outside TIMESTAMP_MS_MIN and
    TIMESTAMP_MS_MAX, by row.
    """

    def __init__(self, rows_max: int, bytes_max: int, *, has_headers: bool = True) -> None:
        self.rows_max: i64 = rows_max
        self.bytes_max: i64 = bytes_max
        self.has_headers = has_headers
        self.row_count: i64 = 0
        self.header_count: i64 = 0
        self.size_bytes: i64 = 0
        self.flags_used: i64 = 0
        self.header_flags_used: i64 = 0
        self.positions = BytesWriter()
        self.offsets = BytesWriter()
        self.times = BytesWriter()
        self.flags = BytesWriter()
        self.headers = BytesWriter()
        self.header_counts = BytesWriter()
        self.header_flags = BytesWriter()
        self.strange_ms: list[tuple[int, int]] = []
        self._parts: list[memoryview] = []
        self.body_size: i64 = 0
        for writer in (self.positions, self.headers, self.header_counts):
            write_i64_le(writer, 0)

    def body(self) -> bytes:
        """The bytes that all positions refer to."""
        return b"".join(self._parts)

    def add_body(self, part: memoryview) -> None:
        """Append the bytes that the latest rows were decoded from."""
        self._parts.append(part)
        self.body_size += len(part)


class BatchCursor:
    """A batch that is being decoded: those records whose offsets are in [first, end)."""

    def __init__(
        self, data: bytes, position: int, header: BatchHeader, first: int, end: int
    ) -> None:
        """`data` has the batch at `position`; its CRC was checked. Raises BatchCorrupt."""
        codec = header.attributes & COMPRESSION_MASK
        stop = position + header.size
        if codec == NONE:
            self._data = data
            self._at: i64 = position + HEADER_SIZE
            self._stop: i64 = stop
        else:
            stream = memoryview(data)[position + HEADER_SIZE : stop]
            self._data = decompress(codec, stream, DECOMPRESSED_BYTES_MAX)
            self._at, self._stop = 0, len(self._data)
        if header.record_count < 0 or header.base_offset < 0:
            raise BatchCorrupt(f"{header.record_count} records from offset {header.base_offset}")
        if header.base_offset > _INT64_MAX - (1 << 31):
            raise BatchCorrupt(f"records from offset {header.base_offset}")
        self._left: i64 = header.record_count
        self._base: i64 = header.base_offset
        self._delta: i64 = -1
        self._delta_max: i64 = header.last_offset_delta
        self._is_log_append = header.attributes & TIMESTAMP_TYPE_LOG_APPEND != 0
        self._first_ms: i64 = header.first_timestamp_ms
        if self._is_log_append:
            self._first_ms = header.max_timestamp_ms
        self._first: i64 = first
        self._end: i64 = end

    def decode_into(self, columns: RecordColumns) -> bool:
        """Append rows until the columns are full or the batch ends; returns whether it ended.

        Raises BatchCorrupt.
        """
        begin = self._at
        try:
            self._decode(columns)
        except IndexError:
            base = int(self._base)
            raise BatchCorrupt("the batch ends inside a record", offset=base) from None
        columns.add_body(memoryview(self._data)[begin : self._at])
        if self._left == 0 and self._at != self._stop:
            raise BatchCorrupt(f"{self._stop - self._at} bytes follow the batch's last record")
        return self._left == 0

    def _decode(self, columns: RecordColumns) -> None:
        data, stop, at = self._data, self._stop, self._at
        shift: i64 = columns.body_size - at
        """What turns a position in `data` into one in the columns' body."""
        while self._left > 0:
            length, at = _number_at(data, at)
            finish: i64 = at + length
            if length < 0 or finish > stop:
                raise BatchCorrupt(f"a record of {length} bytes, {stop - at} are left")
            if not self._fits(columns, length):
                return
            delta_ms, at = _number_at(
                data, at + 1, VARLONG_BITS_MAX
            )  # past the attributes, which are unused
            delta, at = _number_at(data, at)
            if not self._delta < delta <= self._delta_max:
                raise BatchCorrupt(f"offset delta {delta} follows {self._delta}")
            self._delta = delta
            key_size, key_at = _number_at(data, at)
            key_end: i64 = key_at
            if key_size > 0:
                key_end += key_size
            if key_end >= finish:
                raise BatchCorrupt(f"a key of {key_size} bytes ends after its record")
            value_size, value_at = _number_at(data, key_end)
            value_end: i64 = value_at
            if value_size > 0:
                value_end += value_size
            if key_size < -1 or value_size < -1 or value_end >= finish:
                raise BatchCorrupt(f"a key or value of {key_size} or {value_size} bytes")
            offset: i64 = self._base + delta
            is_wanted = self._first <= offset < self._end
            if is_wanted:
                positions = columns.positions
                write_i64_le(positions, key_at + shift)
                write_i64_le(positions, key_end + shift)
                write_i64_le(positions, value_at + shift)
                write_i64_le(positions, value_end + shift)
                write_i64_le(columns.offsets, offset)
                self._add_flags(columns, delta_ms, key_size, value_size)
                columns.row_count += 1
                columns.size_bytes += ROW_BYTES + length
            if columns.has_headers:
                if data[value_end] == 0 and value_end + 1 == finish:
                    if is_wanted:
                        write_i64_le(columns.header_counts, columns.header_count)
                else:
                    self._read_headers(columns, value_end, finish, shift, is_wanted=is_wanted)
            self._at = at = finish
            self._left -= 1

    def _add_flags(
        self, columns: RecordColumns, delta_ms: i64, key_size: i64, value_size: i64
    ) -> None:
        """Append the time of a row, and what it lacks."""
        flag: i64 = LOG_APPEND_TIME if self._is_log_append else 0
        if key_size < 0:
            flag |= NO_KEY
        if value_size < 0:
            flag |= NO_VALUE
        if self._is_log_append:
            delta_ms = 0
        time_us: i64 = (self._first_ms + delta_ms) * 1000
        if not (0 <= self._first_ms <= _NEAR_MS and -self._first_ms <= delta_ms <= _NEAR_MS):
            time_us = self._rare_time(columns, delta_ms)
            if time_us == _ABSENT:
                flag |= NO_TIME
                time_us = 0
        write_i64_le(columns.times, time_us)
        columns.flags.append(int(flag))
        columns.flags_used |= flag

    def _fits(self, columns: RecordColumns, length: i64) -> bool:
        if columns.row_count == 0:
            return True
        if columns.row_count >= columns.rows_max:
            return False
        return columns.size_bytes + ROW_BYTES + length <= columns.bytes_max

    def _rare_time(self, columns: RecordColumns, delta_ms: i64) -> i64:
        """Microseconds of a time before 1970 or one too large, or _ABSENT where SQL has none."""
        time_ms = int(self._first_ms) + int(delta_ms)
        if not _INT64_MIN <= time_ms <= _INT64_MAX:
            raise BatchCorrupt(f"a timestamp of {time_ms} ms")
        if TIMESTAMP_MS_MIN <= time_ms <= TIMESTAMP_MS_MAX:
            return _ABSENT if time_ms == NO_TIMESTAMP else time_ms * 1000
        columns.strange_ms.append((int(columns.row_count), time_ms))
        return _ABSENT

    def _read_headers(
        self, columns: RecordColumns, at: i64, finish: i64, shift: i64, *, is_wanted: bool
    ) -> None:
        data = self._data
        count, at = _number_at(data, at)
        if not 0 <= count <= (finish - at) // 2:  # each takes at least two bytes
            raise BatchCorrupt(f"{count} headers in the remaining {finish - at} bytes")
        for _ in range(count):
            key_size, at = _number_at(data, at)
            key_at: i64 = at
            if key_size < 0:
                raise BatchCorrupt("a record header without a name")
            at += key_size
            if at >= finish:
                raise BatchCorrupt(f"a header's name of {key_size} bytes ends after its record")
            size, value_at = _number_at(data, at)
            value_end: i64 = value_at
            if size > 0:
                value_end += size
            if size < -1 or value_end > finish:
                raise BatchCorrupt(f"a header of {size} bytes ends after its record")
            if is_wanted:
                write_i64_le(columns.headers, key_at + shift)
                write_i64_le(columns.headers, at + shift)
                write_i64_le(columns.headers, value_at + shift)
                write_i64_le(columns.headers, value_end + shift)
                columns.header_flags.append(NO_VALUE if size < 0 else 0)
                columns.header_flags_used |= NO_VALUE if size < 0 else 0
            at = value_end
        if at != finish:
            raise BatchCorrupt(f"a record's length ends at {finish}, its fields at {at}")
        if is_wanted:
            columns.header_count += count
            write_i64_le(columns.header_counts, columns.header_count)


def _number_at(data: bytes, at: i64, bits_max: int = VARINT_BITS_MAX) -> tuple[i64, i64]:
    """The zigzag varint at `at`, and its end: `read_varint` for native integers."""
    byte: i64
    high: i64
    number: i64
    end: i64
    # inline: number, end = read_varint(data, at, bits_max)
    byte = data[at]
    if byte < 128:
        number, end = (byte >> 1) ^ -(byte & 1), at + 1
    elif (high := data[at + 1]) < 128:
        number, end = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
    else:
        number, end = read_varint(data, at, bits_max)
    return number, end
