"""Decoding and encoding of the records in a batch (magic 2), for the few callers that need it.

Invariants: no I/O, no clock. Batches are untrusted: every length, count and number is checked
against the bytes present, and `decompressed_bytes_max` limits those, so work and memory are
bounded. Do not change: stored and on the wire (KIP-98).

    a record: length, attributes (0), timestamp delta, offset delta,
              key size, key, value size, value, header count, (key size, key, value size, value)*
    all numbers but the attributes are zigzag varints; a size of -1 stands for null

Numbers of one and two bytes are decoded inline (`scripts/inline_varints.py`). One core decodes
0.6-1.0 and encodes 0.4-2.4 million records per second (values of 100 B-1 KiB).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

from headrace.errors import BatchCorrupt, UnsupportedForMessageFormat
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    NAMED,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    TIMESTAMP_TYPE_LOG_APPEND,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    is_intact,
    iterate_headers,
    read_header,
)
from headrace.records.compression import NONE, compress, decompress
from headrace.records.skipping import record_position
from headrace.records.varints import VARLONG_BITS_MAX, read_varint, write_varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Headers = list[tuple[str, bytes | None]]

DECOMPRESSED_BYTES_MAX = 64 * 1024 * 1024
"""Default limit on a batch's decompressed size: 64 times Kafka's `max.message.bytes`."""

DECODED_AT_ONCE = 1_000
"""Records of a batch that are objects in memory at a time, if only some of them are needed."""

_INT64_MAX = (1 << 63) - 1
_CRC_START = 21  # the broker may change the bytes before
_MAX_TIMESTAMP_AT, _ATTRIBUTES_AT, _CRC_AT = 35, 21, 17


@dataclass(slots=True)
class Record:
    """One record. `timestamp_ms` is -1 if absent; `headers` keep order and duplicates."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)


# --- decoding --------------------------------------------------------------------------------


def decode_batch(
    data: Buffer, position: int = 0, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> list[Record]:
    """The records of the batch at `position`, in order, including those of a control batch.

    Raises BatchCorrupt if the batch is invalid (including its CRC) or decompresses to more than
    `decompressed_bytes_max`; UnsupportedForMessageFormat on magic 0 and 1.
    """
    payload, header = checked_payload(data, position, decompressed_bytes_max)
    try:
        records, at = _decode_records(payload, header, 0, -1, header.record_count)
    except IndexError:
        raise BatchCorrupt("the batch ends inside a record", offset=header.base_offset) from None
    if at != len(payload):
        raise BatchCorrupt(f"{len(payload) - at} bytes follow the batch's last record")
    return records


def checked_payload(
    data: Buffer, position: int, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> tuple[bytes, BatchHeader]:
    """The decompressed records of a batch, after its CRC was checked."""
    header = read_header(data, position)
    if header.magic != MAGIC:
        if 0 <= header.magic < MAGIC:
            raise UnsupportedForMessageFormat("record formats 0 and 1 are no longer supported")
        raise BatchCorrupt(f"unknown record batch magic {header.magic}")
    end = position + LOG_OVERHEAD + header.length
    if not position + HEADER_SIZE <= end <= len(data):
        raise BatchCorrupt(f"a batch of {header.size} bytes, {len(data) - position} are present")
    if not is_intact(data, position, header):
        raise BatchCorrupt("the batch's CRC-32C does not match its bytes")
    if header.record_count < 0 or header.base_offset < 0:
        raise BatchCorrupt(f"{header.record_count} records from offset {header.base_offset}")
    view = memoryview(data)[position + HEADER_SIZE : end]
    return decompress(header.attributes & COMPRESSION_MASK, view, decompressed_bytes_max), header


def iterate_records(
    data: Buffer, position: int = 0, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> Iterator[Record]:
    """The records of all complete batches in `data`, without control records.

    A truncated last batch is skipped. Raises like decode_batch. Includes records of aborted
    transactions: Fetch reports those separately (`aborted_transactions`).
    """
    for start, header in iterate_headers(data, position):
        if header.magic != MAGIC or not header.attributes & CONTROL:
            yield from decode_batch(data, start, decompressed_bytes_max=decompressed_bytes_max)


class PayloadCursor:
    """A resume point in the records of a batch without gaps."""

    __slots__ = ("at", "index")

    def __init__(self) -> None:
        self.index = 0
        self.at = 0
        """The position in the payload of the record `index`, counted from 0."""


def iterate_payload(
    payload: bytes,
    header: BatchHeader,
    first: int = 0,
    last: int = _INT64_MAX,
    place: PayloadCursor | None = None,
) -> Iterator[list[Record]]:
    """The records of a decompressed batch in order, DECODED_AT_ONCE at a time.

    For batches from clients: some kilobytes may hold millions of records. Records before offset
    `first` and after `last` may be omitted. `place`, of this payload, is advanced.

    Raises BatchCorrupt.
    """
    at, delta, left = 0, -1, header.record_count
    try:
        if left == header.last_offset_delta + 1:  # no gaps: the offset gives the record's index
            skipped = min(max(first - header.base_offset, 0), left)
            if place is None or place.index > skipped:
                at = record_position(payload, skipped)
            else:
                at = record_position(payload, skipped - place.index, place.at)
            delta = skipped - 1
            left = max(min(last - header.base_offset + 1, left) - skipped, 0)
            if place is not None:
                place.index, place.at = skipped, at
        else:
            place = None
        while left > 0:
            count = min(left, DECODED_AT_ONCE)
            records, at = _decode_records(payload, header, at, delta, count)
            delta = records[-1].offset - header.base_offset
            left -= count
            if place is not None:
                place.index, place.at = place.index + count, at
            yield records
    except IndexError:
        base = header.base_offset
        raise BatchCorrupt("the batch ends inside a record", offset=base) from None
    if at != len(payload) and last >= header.last_offset:
        raise BatchCorrupt(f"{len(payload) - at} bytes follow the batch's last record")


def payload_of(
    batch: Buffer, header: BatchHeader, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
) -> bytes:
    """The decompressed records of a batch. Does not check the CRC. Raises BatchCorrupt."""
    stream = memoryview(batch)[HEADER_SIZE : header.size]
    return decompress(header.attributes & COMPRESSION_MASK, stream, decompressed_bytes_max)


def keyless_records(data: bytes, header: BatchHeader) -> list[int]:
    """Which records of a payload, counted from 0, have a null key (an empty key is not null).

    Raises BatchCorrupt if it ends inside a record.
    """
    found: list[int] = []
    at, size = 0, len(data)
    try:
        for index in range(header.record_count):
            length, at = read_varint(data, at)
            end = at + length
            _, at = read_varint(data, at + 1, VARLONG_BITS_MAX)  # past attributes and timestamp
            _, at = read_varint(data, at)
            key_size, at = read_varint(data, at)
            if key_size < 0:
                found.append(index)
            if not at + max(key_size, 0) <= end <= size:
                raise BatchCorrupt(f"record {index} says it ends at {end}, before its key does")
            at = end
    except IndexError:
        raise BatchCorrupt("the batch ends inside a record") from None
    return found


def read_record_headers(payload: bytes, at: int) -> tuple[Headers, int]:
    """The headers of the record whose attributes byte is at `at`, and their end.

    Raises BatchCorrupt; IndexError if the payload ends too early.
    """
    _, at = read_varint(payload, at + 1, VARLONG_BITS_MAX)
    _, at = read_varint(payload, at)
    for _ in range(2):  # key and value
        size, at = read_varint(payload, at)
        at += max(size, 0)
    headers: Headers = []
    return headers, read_headers(payload, at, headers)


def _decode_records(
    data: bytes, header: BatchHeader, at: int, delta_before: int, count: int
) -> tuple[list[Record], int]:
    """`count` records from `at` on, and their end. Raises IndexError if `data` ends too early."""
    records: list[Record] = []
    append = records.append
    base, first_ms = header.base_offset, header.first_timestamp_ms
    is_log_append = header.attributes & TIMESTAMP_TYPE_LOG_APPEND
    timestamp_ms, size = header.max_timestamp_ms, len(data)
    for _ in range(count):
        # inline: length, at = read_varint(data, at)
        byte = data[at]
        if byte < 128:
            length, at = (byte >> 1) ^ -(byte & 1), at + 1
        elif (high := data[at + 1]) < 128:
            length, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
        else:
            length, at = read_varint(data, at)
        end = at + length
        at += 1  # attributes: unused
        # inline: delta_ms, at = read_varint(data, at, VARLONG_BITS_MAX)
        byte = data[at]
        if byte < 128:
            delta_ms, at = (byte >> 1) ^ -(byte & 1), at + 1
        elif (high := data[at + 1]) < 128:
            delta_ms, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
        else:
            delta_ms, at = read_varint(data, at, VARLONG_BITS_MAX)
        if not is_log_append:
            timestamp_ms = first_ms + delta_ms
        # inline: delta, at = read_varint(data, at)
        byte = data[at]
        if byte < 128:
            delta, at = (byte >> 1) ^ -(byte & 1), at + 1
        elif (high := data[at + 1]) < 128:
            delta, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
        else:
            delta, at = read_varint(data, at)
        byte = data[at]
        if byte < 128 and not byte & 1 and at + (byte >> 1) < size:
            key: bytes | None = data[at + 1 : (at := at + 1 + (byte >> 1))]
        else:
            key, at = read_bytes(data, at)
        value, at = read_bytes(data, at)
        headers: Headers = []
        byte = data[at]
        if byte == 0:
            at += 1
        else:
            at = read_headers(data, at, headers)
        if at != end:
            raise BatchCorrupt(f"a record's length ends at {end}, its fields at {at}")
        if not delta_before < delta <= header.last_offset_delta or timestamp_ms > _INT64_MAX:
            raise BatchCorrupt(f"offset delta {delta} follows {delta_before}, at {timestamp_ms}")
        delta_before = delta
        append(Record(base + delta, timestamp_ms, key, value, headers))
    return records, at


def read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    """A key or value, and its end."""
    # inline: size, at = read_varint(data, at)
    byte = data[at]
    if byte < 128:
        size, at = (byte >> 1) ^ -(byte & 1), at + 1
    elif (high := data[at + 1]) < 128:
        size, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
    else:
        size, at = read_varint(data, at)
    if size < 0:
        if size < -1:
            raise BatchCorrupt(f"a key or value of {size} bytes")
        return None, at
    end = at + size
    if end > len(data):
        raise BatchCorrupt(f"a key or value of {size} bytes, {len(data) - at} are left")
    return data[at:end], end


def header_name(data: bytes) -> str:
    """A header's name. Bytes that are not UTF-8 become lone surrogates (PEP 383), so that a record
    that is written again, to a dead letter topic for example, keeps its name."""
    return data.decode(errors="surrogateescape")


def header_name_bytes(name: str) -> bytes:
    """The bytes of a header's name: those that were read, if it was read."""
    return name.encode(errors="surrogateescape")


def read_headers(data: bytes, at: int, headers: Headers) -> int:
    """Append a record's headers to `headers`; returns their end."""
    count, at = read_varint(data, at)
    if not 0 <= count <= (len(data) - at) // 2:  # each takes at least two bytes
        raise BatchCorrupt(f"{count} headers in the remaining {len(data) - at} bytes")
    for _ in range(count):
        name, at = read_bytes(data, at)
        if name is None:
            raise BatchCorrupt("a record header without a name")
        value, at = read_bytes(data, at)
        headers.append((header_name(name), value))
    return at


# --- encoding --------------------------------------------------------------------------------


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    leader_epoch: int = -1,
    log_append: bool = False,
) -> bytes:
    """A batch of `records` (at least one), with offsets from `base_offset` on.

    The records' own offsets are ignored. With `log_append`, all have the timestamp of the newest.
    The encoding is deterministic.
    """
    assert records, "a batch holds at least one record"
    attributes = (
        codec
        | (TRANSACTIONAL if is_transactional else 0)
        | (CONTROL if is_control else 0)
        | (TIMESTAMP_TYPE_LOG_APPEND if log_append else 0)
    )
    first_ms = records[0].timestamp_ms
    header = BatchHeader(
        base_offset=base_offset,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        first_timestamp_ms=first_ms,
        max_timestamp_ms=max(record.timestamp_ms for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    plain = _encode_records(records, range(len(records)), first_ms)
    return assemble_batch(header, compress(codec, plain))


def retain_records(header: BatchHeader, records: Sequence[Record]) -> bytes:
    """The batch of `header` reduced to these of its records, which keep their offsets.

    For compaction: base and last offset, producer, sequence and codec are preserved, so consumers
    see gaps and retries are still detected, as with Kafka's cleaner. `records` may be empty.
    """
    codec = header.attributes & COMPRESSION_MASK
    header = header._replace(record_count=len(records))
    if not records:
        return assemble_batch(header._replace(attributes=header.attributes - codec), b"")
    if not header.attributes & TIMESTAMP_TYPE_LOG_APPEND:
        newest_ms = max(record.timestamp_ms for record in records)
        header = header._replace(max_timestamp_ms=newest_ms)
    deltas = [record.offset - header.base_offset for record in records]
    plain = _encode_records(records, deltas, header.first_timestamp_ms)
    return assemble_batch(header, compress(codec, plain))


def compress_batch(header: BatchHeader, payload: bytes, codec: int) -> bytes:
    """The batch of `header` with this payload, in another codec (topic `compression.type`)."""
    old = header.attributes & COMPRESSION_MASK
    header = header._replace(attributes=header.attributes - old + codec)
    return assemble_batch(header, compress(codec, payload))


def log_append_time(batch: Buffer, now_ms: int) -> bytes:
    """The batch with all timestamps set to `now_ms` (`message.timestamp.type=LogAppendTime`).

    Only the header changes: the timestamp type, the max timestamp, which readers then use, and the
    CRC.
    """
    patched = bytearray(batch)
    patched[_ATTRIBUTES_AT + 1] |= TIMESTAMP_TYPE_LOG_APPEND
    return with_max_timestamp(patched, now_ms)


def with_max_timestamp(batch: Buffer, newest_ms: int) -> bytes:
    """The batch with this max timestamp in its header."""
    patched = bytearray(batch)
    patched[_MAX_TIMESTAMP_AT : _MAX_TIMESTAMP_AT + 8] = newest_ms.to_bytes(8, "big", signed=True)
    return _seal(patched)


def mark_named(batch: Buffer) -> bytes:
    """The batch with the flag for named sequences set."""
    patched = bytearray(batch)
    patched[_ATTRIBUTES_AT] |= NAMED >> 8
    return _seal(patched)


def assemble_batch(header: BatchHeader, *payload: bytes) -> bytes:
    """The batch of `header` with a compressed payload, with length and CRC set."""
    length = HEADER_SIZE - LOG_OVERHEAD + sum(map(len, payload))
    head = HEADER.pack(*header._replace(length=length, crc=0))
    crc = crc32c(head[_CRC_START:])
    for part in payload:
        crc = crc32c(part, crc)
    return b"".join((head[:_CRC_AT], crc.to_bytes(4, "big"), head[_CRC_START:], *payload))


def _seal(batch: bytearray) -> bytes:
    crc = crc32c(memoryview(batch)[_CRC_START:])
    batch[_CRC_AT:_CRC_START] = crc.to_bytes(4, "big")
    return bytes(batch)


def _encode_records(records: Sequence[Record], deltas: Sequence[int], first_ms: int) -> bytes:
    parts: list[bytes] = []
    for record, delta in zip(records, deltas, strict=True):
        key, value = record.key, record.value
        fields = [
            b"\0",
            write_varint(record.timestamp_ms - first_ms),
            write_varint(delta),
            _NULL if key is None else write_varint(len(key)) + key,
            _NULL if value is None else write_varint(len(value)) + value,
            write_varint(len(record.headers)),
        ]
        for name, content in record.headers:
            text = header_name_bytes(name)
            fields += (write_varint(len(text)), text)
            fields.append(_NULL if content is None else write_varint(len(content)) + content)
        body = b"".join(fields)
        parts += (write_varint(len(body)), body)
    return b"".join(parts)


_NULL = write_varint(-1)
