"""The durable state of streams groups, in Kafka's format (KIP-1071).

Invariants: pure bytes and tuples. Do not change: stored. Keys 17 and 19 to 23 of
`__consumer_offsets`, each with value version 0 (Kafka 4.3): the group's epoch, a member, the epoch
of the target assignment, a member's target, a member's current assignment, the topology.
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
    compact_nullable_string,
    compact_string,
    tagged_fields,
    uvarint,
)
from headrace.coordination.streams.stored_topology import read_topology, write_topology
from headrace.coordination.streams.tasks import EpochSet, HeldTasks, StreamTasks, TaskSet

if TYPE_CHECKING:
    from headrace.coordination.streams.topology import Topology

GROUP_KEY: Final = 17
MEMBER_KEY: Final = 19
TARGET_EPOCH_KEY: Final = 20
TARGET_KEY: Final = 21
CURRENT_KEY: Final = 22
TOPOLOGY_KEY: Final = 23
GROUP_KEYS: Final = frozenset({GROUP_KEY, TARGET_EPOCH_KEY, TOPOLOGY_KEY})
MEMBER_KEYS: Final = frozenset({MEMBER_KEY, TARGET_KEY, CURRENT_KEY})

NO_TOPOLOGY_EPOCH: Final = -1
_VALIDATED_TAG: Final = 0
_CONFIGS_TAG: Final = 1
_EMPTIED_TAG: Final = 1_000
"""Headrace's own tag: when the last member left. Readers skip unknown tags."""
_ASSIGNED_TAG: Final = 0
_TASKS_SIZE_MIN: Final = 3
_PAIR_SIZE_MIN: Final = 3
_UINT16_MASK: Final = 0xFFFF


class StreamsGroupStored(NamedTuple):
    """The epoch of a group, raised with each change of members, topology, topics or settings."""

    group_id: str
    epoch: int
    metadata_hash: int = 0
    validated_epoch: int = NO_TOPOLOGY_EPOCH
    """The epoch of the topology whose topics all exist; -1: some do not."""
    configs: tuple[tuple[str, str], ...] = ()
    """The settings that the assignment depends on."""
    emptied_ms: int = -1
    """When the last member left; -1 while there are members."""


class StreamsMemberStored(NamedTuple):
    """A member: one thread of a Kafka Streams application; `process_id` identifies its process."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    topology_epoch: int = 0
    process_id: str = ""
    endpoint: tuple[str, int] | None = None
    """The process's endpoint for interactive queries."""
    tags: tuple[tuple[str, str], ...] = ()


class StreamsTopologyStored(NamedTuple):
    """The topology of the group's application."""

    group_id: str
    topology: Topology


class StreamsTargetEpochStored(NamedTuple):
    """The group epoch for which the target assignment was computed."""

    group_id: str
    epoch: int
    assigned_ms: int = -1


class StreamsTargetStored(NamedTuple):
    """A member's target assignment."""

    group_id: str
    member_id: str
    tasks: StreamTasks


class StreamsCurrentStored(NamedTuple):
    """A member's current assignment and its epoch; the member still owns `revoking` and must give
    it up."""

    group_id: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: int
    assigned: HeldTasks
    revoking: HeldTasks


class StreamsRecordRemoved(NamedTuple):
    """The record under this key is deleted; `member_id` is None for keys of a group."""

    key_type: int
    group_id: str
    member_id: str | None = None


StreamsRecord = (
    StreamsGroupStored
    | StreamsMemberStored
    | StreamsTopologyStored
    | StreamsTargetEpochStored
    | StreamsTargetStored
    | StreamsCurrentStored
    | StreamsRecordRemoved
)


def encode(record: StreamsRecord) -> tuple[bytes, bytes | None]:
    """Key and value of `record`; a value of None is a tombstone."""
    match record:
        case StreamsGroupStored():
            return write_key(GROUP_KEY, record.group_id), _group_value(record)
        case StreamsMemberStored():
            return write_key(MEMBER_KEY, record.group_id, record.member_id), _member_value(record)
        case StreamsTopologyStored(group_id, topology):
            return write_key(TOPOLOGY_KEY, group_id), VERSION + write_topology(topology)
        case StreamsTargetEpochStored(group_id, epoch, assigned_ms):
            tags = {_ASSIGNED_TAG: INT64.pack(assigned_ms)} if assigned_ms >= 0 else {}
            return write_key(TARGET_EPOCH_KEY, group_id), VERSION + INT32.pack(
                epoch
            ) + tagged_fields(tags)
        case StreamsTargetStored(group_id, member_id, tasks):
            value = b"".join((VERSION, *map(_task_set, tasks.roles()), NO_TAGS))
            return write_key(TARGET_KEY, group_id, member_id), value
        case StreamsCurrentStored():
            return write_key(CURRENT_KEY, record.group_id, record.member_id), _current_value(record)
        case StreamsRecordRemoved():
            return write_key(*record), None


def _pairs(pairs: tuple[tuple[str, str], ...]) -> bytes:
    parts = [uvarint(len(pairs) + 1)]
    for name, value in pairs:
        parts += (compact_string(name), compact_string(value), NO_TAGS)
    return b"".join(parts)


def _task_set(tasks: TaskSet) -> bytes:
    parts = [uvarint(len(tasks) + 1)]
    for subtopology_id in sorted(tasks):
        parts += (compact_string(subtopology_id), write_numbers(tasks[subtopology_id]), NO_TAGS)
    return b"".join(parts)


def _epoch_set(tasks: EpochSet) -> bytes:
    parts = [uvarint(len(tasks) + 1)]
    for subtopology_id in sorted(tasks):
        parts += (compact_string(subtopology_id), write_epochs(tasks[subtopology_id]))
    return b"".join(parts)


def _group_value(record: StreamsGroupStored) -> bytes:
    tags: dict[int, bytes] = {}
    if record.validated_epoch != NO_TOPOLOGY_EPOCH:
        tags[_VALIDATED_TAG] = INT32.pack(record.validated_epoch)
    if record.configs:
        tags[_CONFIGS_TAG] = _pairs(record.configs)
    if record.emptied_ms >= 0:
        tags[_EMPTIED_TAG] = INT64.pack(record.emptied_ms)
    head = VERSION + INT32.pack(record.epoch) + INT64.pack(record.metadata_hash)
    return head + tagged_fields(tags)


def _member_value(record: StreamsMemberStored) -> bytes:
    # A nullable structure begins with a byte that tells whether it is present.
    endpoint = b"\xff"
    if record.endpoint is not None:
        host, port = record.endpoint
        endpoint = INT8.pack(1) + compact_string(host) + port.to_bytes(2, "big") + NO_TAGS
    return b"".join(
        (
            VERSION,
            compact_nullable_string(record.instance_id),
            compact_nullable_string(record.rack),
            compact_string(record.client_id),
            compact_string(record.client_host),
            INT32.pack(record.rebalance_timeout_ms),
            INT32.pack(record.topology_epoch),
            compact_string(record.process_id),
            endpoint,
            _pairs(record.tags),
            NO_TAGS,
        )
    )


def _current_value(record: StreamsCurrentStored) -> bytes:
    parts = [
        VERSION,
        INT32.pack(record.epoch),
        INT32.pack(record.previous_epoch),
        INT8.pack(record.state),
    ]
    for held in (record.assigned, record.revoking):
        parts += (_epoch_set(held.active), _task_set(held.standby), _task_set(held.warmup))
    return b"".join((*parts, NO_TAGS))


def decode(key_type: int, key: StoredReader, value: bytes | None) -> StreamsRecord | None:
    """Decode a key of this protocol whose type has been read; None: unknown version.

    Raises RecordInvalid if a known version is truncated, has an invalid length, or has trailing
    bytes.
    """
    if key_type not in GROUP_KEYS | MEMBER_KEYS:
        return None
    group_id, member_id = read_names(key, has_member=key_type in MEMBER_KEYS)
    if value is None:
        return StreamsRecordRemoved(key_type, group_id, member_id)
    reader = StoredReader(value)
    if reader.int16() != VALUE_VERSION:
        return None
    record: StreamsRecord
    if member_id is None:
        record = _decode_of_group(key_type, group_id, reader)
    elif key_type == MEMBER_KEY:
        record = _decode_member(group_id, member_id, reader)
    elif key_type == TARGET_KEY:
        active, standby, warmup = (_decode_set(reader) for _ in range(3))
        reader.tagged_fields()
        record = StreamsTargetStored(group_id, member_id, StreamTasks(active, standby, warmup))
    else:
        epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
        assigned, revoking = _decode_held(reader, epoch), _decode_held(reader, epoch)
        reader.tagged_fields()
        record = StreamsCurrentStored(
            group_id, member_id, epoch, previous_epoch, state, assigned, revoking
        )
    reader.end()
    return record


def _decode_of_group(key_type: int, group_id: str, reader: StoredReader) -> StreamsRecord:
    if key_type == TOPOLOGY_KEY:
        return StreamsTopologyStored(group_id, read_topology(reader))
    epoch = reader.int32()
    if key_type == TARGET_EPOCH_KEY:
        at = reader.tagged_fields().get(_ASSIGNED_TAG)
        return StreamsTargetEpochStored(
            group_id, epoch, -1 if at is None else StoredReader(at).int64()
        )
    metadata_hash = reader.int64()
    tags = reader.tagged_fields()
    validated, configs, emptied = (
        tags.get(tag) for tag in (_VALIDATED_TAG, _CONFIGS_TAG, _EMPTIED_TAG)
    )
    return StreamsGroupStored(
        group_id,
        epoch,
        metadata_hash,
        NO_TOPOLOGY_EPOCH if validated is None else StoredReader(validated).int32(),
        () if configs is None else _decode_pairs(StoredReader(configs)),
        -1 if emptied is None else StoredReader(emptied).int64(),
    )


def _decode_member(group_id: str, member_id: str, reader: StoredReader) -> StreamsMemberStored:
    instance_id, rack = reader.compact_nullable_string(), reader.compact_nullable_string()
    client_id, client_host = reader.compact_string(), reader.compact_string()
    timeout_ms, topology_epoch = reader.int32(), reader.int32()
    process_id = reader.compact_string()
    endpoint: tuple[str, int] | None = None
    if reader.int8() >= 0:
        endpoint = reader.compact_string(), reader.int16() & _UINT16_MASK
        reader.tagged_fields()
    tags = _decode_pairs(reader)
    reader.tagged_fields()
    return StreamsMemberStored(
        group_id,
        member_id,
        instance_id,
        rack,
        client_id,
        client_host,
        timeout_ms,
        topology_epoch,
        process_id,
        endpoint,
        tags,
    )


def _decode_pairs(reader: StoredReader) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for _ in range(reader.compact_count(_PAIR_SIZE_MIN)):
        pairs.append((reader.compact_string(), reader.compact_string()))
        reader.tagged_fields()
    return tuple(pairs)


def _decode_set(reader: StoredReader) -> TaskSet:
    found: TaskSet = {}
    for _ in range(reader.compact_count(_TASKS_SIZE_MIN)):
        subtopology_id = reader.compact_string()
        found[subtopology_id] = read_numbers(reader)
        reader.tagged_fields()
    return found


def _decode_held(reader: StoredReader, member_epoch: int) -> HeldTasks:
    active: EpochSet = {}
    for _ in range(reader.compact_count(_TASKS_SIZE_MIN)):
        subtopology_id = reader.compact_string()
        active[subtopology_id] = read_epochs(reader, member_epoch)
    return HeldTasks(active, _decode_set(reader), _decode_set(reader))
