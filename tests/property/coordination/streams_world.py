"""A streams group among clients as real ones behave, on a bad network.

A client is a thread of a process. It has one heartbeat under way at a time, and sends more while it
is busy with an assignment: it gives up tasks when it begins, and has the new ones when that has
ended. It sends the tasks it has only when they are others than it has sent last, or when an answer
did not come. Requests and answers get lost, clients vanish, static ones come back, topics come, go
and grow, settings change, the coordinator forgets what is not in its log.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from consumer_world import World
from group_rig import Rig

from headrace.coordination.groups.config import GroupConfig
from headrace.coordination.streams.commands import StreamsHeartbeatCommand
from headrace.coordination.streams.tasks import StreamTasks, task_set
from headrace.coordination.streams.topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
)
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
SIZE_MAX = 7
ROUNDS_MAX = 150
ACTIVE, STANDBY, WARMUP = range(3)

Held = tuple[int, str, int]
"""(role, subtopology, partition)"""

STATELESS = Topology(0, (Subtopology("0", ("a",)),))
COUNTING = Topology(
    0,
    (
        Subtopology("0", ("a",), repartition_sinks=("r",)),
        Subtopology(
            "1",
            changelog_topics=(InternalTopic("c"),),
            repartition_sources=(InternalTopic("r"),),
            copartition_groups=(CopartitionGroup((), (), (0,)),),
        ),
    ),
)
JOINING = Topology(
    0,
    (
        *COUNTING.subtopologies,
        Subtopology(
            "2",
            ("a", "b"),
            changelog_topics=(InternalTopic("d"),),
            copartition_groups=(CopartitionGroup((0, 1)),),
        ),
    ),
)


@dataclass
class Client:
    """One thread."""

    member_id: str
    process_id: str
    topology: Topology
    instance_id: str | None
    endpoint: tuple[str, int] | None
    epoch: int = 0
    owned: set[Held] = field(default_factory=set)
    finished: set[Held] = field(default_factory=set)
    target: set[Held] | None = None
    asked: set[Held] | None = None
    busy_with: set[Held] | None = None
    said: set[Held] | None = None
    endpoint_epoch: int = -1
    statuses: list[int] = field(default_factory=list)
    request: StreamsHeartbeatCommand | None = None
    reply: Any = None
    is_running: bool = True

    def build(self, world: World, standby_count: int, delay_ms: int) -> StreamsHeartbeatCommand:
        command = StreamsHeartbeatCommand(
            GROUP,
            self.member_id,
            self.epoch,
            "client",
            "/127.0.0.1",
            instance_id=self.instance_id,
            endpoint_epoch=self.endpoint_epoch,
            topics=world,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=INTERVAL_MS,
            standby_count=standby_count,
            initial_delay_ms=delay_ms,
        )
        if self.epoch == 0:
            command.rebalance_timeout_ms = REBALANCE_MS
            command.topology, command.process_id = self.topology, self.process_id
            command.endpoint, command.tags = self.endpoint, ()
            command.owned = StreamTasks({}, {}, {})
        elif self.said != self.finished:
            command.owned = by_role(self.finished)
            self.said = set(self.finished)
        return command

    def take(self, reply: Any) -> None:
        error = reply.error
        if error is None:
            assert reply.member_epoch > 0
            self.epoch, self.endpoint_epoch = reply.member_epoch, reply.endpoint_epoch
            self.statuses = [status.code for status in reply.statuses]
            if reply.tasks is not None:
                asked = {
                    (role, one, number)
                    for role, tasks in enumerate(reply.tasks.roles())
                    for one, numbers in tasks.items()
                    for number in numbers
                }
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
        self.asked = self.busy_with = self.said = None

    def reconcile(self) -> None:
        """One step: begin with the last assignment (give up), or end it (take, and report)."""
        if self.busy_with is not None:
            self.owned = self.finished = self.busy_with
            self.busy_with = None
        elif self.target is not None:
            self.owned = self.owned & self.target
            self.busy_with, self.target = self.target, None

    def has_work(self) -> bool:
        return self.target is not None or self.busy_with is not None


def by_role(held: set[Held]) -> StreamTasks:
    return StreamTasks(
        *(task_set((one, n) for r, one, n in held if r == role) for role in range(3))
    )


class StreamsHistory:
    """One run: a seed decides all of it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        config = GroupConfig(
            streams_group_size_max=SIZE_MAX,
            streams_session_timeout_ms=SESSION_MS,
            assignment_interval_ms=self.random.choice([0, 200, 1_000]),
        )
        self.rig = Rig(config, check_purity=seed % 100 == 0)
        self.world = World()
        self.clients: list[Client] = []
        self.count = 0
        self.topology = self.random.choice([STATELESS, COUNTING, JOINING])
        self.width = self.random.randint(1, 6)
        self.standby_count = self.random.choice([0, 0, 1, 2])
        self.delay_ms = self.random.choice([0, 500])
        self.epochs = (0, 0)
        self.sources = ("a", "b") if self.topology is JOINING else ("a",)
        for name in self.sources:
            self.world.create(name, self.width)
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
            (self.change_standbys, 1),
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
        process_id = f"p{self.random.randint(1, 3)}"
        endpoint = (process_id, 80) if self.random.random() < 0.5 else None
        client = Client(f"m{self.count}", process_id, self.topology, instance_id, endpoint)
        self.clients.append(client)

    def running(self) -> list[Client]:
        return [client for client in self.clients if client.is_running]

    def _any(self, clients: list[Client]) -> Client | None:
        return self.random.choice(clients) if clients else None

    def _build(self, client: Client) -> StreamsHeartbeatCommand:
        return client.build(self.world, self.standby_count, self.delay_ms)

    def send(self) -> None:
        client = self._any([c for c in self.running() if c.request is None and c.reply is None])
        if client is not None:
            client.request = self._build(client)

    def arrive(self) -> None:
        client = self._any([c for c in self.clients if c.request is not None])
        if client is not None:
            request, client.request = client.request, None
            client.reply = self.rig.send(request)
            if self.random.random() < 0.7:
                self.create_missing(client.reply)

    def create_missing(self, reply: Any) -> None:
        """What the broker does with an answer."""
        for topic in reply.missing:
            if topic.name not in self.world.topics:
                self.world.create(topic.name, topic.partition_count)

    def deliver(self) -> None:
        client = self._any([c for c in self.running() if c.reply is not None])
        if client is not None:
            reply, client.reply = client.reply, None
            client.take(reply)

    def lose(self) -> None:
        client = self._any([c for c in self.running() if c.request or c.reply])
        if client is not None:
            client.request = client.reply = client.said = None

    def reconcile(self) -> None:
        client = self._any([c for c in self.running() if c.has_work()])
        if client is not None:
            client.reconcile()

    def leave(self) -> None:
        client = self._any([c for c in self.running() if c.request is None and c.reply is None])
        if client is None:
            return
        client.is_running, client.owned = False, set()
        client.epoch = -1 if client.instance_id is None or self.random.random() < 0.3 else -2
        command = self._build(client)
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
            if client.request or client.reply or self.random.random() < 0.5:
                client.request = client.reply = client.said = None

    def change_topics(self) -> None:
        topics = self.world.topics
        internal = [name for name in topics if name not in self.sources]
        choice = self.random.random()
        if choice < 0.4 and internal:
            self.world.delete(self.random.choice(internal))
        elif choice < 0.6 and self.topology is STATELESS and "a" in topics:
            self.width += 1
            self.world.grow("a", self.width)
        elif choice < 0.8 and "a" in topics:
            self.world.delete("a")
        else:
            self._create_sources()

    def _create_sources(self) -> None:
        for name in self.sources:
            if name not in self.world.topics:
                self.world.create(name, self.width)

    def change_standbys(self) -> None:
        self.standby_count = self.random.choice([0, 1, 2])

    # --- what must hold ----------------------------------------------------------------------

    def check(self) -> None:
        """No task is active on two members, by what clients hold and by what is stored; no two
        threads of a process have a task; epochs do not go back."""
        group = self.rig.machine.groups.get(GROUP)
        streams = None if group is None else group.streams
        if streams is None:
            self.epochs = (0, 0)
            return
        holders: dict[tuple[str, int], str] = {}
        for client in self.running():
            if client.member_id in streams.members:
                for role, one, number in client.owned:
                    if role == ACTIVE:
                        other = holders.setdefault((one, number), client.member_id)
                        assert other == client.member_id, f"{one}_{number}: {other} and {client}"
        given: dict[tuple[str, int], str] = {}
        near: dict[tuple[str, str, int], str] = {}
        for member_id, current in streams.current.items():
            process_id = streams.members[member_id].stored.process_id
            for held in (current.assigned, current.revoking):
                for role, tasks in enumerate(held.plain().roles()):
                    for one, numbers in tasks.items():
                        for number in numbers:
                            if role == ACTIVE:
                                other = given.setdefault((one, number), member_id)
                                assert other == member_id, f"{one}_{number} was given twice"
                            other = near.setdefault((process_id, one, number), member_id)
                            assert other == member_id, f"{one}_{number} is in {process_id} twice"
        epochs = (streams.epoch, streams.target_epoch)
        assert epochs[0] >= self.epochs[0], "the group's epoch went back"
        assert epochs[1] >= self.epochs[1], "the target's epoch went back"
        self.epochs = epochs

    def settle(self) -> None:
        """Without faults, all tasks come to their members, and nothing else happens."""
        self._create_sources()
        for client in self.clients:
            if not client.is_running:
                client.request = client.reply = None
        for _ in range(ROUNDS_MAX):
            for client in self.running():
                if client.request is None and client.reply is None:
                    client.request = self._build(client)
                if client.request is not None:
                    request, client.request = client.request, None
                    client.reply = self.rig.send(request)
                reply, client.reply = client.reply, None
                self.create_missing(reply)
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
        streams = None if group is None else group.streams
        running = {client.member_id: client for client in self.running()}
        return (
            streams is not None
            and streams.volatile.topics_version == self.world.version
            and streams.state() in {"Stable", "Empty"}
            and set(streams.members) == set(running)
            and dict(streams.stored.configs) == {"num.standby.replicas": str(self.standby_count)}
            and all(
                c.epoch == streams.epoch and not c.has_work() and c.said == c.finished
                for c in running.values()
            )
        )

    def check_settled(self) -> None:
        running = self.running()
        if not running:
            return
        streams = self.rig.machine.groups[GROUP].streams
        assert streams.state() == "Stable", streams.state()
        assert {c.epoch for c in running} == {streams.epoch}
        assert not any(c.statuses for c in running)
        tasks = {
            (subtopology.id, n) for subtopology in self.topology.subtopologies
            for n in range(self.width)
        }  # fmt: skip
        active = [(one, n) for c in running for role, one, n in c.owned if role == ACTIVE]
        assert sorted(active) == sorted(tasks), "active tasks are not on one member each"
        sizes = [sum(role == ACTIVE for role, _, _ in c.owned) for c in running]
        assert max(sizes) - min(sizes) <= 1, sizes
        standby = [(one, n) for c in running for role, one, n in c.owned if role == STANDBY]
        copies = min(self.standby_count, len({c.process_id for c in running}) - 1)
        with_state = {one.id for one in self.topology.subtopologies if one.changelog_topics}
        wanted = [task for task in tasks if task[0] in with_state for _ in range(copies)]
        assert sorted(standby) == sorted(wanted), "standby tasks are not where they should be"

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.settle()
