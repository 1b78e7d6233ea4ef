"""Descriptions that all kinds of member groups share.

Invariants: pure and read-only. A tool that knows only the classic protocol sees such a group as
well, in its own terms: Kafka answers that the group does not exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from headrace.coordination.groups.commands import (
    GroupDescription,
    GroupsReply,
    MemberDescription,
)
from headrace.coordination.kit.machine import Decision
from headrace.coordination.member_groups.group import (
    STATE_ASSIGNING,
    STATE_NOT_READY,
    STATE_RECONCILING,
    MemberGroup,
)
from headrace.errors import GroupUnknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.coordination.groups.group import Group, GroupDecision
    from headrace.coordination.member_groups.records import Held, Stored, Tasks
    from headrace.errors import HeadraceError

_CLASSIC_STATES: Final = {
    STATE_NOT_READY: "PreparingRebalance",
    STATE_ASSIGNING: "PreparingRebalance",
    STATE_RECONCILING: "CompletingRebalance",
}
Description = TypeVar("Description")


def decide_describe(
    groups: Mapping[str, Group],
    group_ids: Sequence[str],
    kind_name: str,
    describe: Callable[[Group], Description | None],
    refused: Callable[[str, HeadraceError], Description],
) -> GroupDecision:
    """Describe groups, in the requested order. `describe`: None if the group is not of the
    kind."""
    described: list[Description] = []
    for group_id in group_ids:
        group = groups.get(group_id)
        found = None if group is None else describe(group)
        if found is None:
            what = (
                "the group does not exist" if group is None else f"this is not a {kind_name} group"
            )
            error = GroupUnknown(f"{what}: {group_id[:100]!r}", group=group_id)
            found = refused(group_id, error)
        described.append(found)
    return Decision([], GroupsReply(described))


def describe_as_classic(
    group: MemberGroup[Stored, Tasks, Held],
    assignor: str,
    protocol_bytes: Callable[[Stored], tuple[bytes, bytes]],
) -> GroupDescription:
    """The group as DescribeGroups returns it. `protocol_bytes`: a member's subscription and
    assignment."""
    state, name = group.state(), group.kind.name
    members = [
        MemberDescription(
            member_id,
            member.stored.instance_id,
            member.stored.client_id,
            member.stored.client_host,
            *protocol_bytes(member.stored),
        )
        for member_id, member in group.members.items()
    ]
    return GroupDescription(
        group.group_id,
        None,
        _CLASSIC_STATES.get(state, state),
        name,
        assignor,
        members,
        group_type=name,
    )
