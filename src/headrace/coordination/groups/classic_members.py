"""Classic-protocol members of a consumer group of the new protocol (KIP-848, online migration).

Invariants: as in `classic.py`. To such a member, the group rebalances whenever its target has
changed: its heartbeat reports so, it joins again with the partitions it owns, and gets its
assignment from the broker in its sync. It is never the leader. The owned partitions in its join are
complete: it takes no others before its next sync.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups.classic import check_join
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
from headrace.coordination.groups.consumer_draft import (
    ConsumerDraft,
    assign,
    follow_topics,
    move_member,
)
from headrace.coordination.groups.consumer_protocol import (
    Subscription,
    read_subscription,
    write_assignment,
)
from headrace.coordination.groups.consumer_records import ClassicSide, ConsumerMemberStored
from headrace.coordination.groups.conversion import CONSUMER, finish
from headrace.coordination.groups.group import Group, GroupDecision, MemberSeen, refused
from headrace.coordination.kit.machine import Decision
from headrace.coordination.kit.member_epochs import LEAVE_STATIC_EPOCH
from headrace.coordination.member_groups.draft import MemberDraft
from headrace.coordination.member_groups.encodings import UNRELEASED, UNREVOKED
from headrace.coordination.member_groups.group import (
    MemberDeadlines,
    MembersTouched,
    TouchedMember,
)
from headrace.errors import (
    GroupFull,
    HeadraceError,
    IllegalGeneration,
    InconsistentProtocol,
    InstanceIdFenced,
    InstanceIdUnreleased,
    MemberIdRequired,
    MemberUnknown,
    RebalanceInProgress,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.consumer_group import (
        ConsumerCurrent,
        ConsumerGroup,
        ConsumerMember,
    )
    from headrace.coordination.kit.topic_view import TopicView


# --- JoinGroup -----------------------------------------------------------------------------------


def decide_join(
    home: Group, consumer: ConsumerGroup, command: JoinCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """Join: answered at once, since no member waits for the others."""
    try:
        error = check_join(command, config)
        if error is not None:
            raise error
        return _join(home, MemberDraft(consumer, now_ms, config, command.topics), command)
    except HeadraceError as error:
        return refused(command, error)


def _join(home: Group, draft: ConsumerDraft, command: JoinCommand) -> GroupDecision:
    consumer, now_ms = draft.group, draft.now_ms
    name, metadata = command.protocols[0]
    subscription = read_subscription(metadata, consumer.group_id)
    if (
        command.protocol_type != CONSUMER
        or subscription is None
        or not _has_common_protocol(consumer, command)
    ):
        raise InconsistentProtocol("the group accepts only consumers with a common protocol")
    member_id = command.member_id
    if not member_id:
        member_id = f"{command.group_instance_id or command.client_id}-{command.fresh_id}"
        if command.group_instance_id is None and command.is_member_id_required:
            _check_room(draft)
            return Decision([], JoinReply(MemberIdRequired(), member_id))
    stored = _stored(draft, command, member_id, subscription)
    before = _enter(draft, command, stored)
    if before is None and any(subscription.owned.values()):
        # It was removed and does not know yet: its partitions may have other owners by now.
        raise MemberUnknown("the member is not in the group: give up all partitions and join again")
    known = consumer.members.get(member_id)
    if draft.members.get(member_id) != stored:
        draft.put_member(stored)
    if before is None or _subscribes_to(before) != _subscribes_to(stored):
        draft.bump()
    follow_topics(draft)
    assign(draft)
    reported = _by_id(subscription.owned, command.topics)
    current = move_member(
        draft, member_id, reported, has_nothing=before is None or known is None, is_complete=True
    )
    deadlines = MemberDeadlines(
        now_ms + command.session_timeout_ms, None, now_ms + stored.rebalance_timeout_ms
    )
    draft.touch(member_id, deadlines, reported)
    reply = JoinReply(None, member_id, current.epoch, CONSUMER, name)
    records, answers = finish(home, draft)
    if answers:
        return Decision(records, None, answers)
    return Decision(records, reply)


def _has_common_protocol(consumer: ConsumerGroup, command: JoinCommand) -> bool:
    """Whether the classic members could continue alone if those of the new protocol left."""
    common = {name for name, _ in command.protocols}
    for member_id, member in consumer.members.items():
        classic = member.stored.classic
        if classic is not None and member_id != command.member_id:
            common &= {name for name, _ in classic.protocols}
    return bool(common)


def _enter(
    draft: ConsumerDraft, command: JoinCommand, stored: ConsumerMemberStored
) -> ConsumerMemberStored | None:
    """The previous state of the joining member, which replaces one of its instance id; None: it is
    new."""
    group, member_id = draft.group, stored.member_id
    instance_id = command.group_instance_id
    known = group.members.get(member_id)
    holder = None if instance_id is None else group.static.get(instance_id)
    if holder is not None and holder != member_id:
        if command.member_id:
            raise InstanceIdFenced(f"instance id {instance_id!r} belongs to a newer member")
        before = draft.members[holder]
        is_away = draft.current_of(holder).epoch == LEAVE_STATIC_EPOCH
        if before.classic is None and not is_away:
            raise InstanceIdUnreleased(f"instance id {instance_id!r} is in use")
        draft.replace_static(holder, stored)
        return before._replace(member_id=member_id)
    if instance_id is not None and holder is None and command.member_id:
        raise MemberUnknown(f"no member has the instance id {instance_id!r}: join again")
    if known is None:
        _check_room(draft)
        return None
    return known.stored


def _check_room(draft: ConsumerDraft) -> None:
    limit = draft.config.consumer_group_size_max
    if len(draft.members) >= limit:
        raise GroupFull(limit=limit)


def _stored(
    draft: ConsumerDraft, command: JoinCommand, member_id: str, subscription: Subscription
) -> ConsumerMemberStored:
    return ConsumerMemberStored(
        draft.group.group_id,
        member_id,
        command.group_instance_id,
        subscription.rack,
        command.client_id,
        command.client_host,
        tuple(sorted(subscription.topics)),
        None,
        max(command.rebalance_timeout_ms, 0),
        None,
        ClassicSide(command.session_timeout_ms, tuple(command.protocols)),
    )


def _subscribes_to(stored: ConsumerMemberStored) -> tuple[object, ...]:
    return stored.topics, stored.pattern, stored.rack, stored.assignor


def _by_id(owned: Mapping[str, tuple[int, ...]], topics: TopicView) -> dict[UUID, frozenset[int]]:
    found: dict[UUID, frozenset[int]] = {}
    for name, numbers in owned.items():
        shape = topics.shape(name)
        if shape is not None:
            found[shape.id] = frozenset(numbers)
    return found


# --- SyncGroup and Heartbeat ---------------------------------------------------------------------


def decide_sync(consumer: ConsumerGroup, command: SyncCommand, now_ms: int) -> GroupDecision:
    """Sync: the assignment that the broker has computed."""
    try:
        member, current, classic = _find(
            consumer, command.member_id, command.group_instance_id, command.generation
        )
        if command.protocol_type not in {None, CONSUMER}:
            raise InconsistentProtocol(f"the group's protocol type is {CONSUMER!r}")
        name, metadata = classic.protocols[0]
        if command.protocol_name not in {None, name}:
            raise InconsistentProtocol(f"the member's protocol is {name!r}")
        if current.state != UNREVOKED and current.epoch < consumer.epoch:
            raise RebalanceInProgress("the group began a new rebalance: join again")
    except HeadraceError as error:
        return refused(command, error)
    subscription = read_subscription(metadata, consumer.group_id)
    named = [
        (topic, sorted(numbers))
        for topic_id, numbers in current.assigned.items()
        if (topic := command.topics.name_of(topic_id)) is not None
    ]
    version = 0 if subscription is None else subscription.version
    assignment = write_assignment(sorted(named), version)
    deadlines = MemberDeadlines(now_ms + classic.session_timeout_ms)
    return Decision(
        [_touched(consumer, member, deadlines)],
        SyncReply(None, CONSUMER, name, assignment),
    )


def decide_heartbeat(
    consumer: ConsumerGroup, command: HeartbeatCommand, now_ms: int
) -> GroupDecision:
    """Heartbeat: asks the member to rejoin when it has partitions to give up or to take."""
    try:
        member, current, classic = _find(
            consumer, command.member_id, command.group_instance_id, command.generation
        )
    except HeadraceError as error:
        return refused(command, error)
    session_ms = now_ms + classic.session_timeout_ms
    if not _must_rejoin(consumer, current):
        return Decision([MemberSeen(member, session_ms)], HeartbeatReply())
    sync_ms = member.sync_deadline_ms
    if sync_ms is None:
        sync_ms = now_ms + member.stored.rebalance_timeout_ms
    deadlines = MemberDeadlines(session_ms, None, sync_ms)
    reply = HeartbeatReply(RebalanceInProgress("join again"))
    return Decision([_touched(consumer, member, deadlines)], reply)


def _must_rejoin(consumer: ConsumerGroup, current: ConsumerCurrent) -> bool:
    if current.epoch < consumer.epoch or current.state == UNREVOKED:
        return True
    return current.state == UNRELEASED and any(
        number not in current.assigned.get(topic_id, ())
        and number not in consumer.owners.get(topic_id, ())
        for topic_id, numbers in consumer.target.get(current.member_id, {}).items()
        for number in numbers
    )


def _find(
    consumer: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerMember, ConsumerCurrent, ClassicSide]:
    """Raises MemberUnknown, InstanceIdFenced, IllegalGeneration."""
    if instance_id is not None and consumer.static.get(instance_id, member_id) != member_id:
        raise InstanceIdFenced(f"instance id {instance_id!r} belongs to a newer member")
    member = consumer.members.get(member_id)
    current = consumer.current.get(member_id)
    if member is None or current is None or member.stored.classic is None:
        raise MemberUnknown("the member is not in the group: join again")
    if generation != current.epoch:
        raise IllegalGeneration(limit=current.epoch, actual=generation)
    return member, current, member.stored.classic


def _touched(
    consumer: ConsumerGroup, member: ConsumerMember, deadlines: MemberDeadlines
) -> MembersTouched:
    touched = TouchedMember(member.stored.member_id, deadlines, member.reported)
    return MembersTouched(consumer.group_id, consumer.volatile, (touched,))


# --- LeaveGroup ----------------------------------------------------------------------------------


def decide_leave(
    home: Group, consumer: ConsumerGroup, command: LeaveCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """Leave, for members of both protocols: an administrator removes them in this way."""
    draft = MemberDraft(consumer, now_ms, config, None)
    left = [LeftMember(m[0], m[1], _remove(draft, m)) for m in command.members]
    reply = LeaveReply(None, left)
    if all(member.error is not None for member in left):
        return Decision([], reply)
    draft.bump()
    records, answers = finish(home, draft)
    return Decision(records, reply, answers)


def _remove(draft: ConsumerDraft, leaver: LeavingMember) -> HeadraceError | None:
    member_id, instance_id = leaver.member_id, leaver.group_instance_id
    holder = None if instance_id is None else draft.group.static.get(instance_id)
    if not member_id:
        if holder is None or holder not in draft.members:
            return MemberUnknown("no member has this instance id")
        member_id = holder
    elif holder is not None and holder != member_id:
        return InstanceIdFenced(f"instance id {instance_id!r} belongs to a newer member")
    if member_id not in draft.members:
        return MemberUnknown("the member is not in the group")
    draft.drop_member(member_id)
    return None
