"""One command's changes to one group: working copies, and the resulting records.

Invariants: the group itself is not changed. A draft raises the group's epoch at most once, and
writes each record once. Durable records precede volatile ones. What the target is, and how a member
is brought closer to it, is the kind's (`groups/consumer_draft.py`, `streams/draft.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic

from headrace.coordination.kit.member_epochs import LEAVE_STATIC_EPOCH
from headrace.coordination.member_groups.encodings import STABLE
from headrace.coordination.member_groups.group import (
    MemberDeadlines,
    MemberGroup,
    MembersTouched,
    TouchedMember,
)
from headrace.coordination.member_groups.records import (
    CurrentStored,
    Held,
    MemberRecordRemoved,
    Stored,
    Tasks,
    TopologyStored,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.kit.topic_view import TopicView
    from headrace.coordination.streams.topology import Topology

_EPOCH_MASK: Final = 0x7FFF_FFFF


class MemberDraft(Generic[Stored, Tasks, Held]):
    """See the module."""

    def __init__(
        self,
        group: MemberGroup[Stored, Tasks, Held],
        now_ms: int,
        config: GroupConfig,
        topics: TopicView | None,
    ) -> None:
        """`topics` None: the topics are unknown, so nothing is assigned."""
        self.group = group
        self.kind = group.kind
        self.now_ms = now_ms
        self.config = config
        self.topics = topics
        self.members = {m: member.stored for m, member in group.members.items()}
        self.current = dict(group.current)
        self.target = dict(group.target)
        self.target_epoch = group.target_epoch or self.kind.first_epoch
        self.topology = group.topology
        self.stored = group.stored
        self.volatile = group.volatile
        self.dropped: dict[str, None] = {}
        self._is_bumped = False
        self._records: list[Any] = []
        self._touched: dict[str, TouchedMember] = {}

    @property
    def epoch(self) -> int:
        """The group's epoch."""
        return (self.group.epoch or self.kind.first_epoch) + self._is_bumped

    def bump(self) -> None:
        """Raise the group's epoch, once."""
        self._is_bumped = True

    @property
    def is_bumped(self) -> bool:
        """Whether the epoch is raised."""
        return self._is_bumped

    @property
    def changed_ms(self) -> int:
        """When the epoch was last raised."""
        return self.now_ms if self._is_bumped else self.volatile.changed_ms

    # --- members -----------------------------------------------------------------------------

    def put_member(self, stored: Stored) -> None:
        """Add a member, or change its properties."""
        self.members[stored.member_id] = stored
        self._records.append(stored)

    def put_current(self, current: CurrentStored[Held]) -> None:
        """Change a member's current assignment."""
        before = self.current.get(current.member_id)
        if before != current:
            self.current[current.member_id] = current
            self._records.append(current)
            if before is None or before.assigned != current.assigned:
                self._endpoint_changed(current.member_id)

    def put_topology(self, topology: Topology) -> None:
        """Change the application's topology."""
        self.topology = topology
        self.volatile = self.volatile._replace(configured=None)
        self._records.append(TopologyStored(self.group.group_id, topology))
        self.bump()

    def _endpoint_changed(self, member_id: str) -> None:
        stored = self.members.get(member_id)
        if stored is not None and stored.has_endpoint:
            epoch = self.group.volatile.endpoint_epoch + 1
            self.volatile = self.volatile._replace(endpoint_epoch=epoch & _EPOCH_MASK)

    def _put_target(self, member_id: str, tasks: Tasks) -> None:
        if self.target.get(member_id) != tasks:
            self.target[member_id] = tasks
            self._records.append(self.kind.target(self.group.group_id, member_id, tasks))

    def drop_member(self, member_id: str) -> None:
        """Remove a member with its assignment. `bump` must follow, unless another member takes
        over."""
        self._endpoint_changed(member_id)
        self.dropped[member_id] = None
        self._touched.pop(member_id, None)
        states: tuple[dict[str, Any], ...] = self.current, self.target, self.members
        for key_type, members in zip(self.kind.member_keys, states, strict=True):
            if members.pop(member_id, None) is not None:
                removed = MemberRecordRemoved(key_type, self.group.group_id, member_id)
                self._records.append(removed)

    def replace_static(self, old_id: str, new: Stored) -> None:
        """Transfer an instance's assignment to its new member."""
        current, target = self.current.get(old_id), self.target.get(old_id)
        self.drop_member(old_id)
        self.put_member(new)
        if target is not None:
            self._put_target(new.member_id, target)
        if current is not None:
            self.put_current(
                current._replace(
                    member_id=new.member_id,
                    epoch=0,
                    previous_epoch=0,
                    state=STABLE,
                    revoking=self.kind.nothing_held,
                )
            )

    def send_away(self, member_id: str, session_ms: int) -> None:
        """A static member leaves temporarily: it keeps its assignment except what it must give
        up."""
        current = self.current_of(member_id)
        away = current._replace(
            epoch=LEAVE_STATIC_EPOCH,
            previous_epoch=current.epoch,
            state=STABLE,
            revoking=self.kind.nothing_held,
        )
        self.put_current(away)
        self.touch(member_id, MemberDeadlines(session_ms))

    def current_of(self, member_id: str) -> CurrentStored[Held]:
        """A member's current assignment; empty at epoch 0 for a new member."""
        found = self.current.get(member_id)
        if found is not None:
            return found
        nothing = self.kind.nothing_held
        return self.kind.current(self.group.group_id, member_id, 0, 0, STABLE, nothing, nothing)

    # --- target ------------------------------------------------------------------------------

    def is_assignment_due(self) -> bool:
        """Whether to compute a target for the group's epoch now. A group of several members waits
        a moment after the last time."""
        if self.target_epoch >= self.epoch or self.topics is None or not self.members:
            return False
        waited_ms = self.now_ms - self.volatile.assigned_ms
        is_urgent = len(self.members) == 1 or self.target_epoch == 0
        return is_urgent or not 0 <= waited_ms < self.config.assignment_interval_ms

    def put_targets(self, targets: Mapping[str, Tasks]) -> None:
        """Change every member's target assignment to the one for the group's epoch."""
        for member_id in self.members:
            self._put_target(member_id, targets.get(member_id, self.kind.no_tasks))
        self.target_epoch = self.epoch
        self.volatile = self.volatile._replace(assigned_ms=self.now_ms)

    # --- result ------------------------------------------------------------------------------

    def touch(
        self, member_id: str, deadlines: MemberDeadlines, reported: Tasks | None = None
    ) -> None:
        """Set the volatile state of a member."""
        self._touched[member_id] = TouchedMember(member_id, deadlines, reported)

    def revoke_deadline_ms(self, member_id: str, *, is_awaited: bool, is_same: bool) -> int | None:
        """The deadline for what a member must do, if it `is_awaited`; the one it has if what it
        must do `is_same`."""
        if not is_awaited:
            return None
        known = self.group.members.get(member_id)
        if is_same and known is not None and known.revoke_deadline_ms is not None:
            return known.revoke_deadline_ms
        return self.now_ms + max(self.members[member_id].rebalance_timeout_ms, 0)

    def finish(self) -> list[Any]:
        """All records, durable ones first."""
        group, group_id = self.group, self.group.group_id
        records = [*self._records]
        emptied_ms = group.emptied_ms if not group.members and not self.members else self.now_ms
        stored = self.stored._replace(
            epoch=self.epoch, emptied_ms=-1 if self.members else emptied_ms
        )
        if stored != group.stored:
            records.append(stored)
        if self.target_epoch != group.target_epoch:
            is_timed = self.kind.topology_key is not None
            assigned_ms = self.now_ms if is_timed else -1
            records.append(self.kind.target_epoch(group_id, self.target_epoch, assigned_ms))
        volatile = self.volatile._replace(changed_ms=self.changed_ms)
        if not self.members:
            volatile = volatile._replace(shutdown_by=None)
        records.append(MembersTouched(group_id, volatile, tuple(self._touched.values())))
        return records
