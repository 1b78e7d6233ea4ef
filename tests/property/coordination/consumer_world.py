"""A consumer group of the new protocol among clients as real ones behave, on a bad network.

A client has one heartbeat under way at a time, and sends more while it is busy with an assignment:
it gives up partitions when it begins, and owns the new ones when its callbacks have ended, even if
an answer has come meanwhile that asks for something else. It sends what it owns after each
assignment that it has finished, and everything anew when an answer did not come. Requests and
answers get lost, clients vanish, static ones come back, topics grow and go, the coordinator forgets
what is not in its log.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from group_rig import Rig

from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand
from headrace.coordination.kit.topic_view import TopicShape
from headrace.errors import (
    GroupFull,
    InstanceIdFenced,
    InstanceIdUnreleased,
    MemberEpochFenced,
    MemberUnknown,
)

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 20_000
INTERVAL_MS = 2_000
NAMES = ("a1", "a2", "b1", "b2")
SIZE_MAX = 7
ROUNDS_MAX = 120

Place = tuple[UUID, int]


class World:
    """Topics as a TopicView."""

    def __init__(self) -> None:
        self.version = 0
        self.topics: dict[str, TopicShape] = {}
        self._last_id = 0

    def create(self, name: str, count: int) -> None:
        self._last_id += 1
        racks = tuple(("r1", "r2", None)[number % 3] for number in range(count))
        self.topics[name] = TopicShape(UUID(int=self._last_id), count, racks)
        self.version += 1

    def grow(self, name: str, count: int) -> None:
        self.topics[name] = self.topics[name]._replace(partition_count=count)
        self.version += 1

    def delete(self, name: str) -> None:
        del self.topics[name]
        self.version += 1

    def shape(self, name: str) -> TopicShape | None:
        return self.topics.get(name)

    def name_of(self, topic_id: UUID) -> str | None:
        return next((n for n, shape in self.topics.items() if shape.id == topic_id), None)

    def matching(self, pattern: str) -> list[str]:
        return [name for name in self.topics if re.fullmatch(pattern, name)]


@dataclass
class Client:
    """One consumer."""

    member_id: str
    names: list[str] | None
    pattern: str | None
    instance_id: str | None
    rack: str | None
    assignor: str | None
    epoch: int = 0
    owned: set[Place] = field(default_factory=set)
    finished: set[Place] = field(default_factory=set)
    target: set[Place] | None = None
    asked: set[Place] | None = None
    busy_with: set[Place] | None = None
    is_telling_all: bool = True
    said_owned: set[Place] | None = None
    request: ConsumerHeartbeatCommand | None = None
    reply: Any = None
    is_running: bool = True

    def build(self, world: World) -> ConsumerHeartbeatCommand:
        command = ConsumerHeartbeatCommand(
            GROUP,
            self.member_id,
            self.epoch,
            "client",
            "/127.0.0.1",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=INTERVAL_MS,
            topics=world,
        )
        if self.is_telling_all or self.epoch == 0:
            command.instance_id, command.rack = self.instance_id, self.rack
            command.rebalance_timeout_ms = REBALANCE_MS
            command.topic_names, command.pattern = self.names, self.pattern
            command.assignor = self.assignor
            self.said_owned = None
        if self.said_owned != self.finished:
            command.owned = by_topic(self.finished)
            self.said_owned = set(self.finished)
        self.is_telling_all = False
        return command

    def take(self, reply: Any) -> None:
        error = reply.error
        if error is None:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                asked = {(t, n) for t, numbers in reply.assignment.items() for n in numbers}
                if asked != self.asked:  # the same assignment again is no news to a client
                    self.asked = self.target = asked
        elif isinstance(error, MemberEpochFenced | MemberUnknown):
            self.begin_anew()
        elif isinstance(error, InstanceIdUnreleased | InstanceIdFenced | GroupFull):
            self.begin_anew()
            if isinstance(error, InstanceIdFenced):
                self.is_running = False
        else:
            raise AssertionError(f"a client met {error!r}")

    def begin_anew(self) -> None:
        self.epoch, self.owned, self.finished, self.target = 0, set(), set(), None
        self.asked = self.busy_with = None
        self.is_telling_all, self.said_owned = True, None

    def reconcile(self) -> None:
        """One step: begin with the last assignment (give up), or end it (take, and report)."""
        if self.busy_with is not None:
            self.owned = self.finished = self.busy_with
            self.busy_with = self.said_owned = None
        elif self.target is not None:
            self.owned = self.owned & self.target
            self.busy_with, self.target = self.target, None

    def has_work(self) -> bool:
        return self.target is not None or self.busy_with is not None


def by_topic(places: set[Place]) -> dict[UUID, frozenset[int]]:
    found: dict[UUID, set[int]] = {}
    for topic_id, number in places:
        found.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}


class History:
    """One run: a seed decides all of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        config = GroupConfig(
            consumer_group_size_max=SIZE_MAX,
            consumer_session_timeout_ms=SESSION_MS,
            assignment_interval_ms=self.random.choice([0, 200, 1_000]),
        )
        self.rig = Rig(config, check_purity=seed % 100 == 0)
        self.world = World()
        self.clients: list[Client] = []
        self.count = 0
        self.assignor = self.random.choice([None, None, "uniform", "range"])
        self.is_same = self.random.random() < 0.5
        for name in NAMES[: self.random.randint(1, 3)]:
            self.world.create(name, self.random.randint(1, 6))
        for _ in range(self.random.randint(1, 4)):
            self.start_client()
        if self.random.random() < 0.7:
            self.settle()

    # --- steps -------------------------------------------------------------------------------

    def step(self) -> None:
        steps = [
            (self.start_client, 3),
            (self.send, 16),
            (self.arrive, 16),
            (self.deliver, 16),
            (self.lose, 2),
            (self.reconcile, 16),
            (self.leave, 1),
            (self.vanish, 1),
            (self.wait, 4),
            (self.crash, 1),
            (self.change_topics, 1),
            (self.resubscribe, 1),
        ]
        chosen = self.random.choices([s for s, _ in steps], [w for _, w in steps])[0]
        chosen()
        self.check()

    def start_client(self) -> None:
        if len(self.running()) >= 5:
            return
        self.count += 1
        instance_id = self.random.choice([None, None, "i1", "i2"])
        if any(c.instance_id == instance_id for c in self.running() if instance_id):
            instance_id = None
        client = Client(
            f"m{self.count}",
            None,
            None,
            instance_id,
            self.random.choice([None, "r1", "r2"]),
            self.assignor,
        )
        self._subscribe(client)
        self.clients.append(client)

    def _subscribe(self, client: Client) -> None:
        kind = 0 if self.is_same else self.random.randint(0, 2)
        if kind == 0:
            client.names, client.pattern = list(NAMES), ""
        elif kind == 1:
            client.names, client.pattern = [], self.random.choice(["a.*", "b.", ".*1"])
        else:
            client.names, client.pattern = self.random.sample(NAMES, 2), ""

    def running(self) -> list[Client]:
        return [client for client in self.clients if client.is_running]

    def _any(self, clients: list[Client]) -> Client | None:
        return self.random.choice(clients) if clients else None

    def send(self) -> None:
        client = self._any([c for c in self.running() if c.request is None and c.reply is None])
        if client is not None:
            client.request = client.build(self.world)

    def arrive(self) -> None:
        client = self._any([c for c in self.clients if c.request is not None])
        if client is not None:
            request, client.request = client.request, None
            client.reply = self.rig.send(request)

    def deliver(self) -> None:
        client = self._any([c for c in self.running() if c.reply is not None])
        if client is not None:
            reply, client.reply = client.reply, None
            client.take(reply)

    def lose(self) -> None:
        client = self._any([c for c in self.running() if c.request or c.reply])
        if client is not None:
            client.request = client.reply = None
            client.is_telling_all = True

    def reconcile(self) -> None:
        client = self._any([c for c in self.running() if c.has_work()])
        if client is not None:
            client.reconcile()

    def leave(self) -> None:
        client = self._any([c for c in self.running() if c.request is None and c.reply is None])
        if client is not None:
            self._leave(client)

    def _leave(self, client: Any) -> None:
        client.is_running = False
        client.owned = set()
        client.epoch = -1 if client.instance_id is None or self.random.random() < 0.3 else -2
        client.is_telling_all = True
        command = client.build(self.world)
        command.owned = None
        if self.random.random() < 0.9:
            self.rig.send(command)

    def vanish(self) -> None:
        """A client dies; what it has sent may still arrive."""
        client = self._any(self.running())
        if client is not None:
            client.is_running, client.owned = False, set()

    def wait(self) -> None:
        self.rig.advance(self.random.choice([100, 500, 3_000, 6_000]))

    def crash(self) -> None:
        self.rig.crash()
        for client in self.running():
            client.request = client.reply = None
            client.is_telling_all = True

    def change_topics(self) -> None:
        topics = self.world.topics
        choice = self.random.random()
        missing = [name for name in NAMES if name not in topics]
        if choice < 0.4 and missing:
            self.world.create(self.random.choice(missing), self.random.randint(1, 6))
        elif choice < 0.8 and topics:
            name = self.random.choice(list(topics))
            self.world.grow(name, topics[name].partition_count + self.random.randint(1, 3))
        elif len(topics) > 1:
            self.world.delete(self.random.choice(list(topics)))

    def resubscribe(self) -> None:
        client = self._any(self.running())
        if client is not None:
            self._subscribe(client)
            client.is_telling_all = True

    # --- what must hold ----------------------------------------------------------------------

    def check(self) -> None:
        """No partition is with two members: by what clients hold, and by what is stored."""
        group = self.rig.machine.groups.get(GROUP)
        if group is None:
            return
        consumer = group.consumer
        members = group.members if consumer is None else consumer.members
        holders: dict[Place, str] = {}
        for client in self.running():
            if client.member_id in members:
                for place in client.owned:
                    other = holders.setdefault(place, client.member_id)
                    assert other == client.member_id, f"{place} is with {other} and {client}"
        if consumer is None:
            return
        given: dict[Place, str] = {}
        for member_id, current in consumer.current.items():
            assert member_id in consumer.members
            for owned in (current.assigned, current.revoking):
                for topic_id, numbers in owned.items():
                    for number in numbers:
                        other = given.setdefault((topic_id, number), member_id)
                        assert other == member_id, f"{number} was given to {other}, {member_id}"
                        assert consumer.owners[topic_id][number] == member_id
        assert sum(map(len, consumer.owners.values())) == len(given)

    def settle(self) -> None:
        """Without faults, all partitions come to their members, and nothing else happens."""
        for client in self.clients:
            if not client.is_running:
                client.request = client.reply = None
        for _ in range(ROUNDS_MAX):
            for client in self.running():
                if client.request is None and client.reply is None:
                    client.request = client.build(self.world)
                if client.request is not None:
                    request, client.request = client.request, None
                    client.reply = self.rig.send(request)
                reply, client.reply = client.reply, None
                client.take(reply)
                self.check()
                for _ in range(2):
                    client.reconcile()
                    self.check()
            if self._is_quiet():
                break
            self.rig.advance(300)
            self.check()
        self.check_settled()

    def _is_quiet(self) -> bool:
        group = self.rig.machine.groups.get(GROUP)
        consumer = None if group is None else group.consumer
        running = {client.member_id: client for client in self.running()}
        return (
            consumer is not None
            and consumer.volatile.topics_version == self.world.version
            and consumer.state() in {"Stable", "Empty"}
            and set(consumer.members) == set(running)
            and all(
                c.epoch == consumer.epoch and not c.has_work() and not c.is_telling_all
                for c in running.values()
            )
        )

    def check_settled(self) -> None:
        running = self.running()
        held: dict[Place, Client] = {}
        for client in running:
            for place in client.owned:
                held[place] = client
        expected: set[Place] = set()
        for name, shape in self.world.topics.items():
            takers = [c for c in running if self._wants(c, name)]
            for number in range(shape.partition_count if takers else 0):
                place = (shape.id, number)
                expected.add(place)
                assert place in held, f"{name}-{number} is with no member"
                assert held[place] in takers, f"{name}-{number} is with {held[place]}"
        assert set(held) == expected, "a partition is with a member that should not have it"
        if running:
            consumer = self.rig.machine.groups[GROUP].consumer
            assert consumer.state() == "Stable", consumer.state()
            assert {c.epoch for c in running} == {consumer.epoch}
            if self.is_same and self.assignor != "range":
                sizes = [len(c.owned) for c in running]
                assert max(sizes) - min(sizes) <= 1, sizes

    def _wants(self, client: Client, name: str) -> bool:
        return name in (client.names or ()) or bool(
            client.pattern and re.fullmatch(client.pattern, name)
        )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.settle()
