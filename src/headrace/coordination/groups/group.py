"""The in-memory state of a classic group, and its state transition table.

Invariants: values and queries. A rule never changes a Group that a machine holds: rules work on a
`Draft`, which copies the group, and each member on its first change; the finished copy travels in a
volatile `GroupChanged` record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.coordination.groups.commands import (
    NO_GENERATION,
    JoinMember,
    JoinReply,
    SyncReply,
)
from headrace.coordination.groups.consumer_records import ConsumerRecord
from headrace.coordination.groups.host_commands import GroupReply
from headrace.coordination.groups.open_commits import OffsetPending, OpenCommits
from headrace.coordination.groups.state_records import (
    DurableRecord,
    GroupStored,
    OffsetStored,
    StoredMember,
)
from headrace.coordination.kit.machine import Decision, TransactionEnded
from headrace.coordination.member_groups.group import GroupMember, MemberGroup, MembersTouched
from headrace.coordination.member_groups.records import MemberRecordRemoved
from headrace.coordination.streams.records import StreamsRecord

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.consumer_group import ConsumerGroup
    from headrace.coordination.streams.streams_group import StreamsGroup
    from headrace.errors import HeadraceError

EMPTY = "Empty"
PREPARING = "PreparingRebalance"
COMPLETING = "CompletingRebalance"
STABLE = "Stable"
DEAD = "Dead"

TRANSITIONS: dict[tuple[str, str], str] = {
    (EMPTY, PREPARING): "first member joins",
    (PREPARING, COMPLETING): "all members have joined, or the join phase has timed out",
    (PREPARING, EMPTY): "the last member has left",
    (COMPLETING, STABLE): "the leader sends the assignment",
    (COMPLETING, PREPARING): "a member rejoins, leaves, expires, or does not sync in time",
    (STABLE, PREPARING): "a member joins, changes, leaves or expires; the leader rejoins",
    (EMPTY, DEAD): "deleted, or empty without offsets",
}
"""Every state transition and its cause. The diagram in docs/GROUPS.md is generated from it."""


@dataclass(slots=True)
class Member:
    """One member. Tickets are 0 while nothing is parked."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    deadline_ms: int = 0
    join_ticket: int = 0
    sync_ticket: int = 0
    is_new: bool = False

    def copy(self) -> Member:
        """A mutable copy."""
        return Member(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.protocols,
            self.assignment,
            self.deadline_ms,
            self.join_ticket,
            self.sync_ticket,
            self.is_new,
        )

    def metadata(self, protocol_name: str | None) -> bytes:
        """The member's metadata for this protocol; empty if it does not support it."""
        for name, data in self.protocols:
            if name == protocol_name:
                return data
        return b""

    def expires_ms(self) -> int | None:
        """When its session expires; None while it waits for the coordinator (then it cannot
        heartbeat)."""
        if self.sync_ticket or (self.join_ticket and not self.is_new):
            return None
        return self.deadline_ms


@dataclass(slots=True)
class Group:
    """One group.

    `consumer` is set while it is a group of the new protocol, `streams` while it is a streams
    group; its classic part is then as empty as a new group's. `offsets` and `open_commits` are
    shared by all copies: they belong to the machine, and change through durable records only.
    `record` is the group's durable state, None if there is none. `delay_left_ms` is not negative
    while the first members join (initial delay); `phase_deadline_ms` ends the join phase, or the
    time in which members must sync.
    """

    group_id: str
    state: str = EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol_name: str | None = None
    leader: str | None = None
    timestamp_ms: int = -1
    record: GroupStored | None = None
    phase_deadline_ms: int | None = None
    delay_left_ms: int = -1
    has_newcomer: bool = False
    members: dict[str, Member] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)
    pending_sync: dict[str, None] = field(default_factory=dict)
    offsets: dict[tuple[str, int], OffsetStored] = field(default_factory=dict)
    open_commits: OpenCommits = field(default_factory=OpenCommits)
    consumer: ConsumerGroup | None = None
    streams: StreamsGroup | None = None

    def copy(self) -> Group:
        """A copy whose own fields may be changed; it shares the members with the original."""
        return Group(
            self.group_id,
            self.state,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader,
            self.timestamp_ms,
            self.record,
            self.phase_deadline_ms,
            self.delay_left_ms,
            self.has_newcomer,
            self.members.copy(),
            self.static.copy(),
            self.pending.copy(),
            self.pending_sync.copy(),
            self.offsets,
            self.open_commits,
            self.consumer,
            self.streams,
        )

    @property
    def managed(self) -> MemberGroup[Any, Any, Any] | None:
        """Its part of a group whose coordinator assigns, of any kind; None: a classic group."""
        return self.streams if self.consumer is None else self.consumer

    def has_members(self) -> bool:
        """Whether the group has members, or a member is about to join."""
        if self.managed is not None:
            return bool(self.managed.members)
        return self.state != EMPTY or bool(self.pending)

    def next_deadline_ms(self) -> int | None:
        """The first time at which the group changes without a command."""
        if self.managed is not None:
            return self.managed.next_deadline_ms()
        deadline = self.phase_deadline_ms
        for pending_ms in self.pending.values():
            if deadline is None or pending_ms < deadline:
                deadline = pending_ms
        for member in self.members.values():
            expires_ms = member.expires_ms()
            if expires_ms is not None and (deadline is None or expires_ms < deadline):
                deadline = expires_ms
        return deadline

    def validate(self) -> None:
        """Assert the invariants: one kind at a time, a leader among the members."""
        if self.managed is not None:
            assert self.consumer is None or self.streams is None
            assert not self.members, "a classic member in a group of the new protocol"
            self.managed.validate()
            return
        assert self.state in {EMPTY, PREPARING, COMPLETING, STABLE, DEAD}
        assert self.members or self.state in {EMPTY, PREPARING, DEAD}, "no members to wait for"
        assert self.leader is None or self.leader in self.members
        for member_id, member in self.members.items():
            assert member.member_id == member_id
            if member.group_instance_id is not None:
                assert self.static[member.group_instance_id] == member_id
        assert all(member_id in self.members for member_id in self.static.values())

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def common_protocols(self) -> list[str]:
        """Protocols that every member supports, in the order of the first member."""
        common: list[str] | None = None
        for member in self.members.values():
            names = [name for name, _ in member.protocols]
            common = names if common is None else [name for name in common if name in names]
        return common or []

    def select_protocol(self) -> str:
        """The common protocol that most members prefer; the first one listed wins a tie."""
        common = self.common_protocols()
        votes = dict.fromkeys(common, 0)
        for member in self.members.values():
            for name, _ in member.protocols:
                if name in votes:
                    votes[name] += 1
                    break
        return max(common, key=votes.__getitem__)

    def is_forgettable(self) -> bool:
        """Whether dropping the group would lose nothing, durable or volatile."""
        return (
            self.state == EMPTY
            and self.managed is None
            and self.record is None
            and not (self.offsets or self.open_commits or self.members or self.pending)
        )

    def current_members(self) -> list[JoinMember]:
        """The members as the leader sees them."""
        return [
            JoinMember(m.member_id, m.group_instance_id, m.metadata(self.protocol_name))
            for m in self.members.values()
        ]

    def current_join_reply(self, member_id: str) -> JoinReply:
        """The join response of the current generation, for one of its members."""
        return JoinReply(
            None,
            member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            self.leader or "",
            self.current_members() if member_id == self.leader else [],
        )

    def stored(self, leader: str | None) -> GroupStored:
        """The durable record of the group's current state, with this leader."""
        members = tuple(
            StoredMember(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                m.metadata(self.protocol_name),
                m.assignment,
            )
            for m in self.members.values()
        )
        return GroupStored(
            self.group_id,
            self.protocol_type,
            self.generation,
            self.protocol_name,
            leader,
            self.timestamp_ms,
            members,
        )


def group_from_record(record: GroupStored, known: Group | None) -> Group:
    """Rebuild the group from the log; deadlines start when the machine gets a LoadedCommand.

    A generation without a leader was never assigned: its members must rejoin, as PreparingRebalance
    requires. `known`: the previous group, whose offsets are kept.
    """
    state = STABLE if record.leader is not None else PREPARING
    group = Group(
        record.group_id,
        state if record.members else EMPTY,
        record.generation,
        record.protocol_type,
        record.protocol_name,
        record.leader,
        record.timestamp_ms,
        record=record,
    )
    if known is not None:
        group.offsets, group.open_commits = known.offsets, known.open_commits
    for m in record.members:
        group.members[m.member_id] = Member(
            m.member_id,
            m.group_instance_id,
            m.client_id,
            m.client_host,
            m.session_timeout_ms,
            m.rebalance_timeout_ms,
            ((record.protocol_name or "", m.subscription),),
            m.assignment,
        )
        if m.group_instance_id is not None:
            group.static[m.group_instance_id] = m.member_id
    return group


class GroupChanged(NamedTuple):
    """Volatile: replaces the group. `rebalances` counts generations it began."""

    group: Group
    rebalances: int


class MemberSeen(NamedTuple):
    """Volatile: the member sent a heartbeat; its session expires at `deadline_ms`."""

    member: Member | GroupMember[Any, Any]
    deadline_ms: int


class GroupForgotten(NamedTuple):
    """Volatile: a group without stored state is dropped."""

    group_id: str


class GroupDeadlinesPassed(NamedTuple):
    """Volatile: every deadline up to `now_ms` has been handled."""

    now_ms: int


class CleanupScheduled(NamedTuple):
    """Volatile: look for expired offsets at `at_ms`, from the group at position `first` on."""

    at_ms: int
    first: int = 0


VolatileRecord = (
    GroupChanged
    | MemberSeen
    | MembersTouched
    | GroupForgotten
    | GroupDeadlinesPassed
    | CleanupScheduled
)
GroupRecord = (
    DurableRecord
    | ConsumerRecord
    | StreamsRecord
    | MemberRecordRemoved
    | OffsetPending
    | TransactionEnded
    | VolatileRecord
)
GroupDecision = Decision[GroupRecord, GroupReply]


class Draft:
    """One command's changes to one group: a working copy, and the results so far."""

    __slots__ = ("_own", "answers", "config", "group", "now_ms", "rebalances", "records")

    def __init__(self, group: Group, now_ms: int, config: GroupConfig) -> None:
        self.group = group.copy()
        self.now_ms = now_ms
        self.config = config
        self.records: list[GroupRecord] = []
        self.answers: list[tuple[int, GroupReply]] = []
        self.rebalances = 0
        self._own: dict[str, None] = {}

    def edit(self, member_id: str) -> Member:
        """A mutable copy of the member."""
        member = self.group.members[member_id]
        if member_id not in self._own:
            member = member.copy()
            self.add(member)
        return member

    def add(self, member: Member) -> None:
        """Add a member that is new to the group."""
        self.group.members[member.member_id] = member
        self._own[member.member_id] = None

    def move_to(self, state: str) -> None:
        """Change the group's state."""
        assert (self.group.state, state) in TRANSITIONS, f"{self.group.state} to {state}"
        self.group.state = state
        self.group.timestamp_ms = self.now_ms

    def store(self, leader: str | None) -> None:
        """Make the current state of the group durable."""
        record = self.group.stored(leader)
        self.group.record = record
        self.records.append(record)

    def refuse_join(self, member: Member, error: HeadraceError) -> None:
        """Answer a parked join with an error, if there is one."""
        if member.join_ticket:
            reply = JoinReply(error, member.member_id, NO_GENERATION)
            self.answers.append((member.join_ticket, reply))
            member.join_ticket = 0

    def refuse_sync(self, member: Member, error: HeadraceError) -> None:
        """Answer a parked sync with an error, if there is one."""
        if member.sync_ticket:
            self.answers.append((member.sync_ticket, SyncReply(error)))
            member.sync_ticket = 0

    def decision(self, reply: GroupReply | None) -> GroupDecision:
        """The resulting decision. Durable records come first: see `kit/machine.py`."""
        self.records.append(GroupChanged(self.group, self.rebalances))
        return Decision(self.records, reply, self.answers)


def refused(command: Any, error: HeadraceError) -> GroupDecision:
    """Change nothing and answer with `error`."""
    return Decision([], command.refused(error))
