"""Descriptions of streams groups, for administrators and for clients that query state.

Invariants: pure and read-only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.groups.commands import GroupDescription, GroupsReply, MemberDescription
from headrace.coordination.machine import Decision
from headrace.coordination.streams.commands import (
    DescribeStreamsGroupsCommand,
    EndpointPartitions,
    StreamsGroupDescription,
    StreamsMemberDescription,
)
from headrace.coordination.streams.streams_group import (
    STATE_ASSIGNING,
    STATE_NOT_READY,
    STATE_RECONCILING,
    StreamsGroup,
)
from headrace.coordination.streams.tasks import NO_TASKS, each
from headrace.errors import GroupUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.coordination.groups.group import Group, GroupDecision
    from headrace.coordination.streams.internal_topics import ConfiguredTopology
    from headrace.coordination.streams.records import StreamsCurrentStored, StreamsMemberStored
    from headrace.coordination.streams.tasks import TaskSet
    from headrace.coordination.streams.topology import Topology

STREAMS: Final = "streams"
_CLASSIC_STATES: Final = {
    STATE_NOT_READY: "PreparingRebalance",
    STATE_ASSIGNING: "PreparingRebalance",
    STATE_RECONCILING: "CompletingRebalance",
}


def decide_describe(
    groups: Mapping[str, Group], command: DescribeStreamsGroupsCommand
) -> GroupDecision:
    """Describe groups, in the requested order."""
    described: list[StreamsGroupDescription] = []
    for group_id in command.group_ids:
        group = groups.get(group_id)
        if group is None or group.streams is None:
            what = "the group does not exist" if group is None else "this is not a streams group"
            error = GroupUnknown(f"{what}: {group_id[:100]!r}", group=group_id)
            described.append(StreamsGroupDescription(group_id, error))
        else:
            described.append(_describe(group.streams))
    return Decision([], GroupsReply(described))


def _describe(group: StreamsGroup) -> StreamsGroupDescription:
    members: list[StreamsMemberDescription] = []
    for member_id, member in group.members.items():
        current = group.current.get(member_id)
        members.append(
            StreamsMemberDescription(
                member.stored,
                0 if current is None else current.epoch,
                NO_TASKS if current is None else current.assigned.plain(),
                group.target.get(member_id, NO_TASKS),
            )
        )
    return StreamsGroupDescription(
        group.group_id,
        None,
        group.state(),
        group.epoch,
        group.target_epoch,
        group.topology,
        members,
    )


def describe_as_classic(group: StreamsGroup) -> GroupDescription:
    """The group as DescribeGroups returns it: its members without their tasks."""
    members = [
        MemberDescription(
            member_id,
            member.stored.instance_id,
            member.stored.client_id,
            member.stored.client_host,
            b"",
            b"",
        )
        for member_id, member in group.members.items()
    ]
    state = group.state()
    return GroupDescription(
        group.group_id,
        None,
        _CLASSIC_STATES.get(state, state),
        STREAMS,
        "",
        members,
        group_type=STREAMS,
    )


def endpoints_of(
    members: Iterable[StreamsMemberStored],
    current: Mapping[str, StreamsCurrentStored],
    topology: Topology,
    configured: ConfiguredTopology,
) -> list[EndpointPartitions]:
    """The partitions of each process whose threads advertise an endpoint for interactive
    queries."""
    inputs = {one.id: one.inputs() for one in topology.subtopologies}
    found: dict[tuple[str, int], tuple[dict[str, set[int]], dict[str, set[int]]]] = {}
    for stored in members:
        if stored.endpoint is None:
            continue
        active, standby = found.setdefault(stored.endpoint, ({}, {}))
        held = current.get(stored.member_id)
        if held is not None:
            _add(active, held.assigned.plain().active, inputs, configured)
            _add(standby, held.assigned.standby, inputs, configured)
    return [
        EndpointPartitions(endpoint, _sorted(active), _sorted(standby))
        for endpoint, (active, standby) in sorted(found.items())
    ]


def _add(
    side: dict[str, set[int]],
    tasks: TaskSet,
    inputs: Mapping[str, list[str]],
    configured: ConfiguredTopology,
) -> None:
    for subtopology_id, number in each(tasks):
        for topic in inputs.get(subtopology_id, ()):
            if number < configured.partition_counts.get(topic, 0):
                side.setdefault(topic, set()).add(number)


def _sorted(side: dict[str, set[int]]) -> dict[str, tuple[int, ...]]:
    return {topic: tuple(sorted(numbers)) for topic, numbers in sorted(side.items())}
