"""Clients of both group protocols in one group: as `consumer_world`, with classic members, too.

A classic client joins, syncs and sends heartbeats; an eager one gives up all it has before it
joins, a cooperative one what its new assignment lacks, and joins again then. As a leader it assigns
by turns, and a cooperative one gives nobody what another still has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.property.coordination.consumer_world import NAMES, Client, History, Place
from tests.property.coordination.member_world import GROUP, REBALANCE_MS, SESSION_MS, ChangingTopics

from headrace.coordination.groups.commands import (
    HeartbeatCommand,
    HeartbeatReply,
    JoinCommand,
    JoinReply,
    LeaveCommand,
    LeavingMember,
    SyncCommand,
    SyncReply,
)
from headrace.coordination.groups.consumer_protocol import (
    read_assignment,
    read_subscription,
    write_assignment,
)
from headrace.errors import (
    CoordinatorLoading,
    GroupFull,
    IllegalGeneration,
    InstanceIdFenced,
    InstanceIdUnreleased,
    MemberIdRequired,
    MemberUnknown,
    RebalanceInProgress,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def _subscription(names: list[str], owned: Mapping[str, tuple[int, ...]]) -> bytes:
    """A subscription of version 1."""
    parts = [(1).to_bytes(2, "big"), len(names).to_bytes(4, "big")]
    for name in names:
        parts += [len(name).to_bytes(2, "big"), name.encode()]
    return b"".join(parts) + b"\xff\xff\xff\xff" + write_assignment(owned.items())[2:-4]


@dataclass
class ClassicClient:
    """One consumer of the classic protocol."""

    names: list[str]
    instance_id: str | None
    is_cooperative: bool
    member_id: str = ""
    generation: int = -1
    owned: set[Place] = field(default_factory=set)
    doing: str = "join"
    request: Any = None
    reply: Any = None
    ticket: int = 0
    joined: Any = None
    is_running: bool = True

    def has_work(self) -> bool:
        """A classic client adopts its assignment when it receives it."""
        return False

    def by_name(self, world: ChangingTopics) -> dict[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for topic_id, number in sorted(self.owned):
            name = world.name_of(topic_id)
            if name is not None:
                found.setdefault(name, []).append(number)
        return {name: tuple(numbers) for name, numbers in found.items()}

    def build(self, world: ChangingTopics, fresh: str) -> Any:
        if self.doing == "join":
            if not self.is_cooperative:
                self.owned = set()
            metadata = _subscription(self.names, self.by_name(world))
            protocol = "cooperative" if self.is_cooperative else "range"
            return JoinCommand(
                GROUP,
                self.member_id,
                self.instance_id,
                "classic",
                "/127.0.0.1",
                SESSION_MS,
                REBALANCE_MS,
                "consumer",
                [(protocol, metadata)],
                is_member_id_required=True,
                fresh_id=fresh,
                topics=world,
            )
        if self.doing == "sync":
            assignments = self._assign(world) if self.joined.leader == self.member_id else []
            return SyncCommand(
                GROUP,
                self.generation,
                self.member_id,
                self.instance_id,
                assignments=assignments,
                topics=world,
            )
        return HeartbeatCommand(GROUP, self.generation, self.member_id, self.instance_id)

    def _assign(self, world: ChangingTopics) -> list[tuple[str, bytes]]:
        read = {m.member_id: read_subscription(m.metadata) for m in self.joined.members}
        owner = {
            (name, number): member_id
            for member_id, one in read.items()
            for name, numbers in one.owned.items()
            for number in numbers
        }
        given: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in read}
        turn = 0
        for name, shape in sorted(world.topics.items()):
            takers = sorted(m for m, one in read.items() if name in one.topics)
            for number in range(shape.partition_count if takers else 0):
                to = takers[turn % len(takers)]
                turn += 1
                holder = owner.get((name, number), to)
                if holder == to or not self.is_cooperative:
                    given[to].setdefault(name, []).append(number)
        return [(member_id, write_assignment(one.items(), 1)) for member_id, one in given.items()]

    def take(self, reply: Any, world: ChangingTopics) -> None:
        error = reply.error
        if error is None:
            self._go_on(reply, world)
        elif isinstance(error, MemberIdRequired):
            self.member_id, self.doing = reply.member_id, "join"
        elif isinstance(error, RebalanceInProgress):
            self.doing = "join"
        elif isinstance(error, IllegalGeneration):
            self.owned, self.doing = set(), "join"
        elif isinstance(error, MemberUnknown):
            self.member_id, self.owned, self.doing = "", set(), "join"
        elif isinstance(error, GroupFull):
            self.begin_anew()  # a place may be free later, when it joins again
        elif isinstance(error, InstanceIdFenced | InstanceIdUnreleased):
            self.owned, self.is_running = set(), False
        else:
            raise AssertionError(f"a classic client met {error!r} at {self.doing}")

    def _go_on(self, reply: Any, world: ChangingTopics) -> None:
        if isinstance(reply, JoinReply):
            self.member_id, self.generation = reply.member_id, reply.generation
            self.joined, self.doing = reply, "sync"
        elif isinstance(reply, SyncReply):
            given = {
                (world.topics[name].id, number)
                for name, numbers in read_assignment(reply.assignment).items()
                if name in world.topics
                for number in numbers
            }
            has_revoked = self.is_cooperative and bool(self.owned - given)
            self.owned = given
            self.doing = "join" if has_revoked else "beat"
        else:
            assert isinstance(reply, HeartbeatReply)

    def forget(self) -> None:
        """Its request or the answer was lost."""
        self.ticket = 0
        if self.doing == "sync":
            self.doing = "join"

    def begin_anew(self) -> None:
        self.owned, self.doing = set(), "join"


class MixedHistory(History):
    """One run with clients of both protocols."""

    def __init__(self, seed: int) -> None:
        self.is_cooperative = seed % 2 == 0
        super().__init__(seed)

    def prepare(self) -> None:
        super().prepare()
        self.is_same, self.assignor = True, None

    def classic(self) -> list[ClassicClient]:
        return [c for c in self.running() if isinstance(c, ClassicClient)]

    def new_client(self, instance_id: str | None) -> Any:
        if self.random.random() < 0.5:
            return super().new_client(instance_id)
        return ClassicClient(list(NAMES), instance_id, self.is_cooperative)

    def build(self, client: Any) -> Any:
        if isinstance(client, ClassicClient):
            self.count += 1
            return client.build(self.world, str(self.count))
        return super().build(client)

    def is_free(self, client: Any) -> bool:
        return super().is_free(client) and not getattr(client, "ticket", 0)

    def submit(self, client: Any) -> None:
        request, client.request = client.request, None
        if isinstance(request, JoinCommand | SyncCommand):
            self.rig.tickets += 1
            client.ticket = request.ticket = self.rig.tickets
            self.rig.send(request)
        else:
            client.reply = self.rig.send(request)
        self._hear()

    def _hear(self) -> None:
        """What was parked may have been answered."""
        for client in self.clients:
            ticket = getattr(client, "ticket", 0)
            if ticket in self.rig.replies and ticket:
                client.reply, client.ticket = self.rig.replies[ticket], 0

    def deliver(self) -> None:
        self._hear()
        super().deliver()

    def take(self, client: Any) -> None:
        if isinstance(client, ClassicClient):
            reply, client.reply = client.reply, None
            client.take(reply, self.world)
        elif isinstance(client.reply.error, CoordinatorLoading):
            client.reply = None
            client.forget()
        else:
            super().take(client)

    def leave_as(self, client: Any) -> None:
        if not isinstance(client, ClassicClient):
            super().leave_as(client)
            return
        client.is_running, client.owned = False, set()
        if client.instance_id is None and client.member_id:
            self.rig.send(LeaveCommand(GROUP, [LeavingMember(client.member_id)]))

    def change(self) -> None:
        """All subscribe to the same topics here."""

    def check(self) -> None:
        self._hear()
        super().check()

    def is_quiet(self) -> bool:
        group = self.rig.machine.groups.get(GROUP)
        running = {client.member_id: client for client in self.running()}
        if group is None:
            return not running
        if any(c.request or c.reply or c.has_work() for c in running.values()):
            return False
        if any(isinstance(c, ClassicClient) and c.doing != "beat" for c in running.values()):
            return False
        if group.consumer is None:
            # Classic members do not follow topics: their clients would, and join anew.
            return group.state in {"Stable", "Empty"} and set(group.members) == set(running)
        return (
            group.consumer.volatile.topics_version == self.world.version
            and group.consumer.state() in {"Stable", "Empty"}
            and set(group.consumer.members) == set(running)
        )

    def check_settled(self) -> None:
        running = self.running()
        group = self.rig.machine.groups.get(GROUP)
        natives = [c for c in running if isinstance(c, Client)]
        if not running:
            return
        assert group is not None
        assert (group.consumer is not None) == bool(natives), "the group speaks the wrong protocol"
        if not natives:
            assert group.state == "Stable", group.state
            return
        assert group.consumer is not None
        assert group.consumer.state() == "Stable", (group.consumer.state(), running)
        held = [place for client in running for place in client.owned]
        expected = {
            (shape.id, number)
            for shape in self.world.topics.values()
            for number in range(shape.partition_count)
        }
        assert len(held) == len(set(held))
        assert set(held) == expected, (set(held) ^ expected, running)
