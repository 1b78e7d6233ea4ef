"""Descriptions of consumer groups of the new protocol for administrators.

Invariants: pure and read-only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups.consumer_commands import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    DescribeConsumerGroupsCommand,
)
from headrace.coordination.groups.consumer_draft import preferred_assignor
from headrace.coordination.groups.consumer_protocol import write_assignment, write_subscription
from headrace.coordination.member_groups import description

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from headrace.coordination.groups.commands import GroupDescription
    from headrace.coordination.groups.consumer_group import ConsumerGroup
    from headrace.coordination.groups.consumer_records import ConsumerMemberStored
    from headrace.coordination.groups.group import Group, GroupDecision
    from headrace.coordination.kit.topic_view import TopicView


def decide_describe(
    groups: Mapping[str, Group], command: DescribeConsumerGroupsCommand
) -> GroupDecision:
    """Describe groups, in the requested order."""

    def describe(group: Group) -> ConsumerGroupDescription | None:
        return None if group.consumer is None else _describe(group.consumer, command.topics)

    return description.decide_describe(
        groups, command.group_ids, "consumer", describe, ConsumerGroupDescription
    )


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
                stored.is_classic,
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

    def protocol_bytes(stored: ConsumerMemberStored) -> tuple[bytes, bytes]:
        current = consumer.current.get(stored.member_id)
        assigned = _named({} if current is None else current.assigned, topics)
        assignment = write_assignment((name, numbers) for _, name, numbers in assigned)
        return write_subscription(stored.topics), assignment

    name = _assignor(consumer) if consumer.members else ""
    return description.describe_as_classic(consumer, name, protocol_bytes)
