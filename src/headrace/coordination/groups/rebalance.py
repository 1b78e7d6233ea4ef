"""The rebalance: how a group gets from one generation to the next.

Invariants: works on a Draft, never on the machine's own group. Nothing here answers a command
directly; commands are parked, and parked ones answered.

How it works: `prepare` opens the join phase, `try_complete` closes it as soon as all members have
joined, `expire` closes it (or the sync phase, or a session) when its time is over.

A generation is stored twice: when its join phase closes, before its number is returned to any
member, and when the leader has assigned partitions. The first record has no leader. Without it, a
crash between the two would assign the same generation number to other members, and an assignment
for the first generation could be mistaken for one of the second. It costs one more append per
rebalance.
"""

from __future__ import annotations

from headrace.coordination.groups.group import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    Draft,
    Member,
)
from headrace.errors import HeadraceError, MemberUnknown, RebalanceInProgress

NOT_DELAYED = -1


def prepare(draft: Draft) -> None:
    """Open the join phase, unless it is open."""
    group = draft.group
    if group.state == PREPARING:
        return
    was_empty = group.state == EMPTY
    if group.state == COMPLETING:
        for member_id in list(group.members):
            member = draft.edit(member_id)
            member.assignment = b""
            if member.sync_ticket:
                draft.refuse_sync(
                    member, RebalanceInProgress("the group began a new rebalance: rejoin")
                )
                member.deadline_ms = draft.now_ms + member.session_timeout_ms
    draft.move_to(PREPARING)
    group.pending_sync.clear()
    group.has_newcomer = False
    timeout_ms = group.rebalance_timeout_ms()
    delay_ms = draft.config.initial_rebalance_delay_ms
    if was_empty and delay_ms > 0:
        group.delay_left_ms = max(timeout_ms - delay_ms, 0)
        group.phase_deadline_ms = draft.now_ms + delay_ms
    else:
        group.delay_left_ms = NOT_DELAYED
        group.phase_deadline_ms = draft.now_ms + timeout_ms


def try_complete(draft: Draft) -> None:
    """Close the join phase if all members have joined and no member id is outstanding."""
    group = draft.group
    if (
        group.state == PREPARING
        and group.delay_left_ms == NOT_DELAYED
        and not group.pending
        and all(member.join_ticket for member in group.members.values())
    ):
        _complete(draft)


def remove_member(draft: Draft, member_id: str, error: HeadraceError) -> None:
    """Remove a member; its parked commands are answered with `error`. `rejoin` must follow."""
    group = draft.group
    member = draft.edit(member_id)
    draft.refuse_join(member, error)
    draft.refuse_sync(member, error)
    del group.members[member_id]
    group.pending_sync.pop(member_id, None)
    instance_id = member.group_instance_id
    if instance_id is not None and group.static.get(instance_id) == member_id:
        del group.static[instance_id]
    if group.leader == member_id:
        group.leader = next(iter(group.members), None)


def rejoin(draft: Draft) -> None:
    """Members have changed: start a rebalance if there is a generation, and complete it if
    possible."""
    if draft.group.state in (STABLE, COMPLETING):
        prepare(draft)
    try_complete(draft)


def _complete(draft: Draft) -> None:
    """Close the join phase and remove members that did not join, except static ones."""
    group = draft.group
    for member in list(group.members.values()):
        if not member.join_ticket and member.group_instance_id is None:
            remove_member(
                draft,
                member.member_id,
                MemberUnknown("the member did not join in time: join again"),
            )
    group.delay_left_ms = NOT_DELAYED
    group.has_newcomer = False
    if group.members and not _elect_leader(draft):
        # Only absent static members are left: their sessions decide, not this phase.
        group.phase_deadline_ms = draft.now_ms + max(group.rebalance_timeout_ms(), 1)
        return
    group.generation += 1
    group.pending_sync.clear()
    draft.rebalances += 1
    if group.members:
        _begin_generation(draft)
    else:
        group.protocol_name = None
        group.leader = None
        group.phase_deadline_ms = None
        draft.move_to(EMPTY)
        draft.store(None)


def _elect_leader(draft: Draft) -> bool:
    """Keep the leader if it has joined, else pick the first that has; False if none has."""
    group = draft.group
    if group.leader is not None and group.members[group.leader].join_ticket:
        return True
    joined = next((m for m in group.members.values() if m.join_ticket), None)
    if joined is None:
        return False
    group.leader = joined.member_id
    return True


def _begin_generation(draft: Draft) -> None:
    group = draft.group
    group.protocol_name = group.select_protocol()
    draft.move_to(COMPLETING)
    group.phase_deadline_ms = draft.now_ms + group.rebalance_timeout_ms()
    joined: list[Member] = []
    for member_id in list(group.members):
        member = draft.edit(member_id)
        member.assignment = b""
        if member.join_ticket:
            joined.append(member)
    draft.store(None)
    for member in joined:
        draft.answers.append((member.join_ticket, group.current_join_reply(member.member_id)))
        member.join_ticket = 0
        member.is_new = False
        member.deadline_ms = draft.now_ms + member.session_timeout_ms
        group.pending_sync[member.member_id] = None


def expire(draft: Draft) -> None:
    """Apply time-driven changes of the group at `draft.now_ms`."""
    group, now_ms = draft.group, draft.now_ms
    for member_id in [m for m, deadline_ms in group.pending.items() if deadline_ms <= now_ms]:
        del group.pending[member_id]
    for member in list(group.members.values()):
        expires_ms = member.expires_ms()
        if expires_ms is not None and expires_ms <= now_ms:
            remove_member(
                draft,
                member.member_id,
                MemberUnknown("the member's session has expired: join again"),
            )
            if group.state != PREPARING:
                prepare(draft)
    try_complete(draft)
    if group.phase_deadline_ms is not None and group.phase_deadline_ms <= now_ms:
        if group.state == PREPARING:
            _expire_join_phase(draft)
        else:
            _expire_sync_phase(draft)


def _expire_join_phase(draft: Draft) -> None:
    group = draft.group
    if group.delay_left_ms > 0 and group.has_newcomer:
        delay_ms = min(draft.config.initial_rebalance_delay_ms, group.delay_left_ms)
        group.delay_left_ms -= delay_ms
        group.phase_deadline_ms = draft.now_ms + delay_ms
        group.has_newcomer = False
    else:
        _complete(draft)


def _expire_sync_phase(draft: Draft) -> None:
    """Remove members that joined but did not request their assignment."""
    group = draft.group
    late = list(group.pending_sync)
    for member_id in late:
        remove_member(
            draft, member_id, MemberUnknown("the member did not sync in time: join again")
        )
    group.pending_sync.clear()
    group.phase_deadline_ms = None
    if late or group.state == COMPLETING:
        rejoin(draft)
