"""The group coordinator of one broker: finds the shard of a group and hands the command on.

Rules of the room: knows which partition of `__consumer_offsets` a group lives in (Kafka's hash)
and checks group ids; the rules of groups are in `coordination/groups`, appending and waiting in
`coordinator_shard`. Faces call these methods with the dataclasses of
`coordination.groups.commands`; errors come back in the replies, nothing is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.broker.coordinator_shard import ShardLog
from headrace.coordination.groups.commands import (
    CommitCommand,
    CommitReply,
    DeleteOffsetsCommand,
    DeleteOffsetsReply,
    FetchOffsetsCommand,
    FetchOffsetsReply,
    GroupDescription,
    GroupResult,
    HeartbeatCommand,
    HeartbeatReply,
    JoinCommand,
    JoinReply,
    LeaveCommand,
    LeaveReply,
    ListGroupsCommand,
    ListGroupsReply,
    SyncCommand,
    SyncReply,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.runtime.clock import Clock
from headrace.runtime.randomness import Randomness
from headrace.runtime.tasks import Tasks


@dataclass(slots=True)
class GroupCounters:
    """Cheap figures for metrics: what is there now, and what happened since the start."""

    groups: int = 0
    members: int = 0
    offsets: int = 0
    rebalances_total: int = 0
    commits_total: int = 0


class GroupCoordinator:
    """All groups that this broker coordinates."""

    def __init__(
        self,
        shard_log: Callable[[int], ShardLog],
        partition_count: int,
        clock: Clock,
        randomness: Randomness,
        tasks: Tasks,
        config: GroupConfig | None = None,
    ) -> None:
        raise NotImplementedError

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds the group (FindCoordinator)."""
        raise NotImplementedError

    async def join(self, command: JoinCommand) -> JoinReply:
        """JoinGroup: answered when the group's members have met, or the time for it is over."""
        raise NotImplementedError

    async def sync(self, command: SyncCommand) -> SyncReply:
        """SyncGroup: answered when the leader's assignment is durable."""
        raise NotImplementedError

    async def heartbeat(self, command: HeartbeatCommand) -> HeartbeatReply:
        """Heartbeat."""
        raise NotImplementedError

    async def leave(self, command: LeaveCommand) -> LeaveReply:
        """LeaveGroup."""
        raise NotImplementedError

    async def commit(self, command: CommitCommand) -> CommitReply:
        """OffsetCommit: answered when the offsets are durable. Topics are not looked up."""
        raise NotImplementedError

    async def fetch_offsets(self, command: FetchOffsetsCommand) -> FetchOffsetsReply:
        """OffsetFetch."""
        raise NotImplementedError

    async def delete_offsets(self, command: DeleteOffsetsCommand) -> DeleteOffsetsReply:
        """OffsetDelete."""
        raise NotImplementedError

    async def delete_groups(self, group_ids: list[str]) -> list[GroupResult]:
        """DeleteGroups, answered in the order of `group_ids`."""
        raise NotImplementedError

    async def list_groups(self, command: ListGroupsCommand) -> ListGroupsReply:
        """ListGroups over the partitions that this broker owns, sorted by group id."""
        raise NotImplementedError

    async def describe_groups(self, group_ids: list[str]) -> list[GroupDescription]:
        """DescribeGroups, answered in the order of `group_ids`."""
        raise NotImplementedError

    async def topic_deleted(self, names: list[str]) -> None:
        """Drop what is committed for these topics in every group of this broker."""
        raise NotImplementedError

    def counters(self) -> GroupCounters:
        """Figures for metrics; costs a look at each loaded shard."""
        raise NotImplementedError

    async def close(self) -> None:
        """Refuse what waits, stop the timers. Replies of durable commands are still given."""
        raise NotImplementedError
