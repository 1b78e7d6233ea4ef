"""A consumer group of the new protocol among clients as real ones behave, on a bad network.

A client has one heartbeat under way at a time, and sends more while it is busy with an assignment:
it gives up partitions when it begins, and owns the new ones when its callbacks have ended, even if
an answer has come meanwhile that asks for something else. It sends what it owns after each
assignment that it has finished, and everything anew when an answer did not come. Requests and
answers get lost, clients vanish, static ones come back, topics grow and go, the coordinator forgets
what is not in its log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tests.property.coordination.member_world import (
    GROUP,
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    ChangingTopics,
    Member,
    MemberHistory,
)

from headrace.coordination.groups.consumer_commands import ConsumerHeartbeatCommand

NAMES = ("a1", "a2", "b1", "b2")

Place = tuple[UUID, int]


@dataclass(kw_only=True)
class Client(Member):
    """One consumer."""

    names: list[str] | None = None
    pattern: str | None = None
    rack: str | None
    assignor: str | None
    is_telling_all: bool = True

    def build(self, world: ChangingTopics) -> ConsumerHeartbeatCommand:
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
            self.said = None
        if self.said != self.finished:
            command.owned = by_topic(self.finished)
            self.said = set(self.finished)
        self.is_telling_all = False
        return command

    def take(self, reply: Any) -> None:
        error = reply.error
        if error is None:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.assign({(t, n) for t, numbers in reply.assignment.items() for n in numbers})
        else:
            self.fail(error)

    def begin_anew(self) -> None:
        super().begin_anew()
        self.is_telling_all = True

    def forget(self) -> None:
        self.is_telling_all = True

    def reconcile(self) -> None:
        if self.busy_with is not None:
            self.said = None  # it reports after each assignment, even the same one
        super().reconcile()


def by_topic(places: set[Place]) -> dict[UUID, frozenset[int]]:
    found: dict[UUID, set[int]] = {}
    for topic_id, number in places:
        found.setdefault(topic_id, set()).add(number)
    return {topic_id: frozenset(numbers) for topic_id, numbers in found.items()}


class History(MemberHistory):
    """Of a consumer group."""

    def prepare(self) -> None:
        self.assignor = self.random.choice([None, None, "uniform", "range"])
        self.is_same = self.random.random() < 0.5
        for name in NAMES[: self.random.randint(1, 3)]:
            self.world.create(name, self.random.randint(1, 6))

    def new_client(self, instance_id: str | None) -> Any:
        client = Client(
            member_id=f"m{self.count}",
            instance_id=instance_id,
            rack=self.random.choice([None, "r1", "r2"]),
            assignor=self.assignor,
        )
        self._subscribe(client)
        return client

    def build(self, client: Any) -> Any:
        return client.build(self.world)

    def _subscribe(self, client: Client) -> None:
        kind = 0 if self.is_same else self.random.randint(0, 2)
        if kind == 0:
            client.names, client.pattern = list(NAMES), ""
        elif kind == 1:
            client.names, client.pattern = [], self.random.choice(["a.*", "b.", ".*1"])
        else:
            client.names, client.pattern = self.random.sample(NAMES, 2), ""

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

    def change(self) -> None:
        client = self.any_of(self.running())
        if client is not None:
            self._subscribe(client)
            client.is_telling_all = True

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

    def is_quiet(self) -> bool:
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
