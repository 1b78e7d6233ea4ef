"""Member epochs (KIP-848, KIP-932, KIP-1071), and the checks of offset commits and fetches.

Invariants: pure checks; errors are returned, not raised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, InstanceIdFenced, MemberEpochStale, MemberUnknown

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

# Do not change: protocol.
JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_STATIC_EPOCH: Final = -2
"""A static member leaves temporarily: its partitions are reserved for it."""


def check_member(
    members: Container[str], static: Mapping[str, str], member_id: str, instance_id: str | None
) -> HeadraceError | None:
    """The error if this is not a member. `static`: members by their instance id."""
    if member_id not in members:
        return MemberUnknown("the member is not in the group: only members may commit")
    if instance_id is not None and static.get(instance_id, member_id) != member_id:
        return InstanceIdFenced(f"instance id {instance_id!r} belongs to a newer member")
    return None


def check_epoch(epoch: int, current_epoch: int | None) -> HeadraceError | None:
    """The error in the epoch of a commit; the member's older epochs are accepted.

    `current_epoch`: None for a member that has no epoch yet.
    """
    if current_epoch is None or not 0 <= epoch <= current_epoch:
        return _stale(epoch)
    return None


def check_fetch(
    members: Container[str], member_id: str, epoch: int, current_epoch: int | None
) -> HeadraceError | None:
    """The error in a member's offset fetch; as for `check_epoch`."""
    if member_id not in members:
        return MemberUnknown("the member is not in the group: join with epoch 0")
    return None if epoch == current_epoch else _stale(epoch)


def _stale(epoch: int) -> MemberEpochStale:
    return MemberEpochStale(f"member epoch {epoch} is stale: send a heartbeat first")
