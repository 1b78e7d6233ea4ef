"""A simulated cluster: unmodified brokers over simulated bookies, metadata and network.

Invariants: knows how brokers and bookies start and stop, not when. Each is a host with several
lives. A broker whose start fails is restarted after a while, as a supervisor would.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.kafka.dispatch import KafkaFace
from headrace_verify.rng import seeded
from headrace_verify.simulation.bookie import PORT as BOOKIE_PORT
from headrace_verify.simulation.bookie import BookieServer, BookieStore
from headrace_verify.simulation.clock import SimulatedClock
from headrace_verify.simulation.loop import OUTSIDE, Host, SimulatedLoop
from headrace_verify.simulation.machines import LEDGERS_ROOT, ClusterMachine, LoneMachine
from headrace_verify.simulation.nudges import let_requests_be_cancelled
from headrace_verify.simulation.session_ender import SimulatedEnder
from headrace_verify.simulation.world import World
from headrace_verify.simulation.zookeeper import PLACES, SimulatedServer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.node import Node
    from headrace.server.lifecycle import Broker
    from headrace.storage.bookkeeper.quorum import Quorum
    from headrace.zookeeper.client import ZooKeeper
    from headrace_verify.simulation.machines import Machine
    from headrace_verify.simulation.workload import Ask

log = logging.getLogger(__name__)

KAFKA_PORT = 9092
RESTART_S = 1.0
ASKED_S = 5.0


class SimulatedBroker:
    """A broker and its lives."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        world = cluster.world
        self.number = number
        self.name = f"b{number}"
        self.life = 0
        self.clock = SimulatedClock(cluster.loop)
        self.host: Host | None = None
        self.node: Node | None = None
        self.zookeeper: ZooKeeper | None = None
        self.is_wanted = False
        """Whether it should run: otherwise it is not restarted."""
        self.machine: Machine = LoneMachine(world) if cluster.is_lone else ClusterMachine(world)
        self.ender: SimulatedEnder
        self._cluster = cluster
        self._broker: Broker | None = None

    @property
    def is_up(self) -> bool:
        """Whether it has started and is alive."""
        return self.node is not None

    def start(self) -> None:
        """Start a life."""
        self.is_wanted = True
        if self.host is not None:
            return
        self.life += 1
        self.host = Host(self.name, self.life)
        self._cluster.network.power_on(self.name)
        self._cluster.hosts.append(self.host)
        self.ender = SimulatedEnder(self._cluster.world, self.host)
        loop = self._cluster.loop
        loop.call_soon(self._begin, context=self.host.context)

    def _begin(self) -> None:
        assert self.host is not None
        _ = self._cluster.loop.create_task(self._run(self.host), name=f"{self.name} runs")

    async def _run(self, host: Host) -> None:
        try:
            await self._open()
        except (HeadraceError, OSError) as error:
            log.info("%s cannot start: %r", self.name, error)
            self._cluster.failed_starts += 1
            self._cluster.call_outside(self._exited, host)

    def _exited(self, host: Host) -> None:
        if self.host is host:
            self.end(is_notified=True)
            self.is_wanted = True
            self._cluster.loop.call_later(RESTART_S, self._start_if_wanted)

    def _start_if_wanted(self) -> None:
        if self.is_wanted:
            self.start()

    async def _open(self) -> None:
        broker, node = await self.machine.open(self)
        self._broker = broker
        await node.open()
        broker.on_stop(node.close)
        face = KafkaFace(node)
        let_requests_be_cancelled(face, self._cluster.loop.fault_points)
        address = await face.listen(self.name, KAFKA_PORT)
        broker.on_stop(face.close)
        await node.register(address, ("", 0))
        broker.on_stop(node.leave)
        self.node = node

    def stop(self) -> None:
        """SIGTERM: it hands over its partitions and exits."""
        self.is_wanted = False
        host, broker = self.host, self._broker
        if host is None or broker is None or self.node is None:
            self.end(is_notified=True)
            return

        async def leave() -> None:
            await broker.stop()
            self._cluster.call_outside(self._stopped, host)

        def begin() -> None:
            _ = self._cluster.loop.create_task(leave(), name=f"{self.name} stops")

        self._cluster.loop.call_soon(begin, context=host.context)

    def _stopped(self, host: Host) -> None:
        if self.host is host:
            is_wanted = self.is_wanted
            self.end(is_notified=True)
            if is_wanted:
                self.start()

    def end(self, *, is_notified: bool, is_alone: bool = True) -> None:
        """Kill it immediately; whether peers see their connections closed (otherwise the machine
        lost power), and whether the process beside it lives on."""
        host, self.host = self.host, None
        self.node = self.zookeeper = self._broker = None
        self.is_wanted = False
        if host is not None:
            host.is_alive = False
            self._cluster.network.end(host, is_notified=is_notified)
            if is_notified and is_alone:
                self.ender.act()
            else:
                self.ender.kill()
        if not is_notified:
            self._cluster.network.power_off(self.name)
            self.machine.lost_power()


class SimulatedBookie:
    """A bookie and its lives; its disk outlives them."""

    def __init__(self, number: int, cluster: Cluster) -> None:
        self.name = f"k{number}"
        self.id = f"{self.name}:{BOOKIE_PORT}"
        self.life = 0
        self.store = BookieStore()
        self.server: BookieServer | None = None
        self.host: Host | None = None
        self._cluster = cluster
        self._random = seeded(f"{cluster.seed} {self.name}")
        self._session = 0

    def start(self) -> None:
        """Start a life, and register."""
        cluster = self._cluster
        if self.host is not None:
            return
        self.life += 1
        host = self.host = Host(self.name, self.life)
        cluster.hosts.append(host)
        cluster.network.power_on(self.name)
        server = self.server = BookieServer(self.name, self.store, cluster.loop, self._random)

        def begin() -> None:
            _ = cluster.loop.create_task(server.listen(), name=f"{self.name} runs")

        cluster.loop.call_soon(begin, context=host.context)
        cluster.ensemble.zxid += 1
        for folder in ("cookies", "available"):
            path = f"{LEDGERS_ROOT}/{folder}/{self.id}"
            if path not in cluster.ensemble.nodes:
                cluster.ensemble.create(path, b"", 0, is_made_up=True)

    def end(self, *, is_notified: bool) -> None:
        """Kill it; unsynced data is lost except for a part. Its session ends immediately."""
        host, self.host = self.host, None
        self.server = None
        if host is None:
            return
        host.is_alive = False
        self._cluster.network.end(host, is_notified=is_notified)
        self.store.crash(self._random.randint(0, self.store.unsynced_count))
        if not is_notified:
            self._cluster.network.power_off(self.name)
        self._cluster.ensemble.zxid += 1
        self._cluster.ensemble.delete(f"{LEDGERS_ROOT}/available/{self.id}", -1)


class Cluster:
    """The whole cluster."""

    def __init__(
        self, seed: str, loop: SimulatedLoop, brokers: int, bookies: int, quorum: Quorum
    ) -> None:
        self.seed = seed
        self.loop = loop
        self.world = World(seed, loop, quorum)
        self.is_lone = not bookies
        """Whether it is a standalone broker with its own files."""
        self.network, self.ensemble = self.world.network, self.world.ensemble
        self.hosts = self.world.hosts
        self.failed_starts = 0
        self.brokers = [SimulatedBroker(number, self) for number in range(1, brokers + 1)]
        self.bookies = [SimulatedBookie(number, self) for number in range(1, bookies + 1)]
        places = () if self.is_lone else PLACES
        self.servers = [SimulatedServer(place, self.world) for place in places]
        """Of ZooKeeper."""

    def call_outside(self, function: Callable[..., None], *arguments: Any) -> None:
        """Run something on behalf of no host: the calling host may die from it."""
        self.loop.call_soon(function, *arguments, context=OUTSIDE)

    def start(self) -> None:
        """Start everything."""
        self.ensemble.create(f"{LEDGERS_ROOT}/available", b"", 0, is_made_up=True)
        for server in self.servers:
            server.start()
        for bookie in self.bookies:
            bookie.start()
        for broker in self.brokers:
            broker.start()

    def ready(self) -> Sequence[SimulatedBroker]:
        """The running brokers."""
        return [broker for broker in self.brokers if broker.is_up]

    async def ask_owner(self, topic: str, part: int, ask: Ask) -> Any:
        """See `workload.Context.ask_owner`: like the owner's HTTP server, in its process."""
        for broker in self.ready():
            node, host = broker.node, broker.host
            assert node is not None
            found = node.topics.by_name.get(topic)
            if found is not None and host is not None and node.ownership.is_mine(found, part):
                break
        else:
            raise ConnectionRefusedError(f"no broker serves {topic}-{part} now")
        answer: asyncio.Future[Any] = self.loop.create_future()

        def end(task: asyncio.Task[Any]) -> None:
            if answer.done() or task.cancelled():
                return
            error = task.exception()
            if error is None:
                answer.set_result(task.result())
            else:
                answer.set_exception(error)

        def begin() -> None:
            task = self.loop.create_task(ask(node, found), name=f"asked for {topic}-{part}")
            task.add_done_callback(lambda done: self.call_outside(end, done))

        self.loop.call_soon(begin, context=host.context)
        async with asyncio.timeout(ASKED_S):
            return await answer

    async def wait_up(self, within_s: float) -> bool:
        """Wait until all brokers are up; returns whether they are."""
        end_s = self.loop.now_s + within_s
        while len(self.ready()) < len(self.brokers):
            if self.loop.now_s >= end_s:
                return False
            await asyncio.sleep(0.05)
        return True
