"""Administrative commands on groups: list, describe, delete.

Invariants: pure; list and describe are read-only. States and types carry Kafka's names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.groups.commands import (
    DeleteGroupsCommand,
    DescribeGroupsCommand,
    GroupDescription,
    GroupListing,
    GroupResult,
    GroupsReply,
    ListGroupsCommand,
    ListGroupsReply,
    MemberDescription,
)
from headrace.coordination.groups.consumer_description import describe_as_classic
from headrace.coordination.groups.group import (
    DEAD,
    STABLE,
    Group,
    GroupDecision,
    GroupRecord,
)
from headrace.coordination.groups.offsets import removals
from headrace.coordination.groups.state_records import OffsetRemoved
from headrace.coordination.kit.machine import Decision
from headrace.coordination.streams import description
from headrace.errors import GroupNotEmpty, GroupUnknown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.coordination.kit.topic_view import TopicView

CLASSIC = "classic"


def decide_list(groups: Mapping[str, Group], command: ListGroupsCommand) -> GroupDecision:
    """List the groups that match both filters, sorted by id."""
    states = [state.lower() for state in command.states]
    types = [name.lower() for name in command.types]
    listed = [_listing(group) for _, group in sorted(groups.items())]
    return Decision(
        [],
        ListGroupsReply(
            None,
            [
                one
                for one in listed
                if (not states or one.state.lower() in states)
                and (not types or one.group_type in types)
            ],
        ),
    )


def _listing(group: Group) -> GroupListing:
    managed = group.managed
    if managed is not None:
        name = managed.kind.name
        return GroupListing(group.group_id, name, managed.state(), name)
    return GroupListing(group.group_id, group.protocol_type, group.state, CLASSIC)


def decide_describe(groups: Mapping[str, Group], command: DescribeGroupsCommand) -> GroupDecision:
    """Describe groups, in the requested order."""
    described = [
        _describe(group_id, groups.get(group_id), command.topics) for group_id in command.group_ids
    ]
    return Decision([], GroupsReply(described))


def _describe(group_id: str, group: Group | None, topics: TopicView) -> GroupDescription:
    if group is None:
        return GroupDescription(group_id, GroupUnknown(group=group_id), DEAD)
    if group.consumer is not None:
        return describe_as_classic(group.consumer, topics)
    if group.streams is not None:
        return description.describe_as_classic(group.streams)
    is_stable = group.state == STABLE
    members = [
        MemberDescription(
            m.member_id,
            m.group_instance_id,
            m.client_id,
            m.client_host,
            m.metadata(group.protocol_name) if is_stable else b"",
            m.assignment if is_stable else b"",
        )
        for m in group.members.values()
    ]
    name = (group.protocol_name or "") if is_stable else ""
    return GroupDescription(group_id, None, group.state, group.protocol_type, name, members)


def decide_delete_groups(
    groups: Mapping[str, Group], command: DeleteGroupsCommand
) -> GroupDecision:
    """Delete empty groups with all their offsets. A second mention of a group yields
    GroupUnknown."""
    records: list[GroupRecord] = []
    results: list[GroupResult] = []
    deleted: dict[str, None] = {}
    for group_id in command.group_ids:
        group = None if group_id in deleted else groups.get(group_id)
        if group is None:
            results.append(GroupResult(group_id, GroupUnknown(group=group_id)))
        elif group.has_members():
            results.append(
                GroupResult(
                    group_id, GroupNotEmpty("the group has members: stop its consumers first")
                )
            )
        else:
            deleted[group_id] = None
            places = dict.fromkeys([*group.offsets, *sorted(group.open_commits.places())])
            records += [OffsetRemoved(group_id, t, p) for t, p in places]
            records += removals(group)
            results.append(GroupResult(group_id, None))
    return Decision(records, GroupsReply(results))
