"""ConsumerGroupHeartbeat: how members join, stay in and leave a consumer group (KIP-848).

Invariants: each function decides one command and changes nothing. A heartbeat without changes does
not copy the group. Every response carries the member's epoch; the next heartbeat must carry it, or
the previous one if the response was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.groups.assignors import ASSIGNORS
from headrace.coordination.groups.consumer_commands import (
    UNCHANGED_MS,
    ConsumerHeartbeatCommand,
    ConsumerHeartbeatReply,
)
from headrace.coordination.groups.consumer_draft import ConsumerDraft
from headrace.coordination.groups.consumer_group import (
    ConsumerGroup,
    ConsumerMember,
    MemberDeadlines,
)
from headrace.coordination.groups.consumer_records import ConsumerMemberStored, CurrentStored
from headrace.coordination.groups.downgrade import finish
from headrace.coordination.groups.group import (
    Group,
    GroupDecision,
    GroupRecord,
    MemberSeen,
    refused,
)
from headrace.coordination.groups.reconciliation import is_within, possibly_owned, still_has
from headrace.coordination.machine import Decision
from headrace.coordination.member_epochs import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from headrace.coordination.member_records import STABLE, UNREVOKED
from headrace.coordination.stored_bytes import STRING_SIZE_MAX
from headrace.errors import (
    AssignorUnsupported,
    GroupFull,
    HeadraceError,
    InstanceIdFenced,
    InstanceIdUnreleased,
    MemberEpochFenced,
    MemberUnknown,
    RequestInvalid,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.host_commands import GroupReply

NAME_SIZE_MAX: Final = STRING_SIZE_MAX - 64
TOPICS_MAX: Final = 100_000
"""Per member's subscription: the record of a member must stay readable."""


def decide_heartbeat(
    group: Group | None, command: ConsumerHeartbeatCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """Join, stay or leave, depending on the command's epoch."""
    consumer = None if group is None else group.consumer
    if consumer is not None:
        quick = _decide_unchanged(consumer, command, now_ms)
        if quick is not None:
            return quick
    try:
        _check(command)
        if command.member_epoch < JOIN_EPOCH:
            return _leave(group, command, now_ms, config)
        if consumer is None:
            if command.member_epoch != JOIN_EPOCH:
                raise MemberUnknown("the consumer group does not exist: join with epoch 0")
            consumer = ConsumerGroup(command.group_id)
        return _stay(consumer, command, now_ms, config)
    except HeadraceError as error:
        return refused(command, error)


def _decide_unchanged(
    consumer: ConsumerGroup, command: ConsumerHeartbeatCommand, now_ms: int
) -> GroupDecision | None:
    """The heartbeat of a member that has reached its target and reports no change; else None."""
    current = consumer.current.get(command.member_id)
    if (
        current is None
        or command.owned is not None
        or command.topic_names is not None
        or command.pattern is not None
        or command.instance_id is not None
        or command.rack is not None
        or command.assignor is not None
        or command.rebalance_timeout_ms != UNCHANGED_MS
        or current.state != STABLE
        or not current.epoch == command.member_epoch == consumer.target_epoch == consumer.epoch
        or consumer.topics_version != command.topics.version
    ):
        return None
    member = consumer.members.get(command.member_id)
    if member is None or member.stored.classic is not None:
        return None
    interval_ms = _interval_ms(consumer.changed_ms, command, now_ms, is_settled=True)
    reply = ConsumerHeartbeatReply(None, command.member_id, current.epoch, interval_ms)
    return Decision([MemberSeen(member, now_ms + command.session_timeout_ms)], reply)


SETTLING_MS: Final = 3_000
SETTLING_INTERVAL_MS: Final = 300
"""Heartbeat interval while a group changes: steps that take each member one heartbeat then take
this long rather than a whole interval."""


def _interval_ms(
    changed_ms: int, command: ConsumerHeartbeatCommand, now_ms: int, *, is_settled: bool
) -> int:
    if is_settled and not 0 <= now_ms - changed_ms < SETTLING_MS:
        return command.heartbeat_interval_ms
    return min(command.heartbeat_interval_ms, SETTLING_INTERVAL_MS)


def _check(command: ConsumerHeartbeatCommand) -> None:
    """Raises RequestInvalid, AssignorUnsupported, RegularExpressionInvalid."""
    epoch = command.member_epoch
    if epoch < LEAVE_STATIC_EPOCH:
        raise RequestInvalid(f"member epoch {epoch} is not valid: 0 joins, -1 and -2 leave")
    if not command.member_id and (epoch != JOIN_EPOCH or not command.fresh_id):
        raise RequestInvalid("a member id must not be empty")
    if command.instance_id == "" or command.rack == "":
        raise RequestInvalid("an instance id or rack id must be null or not empty")
    if epoch == LEAVE_STATIC_EPOCH and command.instance_id is None:
        raise RequestInvalid("only a member with an instance id may leave with epoch -2")
    if epoch == JOIN_EPOCH:
        if command.rebalance_timeout_ms < 0:
            raise RequestInvalid("a member that joins must send its rebalance timeout")
        if command.owned is None or any(command.owned.values()):
            raise RequestInvalid("a member that joins must send an empty list of owned partitions")
        if command.topic_names is None and command.pattern is None:
            raise RequestInvalid("a member that joins must send its subscription")
    if command.assignor is not None and command.assignor not in ASSIGNORS:
        raise AssignorUnsupported(
            f"unknown assignor {command.assignor[:100]!r}: use one of {', '.join(ASSIGNORS)}"
        )
    if command.pattern_error is not None:
        raise command.pattern_error
    if len(command.topic_names or ()) > TOPICS_MAX:
        raise RequestInvalid(f"a member can subscribe to at most {TOPICS_MAX} topics")
    names = [command.member_id, command.client_id, command.client_host, command.pattern or ""]
    names += [command.instance_id or "", command.rack or "", *(command.topic_names or ())]
    if any(len(n) * 4 > NAME_SIZE_MAX and len(n.encode()) > NAME_SIZE_MAX for n in names):
        raise RequestInvalid(f"a name in the request is longer than {NAME_SIZE_MAX} bytes")


# --- joining and staying -------------------------------------------------------------------------


def _stay(
    consumer: ConsumerGroup,
    command: ConsumerHeartbeatCommand,
    now_ms: int,
    config: GroupConfig,
) -> GroupDecision:
    draft = ConsumerDraft(consumer, now_ms, config, command.topics)
    is_joining = command.member_epoch == JOIN_EPOCH
    member_id = command.member_id or command.fresh_id
    known = consumer.members.get(member_id)
    before = _enter(draft, command, config) if is_joining else _find(draft, command)
    stored = _updated(before or _unknown_member(consumer.group_id, member_id), command)
    if known is None or known.stored != stored:
        draft.put_member(stored)
    if before is None or _subscription(stored) != _subscription(before):
        draft.bump()
    reported = None if known is None else known.reported
    had = draft.current_of(member_id)
    draft.follow_topics()
    draft.assign()
    current = _reconcile(draft, had, command, reported)
    session_ms = now_ms + command.session_timeout_ms
    deadlines = MemberDeadlines(session_ms, draft.revoke_deadline_ms(member_id))
    draft.touch(member_id, deadlines, reported if command.owned is None else command.owned)
    is_settled = current.state == STABLE and draft.epoch == current.epoch
    changed_ms = consumer.changed_ms if draft.epoch == consumer.epoch else now_ms
    reply = ConsumerHeartbeatReply(
        None,
        member_id,
        current.epoch,
        _interval_ms(changed_ms, command, now_ms, is_settled=is_settled),
    )
    if is_joining or _is_full(command) or _numbers(current.assigned) != _numbers(had.assigned):
        reply.assignment = {t: tuple(sorted(numbers)) for t, numbers in current.assigned.items()}
    return Decision([*draft.finish()], reply)


def _reconcile(
    draft: ConsumerDraft,
    had: CurrentStored,
    command: ConsumerHeartbeatCommand,
    reported: Mapping[UUID, frozenset[int]] | None,
) -> CurrentStored:
    """Bring the member closer to its target. `reported`: the owned partitions it last reported.

    A heartbeat without a list releases nothing: the member owns what it owned. A list sent after a
    lost response (a full heartbeat) may predate the revocation: a partition that was assigned to
    the member, and that it has never reported, may be one that it is about to take. If only such
    partitions are awaited, the member would not report again: it is fenced, and joins again without
    partitions. Raises MemberEpochFenced.
    """
    member_id, owned = had.member_id, command.owned
    if command.member_epoch == JOIN_EPOCH:
        return draft.reconcile(member_id, owned, has_nothing=True)
    if owned is None or not (_is_full(command) or command.member_epoch != had.epoch):
        return draft.reconcile(member_id, owned)
    may_own = possibly_owned(had, owned, reported, command.member_epoch)
    current = draft.reconcile(member_id, may_own, is_complete=True)
    if current.state == UNREVOKED and not still_has(owned, current.revoking):
        raise MemberEpochFenced(
            f"member {member_id[:100]!r} must give up partitions but may not know it, "
            "because a response was lost: give up all partitions and join again"
        )
    return current


def _numbers(assigned: object) -> object:
    """Partitions without their epochs."""
    assert isinstance(assigned, dict)
    return {topic_id: frozenset(numbers) for topic_id, numbers in assigned.items()}


def _is_full(command: ConsumerHeartbeatCommand) -> bool:
    """Whether the heartbeat is complete: the member may have missed its last response."""
    return (
        command.owned is not None
        and command.rebalance_timeout_ms != UNCHANGED_MS
        and (command.topic_names is not None or command.pattern is not None)
    )


def _subscription(stored: ConsumerMemberStored) -> tuple[object, ...]:
    """The properties of a member that the assignment depends on."""
    return stored.topics, stored.pattern, stored.rack, stored.assignor, stored.instance_id


def _enter(
    draft: ConsumerDraft, command: ConsumerHeartbeatCommand, config: GroupConfig
) -> ConsumerMemberStored | None:
    """The previous state of the joining member; None: it is new. Raises GroupFull,
    InstanceIdUnreleased.

    A static member that has left temporarily is replaced by the one that joins.
    """
    group = draft.group
    member_id = command.member_id or command.fresh_id
    known = group.members.get(member_id)
    instance_id = command.instance_id
    holder = None if instance_id is None else group.static.get(instance_id)
    if holder is not None and holder != member_id:
        if draft.current_of(holder).epoch != LEAVE_STATIC_EPOCH:
            raise InstanceIdUnreleased(
                f"instance id {instance_id!r} is in use by another member: stop that member, "
                "or wait for its session to expire"
            )
        if known is not None:
            raise RequestInvalid("the member has joined without this instance id")
        before = draft.members[holder]
        draft.replace_static(holder, member_id)
        return before._replace(member_id=member_id)
    if known is not None:
        if known.stored.instance_id != instance_id:
            raise RequestInvalid("the member has joined with another instance id")
        return known.stored
    if len(group.members) >= config.consumer_group_size_max:
        raise GroupFull(
            f"group {group.group_id[:100]!r} already has {config.consumer_group_size_max} "
            "members: raise group.consumer.max.size, or start fewer members",
            limit=config.consumer_group_size_max,
        )
    return None


def _unknown_member(group_id: str, member_id: str) -> ConsumerMemberStored:
    """A member without any state yet."""
    return ConsumerMemberStored(group_id, member_id, None, None, "", "", (), None, 0, None)


def _find(draft: ConsumerDraft, command: ConsumerHeartbeatCommand) -> ConsumerMemberStored:
    """The member that stays. Raises MemberUnknown, InstanceIdFenced, MemberEpochFenced."""
    known = _known(draft.group, command)
    current = draft.current_of(command.member_id)
    epoch = command.member_epoch
    is_current = epoch == current.epoch
    is_previous = (
        epoch == current.previous_epoch
        and command.owned is not None
        and is_within(command.owned, current.assigned)
    )
    if known.stored.classic is not None or not (is_current or is_previous):
        raise MemberEpochFenced(
            f"member {command.member_id[:100]!r} is at epoch {current.epoch}, not {epoch}: give up"
            " all partitions and join again"
        )
    return known.stored


def _known(group: ConsumerGroup | None, command: ConsumerHeartbeatCommand) -> ConsumerMember:
    """Raises MemberUnknown, InstanceIdFenced."""
    if group is not None and command.instance_id is not None:
        holder = group.static.get(command.instance_id)
        if holder is None:
            raise MemberUnknown(f"no member has the instance id {command.instance_id!r}")
        if holder != command.member_id:
            raise InstanceIdFenced(f"instance id {command.instance_id!r} belongs to a newer member")
    known = None if group is None else group.members.get(command.member_id)
    if known is None:
        raise MemberUnknown("the member is not in the group: join with epoch 0")
    return known


def _updated(
    before: ConsumerMemberStored, command: ConsumerHeartbeatCommand
) -> ConsumerMemberStored:
    """The member, updated from the command."""
    names, pattern = command.topic_names, command.pattern
    if command.member_epoch == JOIN_EPOCH:  # a joining member sends everything
        names, pattern = names or [], pattern or ""
    timeout_ms = command.rebalance_timeout_ms
    return before._replace(
        instance_id=before.instance_id if command.instance_id is None else command.instance_id,
        rack=before.rack if command.rack is None else command.rack,
        client_id=command.client_id,
        client_host=command.client_host,
        topics=before.topics if names is None else tuple(sorted(set(names))),
        pattern=before.pattern if pattern is None else pattern or None,
        rebalance_timeout_ms=before.rebalance_timeout_ms
        if timeout_ms == UNCHANGED_MS
        else max(timeout_ms, 0),
        assignor=before.assignor if command.assignor is None else command.assignor,
        classic=None,
    )


# --- leaving -------------------------------------------------------------------------------------


def _leave(
    home: Group | None,
    command: ConsumerHeartbeatCommand,
    now_ms: int,
    config: GroupConfig,
) -> GroupDecision:
    consumer = None if home is None else home.consumer
    member = _known(consumer, command)
    assert home is not None
    assert consumer is not None
    reply = ConsumerHeartbeatReply(None, command.member_id, command.member_epoch)
    draft = ConsumerDraft(consumer, now_ms, config, None)
    if command.member_epoch == LEAVE_EPOCH:
        draft.drop_member(command.member_id)
        draft.bump()
        records, answers = finish(home, draft)
        return Decision(records, reply, answers)
    if member.stored.instance_id is None:
        raise RequestInvalid("only a member with an instance id may leave with epoch -2")
    draft.put_current(_away(draft.current_of(command.member_id)))
    draft.touch(command.member_id, MemberDeadlines(now_ms + command.session_timeout_ms))
    return Decision([*draft.finish()], reply)


def _away(current: CurrentStored) -> CurrentStored:
    """A static member that is temporarily away: it keeps its partitions except those to revoke."""
    return current._replace(
        epoch=LEAVE_STATIC_EPOCH, previous_epoch=current.epoch, state=STABLE, revoking={}
    )


def expire(
    home: Group, consumer: ConsumerGroup, now_ms: int, config: GroupConfig
) -> tuple[list[GroupRecord], list[tuple[int, GroupReply]]]:
    """Remove members whose session has expired, or that have not revoked in time."""
    draft = ConsumerDraft(consumer, now_ms, config, None)
    for member_id, member in consumer.members.items():
        deadlines = (member.deadline_ms, member.revoke_deadline_ms, member.sync_deadline_ms)
        if any(deadline_ms is not None and deadline_ms <= now_ms for deadline_ms in deadlines):
            draft.drop_member(member_id)
            draft.bump()
    return finish(home, draft)
