"""Checks of offset commits and fetches in streams groups.

Invariants: pure checks, as for a consumer group of the new protocol: a member commits with its
epoch, or with an older one that is not below the epoch at which the active task that reads the
partition was assigned to it (KIP-1251).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from headrace.coordination.streams.streams_group import StreamsGroup


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
