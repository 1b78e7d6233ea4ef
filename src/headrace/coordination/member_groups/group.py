"""The in-memory state of a group whose coordinator assigns (KIP-848, KIP-1071).

Invariants: durable state changes through durable records only, in any order that a compacted log
may have; rules never change a group, they work on a `MemberDraft` (`draft.py`). What a kind owns
exclusively belongs to one member at a time: `owners` maps it to that member, and is derived from
the current assignments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple

from headrace.coordination.kit.member_epochs import LEAVE_STATIC_EPOCH
from headrace.coordination.member_groups.encodings import STABLE, UNREVOKED
from headrace.coordination.member_groups.records import (
    NO_TOPOLOGY_EPOCH,
    CurrentStored,
    GroupKind,
    GroupStored,
    Held,
    MemberRecordRemoved,
    Stored,
    TargetEpochStored,
    TargetStored,
    Tasks,
    TopologyStored,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.streams.internal_topics import ConfiguredTopology
    from headrace.coordination.streams.topology import Topology

STATE_EMPTY: Final = "Empty"
STATE_NOT_READY: Final = "NotReady"
STATE_ASSIGNING: Final = "Assigning"
STATE_RECONCILING: Final = "Reconciling"
STATE_STABLE: Final = "Stable"
_EPOCH_MASK: Final = 0x7FFF_FFFF


class MemberDeadlines(NamedTuple):
    """When a member's session, its revocation and its sync time out."""

    session_ms: int
    revoke_ms: int | None = None
    """When it must have given up what it has to; None: nothing to give up."""
    sync_ms: int | None = None
    """For a classic member: when it must have joined again or synced; None: no need to."""


@dataclass(slots=True)
class GroupMember(Generic[Stored, Tasks]):
    """One member. Everything outside `stored` is not logged."""

    stored: Stored
    deadline_ms: int = 0
    """When its session expires."""
    revoke_deadline_ms: int | None = None
    sync_deadline_ms: int | None = None
    reported: Tasks | None = None
    """What it last reported to own; None: not reported to this coordinator."""

    def next_deadline_ms(self) -> int:
        """The first of its deadlines."""
        deadlines = (self.deadline_ms, self.revoke_deadline_ms, self.sync_deadline_ms)
        return min(one for one in deadlines if one is not None)


class Volatile(NamedTuple):
    """The state of a group that is not logged. The last four are of streams groups."""

    topics_version: int = -1
    """The version of the topics that were last evaluated."""
    assigned_ms: int = -1
    """When the target was last computed."""
    changed_ms: int = -1
    """When the epoch was last raised."""
    gather_until_ms: int = -1
    """Until then the first members join, and nothing is assigned."""
    endpoint_epoch: int = 0
    """Raised with each change of the tasks of members with endpoints."""
    shutdown_by: str | None = None
    """The member that requested shutdown of the whole application."""
    configured: ConfiguredTopology | None = None
    """The topology with the topics that were last evaluated."""


@dataclass(slots=True)
class MemberGroup(Generic[Stored, Tasks, Held]):
    """One group."""

    kind: GroupKind[Stored, Tasks, Held]
    group_id: str
    stored: GroupStored = field(init=False)
    topology: Topology | None = None
    target_epoch: int = 0
    target_assigned_ms: int = -1
    target: dict[str, Tasks] = field(default_factory=dict)
    members: dict[str, GroupMember[Stored, Tasks]] = field(default_factory=dict)
    current: dict[str, CurrentStored[Held]] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    owners: dict[Any, dict[int, str]] = field(default_factory=dict)
    volatile: Volatile = field(default_factory=Volatile)

    def __post_init__(self) -> None:
        self.stored = self.kind.group(self.group_id, 0)

    @property
    def epoch(self) -> int:
        """The group's epoch."""
        return self.stored.epoch

    @property
    def emptied_ms(self) -> int:
        """When the last member left; -1 while there are members."""
        return self.stored.emptied_ms

    def is_ready(self) -> bool:
        """Whether all topics of the topology exist, as far as is known."""
        if self.kind.topology_key is None:
            return True
        return (
            self.topology is not None
            and self.stored.validated_epoch != NO_TOPOLOGY_EPOCH
            and self.stored.validated_epoch == self.topology.epoch
        )

    def state(self) -> str:
        """Kafka's name of the group's state."""
        if not self.members:
            return STATE_EMPTY
        if not self.is_ready():
            return STATE_NOT_READY
        if self.epoch > self.target_epoch:
            return STATE_ASSIGNING
        if all(self.is_settled(member_id) for member_id in self.members):
            return STATE_STABLE
        return STATE_RECONCILING

    def is_settled(self, member_id: str) -> bool:
        """Whether the member has reached its target, or is temporarily away."""
        current = self.current.get(member_id)
        if current is None:
            return False
        return current.epoch == LEAVE_STATIC_EPOCH or (
            current.epoch == self.target_epoch and current.state == STABLE
        )

    def next_deadline_ms(self) -> int | None:
        """The first time at which the group changes without a command."""
        return min((one.next_deadline_ms() for one in self.members.values()), default=None)

    def state_records(self) -> Iterator[Any]:
        """Durable records that by themselves rebuild the group, each taken when requested."""
        kind, group_id = self.kind, self.group_id
        for member_id in list(self.members):
            if (member := self.members.get(member_id)) is not None:
                yield member.stored
        yield self.stored
        if self.topology is not None:
            yield TopologyStored(group_id, self.topology)
        for member_id in list(self.target):
            if (tasks := self.target.get(member_id)) is not None:
                yield kind.target(group_id, member_id, tasks)
        yield kind.target_epoch(group_id, self.target_epoch, self.target_assigned_ms)
        for member_id in list(self.current):
            if (current := self.current.get(member_id)) is not None:
                yield current

    def removals(self) -> list[MemberRecordRemoved]:
        """The records that remove the whole group."""
        states: tuple[Mapping[str, Any], ...] = self.current, self.target, self.members
        return [
            *(
                MemberRecordRemoved(key_type, self.group_id, member_id)
                for key_type, members in zip(self.kind.member_keys, states, strict=True)
                for member_id in members
            ),
            *(MemberRecordRemoved(key_type, self.group_id) for key_type in self.kind.group_keys),
        ]

    def validate(self) -> None:
        """Assert the invariants: what is owned exclusively has one owner, and epochs grow."""
        owners: dict[Any, dict[int, str]] = {}
        for member_id, current in self.current.items():
            assert member_id in self.members, "a former member holds an assignment"
            assert current.epoch <= self.epoch
            for held in (current.assigned, current.revoking):
                for key, numbers in self.kind.owned(held).items():
                    for number in numbers:
                        other = owners.setdefault(key, {}).setdefault(number, member_id)
                        assert other == member_id, f"{key}-{number} has two owners"
        assert owners == self.owners
        assert self.target.keys() <= self.members.keys()
        assert self.target_epoch <= self.epoch
        assert all(member_id in self.members for member_id in self.static.values())

    # --- state changes -----------------------------------------------------------------------

    def apply(self, record: Any) -> None:
        """Apply one durable record of the group's kind to the state."""
        match record:
            case GroupStored():
                self.stored = record
            case TopologyStored(_, topology):
                self.topology = topology
            case TargetEpochStored(_, epoch, assigned_ms):
                self.target_epoch, self.target_assigned_ms = epoch, assigned_ms
            case TargetStored(_, member_id, tasks):
                self.target[member_id] = tasks
            case CurrentStored():
                self._disown(record.member_id)
                self._own(record)
            case MemberRecordRemoved(key_type, _, member_id):
                self._remove(key_type, member_id)
            case _:
                self._put_member(record)

    def _put_member(self, record: Stored) -> None:
        known = self.members.get(record.member_id)
        if known is None:
            self.members[record.member_id] = GroupMember(record)
        else:
            known.stored = record
        if record.instance_id is not None:
            self.static[record.instance_id] = record.member_id

    def _own(self, current: CurrentStored[Any]) -> None:
        self.current[current.member_id] = current
        for held in (current.assigned, current.revoking):
            for key, numbers in self.kind.owned(held).items():
                owners = self.owners.setdefault(key, {})
                for number in numbers:
                    owners[number] = current.member_id

    def _disown(self, member_id: str) -> None:
        current = self.current.pop(member_id, None)
        if current is None:
            return
        for held in (current.assigned, current.revoking):
            for key, numbers in self.kind.owned(held).items():
                owners = self.owners.get(key, {})
                for number in numbers:
                    if owners.get(number) == member_id:
                        del owners[number]
                if not owners:
                    self.owners.pop(key, None)

    def _remove(self, key_type: int, member_id: str | None) -> None:
        kind = self.kind
        if key_type == kind.target_epoch_key:
            self.target_epoch, self.target_assigned_ms = 0, -1
        elif key_type == kind.group_key:
            self.stored = kind.group(self.group_id, 0)
        elif key_type == kind.topology_key:
            self.topology = None
        elif member_id is None:
            return
        elif key_type == kind.target_key:
            self.target.pop(member_id, None)
        elif key_type == kind.current_key:
            self._disown(member_id)
        else:
            member = self.members.pop(member_id, None)
            instance_id = None if member is None else member.stored.instance_id
            if instance_id is not None and self.static.get(instance_id) == member_id:
                del self.static[instance_id]

    def touch(self, record: MembersTouched) -> None:
        """Apply volatile state."""
        self.volatile = record.volatile
        for member_id, deadlines, reported in record.members:
            member = self.members.get(member_id)
            if member is not None:
                member.deadline_ms, member.revoke_deadline_ms, member.sync_deadline_ms = deadlines
                member.reported = reported

    def loaded(self, now_ms: int, config: GroupConfig) -> MembersTouched:
        """Grant every stored member one full session, and one for its revocation."""
        members: list[TouchedMember] = []
        for member_id, member in self.members.items():
            current, stored = self.current.get(member_id), member.stored
            revoke_ms: int | None = None
            if current is not None and current.state == UNREVOKED and not stored.is_classic:
                revoke_ms = now_ms + max(stored.rebalance_timeout_ms, 0)
            deadlines = MemberDeadlines(now_ms + stored.session_ms(config), revoke_ms)
            members.append(TouchedMember(member_id, deadlines))
        # No client has seen this endpoint epoch before: each gets the endpoints again.
        volatile = Volatile(changed_ms=now_ms, endpoint_epoch=now_ms // 1_000 & _EPOCH_MASK)
        return MembersTouched(self.group_id, volatile, tuple(members))


class TouchedMember(NamedTuple):
    """The volatile state of a member."""

    member_id: str
    deadlines: MemberDeadlines
    reported: Any = None


class MembersTouched(NamedTuple):
    """Volatile: the state of a group that is not logged. Last among a decision's records."""

    group_id: str
    volatile: Volatile
    members: tuple[TouchedMember, ...]
