"""Conversion of groups between the classic and the new protocol (KIP-848).

Invariants: a group keeps its committed offsets. An empty group takes the protocol of the next
member that joins. A classic group of consumers is converted when a member of the new protocol
joins, and converted back when the last such member has left (`downgrade.py`); in between its
classic members continue unchanged (`classic_members.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups import classic, classic_members, consumer_heartbeat
from headrace.coordination.groups.consumer_group import ConsumerGroup, consumer_group
from headrace.coordination.groups.consumer_protocol import read_assignment, read_subscription
from headrace.coordination.groups.consumer_records import (
    ClassicSide,
    ConsumerCurrentStored,
    ConsumerGroupStored,
    ConsumerMemberStored,
    ConsumerRecord,
    ConsumerTargetEpochStored,
    ConsumerTargetStored,
)
from headrace.coordination.groups.group import (
    EMPTY,
    STABLE,
    Group,
    GroupDecision,
    GroupRecord,
    Member,
    refused,
)
from headrace.coordination.groups.state_records import GroupRemoved
from headrace.coordination.member_epochs import JOIN_EPOCH
from headrace.coordination.member_groups.group import (
    MemberDeadlines,
    MembersTouched,
    TouchedMember,
    Volatile,
)
from headrace.coordination.member_records import STABLE as MEMBER_STABLE
from headrace.coordination.member_records import UNREVOKED
from headrace.coordination.streams import heartbeat
from headrace.errors import CoordinatorLoading, GroupUnknown, HeadraceError, InconsistentProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.coordination.groups.commands import (
        HeartbeatCommand,
        JoinCommand,
        LeaveCommand,
        SyncCommand,
    )
    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
    from headrace.coordination.streams.commands import StreamsHeartbeatCommand
    from headrace.coordination.topic_view import TopicView


def decide_consumer_heartbeat(
    group: Group | None, command: ConsumerHeartbeatCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """ConsumerGroupHeartbeat."""
    if group is None or group.consumer is not None or command.member_epoch != JOIN_EPOCH:
        return consumer_heartbeat.decide_heartbeat(group, command, now_ms, config)
    if group.streams is not None and group.has_members():
        return refused(command, _other_kind(group, "a streams group"))
    home, durable = _without_protocol(group)
    volatile: list[GroupRecord] = []
    if group.state != EMPTY:
        try:
            home.consumer, stored, touched = _upgraded(group, command.topics, now_ms)
        except HeadraceError as error:
            return refused(command, error)
        durable += stored
        volatile.append(touched)
    decision = consumer_heartbeat.decide_heartbeat(home, command, now_ms, config)
    if decision.records:
        decision.records = [*durable, *decision.records[:-1], *volatile, decision.records[-1]]
    return decision


def decide_streams_heartbeat(
    group: Group | None, command: StreamsHeartbeatCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """StreamsGroupHeartbeat. A consumer group with members cannot become a streams group."""
    if group is None or group.streams is not None or command.member_epoch != JOIN_EPOCH:
        return heartbeat.decide_heartbeat(group, command, now_ms, config)
    if group.has_members():
        return refused(command, _other_kind(group, "a group of consumers"))
    home, durable = _without_protocol(group)
    decision = heartbeat.decide_heartbeat(home, command, now_ms, config)
    if decision.records:
        decision.records = [*durable, *decision.records]
    return decision


def _other_kind(group: Group, what: str) -> GroupUnknown:
    return GroupUnknown(
        f"group {group.group_id[:100]!r} is {what} with members: choose another group "
        "id, or stop its members first",
        group=group.group_id,
    )


def decide_join(
    group: Group | None, command: JoinCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """JoinGroup."""
    if group is None or group.managed is None:
        return classic.decide_join(group, command, now_ms, config)
    if group.streams is not None and group.has_members():
        what = "the group is a streams group with members: choose another id, or stop them first"
        return refused(command, InconsistentProtocol(what))
    if group.consumer is not None and group.has_members():
        return classic_members.decide_join(group, group.consumer, command, now_ms, config)
    home, durable = _without_protocol(group)
    decision = classic.decide_join(home, command, now_ms, config)
    if decision.records:
        decision.records = [*durable, *decision.records]
    return decision


def decide_sync(
    group: Group | None, command: SyncCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """SyncGroup."""
    if group is None or group.consumer is None:
        return classic.decide_sync(group, command, now_ms, config)
    return classic_members.decide_sync(group.consumer, command, now_ms)


def decide_heartbeat(group: Group | None, command: HeartbeatCommand, now_ms: int) -> GroupDecision:
    """Heartbeat."""
    if group is None or group.consumer is None:
        return classic.decide_heartbeat(group, command, now_ms)
    return classic_members.decide_heartbeat(group.consumer, command, now_ms)


def decide_leave(
    group: Group | None, command: LeaveCommand, now_ms: int, config: GroupConfig
) -> GroupDecision:
    """LeaveGroup."""
    if group is None or group.consumer is None:
        return classic.decide_leave(group, command, now_ms, config)
    return classic_members.decide_leave(group, group.consumer, command, now_ms, config)


def _without_protocol(group: Group) -> tuple[Group, list[GroupRecord]]:
    """The group without members and protocol, and the records that produce it."""
    bare = Group(group.group_id, offsets=group.offsets, open_commits=group.open_commits)
    if group.managed is not None:
        return bare, [*group.managed.removals()]
    return bare, [] if group.record is None else [GroupRemoved(group.group_id)]


# --- upgrade to the new protocol -----------------------------------------------------------------


def _upgraded(
    group: Group, topics: TopicView, now_ms: int
) -> tuple[ConsumerGroup, list[ConsumerRecord], MembersTouched]:
    """Convert the classic group to the new protocol, with the same members and assignments.

    Raises InconsistentProtocol, CoordinatorLoading (while it rebalances).
    """
    if group.state != STABLE:
        raise CoordinatorLoading("the classic members of the group are rebalancing: try again")
    consumer = consumer_group(group.group_id)
    records: list[ConsumerRecord] = []
    touched: list[TouchedMember] = []
    given: dict[tuple[UUID, int], None] = {}
    assigned = {
        member.member_id: _taken(
            read_assignment(member.assignment, group.group_id), group, topics, given
        )
        for member in group.members.values()
    }
    for member in group.members.values():
        records += _upgraded_member(group, member, assigned[member.member_id], topics, given)
        deadlines = MemberDeadlines(now_ms + member.session_timeout_ms)
        touched.append(TouchedMember(member.member_id, deadlines))
    records += [
        ConsumerGroupStored(group.group_id, group.generation),
        ConsumerTargetEpochStored(group.group_id, group.generation),
    ]
    for record in records:
        consumer.apply(record)
    return (
        consumer,
        records,
        MembersTouched(group.group_id, Volatile(changed_ms=now_ms), tuple(touched)),
    )


def _taken(
    partitions: Mapping[str, tuple[int, ...]],
    group: Group,
    topics: TopicView,
    given: dict[tuple[UUID, int], None],
) -> dict[UUID, dict[int, int]]:
    """Those of `partitions` that are not assigned yet; marks them as assigned."""
    found: dict[UUID, dict[int, int]] = {}
    for name, numbers in partitions.items():
        shape = topics.shape(name)
        if shape is None:
            continue
        for number in numbers:
            if (shape.id, number) not in given:
                given[shape.id, number] = None
                found.setdefault(shape.id, {})[number] = group.generation
    return found


def _upgraded_member(
    group: Group,
    member: Member,
    assigned: dict[UUID, dict[int, int]],
    topics: TopicView,
    given: dict[tuple[UUID, int], None],
) -> list[ConsumerRecord]:
    """A classic member's records.

    A member of a cooperative protocol may still own partitions that it had when it joined and that
    were not assigned to it again: it must first report that it does not.
    """
    subscription = read_subscription(member.metadata(group.protocol_name), group.group_id)
    if group.protocol_type != classic_members.CONSUMER or subscription is None:
        raise InconsistentProtocol(
            "the group has members that are not consumers: it cannot be converted to the "
            "new protocol"
        )
    generation = group.generation
    revoking = _taken(subscription.owned, group, topics, given)
    group_id, member_id = group.group_id, member.member_id
    target = {topic_id: tuple(sorted(numbers)) for topic_id, numbers in assigned.items()}
    return [
        ConsumerMemberStored(
            group_id,
            member_id,
            member.group_instance_id,
            subscription.rack,
            member.client_id,
            member.client_host,
            tuple(sorted(subscription.topics)),
            None,
            member.rebalance_timeout_ms,
            None,
            ClassicSide(member.session_timeout_ms, member.protocols),
        ),
        ConsumerTargetStored(group_id, member_id, target),
        ConsumerCurrentStored(
            group_id,
            member_id,
            generation,
            generation,
            UNREVOKED if revoking else MEMBER_STABLE,
            assigned,
            revoking,
        ),
    ]
