"""Consumer groups of the new protocol (KIP-848): a member group of partitions."""

from __future__ import annotations

from headrace.coordination.groups.consumer_records import (
    CONSUMER,
    ConsumerMemberStored,
    OwnedPartitions,
    Partitions,
)
from headrace.coordination.member_groups.group import GroupMember, MemberGroup
from headrace.coordination.member_groups.records import CurrentStored

ConsumerGroup = MemberGroup[ConsumerMemberStored, Partitions, OwnedPartitions]
ConsumerMember = GroupMember[ConsumerMemberStored, Partitions]
ConsumerCurrent = CurrentStored[OwnedPartitions]


def consumer_group(group_id: str) -> ConsumerGroup:
    """A group without members."""
    return MemberGroup(CONSUMER, group_id)
