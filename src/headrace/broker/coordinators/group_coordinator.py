"""One broker's group coordinator: finds the shard of a group and passes commands to it.

Invariants: knows which partition of `__consumer_offsets` a group belongs to (Kafka's hash) and
validates group ids; the rules of groups are in `coordination/groups`, appending and waiting in
`coordinator_shard`. Faces call these methods with the dataclasses of
`coordination.groups.commands`; errors are part of the replies, nothing is raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from headrace.broker.coordinators.coordinator_shards import CoordinatorShards
from headrace.coordination.groups.commands import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    CommitCommand,
    CommitReply,
    DeleteGroupsCommand,
    DeleteGroupsReply,
    DeleteOffsetsCommand,
    DeleteOffsetsReply,
    DescribeGroupsCommand,
    DescribeGroupsReply,
    FetchedOffset,
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
    TransactionalCommitCommand,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.consumer_commands import (
    ConsumerGroupDescription,
    ConsumerHeartbeatCommand,
    ConsumerHeartbeatReply,
    DescribeConsumerGroupsCommand,
    DescribeConsumerGroupsReply,
)
from headrace.coordination.groups.group import GroupRecord
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.groups.host_commands import (
    ForgetTopicsCommand,
    GroupCommand,
    GroupReply,
    WriteMarkerCommand,
)
from headrace.coordination.host_commands import DoneReply, LoadedCommand, TickCommand
from headrace.coordination.member_epochs import JOIN_EPOCH
from headrace.coordination.streams.commands import (
    DescribeStreamsGroupsCommand,
    DescribeStreamsGroupsReply,
    StreamsGroupDescription,
    StreamsHeartbeatCommand,
    StreamsHeartbeatReply,
)
from headrace.coordination.streams.internal_topics import with_problem
from headrace.coordination.topic_view import NoTopics, TopicView
from headrace.errors import (
    CoordinatorLoading,
    CoordinatorUnavailable,
    GroupIdInvalid,
    GroupUnknown,
    HeadraceError,
    InconsistentProtocol,
    RebalanceInProgress,
    RegularExpressionInvalid,
)
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from headrace.broker.coordinators.group_config import (
        ConsumerGroupSettings,
        StreamsGroupSettings,
    )
    from headrace.broker.coordinators.shard_log import ShardLog
    from headrace.broker.coordinators.streams_topics import StreamsTopics
    from headrace.coordination.machine import EndsTransaction
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.tasks import Tasks


class TopicIds(Protocol):
    """The existing topics, as the group coordinator needs them."""

    @property
    def ids(self) -> Mapping[str, UUID]:
        """By name, as this broker sees them now."""
        ...

    async def refresh(self, name: str) -> None:
        """Update `ids` from the metadata store. Raises MetadataUnavailable."""
        ...


class PreparedTopics(TopicView, Protocol):
    """A TopicView that evaluates a regular expression before a machine needs it."""

    async def prepare(self, pattern: str) -> None:
        """Raises RegularExpressionInvalid."""
        ...


def consumer_group_error(group_id: str) -> GroupUnknown:
    """The error for an id that belongs to a consumer group."""
    return GroupUnknown(
        f"group {group_id[:60]!r} is a consumer group, not a share group: choose another id, or"
        " delete it first"
    )


class ConsumerGroupDependencies(NamedTuple):
    """Dependencies of groups of the new protocol besides their log."""

    topics: PreparedTopics
    terms: Callable[[str], ConsumerGroupSettings]
    is_share_group: Callable[[str], bool] = lambda _group_id: False
    streams: StreamsGroupDependencies | None = None


class StreamsGroupDependencies(NamedTuple):
    """Additional dependencies of streams groups."""

    terms: Callable[[str], StreamsGroupSettings]
    internal_topics: StreamsTopics


@dataclass(slots=True)
class GroupCounters:
    """Figures for metrics: present state, and totals since start."""

    groups: int = 0
    members: int = 0
    offsets: int = 0
    rebalances_total: int = 0
    commits_total: int = 0
    skipped_records: int = 0


GROUP_ID_LENGTH_MAX = 8_000
"""Characters; 4 bytes each at most, so that the id fits the int16 length of a stored string."""
GroupShards = CoordinatorShards[GroupCommand, GroupRecord, GroupReply]


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
        topics: TopicIds | None = None,
        consumers: ConsumerGroupDependencies | None = None,
    ) -> None:
        """`shard_log(partition)` opens a partition's log; it raises NotCoordinator (or another
        HeadraceError, which becomes the reply) if this broker does not own the partition. `topics`:
        the existing topics; without it, offsets are kept by name alone. `consumers`: dependencies
        of groups of the new protocol; without it, their members get no partitions."""
        self.config = config or GroupConfig()
        self.shards: GroupShards = CoordinatorShards(
            OFFSETS_TOPIC,
            partition_count,
            shard_log,
            lambda: GroupMachine(self.config),
            (LoadedCommand(), TickCommand()),
            clock,
            tasks,
        )
        self._randomness = randomness
        self._topics = topics
        self._consumers = consumers
        self._view: TopicView = NoTopics() if consumers is None else consumers.topics
        self._commits_total = 0

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds the group (FindCoordinator)."""
        return self.shards.partition_for(group_id)

    async def join(self, command: JoinCommand) -> JoinReply:
        """JoinGroup: answered when all members have joined, or the rebalance timeout has
        expired."""
        if self._is_share_group(command.group_id):
            return command.refused(
                InconsistentProtocol(
                    f"group {command.group_id[:60]!r} is a share group: choose another id for a"
                    " consumer group"
                )
            )
        command.fresh_id = str(self._randomness.uuid())
        command.topics = self._view
        return cast("JoinReply", await self._submit_parkable(command))

    def _is_share_group(self, group_id: str) -> bool:
        return self._consumers is not None and self._consumers.is_share_group(group_id)

    async def has_group(self, group_id: str) -> bool:
        """Whether there is a consumer group of this id, including one with committed offsets only.

        Raises the error of a coordinator that cannot answer.
        """
        (classic,) = await self.describe_groups([group_id])
        (consumer,) = await self.describe_consumer_groups([group_id])
        errors = classic.error, consumer.error
        for error in errors:
            if error is not None and not isinstance(error, GroupUnknown):
                raise error
        return None in errors

    async def check_is_free_for_shares(self, group_id: str) -> None:
        """Raise GroupUnknown if the id belongs to a consumer group: an id has one kind of group.
        Also raises the error of a coordinator that cannot answer."""
        if await self.has_group(group_id):
            raise consumer_group_error(group_id)

    async def sync(self, command: SyncCommand) -> SyncReply:
        """SyncGroup: answered when the leader's assignment is durable."""
        command.topics = self._view
        reply = cast("SyncReply", await self._submit_parkable(command))
        if isinstance(reply.error, CoordinatorLoading):
            # As Kafka: a rebalance in progress is lost with the state, so the member has to join
            # again.
            reply.error = RebalanceInProgress(
                "the coordinator has reloaded its state: rejoin the group"
            )
        return reply

    async def heartbeat(self, command: HeartbeatCommand) -> HeartbeatReply:
        """Heartbeat. While the coordinator loads, the member gets no error."""
        reply = cast("HeartbeatReply", await self._submit(command))
        if isinstance(reply.error, CoordinatorLoading):
            reply.error = None
        return reply

    async def consumer_heartbeat(self, command: ConsumerHeartbeatCommand) -> ConsumerHeartbeatReply:
        """ConsumerGroupHeartbeat: answered when its changes are durable."""
        if command.member_epoch == JOIN_EPOCH and self._is_share_group(command.group_id):
            return command.refused(
                GroupUnknown(
                    f"group {command.group_id[:60]!r} is a share group, not a consumer group:"
                    " choose another id"
                )
            )
        command.fresh_id = str(self._randomness.uuid())
        if self._consumers is not None:
            command.topics = self._consumers.topics
            terms = self._consumers.terms(command.group_id)
            command.session_timeout_ms, command.heartbeat_interval_ms = terms
            if command.pattern:
                try:
                    await self._consumers.topics.prepare(command.pattern)
                except RegularExpressionInvalid as error:
                    command.pattern_error = error
        return cast("ConsumerHeartbeatReply", await self._submit(command))

    async def streams_heartbeat(self, command: StreamsHeartbeatCommand) -> StreamsHeartbeatReply:
        """StreamsGroupHeartbeat: answered when its changes are durable. Starts the creation of
        missing internal topics without waiting for it."""
        if command.member_epoch == JOIN_EPOCH and self._is_share_group(command.group_id):
            return command.refused(
                GroupUnknown(
                    f"group {command.group_id[:60]!r} is a share group, not a streams group:"
                    " choose another id"
                )
            )
        streams = None if self._consumers is None else self._consumers.streams
        command.topics = self._view
        if streams is not None:
            (
                command.session_timeout_ms,
                command.heartbeat_interval_ms,
                command.standby_count,
                command.initial_delay_ms,
            ) = streams.terms(command.group_id)
        reply = cast("StreamsHeartbeatReply", await self._submit(command))
        if reply.missing and streams is not None:
            problem = streams.internal_topics.problem(command.group_id)
            reply.statuses = with_problem(reply.statuses, problem)
            streams.internal_topics.create(command.group_id, reply.missing)
        return reply

    async def describe_streams_groups(self, group_ids: list[str]) -> list[StreamsGroupDescription]:
        """StreamsGroupDescribe, answered in the order of `group_ids`."""
        described: dict[str, StreamsGroupDescription] = {}
        for ids in self._by_partition(group_ids):
            command = DescribeStreamsGroupsCommand(ids)
            reply = cast("DescribeStreamsGroupsReply", await self._submit_to(ids[0], command))
            described.update((group.group_id, group) for group in reply.groups)
        return [described[group_id] for group_id in group_ids]

    async def leave(self, command: LeaveCommand) -> LeaveReply:
        """LeaveGroup."""
        return cast("LeaveReply", await self._submit(command))

    async def commit(self, command: CommitCommand) -> CommitReply:
        """OffsetCommit: answered when the offsets are durable. Deleted topics are refused."""
        self._commits_total += 1
        if self._topics is not None:
            command.topic_ids = self._topics.ids
        return cast("CommitReply", await self._submit_offsets(command))

    async def commit_in_transaction(self, command: TransactionalCommitCommand) -> CommitReply:
        """TxnOffsetCommit: answered when the offsets are durable; they take effect with the
        marker."""
        self._commits_total += 1
        if self._topics is not None:
            command.topic_ids = self._topics.ids
        return cast("CommitReply", await self._submit_offsets(command))

    async def write_marker(self, partition: int, marker: EndsTransaction) -> HeadraceError | None:
        """End a transaction in a partition of `__consumer_offsets`: answered when it is durable.

        The marker goes through the shard, so that no other append comes between the two.
        """
        try:
            shard = self.shards.shard(partition)
        except HeadraceError as error:
            return error
        return cast("DoneReply", await shard.submit(WriteMarkerCommand(marker))).error

    async def fetch_offsets(self, command: FetchOffsetsCommand) -> FetchOffsetsReply:
        """OffsetFetch. Offsets of deleted topics are omitted and dropped."""
        reply = cast("FetchOffsetsReply", await self._submit_offsets(command))
        topics = self._topics
        if topics is not None and any(
            o.topic_id is not None and o.topic_id != topics.ids.get(o.topic) for o in reply.offsets
        ):
            try:
                return await self._without_stale(topics, command, reply)
            except HeadraceError as error:
                return command.refused(CoordinatorUnavailable(f"cannot look up topics: {error}"))
        return reply

    async def _without_stale(
        self, topics: TopicIds, command: FetchOffsetsCommand, reply: FetchOffsetsReply
    ) -> FetchOffsetsReply:
        """`reply` without the offsets of deleted topics. The metadata store decides: this broker's
        cached view may be older than the commit, which another coordinator accepted."""
        for name in dict.fromkeys(o.topic for o in reply.offsets if o.topic_id is not None):
            await topics.refresh(name)
        kept: list[FetchedOffset] = []
        deleted: dict[tuple[str, UUID], None] = {}
        for offset in reply.offsets:
            if offset.topic_id is None or offset.topic_id == topics.ids.get(offset.topic):
                kept.append(offset)
                continue
            deleted[offset.topic, offset.topic_id] = None
            if command.partitions is not None:
                kept.append(
                    FetchedOffset(offset.topic, offset.partition, NO_OFFSET, NO_LEADER_EPOCH, "")
                )
        if deleted:
            await self._submit_to(command.group_id, ForgetTopicsCommand(list(deleted)))
        return FetchOffsetsReply(None, kept)

    async def delete_offsets(self, command: DeleteOffsetsCommand) -> DeleteOffsetsReply:
        """OffsetDelete."""
        command.topics = self._view
        return cast("DeleteOffsetsReply", await self._submit_offsets(command))

    async def delete_groups(self, group_ids: list[str]) -> list[GroupResult]:
        """DeleteGroups, answered in the order of `group_ids`."""
        results: dict[str, GroupResult] = {}
        for ids in self._by_partition(group_ids):
            command = DeleteGroupsCommand(ids)
            reply = cast("DeleteGroupsReply", await self._submit_to(ids[0], command))
            results.update((result.group_id, result) for result in reply.results)
        return [results[group_id] for group_id in group_ids]

    async def describe_groups(self, group_ids: list[str]) -> list[GroupDescription]:
        """DescribeGroups, answered in the order of `group_ids`."""
        described: dict[str, GroupDescription] = {}
        for ids in self._by_partition(group_ids):
            command = DescribeGroupsCommand(ids, self._view)
            reply = cast("DescribeGroupsReply", await self._submit_to(ids[0], command))
            described.update((group.group_id, group) for group in reply.groups)
        return [described[group_id] for group_id in group_ids]

    async def describe_consumer_groups(
        self, group_ids: list[str]
    ) -> list[ConsumerGroupDescription]:
        """ConsumerGroupDescribe, answered in the order of `group_ids`."""
        described: dict[str, ConsumerGroupDescription] = {}
        for ids in self._by_partition(group_ids):
            command = DescribeConsumerGroupsCommand(ids, self._view)
            reply = cast("DescribeConsumerGroupsReply", await self._submit_to(ids[0], command))
            described.update((group.group_id, group) for group in reply.groups)
        return [described[group_id] for group_id in group_ids]

    async def list_groups(self, command: ListGroupsCommand) -> ListGroupsReply:
        """ListGroups over the partitions that this broker owns, sorted by group id."""
        reply = ListGroupsReply()
        for shard in self.shards.owned():
            part = cast("ListGroupsReply", await shard.submit(command))
            reply.error = reply.error or part.error
            reply.groups += part.groups
        reply.groups.sort()
        return reply

    async def topic_deleted(self, name: str, topic_id: UUID) -> None:
        """Delete the offsets committed for this topic in every group of this broker.

        Raises the error of the first shard that failed. Correctness does not depend on it:
        remaining offsets are recognized as stale when they are read.
        """
        command = ForgetTopicsCommand([(name, topic_id)])
        for shard in self.shards.owned():
            reply = cast("DoneReply", await shard.submit(command))
            if reply.error is not None:
                raise reply.error

    def counters(self) -> GroupCounters:
        """Figures for metrics; visits each loaded group."""
        counters = GroupCounters(commits_total=self._commits_total)
        for machine in self.shards.machines():
            if isinstance(machine, GroupMachine):
                counters.groups += len(machine.groups)
                counters.rebalances_total += machine.rebalances_total
                counters.skipped_records += machine.skipped_count
                for group in machine.groups.values():
                    counters.members += len(group.members)
                    if group.consumer is not None:
                        counters.members += len(group.consumer.members)
                    if group.streams is not None:
                        counters.members += len(group.streams.members)
                    counters.offsets += len(group.offsets)
        return counters

    # --- routing -----------------------------------------------------------------------------

    async def _submit(
        self,
        command: HeartbeatCommand
        | LeaveCommand
        | ConsumerHeartbeatCommand
        | StreamsHeartbeatCommand,
    ) -> object:
        if not command.group_id:
            return command.refused(GroupIdInvalid("a group id must not be empty"))
        return await self._submit_to(command.group_id, command)

    async def _submit_offsets(
        self,
        command: CommitCommand
        | TransactionalCommitCommand
        | FetchOffsetsCommand
        | DeleteOffsetsCommand,
    ) -> object:
        """As in Kafka, accept the empty group id here: old simple consumers commit under it."""
        return await self._submit_to(command.group_id, command)

    async def _submit_to(self, group_id: str, command: GroupCommand) -> object:
        if len(group_id) > GROUP_ID_LENGTH_MAX:
            return command.refused(GroupIdInvalid(limit=GROUP_ID_LENGTH_MAX))
        return await self.shards.submit(group_id, command)

    async def _submit_parkable(self, command: JoinCommand | SyncCommand) -> object:
        if not 0 < len(command.group_id) <= GROUP_ID_LENGTH_MAX:
            return command.refused(GroupIdInvalid(limit=GROUP_ID_LENGTH_MAX))
        return await self.shards.submit_parkable(command.group_id, command)

    def _by_partition(self, group_ids: list[str]) -> list[list[str]]:
        """Distinct group ids, grouped by partition; ids that are too long are alone."""
        parts: dict[int, list[str]] = {}
        alone: list[list[str]] = []
        for group_id in dict.fromkeys(group_ids):
            if len(group_id) > GROUP_ID_LENGTH_MAX:
                alone.append([group_id])
            else:
                parts.setdefault(self.partition_for(group_id), []).append(group_id)
        return [*parts.values(), *alone]
