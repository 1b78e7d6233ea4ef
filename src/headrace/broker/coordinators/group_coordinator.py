"""One broker's group coordinator: finds the shard of a group and passes commands to it.

Invariants: knows which partition of `__consumer_offsets` a group belongs to (Kafka's hash) and
validates group ids; the rules of groups are in `coordination/groups`, appending and waiting in
`coordinator_shard`. A face submits a command of `coordination.groups` and gets the reply that it
names; `_prepare` sets the fields that the host knows. Errors are part of the replies, nothing is
raised.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from headrace.broker.coordinators.coordinator_shards import CoordinatorShards
from headrace.broker.coordinators.kept_groups import (
    MemberRequest,
    Source,
    count_members,
    kept_before,
    said,
)
from headrace.broker.security.tenant_shares import NOBODY
from headrace.coordination.groups.commands import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    CommitCommand,
    DeleteOffsetsCommand,
    DescribeGroupsCommand,
    FetchedOffset,
    FetchOffsetsCommand,
    FetchOffsetsReply,
    GroupsReply,
    JoinCommand,
    ListGroupsCommand,
    ListGroupsReply,
    OfGroup,
    SyncCommand,
    TransactionalCommitCommand,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.consumer_commands import (
    ConsumerHeartbeatCommand,
    DescribeConsumerGroupsCommand,
)
from headrace.coordination.groups.group import GroupRecord
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.groups.host_commands import (
    ForgetTopicsCommand,
    GroupCommand,
    GroupReply,
    WriteMarkerCommand,
)
from headrace.coordination.kit.host_commands import LoadedCommand, TickCommand
from headrace.coordination.kit.machine import Command, Reply_co
from headrace.coordination.kit.member_epochs import JOIN_EPOCH
from headrace.coordination.kit.topic_view import NoTopics, TopicView
from headrace.coordination.streams.commands import (
    StreamsHeartbeatCommand,
    StreamsHeartbeatReply,
)
from headrace.coordination.streams.internal_topics import with_problem
from headrace.errors import (
    CoordinatorUnavailable,
    GroupIdInvalid,
    GroupUnknown,
    HeadraceError,
    InconsistentProtocol,
    RegularExpressionInvalid,
)
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from uuid import UUID

    from headrace.broker.coordinators.group_config import (
        ConsumerGroupSettings,
        StreamsGroupSettings,
    )
    from headrace.broker.coordinators.kept_groups import KeptGroups
    from headrace.broker.coordinators.shard_log import ShardLog
    from headrace.broker.coordinators.streams_topics import StreamsTopics
    from headrace.coordination.groups.state_records import OffsetStored
    from headrace.coordination.kit.machine import EndsTransaction
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


class CommandOfGroup(Command[Reply_co], Protocol[Reply_co]):
    """A command on one group."""

    group_id: str


class CommandOfGroups(Command[GroupsReply[OfGroup]], Protocol[OfGroup]):
    """A command on several groups, which may belong to different shards."""

    group_ids: list[str]


Reply = TypeVar("Reply")
GROUP_ID_LENGTH_MAX = 8_000
"""Characters; 4 bytes each at most, so that the id fits the int16 length of a stored string."""
_CREATING = (
    JoinCommand,
    ConsumerHeartbeatCommand,
    StreamsHeartbeatCommand,
    CommitCommand,
    TransactionalCommitCommand,
)
"""Commands that create a group that does not exist."""
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
        check_new: Callable[[str], None] | None = None,
        kept: KeptGroups | None = None,
    ) -> None:
        """`shard_log(partition)` opens a partition's log; it raises NotCoordinator (or another
        HeadraceError, which becomes the reply) if this broker does not own the partition. `topics`:
        the existing topics; without it, offsets are kept by name alone. `consumers`: dependencies
        of groups of the new protocol; without it, their members get no partitions. `check_new`
        raises the error that refuses a new group. `kept` bounds what is kept; None: nothing does.
        """
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
        self._streams = None if consumers is None else consumers.streams
        self._view: TopicView = NoTopics() if consumers is None else consumers.topics
        self._commits_total = 0
        self._check_new = check_new
        self._kept = kept
        if kept is not None:
            members = partial(count_members, self.shards.machines)
            kept.add(Source(self._kept_ids, members))

    def _kept_ids(self) -> Iterator[Collection[str]]:
        for machine in self.shards.machines():
            if isinstance(machine, GroupMachine):
                yield machine.groups

    def _is_there(self, group_id: str) -> bool | None:
        """Whether the group exists; None: its partition is not loaded."""
        machine = self.shards.machine_of(group_id)
        return group_id in machine.groups if isinstance(machine, GroupMachine) else None

    async def _check_group(self, group_id: str, user: str) -> None:
        """Raise PolicyViolation for a new group if there is no room for it."""
        if self._kept is not None:
            is_there = self._is_there(group_id)
            await self._kept.check_group(group_id, user, is_there=is_there)

    async def _check_member(self, command: MemberRequest, user: str) -> None:
        """Raise GroupFull if there is no room for what a member adds. It counts for who has made
        the group."""

        def before() -> int | None:
            machine = self.shards.machine_of(command.group_id)
            if not isinstance(machine, GroupMachine):
                return None
            group = machine.groups.get(command.group_id)
            return 0 if group is None else kept_before(group, command)

        if self._kept is not None:
            await self._kept.check_member(command.group_id, user, said(command), before)

    def partition_for(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that holds the group (FindCoordinator)."""
        return self.shards.partition_for(group_id)

    # --- commands ----------------------------------------------------------------------------

    async def submit(self, command: CommandOfGroup[Reply], user: str = NOBODY) -> Reply:
        """The reply to a command on one group, once what it decides is durable.

        A new group counts for `user`. A heartbeat of a streams group also starts the creation of
        missing internal topics; fetched offsets of deleted topics are omitted and dropped.
        """
        group_id = command.group_id
        if self._kept is None or not isinstance(command, _CREATING):
            return await self._submit(command, user)
        with self._kept.making(group_id, is_there=self._is_there(group_id)):
            return await self._submit(command, user)

    async def _submit(self, command: CommandOfGroup[Reply], user: str) -> Reply:
        try:
            await self._prepare(command, user)
            self._check_id(command.group_id, command)
            if self._check_new is not None and isinstance(command, _CREATING):
                machine = self.shards.machine_of(command.group_id)
                if isinstance(machine, GroupMachine) and command.group_id not in machine.groups:
                    self._check_new(command.group_id)
        except HeadraceError as error:
            return command.refused(error)
        reply = await self.shards.submit(command.group_id, command)
        if isinstance(reply, StreamsHeartbeatReply):
            self._create_missing(command.group_id, reply)
        elif isinstance(reply, FetchOffsetsReply) and isinstance(command, FetchOffsetsCommand):
            await self._drop_stale(command, reply)
        return reply

    async def submit_each(self, command: CommandOfGroups[OfGroup]) -> list[OfGroup]:
        """The results of a command on several groups, in the order of its `group_ids`."""
        await self._prepare(command)
        results: dict[str, OfGroup] = {}
        for ids in self._by_partition(command.group_ids):
            part = copy(command)
            part.group_ids = ids
            if len(ids[0]) > GROUP_ID_LENGTH_MAX:
                reply = part.refused(GroupIdInvalid(limit=GROUP_ID_LENGTH_MAX))
            else:
                reply = await self.shards.submit(ids[0], part)
            results.update(zip(ids, reply.groups, strict=True))
        return [results[group_id] for group_id in command.group_ids]

    async def _prepare(self, command: object, user: str = NOBODY) -> None:
        """Set the fields that the host knows. Raises the error that refuses the command."""
        match command:
            case CommitCommand() | TransactionalCommitCommand():
                self._commits_total += 1
                await self._check_group(command.group_id, user)
                if self._topics is not None:
                    command.topic_ids = self._topics.ids
            case JoinCommand():
                self._check_is_no_share_group(command, InconsistentProtocol)
                await self._check_group(command.group_id, user)
                await self._check_member(command, user)
                command.fresh_id = str(self._randomness.uuid())
                command.topics = self._view
            case ConsumerHeartbeatCommand():
                if command.member_epoch == JOIN_EPOCH:
                    await self._check_group(command.group_id, user)
                await self._check_member(command, user)
                await self._prepare_consumer_heartbeat(command)
            case StreamsHeartbeatCommand():
                if command.member_epoch == JOIN_EPOCH:
                    self._check_is_no_share_group(command, GroupUnknown)
                    await self._check_group(command.group_id, user)
                await self._check_member(command, user)
                command.topics = self._view
                if self._streams is not None:
                    (
                        command.session_timeout_ms,
                        command.heartbeat_interval_ms,
                        command.standby_count,
                        command.initial_delay_ms,
                    ) = self._streams.terms(command.group_id)
            case (
                SyncCommand()
                | DeleteOffsetsCommand()
                | DescribeGroupsCommand()
                | DescribeConsumerGroupsCommand()
            ):
                command.topics = self._view
                if isinstance(command, SyncCommand):
                    await self._check_member(command, user)
            case _:
                pass

    async def _prepare_consumer_heartbeat(self, command: ConsumerHeartbeatCommand) -> None:
        if command.member_epoch == JOIN_EPOCH:
            self._check_is_no_share_group(command, GroupUnknown)
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

    def _check_is_no_share_group(
        self,
        command: JoinCommand | ConsumerHeartbeatCommand | StreamsHeartbeatCommand,
        error: type[InconsistentProtocol | GroupUnknown],
    ) -> None:
        if self._consumers is not None and self._consumers.is_share_group(command.group_id):
            kind = "streams" if isinstance(command, StreamsHeartbeatCommand) else "consumer"
            raise error(
                f"group {command.group_id[:60]!r} is a share group, not a {kind} group: choose"
                " another id"
            )

    @staticmethod
    def _check_id(group_id: str, command: object) -> None:
        """Raise GroupIdInvalid. As in Kafka, offsets may have the empty group id: old simple
        consumers commit under it."""
        if len(group_id) > GROUP_ID_LENGTH_MAX:
            raise GroupIdInvalid(limit=GROUP_ID_LENGTH_MAX)
        if not group_id and not isinstance(
            command,
            CommitCommand | TransactionalCommitCommand | FetchOffsetsCommand | DeleteOffsetsCommand,
        ):
            raise GroupIdInvalid("a group id must not be empty")

    def load(self) -> None:
        """Load the groups of this broker, which are otherwise once a client asks for one."""
        for shard in self.shards.owned():
            shard.load()

    def group_ids(self) -> Iterator[str]:
        """Of the groups that are loaded here."""
        for machine in self.shards.machines():
            if isinstance(machine, GroupMachine):
                yield from machine.groups

    def _create_missing(self, group_id: str, reply: StreamsHeartbeatReply) -> None:
        """Start to create the internal topics that a streams group lacks."""
        if reply.missing and self._streams is not None:
            topics = self._streams.internal_topics
            reply.statuses = with_problem(reply.statuses, topics.problem(group_id))
            topics.create(group_id, reply.missing)

    async def _drop_stale(self, command: FetchOffsetsCommand, reply: FetchOffsetsReply) -> None:
        """Remove the offsets of deleted topics from `reply` and from the group. The metadata store
        decides: this broker's cached view may be older than the commit, which another coordinator
        accepted."""
        topics = self._topics
        if topics is None or not any(_is_stale(one, topics) for one in reply.offsets):
            return
        try:
            for name in dict.fromkeys(o.topic for o in reply.offsets if o.topic_id is not None):
                await topics.refresh(name)
        except HeadraceError as error:
            reply.error = CoordinatorUnavailable(f"cannot look up topics: {error}")
            reply.offsets = []
            return
        kept: list[FetchedOffset] = []
        deleted: dict[tuple[str, UUID], None] = {}
        for offset in reply.offsets:
            topic, number, topic_id = offset.topic, offset.partition, offset.topic_id
            if topic_id is None or not _is_stale(offset, topics):
                kept.append(offset)
                continue
            deleted[topic, topic_id] = None
            if command.partitions is not None:
                kept.append(FetchedOffset(topic, number, NO_OFFSET, NO_LEADER_EPOCH, ""))
        if deleted:
            await self.shards.submit(command.group_id, ForgetTopicsCommand([*deleted]))
        reply.offsets = kept

    # --- all groups of this broker -----------------------------------------------------------

    async def has_group(self, group_id: str) -> bool:
        """Whether there is a consumer group of this id, including one with committed offsets only.

        Raises the error of a coordinator that cannot answer.
        """
        (classic,) = await self.submit_each(DescribeGroupsCommand([group_id]))
        (consumer,) = await self.submit_each(DescribeConsumerGroupsCommand([group_id]))
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

    async def write_marker(self, partition: int, marker: EndsTransaction) -> HeadraceError | None:
        """End a transaction in a partition of `__consumer_offsets`: answered when it is durable.

        The marker goes through the shard, so that no other append comes between the two.
        """
        try:
            shard = self.shards.shard(partition)
        except HeadraceError as error:
            return error
        return (await shard.submit(WriteMarkerCommand(marker))).error

    async def list_groups(self, command: ListGroupsCommand) -> ListGroupsReply:
        """ListGroups over the partitions that this broker owns, sorted by group id."""
        reply = ListGroupsReply()
        for shard in self.shards.owned():
            part = await shard.submit(command)
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
            reply = await shard.submit(command)
            if reply.error is not None:
                raise reply.error

    def loaded_offsets(
        self, is_wanted: Callable[[str], bool] = lambda _group_id: True
    ) -> Iterator[tuple[str, OffsetStored]]:
        """(group id, committed offset), of the groups that are loaded here and wanted: it loads
        none. The caller must not suspend meanwhile."""
        for machine in self.shards.machines():
            if isinstance(machine, GroupMachine):
                for group_id, group in machine.groups.items():
                    if is_wanted(group_id):
                        for offset in group.offsets.values():
                            yield group_id, offset

    def counters(self) -> GroupCounters:
        """Figures for metrics; visits each loaded group."""
        counters = GroupCounters(commits_total=self._commits_total)
        for machine in self.shards.machines():
            if isinstance(machine, GroupMachine):
                counters.groups += len(machine.groups)
                counters.rebalances_total += machine.state.rebalances_total
                counters.skipped_records += machine.skipped_count
                for group in machine.groups.values():
                    counters.members += len(group.members)
                    if group.managed is not None:
                        counters.members += len(group.managed.members)
                    counters.offsets += len(group.offsets)
        return counters

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


def _is_stale(offset: FetchedOffset, topics: TopicIds) -> bool:
    """Whether the offset belongs to a topic that is deleted, as far as is known."""
    return offset.topic_id is not None and offset.topic_id != topics.ids.get(offset.topic)
