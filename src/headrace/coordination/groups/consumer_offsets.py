"""Checks of offset commits and fetches in consumer groups of the new protocol.

Invariants: pure checks. A member commits with its epoch, or with an older one that is not below the
epoch at which the partition was assigned to it (KIP-1251): a commit sent just before the response
to a heartbeat arrives is valid, a commit from before another member owned the partition is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.coordination.kit import member_epochs
from headrace.coordination.streams import offsets as streams_offsets
from headrace.errors import (
    HeadraceError,
    IllegalGeneration,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from headrace.coordination.groups.commands import CommitCommand, TransactionalCommitCommand
    from headrace.coordination.groups.consumer_group import ConsumerGroup
    from headrace.coordination.groups.group import Group
    from headrace.coordination.kit.topic_view import TopicView
    from headrace.coordination.member_groups.group import MemberGroup


def check_member_epoch(
    group: MemberGroup[Any, Any, Any], member_id: str, epoch: int, instance_id: str | None
) -> HeadraceError | None:
    """The error in a commit of this member, if any."""
    if epoch < 0 and not group.members:
        return None  # an administrator, or a consumer that assigns partitions itself
    error = member_epochs.check_member(group.members, group.static, member_id, instance_id)
    if error is not None:
        return error
    current = group.current.get(member_id)
    if group.members[member_id].stored.is_classic:
        if current is None or epoch != current.epoch:
            return IllegalGeneration("the generation has passed: join again", actual=epoch)
        return None
    return member_epochs.check_epoch(epoch, None if current is None else current.epoch)


def partition_check(
    group: Group | None, command: CommitCommand | TransactionalCommitCommand
) -> Callable[[str, UUID | None, int], bool] | None:
    """Returns the check whether a partition may be committed at an older epoch; None: all may."""
    if group is not None and group.streams is not None:
        return streams_offsets.partition_check(group.streams, command.member_id, command.generation)
    if group is None or group.consumer is None:
        return None
    current = group.consumer.current.get(command.member_id)
    epoch = command.generation
    if current is None or epoch < 0 or epoch == current.epoch:
        return None

    def may_commit(_topic: str, topic_id: UUID | None, number: int) -> bool:
        for owned in (current.assigned, current.revoking):
            assigned_epoch = None if topic_id is None else owned.get(topic_id, {}).get(number)
            if assigned_epoch is not None:
                return epoch >= assigned_epoch
        return False

    return may_commit


def check_fetch(group: Group | None, member_id: str, epoch: int) -> HeadraceError | None:
    """The error in a fetch of this member, if any."""
    if group is None:
        return member_epochs.check_fetch((), member_id, epoch, None)
    if group.managed is None:
        return None  # a classic group does not check its members
    current = group.managed.current.get(member_id)
    current_epoch = None if current is None else current.epoch
    return member_epochs.check_fetch(group.managed.members, member_id, epoch, current_epoch)


def subscribed_by_consumers(consumer: ConsumerGroup, topics: TopicView) -> dict[str, None]:
    """Every topic that a member subscribes to."""
    names: dict[str, None] = {}
    for member in consumer.members.values():
        names.update(dict.fromkeys(member.stored.topics))
        if member.stored.pattern:
            names.update(dict.fromkeys(topics.matching(member.stored.pattern)))
    return names
