"""Record batches written anew with some of their records, for log compaction.

Invariants: pure. A record that stays keeps its bytes, except for its timestamp delta where the
batch gets a delete horizon. The batch keeps its base and last offset, producer, sequence, leader
epoch and codec; length, count, largest timestamp and CRC are renewed, as Kafka's cleaner does.

A *delete horizon* (attribute bit 6, KIP-534) is the time from which tombstones and transaction
markers of the batch may be removed. It lies in the field of the first timestamp, and the records'
timestamp deltas count from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import BatchCorrupt
from headrace.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_LOG_APPEND,
)
from headrace.records.codec import (
    DECOMPRESSED_BYTES_MAX,
    assemble_batch,
    read_varint,
    write_varint,
)
from headrace.records.compression import compress, decompress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.records.batch import BatchHeader, Buffer

_VARLONG_BITS_MAX: Final = 64


class RawRecord(NamedTuple):
    """Where one record lies in a batch's decompressed payload."""

    start: int
    """Of its length field."""
    end: int
    offset_delta: int
    timestamp_delta: int
    rest: int
    """Where its offset delta begins."""
    key: bytes | None
    has_value: bool


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """From when tombstones and markers of the batch may be removed, None if that is not set."""
    return header.first_timestamp_ms if header.attributes & DELETE_HORIZON else None


def payload_of(
    batch: Buffer,
    position: int,
    header: BatchHeader,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> bytes:
    """The decompressed records of the batch at `position`. Raises BatchCorrupt; checks no CRC."""
    stream = memoryview(batch)[position + HEADER_SIZE : position + header.size]
    return decompress(header.attributes & COMPRESSION_MASK, stream, decompressed_bytes_max)


def iterate_raw_records(data: bytes, record_count: int) -> Iterator[RawRecord]:
    """The records of a batch's payload, one by one. Raises BatchCorrupt.

    Numbers of one and two bytes are read in place: a call for each would double the cost.
    """
    at, end_of_data = 0, len(data)
    make = tuple.__new__
    try:
        for _ in range(record_count):
            start = at
            byte = data[at]
            if byte < 128:
                length, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (second := data[at + 1]) < 128:
                length, at = ((byte & 127) >> 1 | second << 6) ^ -(byte & 1), at + 2
            else:
                length, at = read_varint(data, at)
            end = at + length
            byte = data[at + 1]
            if byte < 128:
                timestamp_delta, rest = (byte >> 1) ^ -(byte & 1), at + 2
            else:
                timestamp_delta, rest = read_varint(data, at + 1, _VARLONG_BITS_MAX)
            byte = data[rest]
            if byte < 128:
                offset_delta, at = (byte >> 1) ^ -(byte & 1), rest + 1
            elif (second := data[rest + 1]) < 128:
                offset_delta, at = ((byte & 127) >> 1 | second << 6) ^ -(byte & 1), rest + 2
            else:
                offset_delta, at = read_varint(data, rest)
            size = data[at]
            if size < 128:
                size, at = (size >> 1) ^ -(size & 1), at + 1
            else:
                size, at = read_varint(data, at)
            if size < 0:
                key = None
            else:
                key = data[at : at + size]
                at += size
            byte = data[at]
            if byte < 128:
                size, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (second := data[at + 1]) < 128:
                size, at = ((byte & 127) >> 1 | second << 6) ^ -(byte & 1), at + 2
            else:
                size, at = read_varint(data, at)
            if (at + size if size > 0 else at) > end or end > end_of_data or length < 0:
                raise BatchCorrupt(f"a record says it ends at {end}, before its fields do")
            fields = (start, end, offset_delta, timestamp_delta, rest, key, size >= 0)
            yield make(RawRecord, fields)
            at = end
    except IndexError:
        raise BatchCorrupt("the batch ends within a record") from None
    if at != end_of_data:
        raise BatchCorrupt(f"{end_of_data - at} bytes follow the batch's last record")


def raw_records(batch: Buffer, position: int, header: BatchHeader) -> tuple[bytes, list[RawRecord]]:
    """(payload, records) of the batch at `position`. Raises BatchCorrupt; checks no CRC."""
    payload = payload_of(batch, position, header)
    return payload, list(iterate_raw_records(payload, header.record_count))


def rewrite_batch(
    header: BatchHeader,
    payload: bytes,
    records: Sequence[RawRecord],
    horizon_ms: int | None = None,
) -> bytes:
    """The batch with only these of its records, at least one, and with a new delete horizon."""
    assert records, "a batch without records is `empty_batch`"
    newest_ms = header.max_timestamp_ms
    if not header.attributes & TIMESTAMP_TYPE_LOG_APPEND:
        newest_ms = header.first_timestamp_ms + max(record.timestamp_delta for record in records)
    if horizon_ms is None:
        plain = b"".join([payload[record.start : record.end] for record in records])
    else:
        shift = header.first_timestamp_ms - horizon_ms
        parts: list[bytes] = []
        for record in records:
            delta = write_varint(record.timestamp_delta + shift)
            length = 1 + len(delta) + record.end - record.rest
            parts += (write_varint(length), b"\0", delta, payload[record.rest : record.end])
        plain = b"".join(parts)
        header = header._replace(
            first_timestamp_ms=horizon_ms, attributes=header.attributes | DELETE_HORIZON
        )
    header = header._replace(record_count=len(records), max_timestamp_ms=newest_ms)
    return assemble_batch(header, compress(header.attributes & COMPRESSION_MASK, plain))


def empty_batch(header: BatchHeader) -> bytes:
    """The batch without records: 61 bytes that keep its offsets, producer and sequence."""
    header = header._replace(
        attributes=header.attributes & ~(DELETE_HORIZON | COMPRESSION_MASK),
        record_count=0,
        first_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
    )
    return assemble_batch(header, b"")
