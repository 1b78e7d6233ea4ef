"""Converts groups between the classic and the new protocol (KIP-848), in both directions.

Invariants: pure; a group keeps its committed offsets, and its members keep their ids.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.coordination.groups import rebalance
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
    STABLE,
    Draft,
    Group,
    GroupRecord,
    Member,
)
from headrace.coordination.groups.state_records import GroupRemoved
from headrace.coordination.member_groups.encodings import STABLE as MEMBER_STABLE
from headrace.coordination.member_groups.encodings import UNREVOKED
from headrace.coordination.member_groups.group import (
    MemberDeadlines,
    MembersTouched,
    TouchedMember,
    Volatile,
)
from headrace.errors import CoordinatorLoading, InconsistentProtocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.coordination.groups.host_commands import GroupReply
    from headrace.coordination.kit.topic_view import TopicView
    from headrace.coordination.member_groups.draft import MemberDraft

CONSUMER: Final = "consumer"
"""The classic protocol type of consumers."""


def without_protocol(group: Group) -> tuple[Group, list[GroupRecord]]:
    """The group without members and protocol, and the records that produce it."""
    bare = Group(group.group_id, offsets=group.offsets, open_commits=group.open_commits)
    if group.managed is not None:
        return bare, [*group.managed.removals()]
    return bare, [] if group.record is None else [GroupRemoved(group.group_id)]


# --- upgrade to the new protocol -----------------------------------------------------------------


def upgraded(
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
    if group.protocol_type != CONSUMER or subscription is None:
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


# --- downgrade to the classic protocol -----------------------------------------------------------


def finish(
    home: Group, draft: MemberDraft[Any, Any, Any]
) -> tuple[list[GroupRecord], list[tuple[int, GroupReply]]]:
    """The outcome of a draft: records, and answers to parked commands.

    If the last member of the new protocol has left, the group becomes classic. The remaining
    members keep their ids and sessions; their generation is the group's epoch, so that no
    generation is used twice. They have to rejoin, as after any change of members.
    """
    if not draft.members or not all(stored.is_classic for stored in draft.members.values()):
        return draft.finish(), []
    group = Group(
        home.group_id,
        STABLE,
        draft.group.epoch,
        CONSUMER,
        timestamp_ms=draft.now_ms,
        offsets=home.offsets,
        open_commits=home.open_commits,
    )
    for member_id, stored in draft.members.items():
        classic = stored.classic
        assert classic is not None
        group.members[member_id] = Member(
            member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            classic.session_timeout_ms,
            stored.rebalance_timeout_ms,
            classic.protocols,
            deadline_ms=draft.now_ms + classic.session_timeout_ms,
        )
        if stored.instance_id is not None:
            group.static[stored.instance_id] = member_id
    group.leader = next(iter(group.members))
    group.protocol_name = group.select_protocol()
    classic_draft = Draft(group, draft.now_ms, draft.config)
    rebalance.prepare(classic_draft)
    classic_draft.store(None)
    decision = classic_draft.decision(None)
    return [*draft.group.removals(), *decision.records], decision.answers
