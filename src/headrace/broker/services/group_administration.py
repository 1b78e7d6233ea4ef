"""Lists, describes, moves and deletes groups, for every face.

Invariants: knows no protocol. The rules of groups are in `coordination/groups`; this module checks
requests against the existing topics and passes them to the coordinators. This broker answers for
the groups that it coordinates; for others the reply carries NotCoordinator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.security.tenant_shares import NOBODY
from headrace.broker.services.share_group_administration import SHARE, once_coordinated
from headrace.coordination.groups.commands import (
    CommitCommand,
    CommitReply,
    DeleteGroupsCommand,
    DeleteOffsetsCommand,
    DeleteOffsetsReply,
    DescribeGroupsCommand,
    FetchOffsetsCommand,
    FetchOffsetsReply,
    GroupDescription,
    GroupResult,
    ListGroupsCommand,
    ListGroupsReply,
    OffsetToCommit,
    PartitionResult,
)
from headrace.errors import GroupKindMismatch, GroupUnknown, HeadraceError, NotCoordinator
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.services.cluster import Cluster
    from headrace.broker.services.share_group_administration import ShareGroupAdministration
    from headrace.broker.topics.topics import Topics


def _lower(words: Sequence[str]) -> set[str]:
    return {word.lower() for word in words}


class GroupAdministration:
    """See the module."""

    def __init__(
        self,
        topics: Topics,
        coordinator: GroupCoordinator,
        shares: ShareGroupAdministration,
        cluster: Cluster,
    ) -> None:
        self._topics = topics
        self._cluster = cluster
        self.submit, self.submit_each = coordinator.submit, coordinator.submit_each
        """Commands of members: see `GroupCoordinator`."""
        self.shards = coordinator.shards
        self._coordinator = coordinator
        self._shares = shares

    def partition_for(self, group_id: str) -> int:
        """The partition of the internal topic that holds the group."""
        return self._coordinator.partition_for(group_id)

    async def ensure_offsets_topic(self) -> None:
        """Create the internal topic that holds all groups if it does not exist."""
        if OFFSETS_TOPIC not in self._topics.by_name:
            await self._topics.ensure_internal(OFFSETS_TOPIC)

    async def list_groups(
        self, states: Sequence[str] = (), types: Sequence[str] = ()
    ) -> ListGroupsReply:
        """The groups that this broker coordinates, sorted; without filters, all of them."""
        await self.ensure_offsets_topic()
        reply = await self._coordinator.list_groups(ListGroupsCommand([*states], [*types]))
        wanted_states, wanted_types = _lower(states), _lower(types)
        if not wanted_types or SHARE in wanted_types:
            reply.groups += [
                group
                for group in self._shares.listed()
                if not wanted_states or group.state.lower() in wanted_states
            ]
            reply.groups.sort()
        return reply

    async def describe(self, group_ids: Sequence[str]) -> Sequence[GroupDescription]:
        """The groups, in the order of `group_ids`."""
        await self.ensure_offsets_topic()
        return await self._coordinator.submit_each(DescribeGroupsCommand([*group_ids]))

    async def delete(self, group_ids: Sequence[str]) -> Sequence[GroupResult]:
        """Delete groups without members, with their offsets; in the order of `group_ids`."""
        await self.ensure_offsets_topic()
        outcomes: dict[str, GroupResult] = {}
        for group_id in dict.fromkeys(group_ids):
            if self._shares.has(group_id):
                error: HeadraceError | None = None
                try:
                    await self._shares.delete(group_id)
                except HeadraceError as refused:
                    error = refused
                outcomes[group_id] = GroupResult(group_id, error)
        others = [group_id for group_id in group_ids if group_id not in outcomes]
        results = await self._coordinator.submit_each(DeleteGroupsCommand(others))
        outcomes.update(zip(others, results, strict=True))
        return [outcomes[group_id] for group_id in group_ids]

    async def check_is_free_for_shares(self, group_id: str) -> None:
        """Raise GroupKindMismatch if the id is that of a consumer group.

        Only the group's coordinator knows; it is asked until the share group has begun.
        """
        if self._shares.has(group_id):
            return
        try:
            await once_coordinated(group_id, lambda: self._check_is_free(group_id))
        except GroupUnknown as error:
            raise GroupKindMismatch(str(error)) from error

    async def _check_is_free(self, group_id: str) -> None:
        """Raises GroupUnknown, BrokerUnreachable, and the coordinator's error."""
        try:
            await self._coordinator.check_is_free_for_shares(group_id)
        except NotCoordinator:
            shards = self._coordinator.shards
            if shards.topic in self._topics.by_name:  # otherwise no consumer group was ever stored
                coordinator = self._cluster.coordinator_of(shards, group_id)
                await self._shares.check_is_free(group_id, coordinator)

    # --- offsets -----------------------------------------------------------------------------

    async def offsets(
        self,
        group_id: str,
        partitions: Sequence[tuple[str, int]] | None = None,
        *,
        require_stable: bool = False,
        member: tuple[str, int] | None = None,
    ) -> FetchOffsetsReply:
        """The group's committed offsets, for these partitions or (None) all.

        `member`: id and epoch of the requester, if it is a member of the new protocol.
        """
        await self.ensure_offsets_topic()
        wanted = None if partitions is None else [*partitions]
        command = FetchOffsetsCommand(group_id, wanted, require_stable=require_stable)
        if member is not None:
            command.member_id, command.member_epoch = member
        return await self._coordinator.submit(command)

    async def commit(self, command: CommitCommand, user: str = NOBODY) -> CommitReply:
        """Commit offsets of existing partitions; results in the order of the command.

        An administrator commits with generation -1 and no member id, which an empty group accepts.
        A new group counts for `user`.
        """
        await self.ensure_offsets_topic()
        results: dict[int, PartitionResult] = {}
        accepted: dict[int, OffsetToCommit] = {}
        for place, offset in enumerate(command.offsets):
            try:
                topic = self._topics.readable.get(offset.topic)
                topic.check_partition(offset.partition)
            except HeadraceError as error:
                results[place] = PartitionResult(offset.topic, offset.partition, error)
                continue
            accepted[place] = offset._replace(topic_id=topic.id)
        command.offsets = list(accepted.values())
        reply = await self._coordinator.submit(command, user)
        results.update(zip(accepted, reply.results, strict=True))
        return CommitReply([results[place] for place in sorted(results)])

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]]
    ) -> DeleteOffsetsReply:
        """Delete the group's committed offsets of these partitions."""
        await self.ensure_offsets_topic()
        return await self._coordinator.submit(DeleteOffsetsCommand(group_id, [*partitions]))
