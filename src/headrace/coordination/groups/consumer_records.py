"""The durable state of consumer groups of the new protocol, as Kafka stores it.

Invariants: pure bytes and tuples. Do not change: stored. Keys 3 and 5 to 8 of
`__consumer_offsets`, each with value version 0 (Kafka 4.3, KIP-848): the group's epoch, a member's
subscription, the epoch of the target assignment, a member's target, a member's current assignment.
Resolved regular expressions (key 16) are not stored: they follow from the topics that there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.stored_bytes import (
    INT8,
    INT16,
    INT32,
    INT64,
    StoredReader,
    compact_data,
    compact_nullable_string,
    compact_string,
    stored_string,
    tagged_fields,
    uvarint,
)
from headrace.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

GROUP_KEY: Final = 3
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
CURRENT_KEY: Final = 8
GROUP_KEYS: Final = frozenset({GROUP_KEY, TARGET_EPOCH_KEY})
MEMBER_KEYS: Final = frozenset({MEMBER_KEY, TARGET_KEY, CURRENT_KEY})
VALUE_VERSION: Final = 0

STABLE: Final = 0
UNREVOKED: Final = 1
UNRELEASED: Final = 2

_METADATA_HASH_TAG: Final = 0
_EMPTIED_TAG: Final = 1_000
"""Ours: when the last member left. Readers skip what they do not know."""
_CLASSIC_TAG: Final = 0
_ASSIGNMENT_EPOCHS_TAG: Final = 0
_UUID_SIZE: Final = 16
_TOPIC_SIZE_MIN: Final = _UUID_SIZE + 2
_PARTITION_SIZE: Final = 4
_PROTOCOL_SIZE_MIN: Final = 3


class ConsumerGroupStored(NamedTuple):
    """The epoch of a group: it rises with each change of members, subscriptions or topics."""

    group_id: str
    epoch: int
    metadata_hash: int = 0
    emptied_ms: int = -1
    """When the last member left; -1 while there are members."""


class ClassicSide(NamedTuple):
    """What a member that speaks the classic protocol has said in its last JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberStored(NamedTuple):
    """A member and what it subscribes to."""

    group_id: str
    member_id: str
    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicSide | None = None


class TargetEpochStored(NamedTuple):
    """The group epoch that the target assignment was made for."""

    group_id: str
    epoch: int


class TargetStored(NamedTuple):
    """What a member is to have: partitions by topic, sorted."""

    group_id: str
    member_id: str
    partitions: Mapping[UUID, tuple[int, ...]]


class CurrentStored(NamedTuple):
    """What a member has, at which epoch; `revoking` is still with it and must be given up.

    Partitions come with the member epoch at which they were assigned (KIP-1251).
    """

    group_id: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: int
    assigned: Mapping[UUID, Mapping[int, int]]
    revoking: Mapping[UUID, Mapping[int, int]]


class ConsumerRecordRemoved(NamedTuple):
    """The record under this key is no longer kept; `member_id` is None for keys of a group."""

    key_type: int
    group_id: str
    member_id: str | None = None


ConsumerRecord = (
    ConsumerGroupStored
    | ConsumerMemberStored
    | TargetEpochStored
    | TargetStored
    | CurrentStored
    | ConsumerRecordRemoved
)


def encode(record: ConsumerRecord) -> tuple[bytes, bytes | None]:
    """Key and value of `record`; a value of None is a tombstone."""
    match record:
        case ConsumerGroupStored():
            return _key(GROUP_KEY, record.group_id), _group_value(record)
        case ConsumerMemberStored():
            return _key(MEMBER_KEY, record.group_id, record.member_id), _member_value(record)
        case TargetEpochStored(group_id, epoch):
            value = _VERSION + INT32.pack(epoch) + _NO_TAGS
            return _key(TARGET_EPOCH_KEY, group_id), value
        case TargetStored(group_id, member_id, partitions):
            parts = [_VERSION, uvarint(len(partitions) + 1)]
            for topic_id in sorted(partitions, key=_by_number):
                parts += (topic_id.bytes, _numbers(partitions[topic_id]), _NO_TAGS)
            return _key(TARGET_KEY, group_id, member_id), b"".join((*parts, _NO_TAGS))
        case CurrentStored():
            return _key(CURRENT_KEY, record.group_id, record.member_id), _current_value(record)
        case ConsumerRecordRemoved():
            return _key(*record), None


def _key(key_type: int, group_id: str, member_id: str | None = None) -> bytes:
    key = INT16.pack(key_type) + stored_string(group_id)
    return key if member_id is None else key + stored_string(member_id)


_VERSION = INT16.pack(VALUE_VERSION)
_NO_TAGS = b"\0"


def _by_number(topic_id: UUID) -> int:
    return topic_id.int


def _numbers(numbers: tuple[int, ...]) -> bytes:
    return uvarint(len(numbers) + 1) + b"".join(map(INT32.pack, numbers))


def _group_value(record: ConsumerGroupStored) -> bytes:
    tags = {_METADATA_HASH_TAG: INT64.pack(record.metadata_hash)} if record.metadata_hash else {}
    if record.emptied_ms >= 0:
        tags[_EMPTIED_TAG] = INT64.pack(record.emptied_ms)
    return _VERSION + INT32.pack(record.epoch) + tagged_fields(tags)


def _member_value(record: ConsumerMemberStored) -> bytes:
    parts = [
        _VERSION,
        compact_nullable_string(record.instance_id),
        compact_nullable_string(record.rack),
        compact_string(record.client_id),
        compact_string(record.client_host),
        uvarint(len(record.topics) + 1),
        *map(compact_string, record.topics),
        compact_nullable_string(record.pattern),
        INT32.pack(record.rebalance_timeout_ms),
        compact_nullable_string(record.assignor),
    ]
    tags: dict[int, bytes] = {}
    if record.classic is not None:
        timeout_ms, protocols = record.classic
        # A structure that may be null begins with a byte that says that it is there.
        inner = [INT8.pack(1), INT32.pack(timeout_ms), uvarint(len(protocols) + 1)]
        for name, metadata in protocols:
            inner += (compact_string(name), compact_data(metadata), _NO_TAGS)
        tags[_CLASSIC_TAG] = b"".join((*inner, _NO_TAGS))
    return b"".join((*parts, tagged_fields(tags)))


def _current_value(record: CurrentStored) -> bytes:
    parts = [
        _VERSION,
        INT32.pack(record.epoch),
        INT32.pack(record.previous_epoch),
        INT8.pack(record.state),
    ]
    for owned in (record.assigned, record.revoking):
        parts.append(uvarint(len(owned) + 1))
        for topic_id in sorted(owned, key=_by_number):
            epochs = owned[topic_id]
            numbers = tuple(sorted(epochs))
            tags = {_ASSIGNMENT_EPOCHS_TAG: _numbers(tuple(epochs[n] for n in numbers))}
            parts += (topic_id.bytes, _numbers(numbers), tagged_fields(tags))
    return b"".join((*parts, _NO_TAGS))


def decode(key_type: int, key: StoredReader, value: bytes | None) -> ConsumerRecord | None:
    """The record of a key of this protocol, whose type is read already; None: not understood.

    Raises RecordInvalid when a known version is cut, has a lying length, or bytes left over.
    """
    if key_type not in GROUP_KEYS | MEMBER_KEYS:
        return None
    group_id = key.string()
    member_id = key.string() if key_type in MEMBER_KEYS else None
    key.end()
    if value is None:
        return ConsumerRecordRemoved(key_type, group_id, member_id)
    reader = StoredReader(value)
    if reader.int16() != VALUE_VERSION:
        return None
    record: ConsumerRecord
    if member_id is None:
        record = _decode_group(key_type, group_id, reader)
    elif key_type == MEMBER_KEY:
        record = _decode_member(group_id, member_id, reader)
    elif key_type == TARGET_KEY:
        record = TargetStored(group_id, member_id, _decode_target(reader))
    else:
        epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
        assigned, revoking = _decode_owned(reader, epoch), _decode_owned(reader, epoch)
        reader.tagged_fields()
        record = CurrentStored(
            group_id, member_id, epoch, previous_epoch, state, assigned, revoking
        )
    reader.end()
    return record


def _decode_group(key_type: int, group_id: str, reader: StoredReader) -> ConsumerRecord:
    epoch = reader.int32()
    tags = reader.tagged_fields()
    if key_type == TARGET_EPOCH_KEY:
        return TargetEpochStored(group_id, epoch)
    metadata_hash, emptied_ms = (
        StoredReader(tags[tag]).int64() if tag in tags else default
        for tag, default in ((_METADATA_HASH_TAG, 0), (_EMPTIED_TAG, -1))
    )
    return ConsumerGroupStored(group_id, epoch, metadata_hash, emptied_ms)


def _decode_member(group_id: str, member_id: str, reader: StoredReader) -> ConsumerMemberStored:
    instance_id, rack = reader.compact_nullable_string(), reader.compact_nullable_string()
    client_id, client_host = reader.compact_string(), reader.compact_string()
    topics = tuple(reader.compact_string() for _ in range(reader.compact_count(1)))
    pattern = reader.compact_nullable_string()
    timeout_ms = reader.int32()
    assignor = reader.compact_nullable_string()
    classic = reader.tagged_fields().get(_CLASSIC_TAG)
    return ConsumerMemberStored(
        group_id,
        member_id,
        instance_id,
        rack,
        client_id,
        client_host,
        topics,
        pattern,
        timeout_ms,
        assignor,
        None if classic is None else _decode_classic(StoredReader(classic)),
    )


def _decode_classic(reader: StoredReader) -> ClassicSide | None:
    if reader.int8() < 0:
        return None
    timeout_ms = reader.int32()
    protocols: list[tuple[str, bytes]] = []
    for _ in range(reader.compact_count(_PROTOCOL_SIZE_MIN)):
        protocols.append((reader.compact_string(), reader.compact_data()))
        reader.tagged_fields()
    reader.tagged_fields()
    reader.end()
    return ClassicSide(timeout_ms, tuple(protocols))


def _decode_numbers(reader: StoredReader) -> tuple[int, ...]:
    return tuple(reader.int32() for _ in range(reader.compact_count(_PARTITION_SIZE)))


def _decode_target(reader: StoredReader) -> dict[UUID, tuple[int, ...]]:
    found: dict[UUID, tuple[int, ...]] = {}
    for _ in range(reader.compact_count(_TOPIC_SIZE_MIN)):
        topic_id = reader.uuid()
        found[topic_id] = _decode_numbers(reader)
        reader.tagged_fields()
    reader.tagged_fields()
    return found


def _decode_owned(reader: StoredReader, member_epoch: int) -> dict[UUID, dict[int, int]]:
    found: dict[UUID, dict[int, int]] = {}
    for _ in range(reader.compact_count(_TOPIC_SIZE_MIN)):
        topic_id = reader.uuid()
        numbers = _decode_numbers(reader)
        stored = reader.tagged_fields().get(_ASSIGNMENT_EPOCHS_TAG)
        epochs = () if stored is None else _decode_numbers(StoredReader(stored))
        if not epochs:  # written before Kafka 4.3: fence by the member's epoch alone
            epochs = (member_epoch,) * len(numbers)
        if len(epochs) != len(numbers):
            raise RecordInvalid("a stored record has other numbers of partitions and epochs")
        found[topic_id] = dict(zip(numbers, epochs, strict=True))
    return found
