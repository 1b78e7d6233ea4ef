"""The two passes of log compaction over the records of one batch, decoded in place.

Invariants: pure. `enter_keys` records the offset of each key; `Survivors` copies the records whose
offsets are marked, as bytes. Neither creates objects for the other records: compiled, this costs
0.3 us per record, a third of what lists of starts, offsets and keys (`rewriting.Columns`) cost.

Numbers of one and two bytes are decoded inline (`scripts/inline_varints.py`): a call for each would
double the cost.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from headrace.errors import BatchCorrupt
from headrace.records.batch import COMPRESSION_MASK, TIMESTAMP_TYPE_LOG_APPEND
from headrace.records.codec import assemble_batch
from headrace.records.compression import compress
from headrace.records.varints import VARLONG_BITS_MAX, read_varint

if TYPE_CHECKING:
    from headrace.records.batch import BatchHeader
    from headrace.records.rewriting import Payload

DIGEST_BYTES: Final = 16
WHOLE_KEY_BYTES: Final = 40
"""Longer keys are replaced by a digest in the key map."""


def digest_of(key: bytes) -> int:
    """The digest of a long key: a number, so that it cannot collide with a key."""
    return int.from_bytes(blake2b(key, digest_size=DIGEST_BYTES).digest())


def enter_keys(  # noqa: C901 - inlined numbers
    payload: Payload, at: int, count: int, base_offset: int, latest: dict[bytes | int | None, int]
) -> int:
    """Record the offset of each key of the next `count` records, which begin at `at`; returns the
    position after them. Raises BatchCorrupt."""
    data, end_of_data = payload.data, payload.end
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
            # inline: size, at = read_varint(data, at)
            byte = data[at]
            if byte < 128:
                size, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := data[at + 1]) < 128:
                size, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                size, at = read_varint(data, at)
            if size >= 0:
                start = at
                at += size
                if size <= WHOLE_KEY_BYTES:
                    latest[data[start:at]] = base_offset + delta
                else:
                    latest[digest_of(data[start:at])] = base_offset + delta
            # inline: size, at = read_varint(data, at)
            byte = data[at]
            if byte < 128:
                size, at = (byte >> 1) ^ -(byte & 1), at + 1
            elif (high := data[at + 1]) < 128:
                size, at = (byte & 127 | high << 7) >> 1 ^ -(byte & 1), at + 2
            else:
                size, at = read_varint(data, at)
            if size > 0:
                at += size
            if at > end or end > end_of_data or length < 0:
                raise _overrun(end)
            at = end
    except IndexError:
        raise BatchCorrupt("the batch ends within a record") from None
    return at


class Survivors:
    """The marked records of one batch."""

    __slots__ = ("_at", "_largest", "_parts", "_payload", "_run", "count", "has_tombstone")

    def __init__(self, payload: Payload) -> None:
        self._payload = payload
        self._at = payload.begin
        self._run = -1
        """Where the records begin that are kept and follow each other up to here, if any do."""
        self._parts: list[bytes] = []
        self._largest = -1 << 63
        """Timestamp delta."""
        self.count = 0
        self.has_tombstone = False

    def take(self, count: int, marks: bytes) -> None:
        """Go on with the next `count` records. `marks` has a 1 at the offset delta of each that is
        kept. Raises BatchCorrupt."""
        data, at, end_of_data = self._payload.data, self._at, self._payload.end
        run, kept, largest, size_of_marks = self._run, self.count, self._largest, len(marks)
        try:
            for _ in range(count):
                begin = at
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
                timestamp_at = at
                while data[at] > 127:
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
                if at > end or end > end_of_data or length < 0:
                    raise _overrun(end)
                if 0 <= delta < size_of_marks and marks[delta]:
                    kept += 1
                    if run < 0:
                        run = begin
                    timestamp, _ = read_varint(data, timestamp_at, VARLONG_BITS_MAX)
                    largest = max(largest, timestamp)
                    size, at = read_varint(data, at)
                    if size > 0:
                        at += size
                    size, at = read_varint(data, at)
                    if size < 0:
                        self.has_tombstone = True
                elif run >= 0:
                    self._parts.append(data[run:begin])
                    run = -1
                at = end
        except IndexError:
            raise BatchCorrupt("the batch ends within a record") from None
        self._at, self._run, self.count, self._largest = at, run, kept, largest

    def check_end(self) -> None:
        """All records were taken. Raises BatchCorrupt if more bytes follow."""
        if left := self._payload.end - self._at:
            raise BatchCorrupt(f"{left} bytes follow the batch's last record")

    def batch(self, header: BatchHeader) -> bytes:
        """The batch with these records alone, at least one: see `rewriting`."""
        assert self.count, "a batch without records is `empty_batch`"
        parts, codec = self._parts, header.attributes & COMPRESSION_MASK
        if self._run >= 0:
            parts.append(self._payload.data[self._run : self._at])
            self._run = -1
        newest_ms = header.max_timestamp_ms
        if not header.attributes & TIMESTAMP_TYPE_LOG_APPEND:
            newest_ms = header.first_timestamp_ms + self._largest
        header = header._replace(record_count=self.count, max_timestamp_ms=newest_ms)
        return assemble_batch(header, *([compress(codec, b"".join(parts))] if codec else parts))


def _overrun(end: int) -> BatchCorrupt:
    return BatchCorrupt(f"a record says it ends at {end}, before its fields do")
