"""The in-memory state of a consumer group of the new protocol (KIP-848).

Invariants: durable state changes through durable records only, in any order that a compacted log
may have; rules never change a group, they work on a `ConsumerDraft` (`consumer_draft.py`). A
partition belongs to one member at a time: `owners` maps it to that member, and is derived from the
current assignments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from headrace.coordination.groups.consumer_records import (
    CURRENT_KEY,
    GROUP_KEY,
    MEMBER_KEY,
    TARGET_EPOCH_KEY,
    TARGET_KEY,
    ConsumerGroupStored,
    ConsumerMemberStored,
    ConsumerRecord,
    ConsumerRecordRemoved,
    CurrentStored,
    TargetEpochStored,
    TargetStored,
)
from headrace.coordination.member_epochs import LEAVE_STATIC_EPOCH
from headrace.coordination.member_records import STABLE, UNREVOKED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from headrace.coordination.groups.config import GroupConfig


STATE_EMPTY: Final = "Empty"
STATE_ASSIGNING: Final = "Assigning"
STATE_RECONCILING: Final = "Reconciling"
STATE_STABLE: Final = "Stable"


@dataclass(slots=True)
class ConsumerMember:
    """One member. Everything outside `stored` is not logged."""

    stored: ConsumerMemberStored
    deadline_ms: int = 0
    """When its session expires."""
    revoke_deadline_ms: int | None = None
    """When it must have revoked partitions; None: nothing to revoke."""
    reported: Mapping[UUID, frozenset[int]] | None = None
    """The partitions that it last reported as owned; None: not reported to this coordinator."""
    sync_deadline_ms: int | None = None
    """For a classic member: when it must have joined again or synced; None: no need to."""


@dataclass(slots=True)
class ConsumerGroup:
    """One group."""

    group_id: str
    epoch: int = 0
    metadata_hash: int = 0
    emptied_ms: int = -1
    target_epoch: int = 0
    target: dict[str, Mapping[UUID, tuple[int, ...]]] = field(default_factory=dict)
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    current: dict[str, CurrentStored] = field(default_factory=dict)
    static: dict[str, str] = field(default_factory=dict)
    owners: dict[UUID, dict[int, str]] = field(default_factory=dict)
    topics_version: int = -1
    """The version of the topics that `metadata_hash` was last compared with."""
    assigned_ms: int = -1
    """When the target was last computed."""
    changed_ms: int = -1
    """When the epoch was last raised."""

    def state(self) -> str:
        """Kafka's name of the group's state."""
        if not self.members:
            return STATE_EMPTY
        if self.epoch > self.target_epoch:
            return STATE_ASSIGNING
        if all(self.is_settled(member_id) for member_id in self.members):
            return STATE_STABLE
        return STATE_RECONCILING

    def is_settled(self, member_id: str) -> bool:
        """Whether the member has reached its target, or is temporarily away."""
        current = self.current.get(member_id)
        if current is None:
            return False
        return current.epoch == LEAVE_STATIC_EPOCH or (
            current.epoch == self.target_epoch and current.state == STABLE
        )

    def next_deadline_ms(self) -> int | None:
        """The first time at which the group changes without a command."""
        deadline_ms: int | None = None
        for member in self.members.values():
            for one in (member.deadline_ms, member.revoke_deadline_ms, member.sync_deadline_ms):
                if one is not None and (deadline_ms is None or one < deadline_ms):
                    deadline_ms = one
        return deadline_ms

    def native_count(self) -> int:
        """Members that speak the new protocol themselves."""
        return sum(member.stored.classic is None for member in self.members.values())

    def state_records(self) -> Iterator[ConsumerRecord]:
        """Durable records that by themselves rebuild the group, each taken when requested."""
        group_id = self.group_id
        for member_id in list(self.members):
            if (member := self.members.get(member_id)) is not None:
                yield member.stored
        yield ConsumerGroupStored(group_id, self.epoch, self.metadata_hash, self.emptied_ms)
        for member_id in list(self.target):
            if (partitions := self.target.get(member_id)) is not None:
                yield TargetStored(group_id, member_id, partitions)
        yield TargetEpochStored(group_id, self.target_epoch)
        for member_id in list(self.current):
            if (current := self.current.get(member_id)) is not None:
                yield current

    def removals(self) -> list[ConsumerRecord]:
        """The records that remove the whole group."""
        group_id = self.group_id
        return [
            *(ConsumerRecordRemoved(CURRENT_KEY, group_id, m) for m in self.current),
            *(ConsumerRecordRemoved(TARGET_KEY, group_id, m) for m in self.target),
            *(ConsumerRecordRemoved(MEMBER_KEY, group_id, m) for m in self.members),
            ConsumerRecordRemoved(TARGET_EPOCH_KEY, group_id),
            ConsumerRecordRemoved(GROUP_KEY, group_id),
        ]

    # --- state changes -----------------------------------------------------------------------

    def apply(self, record: ConsumerRecord) -> None:
        """Apply one durable record to the state."""
        match record:
            case ConsumerGroupStored():
                self.epoch, self.metadata_hash = record.epoch, record.metadata_hash
                self.emptied_ms = record.emptied_ms
            case ConsumerMemberStored():
                self._put_member(record)
            case TargetEpochStored():
                self.target_epoch = record.epoch
            case TargetStored(_, member_id, partitions):
                self.target[member_id] = partitions
            case CurrentStored():
                self._disown(record.member_id)
                self._own(record)
            case ConsumerRecordRemoved(key_type, _, member_id):
                self._remove(key_type, member_id)
            case _:
                assert_never(record)

    def _put_member(self, record: ConsumerMemberStored) -> None:
        known = self.members.get(record.member_id)
        if known is None:
            self.members[record.member_id] = ConsumerMember(record)
        else:
            known.stored = record
        if record.instance_id is not None:
            self.static[record.instance_id] = record.member_id

    def _own(self, current: CurrentStored) -> None:
        self.current[current.member_id] = current
        for owned in (current.assigned, current.revoking):
            for topic_id, numbers in owned.items():
                owners = self.owners.setdefault(topic_id, {})
                for number in numbers:
                    owners[number] = current.member_id

    def _disown(self, member_id: str) -> None:
        current = self.current.pop(member_id, None)
        if current is None:
            return
        for owned in (current.assigned, current.revoking):
            for topic_id, numbers in owned.items():
                owners = self.owners.get(topic_id, {})
                for number in numbers:
                    if owners.get(number) == member_id:
                        del owners[number]
                if not owners:
                    self.owners.pop(topic_id, None)

    def _remove(self, key_type: int, member_id: str | None) -> None:
        if key_type == TARGET_EPOCH_KEY:
            self.target_epoch = 0
        elif key_type == GROUP_KEY:
            self.epoch = self.metadata_hash = 0
        elif member_id is None:
            return
        elif key_type == TARGET_KEY:
            self.target.pop(member_id, None)
        elif key_type == CURRENT_KEY:
            self._disown(member_id)
        else:
            member = self.members.pop(member_id, None)
            instance_id = None if member is None else member.stored.instance_id
            if instance_id is not None and self.static.get(instance_id) == member_id:
                del self.static[instance_id]

    def touch(self, record: ConsumerTouched) -> None:
        """Apply volatile state."""
        self.topics_version = record.topics_version
        self.assigned_ms, self.changed_ms = record.assigned_ms, record.changed_ms
        for member_id, deadlines, reported in record.members:
            member = self.members.get(member_id)
            if member is not None:
                member.deadline_ms, member.revoke_deadline_ms, member.sync_deadline_ms = deadlines
                member.reported = reported


class MemberDeadlines(NamedTuple):
    """When a member's session, its revocation and its sync time out."""

    session_ms: int
    revoke_ms: int | None = None
    sync_ms: int | None = None


class TouchedMember(NamedTuple):
    """The volatile state of a member."""

    member_id: str
    deadlines: MemberDeadlines
    reported: Mapping[UUID, frozenset[int]] | None


class ConsumerTouched(NamedTuple):
    """Volatile: the state of a group that is not logged. Last among a decision's records."""

    group_id: str
    topics_version: int
    assigned_ms: int
    changed_ms: int
    members: tuple[TouchedMember, ...]


def loaded(group: ConsumerGroup, now_ms: int, config: GroupConfig) -> ConsumerTouched:
    """Grant every stored member one full session, and one for its revocation."""
    members: list[TouchedMember] = []
    for member_id, member in group.members.items():
        classic = member.stored.classic
        session_ms = (
            config.consumer_session_timeout_ms if classic is None else classic.session_timeout_ms
        )
        current = group.current.get(member_id)
        revoke_ms: int | None = None
        if current is not None and current.state == UNREVOKED and classic is None:
            revoke_ms = now_ms + member.stored.rebalance_timeout_ms
        deadlines = MemberDeadlines(now_ms + session_ms, revoke_ms)
        members.append(TouchedMember(member_id, deadlines, None))
    return ConsumerTouched(
        group.group_id, group.topics_version, group.assigned_ms, now_ms, tuple(members)
    )
