"""Time-driven changes of groups: sessions expire, phases end, offsets expire.

Invariants: pure; a decision changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups import offsets, rebalance
from headrace.coordination.groups.downgrade import finish
from headrace.coordination.groups.group import (
    PREPARING,
    CleanupScheduled,
    Draft,
    GroupDeadlinesPassed,
)
from headrace.coordination.host_commands import DoneReply
from headrace.coordination.machine import Decision
from headrace.coordination.member_groups import heartbeat
from headrace.coordination.member_groups.draft import MemberDraft

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.groups.group import Group, GroupDecision, GroupRecord
    from headrace.coordination.groups.host_commands import GroupReply

CLEANUP_AGAIN_MS = 1_000
"""Pause between two parts of an expiry wave."""


def decide_tick(
    groups: Mapping[str, Group],
    due: Iterable[str],
    now_ms: int,
    config: GroupConfig,
    *,
    cleanup_from: int | None,
) -> GroupDecision:
    """End the expired sessions and phases of the groups that are `due`.

    `cleanup_from`: also look for expired offsets, in the groups from this one on; None: do not.
    """
    durable: list[GroupRecord] = []
    volatile: list[GroupRecord] = []
    answers: list[tuple[int, GroupReply]] = []
    for group_id in due:
        group = groups.get(group_id)
        deadline_ms = group.next_deadline_ms() if group is not None else None
        if group is None or deadline_ms is None or deadline_ms > now_ms:
            continue
        if group.managed is not None:
            members = MemberDraft(group.managed, now_ms, config, None)
            heartbeat.expire(members)
            records, replies = finish(group, members)
            durable += records[:-1]
            volatile.append(records[-1])
            answers += replies
            continue
        draft = Draft(group, now_ms, config)
        rebalance.expire(draft)
        decision = draft.decision(None)
        durable += decision.records[:-1]
        volatile.append(decision.records[-1])
        answers += decision.answers
    if cleanup_from is not None:
        kept_too_long, first = offsets.find_expired(groups, cleanup_from, now_ms, config)
        pause_ms = config.retention_check_interval_ms if first is None else CLEANUP_AGAIN_MS
        durable += kept_too_long
        volatile.append(CleanupScheduled(now_ms + pause_ms, first or 0))
    volatile.append(GroupDeadlinesPassed(now_ms))
    return Decision(durable + volatile, DoneReply(), answers)


def decide_loaded(groups: Mapping[str, Group], now_ms: int, config: GroupConfig) -> GroupDecision:
    """Grant every stored member one full session."""
    records: list[GroupRecord] = []
    for group in groups.values():
        if group.managed is not None:
            records.append(group.managed.loaded(now_ms, config))
        if not group.members:
            continue
        draft = Draft(group, now_ms, config)
        for member_id in list(group.members):
            member = draft.edit(member_id)
            member.deadline_ms = now_ms + member.session_timeout_ms
        if group.state == PREPARING:
            draft.group.phase_deadline_ms = now_ms + group.rebalance_timeout_ms()
        records += draft.decision(None).records
    interval_ms = config.retention_check_interval_ms
    records.append(CleanupScheduled(now_ms + interval_ms))
    return Decision(records, DoneReply())
