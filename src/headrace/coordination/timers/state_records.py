"""The records of a partition's timer companion, and their encoding (`docs/FORMAT.md`).

Invariants: each key begins with the record's kind and the offset of the newest complete checkpoint,
so that the last record of the log tells where a replay begins. A body is a record as its producer
sent it, encoded by the host and opaque here. Integers in values are unsigned LEB128 unless a Struct
specifies otherwise. Do not change: stored.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.kit.stored_bytes import (
    StoredReader,
    get_varint,
    put_varint,
    stored_string,
)
from headrace.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD: Final = Struct(">BQ")
_SCHEDULED: Final = Struct(">BQqqH")
_HALF: Final = Struct(">BQqqHqqHq")
_MOVED: Final = Struct(">BQqqHqq?")
_ENTRY: Final = Struct(">qq")
_ORIGIN: Final = Struct(">qhiq")
_SETTLED: Final = Struct(">qBqqq")

SCHEDULED: Final = 1
HALF: Final = 2
MOVED: Final = 3
TAKEN: Final = 4
CONFIRMED: Final = 5
CANCELLED: Final = 6
ORIGIN: Final = 7
SETTLED: Final = 8
CHECKED: Final = 9
BEGUN: Final = 10
STATE: Final = 11
OPENED: Final = 12
PART: Final = 13
ENDED: Final = 14
COMMITTED_DUE: Final = 15

COMMITTED: Final = 1
ROLLED_BACK: Final = 2
EXPIRED: Final = 3
"""Outcomes of a half message; EXPIRED: rolled back, because its producer never answered."""


class Scheduled(NamedTuple):
    """A record that is due at `due_ms`, stored at the offset of this record."""

    due_ms: int
    timestamp_ms: int
    tag: int
    body: bytes


class HalfKept(NamedTuple):
    """A half message. `number`: the offset under which it was first stored, -1: this one's own.

    `due_ms`: when it is due after its commit, 0 for immediately.
    """

    due_ms: int
    timestamp_ms: int
    tag: int
    received_ms: int
    next_check_ms: int
    checks: int
    number: int
    group: str
    message_id: str
    body: bytes
    offset: int = -1
    """In a checkpoint: the offset of the body, which is not repeated there."""


class Moved(NamedTuple):
    """A copy of the record at `old_offset`, which it replaces."""

    due_ms: int
    timestamp_ms: int
    tag: int
    old_offset: int
    number: int
    """The offset under which it was first stored."""
    is_half: bool
    body: bytes


class Taken(NamedTuple):
    """All records up to (due_ms, offset) are being delivered, with sequences from `first` on."""

    first: int
    due_ms: int
    offset: int
    confirmed: int
    """Earlier sequences are in the partition's log."""
    offsets: tuple[int, ...]


class Confirmed(NamedTuple):
    """The deliveries with sequences before `confirmed` are in the partition's log."""

    confirmed: int


class Cancelled(NamedTuple):
    """The record will not be delivered."""

    due_ms: int
    offset: int


class StoredOrigin(NamedTuple):
    """The following records of this batch come from an idempotent producer's batch."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    seen_ms: int


class Settled(NamedTuple):
    """The outcome of a half message. `due_ms`: when it is due, if it was committed."""

    number: int
    outcome: int
    due_ms: int
    at_ms: int
    received_ms: int
    group: str
    message_id: str
    reason: str


class CommittedDue(NamedTuple):
    """In a checkpoint: a half message that was committed and is in the schedule."""

    due_ms: int
    offset: int


class Checked(NamedTuple):
    """These half messages are being checked back, and again from `next_ms` on."""

    next_ms: int
    numbers: tuple[int, ...]


class CheckpointBegun(NamedTuple):
    """A checkpoint begins at the offset of this record."""

    taken: int
    confirmed: int


class StateSaved(NamedTuple):
    """Part of the state at the checkpoint's start, as records."""

    checkpoint: int
    records: tuple[StoredRecord, ...]


class Opened(NamedTuple):
    """The producer id under which the partition's timers append to its log."""

    producer_id: int


class PartSaved(NamedTuple):
    """Entries of the schedule with offsets before the checkpoint's start, as of this record."""

    checkpoint: int
    bucket: int
    base: int
    entries: bytes


class CheckpointEnded(NamedTuple):
    """The checkpoint that began at `checkpoint` is complete: nothing before it is replayed."""

    checkpoint: int


StoredRecord = (
    Scheduled
    | HalfKept
    | Moved
    | Taken
    | Confirmed
    | Cancelled
    | StoredOrigin
    | Settled
    | CommittedDue
    | Checked
    | CheckpointBegun
    | StateSaved
    | Opened
    | PartSaved
    | CheckpointEnded
)


def _numbers(*values: int) -> bytes:
    out = bytearray()
    for value in values:
        put_varint(out, value)
    return bytes(out)


def _offsets(offsets: Sequence[int]) -> bytes:
    """Zigzag-encoded differences: neighbours in time are often neighbours in the log."""
    out, before = bytearray(), 0
    put_varint(out, len(offsets))
    for offset in offsets:
        delta = offset - before
        put_varint(out, delta << 1 if delta >= 0 else ~(delta << 1))
        before = offset
    return bytes(out)


def _read_numbers(data: bytes, at: int, count: int) -> tuple[list[int], int]:
    found: list[int] = []
    for _ in range(count):
        value, at = get_varint(data, at)
        found.append(value)
    return found, at


def _read_offsets(data: bytes, at: int) -> tuple[int, ...]:
    count, at = get_varint(data, at)
    if count > len(data):
        raise RecordInvalid(f"{count} offsets in {len(data)} bytes")
    found: list[int] = []
    before = 0
    for _ in range(count):
        value, at = get_varint(data, at)
        before += value >> 1 ^ -(value & 1)
        found.append(before)
    return tuple(found)


def encode(record: StoredRecord, checkpoint: int) -> tuple[bytes, bytes]:  # noqa: C901
    """The (key, value) of a record; `checkpoint`: the start of the newest complete one."""
    match record:
        case Scheduled(due_ms, timestamp_ms, tag, body):
            return _SCHEDULED.pack(SCHEDULED, checkpoint, due_ms, timestamp_ms, tag), body
        case HalfKept():
            key = _HALF.pack(HALF, checkpoint, *record[:7])
            names = stored_string(record.group) + stored_string(record.message_id)
            return key + _numbers(record.offset + 1) + names, record.body
        case Moved():
            return _MOVED.pack(MOVED, checkpoint, *record[:6]), record.body
        case Taken():
            value = _numbers(*record[:4]) + _offsets(record.offsets)
            return HEAD.pack(TAKEN, checkpoint), value
        case Confirmed():
            return HEAD.pack(CONFIRMED, checkpoint), _numbers(record.confirmed)
        case Cancelled():
            return HEAD.pack(CANCELLED, checkpoint), _ENTRY.pack(*record)
        case CommittedDue():
            return HEAD.pack(COMMITTED_DUE, checkpoint), _ENTRY.pack(*record)
        case StoredOrigin():
            return HEAD.pack(ORIGIN, checkpoint), _ORIGIN.pack(*record)
        case Settled():
            texts = record.group, record.message_id, record.reason
            value = _SETTLED.pack(*record[:5]) + b"".join(map(stored_string, texts))
            return HEAD.pack(SETTLED, checkpoint), value
        case Checked():
            value = _numbers(record.next_ms) + _offsets(record.numbers)
            return HEAD.pack(CHECKED, checkpoint), value
        case CheckpointBegun():
            return HEAD.pack(BEGUN, checkpoint), _numbers(*record)
        case StateSaved():
            return HEAD.pack(STATE, checkpoint), _encode_state(record)
        case Opened():
            return HEAD.pack(OPENED, checkpoint), _numbers(record.producer_id)
        case PartSaved():
            return HEAD.pack(PART, checkpoint), _numbers(*record[:3]) + record.entries
        case CheckpointEnded():
            # The log may be trimmed up to it as soon as this is durable.
            return HEAD.pack(ENDED, record.checkpoint), _numbers(record.checkpoint)


def _encode_state(record: StateSaved) -> bytes:
    out = bytearray(_numbers(record.checkpoint))
    for one in record.records:
        for part in encode(one, record.checkpoint):
            put_varint(out, len(part))
            out += part
    return bytes(out)


def checkpoint_of(key: bytes) -> int:
    """The start of the checkpoint that was the newest complete one when the record was written."""
    try:
        found: int = HEAD.unpack_from(key)[1]
    except error as cause:
        raise RecordInvalid("a key of a timer companion is truncated") from cause
    return found


def decode(key: bytes, value: bytes) -> StoredRecord | None:
    """The inverse of `encode`; None for a kind that a newer version wrote. Raises RecordInvalid."""
    try:
        return _decode(key, value)
    except (IndexError, error, UnicodeDecodeError) as cause:
        raise RecordInvalid(f"a record of a timer companion is damaged: {cause}") from cause


def _decode(key: bytes, value: bytes) -> StoredRecord | None:
    kind = key[0]
    match kind:
        case 1:
            _, _, due_ms, timestamp_ms, tag = _SCHEDULED.unpack(key)
            return Scheduled(due_ms, timestamp_ms, tag, value)
        case 2:
            _, _, *fields = _HALF.unpack_from(key)
            offset, at = get_varint(key, _HALF.size)
            reader = StoredReader(key[at:])
            names = reader.string(), reader.string()
            return HalfKept._make((*fields, *names, value, offset - 1))
        case 3:
            _, _, *fields = _MOVED.unpack(key)
            return Moved._make((*fields, value))
        case 4:
            numbers, at = _read_numbers(value, 0, 4)
            return Taken._make((*numbers, _read_offsets(value, at)))
        case 5:
            return Confirmed(get_varint(value, 0)[0])
        case 6:
            return Cancelled(*_ENTRY.unpack(value))
        case 7:
            return StoredOrigin(*_ORIGIN.unpack(value))
        case 8:
            reader = StoredReader(value[_SETTLED.size :])
            names = reader.string(), reader.string()
            return Settled._make((*_SETTLED.unpack_from(value), *names, reader.string()))
        case 9:
            next_ms, at = get_varint(value, 0)
            return Checked(next_ms, _read_offsets(value, at))
        case _:
            return _decode_checkpoint(kind, value)


def _decode_checkpoint(kind: int, value: bytes) -> StoredRecord | None:
    match kind:
        case 10:
            numbers, _ = _read_numbers(value, 0, 2)
            return CheckpointBegun._make(numbers)
        case 11:
            return _decode_state(value)
        case 12:
            return Opened(get_varint(value, 0)[0])
        case 13:
            numbers, at = _read_numbers(value, 0, 3)
            if (len(value) - at) % 8:
                raise RecordInvalid("a part of a schedule is truncated")
            return PartSaved._make((*numbers, value[at:]))
        case 14:
            return CheckpointEnded(get_varint(value, 0)[0])
        case 15:
            return CommittedDue(*_ENTRY.unpack(value))
        case _:
            return None


def _decode_state(value: bytes) -> StateSaved:
    checkpoint, at = get_varint(value, 0)
    found: list[StoredRecord] = []
    while at < len(value):
        size, at = get_varint(value, at)
        key, at = value[at : at + size], at + size
        size, at = get_varint(value, at)
        body, at = value[at : at + size], at + size
        if at > len(value):
            raise RecordInvalid("a saved state is truncated")
        record = _decode(key, body)
        if record is not None:
            found.append(record)
    return StateSaved(checkpoint, tuple(found))
