"""The durable state of consumer groups of the new protocol, in Kafka's format.

Invariants: pure bytes and tuples. Do not change: stored. Keys 3 and 5 to 8 of `__consumer_offsets`,
each with value version 0 (Kafka 4.3, KIP-848): the group's epoch, a member's subscription, the
epoch of the target assignment, a member's target, a member's current assignment. Resolved regular
expressions (key 16) are not stored: they are derived from the existing topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.member_records import (
    NO_TAGS,
    VALUE_VERSION,
    VERSION,
    read_epochs,
    read_names,
    read_numbers,
    write_epochs,
    write_key,
    write_numbers,
)
from headrace.coordination.stored_bytes import (
    INT8,
    INT32,
    INT64,
    StoredReader,
    compact_data,
    compact_nullable_string,
    compact_string,
    tagged_fields,
    uvarint,
)

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

_METADATA_HASH_TAG: Final = 0
_EMPTIED_TAG: Final = 1_000
"""Headrace's own tag: when the last member left. Readers skip unknown tags."""
_CLASSIC_TAG: Final = 0
_UUID_SIZE: Final = 16
_TOPIC_SIZE_MIN: Final = _UUID_SIZE + 2
_PROTOCOL_SIZE_MIN: Final = 3


class ConsumerGroupStored(NamedTuple):
    """The epoch of a group, which is raised with each change of members, subscriptions or
    topics."""

    group_id: str
    epoch: int
    metadata_hash: int = 0
    emptied_ms: int = -1
    """When the last member left; -1 while there are members."""


class ClassicSide(NamedTuple):
    """The last JoinGroup request of a member that speaks the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberStored(NamedTuple):
    """A member and its subscription."""

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
    """The group epoch for which the target assignment was computed."""

    group_id: str
    epoch: int


class TargetStored(NamedTuple):
    """A member's target assignment: partitions by topic, sorted."""

    group_id: str
    member_id: str
    partitions: Mapping[UUID, tuple[int, ...]]


class CurrentStored(NamedTuple):
    """A member's current assignment and its epoch; the member still owns `revoking` and must give
    it up.

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
    """The record under this key is deleted; `member_id` is None for keys of a group."""

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
            return write_key(GROUP_KEY, record.group_id), _group_value(record)
        case ConsumerMemberStored():
            return write_key(MEMBER_KEY, record.group_id, record.member_id), _member_value(record)
        case TargetEpochStored(group_id, epoch):
            value = VERSION + INT32.pack(epoch) + NO_TAGS
            return write_key(TARGET_EPOCH_KEY, group_id), value
        case TargetStored(group_id, member_id, partitions):
            parts = [VERSION, uvarint(len(partitions) + 1)]
            for topic_id in sorted(partitions, key=_by_number):
                parts += (topic_id.bytes, write_numbers(partitions[topic_id]), NO_TAGS)
            return write_key(TARGET_KEY, group_id, member_id), b"".join((*parts, NO_TAGS))
        case CurrentStored():
            return write_key(CURRENT_KEY, record.group_id, record.member_id), _current_value(record)
        case ConsumerRecordRemoved():
            return write_key(*record), None


def _by_number(topic_id: UUID) -> int:
    return topic_id.int


def _group_value(record: ConsumerGroupStored) -> bytes:
    tags = {_METADATA_HASH_TAG: INT64.pack(record.metadata_hash)} if record.metadata_hash else {}
    if record.emptied_ms >= 0:
        tags[_EMPTIED_TAG] = INT64.pack(record.emptied_ms)
    return VERSION + INT32.pack(record.epoch) + tagged_fields(tags)


def _member_value(record: ConsumerMemberStored) -> bytes:
    parts = [
        VERSION,
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
        # A nullable structure begins with a byte that tells whether it is present.
        inner = [INT8.pack(1), INT32.pack(timeout_ms), uvarint(len(protocols) + 1)]
        for name, metadata in protocols:
            inner += (compact_string(name), compact_data(metadata), NO_TAGS)
        tags[_CLASSIC_TAG] = b"".join((*inner, NO_TAGS))
    return b"".join((*parts, tagged_fields(tags)))


def _current_value(record: CurrentStored) -> bytes:
    parts = [
        VERSION,
        INT32.pack(record.epoch),
        INT32.pack(record.previous_epoch),
        INT8.pack(record.state),
    ]
    for owned in (record.assigned, record.revoking):
        parts.append(uvarint(len(owned) + 1))
        for topic_id in sorted(owned, key=_by_number):
            parts += (topic_id.bytes, write_epochs(owned[topic_id]))
    return b"".join((*parts, NO_TAGS))


def decode(key_type: int, key: StoredReader, value: bytes | None) -> ConsumerRecord | None:
    """Decode a key of this protocol whose type has been read; None: unknown version.

    Raises RecordInvalid if a known version is truncated, has an invalid length, or has trailing
    bytes.
    """
    if key_type not in GROUP_KEYS | MEMBER_KEYS:
        return None
    group_id, member_id = read_names(key, has_member=key_type in MEMBER_KEYS)
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


def _decode_target(reader: StoredReader) -> dict[UUID, tuple[int, ...]]:
    found: dict[UUID, tuple[int, ...]] = {}
    for _ in range(reader.compact_count(_TOPIC_SIZE_MIN)):
        topic_id = reader.uuid()
        found[topic_id] = read_numbers(reader)
        reader.tagged_fields()
    reader.tagged_fields()
    return found


def _decode_owned(reader: StoredReader, member_epoch: int) -> dict[UUID, dict[int, int]]:
    found: dict[UUID, dict[int, int]] = {}
    for _ in range(reader.compact_count(_TOPIC_SIZE_MIN)):
        topic_id = reader.uuid()
        found[topic_id] = read_epochs(reader, member_epoch)
    return found
