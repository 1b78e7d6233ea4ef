"""Commands of a group machine's host, and the closed unions of all commands and replies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.coordination.groups.commands import (
    CommitCommand,
    CommitReply,
    DeleteGroupsCommand,
    DeleteOffsetsCommand,
    DeleteOffsetsReply,
    DescribeGroupsCommand,
    FetchOffsetsCommand,
    FetchOffsetsReply,
    GroupsReply,
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
    TransactionalCommitCommand,
)
from headrace.coordination.groups.consumer_commands import (
    ConsumerHeartbeatCommand,
    ConsumerHeartbeatReply,
    DescribeConsumerGroupsCommand,
)
from headrace.coordination.kit.host_commands import DoneReply, LoadedCommand, TickCommand
from headrace.coordination.streams.commands import (
    DescribeStreamsGroupsCommand,
    StreamsHeartbeatCommand,
    StreamsHeartbeatReply,
)

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.coordination.kit.machine import EndsTransaction
    from headrace.errors import HeadraceError


@dataclass(slots=True)
class ForgetTopicsCommand:
    """These topics, by name and id, were deleted: drop their committed offsets in every group."""

    topics: list[tuple[str, UUID]]

    def refused(self, error: HeadraceError) -> DoneReply:
        """The reply that carries `error`."""
        return DoneReply(error)


@dataclass(slots=True)
class WriteMarkerCommand:
    """Append the marker of a transaction to this shard's log: its commits end here."""

    marker: EndsTransaction

    def refused(self, error: HeadraceError) -> DoneReply:
        """The reply that carries `error`."""
        return DoneReply(error)


GroupCommand = (
    JoinCommand
    | SyncCommand
    | HeartbeatCommand
    | LeaveCommand
    | CommitCommand
    | TransactionalCommitCommand
    | WriteMarkerCommand
    | FetchOffsetsCommand
    | DeleteOffsetsCommand
    | DeleteGroupsCommand
    | ListGroupsCommand
    | DescribeGroupsCommand
    | ConsumerHeartbeatCommand
    | DescribeConsumerGroupsCommand
    | StreamsHeartbeatCommand
    | DescribeStreamsGroupsCommand
    | ForgetTopicsCommand
    | TickCommand
    | LoadedCommand
)
GroupReply = (
    JoinReply
    | SyncReply
    | HeartbeatReply
    | LeaveReply
    | CommitReply
    | FetchOffsetsReply
    | DeleteOffsetsReply
    | ListGroupsReply
    | GroupsReply[Any]
    | ConsumerHeartbeatReply
    | StreamsHeartbeatReply
    | DoneReply
)
