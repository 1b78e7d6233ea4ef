"""One command's changes to one streams group: working copies, and the resulting records.

Invariants: the group itself is not changed. A draft raises the group's epoch at most once, and
writes each record once. Durable records precede volatile ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.member_records import STABLE, UNREVOKED
from headrace.coordination.streams import assignor
from headrace.coordination.streams.internal_topics import ConfiguredTopology, configure
from headrace.coordination.streams.reconciliation import ACTIVE, reconcile
from headrace.coordination.streams.records import (
    CURRENT_KEY,
    MEMBER_KEY,
    NO_TOPOLOGY_EPOCH,
    TARGET_KEY,
    StreamsCurrentStored,
    StreamsGroupStored,
    StreamsMemberStored,
    StreamsRecord,
    StreamsRecordRemoved,
    StreamsTargetEpochStored,
    StreamsTargetStored,
    StreamsTopologyStored,
)
from headrace.coordination.streams.streams_group import (
    StreamsGroup,
    StreamsTouched,
    TouchedStreamsMember,
)
from headrace.coordination.streams.tasks import NO_TASKS, NOTHING_HELD, StreamTasks, each

if TYPE_CHECKING:
    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.streams.topology import Topology
    from headrace.coordination.topic_view import TopicView

STANDBY_COUNT: Final = "num.standby.replicas"
"""Kafka's name in the stored settings of an assignment."""
EMPTY_TARGET_EPOCH: Final = 1
"""A new group begins with an empty target of this epoch. Its members are at this epoch until tasks
can be assigned: a client that is still at epoch 0 after a response does not know that it has
joined."""
_ANY: Final = 3
"""Not a role: the task in any role."""


class StreamsDraft:
    """See the module."""

    def __init__(
        self, group: StreamsGroup, now_ms: int, config: GroupConfig, topics: TopicView | None
    ) -> None:
        """`topics` None: the topics are unknown, so nothing is assigned."""
        self.group = group
        self.now_ms = now_ms
        self.config = config
        self.members = {m: member.stored for m, member in group.members.items()}
        self.current = dict(group.current)
        self.target = dict(group.target)
        self.target_epoch = group.target_epoch or EMPTY_TARGET_EPOCH
        self.topology = group.topology
        self.volatile = group.volatile
        self._stored = group.stored
        self._topics = topics
        self._is_bumped = False
        self._records: list[StreamsRecord] = []
        self._touched: dict[str, TouchedStreamsMember] = {}

    @property
    def epoch(self) -> int:
        """The group's epoch."""
        return (self.group.epoch or EMPTY_TARGET_EPOCH) + self._is_bumped

    @property
    def configured(self) -> ConfiguredTopology | None:
        """The topology configured with the present topics; None: not evaluated yet."""
        return self.volatile.configured

    # --- members -----------------------------------------------------------------------------

    def put_member(self, stored: StreamsMemberStored) -> None:
        """Add a member, or change its properties."""
        self.members[stored.member_id] = stored
        self._records.append(stored)

    def gather(self, delay_ms: int) -> None:
        """Delay the first assignment until other members have had time to join."""
        if not self.group.members:
            self.volatile = self.volatile._replace(gather_until_ms=self.now_ms + delay_ms)

    def put_current(self, current: StreamsCurrentStored) -> None:
        """Change a member's current assignment."""
        before = self.current.get(current.member_id)
        if before != current:
            self.current[current.member_id] = current
            self._records.append(current)
            if before is None or before.assigned != current.assigned:
                self._endpoint_changed(current.member_id)

    def _endpoint_changed(self, member_id: str) -> None:
        stored = self.members.get(member_id)
        if stored is not None and stored.endpoint is not None:
            epoch = self.group.volatile.endpoint_epoch + 1
            self.volatile = self.volatile._replace(endpoint_epoch=epoch & 0x7FFF_FFFF)

    def drop_member(self, member_id: str) -> None:
        """Remove a member with its assignment. `bump` must follow, unless another member takes
        over."""
        group_id = self.group.group_id
        self._endpoint_changed(member_id)
        self._touched.pop(member_id, None)
        if self.current.pop(member_id, None) is not None:
            self._records.append(StreamsRecordRemoved(CURRENT_KEY, group_id, member_id))
        if self.target.pop(member_id, None) is not None:
            self._records.append(StreamsRecordRemoved(TARGET_KEY, group_id, member_id))
        del self.members[member_id]
        self._records.append(StreamsRecordRemoved(MEMBER_KEY, group_id, member_id))

    def replace_static(self, old_id: str, new: StreamsMemberStored) -> None:
        """Transfer an instance's assignment to its new member."""
        current, target = self.current.get(old_id), self.target.get(old_id)
        self.drop_member(old_id)
        self.members[new.member_id] = new
        self._records.append(new)
        if target is not None:
            self._put_target(new.member_id, target)
        if current is not None:
            self.put_current(
                current._replace(
                    member_id=new.member_id,
                    epoch=0,
                    previous_epoch=0,
                    state=STABLE,
                    revoking=NOTHING_HELD,
                )
            )

    def current_of(self, member_id: str) -> StreamsCurrentStored:
        """A member's current assignment; empty at epoch 0 for a new member."""
        found = self.current.get(member_id)
        if found is not None:
            return found
        group_id = self.group.group_id
        return StreamsCurrentStored(group_id, member_id, 0, 0, STABLE, NOTHING_HELD, NOTHING_HELD)

    def ask_shutdown(self, member_id: str) -> None:
        """Ask all members to shut down."""
        self.volatile = self.volatile._replace(shutdown_by=member_id)

    # --- topology, epochs, target, reconciliation ---------------------------------------------

    def bump(self) -> None:
        """Raise the group's epoch, once."""
        self._is_bumped = True

    def put_topology(self, topology: Topology) -> None:
        """Change the application's topology."""
        self.topology = topology
        self.volatile = self.volatile._replace(configured=None)
        self._records.append(StreamsTopologyStored(self.group.group_id, topology))
        self.bump()

    def configure(self, standby_count: int) -> None:
        """Evaluate the topics, and raise the epoch if they or the settings have changed.

        Raises StreamsTopologyInvalid.
        """
        topics, topology, before = self._topics, self.topology, self.volatile
        assert topics is not None
        assert topology is not None
        configured = before.configured
        if configured is None or before.topics_version != topics.version:
            configured = configure(topology, topics)
            self.volatile = before._replace(configured=configured, topics_version=topics.version)
        validated = NO_TOPOLOGY_EPOCH if configured.status is not None else topology.epoch
        stored = self._stored._replace(
            metadata_hash=configured.metadata_hash,
            validated_epoch=validated,
            configs=((STANDBY_COUNT, str(standby_count)),),
        )
        if stored != self._stored:
            self._stored = stored
            self.bump()

    def assign(self) -> None:
        """Compute the target for the group's epoch, if the topics exist and it is time."""
        configured, topology = self.configured, self.topology
        if self.target_epoch >= self.epoch or not self.members or topology is None:
            return
        if configured is None or configured.status is not None:
            return  # members keep their tasks until the topics are valid
        if self.now_ms < self.volatile.gather_until_ms:
            return
        waited_ms = self.now_ms - self.volatile.assigned_ms
        if len(self.members) > 1 and 0 <= waited_ms < self.config.assignment_interval_ms:
            return
        shapes = {
            one.id: assignor.SubtopologyShape(
                configured.task_counts[one.id], bool(one.changelog_topics)
            )
            for one in topology.subtopologies
        }
        members = [
            assignor.StreamsAssignee(member_id, stored.process_id)
            for member_id, stored in self.members.items()
            if stored.topology_epoch == topology.epoch
        ]
        standby_count = int(dict(self._stored.configs).get(STANDBY_COUNT, "0"))
        targets = assignor.assign_tasks(members, shapes, self.target, standby_count)
        for member_id in self.members:
            self._put_target(member_id, targets.get(member_id, NO_TASKS))
        self.target_epoch = self.epoch
        self.volatile = self.volatile._replace(assigned_ms=self.now_ms)

    def _put_target(self, member_id: str, tasks: StreamTasks) -> None:
        if self.target.get(member_id) != tasks:
            self.target[member_id] = tasks
            self._records.append(StreamsTargetStored(self.group.group_id, member_id, tasks))

    def reconcile(
        self, member_id: str, reported: StreamTasks | None, *, has_nothing: bool
    ) -> StreamsCurrentStored:
        """Bring a member as close to its target as possible now: see `reconcile`."""
        in_the_way: set[tuple[int, str, int]] | None = None

        def is_free(role: int, subtopology_id: str, number: int) -> bool:
            nonlocal in_the_way
            if in_the_way is None:
                in_the_way = self._held_by_others(member_id)
            if (_ANY, subtopology_id, number) in in_the_way:
                return False
            return role != ACTIVE or (ACTIVE, subtopology_id, number) not in in_the_way

        following = reconcile(
            self.current_of(member_id),
            self.target.get(member_id, NO_TASKS),
            self.target_epoch,
            reported,
            is_free,
            has_nothing=has_nothing,
        )
        self.put_current(following)
        return following

    def _held_by_others(self, member_id: str) -> set[tuple[int, str, int]]:
        """Active tasks of other members, and (as _ANY) all tasks of other members in the same
        process.

        The tasks of one process share a folder: only one of its threads can hold a task's state.
        """
        process_id = self.members[member_id].process_id
        found: set[tuple[int, str, int]] = set()
        for other_id, current in self.current.items():
            if other_id == member_id:
                continue
            is_near = self.members[other_id].process_id == process_id
            for held in (current.assigned, current.revoking):
                found.update((ACTIVE, *task) for task in each(held.active))
                if is_near:
                    for tasks in held.plain().roles():
                        found.update((_ANY, *task) for task in each(tasks))
        return found

    # --- result -------------------------------------------------------------------------------

    def touch(self, member_id: str, session_ms: int, reported: StreamTasks | None = None) -> None:
        """Set the volatile state of a member."""
        revoke_ms = self._revoke_deadline_ms(member_id)
        self._touched[member_id] = TouchedStreamsMember(member_id, session_ms, revoke_ms, reported)

    def _revoke_deadline_ms(self, member_id: str) -> int | None:
        """The deadline for revoking the tasks a member must give up, or confirming those it was
        assigned."""
        current, before = self.current_of(member_id), self.group.current.get(member_id)
        is_awaited = current.state == UNREVOKED or 0 < current.epoch < self.target_epoch
        if not is_awaited:
            return None
        known = self.group.members.get(member_id)
        if known is not None and before == current and known.revoke_deadline_ms is not None:
            return known.revoke_deadline_ms
        return self.now_ms + max(self.members[member_id].rebalance_timeout_ms, 0)

    def finish(self) -> list[StreamsRecord | StreamsTouched]:
        """All records, durable ones first."""
        group, group_id = self.group, self.group.group_id
        records: list[StreamsRecord | StreamsTouched] = [*self._records]
        emptied_ms = group.emptied_ms if not group.members and not self.members else self.now_ms
        stored: StreamsGroupStored = self._stored._replace(
            epoch=self.epoch, emptied_ms=-1 if self.members else emptied_ms
        )
        if stored != group.stored:
            records.append(stored)
        if self.target_epoch != group.target_epoch:
            records.append(StreamsTargetEpochStored(group_id, self.target_epoch, self.now_ms))
        volatile = self.volatile
        if self._is_bumped:
            volatile = volatile._replace(changed_ms=self.now_ms)
        if not self.members:
            volatile = volatile._replace(shutdown_by=None)
        records.append(StreamsTouched(group_id, volatile, tuple(self._touched.values())))
        return records


def away(current: StreamsCurrentStored, epoch: int) -> StreamsCurrentStored:
    """A static member that is temporarily away: it keeps its tasks except those to revoke."""
    return current._replace(
        epoch=epoch,
        previous_epoch=current.epoch,
        state=STABLE,
        revoking=NOTHING_HELD,
    )
