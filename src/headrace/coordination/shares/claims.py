"""Claims of a partition by one member, in exclusive and failover groups.

Invariants: pure. A claim is volatile, as locks are: after a crash or a takeover, the first member
that asks gets the partition. It ends when its owner's session ends, or when the owner has not asked
for the duration of its lease; not while records are in flight, which another member could overtake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.shares.commands import ClaimReply
from headrace.coordination.shares.config import EXCLUSIVE
from headrace.coordination.shares.volatile_records import Claimed
from headrace.errors import GroupFull

if TYPE_CHECKING:
    from headrace.coordination.shares.commands import ClaimCommand
    from headrace.coordination.shares.share_group import ShareGroup

WAIT_MS_MIN = 10


def decide_claim(
    group: ShareGroup, command: ClaimCommand, now_ms: int
) -> tuple[list[Claimed], ClaimReply]:
    """(state changes, the reply)."""
    _, owner, until_ms = group.claim
    is_over = until_ms <= now_ms and not group.window.acquired_records
    if owner in {"", command.owner} or is_over:
        lease_ms = max(group.config.lock_ms, command.lock_ms)
        claimed = Claimed(group.number, command.owner, now_ms + lease_ms)
        return [claimed], ClaimReply(None, is_owner=True)
    if group.config.subscription == EXCLUSIVE:
        return [], ClaimReply(
            GroupFull(
                f"group {group.group_id!r} is exclusive, and another consumer has this "
                "partition: stop that consumer, or set headrace.share.subscription=failover "
                "to stand by"
            )
        )
    ends_ms = until_ms if until_ms > now_ms else group.next_deadline_ms() or now_ms
    return [], ClaimReply(None, wait_ms=max(ends_ms - now_ms, WAIT_MS_MIN))


def released(group: ShareGroup, member_id: str) -> list[Claimed]:
    """State changes when a member's session ends."""
    return [Claimed(group.number, "", 0)] if group.claim.owner == member_id else []
