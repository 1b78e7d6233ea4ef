"""Descriptions of streams groups, for administrators and for clients that query state.

Invariants: pure and read-only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.member_groups import description
from headrace.coordination.streams.commands import (
    DescribeStreamsGroupsCommand,
    EndpointPartitions,
    StreamsGroupDescription,
    StreamsMemberDescription,
)
from headrace.coordination.streams.tasks import NO_TASKS, each

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.coordination.groups.commands import GroupDescription
    from headrace.coordination.groups.group import Group, GroupDecision
    from headrace.coordination.streams.internal_topics import ConfiguredTopology
    from headrace.coordination.streams.records import StreamsMemberStored
    from headrace.coordination.streams.streams_group import StreamsCurrent, StreamsGroup
    from headrace.coordination.streams.tasks import TaskSet
    from headrace.coordination.streams.topology import Topology


def decide_describe(
    groups: Mapping[str, Group], command: DescribeStreamsGroupsCommand
) -> GroupDecision:
    """Describe groups, in the requested order."""

    def describe(group: Group) -> StreamsGroupDescription | None:
        return None if group.streams is None else _describe(group.streams)

    return description.decide_describe(
        groups, command.group_ids, "streams", describe, StreamsGroupDescription
    )


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
    return description.describe_as_classic(group, "", lambda _: (b"", b""))


def endpoints_of(
    members: Iterable[StreamsMemberStored],
    current: Mapping[str, StreamsCurrent],
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
