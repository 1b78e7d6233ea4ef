"""The durable state of a member group, whatever its kind.

Invariants: pure bytes and tuples. Do not change: stored. A kind of groups has subclasses of these
records, and `GroupKind` says under which keys they are stored and how its groups, members and tasks
are encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from headrace.coordination.kit.stored_bytes import INT8, INT32, INT64, StoredReader, tagged_fields
from headrace.coordination.member_groups.encodings import (
    NO_TAGS,
    VALUE_VERSION,
    VERSION,
    read_names,
    write_key,
)
from headrace.coordination.streams.stored_topology import read_topology, write_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Self

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.streams.topology import Topology

NO_TOPOLOGY_EPOCH: Final = -1
EMPTIED_TAG: Final = 1_000
"""Headrace's own tag of a group: when the last member left. Readers skip unknown tags."""
_ASSIGNED_TAG: Final = 0


class StoredMember(Protocol):
    """A member as the engine needs it. Its kind adds what it subscribes to.

    `rebalance_timeout_ms`: how long it may take to give up what it must. `is_classic`: it speaks
    the classic protocol. `has_endpoint`: the other members are told what it processes.
    """

    @property
    def group_id(self) -> str: ...
    @property
    def member_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...
    @property
    def client_id(self) -> str: ...
    @property
    def client_host(self) -> str: ...
    @property
    def rebalance_timeout_ms(self) -> int: ...
    @property
    def is_classic(self) -> bool: ...
    @property
    def has_endpoint(self) -> bool: ...

    def session_ms(self, config: GroupConfig) -> int:
        """Its session timeout when the coordinator has just been loaded."""
        ...

    def _replace(self, *, member_id: str = ...) -> Self: ...


Stored = TypeVar("Stored", bound=StoredMember)
Tasks = TypeVar("Tasks")
Held = TypeVar("Held")


class GroupStored(NamedTuple):
    """The epoch of a group, which is raised with each change of members, subscriptions or topics.

    Only streams groups have a topology and settings.
    """

    group_id: str
    epoch: int
    metadata_hash: int = 0
    validated_epoch: int = NO_TOPOLOGY_EPOCH
    """The epoch of the topology whose topics all exist; -1: some do not."""
    configs: tuple[tuple[str, str], ...] = ()
    """The settings that the assignment depends on."""
    emptied_ms: int = -1
    """When the last member left; -1 while there are members."""


class TargetEpochStored(NamedTuple):
    """The group epoch for which the target assignment was computed."""

    group_id: str
    epoch: int
    assigned_ms: int = -1


class TargetStored(NamedTuple, Generic[Tasks]):
    """A member's target assignment."""

    group_id: str
    member_id: str
    tasks: Tasks


class CurrentStored(NamedTuple, Generic[Held]):
    """A member's current assignment and its epoch; the member still owns `revoking` and must give
    it up. What it owns comes with the member epochs at which it was assigned (KIP-1251)."""

    group_id: str
    member_id: str
    epoch: int
    previous_epoch: int
    state: int
    assigned: Held
    revoking: Held


class TopologyStored(NamedTuple):
    """The topology of a streams group's application."""

    group_id: str
    topology: Topology


class MemberRecordRemoved(NamedTuple):
    """The record under this key is deleted; `member_id` is None for keys of a group."""

    key_type: int
    group_id: str
    member_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupKind(Generic[Stored, Tasks, Held]):
    """What a kind of groups assigns, and how it is stored: the types of its keys, its records, and
    the parts of their values that differ."""

    name: str
    unit: str
    """What is assigned, in words."""
    no_tasks: Tasks
    nothing_held: Held
    first_epoch: int
    """Of a new group, and of its empty target."""
    owned: Callable[[Held], Mapping[Any, Iterable[int]]]
    """What the owner of has to be known at any time."""
    group_key: int
    member_key: int
    target_epoch_key: int
    target_key: int
    current_key: int
    topology_key: int | None
    group: Callable[..., GroupStored]
    target_epoch: Callable[..., TargetEpochStored]
    target: Callable[[str, str, Tasks], TargetStored[Tasks]]
    current: Callable[[str, str, int, int, int, Held, Held], CurrentStored[Held]]
    write_group: Callable[[GroupStored], bytes]
    read_group: Callable[[str, int, StoredReader], GroupStored]
    """From the group id, the epoch, and the rest of the value."""
    write_member: Callable[[Stored], bytes]
    read_member: Callable[[str, str, StoredReader], Stored]
    write_tasks: Callable[[Tasks], bytes]
    read_tasks: Callable[[StoredReader], Tasks]
    write_held: Callable[[Held], bytes]
    read_held: Callable[[StoredReader, int], Held]

    @property
    def group_keys(self) -> tuple[int, ...]:
        """The types of keys without a member, as they are removed."""
        topology = () if self.topology_key is None else (self.topology_key,)
        return self.target_epoch_key, *topology, self.group_key

    @property
    def member_keys(self) -> tuple[int, ...]:
        """The types of keys with a member, as they are removed."""
        return self.current_key, self.target_key, self.member_key

    def has(self, key_type: int) -> bool:
        """Whether the kind has keys of this type."""
        return key_type in self.member_keys or key_type in self.group_keys

    def encode(self, record: Any) -> tuple[bytes, bytes | None]:
        """Key and value of `record`; a value of None is a tombstone."""
        match record:
            case MemberRecordRemoved():
                return write_key(*record), None
            case GroupStored(group_id, epoch):
                value = INT32.pack(epoch) + self.write_group(record)
                return write_key(self.group_key, group_id), VERSION + value
            case TopologyStored(group_id, topology):
                assert self.topology_key is not None
                value = write_topology(topology)
                return write_key(self.topology_key, group_id), VERSION + value
            case TargetEpochStored(group_id, epoch, assigned_ms):
                tags = {_ASSIGNED_TAG: INT64.pack(assigned_ms)} if assigned_ms >= 0 else {}
                value = INT32.pack(epoch) + tagged_fields(tags)
                return write_key(self.target_epoch_key, group_id), VERSION + value
            case TargetStored(group_id, member_id, tasks):
                value = self.write_tasks(tasks) + NO_TAGS
                return write_key(self.target_key, group_id, member_id), VERSION + value
            case CurrentStored(group_id, member_id, epoch, previous_epoch, state):
                value = INT32.pack(epoch) + INT32.pack(previous_epoch) + INT8.pack(state)
                value += self.write_held(record.assigned) + self.write_held(record.revoking)
                value += NO_TAGS
                return write_key(self.current_key, group_id, member_id), VERSION + value
            case _:
                value = self.write_member(record)
                return write_key(
                    self.member_key, record.group_id, record.member_id
                ), VERSION + value

    def decode(self, key_type: int, key: StoredReader, value: bytes | None) -> Any:
        """Decode a key whose type has been read; None: not a key of this kind, or of an unknown
        version.

        Raises RecordInvalid if a known version is truncated, has an invalid length, or has
        trailing bytes.
        """
        if not self.has(key_type):
            return None
        group_id, member_id = read_names(key, has_member=key_type in self.member_keys)
        if value is None:
            return MemberRecordRemoved(key_type, group_id, member_id)
        reader = StoredReader(value)
        if reader.int16() != VALUE_VERSION:
            return None
        if member_id is None:
            record = self._decode_of_group(key_type, group_id, reader)
        else:
            record = self._decode_of_member(key_type, group_id, member_id, reader)
        reader.end()
        return record

    def _decode_of_group(self, key_type: int, group_id: str, reader: StoredReader) -> Any:
        if key_type == self.topology_key:
            return TopologyStored(group_id, read_topology(reader))
        epoch = reader.int32()
        if key_type == self.group_key:
            return self.read_group(group_id, epoch, reader)
        at = reader.tagged_fields().get(_ASSIGNED_TAG)
        if at is None or self.topology_key is None:
            return self.target_epoch(group_id, epoch)
        return self.target_epoch(group_id, epoch, StoredReader(at).int64())

    def _decode_of_member(
        self, key_type: int, group_id: str, member_id: str, reader: StoredReader
    ) -> Any:
        if key_type == self.member_key:
            return self.read_member(group_id, member_id, reader)
        if key_type == self.target_key:
            tasks = self.read_tasks(reader)
            reader.tagged_fields()
            return self.target(group_id, member_id, tasks)
        epoch, previous_epoch, state = reader.int32(), reader.int32(), reader.int8()
        assigned, revoking = self.read_held(reader, epoch), self.read_held(reader, epoch)
        reader.tagged_fields()
        return self.current(group_id, member_id, epoch, previous_epoch, state, assigned, revoking)


def emptied_of(tags: dict[int, bytes]) -> int:
    """The inverse of writing `EMPTIED_TAG`."""
    return StoredReader(tags[EMPTIED_TAG]).int64() if EMPTIED_TAG in tags else -1
