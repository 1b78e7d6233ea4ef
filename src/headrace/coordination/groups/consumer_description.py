"""Descriptions of consumer groups of the new protocol for administrators.

Invariants: pure and read-only. A tool that knows only the classic protocol sees such a group as
well, in its own terms: Kafka answers that the group does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.groups.commands import GroupDescription, GroupsReply, MemberDescription
from headrace.coordination.groups.consumer_commands import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    DescribeConsumerGroupsCommand,
)
from headrace.coordination.groups.consumer_draft import preferred_assignor
from headrace.coordination.groups.consumer_group import (
    STATE_ASSIGNING,
    STATE_RECONCILING,
    ConsumerGroup,
)
from headrace.coordination.groups.consumer_protocol import write_assignment, write_subscription
from headrace.coordination.machine import Decision
from headrace.errors import GroupUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from headrace.coordination.groups.group import Group, GroupDecision
    from headrace.coordination.topic_view import TopicView

_CLASSIC_STATES: Final = {
    STATE_ASSIGNING: "PreparingRebalance",
    STATE_RECONCILING: "CompletingRebalance",
}
_CONSUMER: Final = "consumer"


def decide_describe(
    groups: Mapping[str, Group], command: DescribeConsumerGroupsCommand
) -> GroupDecision:
    """Describe groups, in the requested order."""
    described: list[ConsumerGroupDescription] = []
    for group_id in command.group_ids:
        group = groups.get(group_id)
        if group is None or group.consumer is None:
            what = "the group does not exist" if group is None else "this is not a consumer group"
            error = GroupUnknown(f"{what}: {group_id[:100]!r}", group=group_id)
            described.append(ConsumerGroupDescription(group_id, error))
        else:
            described.append(_describe(group.consumer, command.topics))
    return Decision([], GroupsReply(described))


def _describe(consumer: ConsumerGroup, topics: TopicView) -> ConsumerGroupDescription:
    members: list[ConsumerMemberDescription] = []
    for member_id, member in consumer.members.items():
        stored, current = member.stored, consumer.current.get(member_id)
        assigned = {} if current is None else current.assigned
        members.append(
            ConsumerMemberDescription(
                member_id,
                stored.instance_id,
                stored.rack,
                0 if current is None else current.epoch,
                stored.client_id,
                stored.client_host,
                stored.topics,
                stored.pattern,
                _named(assigned, topics),
                _named(consumer.target.get(member_id, {}), topics),
                stored.classic is not None,
            )
        )
    return ConsumerGroupDescription(
        consumer.group_id,
        None,
        consumer.state(),
        consumer.epoch,
        consumer.target_epoch,
        _assignor(consumer),
        members,
    )


def _assignor(consumer: ConsumerGroup) -> str:
    return preferred_assignor({m: member.stored for m, member in consumer.members.items()})


def _named(
    partitions: Mapping[UUID, Iterable[int]], topics: TopicView
) -> list[tuple[UUID, str, tuple[int, ...]]]:
    """Partitions with their topics' names; those of deleted topics are omitted."""
    found: list[tuple[UUID, str, tuple[int, ...]]] = []
    for topic_id, numbers in partitions.items():
        name = topics.name_of(topic_id)
        if name is not None:
            found.append((topic_id, name, tuple(sorted(numbers))))
    return sorted(found, key=lambda one: one[1])


def describe_as_classic(consumer: ConsumerGroup, topics: TopicView) -> GroupDescription:
    """The group as DescribeGroups returns it."""
    members: list[MemberDescription] = []
    for member_id, member in consumer.members.items():
        stored, current = member.stored, consumer.current.get(member_id)
        assigned = _named({} if current is None else current.assigned, topics)
        members.append(
            MemberDescription(
                member_id,
                stored.instance_id,
                stored.client_id,
                stored.client_host,
                write_subscription(stored.topics),
                write_assignment((name, numbers) for _, name, numbers in assigned),
            )
        )
    state = consumer.state()
    name = _assignor(consumer) if members else ""
    return GroupDescription(
        consumer.group_id,
        None,
        _CLASSIC_STATES.get(state, state),
        _CONSUMER,
        name,
        members,
        group_type=_CONSUMER,
    )
