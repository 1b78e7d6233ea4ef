"""The steps of a heartbeat that all kinds of member groups share: check, join or stay, leave.

Invariants: each function changes a draft or nothing. Every response carries the member's epoch; the
next heartbeat must carry it, or the previous one if the response was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.kit.member_epochs import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from headrace.coordination.kit.stored_bytes import STRING_SIZE_MAX
from headrace.coordination.member_groups.commands import UNCHANGED_MS, MemberHeartbeat
from headrace.coordination.member_groups.encodings import STABLE
from headrace.errors import (
    GroupFull,
    InstanceIdFenced,
    InstanceIdUnreleased,
    MemberEpochFenced,
    MemberUnknown,
    RequestInvalid,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.coordination.member_groups.draft import MemberDraft
    from headrace.coordination.member_groups.group import GroupMember, MemberGroup
    from headrace.coordination.member_groups.records import CurrentStored, Held, Stored, Tasks

NAME_SIZE_MAX: Final = STRING_SIZE_MAX - 64
OWN_NAME_SIZE_MAX: Final = 1_000
"""Of an id, rack, host or tag. They are kept with each member, which counts for as much as this."""
SETTLING_MS: Final = 3_000
SETTLING_INTERVAL_MS: Final = 300
"""Heartbeat interval while a group changes: steps that take each member one heartbeat then take
this long rather than a whole interval."""


def check(command: MemberHeartbeat) -> None:
    """Raise RequestInvalid if the fields that all kinds have contradict each other."""
    epoch = command.member_epoch
    if epoch < LEAVE_STATIC_EPOCH:
        raise RequestInvalid(f"member epoch {epoch} is not valid: 0 joins, -1 and -2 leave")
    if not command.member_id and (epoch != JOIN_EPOCH or not command.fresh_id):
        raise RequestInvalid("a member id must not be empty")
    if command.instance_id == "" or command.rack == "":
        raise RequestInvalid("an instance id or rack id must be null or not empty")
    if epoch == LEAVE_STATIC_EPOCH and command.instance_id is None:
        raise RequestInvalid("only a member with an instance id may leave with epoch -2")
    if epoch == JOIN_EPOCH and command.rebalance_timeout_ms < 0:
        raise RequestInvalid("a member that joins must send its rebalance timeout")


def check_names(command: MemberHeartbeat, own: Iterable[str], others: Iterable[str]) -> None:
    """Raise RequestInvalid if a name of the member, `own` among them, is too long, or if one of
    `others` could not be stored."""
    names = [command.member_id, command.client_id, command.client_host]
    names += [command.instance_id or "", command.rack or "", *own]
    for texts, size_max in ((names, OWN_NAME_SIZE_MAX), (others, NAME_SIZE_MAX)):
        if any(len(n) * 4 > size_max and len(n.encode()) > size_max for n in texts):
            raise RequestInvalid(f"a name in the request is longer than {size_max} bytes")


def is_settled(group: MemberGroup[Stored, Tasks, Held], command: MemberHeartbeat) -> bool:
    """Whether the member has reached its target, and reports no change of what all kinds have."""
    current = group.current.get(command.member_id)
    return (
        current is not None
        and current.state == STABLE
        and current.epoch == command.member_epoch == group.target_epoch == group.epoch
        and command.instance_id is None
        and command.rack is None
        and command.rebalance_timeout_ms == UNCHANGED_MS
        and group.volatile.topics_version == command.topics.version
    )


def interval_ms(changed_ms: int, command: MemberHeartbeat, now_ms: int, *, is_settled: bool) -> int:
    """When the member is to send its next heartbeat."""
    if is_settled and not 0 <= now_ms - changed_ms < SETTLING_MS:
        return command.heartbeat_interval_ms
    return min(command.heartbeat_interval_ms, SETTLING_INTERVAL_MS)


# --- joining and staying -------------------------------------------------------------------------


def place(
    draft: MemberDraft[Stored, Tasks, Held],
    command: MemberHeartbeat,
    size_max: int,
    updated: Callable[[Stored | None], Stored],
    inputs: Callable[[Stored], object],
    is_within: Callable[[CurrentStored[Held]], bool],
) -> bool:
    """Put the member that joins or stays; whether it is new.

    `updated(before)`: the member after this command. `inputs`: the properties that the assignment
    depends on. `is_within`: whether the member reports only what is assigned to it. A static member
    that has left temporarily is replaced by the one that joins. Raises MemberUnknown,
    InstanceIdFenced, MemberEpochFenced, GroupFull, InstanceIdUnreleased, RequestInvalid.
    """
    left: str | None = None
    before: Stored | None
    if command.member_epoch != JOIN_EPOCH:
        before = _find(draft, command, is_within)
    else:
        left = _left_instance(draft, command)
        member_id = command.member_id or command.fresh_id
        before = draft.members.get(member_id if left is None else left)
        if left is None:
            _check_entry(draft, command, before, size_max)
        elif before is not None:
            before = before._replace(member_id=member_id)
    stored = updated(before)
    if left is not None:
        draft.replace_static(left, stored)
    elif stored != before:
        draft.put_member(stored)
    if before is None or inputs(stored) != inputs(before):
        draft.bump()
    return before is None


def _left_instance(draft: MemberDraft[Stored, Tasks, Held], command: MemberHeartbeat) -> str | None:
    """The member that has left temporarily and whose instance id the joining member has."""
    group, instance_id = draft.group, command.instance_id
    member_id = command.member_id or command.fresh_id
    holder = None if instance_id is None else group.static.get(instance_id)
    if holder is None or holder == member_id:
        return None
    if draft.current_of(holder).epoch != LEAVE_STATIC_EPOCH:
        raise InstanceIdUnreleased(
            f"instance id {instance_id!r} is in use by another member: stop that member, "
            "or wait for its session to expire"
        )
    if member_id in group.members:
        raise RequestInvalid("the member has joined without this instance id")
    return holder


def _check_entry(
    draft: MemberDraft[Stored, Tasks, Held],
    command: MemberHeartbeat,
    before: Stored | None,
    size_max: int,
) -> None:
    group = draft.group
    if before is not None:
        if before.instance_id != command.instance_id:
            raise RequestInvalid("the member has joined with another instance id")
    elif len(group.members) >= size_max:
        raise GroupFull(
            f"group {group.group_id[:100]!r} already has {size_max} "
            f"members: raise group.{group.kind.name}.max.size, or start fewer members",
            limit=size_max,
        )


def _find(
    draft: MemberDraft[Stored, Tasks, Held],
    command: MemberHeartbeat,
    is_within: Callable[[CurrentStored[Held]], bool],
) -> Stored:
    """The member that stays."""
    stored = known(draft.group, command).stored
    current, epoch = draft.current_of(command.member_id), command.member_epoch
    is_previous = epoch == current.previous_epoch and is_within(current)
    if stored.is_classic or not (epoch == current.epoch or is_previous):
        raise MemberEpochFenced(
            f"member {command.member_id[:100]!r} is at epoch {current.epoch}, not {epoch}: give up"
            f" all {draft.kind.unit} and join again"
        )
    return stored


def known(
    group: MemberGroup[Stored, Tasks, Held], command: MemberHeartbeat
) -> GroupMember[Stored, Tasks]:
    """The member that sent `command`. Raises MemberUnknown, InstanceIdFenced."""
    if command.instance_id is not None:
        holder = group.static.get(command.instance_id)
        if holder is None:
            raise MemberUnknown(f"no member has the instance id {command.instance_id!r}")
        if holder != command.member_id:
            raise InstanceIdFenced(f"instance id {command.instance_id!r} belongs to a newer member")
    member = group.members.get(command.member_id)
    if member is None:
        raise MemberUnknown("the member is not in the group: join with epoch 0")
    return member


# --- leaving -------------------------------------------------------------------------------------


def leave(draft: MemberDraft[Stored, Tasks, Held], command: MemberHeartbeat) -> None:
    """Remove the member, or send a static one away. Raises MemberUnknown, InstanceIdFenced,
    RequestInvalid."""
    member = known(draft.group, command)
    if command.member_epoch == LEAVE_EPOCH:
        draft.drop_member(command.member_id)
        draft.bump()
    elif member.stored.instance_id is None:
        raise RequestInvalid("only a member with an instance id may leave with epoch -2")
    else:
        draft.send_away(command.member_id, draft.now_ms + command.session_timeout_ms)


def expire(draft: MemberDraft[Stored, Tasks, Held]) -> None:
    """Remove members whose session has expired, or that have not revoked in time."""
    for member_id, member in draft.group.members.items():
        if member.next_deadline_ms() <= draft.now_ms:
            draft.drop_member(member_id)
            draft.bump()
