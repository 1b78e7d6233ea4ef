"""Kafka's classic consumer group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Invariants: each function decides one command and changes nothing (see `kit/machine.py`). Sources:
Kafka's GroupCoordinator, KIP-62 (rebalance timeout), KIP-345 and KIP-814 (static members), KIP-394
(member id required). Cooperative rebalancing (KIP-429) needs nothing from the coordinator: a member
that gives up partitions simply joins again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups.commands import (
    HeartbeatCommand,
    HeartbeatReply,
    JoinCommand,
    JoinReply,
    LeaveCommand,
    LeaveReply,
    LeavingMember,
    LeftMember,
    SyncCommand,
    SyncReply,
)
from headrace.coordination.groups.group import (
    COMPLETING,
    PREPARING,
    STABLE,
    Draft,
    Group,
    GroupDecision,
    Member,
    MemberSeen,
    refused,
)
from headrace.coordination.groups.rebalance import prepare, rejoin, remove_member, try_complete
from headrace.coordination.kit.machine import Decision
from headrace.coordination.kit.stored_bytes import STRING_SIZE_MAX
from headrace.errors import (
    GroupFull,
    HeadraceError,
    IllegalGeneration,
    InconsistentProtocol,
    InstanceIdFenced,
    MemberIdRequired,
    MemberUnknown,
    RebalanceInProgress,
    RequestInvalid,
    SessionTimeoutInvalid,
)

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig

NAME_SIZE_MAX = STRING_SIZE_MAX - 64
"""Bytes of a client or instance id: a member id derived from it must fit into a stored string."""
UNCOUNTED_SIZE_MAX = 1_000
"""Bytes of what does not count for the memory that members may take."""


def check_member(group: Group, member_id: str, instance_id: str | None) -> HeadraceError | None:
    """The error in a command of this member, if any."""
    if instance_id is not None:
        owner = group.static.get(instance_id)
        if owner is not None and owner != member_id:
            return InstanceIdFenced(f"instance id {instance_id!r} belongs to a newer member")
        if owner is None:
            return MemberUnknown(f"no member has the instance id {instance_id!r}: join again")
    if member_id not in group.members:
        return MemberUnknown("the member is not in the group: join again")
    return None


# --- JoinGroup ---------------------------------------------------------------------------------


def decide_join(
    group: Group | None, command: JoinCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """Join: parked until the join phase closes, unless it can be answered or refused at once."""
    error = check_join(command, config)
    if error is not None:
        return refused(command, error)
    if group is None:
        if command.member_id:
            return refused(
                command, MemberUnknown("the group does not exist: join without a member id")
            )
        group = Group(command.group_id, timestamp_ms=now_ms)
    if not _has_room(group, command.member_id, config):
        return refused(command, GroupFull(limit=config.group_size_max))
    if not _speaks_with(group, command):
        return refused(command, InconsistentProtocol("no protocol is common to all members"))
    draft = Draft(group, now_ms, config)
    if not command.member_id:
        return _join_as_newcomer(draft, command)
    if command.member_id in group.pending:
        if command.group_instance_id is not None:
            return refused(
                command,
                MemberUnknown(
                    "this member id was not assigned to a static member: join without a member id"
                ),
            )
        return _add_member(draft, command, command.member_id)
    error = check_member(group, command.member_id, command.group_instance_id)
    if error is not None:
        return refused(command, error)
    return _join_again(draft, command)


def check_join(command: JoinCommand, config: GroupConfig) -> HeadraceError | None:
    """The error in a join by itself, if any."""
    limits = config.session_timeout_min_ms, config.session_timeout_max_ms
    if not limits[0] <= command.session_timeout_ms <= limits[1]:
        return SessionTimeoutInvalid(limit=limits, actual=command.session_timeout_ms)
    if not command.protocol_type or not command.protocols:
        return InconsistentProtocol("a member must name a protocol type and a protocol")
    uncounted = [command.protocol_type, command.group_instance_id or ""]
    others = [command.client_id, command.client_host, *(name for name, _ in command.protocols)]
    for names, size_max in ((uncounted, UNCOUNTED_SIZE_MAX), (others, NAME_SIZE_MAX)):
        # len first: a character takes at most 4 bytes.
        if any(len(name) > size_max // 4 and len(name.encode()) > size_max for name in names):
            return RequestInvalid(f"a name of the member or a protocol exceeds {size_max} bytes")
    if sum(len(data) for _, data in command.protocols) > config.member_metadata_bytes_max:
        return RequestInvalid(
            f"the member's metadata exceeds {config.member_metadata_bytes_max} bytes"
        )
    return None


def _has_room(group: Group, member_id: str, config: GroupConfig) -> bool:
    """Existing members keep their place. While members join, Kafka counts only those that have
    rejoined, so an early new member can displace an existing one that rejoins late; this
    implementation does not allow that."""
    return member_id in group.members or len(group.members) < config.group_size_max


def _speaks_with(group: Group, command: JoinCommand) -> bool:
    if not group.members:
        return True
    if command.protocol_type != group.protocol_type:
        return False
    common = group.common_protocols()
    return any(name in common for name, _ in command.protocols)


def _join_as_newcomer(draft: Draft, command: JoinCommand) -> GroupDecision:
    group = draft.group
    instance_id = command.group_instance_id
    if instance_id is not None:
        member_id = f"{instance_id}-{command.fresh_id}"
        if instance_id in group.static:
            return _take_over(draft, command, member_id)
        return _add_member(draft, command, member_id)
    member_id = f"{command.client_id}-{command.fresh_id}"
    if command.is_member_id_required:
        group.pending[member_id] = draft.now_ms + command.session_timeout_ms
        return draft.decision(JoinReply(MemberIdRequired(), member_id))
    return _add_member(draft, command, member_id)


def _add_member(draft: Draft, command: JoinCommand, member_id: str) -> GroupDecision:
    group = draft.group
    group.pending.pop(member_id, None)
    if not group.members:
        group.protocol_type = command.protocol_type
    member = Member(
        member_id,
        command.group_instance_id,
        command.client_id,
        command.client_host,
        command.session_timeout_ms,
        max(command.rebalance_timeout_ms, 0),
        tuple(command.protocols),
        deadline_ms=draft.now_ms + draft.config.new_member_timeout_ms,
        join_ticket=command.ticket,
        is_new=True,
    )
    draft.add(member)
    if command.group_instance_id is not None:
        group.static[command.group_instance_id] = member_id
    if group.leader is None:
        group.leader = member_id
    if group.state == PREPARING:
        group.has_newcomer = True
    prepare(draft)
    try_complete(draft)
    return draft.decision(None)


def _join_again(draft: Draft, command: JoinCommand) -> GroupDecision:
    """An existing member joins: it may only have missed its response, or want a new generation."""
    group = draft.group
    member = draft.edit(command.member_id)
    is_same = member.protocols == tuple(command.protocols)
    missed_answer = is_same and (
        group.state == COMPLETING or (group.state == STABLE and group.leader != command.member_id)
    )
    if missed_answer:
        member.deadline_ms = draft.now_ms + member.session_timeout_ms
        return draft.decision(group.current_join_reply(command.member_id))
    _park_join(draft, member, command)
    prepare(draft)
    try_complete(draft)
    return draft.decision(None)


def _park_join(draft: Draft, member: Member, command: JoinCommand) -> None:
    draft.refuse_join(
        member, RebalanceInProgress("the member has sent another JoinGroup request since")
    )
    _update(member, command)
    member.join_ticket = command.ticket


def _update(member: Member, command: JoinCommand) -> None:
    member.protocols = tuple(command.protocols)
    member.session_timeout_ms = command.session_timeout_ms
    member.rebalance_timeout_ms = max(command.rebalance_timeout_ms, 0)
    member.client_id = command.client_id
    member.client_host = command.client_host


def _take_over(draft: Draft, command: JoinCommand, member_id: str) -> GroupDecision:
    """A static member returns with a new member id: the old id is fenced (KIP-345).

    In a stable group whose protocol does not change there is no rebalance: the member gets the
    assignment of its instance. A leader that knows KIP-814 learns this from SkipAssignment and
    stays leader; an older one gets its old id as the leader's, so that it does not compute an
    assignment.
    """
    group = draft.group
    instance_id = command.group_instance_id
    assert instance_id is not None
    old_id = group.static[instance_id]
    old_leader = group.leader or ""
    member = draft.edit(old_id)
    fenced = InstanceIdFenced(f"instance id {instance_id!r} was taken over by a newer member")
    draft.refuse_join(member, fenced)
    draft.refuse_sync(member, fenced)
    del group.members[old_id]
    member.member_id = member_id
    draft.add(member)
    group.static[instance_id] = member_id
    if old_id in group.pending_sync:
        del group.pending_sync[old_id]
        group.pending_sync[member_id] = None
    is_leader = group.leader == old_id
    if is_leader:
        group.leader = member_id
    _update(member, command)
    member.is_new = False
    member.deadline_ms = draft.now_ms + member.session_timeout_ms
    if group.state == STABLE and group.select_protocol() == group.protocol_name:
        draft.store(group.leader)
        reply = group.current_join_reply(member_id)
        if command.can_skip_assignment:
            reply.skip_assignment = is_leader
        else:
            reply.leader = old_leader
            reply.members = []
        return draft.decision(reply)
    member.join_ticket = command.ticket
    prepare(draft)
    try_complete(draft)
    return draft.decision(None)


# --- SyncGroup ---------------------------------------------------------------------------------


def decide_sync(
    group: Group | None, command: SyncCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """Sync: parked until the leader has sent the assignment."""
    if group is None:
        return refused(command, MemberUnknown("the group does not exist: join again"))
    error = _check_sync(group, command, config)
    if error is not None:
        return refused(command, error)
    draft = Draft(group, now_ms, config)
    group = draft.group
    member = draft.edit(command.member_id)
    group.pending_sync.pop(command.member_id, None)
    if group.state == STABLE:
        if not group.pending_sync:
            group.phase_deadline_ms = None
        member.deadline_ms = now_ms + member.session_timeout_ms
        return draft.decision(_sync_reply(group, member))
    draft.refuse_sync(
        member, RebalanceInProgress("the member has sent another SyncGroup request since")
    )
    member.sync_ticket = command.ticket
    if command.member_id == group.leader:
        _assign(draft, dict(command.assignments))
    return draft.decision(None)


def _check_sync(group: Group, command: SyncCommand, config: GroupConfig) -> HeadraceError | None:
    error = check_member(group, command.member_id, command.group_instance_id)
    if error is not None:
        return error
    if command.generation != group.generation:
        return IllegalGeneration(limit=group.generation, actual=command.generation)
    if command.protocol_type is not None and command.protocol_type != group.protocol_type:
        return InconsistentProtocol(f"the group's protocol type is {group.protocol_type!r}")
    if command.protocol_name is not None and command.protocol_name != group.protocol_name:
        return InconsistentProtocol(f"the group's protocol is {group.protocol_name!r}")
    if group.state == PREPARING:
        return RebalanceInProgress("the group began a new rebalance: join again")
    if sum(len(data) for _, data in command.assignments) > config.assignment_bytes_max:
        return RequestInvalid(f"the assignments exceed {config.assignment_bytes_max} bytes")
    return None


def _sync_reply(group: Group, member: Member) -> SyncReply:
    return SyncReply(None, group.protocol_type, group.protocol_name, member.assignment)


def _assign(draft: Draft, assignments: dict[str, bytes]) -> None:
    """The leader has assigned partitions: the generation is complete. Unknown member ids are
    ignored."""
    group = draft.group
    draft.move_to(STABLE)
    if not group.pending_sync:
        group.phase_deadline_ms = None
    for member_id in list(group.members):
        member = draft.edit(member_id)
        member.assignment = assignments.get(member_id, b"")
        if member.sync_ticket:
            draft.answers.append((member.sync_ticket, _sync_reply(group, member)))
            member.sync_ticket = 0
            member.deadline_ms = draft.now_ms + member.session_timeout_ms
    draft.store(group.leader)


# --- Heartbeat and LeaveGroup --------------------------------------------------------------------


def decide_heartbeat(group: Group | None, command: HeartbeatCommand, now_ms: int) -> GroupDecision:
    """Heartbeat: extends the session, and reports a rebalance through its error code."""
    if group is None:
        return refused(command, MemberUnknown("the group does not exist: join again"))
    error = check_member(group, command.member_id, command.group_instance_id)
    if error is not None:
        return refused(command, error)
    if command.generation != group.generation:
        return refused(command, IllegalGeneration(limit=group.generation))
    member = group.members[command.member_id]
    error = RebalanceInProgress("join again") if group.state == PREPARING else None
    return Decision([seen(member, now_ms)], HeartbeatReply(error))


def seen(member: Member, now_ms: int) -> MemberSeen:
    """The record that extends the member's session. A bounded wait stays bounded."""
    if member.is_new:
        return MemberSeen(member, member.deadline_ms)
    return MemberSeen(member, now_ms + member.session_timeout_ms)


def decide_leave(
    group: Group | None, command: LeaveCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """Leave: each member gets its own result; one rebalance follows for all of them."""
    if group is None:
        return refused(command, MemberUnknown("the group does not exist"))
    draft = Draft(group, now_ms, config)
    left = [LeftMember(m[0], m[1], _remove_leaver(draft, m)) for m in command.members]
    reply = LeaveReply(None, left)
    if all(member.error is not None for member in left):
        return Decision([], reply)
    rejoin(draft)
    return draft.decision(reply)


def _remove_leaver(draft: Draft, leaver: LeavingMember) -> HeadraceError | None:
    group = draft.group
    member_id, instance_id = leaver.member_id, leaver.group_instance_id
    if not member_id:
        if instance_id is None or instance_id not in group.static:
            return MemberUnknown("no member has this instance id")
        member_id = group.static[instance_id]
    elif member_id in group.pending and instance_id is None:
        del group.pending[member_id]
        return None
    error = check_member(group, member_id, instance_id)
    if error is None:
        remove_member(draft, member_id, MemberUnknown("the member has left"))
    return error
