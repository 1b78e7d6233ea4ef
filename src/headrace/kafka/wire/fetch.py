"""Fetch v4 to v18, hand-written: the hot path for reads.

Invariants: records are passed on as the buffers that the log returned, inside a few bytes of
envelope. Topics are names up to v12, ids from v13 on (KIP-516); v7 added sessions (KIP-227), v12 is
flexible, v16 returns the leader of a partition and its address (KIP-951).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.kafka.wire.leader_hints import LeaderHint, endpoints_field, leader_field
from headrace.kafka.wire.primitives import (
    INT32,
    FrameInvalid,
    check_end,
    compact_string,
    elements,
    read_compact_count,
    read_compact_string,
    read_count,
    read_string,
    skip_tags,
    string,
    write_uvarint,
)

if TYPE_CHECKING:
    from headrace.runtime.file_bytes import Sendable

FLEXIBLE: Final = 12
TOPIC_IDS: Final = 13
SESSIONS: Final = 7
RACKS: Final = 11
HINTS: Final = 16
"""The schema has the leader from v12 on, but its address only from v16. Like Kafka, Headrace sets
both from v16 on: a client that is directed to a broker that it cannot reach yet is worse off than
one that requests metadata (kafka-python 3.0.12 never fetches from that broker again)."""
LEADER_TAG: Final = 1

_LIMITS: Final = Struct(">iiib")
_SESSION: Final = Struct(">ii")
_PARTITION_4: Final = Struct(">iqi")
_PARTITION_5: Final = Struct(">iqqi")
_PARTITION_9: Final = Struct(">iiqqi")
_PARTITION_12: Final = Struct(">iiqiqi")
_ABORTED: Final = Struct(">qq")
_RESULT_4: Final = Struct(">ihqq")
_RESULT_5: Final = Struct(">ihqqq")
_RESULT_11: Final = Struct(">ihqqqiii")
_HEAD_7: Final = Struct(">ihi")


class FetchPartition(NamedTuple):
    """One partition of a request; `leader_epoch` is -1 if the client does not know it."""

    topic: bytes
    partition: int
    leader_epoch: int
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """A Fetch request; `topic` is a name, or from v13 on the 16 bytes of an id."""

    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[bytes, int]]


class FetchResult(NamedTuple):
    """One partition of a response."""

    topic: bytes
    partition: int
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Sendable
    aborted: list[tuple[int, int]] | None = None
    """(first offset, producer id) of aborted transactions, by first offset."""
    hint: LeaderHint | None = None
    """The leader of the partition, if it is another broker (sent from version 16 on)."""


def read_fetch(data: memoryview, at: int, version: int) -> FetchRequest:
    """Decode the body that begins at `at`. Raises FrameInvalid, struct.error, IndexError."""
    elements.begin()
    if version < 15:
        at += 4  # replica id: there are no followers
    wait_ms_max, bytes_min, bytes_max, isolation = _LIMITS.unpack_from(data, at)
    at += 13
    session_id, session_epoch = 0, -1
    if version >= SESSIONS:
        session_id, session_epoch = _SESSION.unpack_from(data, at)
        at += 8
    if version >= FLEXIBLE:
        partitions, at = _read_partitions_flexible(data, at, version)
        forgotten, at = _read_forgotten_flexible(data, at, version)
        _rack, at = read_compact_string(data, at)
        at = skip_tags(data, at)
    else:
        partitions, at = _read_partitions(data, at, version)
        forgotten = []
        if version >= SESSIONS:
            forgotten, at = _read_forgotten(data, at)
        if version >= RACKS:
            _rack, at = read_string(data, at)
    check_end(data, at)
    return FetchRequest(
        wait_ms_max, bytes_min, bytes_max, isolation, session_id, session_epoch, partitions,
        forgotten,
    )  # fmt: skip


def _read_partitions(data: memoryview, at: int, version: int) -> tuple[list[FetchPartition], int]:
    topic_count, at = read_count(data, at, 6)
    found: list[FetchPartition] = []
    for _ in range(topic_count):
        name, at = read_string(data, at)
        if name is None:
            raise FrameInvalid("a topic name is null")
        count, at = read_count(data, at, 16)
        for _ in range(count):
            epoch = -1
            if version >= 9:
                number, epoch, offset, _start, size = _PARTITION_9.unpack_from(data, at)
                at += _PARTITION_9.size
            elif version >= 5:
                number, offset, _start, size = _PARTITION_5.unpack_from(data, at)
                at += _PARTITION_5.size
            else:
                number, offset, size = _PARTITION_4.unpack_from(data, at)
                at += _PARTITION_4.size
            found.append(FetchPartition(name, number, epoch, offset, size))
    return found, at


def _read_partitions_flexible(
    data: memoryview, at: int, version: int
) -> tuple[list[FetchPartition], int]:
    topic_count, at = read_compact_count(data, at, 3)
    found: list[FetchPartition] = []
    unpack = _PARTITION_12.unpack_from
    for _ in range(topic_count):
        topic, at = _read_topic(data, at, version)
        count, at = read_compact_count(data, at, _PARTITION_12.size + 1)
        for _ in range(count):
            number, epoch, offset, _fetched, _start, size = unpack(data, at)
            at += _PARTITION_12.size
            at = at + 1 if data[at] == 0 else skip_tags(data, at)
            found.append(FetchPartition(topic, number, epoch, offset, size))
        at = skip_tags(data, at)
    return found, at


def _read_topic(data: memoryview, at: int, version: int) -> tuple[bytes, int]:
    if version >= TOPIC_IDS:
        if at + 16 > len(data):
            raise FrameInvalid("a topic id is truncated")
        return bytes(data[at : at + 16]), at + 16
    topic, at = read_compact_string(data, at)
    if topic is None:
        raise FrameInvalid("a topic name is null")
    return topic, at


def _read_forgotten(data: memoryview, at: int) -> tuple[list[tuple[bytes, int]], int]:
    topic_count, at = read_count(data, at, 6)
    found: list[tuple[bytes, int]] = []
    for _ in range(topic_count):
        name, at = read_string(data, at)
        count, at = read_count(data, at, 4)
        for _ in range(count):
            (number,) = INT32.unpack_from(data, at)
            at += 4
            found.append((name or b"", number))
    return found, at


def _read_forgotten_flexible(
    data: memoryview, at: int, version: int
) -> tuple[list[tuple[bytes, int]], int]:
    topic_count, at = read_compact_count(data, at, 3)
    found: list[tuple[bytes, int]] = []
    for _ in range(topic_count):
        topic, at = _read_topic(data, at, version)
        count, at = read_compact_count(data, at, 4)
        for _ in range(count):
            (number,) = INT32.unpack_from(data, at)
            at += 4
            found.append((topic, number))
        at = skip_tags(data, at)
    return found, at


def write_fetch(
    version: int,
    error_code: int,
    session_id: int,
    results: list[FetchResult],
    throttle_ms: int = 0,
) -> list[Sendable]:
    """Encode the response body, as buffers to send one after the other."""
    topics = [(results[0].topic, results)] if len(results) == 1 else _by_topic(results)
    if version >= SESSIONS:
        head = _HEAD_7.pack(throttle_ms, error_code, session_id)
    else:
        head = INT32.pack(throttle_ms)
    if version >= FLEXIBLE:
        return _write_flexible(version, head, topics)
    out: list[Sendable] = []
    text = head + INT32.pack(len(topics))
    for name, of_topic in topics:
        text += string(name) + INT32.pack(len(of_topic))
        for _, number, code, mark, stable, start, records, aborted, _ in of_topic:
            if version >= RACKS and not aborted:
                # -1: no preferred read replica
                text += _RESULT_11.pack(number, code, mark, stable, start, 0, -1, len(records))
            else:
                if version >= 5:
                    text += _RESULT_5.pack(number, code, mark, stable, start)
                else:
                    text += _RESULT_4.pack(number, code, mark, stable)
                text += _aborted(aborted) if aborted else b"\x00\x00\x00\x00"
                if version >= RACKS:
                    text += b"\xff\xff\xff\xff"
                text += INT32.pack(len(records))
            out.append(text)
            out.append(records)
            text = b""
    if text:
        out.append(text)
    return out


def _by_topic(results: list[FetchResult]) -> list[tuple[bytes, list[FetchResult]]]:
    topics: list[tuple[bytes, list[FetchResult]]] = []
    for result in results:
        if topics and topics[-1][0] == result.topic:
            topics[-1][1].append(result)
        else:
            topics.append((result.topic, [result]))
    return topics


def _aborted(aborted: list[tuple[int, int]]) -> bytes:
    entries = [_ABORTED.pack(producer_id, first) for first, producer_id in aborted]
    return INT32.pack(len(entries)) + b"".join(entries)


def _aborted_flexible(aborted: list[tuple[int, int]]) -> bytes:
    entries = [_ABORTED.pack(producer_id, first) + b"\x00" for first, producer_id in aborted]
    return write_uvarint(len(entries) + 1) + b"".join(entries)


def _write_flexible(
    version: int, head: bytes, topics: list[tuple[bytes, list[FetchResult]]]
) -> list[Sendable]:
    out: list[Sendable] = []
    text = head + write_uvarint(len(topics) + 1)
    hints: list[LeaderHint] = []
    for topic, of_topic in topics:
        text += topic if version >= TOPIC_IDS else compact_string(topic)
        text += write_uvarint(len(of_topic) + 1)
        for _, number, code, mark, stable, start, records, aborted, hint in of_topic:
            text += _RESULT_5.pack(number, code, mark, stable, start)
            text += _aborted_flexible(aborted) if aborted else b"\x01"
            # no preferred read replica
            text += b"\xff\xff\xff\xff" + write_uvarint(len(records) + 1)
            out.append(text)
            out.append(records)
            text = b"\x00"  # no tags
            if hint is not None and version >= HINTS:
                text = leader_field(LEADER_TAG, hint)
                hints.append(hint)
        text += b"\x00"
    out.append(text + endpoints_field(hints))
    return out
