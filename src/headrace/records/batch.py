"""The record batch, magic 2: its header is read in place, its records are opaque.

Invariants: no I/O, no decompression, no copying. The layout is Kafka's
(`DefaultRecordBatch`, KIP-98). Do not change: stored and on the wire.

     0 base offset         int64      27 first timestamp   int64
     8 length (after it)   int32      35 max timestamp     int64
    12 leader epoch        int32      43 producer id       int64
    16 magic (2)           int8       51 producer epoch    int16
    17 CRC-32C of 21..end  uint32     53 base sequence     int32
    21 attributes          int16      57 record count      int32
    23 last offset delta   int32      61 records

The CRC excludes the first 21 bytes, so the broker assigns offset and epoch without recomputing it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from headrace.errors import BatchCorrupt, UnsupportedForMessageFormat

if TYPE_CHECKING:
    from collections.abc import Iterator

Buffer = bytes | bytearray | memoryview
Fields = tuple[int, ...]
"""The fields of a `BatchHeader`, in order. The hot path uses a plain tuple: creating the named one
takes 0.1 us, and unpacking it twice as long."""

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes not counted by `length`: base offset and length."""
_HEADER_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD
MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
TIMESTAMP_TYPE_LOG_APPEND: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""The first timestamp is a delete horizon (KIP-534): see `records.rewriting`."""
NAMED: Final = 0x4000
"""Set by brokers, refused from clients: the records carry named sequences, so this batch must be
decoded when a partition's state is rebuilt from its batches (`log.named_sequences`)."""

NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1

HEADER: Final = Struct(">qiibIhiqqqhii")
PLACEMENT: Final = Struct(">qii")
_unpack: Final = HEADER.unpack_from


class BatchHeader(NamedTuple):
    """The fields of a batch header, in wire order."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes."""
        return self.length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def is_doubtful(self) -> bool:
        """Whether it claims more records than it has bytes, which only decoding can verify."""
        return self.record_count > self.length

    @property
    def newest_ms(self) -> int:
        """The largest timestamp of a stored batch.

        Some producers leave it unset, and such a batch was stored before batches were validated:
        the first timestamp is close.
        """
        is_unset = self.max_timestamp_ms == NO_TIMESTAMP and not self.attributes & DELETE_HORIZON
        return self.first_timestamp_ms if is_unset else self.max_timestamp_ms

    @property
    def is_control(self) -> bool:
        """Whether it holds a transaction marker instead of records."""
        return bool(self.attributes & CONTROL)

    @property
    def is_transactional(self) -> bool:
        """Whether it is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)


def read_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`. Raises BatchCorrupt if it is truncated."""
    if position + HEADER_SIZE > len(data):
        raise BatchCorrupt(f"a batch header has 61 bytes, {len(data) - position} are left")
    return BatchHeader._make(_unpack(data, position))


RECORD_SIZE_MIN: Final = 7
"""Length, attributes, two deltas, null key, null value, no headers: a byte each."""
DOUBTFUL_COUNT_MAX: Final = 1 << 20
"""Limit of records per batch if they take less than a byte each. Codecs reach that ratio only for
identical records; librdkafka sends at most 10,000 in a batch by default. Decoders of such a batch
count the records one by one."""


def check_batch(data: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`, validated by `check_fields`."""
    return tuple.__new__(BatchHeader, check_fields(data, position))  # 0.1 us less than `_make`


def header_of(fields: Fields) -> BatchHeader:
    """The named header with these fields."""
    return fields if isinstance(fields, BatchHeader) else tuple.__new__(BatchHeader, fields)


def check_fields(data: Buffer, position: int = 0) -> Fields:
    """The header of the batch at `position`, after all checks a broker must make.

    The record count of a compressed batch is bounded by its size alone; if it `is_doubtful`,
    `validation` must verify it. Raises BatchCorrupt on an invalid length, count or CRC,
    UnsupportedForMessageFormat on magic 0 and 1 (removed in Kafka 4, KIP-724).
    """
    left = len(data) - position
    if left < HEADER_SIZE:
        if left > 16 and data[position + 16] < MAGIC:
            raise UnsupportedForMessageFormat("record formats 0 and 1 are no longer accepted")
        raise BatchCorrupt(f"a batch header has {HEADER_SIZE} bytes, {left} are left")
    header: Fields = _unpack(data, position)
    if header[3] != MAGIC:
        if 0 <= header[3] < MAGIC:
            raise UnsupportedForMessageFormat("record formats 0 and 1 are no longer accepted")
        raise BatchCorrupt(f"unknown record batch magic {header[3]}")
    length = header[1]
    if length < HEADER_SIZE - LOG_OVERHEAD or length + LOG_OVERHEAD > left:
        raise BatchCorrupt(f"batch length {length} exceeds the {left} bytes present")
    count = header[12]
    if count < 1 or header[6] != count - 1:
        raise BatchCorrupt(f"record count {count} contradicts last offset delta {header[6]}")
    if count * RECORD_SIZE_MIN > length - _HEADER_LENGTH and (
        not header[5] & COMPRESSION_MASK or count > max(DOUBTFUL_COUNT_MAX, length)
    ):
        raise BatchCorrupt(f"{count} records do not fit in {length} bytes")
    end = position + LOG_OVERHEAD + length
    # memoryview: a slice of bytes would copy the batch
    if crc32c(memoryview(data)[position + 21 : end]) != header[4]:
        raise BatchCorrupt("the batch's CRC-32C does not match its bytes")
    return header


def iterate_headers(data: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each complete batch in `data`; a truncated last one is skipped."""
    size = len(data)
    while position + HEADER_SIZE <= size:
        header = BatchHeader._make(_unpack(data, position))
        if header.length < HEADER_SIZE - LOG_OVERHEAD:
            raise BatchCorrupt(f"invalid batch length {header.length} at {position}")
        if position + header.length + LOG_OVERHEAD > size:
            return
        yield position, header
        position += header.length + LOG_OVERHEAD


def is_intact(data: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the CRC of the batch at `position` matches."""
    end = position + LOG_OVERHEAD + header.length
    return bool(crc32c(memoryview(data)[position + 21 : end]) == header.crc)
