"""Bounds of what clients keep in the memory of coordinators: groups, what is said of their members,
transactional ids.

Invariants: what is known may go on, and only what is new is refused, so a flood stops nobody who is
there: known members may say as much as before, and more up to a reserve beyond the bound. What is
kept is counted again only when what was added since might exceed the bound, at most once a second,
and when the bound has changed, so that a request costs a subtraction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from headrace.coordination.groups.commands import JoinCommand, SyncCommand
from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.streams.commands import StreamsHeartbeatCommand
from headrace.coordination.streams.records import StreamsMemberStored
from headrace.coordination.streams.stored_topology import write_topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.coordination.groups.consumer_records import ConsumerMemberStored
    from headrace.coordination.groups.group import Group
    from headrace.coordination.streams.topology import Topology

NS_PER_S: Final = 1_000_000_000
MEMBER_BYTES: Final = 1_000
"""Of a member that says nothing of itself."""
RESERVE_PART: Final = 4
"""The bound, divided by this, is kept for what known members add: when they rejoin, consumers also
say which partitions they own."""


class GroupBounds(Protocol):
    """A part of the broker's configuration, which may change."""

    groups_max: int
    members_bytes_max: int


class Room:
    """How much of one kind may be added."""

    __slots__ = ("_counted_most", "_counted_ns", "_held", "_left", "_most", "_now_ns")

    def __init__(
        self, most: Callable[[], int], held: Callable[[], int], now_ns: Callable[[], int]
    ) -> None:
        """`held` counts what is kept, `most` is the bound at the time."""
        self._most = most
        self._held = held
        self._now_ns = now_ns
        self._left = 0
        self._counted_most = 0
        self._counted_ns: int | None = None

    def take(self, amount: int = 1) -> bool:
        """Whether there is room for so much more, which is then thought to be added."""
        most = self._most()
        is_counted = self._counted_ns is not None and most == self._counted_most
        if is_counted and amount <= self._left:
            self._left -= amount
            return True
        now_ns = self._now_ns()
        if is_counted and self._counted_ns is not None and now_ns - self._counted_ns < NS_PER_S:
            return False
        self._counted_ns, self._counted_most = now_ns, most
        self._left = max(most - self._held(), 0)
        if amount > self._left:
            return False
        self._left -= amount
        return True


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
            if command.topology is None:
                return 0
            return MEMBER_BYTES + _of_topology(command.topology)


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


def kept_of_all(machines: Iterable[object]) -> int:
    """Bytes kept of the members of all groups. Costs about a microsecond for each member."""
    total = 0
    for machine in machines:
        assert isinstance(machine, GroupMachine)
        for group in machine.groups.values():
            ids = [*group.members, *group.pending]
            for one in (group.consumer, group.streams):
                ids += () if one is None else one.members
            total += sum(kept_of(group, member_id) for member_id in ids)
            if group.streams is not None and group.streams.topology is not None:
                total += _of_topology(group.streams.topology)
    return total


def _of_stored(stored: ConsumerMemberStored | StreamsMemberStored) -> int:
    if isinstance(stored, StreamsMemberStored):
        return 0
    classic = () if stored.classic is None else stored.classic.protocols
    return _texts(stored.topics, stored.pattern) + _data(classic)


def _data(named: Iterable[tuple[str, bytes]]) -> int:
    return sum(len(name) + len(data) for name, data in named)


def _texts(texts: Iterable[str], pattern: str | None) -> int:
    return sum(map(len, texts)) + len(pattern or "")


def _of_topology(topology: Topology) -> int:
    return len(write_topology(topology))
