"""The durable state of consumer groups of the new protocol, in Kafka's format.

Invariants: pure bytes and tuples. Do not change: stored. Keys 3 and 5 to 8 of `__consumer_offsets`,
each with value version 0 (Kafka 4.3, KIP-848): the group's epoch, a member's subscription, the
epoch of the target assignment, a member's target, a member's current assignment. Resolved regular
expressions (key 16) are not stored: they are derived from the existing topics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from headrace.coordination.kit.stored_bytes import (
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
from headrace.coordination.member_groups.encodings import (
    NO_TAGS,
    read_epochs,
    read_numbers,
    write_epochs,
    write_numbers,
)
from headrace.coordination.member_groups.records import (
    EMPTIED_TAG,
    CurrentStored,
    GroupKind,
    GroupStored,
    TargetEpochStored,
    TargetStored,
    emptied_of,
)

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig

Partitions = Mapping[UUID, Collection[int]]
"""Partitions by topic."""
OwnedPartitions = Mapping[UUID, Mapping[int, int]]
"""By topic and partition: the member epoch at which it was assigned."""
_METADATA_HASH_TAG: Final = 0
_CLASSIC_TAG: Final = 0
_UUID_SIZE: Final = 16
_TOPIC_SIZE_MIN: Final = _UUID_SIZE + 2
_PROTOCOL_SIZE_MIN: Final = 3


class ConsumerGroupStored(GroupStored):
    """See GroupStored."""

    __slots__ = ()


class ConsumerTargetEpochStored(TargetEpochStored):
    """See TargetEpochStored."""

    __slots__ = ()


class ConsumerTargetStored(TargetStored[Partitions]):
    """See TargetStored; partitions are sorted."""

    __slots__ = ()


class ConsumerCurrentStored(CurrentStored[OwnedPartitions]):
    """See CurrentStored."""

    __slots__ = ()


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

    @property
    def is_classic(self) -> bool:
        """See StoredMember."""
        return self.classic is not None

    @property
    def has_endpoint(self) -> bool:
        """See StoredMember: consumers do not know each other."""
        return False

    def session_ms(self, config: GroupConfig) -> int:
        """See StoredMember."""
        if self.classic is not None:
            return self.classic.session_timeout_ms
        return config.consumer_session_timeout_ms


ConsumerRecord = (
    ConsumerGroupStored
    | ConsumerMemberStored
    | ConsumerTargetEpochStored
    | ConsumerTargetStored
    | ConsumerCurrentStored
)


def _by_number(topic_id: UUID) -> int:
    return topic_id.int


def _write_group(record: GroupStored) -> bytes:
    tags = {_METADATA_HASH_TAG: INT64.pack(record.metadata_hash)} if record.metadata_hash else {}
    if record.emptied_ms >= 0:
        tags[EMPTIED_TAG] = INT64.pack(record.emptied_ms)
    return tagged_fields(tags)


def _read_group(group_id: str, epoch: int, reader: StoredReader) -> ConsumerGroupStored:
    tags = reader.tagged_fields()
    stored = tags.get(_METADATA_HASH_TAG)
    found = 0 if stored is None else StoredReader(stored).int64()
    return ConsumerGroupStored(group_id, epoch, found, emptied_ms=emptied_of(tags))


def _write_member(record: ConsumerMemberStored) -> bytes:
    parts = [
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


def _write_partitions(partitions: Partitions) -> bytes:
    parts = [uvarint(len(partitions) + 1)]
    for topic_id in sorted(partitions, key=_by_number):
        parts += (topic_id.bytes, write_numbers(tuple(partitions[topic_id])), NO_TAGS)
    return b"".join(parts)


def _write_owned(owned: OwnedPartitions) -> bytes:
    parts = [uvarint(len(owned) + 1)]
    for topic_id in sorted(owned, key=_by_number):
        parts += (topic_id.bytes, write_epochs(owned[topic_id]))
    return b"".join(parts)


def _read_member(group_id: str, member_id: str, reader: StoredReader) -> ConsumerMemberStored:
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


def _read_partitions(reader: StoredReader) -> Partitions:
    found: dict[UUID, tuple[int, ...]] = {}
    for _ in range(reader.compact_count(_TOPIC_SIZE_MIN)):
        topic_id = reader.uuid()
        found[topic_id] = read_numbers(reader)
        reader.tagged_fields()
    return found


def _read_owned(reader: StoredReader, member_epoch: int) -> OwnedPartitions:
    found: dict[UUID, dict[int, int]] = {}
    for _ in range(reader.compact_count(_TOPIC_SIZE_MIN)):
        topic_id = reader.uuid()
        found[topic_id] = read_epochs(reader, member_epoch)
    return found


CONSUMER: Final[GroupKind[ConsumerMemberStored, Partitions, OwnedPartitions]] = GroupKind(
    name="consumer",
    unit="partitions",
    no_tasks={},
    nothing_held={},
    first_epoch=0,
    owned=lambda held: held,
    group_key=3,
    member_key=5,
    target_epoch_key=6,
    target_key=7,
    current_key=8,
    topology_key=None,
    group=ConsumerGroupStored,
    target_epoch=ConsumerTargetEpochStored,
    target=ConsumerTargetStored,
    current=ConsumerCurrentStored,
    write_group=_write_group,
    read_group=_read_group,
    write_member=_write_member,
    read_member=_read_member,
    write_tasks=_write_partitions,
    read_tasks=_read_partitions,
    write_held=_write_owned,
    read_held=_read_owned,
)
"""Groups of consumers. Do not change the keys: stored."""
