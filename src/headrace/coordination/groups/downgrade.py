"""Converts a consumer group into a classic one when its last member of the new protocol leaves.

Invariants: the remaining members keep their ids and sessions; their generation is the group's
epoch, so that no generation is used twice. They have to rejoin, as after any change of members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.coordination.groups import rebalance
from headrace.coordination.groups.group import STABLE, Draft, Group, GroupRecord, Member

if TYPE_CHECKING:
    from headrace.coordination.groups.host_commands import GroupReply
    from headrace.coordination.member_groups.draft import MemberDraft

CONSUMER: Final = "consumer"


def finish(
    home: Group, draft: MemberDraft[Any, Any, Any]
) -> tuple[list[GroupRecord], list[tuple[int, GroupReply]]]:
    """The outcome of a draft: records, and answers to parked commands."""
    if not draft.members or not all(stored.is_classic for stored in draft.members.values()):
        return draft.finish(), []
    group = Group(
        home.group_id,
        STABLE,
        draft.group.epoch,
        CONSUMER,
        timestamp_ms=draft.now_ms,
        offsets=home.offsets,
        open_commits=home.open_commits,
    )
    for member_id, stored in draft.members.items():
        classic = stored.classic
        assert classic is not None
        group.members[member_id] = Member(
            member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            classic.session_timeout_ms,
            stored.rebalance_timeout_ms,
            classic.protocols,
            deadline_ms=draft.now_ms + classic.session_timeout_ms,
        )
        if stored.instance_id is not None:
            group.static[stored.instance_id] = member_id
    group.leader = next(iter(group.members))
    group.protocol_name = group.select_protocol()
    classic_draft = Draft(group, draft.now_ms, draft.config)
    rebalance.prepare(classic_draft)
    classic_draft.store(None)
    decision = classic_draft.decision(None)
    return [*draft.group.removals(), *decision.records], decision.answers
