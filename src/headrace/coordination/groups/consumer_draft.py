"""One command's changes to one consumer group: working copies, and the resulting records.

Invariants: the group itself is not changed. A draft raises the group's epoch at most once, and
writes each record once. Durable records precede volatile ones.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from headrace.coordination.groups import assignors
from headrace.coordination.groups.consumer_group import (
    ConsumerGroup,
    ConsumerTouched,
    MemberDeadlines,
    TouchedMember,
)
from headrace.coordination.groups.consumer_records import (
    CURRENT_KEY,
    MEMBER_KEY,
    TARGET_KEY,
    ConsumerGroupStored,
    ConsumerMemberStored,
    ConsumerRecord,
    ConsumerRecordRemoved,
    CurrentStored,
    TargetEpochStored,
    TargetStored,
)
from headrace.coordination.groups.reconciliation import reconcile
from headrace.coordination.member_records import STABLE, UNREVOKED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from headrace.coordination.groups.config import GroupConfig
    from headrace.coordination.topic_view import TopicShape, TopicView

_HASH_SIZE: Final = 8


class ConsumerDraft:
    """See the module."""

    def __init__(
        self, group: ConsumerGroup, now_ms: int, config: GroupConfig, topics: TopicView | None
    ) -> None:
        """`topics` None: the topics are unknown, so nothing is assigned."""
        self.group = group
        self.now_ms = now_ms
        self.config = config
        self.members = {m: member.stored for m, member in group.members.items()}
        self.current = dict(group.current)
        self.epoch = group.epoch
        self.target = dict(group.target)
        self.target_epoch = group.target_epoch
        self._topics = topics
        self._hash = group.metadata_hash
        self._topics_version = group.topics_version
        self._assigned_ms = group.assigned_ms
        self._records: list[ConsumerRecord] = []
        self._touched: dict[str, TouchedMember] = {}
        self._dropped: dict[str, None] = {}

    # --- members -----------------------------------------------------------------------------

    def put_member(self, stored: ConsumerMemberStored) -> None:
        """Add a member, or change its subscription."""
        self.members[stored.member_id] = stored
        self._records.append(stored)

    def put_current(self, current: CurrentStored) -> None:
        """Change a member's current assignment."""
        if self.current.get(current.member_id) != current:
            self.current[current.member_id] = current
            self._records.append(current)

    def put_target(self, member_id: str, partitions: Mapping[UUID, tuple[int, ...]]) -> None:
        """Change a member's target assignment."""
        if self.target.get(member_id) != partitions:
            self.target[member_id] = partitions
            self._records.append(TargetStored(self.group.group_id, member_id, partitions))

    def drop_member(self, member_id: str) -> None:
        """Remove a member with its assignment. `bump` must follow, unless another member takes
        over."""
        group_id = self.group.group_id
        self._dropped[member_id] = None
        self._touched.pop(member_id, None)
        if self.current.pop(member_id, None) is not None:
            self._records.append(ConsumerRecordRemoved(CURRENT_KEY, group_id, member_id))
        if self.target.pop(member_id, None) is not None:
            self._records.append(ConsumerRecordRemoved(TARGET_KEY, group_id, member_id))
        del self.members[member_id]
        self._records.append(ConsumerRecordRemoved(MEMBER_KEY, group_id, member_id))

    def replace_static(self, old_id: str, new_id: str) -> None:
        """Transfer an instance's assignment to its new member id; the member itself must be put."""
        current, target = self.current.get(old_id), self.target.get(old_id)
        self.drop_member(old_id)
        if target is not None:
            self.put_target(new_id, target)
        if current is not None:
            self.put_current(
                current._replace(
                    member_id=new_id, epoch=0, previous_epoch=0, state=STABLE, revoking={}
                )
            )

    def current_of(self, member_id: str) -> CurrentStored:
        """A member's current assignment; empty at epoch 0 for a new member."""
        found = self.current.get(member_id)
        if found is not None:
            return found
        return CurrentStored(self.group.group_id, member_id, 0, 0, STABLE, {}, {})

    # --- epochs, target, reconciliation -------------------------------------------------------

    def bump(self) -> None:
        """Raise the group's epoch, once."""
        if self.epoch == self.group.epoch:
            self.epoch += 1

    def follow_topics(self) -> None:
        """Raise the epoch if the subscribed topics have changed since it was raised last."""
        topics = self._topics
        assert topics is not None
        if topics.version == self._topics_version and self.epoch == self.group.epoch:
            return
        self._topics_version = topics.version
        found = _hash_of(self._shapes(topics))
        if found != self._hash:
            self._hash = found
            self.bump()

    def names_of(self, stored: ConsumerMemberStored) -> list[str]:
        """The topics that a member subscribes to, including ones that do not exist."""
        if not stored.pattern or self._topics is None:
            return list(stored.topics)
        return sorted({*stored.topics, *self._topics.matching(stored.pattern)})

    def _shapes(self, topics: TopicView) -> dict[str, TopicShape]:
        found: dict[str, TopicShape] = {}
        for stored in self.members.values():
            for name in self.names_of(stored):
                if name not in found:
                    shape = topics.shape(name)
                    if shape is not None and shape.partition_count > 0:
                        found[name] = shape
        return found

    def assign(self) -> None:
        """Compute the target for the group's epoch, unless one was computed a moment ago."""
        if self.target_epoch >= self.epoch or self._topics is None or not self.members:
            return
        waited_ms = self.now_ms - self._assigned_ms
        is_urgent = len(self.members) == 1 or self.target_epoch == 0
        if not is_urgent and 0 <= waited_ms < self.config.assignment_interval_ms:
            return
        shapes = self._shapes(self._topics)
        subscribers = [
            assignors.Subscriber(
                member_id,
                stored.instance_id,
                stored.rack,
                frozenset(shapes[n].id for n in self.names_of(stored) if n in shapes),
            )
            for member_id, stored in self.members.items()
        ]
        by_id = {shape.id: shape for shape in shapes.values()}
        name = preferred_assignor(self.members)
        targets = assignors.assign(name, subscribers, by_id, self.target)
        for member_id, partitions in targets.items():
            self.put_target(member_id, partitions)
        self.target_epoch = self.epoch
        self._assigned_ms = self.now_ms

    def reconcile(
        self,
        member_id: str,
        reported: Mapping[UUID, frozenset[int]] | None,
        *,
        has_nothing: bool = False,
        is_complete: bool = False,
    ) -> CurrentStored:
        """Bring a member as close to its target as possible now: see `reconcile`."""
        owners, dropped = self.group.owners, self._dropped

        def is_free(topic_id: UUID, number: int) -> bool:
            owner = owners.get(topic_id, {}).get(number)
            return owner is None or owner == member_id or owner in dropped

        following = reconcile(
            self.current_of(member_id),
            self.target.get(member_id, {}),
            self.target_epoch,
            reported,
            is_free,
            has_nothing=has_nothing,
            is_complete=is_complete,
        )
        self.put_current(following)
        return following

    # --- result -------------------------------------------------------------------------------

    def touch(
        self,
        member_id: str,
        deadlines: MemberDeadlines,
        reported: Mapping[UUID, frozenset[int]] | None = None,
    ) -> None:
        """Set the volatile state of a member."""
        self._touched[member_id] = TouchedMember(member_id, deadlines, reported)

    def revoke_deadline_ms(self, member_id: str) -> int | None:
        """The deadline for a member's outstanding revocation; None: there is none."""
        current, before = self.current_of(member_id), self.group.current.get(member_id)
        if current.state != UNREVOKED:
            return None
        known = self.group.members.get(member_id)
        is_same = before is not None and before.revoking == current.revoking
        if is_same and known is not None and known.revoke_deadline_ms is not None:
            return known.revoke_deadline_ms
        return self.now_ms + self.members[member_id].rebalance_timeout_ms

    def finish(self) -> list[ConsumerRecord | ConsumerTouched]:
        """All records, durable ones first."""
        group, group_id = self.group, self.group.group_id
        records: list[ConsumerRecord | ConsumerTouched] = [*self._records]
        emptied_ms = -1 if self.members else self.now_ms
        if self.epoch != group.epoch or (self.members and group.emptied_ms >= 0):
            records.append(ConsumerGroupStored(group_id, self.epoch, self._hash, emptied_ms))
        if self.target_epoch != group.target_epoch:
            records.append(TargetEpochStored(group_id, self.target_epoch))
        changed_ms = self.now_ms if self.epoch != group.epoch else group.changed_ms
        records.append(
            ConsumerTouched(
                group_id,
                self._topics_version,
                self._assigned_ms,
                changed_ms,
                tuple(self._touched.values()),
            )
        )
        return records


def preferred_assignor(members: Mapping[str, ConsumerMemberStored]) -> str:
    """The assignor that most members request; the default wins ties and the absence of requests."""
    votes = dict.fromkeys(assignors.ASSIGNORS, 0)
    for stored in members.values():
        if stored.assignor in votes:
            votes[stored.assignor] += 1
    return max(votes, key=votes.__getitem__)


def _hash_of(shapes: Mapping[str, TopicShape]) -> int:
    """A hash of these topics. Do not change: stored."""
    if not shapes:
        return 0
    digest = hashlib.blake2b(digest_size=_HASH_SIZE)
    for name in sorted(shapes):
        shape = shapes[name]
        digest.update(shape.id.bytes + shape.partition_count.to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True)
