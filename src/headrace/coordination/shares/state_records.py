"""The records of a share group journal, and their encoding (`docs/FORMAT.md`).

Invariants: a journal belongs to one data partition. A group is opened once, under a number that is
never reused; all other records refer to it by that number, so they are small. Volatile delivery
states (acquired) are not written. Integers are unsigned LEB128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.kit.stored_bytes import get_varint, put_varint
from headrace.coordination.shares.window import ACQUIRED, ARCHIVED, AVAILABLE
from headrace.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.shares.window import Window

VERSION: Final = 0
"""First byte of each value, except CHANGED. Do not change: stored."""
CHANGED_VERSION: Final = 1
"""For CHANGED; version 0 had a byte for IS_RESET, then always the start. Do not change: stored."""
IS_RESET: Final = 0x01
HAS_START: Final = 0x02
OPENED: Final = b"\x00"
CHANGED: Final = b"\x01"
PARKED: Final = b"\x02"
"""First byte of each key; the group's number follows, and after PARKED the message key. Do not
change: stored."""
STATE_MASK: Final = 0x07
HAS_TIME: Final = 0x08


class StoredRun(NamedTuple):
    """[first, last] of one state; `at_ms`: not delivered again before then."""

    first: int
    last: int
    state: int
    deliveries: int
    at_ms: int = 0


class ShareGroupOpened(NamedTuple):
    """The group's start offset on this partition, and its number in the journal."""

    number: int
    group_id: str
    start: int


class ShareGroupChanged(NamedTuple):
    """Changed runs. `start`: everything before it is finished, -1: unchanged.

    `is_reset`: replaces all earlier state (an administrator moved the start).
    """

    number: int
    runs: Sequence[StoredRun]
    start: int = -1
    is_reset: bool = False

    @property
    def is_snapshot(self) -> bool:
        """Whether it is the whole state: a start alone has moved, runs alone have changed."""
        return self.start >= 0 and bool(self.runs)


class KeyParked(NamedTuple):
    """The group parks records with this key. `at_ms` None: no longer."""

    number: int
    key: bytes
    key_hash: int
    at_ms: int | None


class ShareGroupRemoved(NamedTuple):
    """The group is deleted on this partition."""

    number: int


StoredRecord = ShareGroupOpened | ShareGroupChanged | KeyParked | ShareGroupRemoved


def stored_runs(window: Window) -> tuple[StoredRun, ...]:
    """The durable state of a window.

    Acquired records count as available again, with the deliveries that have ended; records that
    were never delivered are holes, except at the end.
    """
    runs: list[StoredRun] = []
    last = window.end - 1
    for run in window:
        state, count, at_ms = run.state, run.count, run.at_ms
        if state == ACQUIRED:
            state, count, at_ms = AVAILABLE, count - 1, 0
        if state != AVAILABLE or count or at_ms or run.last == last:
            runs.append(StoredRun(run.first, run.last, state, count, at_ms))
    return tuple(runs)


def encode(record: StoredRecord) -> tuple[bytes, bytes | None]:
    """The (key, value) of a record."""
    if isinstance(record, KeyParked):
        return _encode_parked(record)
    key = bytearray(OPENED if isinstance(record, ShareGroupOpened | ShareGroupRemoved) else CHANGED)
    put_varint(key, record.number)
    if isinstance(record, ShareGroupRemoved):
        return bytes(key), None
    if isinstance(record, ShareGroupOpened):
        value = bytearray([VERSION])
        put_varint(value, record.start)
        value += record.group_id.encode()
        return bytes(key), bytes(value)
    has_start = record.start >= 0
    flags = (IS_RESET if record.is_reset else 0) | (HAS_START if has_start else 0)
    value = bytearray([CHANGED_VERSION, flags])
    if has_start:
        put_varint(value, record.start)
    reached = 0
    for first, last, state, deliveries, at_ms in record.runs:
        gap, size = first - reached, last - first
        assert gap >= 0, "runs ascend"
        if not at_ms and gap < 0x80 and size < 0x80 and deliveries < 0x80:  # almost always
            value += bytes((gap, size, state, deliveries))
        else:
            put_varint(value, gap)
            put_varint(value, size)
            value.append(state | (HAS_TIME if at_ms else 0))
            put_varint(value, deliveries)
            if at_ms:
                put_varint(value, at_ms)
        reached = last + 1
    return bytes(key), bytes(value)


def _encode_parked(record: KeyParked) -> tuple[bytes, bytes | None]:
    key = bytearray(PARKED)
    put_varint(key, record.number)
    key += record.key
    if record.at_ms is None:
        return bytes(key), None
    value = bytearray([VERSION])
    put_varint(value, record.at_ms)
    put_varint(value, record.key_hash)
    return bytes(key), bytes(value)


def decode(key: bytes, value: bytes | None) -> StoredRecord | None:
    """The inverse of `encode`; None for what a newer version wrote. Raises RecordInvalid."""
    try:
        return _decode(key, value)
    except (IndexError, UnicodeDecodeError) as error:
        raise RecordInvalid(f"a record of a share journal is damaged: {error}") from error


def _decode(key: bytes, value: bytes | None) -> StoredRecord | None:
    number, at = get_varint(key, 1)
    if key[:1] == PARKED:
        return _decode_parked(number, key[at:], value)
    if key[:1] == OPENED and value is None:
        return ShareGroupRemoved(number)
    if value is None:
        return None
    if key[:1] == OPENED and value[0] == VERSION:
        start, at = get_varint(value, 1)
        return ShareGroupOpened(number, value[at:].decode(), start)
    if key[:1] != CHANGED or value[0] > CHANGED_VERSION:
        return None
    start, at = -1, 2
    if value[0] == 0:
        start, at = get_varint(value, at)
        start -= 1
    elif value[1] & HAS_START:
        start, at = get_varint(value, at)
    return ShareGroupChanged(number, _decode_runs(value, at), start, bool(value[1] & IS_RESET))


def _decode_runs(value: bytes, at: int) -> tuple[StoredRun, ...]:
    runs: list[StoredRun] = []
    reached, end = 0, len(value)
    # a snapshot has a million runs: this takes a third of the time of StoredRun()
    make = tuple.__new__
    while at < end:
        gap, size = value[at], value[at + 1]
        if gap < 0x80 and size < 0x80:  # almost always, and a call costs more than the rest
            at += 2
        else:
            gap, at = get_varint(value, at)
            size, at = get_varint(value, at)
        flags, count = value[at], value[at + 1]
        if count < 0x80:
            at += 2
        else:
            count, at = get_varint(value, at + 1)
        at_ms = 0
        if flags & HAS_TIME:
            at_ms, at = get_varint(value, at)
        state = flags & STATE_MASK
        if not AVAILABLE <= state <= ARCHIVED:
            raise RecordInvalid(f"the unknown delivery state {state}")
        first = reached + gap
        reached = first + size + 1
        runs.append(make(StoredRun, (first, reached - 1, state, count, at_ms)))
    return tuple(runs)


def _decode_parked(number: int, key: bytes, value: bytes | None) -> KeyParked | None:
    if value is None:
        return KeyParked(number, key, -1, None)
    if value[0] != VERSION:
        return None
    at_ms, at = get_varint(value, 1)
    key_hash, _ = get_varint(value, at)
    return KeyParked(number, key, key_hash, at_ms)
