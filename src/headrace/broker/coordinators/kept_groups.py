"""Bounds of the groups that a broker keeps (consumer, streams and share groups together), and of
what their members say of themselves.

Invariants: as `kept_state`. Knows no rules of groups: coordinators say what they keep (`Source`),
and ask before they keep more. Members count for who has made their group.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.broker.coordinators.kept_state import SLICE, Kept, Room, counted_by
from headrace.broker.security.tenant_shares import Held, Holder
from headrace.coordination.groups.commands import JoinCommand, SyncCommand
from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.streams.commands import StreamsHeartbeatCommand
from headrace.coordination.streams.records import StreamsMemberStored
from headrace.coordination.streams.stored_topology import write_topology
from headrace.errors import GroupFull, PolicyViolation
from headrace.records.tenant_names import tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from contextlib import AbstractContextManager

    from headrace.coordination.groups.consumer_records import ConsumerMemberStored
    from headrace.coordination.groups.group import Group
    from headrace.coordination.streams.topology import Topology
    from headrace.runtime.clock import Clock

MEMBER_BYTES: Final = 1_000
"""Of a member that says nothing of itself."""
RESERVE_PART: Final = 4
"""The bound, divided by this, is kept for what known members add: when they rejoin, consumers also
say which partitions they own."""


class GroupBounds(Protocol):
    """A part of the broker's configuration, which may change."""

    groups_max: int
    members_bytes_max: int


class Source(NamedTuple):
    """What keeps groups."""

    ids: Callable[[], Iterable[Collection[str]]]
    members: Callable[[Callable[[str], str], Held], Iterator[None]]
    """(who has made a group, what is held): adds the bytes of the members, in steps."""


class KeptGroups:
    """See the module."""

    def __init__(self, bounds: GroupBounds, clock: Clock) -> None:
        self._sources: list[Source] = []
        self._groups = Kept("groups", lambda: bounds.groups_max, self._ids, clock.now_ns)
        self._members = self._room_of_members(bounds, RESERVE_PART, clock)
        self._known_members = self._room_of_members(bounds, RESERVE_PART + 1, clock)

    def _room_of_members(self, bounds: GroupBounds, parts: int, clock: Clock) -> Room:
        return Room(
            "bytes of members",
            lambda: bounds.members_bytes_max * parts // RESERVE_PART,
            counted_by(self._count),
            clock.now_ns,
        )

    def add(self, source: Source) -> None:
        """It keeps groups, too."""
        self._sources.append(source)

    def _ids(self) -> Iterable[Collection[str]]:
        return chain.from_iterable(source.ids() for source in self._sources)

    def _count(self, held: Held) -> Iterator[None]:
        for source in self._sources:
            yield from source.members(self._groups.maker, held)

    def making(self, group_id: str, *, is_there: bool | None) -> AbstractContextManager[None]:
        """A request is under way that makes the group, unless it is there."""
        return nullcontext() if is_there else self._groups.making(group_id)

    async def check_group(self, group_id: str, user: str, *, is_there: bool | None) -> None:
        """Raise PolicyViolation if there is no room for a group that is not there. None: that is
        not known until its partition is loaded. The caller is `making` it."""
        groups = self._groups
        if is_there:
            if not groups.knows(group_id):
                groups.note(group_id)
        elif is_there is None and groups.knows(group_id):
            return
        elif (excess := await groups.take(group_id, user)) and is_there is not None:
            raise PolicyViolation(
                f"{excess} (headrace.groups.max): nothing was changed; delete groups, let their"
                " offsets expire, or raise the setting"
            )

    async def check_member(
        self, group_id: str, user: str, size: int, before: Callable[[], int | None]
    ) -> None:
        """Raise GroupFull if there is no room for what a member says. `before()`: what is kept of
        it by now; None: its group is not loaded, and holds nothing."""
        if not size:
            return
        maker = self._groups.maker(group_id) or user
        excess = await self._members.take(Holder(tenant_of(group_id), maker), size)
        kept = before() if excess else None
        if kept is None or size <= kept:
            return
        if not kept or await self._known_members.take(amount=size - kept):
            raise GroupFull(
                f"{excess} (headrace.group.members.max.bytes): nothing was changed; try again when"
                " members have left, or raise the setting"
            )


MemberRequest = JoinCommand | SyncCommand | ConsumerHeartbeatCommand | StreamsHeartbeatCommand


def said(command: MemberRequest) -> int:
    """Bytes that a request may add to what is kept of a group's members."""
    match command:
        case JoinCommand():
            return MEMBER_BYTES + len(command.client_id) + _data(command.protocols)
        case SyncCommand():
            return _data(command.assignments)
        case ConsumerHeartbeatCommand():
            if command.topic_names is None and command.pattern is None:
                return 0
            return MEMBER_BYTES + _texts(command.topic_names or (), command.pattern)
        case StreamsHeartbeatCommand():
            if command.topology is None and not command.tags:
                return 0
            topology = 0 if command.topology is None else _of_topology(command.topology)
            return MEMBER_BYTES + topology + _tags(command.tags or ())


def kept_before(group: Group, command: MemberRequest) -> int:
    """Bytes kept of what a request replaces; 0 if it is not of a known member. Of a leader's
    assignments, what its group has said: they are empty while it rebalances."""
    member_id = command.member_id
    match command:
        case SyncCommand() if member_id in group.members:
            return sum(kept_of(group, one) for one in group.members)
        case JoinCommand() if not member_id and command.group_instance_id:
            member_id = group.static.get(command.group_instance_id, "")
        case ConsumerHeartbeatCommand() | StreamsHeartbeatCommand() if command.instance_id:
            if group.managed is not None:
                member_id = group.managed.static.get(command.instance_id, member_id)
        case _:
            pass
    return 0 if member_id in group.pending else kept_of(group, member_id)


def kept_of(group: Group, member_id: str) -> int:
    """Bytes kept of a member; 0 if the group has no such member."""
    if member_id in group.pending:
        return MEMBER_BYTES + len(member_id)
    classic = group.members.get(member_id)
    if classic is not None:
        said_bytes = len(classic.client_id) + _data(classic.protocols)
        return MEMBER_BYTES + said_bytes + len(classic.assignment)
    for one in (group.consumer, group.streams):
        found = None if one is None else one.members.get(member_id)
        if found is not None:
            return MEMBER_BYTES + _of_stored(found.stored)
    return 0


def count_members(
    machines: Callable[[], Iterable[object]], maker: Callable[[str], str], held: Held
) -> Iterator[None]:
    """Add the bytes kept of the members of all groups, for who has made the group. Costs about a
    microsecond for each member."""
    for machine in list(machines()):
        assert isinstance(machine, GroupMachine)
        seen = 0
        for group_id, group in list(machine.groups.items()):
            ids = [*group.members, *group.pending]
            for one in (group.consumer, group.streams):
                ids += () if one is None else one.members
            size = sum(kept_of(group, member_id) for member_id in ids)
            if group.streams is not None and group.streams.topology is not None:
                size += _of_topology(group.streams.topology)
            if size:
                held.add(Holder(tenant_of(group_id), maker(group_id)), size)
            seen += 1 + len(ids)
            if seen >= SLICE:
                seen = 0
                yield


def _of_stored(stored: ConsumerMemberStored | StreamsMemberStored) -> int:
    if isinstance(stored, StreamsMemberStored):
        return _tags(stored.tags)
    classic = () if stored.classic is None else stored.classic.protocols
    return _texts(stored.topics, stored.pattern) + _data(classic)


def _data(named: Iterable[tuple[str, bytes]]) -> int:
    return sum(len(name) + len(data) for name, data in named)


def _tags(tags: Iterable[tuple[str, str]]) -> int:
    return sum(len(name) + len(value) for name, value in tags)


def _texts(texts: Iterable[str], pattern: str | None) -> int:
    return sum(map(len, texts)) + len(pattern or "")


def _of_topology(topology: Topology) -> int:
    return len(write_topology(topology))
