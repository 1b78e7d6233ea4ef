"""Bounds of what clients keep in the memory of coordinators: groups, what is said of their members,
transactional ids.

Invariants: what is known may go on, and only what is new is refused, so a flood stops nobody who is
there: known members may say as much as before, and more up to a reserve beyond the bound. Users
and tenants have shares of a bound (`tenant_shares`), so that no flood takes all of it. What is kept
is counted again only when what was added since might exceed a share, at most once a second and for
a hundredth of the time, and when the bound has changed, so that a request costs a look-up.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from sys import intern
from typing import TYPE_CHECKING, Final, Protocol

from headrace.broker.security.tenant_shares import (
    NO_HOLDER,
    NOBODY,
    PLACES_PARTS,
    Held,
    Holder,
    TenantShares,
)
from headrace.coordination.groups.commands import JoinCommand, SyncCommand
from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
from headrace.coordination.groups.group_machine import GroupMachine
from headrace.coordination.streams.commands import StreamsHeartbeatCommand
from headrace.coordination.streams.records import StreamsMemberStored
from headrace.coordination.streams.stored_topology import write_topology
from headrace.records.tenant_names import tenant_of
from headrace.runtime.fair_locks import FairLock, Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from headrace.coordination.groups.consumer_records import ConsumerMemberStored
    from headrace.coordination.groups.group import Group
    from headrace.coordination.streams.topology import Topology

NS_PER_S: Final = 1_000_000_000
SLICE: Final = 1_000
"""Ids, or members, that are counted without a pause."""
COUNTING_PART: Final = 100
"""A count is followed by a pause of so many times as long."""
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
    """How much of one kind may be added, and by whom."""

    __slots__ = (
        "_count",
        "_counted_max",
        "_counting",
        "_held",
        "_most",
        "_next_count_ns",
        "_now_ns",
        "_since",
        "_what",
    )

    def __init__(
        self,
        what: str,
        most: Callable[[], int],
        count: Callable[[Held], Iterator[None]],
        now_ns: Callable[[], int],
    ) -> None:
        """`what`: as errors call it. `count` adds all that is kept, in steps of a millisecond;
        `most` is the bound at the time."""
        self._what = what
        self._most = most
        self._count = count
        self._now_ns = now_ns
        self._held = Held()
        self._since: Held | None = None
        """What was added since the count began that is under way."""
        self._counting = FairLock(1, Hold.LONG)
        self._counted_max = -1
        self._next_count_ns = 0

    async def take(self, holder: Holder = NO_HOLDER, amount: int = 1) -> str:
        """Why there is no room for so much more, in words; "": there is, and it is thought to be
        added."""
        excess = self._excess(holder, amount)
        if self._is_due(excess):
            async with self._counting:
                if self._is_due(excess):
                    await self._count_again()
            excess = self._excess(holder, amount)
        if not excess:
            for held in (self._held, self._since):
                if held is not None:
                    held.add(holder, amount)
        return excess

    def _excess(self, holder: Holder, amount: int) -> str:
        shares = TenantShares(self._what, self._most(), "this broker", PLACES_PARTS)
        return shares.excess_of(holder, self._held, amount)

    def _is_due(self, excess: str) -> bool:
        is_changed = self._counted_max != self._most()
        return is_changed or (bool(excess) and self._now_ns() >= self._next_count_ns)

    def give_back(self, holder: Holder) -> None:
        """There is one less."""
        self._held.add(holder, -1)

    async def _count_again(self) -> None:
        most, held, took_ns = self._most(), Held(), 0
        self._since = Held()
        try:
            steps = self._count(held)
            while True:
                begun_ns = self._now_ns()
                is_over = next(steps, steps) is steps
                took_ns += self._now_ns() - begun_ns
                if is_over:
                    break
                await asyncio.sleep(0)
            held.add_all(self._since)
        finally:
            self._since = None
        self._held, self._counted_max = held, most
        self._next_count_ns = self._now_ns() + max(NS_PER_S, COUNTING_PART * took_ns)


class Kept:
    """What clients keep of one kind, by id, and which user has made each that is new here.

    Of what was there when its partition was loaded, nobody: who made it is not stored. To know a
    maker takes some 60 bytes for each id. Ids that are removed count until the next count.
    """

    __slots__ = ("_ids", "_makers", "_room", "_since")

    def __init__(
        self,
        what: str,
        most: Callable[[], int],
        ids: Callable[[], Iterable[Collection[str]]],
        now_ns: Callable[[], int],
    ) -> None:
        """`ids()`: those that are kept."""
        self._ids = ids
        self._makers: dict[str, str] = {}
        self._since: dict[str, str] | None = None
        """Makers that were noted since the count began that is under way."""
        self._room = Room(what, most, self._count, now_ns)

    def knows(self, id_: str) -> bool:
        """Whether its place is counted."""
        return id_ in self._makers

    def maker(self, id_: str) -> str:
        """The user that has made it, if that is known."""
        return self._makers.get(id_, NOBODY)

    def note(self, id_: str, maker: str = NOBODY) -> None:
        """Who has made it; nobody: it was there before."""
        self._makers[id_] = maker
        if self._since is not None:
            self._since[id_] = maker

    async def take(self, id_: str, user: str) -> str:
        """See Room."""
        holder = Holder(tenant_of(id_), intern(user))
        excess = await self._room.take(holder)
        if not excess:
            self.note(id_, holder.user)
        return excess

    def forget(self, id_: str) -> None:
        """It is removed."""
        if self._since is not None:
            self._since.pop(id_, None)
        maker = self._makers.pop(id_, NOBODY)
        if maker:
            self._room.give_back(Holder(tenant_of(id_), maker))

    def _count(self, held: Held) -> Iterator[None]:
        before, makers = self._makers, dict[str, str]()
        since = self._since = {}
        for ids in list(self._ids()):
            known = list(ids)
            for at in range(0, len(known), SLICE):
                some = known[at : at + SLICE]
                makers |= {id_: before[id_] for id_ in some if id_ in before}
                counts = Counter((tenant_of(id_), before.get(id_, NOBODY)) for id_ in some)
                for holder, count in counts.items():
                    held.add(Holder(*holder), count)
                yield
        self._makers = makers | since
        self._since = None


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
    machines: Iterable[object], maker: Callable[[str], str], held: Held
) -> Iterator[None]:
    """Add the bytes kept of the members of all groups, for who has made the group. Costs about a
    microsecond for each member."""
    for machine in list(machines):
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
