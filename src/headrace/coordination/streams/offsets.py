"""Checks of offset commits and fetches in streams groups.

Invariants: pure checks, as for a consumer group of the new protocol: a member commits with its
epoch, or with an older one that is not below the epoch at which the active task that reads the
partition was assigned to it (KIP-1251).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination import member_epochs

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from headrace.coordination.streams.streams_group import StreamsGroup
    from headrace.errors import HeadraceError


def check_member_epoch(
    group: StreamsGroup, member_id: str, epoch: int, instance_id: str | None
) -> HeadraceError | None:
    """The error in a commit of this member, if any."""
    if epoch < 0 and not group.members:
        return None  # an administrator, or a consumer that assigns partitions itself
    error = member_epochs.check_member(group.members, group.static, member_id, instance_id)
    if error is not None:
        return error
    current = group.current.get(member_id)
    return member_epochs.check_epoch(epoch, None if current is None else current.epoch)


def partition_check(
    group: StreamsGroup, member_id: str, epoch: int
) -> Callable[[str, UUID | None, int], bool] | None:
    """Returns the check whether a partition may be committed at an older epoch; None: all may."""
    current, topology = group.current.get(member_id), group.topology
    if current is None or epoch < 0 or epoch == current.epoch or topology is None:
        return None
    readers: dict[str, list[str]] = {}
    for subtopology in topology.subtopologies:
        for topic in subtopology.inputs():
            readers.setdefault(topic, []).append(subtopology.id)

    def may_commit(topic: str, _topic_id: UUID | None, number: int) -> bool:
        for subtopology_id in readers.get(topic, ()):
            for held in (current.assigned, current.revoking):
                assigned_epoch = held.active.get(subtopology_id, {}).get(number)
                if assigned_epoch is not None:
                    return epoch >= assigned_epoch
        return False

    return may_commit


def check_fetch(group: StreamsGroup, member_id: str, epoch: int) -> HeadraceError | None:
    """The error in a fetch of this member, if any."""
    current = group.current.get(member_id)
    current_epoch = None if current is None else current.epoch
    return member_epochs.check_fetch(group.members, member_id, epoch, current_epoch)
