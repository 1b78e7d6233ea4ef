"""The durable state of streams groups, in Kafka's format (KIP-1071).

Invariants: pure bytes and tuples. Do not change: stored. Keys 17 and 19 to 23 of
`__consumer_offsets`, each with value version 0 (Kafka 4.3): the group's epoch, a member, the epoch
of the target assignment, a member's target, a member's current assignment, the topology.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.kit.stored_bytes import (
    INT8,
    INT32,
    INT64,
    StoredReader,
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
    NO_TOPOLOGY_EPOCH,
    CurrentStored,
    GroupKind,
    GroupStored,
    TargetEpochStored,
    TargetStored,
    TopologyStored,
    emptied_of,
)
from headrace.coordination.streams.tasks import (
    NO_TASKS,
    NOTHING_HELD,
    EpochSet,
    HeldTasks,
    StreamTasks,
    TaskSet,
)

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig

_VALIDATED_TAG: Final = 0
_CONFIGS_TAG: Final = 1
_TASKS_SIZE_MIN: Final = 3
_PAIR_SIZE_MIN: Final = 3
_UINT16_MASK: Final = 0xFFFF


class StreamsGroupStored(GroupStored):
    """See GroupStored."""

    __slots__ = ()


class StreamsTargetEpochStored(TargetEpochStored):
    """See TargetEpochStored."""

    __slots__ = ()


class StreamsTargetStored(TargetStored[StreamTasks]):
    """See TargetStored."""

    __slots__ = ()


class StreamsCurrentStored(CurrentStored[HeldTasks]):
    """See CurrentStored."""

    __slots__ = ()


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

    @property
    def is_classic(self) -> bool:
        """See StoredMember."""
        return False

    @property
    def has_endpoint(self) -> bool:
        """See StoredMember."""
        return self.endpoint is not None

    def session_ms(self, config: GroupConfig) -> int:
        """See StoredMember."""
        return config.streams_session_timeout_ms


StreamsRecord = (
    StreamsGroupStored
    | StreamsMemberStored
    | TopologyStored
    | StreamsTargetEpochStored
    | StreamsTargetStored
    | StreamsCurrentStored
)


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


def _write_group(record: GroupStored) -> bytes:
    tags: dict[int, bytes] = {}
    if record.validated_epoch != NO_TOPOLOGY_EPOCH:
        tags[_VALIDATED_TAG] = INT32.pack(record.validated_epoch)
    if record.configs:
        tags[_CONFIGS_TAG] = _pairs(record.configs)
    if record.emptied_ms >= 0:
        tags[EMPTIED_TAG] = INT64.pack(record.emptied_ms)
    return INT64.pack(record.metadata_hash) + tagged_fields(tags)


def _read_group(group_id: str, epoch: int, reader: StoredReader) -> StreamsGroupStored:
    metadata_hash, tags = reader.int64(), reader.tagged_fields()
    validated, configs = tags.get(_VALIDATED_TAG), tags.get(_CONFIGS_TAG)
    return StreamsGroupStored(
        group_id,
        epoch,
        metadata_hash,
        NO_TOPOLOGY_EPOCH if validated is None else StoredReader(validated).int32(),
        () if configs is None else _decode_pairs(StoredReader(configs)),
        emptied_of(tags),
    )


def _write_member(record: StreamsMemberStored) -> bytes:
    # A nullable structure begins with a byte that tells whether it is present.
    endpoint = b"\xff"
    if record.endpoint is not None:
        host, port = record.endpoint
        endpoint = INT8.pack(1) + compact_string(host) + port.to_bytes(2, "big") + NO_TAGS
    return b"".join(
        (
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


def _write_tasks(tasks: StreamTasks) -> bytes:
    return b"".join(map(_task_set, tasks.roles()))


def _read_tasks(reader: StoredReader) -> StreamTasks:
    return StreamTasks(_decode_set(reader), _decode_set(reader), _decode_set(reader))


def _write_held(held: HeldTasks) -> bytes:
    return _epoch_set(held.active) + _task_set(held.standby) + _task_set(held.warmup)


def _read_member(group_id: str, member_id: str, reader: StoredReader) -> StreamsMemberStored:
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


def _read_held(reader: StoredReader, member_epoch: int) -> HeldTasks:
    active: EpochSet = {}
    for _ in range(reader.compact_count(_TASKS_SIZE_MIN)):
        subtopology_id = reader.compact_string()
        active[subtopology_id] = read_epochs(reader, member_epoch)
    return HeldTasks(active, _decode_set(reader), _decode_set(reader))


STREAMS: Final[GroupKind[StreamsMemberStored, StreamTasks, HeldTasks]] = GroupKind(
    name="streams",
    unit="tasks",
    no_tasks=NO_TASKS,
    nothing_held=NOTHING_HELD,
    first_epoch=1,
    owned=lambda _: {},
    group_key=17,
    member_key=19,
    target_epoch_key=20,
    target_key=21,
    current_key=22,
    topology_key=23,
    group=StreamsGroupStored,
    target_epoch=StreamsTargetEpochStored,
    target=StreamsTargetStored,
    current=StreamsCurrentStored,
    write_group=_write_group,
    read_group=_read_group,
    write_member=_write_member,
    read_member=_read_member,
    write_tasks=_write_tasks,
    read_tasks=_read_tasks,
    write_held=_write_held,
    read_held=_read_held,
)
"""Groups of Kafka Streams' threads. Do not change the keys: stored.

A new group begins with an empty target of epoch 1. Its members are at this epoch until tasks can be
assigned: a client that is still at epoch 0 after a response does not know that it has joined.
"""
