"""Validation of a client's batch: its header, and its records in one walk over the payload.

Invariants: pure. A payload that passes can be decoded by every consumer: it holds exactly the
records that its header counts, their offset deltas are 0, 1, 2 ..., their fields end where their
lengths say, and their timestamps fit 64 bits. What a header claims about the records is computed
here, so that nothing has to be believed (`docs/ARCHITECTURE.md`, "Client claims").

A record costs 20-50 ns compiled and 1-3 us as pure Python, whatever its size: keys, values and
the contents of headers are skipped. Numbers of one and two bytes are decoded inline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import BatchCorrupt, RecordInvalid
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    RECORD_SIZE_MIN,
    TIMESTAMP_TYPE_LOG_APPEND,
    TRANSACTIONAL,
    check_fields,
)
from headrace.records.compression import CODEC_NAMES, decompress
from headrace.records.varints import VARLONG_BITS_MAX, read_varint

if TYPE_CHECKING:
    from mypy_extensions import i64

    from headrace.records.batch import Buffer, Fields

RESERVED_PREFIX: Final = b"headrace-"
"""Of the names of queue attributes (`records.attributes`)."""
INLINE_BYTES_MAX: Final = 256 * 1024
"""Decompressed bytes that are validated in the caller's turn of the loop: half a millisecond."""
INLINE_COMPRESSED_MAX: Final = INLINE_BYTES_MAX // 4
"""Compressed bytes that rarely exceed it; larger batches are not tried."""
INLINE_RECORDS_MAX: Final = 4_096
AT_ONCE: Final = 4_096
"""Records per step: a step of compiled code does not let another thread run."""
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1


class RecordFacts(NamedTuple):
    """What a batch's records say, whatever its header claims."""

    oldest_ms: int
    """The smallest timestamp; NO_TIMESTAMP if no record has one."""
    newest_ms: int
    """The largest timestamp; NO_TIMESTAMP if no record has one."""
    keyless_count: int
    """Records with a null key."""
    header_count: int
    """The headers of all records."""
    has_reserved: bool
    """Whether a header's name begins with RESERVED_PREFIX."""


def check_single(records: memoryview | None) -> Fields:
    """Check that a client's batch is complete and the only one; returns its header fields.

    Raises BatchCorrupt, RecordInvalid, UnsupportedForMessageFormat.
    """
    if records is None or not len(records):
        raise BatchCorrupt("the Produce request has no records")
    header = check_fields(records)
    if header[1] + LOG_OVERHEAD != len(records):
        raise RecordInvalid("Produce v3 and later accept exactly one batch per partition (KIP-98)")
    # One comparison: any other bit makes it larger, or negative.
    if not 0 <= header[5] & ~(TRANSACTIONAL | CONTROL) < len(CODEC_NAMES):
        raise _attributes_refused(header[5])
    return header


def _attributes_refused(attributes: int) -> RecordInvalid:
    if attributes & TIMESTAMP_TYPE_LOG_APPEND:
        return RecordInvalid(
            "the batch claims timestamps of type LogAppendTime, which only the broker assigns: it "
            "is not stored; send it with the type CreateTime",
            is_timestamp=True,
        )
    if attributes & ~(COMPRESSION_MASK | TRANSACTIONAL | CONTROL):
        return RecordInvalid(
            f"attributes {attributes & 0xFFFF:#x} contain a bit that no producer may set: the "
            "batch is not stored"
        )
    return RecordInvalid(f"unknown compression codec {attributes & COMPRESSION_MASK}")


def validate_batch(batch: Buffer, header: Fields, bytes_max: int) -> RecordFacts:
    """Validate the records of a batch whose CRC was checked.

    Raises BatchCorrupt if it cannot be decoded or contradicts its header; BatchExpandsTooFar if it
    decompresses to more than `bytes_max`.
    """
    stream = memoryview(batch)[HEADER_SIZE : header[1] + LOG_OVERHEAD]
    payload = decompress(header[5] & COMPRESSION_MASK, stream, bytes_max)
    return validate_records(payload, header[12], header[7])


def validate_small(batch: Buffer, header: Fields) -> RecordFacts | None:
    """As `validate_batch`; None for a batch that takes longer, or is invalid: see `admission`."""
    if header[12] > INLINE_RECORDS_MAX:
        return None
    try:
        if not header[5] & COMPRESSION_MASK:
            return validate_batch(batch, header, header[1])
        if header[1] > INLINE_COMPRESSED_MAX:
            return None
        return validate_batch(batch, header, INLINE_BYTES_MAX)
    except BatchCorrupt:
        return None


def validate_records(payload: bytes, count: int, first_ms: int) -> RecordFacts:
    """Validate the decompressed records of a batch whose header states `count` records and the
    timestamp `first_ms`. Raises BatchCorrupt."""
    walk = RecordWalk(payload, NO_TIMESTAMP - first_ms)
    while walk.index < count:
        walk.advance(min(count - walk.index, AT_ONCE))
    if walk.at != len(payload):
        raise BatchCorrupt(f"{len(payload) - walk.at} bytes follow the batch's last record")
    if walk.oldest > walk.newest:  # no record has a timestamp
        return walk.facts(NO_TIMESTAMP, NO_TIMESTAMP)
    oldest_ms, newest_ms = first_ms + walk.oldest, first_ms + walk.newest
    if oldest_ms < _INT64_MIN or newest_ms > _INT64_MAX:
        raise BatchCorrupt(f"a record's timestamp exceeds 64 bits: base {first_ms}")
    return walk.facts(oldest_ms, max(newest_ms, NO_TIMESTAMP))


class RecordWalk:
    """The position of a walk over the records of a payload, and what it has seen."""

    __slots__ = (
        "_absent",
        "_data",
        "at",
        "has_reserved",
        "header_count",
        "index",
        "keyless_count",
        "newest",
        "oldest",
    )

    def __init__(self, data: bytes, absent: int) -> None:
        """`absent`: the timestamp delta that stands for "no timestamp"."""
        self._data = data
        self._absent = absent
        self.at: i64 = 0
        self.index: i64 = 0
        self.keyless_count: i64 = 0
        self.header_count: i64 = 0
        self.has_reserved: bool = False
        self.oldest: int = 1 << 63
        """Timestamp delta, as `newest`; both ignore records without a timestamp."""
        self.newest: int = -(1 << 63) - 1

    def facts(self, oldest_ms: int, newest_ms: int) -> RecordFacts:
        """What was seen, with the given timestamps."""
        return RecordFacts(
            oldest_ms, newest_ms, self.keyless_count, self.header_count, self.has_reserved
        )

    def advance(self, count: i64) -> None:
        """Validate the next `count` records. Raises BatchCorrupt."""
        data = self._data
        try:
            self._advance(data, len(data), count)
        except IndexError:
            raise BatchCorrupt(f"record {self.index} ends after the batch") from None

    def _advance(self, data: bytes, size: i64, count: i64) -> None:
        at: i64 = self.at
        index: i64 = self.index
        stop: i64 = index + count
        last: i64 = -1
        byte: i64
        high: i64
        length: i64
        end: i64
        while index < stop:
            self.index = index
            # inline: length, at = read_varint(data, at)
            byte = data[at]
            if byte < 128:
                length, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := data[at + 1]) < 128:
                length, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                length, at = read_varint(data, at)
            end = at + length
            if length < RECORD_SIZE_MIN - 1 or end > size:
                raise BatchCorrupt(f"record {index} has {length} bytes, {size - at} are left")
            byte = data[at + 1]  # after the attributes, which are unused
            if byte < 128:
                at += 2
                if byte != last:  # most records repeat the timestamp before them
                    last = byte
                    self._see((byte >> 1) ^ -(byte & 1))
            else:
                at = self._see_at(at + 1)
            byte = data[at]
            if byte == index << 1 and byte < 128:
                at += 1
            else:
                at = _after_delta(data, at, index)
            byte = data[at]
            if not byte & 129:
                at += 1 + (byte >> 1)
            else:  # a null key, or a larger one
                self.keyless_count += byte & 1 if byte < 128 else 0
                at = _after_bytes(data, at, index)
            byte = data[at]
            at = _after_bytes(data, at, index) if byte & 129 else at + 1 + (byte >> 1)
            at = at + 1 if data[at] == 0 else self._after_headers(at)
            if at != end:
                raise BatchCorrupt(f"record {index} ends at byte {end}, its fields at {at}")
            index += 1
        self.at, self.index = at, index

    def _see(self, delta: int) -> None:
        if delta == self._absent:
            return
        self.oldest = min(self.oldest, delta)
        self.newest = max(self.newest, delta)

    def _see_at(self, at: i64) -> i64:
        delta, end = read_varint(self._data, at, VARLONG_BITS_MAX)
        self._see(delta)
        return end

    def _after_headers(self, at: i64) -> i64:
        """The end of a record's headers."""
        data = self._data
        count: i64
        size: i64
        place: i64
        number: i64
        left: i64
        count, place = read_varint(data, at)
        left = len(data) - place
        if count < 0 or count > left >> 1:  # each takes at least two bytes
            raise BatchCorrupt(f"record {self.index} has {count} headers in {left} bytes")
        self.header_count += count
        number = 0
        while number < count:
            size, place = read_varint(data, place)
            if size < 0:
                raise BatchCorrupt(f"record {self.index} has a header without a name")
            # Most names fail at their first letter, which costs no slice.
            if size > 9 and data[place] == 104 and data[place : place + 9] == RESERVED_PREFIX:
                self.has_reserved = True
            size, place = read_varint(data, place + size)
            if size < -1:
                raise BatchCorrupt(f"record {self.index} has a header of negative size")
            if size > 0:
                place += size
            number += 1
        return place


def _after_delta(data: bytes, at: i64, index: i64) -> i64:
    """The end of the offset delta at `at`, which must be `index`."""
    found: i64
    end: i64
    byte: i64
    high: i64
    # inline: found, end = read_varint(data, at)
    byte = data[at]
    if byte < 128:
        found, end = (byte >> 1) ^ -(byte & 1), at + 1
    elif (high := data[at + 1]) < 128:
        found, end = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
    else:
        found, end = read_varint(data, at)
    if found != index:
        raise BatchCorrupt(f"record {index} has offset delta {found}")
    return end


def _after_bytes(data: bytes, at: i64, index: i64) -> i64:
    """The end of the key or value whose size is at `at`."""
    size: i64
    end: i64
    byte: i64
    high: i64
    # inline: size, end = read_varint(data, at)
    byte = data[at]
    if byte < 128:
        size, end = (byte >> 1) ^ -(byte & 1), at + 1
    elif (high := data[at + 1]) < 128:
        size, end = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
    else:
        size, end = read_varint(data, at)
    if size < -1:
        raise BatchCorrupt(f"record {index} has a key or value of {size} bytes")
    return end + size if size > 0 else end
