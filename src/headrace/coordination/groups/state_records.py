"""The durable state of groups, in the bytes that Kafka keeps in `__consumer_offsets`.

Rules of the room: pure bytes and tuples. Do not change: stored, and read by Kafka's own tools
(`kafka-console-consumer --formatter ...OffsetsMessageFormatter`, exporters, mirror makers).
Written: OffsetCommitKey 1 with OffsetCommitValue 4 (3 where the topic's id is not known),
GroupMetadataKey 2 with GroupMetadataValue 3; no value (a tombstone) removes what the key names.
Read besides: the older values 0 to 2. Value 4 is that of Kafka 4.1: the first flexible one, with
the topic's id as tagged field 0.

One habit of ours lies within the format: a group value with members but no leader is a
generation whose assignment was not yet made when it was written. Kafka never writes one, since
it stores a generation only once it is assigned; see `rebalance.py` for why we do.
"""

from __future__ import annotations

from struct import Struct, error
from typing import NamedTuple
from uuid import UUID

from headrace.errors import RecordInvalid
from headrace.records.identifiers import ZERO_UUID

OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
OFFSET_VALUE_VERSION = 3
OFFSET_VALUE_VERSION_WITH_ID = 4
GROUP_VALUE_VERSION = 3

_I16 = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")
_OFFSET_HEAD = Struct(">hqi")
_TOPIC_ID_TAG = 0
_TOPIC_ID_SIZE = 16
_TOPIC_ID_HEAD = bytes((1, _TOPIC_ID_TAG, _TOPIC_ID_SIZE))
"""One tagged field: its number and its size. Do not change: stored."""
_i16 = _I16.pack
_i32 = _I32.pack

STRING_SIZE_MAX = 32_767
"""An int16 counts a string's bytes."""
UVARINT_BITS_MAX = 35
MEMBER_SIZE_MIN = 18
"""Bytes of the smallest member that any version stores: bounds a count that lies."""


class OffsetStored(NamedTuple):
    """A group's progress in one partition."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    timestamp_ms: int
    topic_id: UUID | None = None
    """Of the topic that the progress was made in; None: stored before ids were."""


class OffsetRemoved(NamedTuple):
    """The progress in one partition is no longer kept."""

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
    """The group has gone; its offsets have tombstones of their own."""

    group_id: str


DurableRecord = OffsetStored | OffsetRemoved | GroupStored | GroupRemoved


def encode(record: DurableRecord) -> tuple[bytes, bytes | None]:
    """Key and value of `record`; a value of None is a tombstone."""
    if isinstance(record, OffsetStored):
        return _offset_key(*record[:3]), _offset_value(record)
    if isinstance(record, OffsetRemoved):
        return _offset_key(*record), None
    key = _i16(GROUP_KEY_VERSION) + _string(record.group_id)
    return key, None if isinstance(record, GroupRemoved) else _group_value(record)


def decode(key: bytes, value: bytes | None) -> DurableRecord | None:
    """The record that `key` and `value` hold; None for a version that we do not know.

    Raises RecordInvalid when a known version is cut, has a lying length, or bytes left over.
    """
    reader = _Reader(key)
    version = reader.int16()
    if version in (0, OFFSET_KEY_VERSION):
        group_id, topic, partition = reader.string(), reader.string(), reader.int32()
        reader.end()
        if value is None:
            return OffsetRemoved(group_id, topic, partition)
        return _decode_offset(group_id, topic, partition, _Reader(value))
    if version == GROUP_KEY_VERSION:
        group_id = reader.string()
        reader.end()
        return GroupRemoved(group_id) if value is None else _decode_group(group_id, _Reader(value))
    return None


def _string(text: str) -> bytes:
    data = text.encode()
    return _i16(len(data)) + data


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return b"".join((b"\0\x01", _string(group_id), _string(topic), _i32(partition)))


def _offset_value(record: OffsetStored) -> bytes:
    _, _, _, offset, leader_epoch, metadata, timestamp_ms, topic_id = record
    if topic_id is None:
        head = _OFFSET_HEAD.pack(OFFSET_VALUE_VERSION, offset, leader_epoch)
        return b"".join((head, _string(metadata), _I64.pack(timestamp_ms)))
    text = metadata.encode()
    return b"".join(
        (
            _OFFSET_HEAD.pack(OFFSET_VALUE_VERSION_WITH_ID, offset, leader_epoch),
            _uvarint(len(text) + 1),
            text,
            _I64.pack(timestamp_ms),
            _TOPIC_ID_HEAD,
            topic_id.bytes,
        )
    )


def _uvarint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _group_value(record: GroupStored) -> bytes:
    parts = [
        _i16(GROUP_VALUE_VERSION),
        _string(record.protocol_type),
        _i32(record.generation),
        _nullable_string(record.protocol_name),
        _nullable_string(record.leader),
        _I64.pack(record.timestamp_ms),
        _i32(len(record.members)),
    ]
    for member in record.members:
        parts += (
            _string(member.member_id),
            _nullable_string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _i32(member.rebalance_timeout_ms),
            _i32(member.session_timeout_ms),
            _i32(len(member.subscription)),
            member.subscription,
            _i32(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def _decode_offset(
    group_id: str, topic: str, partition: int, reader: _Reader
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
        reader.int64()  # an expiry of its own, dropped by Kafka 2.1 (KIP-211)
    topic_id = reader.topic_id() if is_flexible else None
    reader.end()
    return OffsetStored(
        group_id, topic, partition, offset, leader_epoch, metadata, timestamp_ms, topic_id
    )


def _decode_group(group_id: str, reader: _Reader) -> GroupStored | None:
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


def _decode_member(reader: _Reader, version: int) -> StoredMember:
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
    """The topics in the metadata of a `consumer` protocol; None if it is not of that form.

    Versions 0 to 3 and above all begin alike: version, topics; what follows does not matter here.
    """
    try:
        reader = _Reader(subscription)
        if reader.int16() < 0:
            return None
        return [reader.string() for _ in range(reader.count(2))]
    except RecordInvalid:
        return None


class _Reader:
    """Reads Kafka's plain types from bytes. Every method raises RecordInvalid when cut."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _number(self, form: Struct) -> int:
        try:
            number: int = form.unpack_from(self._data, self._position)[0]
        except error:
            raise RecordInvalid("a group record ends inside a number") from None
        self._position += form.size
        return number

    def int16(self) -> int:
        return self._number(_I16)

    def int32(self) -> int:
        return self._number(_I32)

    def int64(self) -> int:
        return self._number(_I64)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise RecordInvalid(f"a group record has a length of {size} that does not fit it")
        taken = bytes(self._data[self._position : end])
        self._position = end
        return taken

    def data(self) -> bytes:
        return self._take(self.int32())

    def uvarint(self) -> int:
        number = shift = 0
        while shift < UVARINT_BITS_MAX:
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise RecordInvalid("a group record holds a varint of more than five bytes")

    def topic_id(self) -> UUID | None:
        """What the tagged fields at a value's end say; fields that are not known are passed by."""
        found: UUID | None = None
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            data = self._take(self.uvarint())
            if tag == _TOPIC_ID_TAG:
                if len(data) != _TOPIC_ID_SIZE:
                    raise RecordInvalid(f"a group record has a topic id of {len(data)} bytes")
                found = UUID(bytes=data)
        return found if found != ZERO_UUID else None

    def compact_string(self) -> str:
        return self._text(self.uvarint() - 1)

    def string(self) -> str:
        return self._text(self.int16())

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise RecordInvalid("a string of a group record is not UTF-8") from None

    def nullable_string(self) -> str | None:
        start = self._position
        if self.int16() == -1:
            return None
        self._position = start
        return self.string()

    def count(self, size_min: int) -> int:
        count = self.int32()
        if count < 0 or count * size_min > len(self._data) - self._position:
            raise RecordInvalid(f"a group record counts {count} parts that do not fit it")
        return count

    def end(self) -> None:
        if self._position != len(self._data):
            raise RecordInvalid(f"{len(self._data) - self._position} bytes follow a group record")
