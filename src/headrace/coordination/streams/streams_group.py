"""The in-memory state of a streams group (KIP-1071).

Invariants: durable state changes through durable records only, in any order that a compacted log
may have; rules never change a group, they work on a `StreamsDraft` (`draft.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from headrace.coordination.member_epochs import LEAVE_STATIC_EPOCH
from headrace.coordination.member_records import STABLE, UNREVOKED
from headrace.coordination.streams.records import (
    CURRENT_KEY,
    GROUP_KEY,
    MEMBER_KEY,
    NO_TOPOLOGY_EPOCH,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    TOPOLOGY_KEY,
    StreamsCurrentStored,
    StreamsGroupStored,
    StreamsMemberStored,
    StreamsRecord,
    StreamsRecordRemoved,
    StreamsTargetEpochStored,
    StreamsTargetStored,
    StreamsTopologyStored,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.streams.internal_topics import ConfiguredTopology
    from headrace.coordination.streams.tasks import StreamTasks
    from headrace.coordination.streams.topology import Topology


STATE_EMPTY: Final = "Empty"
STATE_NOT_READY: Final = "NotReady"
STATE_ASSIGNING: Final = "Assigning"
STATE_RECONCILING: Final = "Reconciling"
STATE_STABLE: Final = "Stable"


@dataclass(slots=True)
class StreamsMember:
    """One member. Everything outside `stored` is not logged."""

    stored: StreamsMemberStored
    deadline_ms: int = 0
    """When its session expires."""
    revoke_deadline_ms: int | None = None
    """When it must have revoked tasks; None: nothing to revoke."""
    reported: StreamTasks | None = None
    """The tasks that it last reported; None: not reported to this coordinator."""


class Volatile(NamedTuple):
    """The state of a group that is not logged."""

    topics_version: int = -1
    """The version of the topics that `configured` was computed from."""
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


@dataclass(slots=True)
class StreamsGroup:
    """One group."""

    group_id: str
    stored: StreamsGroupStored = field(init=False)
    topology: Topology | None = None
    target_epoch: int = 0
    target_assigned_ms: int = -1
    target: dict[str, StreamTasks] = field(default_factory=dict)
    members: dict[str, StreamsMember] = field(default_factory=dict)
    current: dict[str, StreamsCurrentStored] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    volatile: Volatile = field(default_factory=Volatile)

    def __post_init__(self) -> None:
        self.stored = StreamsGroupStored(self.group_id, 0)

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
        deadline_ms: int | None = None
        for member in self.members.values():
            for one in (member.deadline_ms, member.revoke_deadline_ms):
                if one is not None and (deadline_ms is None or one < deadline_ms):
                    deadline_ms = one
        return deadline_ms

    def state_records(self) -> Iterator[StreamsRecord]:
        """Durable records that by themselves rebuild the group, each taken when requested."""
        group_id = self.group_id
        for member_id in list(self.members):
            if (member := self.members.get(member_id)) is not None:
                yield member.stored
        yield self.stored
        if self.topology is not None:
            yield StreamsTopologyStored(group_id, self.topology)
        for member_id in list(self.target):
            if (tasks := self.target.get(member_id)) is not None:
                yield StreamsTargetStored(group_id, member_id, tasks)
        yield StreamsTargetEpochStored(group_id, self.target_epoch, self.target_assigned_ms)
        for member_id in list(self.current):
            if (current := self.current.get(member_id)) is not None:
                yield current

    def removals(self) -> list[StreamsRecord]:
        """The records that remove the whole group."""
        group_id = self.group_id
        return [
            *(StreamsRecordRemoved(CURRENT_KEY, group_id, m) for m in self.current),
            *(StreamsRecordRemoved(TARGET_KEY, group_id, m) for m in self.target),
            *(StreamsRecordRemoved(MEMBER_KEY, group_id, m) for m in self.members),
            StreamsRecordRemoved(TARGET_EPOCH_KEY, group_id),
            StreamsRecordRemoved(TOPOLOGY_KEY, group_id),
            StreamsRecordRemoved(GROUP_KEY, group_id),
        ]

    # --- state changes -----------------------------------------------------------------------

    def apply(self, record: StreamsRecord) -> None:
        """Apply one durable record to the state."""
        match record:
            case StreamsGroupStored():
                self.stored = record
            case StreamsMemberStored():
                self._put_member(record)
            case StreamsTopologyStored(_, topology):
                self.topology = topology
            case StreamsTargetEpochStored(_, epoch, assigned_ms):
                self.target_epoch, self.target_assigned_ms = epoch, assigned_ms
            case StreamsTargetStored(_, member_id, tasks):
                self.target[member_id] = tasks
            case StreamsCurrentStored():
                self.current[record.member_id] = record
            case StreamsRecordRemoved(key_type, _, member_id):
                self._remove(key_type, member_id)
            case _:
                assert_never(record)

    def _put_member(self, record: StreamsMemberStored) -> None:
        known = self.members.get(record.member_id)
        if known is None:
            self.members[record.member_id] = StreamsMember(record)
        else:
            known.stored = record
        if record.instance_id is not None:
            self.static[record.instance_id] = record.member_id

    def _remove(self, key_type: int, member_id: str | None) -> None:
        if key_type == TARGET_EPOCH_KEY:
            self.target_epoch, self.target_assigned_ms = 0, -1
        elif key_type == GROUP_KEY:
            self.stored = StreamsGroupStored(self.group_id, 0)
        elif key_type == TOPOLOGY_KEY:
            self.topology = None
        elif member_id is None:
            return
        elif key_type == TARGET_KEY:
            self.target.pop(member_id, None)
        elif key_type == CURRENT_KEY:
            self.current.pop(member_id, None)
        else:
            member = self.members.pop(member_id, None)
            instance_id = None if member is None else member.stored.instance_id
            if instance_id is not None and self.static.get(instance_id) == member_id:
                del self.static[instance_id]

    def touch(self, record: StreamsTouched) -> None:
        """Apply volatile state."""
        self.volatile = record.volatile
        for touched in record.members:
            member = self.members.get(touched.member_id)
            if member is not None:
                member.deadline_ms = touched.deadline_ms
                member.revoke_deadline_ms = touched.revoke_deadline_ms
                member.reported = touched.reported


class TouchedStreamsMember(NamedTuple):
    """The volatile state of a member."""

    member_id: str
    deadline_ms: int
    revoke_deadline_ms: int | None = None
    reported: StreamTasks | None = None


class StreamsTouched(NamedTuple):
    """Volatile: the state of a group that is not logged. Last among a decision's records."""

    group_id: str
    volatile: Volatile
    members: tuple[TouchedStreamsMember, ...]


_EPOCH_MASK: Final = 0x7FFF_FFFF


def loaded(group: StreamsGroup, now_ms: int, config: GroupConfig) -> StreamsTouched:
    """Grant every stored member one full session, and one for its revocation."""
    members: list[TouchedStreamsMember] = []
    for member_id, member in group.members.items():
        current = group.current.get(member_id)
        revoke_ms: int | None = None
        if current is not None and current.state == UNREVOKED:
            revoke_ms = now_ms + max(member.stored.rebalance_timeout_ms, 0)
        session_ms = now_ms + config.streams_session_timeout_ms
        members.append(TouchedStreamsMember(member_id, session_ms, revoke_ms))
    # No client has seen this endpoint epoch before: each gets the endpoints again.
    volatile = Volatile(changed_ms=now_ms, endpoint_epoch=now_ms // 1_000 & _EPOCH_MASK)
    return StreamsTouched(group.group_id, volatile, tuple(members))
