"""Commands and replies for streams groups.

Invariants: as in `groups/commands.py`. Fields that the host sets (`topics` and later ones) come
last and have defaults; a face does not set them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.coordination.groups.commands import GroupsReply
from headrace.coordination.member_groups.commands import MemberHeartbeat, MemberHeartbeatReply
from headrace.coordination.streams.tasks import NO_TASKS, StreamTasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.coordination.streams.internal_topics import Status
    from headrace.coordination.streams.records import StreamsMemberStored
    from headrace.coordination.streams.topology import InternalTopic, Topology
    from headrace.errors import HeadraceError


class EndpointPartitions(NamedTuple):
    """The partitions of a process that serves interactive queries, by topic."""

    endpoint: tuple[str, int]
    active: dict[str, tuple[int, ...]]
    standby: dict[str, tuple[int, ...]]


@dataclass(slots=True)
class StreamsHeartbeatReply(MemberHeartbeatReply):
    """Answers a StreamsHeartbeatCommand; None means unchanged.

    `missing` is for the host: the internal topics that it has to create.
    """

    tasks: StreamTasks | None = None
    statuses: list[Status] = field(default_factory=list)
    endpoint_epoch: int = 0
    endpoints: list[EndpointPartitions] | None = None
    missing: Sequence[InternalTopic] = ()


@dataclass(slots=True)
class StreamsHeartbeatCommand(MemberHeartbeat):
    """StreamsGroupHeartbeat."""

    topology: Topology | None = None
    owned: StreamTasks | None = None
    process_id: str | None = None
    endpoint: tuple[str, int] | None = None
    tags: tuple[tuple[str, str], ...] | None = None
    endpoint_epoch: int = -1
    is_shutdown_asked: bool = False
    standby_count: int = field(default=0, kw_only=True)
    initial_delay_ms: int = field(default=0, kw_only=True)

    def refused(self, error: HeadraceError) -> StreamsHeartbeatReply:
        """The reply that carries `error`."""
        return StreamsHeartbeatReply(error, self.member_id)


class StreamsMemberDescription(NamedTuple):
    """One member of a described group."""

    stored: StreamsMemberStored
    epoch: int
    assigned: StreamTasks = NO_TASKS
    target: StreamTasks = NO_TASKS


@dataclass(slots=True)
class StreamsGroupDescription:
    """One described group; `Dead` with an error if there is no group of this type."""

    group_id: str
    error: HeadraceError | None = None
    state: str = "Dead"
    epoch: int = 0
    target_epoch: int = 0
    topology: Topology | None = None
    members: list[StreamsMemberDescription] = field(default_factory=list)


@dataclass(slots=True)
class DescribeStreamsGroupsCommand:
    """StreamsGroupDescribe."""

    group_ids: list[str]

    def refused(self, error: HeadraceError) -> GroupsReply[StreamsGroupDescription]:
        """The reply that carries `error` for every group."""
        return GroupsReply([StreamsGroupDescription(g, error) for g in self.group_ids])
