"""The durable state of groups, in the encoding of Kafka's `__consumer_offsets`.

Invariants: pure bytes and tuples. Do not change: stored, and read by Kafka's own tools
(`kafka-console-consumer --formatter ...OffsetsMessageFormatter`, exporters, mirror makers).
Written: OffsetCommitKey 1 with OffsetCommitValue 4 (3 if the topic id is unknown), GroupMetadataKey
2 with GroupMetadataValue 3; no value (a tombstone) deletes what the key names. Also read: the older
values 0 to 2. Value 4 is that of Kafka 4.1: the first flexible one, with the topic id as tagged
field 0. Groups of the new protocol have other keys (`consumer_records`).

One convention of ours stays within the format: a group value with members but no leader is a
generation that was not yet assigned when it was written. Kafka never writes one, since it stores a
generation only after it is assigned; see `rebalance.py` for the reason.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, error
from typing import NamedTuple
from uuid import UUID

from headrace.coordination.groups.consumer_records import CONSUMER, ConsumerRecord
from headrace.coordination.kit.stored_bytes import (
    INT16,
    INT32,
    INT64,
    StoredReader,
    compact_string,
    stored_string,
    tagged_fields,
)
from headrace.coordination.member_groups.records import MemberRecordRemoved
from headrace.coordination.streams.records import STREAMS, StreamsRecord
from headrace.errors import RecordInvalid
from headrace.records.identifiers import ZERO_UUID

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_ID = 4
GROUP_VALUE_VERSION = 3

_OFFSET_HEAD = Struct(">hqi")
_TOPIC_ID_TAG = 0
_REPEATED_TAG = 1_000
"""Headrace's own: far above the numbers that Kafka allocates sequentially. Readers skip unknown
tags. Do not change: stored."""
_TOPIC_ID_SIZE = 16
_OFFSET_KEY_HEAD = b"\0\x01"
_TOPIC_ID_HEAD = bytes((1, _TOPIC_ID_TAG, _TOPIC_ID_SIZE))
"""One tagged field: its number and its size. Do not change: stored."""
_PLAIN_TAIL_SIZE = INT64.size + len(_TOPIC_ID_HEAD) + _TOPIC_ID_SIZE
_i16 = INT16.pack
_i32 = INT32.pack

MEMBER_SIZE_MIN = 18
"""Bytes of the smallest member in any version: bounds a malformed count."""


class OffsetStored(NamedTuple):
    """A group's committed offset in one partition."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    timestamp_ms: int
    topic_id: UUID | None = None
    """The topic that the offset was committed for; None: stored before ids were."""
    is_repeated: bool = False
    """From a snapshot: commits of open transactions supersede it, wherever they are in the log."""


class OffsetRemoved(NamedTuple):
    """The committed offset of one partition is deleted."""

    group_id: str
    topic: str
    partition: int


class StoredMember(NamedTuple):
    """One member of a stored generation; `subscription` is that of the chosen protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupStored(NamedTuple):
    """One generation of a group."""

    group_id: str
    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    timestamp_ms: int
    members: tuple[StoredMember, ...]


class GroupRemoved(NamedTuple):
    """The group is deleted; its offsets have tombstones of their own."""

    group_id: str


DurableRecord = OffsetStored | OffsetRemoved | GroupStored | GroupRemoved
DecodedRecord = DurableRecord | ConsumerRecord | StreamsRecord | MemberRecordRemoved


def encode(record: DurableRecord) -> tuple[bytes, bytes | None]:
    """Key and value of `record`; a value of None is a tombstone."""
    if isinstance(record, OffsetStored):
        return _offset_key(*record[:3]), _offset_value(record)
    if isinstance(record, OffsetRemoved):
        return _offset_key(*record), None
    key = _i16(GROUP_KEY_VERSION) + stored_string(record.group_id)
    return key, None if isinstance(record, GroupRemoved) else _group_value(record)


def decode(key: bytes, value: bytes | None) -> DecodedRecord | None:
    """The record that `key` and `value` encode; None for an unknown version.

    Raises RecordInvalid if a known version is truncated, has an invalid length, or has trailing
    bytes.
    """
    if value is not None:
        plain = _decode_plain_offset(key, value)
        if plain is not None:
            return plain
    reader = StoredReader(key)
    version = reader.int16()
    if version in (0, OFFSET_KEY_VERSION):
        group_id, topic, partition = reader.string(), reader.string(), reader.int32()
        reader.end()
        if value is None:
            return OffsetRemoved(group_id, topic, partition)
        return _decode_offset(group_id, topic, partition, StoredReader(value))
    if version == GROUP_KEY_VERSION:
        group_id = reader.string()
        reader.end()
        return (
            GroupRemoved(group_id)
            if value is None
            else _decode_group(group_id, StoredReader(value))
        )
    kind = STREAMS if STREAMS.has(version) else CONSUMER
    found: DecodedRecord | None = kind.decode(version, reader, value)
    return found


def _decode_plain_offset(key: bytes, value: bytes) -> OffsetStored | None:
    """Decode an offset in its most frequent form in a fifth of the time; None: use the general
    path.

    A coordinator reads back a million of them. Names are shared, which also saves memory.
    """
    if key[:2] != _OFFSET_KEY_HEAD:
        return None
    try:
        at = 4 + (key[2] << 8 | key[3])
        end = at + 2 + (key[at] << 8 | key[at + 1])
        version, offset, leader_epoch = _OFFSET_HEAD.unpack_from(value)
        tail = _OFFSET_HEAD.size + value[_OFFSET_HEAD.size]
        if (
            version != OFFSET_VALUE_VERSION_WITH_ID
            or not _OFFSET_HEAD.size < tail < _OFFSET_HEAD.size + 0x80
            or end + 4 != len(key)
            or len(value) != tail + _PLAIN_TAIL_SIZE
            or value[tail + 8 : tail + 11] != _TOPIC_ID_HEAD
        ):
            return None
        fields = (
            _shared_text(key[4:at]),
            _shared_text(key[at + 2 : end]),
            INT32.unpack_from(key, end)[0],
            offset,
            leader_epoch,
            value[_OFFSET_HEAD.size + 1 : tail].decode(),
            INT64.unpack_from(value, tail)[0],
            _shared_uuid(value[tail + 11 :]),
            False,
        )
    except (IndexError, UnicodeDecodeError, error):
        return None
    return tuple.__new__(OffsetStored, fields)


@lru_cache(maxsize=4_096)
def _shared_text(data: bytes) -> str:
    return data.decode()


@lru_cache(maxsize=4_096)
def _shared_uuid(data: bytes) -> UUID | None:
    found = UUID(bytes=data)
    return found if found != ZERO_UUID else None


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else stored_string(text)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return b"".join((b"\0\x01", stored_string(group_id), stored_string(topic), _i32(partition)))


def _offset_value(record: OffsetStored) -> bytes:
    _, _, _, offset, leader_epoch, metadata, timestamp_ms, topic_id, is_repeated = record
    if topic_id is None and not is_repeated:
        head = _OFFSET_HEAD.pack(OFFSET_VALUE_VERSION, offset, leader_epoch)
        return b"".join((head, stored_string(metadata), INT64.pack(timestamp_ms)))
    parts = (
        _OFFSET_HEAD.pack(OFFSET_VALUE_VERSION_WITH_ID, offset, leader_epoch),
        compact_string(metadata),
        INT64.pack(timestamp_ms),
    )
    if topic_id is not None and not is_repeated:  # the most frequent form
        return b"".join((*parts, _TOPIC_ID_HEAD, topic_id.bytes))
    fields = {_REPEATED_TAG: b""} if is_repeated else {}
    if topic_id is not None:
        fields[_TOPIC_ID_TAG] = topic_id.bytes
    return b"".join((*parts, tagged_fields(fields)))


def _group_value(record: GroupStored) -> bytes:
    parts = [
        _i16(GROUP_VALUE_VERSION),
        stored_string(record.protocol_type),
        _i32(record.generation),
        _nullable_string(record.protocol_name),
        _nullable_string(record.leader),
        INT64.pack(record.timestamp_ms),
        _i32(len(record.members)),
    ]
    for member in record.members:
        parts += (
            stored_string(member.member_id),
            _nullable_string(member.group_instance_id),
            stored_string(member.client_id),
            stored_string(member.client_host),
            _i32(member.rebalance_timeout_ms),
            _i32(member.session_timeout_ms),
            _i32(len(member.subscription)),
            member.subscription,
            _i32(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _decode_offset(
    group_id: str, topic: str, partition: int, reader: StoredReader
) -> OffsetStored | None:
    version = reader.int16()
    if not 0 <= version <= OFFSET_VALUE_VERSION_WITH_ID:
        return None
    is_flexible = version == OFFSET_VALUE_VERSION_WITH_ID
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.compact_string() if is_flexible else reader.string()
    timestamp_ms = reader.int64()
    if version == 1:
        reader.int64()  # an expiry timestamp, dropped by Kafka 2.1 (KIP-211)
    tags = reader.tagged_fields() if is_flexible else {}
    reader.end()
    return OffsetStored(
        group_id,
        topic,
        partition,
        offset,
        leader_epoch,
        metadata,
        timestamp_ms,
        _topic_id(tags),
        _REPEATED_TAG in tags,
    )


def _topic_id(tags: dict[int, bytes]) -> UUID | None:
    data = tags.get(_TOPIC_ID_TAG)
    if data is None:
        return None
    if len(data) != _TOPIC_ID_SIZE:
        raise RecordInvalid(f"a stored record has a topic id of {len(data)} bytes")
    found = UUID(bytes=data)
    return found if found != ZERO_UUID else None


def _decode_group(group_id: str, reader: StoredReader) -> GroupStored | None:
    version = reader.int16()
    if not 0 <= version <= GROUP_VALUE_VERSION:
        return None
    protocol_type = reader.string()
    generation = reader.int32()
    protocol_name = reader.nullable_string()
    leader = reader.nullable_string()
    timestamp_ms = reader.int64() if version >= 2 else -1
    count = reader.count(MEMBER_SIZE_MIN)
    members = tuple(_decode_member(reader, version) for _ in range(count))
    reader.end()
    return GroupStored(
        group_id, protocol_type, generation, protocol_name, leader, timestamp_ms, members
    )


def _decode_member(reader: StoredReader, version: int) -> StoredMember:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    if version < 1:
        rebalance_timeout_ms = session_timeout_ms
    subscription, assignment = reader.data(), reader.data()
    return StoredMember(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        session_timeout_ms,
        subscription,
        assignment,
    )


def read_subscribed_topics(subscription: bytes) -> list[str] | None:
    """The topics in the metadata of a `consumer` protocol; None if it is malformed.

    Versions 0 to 3 and above all begin with version and topics; the rest is not needed here.
    """
    try:
        reader = StoredReader(subscription)
        if reader.int16() < 0:
            return None
        return [reader.string() for _ in range(reader.count(2))]
    except RecordInvalid:
        return None
