"""Members of share groups, and their partition assignments (KIP-932).

Invariants: members and assignments are not stored: a new coordinator does not know a member, which
joins again with its next heartbeat. What a group has consumed is in the journals of its partitions,
so nothing is lost with its members. No I/O and no clock: time and the existing topics are passed in
with each call.

How it works: the partitions of subscribed topics are assigned round robin. With more members than
partitions, several members share one; with fewer, each member gets several.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.kit.member_epochs import JOIN_EPOCH, LEAVE_EPOCH
from headrace.errors import GroupFull, MemberEpochFenced, MemberUnknown, RequestInvalid
from headrace.records.identifiers import TOPIC_NAME_SIZE_MAX
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from headrace.coordination.kit.topic_view import TopicShape

ASSIGNOR_NAME: Final = "simple"
GROUP_SIZE_MAX: Final = 1_000
"""group.share.max.size, whose default in Kafka is 200."""
MEMBER_ID_LENGTH_MAX: Final = 255
TOPICS_MAX: Final = 1_000
"""Per member's subscription."""
SUBSCRIPTIONS_MAX: Final = 50_000
"""Topics of all members of a group: a change of any of them takes some 10 ms then."""
RACK_LENGTH_MAX: Final = 255
MEMBER_BYTES: Final = 1_000
"""Of a member, beside its topics and partitions."""
NAME_BYTES: Final = 60
"""Of the name of a topic, beside its characters."""
ASSIGNED_BYTES: Final = 100
"""Of an assigned partition."""

Assignment = tuple[tuple["UUID", int], ...]
"""(topic id, partition), sorted."""


class ShareHeartbeat(NamedTuple):
    """A member's heartbeat; None: unchanged."""

    group_id: str
    member_id: str
    member_epoch: int
    subscribed: Sequence[str] | None
    rack: str | None
    client_id: str
    client_host: str


@dataclass(slots=True)
class ShareMember:
    """One member of a group."""

    member_id: str
    client_id: str
    client_host: str
    rack: str | None = None
    subscribed: tuple[str, ...] = ()
    epoch: int = 0
    assigned: Assignment = ()
    reported: Assignment | None = None
    """The assignment that was last returned to it."""
    deadline_ms: int = 0


@dataclass(slots=True)
class ShareMembers:
    """The members of one group."""

    group_id: str
    epoch: int = 0
    """Raised with each change of members, subscriptions or topics."""
    members: dict[str, ShareMember] = field(default_factory=dict)
    shapes: dict[str, TopicShape] = field(default_factory=dict)
    """The subscribed topics at the last assignment."""
    wanted: tuple[str, ...] = ()
    """The same, and those that do not exist: all that members subscribe to, sorted."""
    subscriptions: int = 0
    """The topics of each member, together."""
    size_bytes: int = 0
    """What is kept of its members, about."""


class ShareHeartbeatReply(NamedTuple):
    """The member's epoch, and its assignment if that has changed."""

    member_epoch: int
    assignment: Assignment | None


class ShareMembership:
    """The share groups of one coordinator."""

    def __init__(self) -> None:
        self.groups: dict[str, ShareMembers] = {}

    def heartbeat(
        self,
        beat: ShareHeartbeat,
        topics: Mapping[str, TopicShape],
        session_ms: int,
        now_ms: int,
        members_max: int = GROUP_SIZE_MAX,
    ) -> ShareHeartbeatReply:
        """Process one heartbeat: join, stay or leave.

        Raises RequestInvalid, MemberUnknown, MemberEpochFenced, GroupFull.
        """
        check_lengths(beat)
        group = self.groups.get(beat.group_id)
        if beat.member_epoch == LEAVE_EPOCH:
            if group is None or group.members.pop(beat.member_id, None) is None:
                raise _unknown(beat)
            self._assign(group, topics)
            self._forget_if_empty(group)
            return ShareHeartbeatReply(LEAVE_EPOCH, None)
        if beat.member_epoch < LEAVE_EPOCH:
            raise RequestInvalid(
                f"member epoch {beat.member_epoch} is not valid: 0 joins, -1 leaves"
            )
        if group is None:
            if beat.member_epoch != JOIN_EPOCH:
                raise _unknown(beat)
            group = ShareMembers(beat.group_id)
        subscribed = None if beat.subscribed is None else tuple(sorted(set(beat.subscribed)))
        _check_room(group, beat.member_id, subscribed or ())
        member = self._member(group, beat, members_max)
        self.groups[beat.group_id] = group
        member.deadline_ms = now_ms + session_ms
        if beat.rack is not None:
            member.rack = beat.rack
        is_changed = subscribed is not None and subscribed != member.subscribed
        if subscribed is not None:
            member.subscribed = subscribed
        if is_changed or not member.epoch or self._shapes(group, topics) != group.shapes:
            self._assign(group, topics)
        # A member that sends a full heartbeat may have missed its last response.
        is_reported = (
            member.reported == member.assigned
            and beat.member_epoch == member.epoch
            and beat.subscribed is None
        )
        member.epoch, member.reported = group.epoch, member.assigned
        return ShareHeartbeatReply(member.epoch, None if is_reported else member.assigned)

    @staticmethod
    def _member(group: ShareMembers, beat: ShareHeartbeat, members_max: int) -> ShareMember:
        member = group.members.get(beat.member_id)
        if beat.member_epoch == JOIN_EPOCH:
            if not beat.subscribed and member is None:
                raise RequestInvalid("a member that joins must send its subscription")
            if member is None:
                if len(group.members) >= members_max:
                    raise GroupFull(
                        f"group {beat.group_id!r} has {len(group.members)} members, and the limit"
                        f" is {members_max}: stop one (headrace.share.subscription=exclusive"
                        " allows one)"
                    )
                member = ShareMember(beat.member_id, beat.client_id, beat.client_host)
                group.members[beat.member_id] = member
            return member
        if member is None:
            raise _unknown(beat)
        if beat.member_epoch > member.epoch:
            raise MemberEpochFenced(
                f"member {beat.member_id!r} sent epoch {beat.member_epoch} but is at "
                f"{member.epoch}: join again"
            )
        return member

    def expire(self, topics: Mapping[str, TopicShape], now_ms: int) -> list[tuple[str, str]]:
        """Remove members whose session has expired: (group id, member id) of each."""
        expired: list[tuple[str, str]] = []
        for group in list(self.groups.values()):
            late = [m.member_id for m in group.members.values() if m.deadline_ms <= now_ms]
            for member_id in late:
                del group.members[member_id]
                expired.append((group.group_id, member_id))
            if late:
                self._assign(group, topics)
                self._forget_if_empty(group)
        return expired

    def _forget_if_empty(self, group: ShareMembers) -> None:
        """The partitions know what the group has consumed."""
        if not group.members:
            del self.groups[group.group_id]

    @staticmethod
    def _shapes(group: ShareMembers, topics: Mapping[str, TopicShape]) -> dict[str, TopicShape]:
        return {name: topics[name] for name in group.wanted if name in topics}

    def _assign(self, group: ShareMembers, topics: Mapping[str, TopicShape]) -> None:
        group.epoch += 1
        members = [group.members[member_id] for member_id in sorted(group.members)]
        group.subscriptions = sum(len(member.subscribed) for member in members)
        group.wanted = tuple(sorted({name for member in members for name in member.subscribed}))
        group.shapes = self._shapes(group, topics)
        subscribers: dict[str, list[str]] = {name: [] for name in group.shapes}
        for member in members:
            for name in member.subscribed:
                if name in subscribers:
                    subscribers[name].append(member.member_id)
        assigned: dict[str, set[tuple[UUID, int]]] = {name: set() for name in group.members}
        for name, shape in group.shapes.items():
            some = subscribers[name]
            for turn in range(max(len(some), shape.partition_count)):
                partition = (shape.id, turn % shape.partition_count)
                assigned[some[turn % len(some)]].add(partition)
        for member in members:
            member.assigned = tuple(sorted(assigned[member.member_id]))
        group.size_bytes = sum(map(kept_of, members))


def kept_of(member: ShareMember) -> int:
    """Bytes that are kept of a member, about."""
    return (
        MEMBER_BYTES
        + sum(map(len, member.subscribed))
        + NAME_BYTES * len(member.subscribed)
        + ASSIGNED_BYTES * len(member.assigned)
    )


def said(beat: ShareHeartbeat, members: int, topics: Mapping[str, TopicShape]) -> int:
    """Bytes that a heartbeat may add, if its group has so many members."""
    names = {*(beat.subscribed or ())}
    partitions = sum(topics[name].partition_count for name in names if name in topics)
    texts = sum(map(len, names)) + NAME_BYTES * len(names)
    return MEMBER_BYTES + texts + ASSIGNED_BYTES * partitions // (members + 1)


def check_lengths(beat: ShareHeartbeat) -> None:
    """Raises RequestInvalid if a heartbeat says more than may be kept."""
    if not 0 < len(beat.member_id) <= MEMBER_ID_LENGTH_MAX:
        raise RequestInvalid("a share group member must have an id of 1 to 255 characters")
    names = beat.subscribed or ()
    if len(names) > TOPICS_MAX:
        raise RequestInvalid(f"a member can subscribe to at most {TOPICS_MAX} topics")
    if any(len(name_in(name)) > TOPIC_NAME_SIZE_MAX for name in names):
        raise RequestInvalid(
            f"a member subscribes to a name of more than {TOPIC_NAME_SIZE_MAX} characters, which no"
            " topic can have: subscribe to existing topics"
        )
    if beat.rack is not None and len(beat.rack) > RACK_LENGTH_MAX:
        raise RequestInvalid(
            f"the name of a member's rack has at most {RACK_LENGTH_MAX} characters"
        )


def _check_room(group: ShareMembers, member_id: str, subscribed: tuple[str, ...]) -> None:
    """Raises GroupFull if a member wants more topics than are left for its group."""
    member = group.members.get(member_id)
    more = len(subscribed) - (0 if member is None else len(member.subscribed))
    if more > 0 and group.subscriptions + more > SUBSCRIPTIONS_MAX:
        raise GroupFull(
            f"the members of group {group.group_id!r} subscribe to {group.subscriptions} topics"
            f" together, and the limit is {SUBSCRIPTIONS_MAX}: stop some, or subscribe to fewer"
        )


def _unknown(beat: ShareHeartbeat) -> MemberUnknown:
    return MemberUnknown(
        f"member {beat.member_id[:60]!r} is not in group {beat.group_id[:60]!r}: join with epoch 0"
    )
