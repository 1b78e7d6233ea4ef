"""A record without timestamp and offset: key, value and headers, as companion logs store it.

Invariants: pure; the encoding is that of a record in a batch from its key on. Do not change:
stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import BatchCorrupt
from headrace.records.batch import MAGIC, TIMESTAMP_TYPE_LOG_APPEND, BatchHeader
from headrace.records.codec import assemble_batch, header_name, header_name_bytes
from headrace.records.compression import compress
from headrace.records.varints import read_varint, write_varint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.records.codec import Headers


class Body(NamedTuple):
    """Key, value and headers of a record."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def encode_body(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """The encoding of a body."""
    parts = [_sized(key), _sized(value), write_varint(len(headers))]
    for name, content in headers:
        parts += (_sized(header_name_bytes(name)), _sized(content))
    return b"".join(parts)


def _sized(data: bytes | None) -> bytes:
    return write_varint(-1) if data is None else write_varint(len(data)) + data


def decode_body(data: bytes) -> Body:
    """Decode a body. Raises BatchCorrupt."""
    try:
        key, at = _read(data, 0)
        value, at = _read(data, at)
        count, at = read_varint(data, at)
        headers: Headers = []
        for _ in range(count):
            name, at = _read(data, at)
            content, at = _read(data, at)
            headers.append((header_name(name or b""), content))
    except IndexError:
        raise BatchCorrupt("a stored record ends too early") from None
    if at != len(data):
        raise BatchCorrupt(f"{len(data) - at} bytes follow a stored record")
    return Body(key, value, headers)


def _read(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise BatchCorrupt(f"a key or value of {size} bytes, {len(data) - at} are left")
    return data[at : at + size], at + size


class ProducerSequence(NamedTuple):
    """Producer id, epoch and base sequence of a batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


def encode_bodies(
    timed: Sequence[tuple[int, bytes]], producer: ProducerSequence, codec: int, *, log_append: bool
) -> bytes:
    """A batch of (timestamp, encoded body) pairs (at least one); the bodies are not decoded."""
    first_ms = timed[0][0]
    parts: list[bytes] = []
    for delta, (timestamp_ms, body) in enumerate(timed):
        place = b"\0" + write_varint(timestamp_ms - first_ms) + write_varint(delta)
        parts += (write_varint(len(place) + len(body)), place, body)
    header = BatchHeader(
        base_offset=0,
        length=0,
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TIMESTAMP_TYPE_LOG_APPEND if log_append else 0),
        last_offset_delta=len(timed) - 1,
        first_timestamp_ms=first_ms,
        max_timestamp_ms=max(timestamp_ms for timestamp_ms, _ in timed),
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=producer.base_sequence,
        record_count=len(timed),
    )
    return assemble_batch(header, compress(codec, b"".join(parts)))
