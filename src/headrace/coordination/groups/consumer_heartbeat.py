"""ConsumerGroupHeartbeat: how members join, stay in and leave a consumer group (KIP-848).

Invariants: each function decides one command and changes nothing. A heartbeat without changes does
not copy the group. Every response carries the member's epoch; the next heartbeat must carry it, or
the previous one if the response was lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.groups.assignors import ASSIGNORS
from headrace.coordination.groups.consumer_commands import (
    ConsumerHeartbeatCommand,
    ConsumerHeartbeatReply,
)
from headrace.coordination.groups.consumer_draft import (
    ConsumerDraft,
    assign,
    follow_topics,
    move_member,
    revocation_ms,
)
from headrace.coordination.groups.consumer_group import (
    ConsumerCurrent,
    ConsumerGroup,
    consumer_group,
)
from headrace.coordination.groups.consumer_records import ConsumerMemberStored, Partitions
from headrace.coordination.groups.conversion import finish
from headrace.coordination.groups.group import Group, GroupDecision, MemberSeen, refused
from headrace.coordination.groups.reconciliation import is_within, possibly_owned, still_has
from headrace.coordination.kit.machine import Decision
from headrace.coordination.kit.member_epochs import JOIN_EPOCH
from headrace.coordination.member_groups import heartbeat
from headrace.coordination.member_groups.commands import UNCHANGED_MS
from headrace.coordination.member_groups.draft import MemberDraft
from headrace.coordination.member_groups.encodings import STABLE, UNREVOKED
from headrace.coordination.member_groups.group import MemberDeadlines
from headrace.errors import (
    AssignorUnsupported,
    HeadraceError,
    MemberEpochFenced,
    MemberUnknown,
    RequestInvalid,
)

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig

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
            if group is None or consumer is None:
                raise MemberUnknown("the member is not in the group: join with epoch 0")
            return _leave(group, command, MemberDraft(consumer, now_ms, config, None))
        if consumer is None:
            if command.member_epoch != JOIN_EPOCH:
                raise MemberUnknown("the consumer group does not exist: join with epoch 0")
            consumer = consumer_group(command.group_id)
        return _stay(consumer, command, now_ms, config)
    except HeadraceError as error:
        return refused(command, error)


def _decide_unchanged(
    consumer: ConsumerGroup, command: ConsumerHeartbeatCommand, now_ms: int
) -> GroupDecision | None:
    """The heartbeat of a member that has reached its target and reports no change; else None."""
    if (
        command.owned is not None
        or command.topic_names is not None
        or command.pattern is not None
        or command.assignor is not None
        or not heartbeat.is_settled(consumer, command)
    ):
        return None
    member = consumer.members.get(command.member_id)
    if member is None or member.stored.is_classic:
        return None
    interval_ms = heartbeat.interval_ms(
        consumer.volatile.changed_ms, command, now_ms, is_settled=True
    )
    reply = ConsumerHeartbeatReply(None, command.member_id, command.member_epoch, interval_ms)
    return Decision([MemberSeen(member, now_ms + command.session_timeout_ms)], reply)


def _check(command: ConsumerHeartbeatCommand) -> None:
    """Raises RequestInvalid, AssignorUnsupported, RegularExpressionInvalid."""
    heartbeat.check(command)
    if command.member_epoch == JOIN_EPOCH:
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
    names = [command.pattern or "", *(command.topic_names or ())]
    heartbeat.check_names(command, (), names)


# --- joining and staying -------------------------------------------------------------------------


def _stay(
    consumer: ConsumerGroup,
    command: ConsumerHeartbeatCommand,
    now_ms: int,
    config: GroupConfig,
) -> GroupDecision:
    draft = MemberDraft(consumer, now_ms, config, command.topics)
    is_joining = command.member_epoch == JOIN_EPOCH
    member_id = command.member_id or command.fresh_id
    heartbeat.place(
        draft,
        command,
        config.consumer_group_size_max,
        lambda before: _updated(before, command),
        _subscription,
        lambda current: command.owned is not None and is_within(command.owned, current.assigned),
    )
    known = consumer.members.get(member_id)
    reported = None if known is None else known.reported
    had = draft.current_of(member_id)
    follow_topics(draft)
    assign(draft)
    current = _reconcile(draft, had, command, reported)
    deadlines = MemberDeadlines(
        now_ms + command.session_timeout_ms, revocation_ms(draft, member_id)
    )
    draft.touch(member_id, deadlines, reported if command.owned is None else command.owned)
    is_settled = current.state == STABLE and draft.epoch == current.epoch
    interval_ms = heartbeat.interval_ms(draft.changed_ms, command, now_ms, is_settled=is_settled)
    reply = ConsumerHeartbeatReply(None, member_id, current.epoch, interval_ms)
    if is_joining or _is_full(command) or _numbers(current.assigned) != _numbers(had.assigned):
        reply.assignment = {t: tuple(sorted(numbers)) for t, numbers in current.assigned.items()}
    return Decision(draft.finish(), reply)


def _reconcile(
    draft: ConsumerDraft,
    had: ConsumerCurrent,
    command: ConsumerHeartbeatCommand,
    reported: Partitions | None,
) -> ConsumerCurrent:
    """Bring the member closer to its target. `reported`: the owned partitions it last reported.

    A heartbeat without a list releases nothing: the member owns what it owned. A list sent after a
    lost response (a full heartbeat) may predate the revocation: a partition that was assigned to
    the member, and that it has never reported, may be one that it is about to take. If only such
    partitions are awaited, the member would not report again: it is fenced, and joins again without
    partitions. Raises MemberEpochFenced.
    """
    member_id, owned = had.member_id, command.owned
    if command.member_epoch == JOIN_EPOCH:
        return move_member(draft, member_id, owned, has_nothing=True)
    if owned is None or not (_is_full(command) or command.member_epoch != had.epoch):
        return move_member(draft, member_id, owned)
    may_own = possibly_owned(had, owned, reported, command.member_epoch)
    current = move_member(draft, member_id, may_own, is_complete=True)
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


def _updated(
    before: ConsumerMemberStored | None, command: ConsumerHeartbeatCommand
) -> ConsumerMemberStored:
    """The member, updated from the command; `before` is None for a new one."""
    if before is None:
        member_id = command.member_id or command.fresh_id
        before = ConsumerMemberStored(
            command.group_id, member_id, None, None, "", "", (), None, 0, None
        )
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


def _leave(home: Group, command: ConsumerHeartbeatCommand, draft: ConsumerDraft) -> GroupDecision:
    heartbeat.leave(draft, command)
    records, answers = finish(home, draft)
    reply = ConsumerHeartbeatReply(None, command.member_id, command.member_epoch)
    return Decision(records, reply, answers)
