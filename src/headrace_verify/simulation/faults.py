"""Applies the faults of a schedule to a simulated cluster, and heals them.

Invariants: acts only from outside, on hosts, links and clocks. A fault without effect (for example,
its target is already down) is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.simulation.machines import LoneMachine
from headrace_verify.simulation.operator import Operator
from headrace_verify.simulation.schedule import DAY_MS, Fault
from headrace_verify.simulation.zookeeper import HALF_TICK_S, PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace_verify.simulation.cluster import Cluster, SimulatedBookie, SimulatedBroker
    from headrace_verify.simulation.loop import Host

FORWARD_JUMP_MAX_MS = 300_000
"""After a larger jump forward, retention would rightly delete records."""
SLOW_MAX_S = 1.5
CUT_OPERATIONS_MAX = 40
FREEZE_CALLBACKS_MAX = 60
ALONE_SHARE = 0.7
"""Of the crashes: the process beside the broker lives on. Otherwise both are killed, as with a
container."""


class Faults:
    """The faults of one run."""

    def __init__(self, cluster: Cluster, clients: Sequence[Host], topics: Iterable[str]) -> None:
        """`topics`: those that are not deleted."""
        self._cluster = cluster
        self._clients = clients
        self.done: dict[str, int] = {}
        """Kind -> number of faults with an effect."""
        self._healing: dict[int, Callable[[], None]] = {}
        self._operator = Operator(cluster, topics)

    def plan(self, schedule: Sequence[Fault], begin_s: float) -> None:
        """Schedule them."""
        for number, fault in enumerate(schedule):
            self._cluster.loop.call_at(begin_s + fault.at_s, self._begin, number, fault)

    def _begin(self, number: int, fault: Fault) -> None:
        heal = self._do(fault)
        if heal is None:
            return
        self.done[fault.kind] = self.done.get(fault.kind, 0) + 1
        self._healing[number] = heal
        self._cluster.loop.call_later(fault.lasts_s, self._heal, number)

    def _heal(self, number: int) -> None:
        heal = self._healing.pop(number, None)
        if heal is not None:
            heal()

    def heal_all(self) -> None:
        """End all active faults."""
        for number in list(self._healing):
            self._heal(number)

    # --- each kind ---------------------------------------------------------------------------

    def _do(self, fault: Fault) -> Callable[[], None] | None:
        cluster = self._cluster
        broker = cluster.brokers[fault.target % len(cluster.brokers)]
        group, _, rest = fault.kind.partition("-")
        if fault.kind in {"crash", "power", "stop"}:
            return _end_broker(broker, fault)
        if fault.kind == "pause":
            return self._pause(broker.host)
        if fault.kind == "freeze":
            return self._pause(broker.host, int(fault.strength * FREEZE_CALLBACKS_MAX))
        if fault.kind == "pause-client":
            return self._pause(self._clients[fault.target % len(self._clients)])
        if fault.kind == "clock":
            return _jump(broker, fault.strength)
        if group == "bookie":
            bookie = cluster.bookies[fault.target % len(cluster.bookies)]
            return self._fault_bookie(bookie, rest, fault.strength)
        if fault.kind == "lose-chain":
            return self._operator.lose_chain(fault, broker)
        if group == "disk":
            return _fault_disk(broker, rest, fault.strength)
        if group == "zookeeper":
            return self._fault_server(fault, rest)
        if group == "shun":
            return self._shun(broker, rest)
        if fault.kind in {"expire", "drop-session"}:
            return self._fault_session(broker, fault.kind)
        return self._fault_link(fault, broker)

    def _pause(self, host: Host | None, callbacks: int = 0) -> Callable[[], None] | None:
        """Stop a host now, or after this many more callbacks: between any two awaits."""
        if host is None or host.is_paused or host.callbacks_left >= 0:
            return None
        host.is_paused = callbacks == 0
        host.callbacks_left = callbacks - 1
        return lambda: self._cluster.loop.resume(host)

    def _fault_bookie(
        self, bookie: SimulatedBookie, how: str, strength: float
    ) -> Callable[[], None] | None:
        if bookie.host is None or bookie.server is None:
            return None
        if how == "pause":
            return self._pause(bookie.host)
        if how == "slow":
            server = bookie.server
            server.slow_s = SLOW_MAX_S * strength
            return lambda: setattr(server, "slow_s", 0.0)
        bookie.end(is_notified=how == "crash")
        return bookie.start

    def _fault_session(self, broker: SimulatedBroker, kind: str) -> Callable[[], None] | None:
        zookeeper, host = broker.zookeeper, broker.host
        if zookeeper is None or host is None or not zookeeper.session_id:
            return None
        if kind == "expire":
            # Never earlier than its time: a broker may rely on its session time-out.
            links = _both_ways(broker.name, *PLACES)
            self._cluster.network.block(links)
            return lambda: self._cluster.network.unblock(links)
        cut = [self._cluster.network.reset(broker.name, place) for place in PLACES]
        return _nothing if any(cut) else None

    def _shun(self, broker: SimulatedBroker, also: str) -> Callable[[], None] | None:
        """Let the other brokers find nobody at a broker's address, though it lives, while it cannot
        learn what they make of that: it is stopped, or cut off from ZooKeeper."""
        network, name = self._cluster.network, broker.name
        refused = [(one.name, name) for one in self._cluster.brokers if one is not broker]
        blocked = _both_ways(name, *PLACES) if also == "cut" else []
        resume = self._pause(broker.host) if also == "pause" else _nothing
        if broker.host is None or resume is None:
            return None
        network.refuse(refused)
        network.block(blocked)

        def heal() -> None:
            network.accept(refused)
            network.unblock(blocked)
            resume()

        return heal

    def _fault_server(self, fault: Fault, how: str) -> Callable[[], None] | None:
        """Affects ZooKeeper servers, never more than one at a time: they need a majority."""
        server = self._cluster.servers[fault.target % len(self._cluster.servers)]
        servers = self._cluster.servers
        if any(one.host is None or one.host.is_paused or one.copy for one in servers):
            return None
        if how == "alone":
            server.leave(HALF_TICK_S * fault.strength)
            return server.rejoin
        if how == "pause":
            return self._pause(server.host)
        server.end(is_notified=how == "crash")
        return server.start

    def _fault_link(self, fault: Fault, broker: SimulatedBroker) -> Callable[[], None] | None:
        cluster = self._cluster
        kind, name = fault.kind, broker.name
        client = self._clients[fault.other % len(self._clients)].name
        server = PLACES[fault.other % len(PLACES)]
        bookie = server  # of a standalone broker: none
        if cluster.bookies:
            bookie = cluster.bookies[fault.other % len(cluster.bookies)].name
        other = cluster.brokers[fault.other % len(cluster.brokers)].name
        if kind == "reset":
            end = (bookie, client)[fault.strength > 0.5]
            return _nothing if cluster.network.reset(name, end) else None
        if kind == "slow":
            end = (server, bookie, client)[fault.other % 3]
            links = [(name, end), (end, name)]
            network = cluster.network
            network.slow.update(dict.fromkeys(links, SLOW_MAX_S * fault.strength))

            def hasten() -> None:
                for link in links:
                    network.slow.pop(link, None)

            return hasten
        ends = {
            "session": PLACES,
            "server": (server,),
            "bookie": (bookie,),
            "client": (client,),
            "broker": (other,),
        }[kind.removeprefix("cut-").removesuffix("-half")]
        if name in ends:
            return None
        links = _both_ways(name, *ends)
        if kind.endswith("-half"):
            links = links[fault.strength > 0.5 :: 2]
        cluster.network.block(links)
        return lambda: cluster.network.unblock(links)


def _both_ways(name: str, *ends: str) -> list[tuple[str, str]]:
    return [link for end in ends for link in ((name, end), (end, name))]


def _nothing() -> None:
    """It is over as soon as it has begun."""


def _end_broker(broker: SimulatedBroker, fault: Fault) -> Callable[[], None] | None:
    machine = broker.machine
    if broker.host is None:
        return None
    if fault.kind == "stop":
        broker.stop()
    elif fault.kind == "power" and isinstance(machine, LoneMachine) and fault.strength > 0.2:
        # In the middle of a disk operation.
        machine.disk.on_cut = lambda: broker.end(is_notified=False)
        machine.disk.cut_after = int(fault.strength * CUT_OPERATIONS_MAX)
    else:
        is_alone = fault.strength < ALONE_SHARE
        broker.end(is_notified=fault.kind == "crash", is_alone=is_alone)

    def heal() -> None:
        if isinstance(machine, LoneMachine):
            machine.disk.cut_after = -1
        if broker.host is not None:
            broker.is_wanted = True  # it is still shutting down
        else:
            broker.start()

    return heal


def _fault_disk(broker: SimulatedBroker, how: str, strength: float) -> Callable[[], None] | None:
    machine = broker.machine
    if not isinstance(machine, LoneMachine):
        return None
    disk = machine.disk
    if how == "slow":
        disk.slow_s = SLOW_MAX_S * strength
        return lambda: setattr(disk, "slow_s", 0.0)
    if how == "full":
        disk.is_full = True
        return lambda: setattr(disk, "is_full", False)
    disk.failing_syncs = strength
    disk.are_failed_syncs_dropped = int(strength * 100) % 2 == 1
    disk.are_names_meant = int(strength * 1_000) % 2 == 1
    return lambda: setattr(disk, "failing_syncs", 0.0)


def _jump(broker: SimulatedBroker, strength: float) -> Callable[[], None]:
    """Set the wall clock, up to four days back or some minutes forward, and correct it later."""
    if strength < 0.5:
        broker.clock.skew_ms = -int(DAY_MS * 2 * (0.5 - strength) * 4)
    else:
        broker.clock.skew_ms = int(FORWARD_JUMP_MAX_MS * (strength - 0.5) * 2)
    return lambda: setattr(broker.clock, "skew_ms", 0)
