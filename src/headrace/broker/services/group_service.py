"""Groups of both kinds, consumer groups and share groups, through any broker.

Invariants: knows no protocol. The coordinator of a group, which owns its partition of the internal
topic, carries out a call (`OwnerCalls`); where the call arrives only the cluster is asked who that
is. The rules are those of `group_administration` and `share_group_administration`. What is before a
share group's start in a partition is finished, so its start is shown as its offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.group_listing import GroupListings
from headrace.broker.services.owner_calls import checked
from headrace.broker.services.share_group_administration import EMPTY, SHARE, STABLE
from headrace.coordination.groups.commands import NO_GENERATION, CommitCommand, OffsetToCommit
from headrace.coordination.groups.consumer_protocol import read_assignment
from headrace.coordination.groups.conversion import CONSUMER
from headrace.coordination.streams.commands import DescribeStreamsGroupsCommand
from headrace.errors import (
    GroupKindMismatch,
    GroupNotEmpty,
    HeadraceError,
    NotCoordinator,
    NotOwner,
    PeerVersionDiffers,
)
from headrace.log.visibility import READ_UNCOMMITTED
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from uuid import UUID

    from headrace.broker.services.cluster import Cluster
    from headrace.broker.services.group_administration import GroupAdministration
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.services.reads import Reads
    from headrace.broker.services.share_group_administration import ShareGroupAdministration
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.groups.commands import GroupDescription

Partition = tuple[str, int]
STREAMS: Final = "streams"


class GroupMember(NamedTuple):
    """A member of a group."""

    member_id: str
    client_id: str
    client_host: str
    instance_id: str | None
    topics: list[str] | None
    """What a share group's member subscribes to; None for a consumer group's."""
    assigned: Sequence[tuple[str, list[int]]] = ()
    """(topic, partitions), as far as it is known: a streams group assigns tasks."""
    tasks: Sequence[tuple[str, str, list[int]]] = ()
    """(role, subtopology, partitions) of a streams group's member."""


class GroupState(NamedTuple):
    """A group and its members."""

    group_type: str
    state: str
    members: list[GroupMember]


class GroupOffset(NamedTuple):
    """A group's offset in one partition."""

    topic: str
    partition: int
    offset: int
    """-1: it has none."""
    lag: int
    """Records after it; -1: unknown."""
    error: HeadraceError | None


class GroupService:
    """See the module. Each call raises the coordinator's error; BrokerUnreachable if there is no
    coordinator now."""

    def __init__(
        self,
        calls: OwnerCalls,
        topics: Topics,
        groups: GroupAdministration,
        shares: ShareGroupAdministration,
        reads: Reads,
        cluster: Cluster,
    ) -> None:
        self._calls = calls
        self._topics = topics
        self._groups = groups
        self._shares = shares
        self._reads = reads
        self._listings = GroupListings(groups, shares, cluster.brokers, cluster.broker_id)
        self.list = self._listings.list
        """The groups of all brokers: see `GroupListings.list`."""
        for name, operation in (
            ("groups.describe", self._describe_here),
            ("groups.tasks", self._tasks_here),
            ("groups.offsets", self._offsets_here),
            ("groups.move", self._move_here),
            ("groups.commit", self._commit_here),
            ("groups.delete", self._delete_here),
        ):
            calls.offer(name, _at_coordinator(operation))

    async def _ask(self, name: str, group_id: str, *asked: Any) -> Any:
        await self._groups.ensure_offsets_topic()
        topic = self._topics.get(OFFSETS_TOPIC)
        number = self._groups.partition_for(group_id)
        return await self._calls.ask_partition(name, topic, number, (group_id, *asked))

    # --- describe and delete -----------------------------------------------------------------

    async def describe(self, group_id: str) -> GroupState:
        """The group. Raises GroupUnknown."""
        try:
            answer = await self._ask("groups.describe", group_id, True)
        except PeerVersionDiffers:  # by an older broker, which knows no assignments
            answer = await self._ask("groups.describe", group_id)
        group_type, state, rows = answer
        members = [GroupMember(*one) for one in rows]
        if group_type == STREAMS and members:
            try:
                tasks = dict(await self._ask("groups.tasks", group_id))
            except PeerVersionDiffers:  # by an older broker
                tasks = {}
            members = [one._replace(tasks=tasks.get(one.member_id, ())) for one in members]
        return GroupState(group_type, state, members)

    async def _tasks_here(self, asked: Any) -> Any:
        (group_id,) = checked(asked, str)
        (group,) = await self._groups.submit_each(DescribeStreamsGroupsCommand([group_id]))
        return [
            (one.stored.member_id, [
                (role, subtopology, [*numbers])
                for role, tasks in one.assigned._asdict().items()
                for subtopology, numbers in tasks.items()
            ])
            for one in group.members
        ]  # fmt: skip

    async def _describe_here(self, asked: Any) -> Any:
        is_older = isinstance(asked, list | tuple) and len(asked) == 1
        group_id = checked(asked, str, *(() if is_older else (bool,)))[0]
        state = await self._state_here(group_id)
        if is_older:  # that broker takes no further values of a member
            return state.group_type, state.state, [one[:5] for one in state.members]
        return state

    async def _state_here(self, group_id: str) -> GroupState:
        if not self._shares.has(group_id):
            found = await self._described(group_id)
            members = [
                GroupMember(one.member_id, one.client_id, one.client_host, one.group_instance_id,
                            None, _consumed(found.protocol_type, one.assignment, group_id))
                for one in found.members
            ]  # fmt: skip
            return GroupState(found.group_type, found.state, members)
        members = [
            GroupMember(one.member_id, one.client_id, one.client_host, None, [*one.subscribed],
                        self._named(one.assigned))
            for one in self._shares.members(group_id).members.values()
        ]  # fmt: skip
        return GroupState(SHARE, STABLE if members else EMPTY, members)

    def _named(self, assigned: Iterable[tuple[UUID, int]]) -> list[tuple[str, list[int]]]:
        """By topic; without topics that were deleted."""
        found: dict[str, list[int]] = {}
        for topic_id, number in assigned:
            topic = self._topics.readable.find_by_id(topic_id)
            if topic is not None:
                found.setdefault(topic.name, []).append(number)
        return sorted(found.items())

    async def _described(self, group_id: str) -> GroupDescription:
        (described,) = await self._groups.describe([group_id])
        if described.error is not None:
            raise described.error
        return described

    async def delete(self, group_id: str, *, is_dry_run: bool = False) -> None:
        """Delete a group without members, and its offsets. Raises GroupUnknown, GroupNotEmpty."""
        await self._ask("groups.delete", group_id, is_dry_run)

    async def _delete_here(self, asked: Any) -> None:
        group_id, is_dry_run = checked(asked, str, bool)
        if is_dry_run and self._shares.has(group_id):
            await self._shares.delete(group_id, is_dry_run=True)
        elif is_dry_run:
            await self._require_empty(group_id)
        else:
            (result,) = await self._groups.delete([group_id])
            if result.error is not None:
                raise result.error

    async def _require_empty(self, group_id: str) -> None:
        if (await self._described(group_id)).members:
            raise GroupNotEmpty(f"group {group_id!r} has members: stop its consumers first")

    # --- offsets -----------------------------------------------------------------------------

    async def offsets(self, group_id: str) -> list[GroupOffset]:
        """Where the group stands in each partition. Raises GroupUnknown."""
        found = [GroupOffset(*one) for one in await self._ask("groups.offsets", group_id)]
        by_topic: dict[str, list[int]] = {}
        for one in found:
            if one.lag < 0 and one.offset >= 0:
                by_topic.setdefault(one.topic, []).append(one.partition)
        lags: dict[Partition, tuple[int, int]] = {}
        for name, numbers in by_topic.items():
            topic = self._topics.readable.find(name)
            if topic is None:
                continue
            known = [number for number in numbers if number < len(topic.partitions)]
            for number, read in (await self._reads.ends(topic, known, READ_UNCOMMITTED)).items():
                if not isinstance(read, HeadraceError):
                    lags[name, number] = read.start_offset, read.end_offset
        return [_with_lag(one, lags.get((one.topic, one.partition))) for one in found]

    async def committed(self, group_id: str) -> dict[Partition, int] | None:
        """The offsets of a consumer group, None of a share group: loads no partition to know its
        lag. Raises GroupUnknown."""
        if self._shares.has(group_id):
            return None
        found = await self._ask("groups.offsets", group_id)
        return {(name, number): offset for name, number, offset, *_ in found}

    async def _offsets_here(self, asked: Any) -> list[GroupOffset]:
        """Lags of consumer groups are left to the caller."""
        (group_id,) = checked(asked, str)
        if self._shares.has(group_id):
            return [
                GroupOffset(one.topic, one.partition, one.start_offset, one.lag, one.error)
                for one in await self._shares.positions(group_id)
            ]
        reply = await self._groups.offsets(group_id)
        if reply.error is not None:
            raise reply.error
        found = [
            GroupOffset(one.topic, one.partition, one.offset, -1, None)
            for one in reply.offsets
            if one.offset >= 0
        ]
        if not found:
            await self._described(group_id)
        return sorted(found, key=lambda one: one[:2])

    async def move(
        self, group_id: str, offsets: Mapping[Partition, int], *, is_dry_run: bool = False
    ) -> dict[Partition, HeadraceError | None]:
        """Set the offsets of a group without members; the outcome for each partition.

        Creates a share group that does not exist. Raises GroupUnknown, GroupNotEmpty.
        """
        places = [[*place, offset] for place, offset in offsets.items()]
        errors = await self._ask("groups.move", group_id, places, is_dry_run)
        return dict(zip(offsets, errors, strict=True))

    async def _move_here(self, asked: Any) -> list[HeadraceError | None]:
        group_id, places, is_dry_run = checked(asked, str, list, bool)
        wanted: dict[Partition, int] = {}
        for one in places:
            topic, number, offset = checked(one, str, int, int)
            wanted[topic, number] = offset
        outcomes: Mapping[Partition, HeadraceError | None] = {}
        if self._shares.has(group_id):
            outcomes = await self._shares.move(group_id, wanted, is_dry_run=is_dry_run)
        else:
            await self._require_empty(group_id)
            if not is_dry_run:
                outcomes = await self._commit(group_id, wanted)
        return [outcomes.get(place) for place in wanted]

    async def commit(self, group_id: str, topic: str, partition: int, offset: int) -> None:
        """Commit an offset of a client that is no member; creates a group that does not exist.

        Raises MemberUnknown if the group has members, GroupKindMismatch if it is a share group.
        """
        await self._ask("groups.commit", group_id, topic, partition, offset)

    async def _commit_here(self, asked: Any) -> None:
        group_id, topic, partition, offset = checked(asked, str, str, int, int)
        if self._shares.has(group_id):
            raise GroupKindMismatch(
                f"{group_id!r} is a share group, which has no offsets to commit: use another group"
            )
        place = topic, partition
        error = (await self._commit(group_id, {place: offset}))[place]
        if error is not None:
            raise error

    async def _commit(
        self, group_id: str, wanted: Mapping[Partition, int]
    ) -> dict[Partition, HeadraceError | None]:
        offsets = [OffsetToCommit(*place, offset) for place, offset in wanted.items()]
        command = CommitCommand(group_id, NO_GENERATION, "", None, offsets)
        reply = await self._groups.commit(command)
        return {(one.topic, one.partition): one.error for one in reply.results}


def _consumed(protocol_type: str, assignment: bytes, group_id: str) -> list[tuple[str, list[int]]]:
    """The partitions of a consumer's assignment; those of other protocols mean something else."""
    if protocol_type != CONSUMER:
        return []
    found = read_assignment(assignment, group_id)
    return sorted((name, sorted(numbers)) for name, numbers in found.items())


def _with_lag(one: GroupOffset, log: tuple[int, int] | None) -> GroupOffset:
    if log is None:
        return one
    start, end = log
    return one._replace(lag=max(end - max(one.offset, start), 0))


def _at_coordinator(
    operation: Callable[[Any], Awaitable[Any]],
) -> Callable[[Topic, int, Any], Awaitable[Any]]:
    """An operation of the broker that owns the group's partition."""

    async def carry_out(_topic: Topic, _number: int, asked: Any) -> Any:
        try:
            return await operation(asked)
        except NotCoordinator as error:  # the partition moves: the caller asks the next owner
            raise NotOwner(str(error)) from error

    return carry_out
