"""Rewriting of record batches with a subset of their records, for log compaction.

Invariants: pure. A retained record keeps its bytes, except for its timestamp delta if the batch
gets a delete horizon. The batch keeps its base and last offset, producer, sequence, leader epoch
and codec; length, count, max timestamp and CRC are recomputed, as Kafka's cleaner does.

A *delete horizon* (attribute bit 6, KIP-534) is the time from which tombstones and transaction
markers of the batch may be removed. It is stored in the first timestamp field, and the records'
timestamp deltas are relative to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import BatchCorrupt
from headrace.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    HEADER_SIZE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_LOG_APPEND,
)
from headrace.records.codec import DECOMPRESSED_BYTES_MAX, assemble_batch
from headrace.records.compression import compress, decompress
from headrace.records.varints import VARLONG_BITS_MAX, read_varint, write_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.records.batch import BatchHeader, Buffer


class Payload(NamedTuple):
    """The decompressed records of a batch, a range of `data`."""

    data: bytes
    begin: int
    end: int


class Columns:
    """The fields of a payload's records that compaction needs, one list each."""

    __slots__ = ("data", "deltas", "end", "keys", "starts", "tombstones")

    def __init__(self, payload: Payload) -> None:
        self.data = payload.data
        self.end = payload.end
        self.starts: list[int] = [payload.begin]
        """Where each record begins, and at the end where the next one begins."""
        self.deltas: list[int] = []
        """Offset deltas."""
        self.keys: list[bytes | None] = []
        self.tombstones: list[int] = []
        """Indexes, from 0, of the records with a null value."""

    def __len__(self) -> int:
        return len(self.deltas)


def delete_horizon_ms(header: BatchHeader) -> int | None:
    """When tombstones and markers of the batch may be removed; None if not set."""
    return header.first_timestamp_ms if header.attributes & DELETE_HORIZON else None


def payload_of(batch: Buffer, position: int, header: BatchHeader) -> Payload:
    """The payload of the batch at `position`, copied only if necessary. Does not check the CRC.
    Raises BatchCorrupt."""
    begin, end = position + HEADER_SIZE, position + header.size
    codec = header.attributes & COMPRESSION_MASK
    if not codec and isinstance(batch, bytes):
        return Payload(batch, begin, end)
    data = decompress(codec, memoryview(batch)[begin:end], DECOMPRESSED_BYTES_MAX)
    return Payload(data, 0, len(data))


def read_columns(columns: Columns, count: int) -> None:  # noqa: C901 - inlined numbers
    """Read the next `count` records. Raises BatchCorrupt.

    Numbers of one and two bytes are decoded inline (`scripts/inline_varints.py`): a call for each
    would double the cost.
    """
    data, at, end_of_data = columns.data, columns.starts[-1], columns.end
    add_start, add_delta = columns.starts.append, columns.deltas.append
    add_key = columns.keys.append
    try:
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
            at += 1  # attributes
            while data[at] > 127:  # timestamp
                at += 1
            at += 1
            # inline: delta, at = read_varint(data, at)
            byte = data[at]
            if byte < 128:
                delta, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := data[at + 1]) < 128:
                delta, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                delta, at = read_varint(data, at)
            add_delta(delta)
            # inline: size, at = read_varint(data, at)
            byte = data[at]
            if byte < 128:
                size, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := data[at + 1]) < 128:
                size, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                size, at = read_varint(data, at)
            if size < 0:
                add_key(None)
            else:
                start = at
                at += size
                add_key(data[start:at])
            # inline: size, at = read_varint(data, at)
            byte = data[at]
            if byte < 128:
                size, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := data[at + 1]) < 128:
                size, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                size, at = read_varint(data, at)
            if size < 0:
                columns.tombstones.append(len(columns.keys) - 1)
            else:
                at += size
            if at > end or end > end_of_data or length < 0:
                raise BatchCorrupt(f"a record's length ends at {end}, before its fields")
            add_start(end)
            at = end
    except IndexError:
        raise BatchCorrupt("the batch ends inside a record") from None


def check_end(columns: Columns) -> None:
    """Raises BatchCorrupt if bytes follow the last record."""
    if left := columns.end - columns.starts[-1]:
        raise BatchCorrupt(f"{left} bytes follow the batch's last record")


def read_all_columns(payload: Payload, record_count: int) -> Columns:
    """The columns of a small batch. Raises BatchCorrupt."""
    columns = Columns(payload)
    read_columns(columns, record_count)
    check_end(columns)
    return columns


def rewrite_batch(
    header: BatchHeader,
    columns: Columns,
    kept: Sequence[int],
    horizon_ms: int | None = None,
) -> bytes:
    """The batch with only these of its records (at least one), and with a new delete horizon."""
    assert kept, "use `empty_batch` for a batch without records"
    payload, starts = columns.data, columns.starts
    newest_ms = header.max_timestamp_ms
    is_append_time = header.attributes & TIMESTAMP_TYPE_LOG_APPEND
    if horizon_ms is None:
        if not is_append_time and len(kept) < len(columns):
            newest_ms = header.first_timestamp_ms + max(
                [_timestamp_delta(payload, starts[index])[0] for index in kept]
            )
        plain = b"".join([payload[starts[index] : starts[index + 1]] for index in kept])
    else:
        shift = header.first_timestamp_ms - horizon_ms
        parts: list[bytes] = []
        largest = 0
        for index in kept:
            timestamp_delta, rest = _timestamp_delta(payload, starts[index])
            largest = timestamp_delta if not parts else max(largest, timestamp_delta)
            delta = write_varint(timestamp_delta + shift)
            end = starts[index + 1]
            length = 1 + len(delta) + end - rest
            parts += (write_varint(length), b"\0", delta, payload[rest:end])
        plain = b"".join(parts)
        if not is_append_time:
            newest_ms = header.first_timestamp_ms + largest
        header = header._replace(
            first_timestamp_ms=horizon_ms, attributes=header.attributes | DELETE_HORIZON
        )
    header = header._replace(record_count=len(kept), max_timestamp_ms=newest_ms)
    return assemble_batch(header, compress(header.attributes & COMPRESSION_MASK, plain))


def _timestamp_delta(payload: bytes, start: int) -> tuple[int, int]:
    """(timestamp delta of the record at `start`, position of its offset delta)."""
    _, at = read_varint(payload, start)
    return read_varint(payload, at + 1, VARLONG_BITS_MAX)


def empty_batch(header: BatchHeader) -> bytes:
    """The batch without records: 61 bytes that preserve its offsets, producer and sequence."""
    header = header._replace(
        attributes=header.attributes & ~(DELETE_HORIZON | COMPRESSION_MASK),
        record_count=0,
        first_timestamp_ms=NO_TIMESTAMP,
        max_timestamp_ms=NO_TIMESTAMP,
    )
    return assemble_batch(header, b"")
