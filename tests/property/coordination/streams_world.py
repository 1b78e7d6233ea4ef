"""A streams group among clients as real ones behave, on a bad network.

A client is a thread of a process. It has one heartbeat under way at a time, and sends more while it
is busy with an assignment: it gives up tasks when it begins, and has the new ones when that has
ended. It sends the tasks it has only when they are others than it has sent last, or when an answer
did not come. Requests and answers get lost, clients vanish, static ones come back, topics come, go
and grow, settings change, the coordinator forgets what is not in its log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.property.coordination.member_world import (
    GROUP,
    INTERVAL_MS,
    REBALANCE_MS,
    SESSION_MS,
    ChangingTopics,
    Member,
    MemberHistory,
)

from headrace.coordination.streams.commands import StreamsHeartbeatCommand
from headrace.coordination.streams.tasks import StreamTasks, task_set
from headrace.coordination.streams.topology import (
    CopartitionGroup,
    InternalTopic,
    Subtopology,
    Topology,
)

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


@dataclass(kw_only=True)
class Client(Member):
    """One thread."""

    process_id: str
    topology: Topology
    endpoint: tuple[str, int] | None
    endpoint_epoch: int = -1
    statuses: list[int] = field(default_factory=list)

    def build(
        self, world: ChangingTopics, standby_count: int, delay_ms: int
    ) -> StreamsHeartbeatCommand:
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
                self.assign(
                    {
                        (role, one, number)
                        for role, tasks in enumerate(reply.tasks.roles())
                        for one, numbers in tasks.items()
                        for number in numbers
                    }
                )
        else:
            self.fail(error)


def by_role(held: set[Held]) -> StreamTasks:
    return StreamTasks(
        *(task_set((one, n) for r, one, n in held if r == role) for role in range(3))
    )


class StreamsHistory(MemberHistory):
    """Of a streams group."""

    is_settling = False

    def prepare(self) -> None:
        self.topology = self.random.choice([STATELESS, COUNTING, JOINING])
        self.width = self.random.randint(1, 6)
        self.standby_count = self.random.choice([0, 0, 1, 2])
        self.delay_ms = self.random.choice([0, 500])
        self.epochs = (0, 0)
        self.sources = ("a", "b") if self.topology is JOINING else ("a",)
        self._create_sources()

    def new_client(self, instance_id: str | None) -> Any:
        process_id = f"p{self.random.randint(1, 3)}"
        return Client(
            member_id=f"m{self.count}",
            instance_id=instance_id,
            process_id=process_id,
            topology=self.topology,
            endpoint=(process_id, 80) if self.random.random() < 0.5 else None,
        )

    def build(self, client: Any) -> Any:
        return client.build(self.world, self.standby_count, self.delay_ms)

    def arrive(self) -> None:
        client = self.any_of([c for c in self.clients if c.request is not None])
        if client is not None:
            self.submit(client)
            if self.random.random() < 0.7:
                self.create_missing(client.reply)

    def take(self, client: Any) -> None:
        if self.is_settling:
            self.create_missing(client.reply)
        super().take(client)

    def create_missing(self, reply: Any) -> None:
        """What the broker does with an answer."""
        for topic in reply.missing:
            if topic.name not in self.world.topics:
                self.world.create(topic.name, topic.partition_count)

    def crash(self) -> None:
        """A client between two requests may not notice."""
        self.rig.crash()
        for client in self.running():
            if client.request or client.reply or self.random.random() < 0.5:
                client.request = client.reply = None
                client.forget()

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

    def change(self) -> None:
        self.standby_count = self.random.choice([0, 1, 2])

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
        self._create_sources()
        self.is_settling = True
        super().settle()
        self.is_settling = False

    def is_quiet(self) -> bool:
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
