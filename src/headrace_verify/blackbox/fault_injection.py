"""Executes the schedule: starts each fault, heals it, and records the times.

Invariants: each sequence of a schedule has its own thread, so sequences overlap as drawn. Faults
that this machine does not support are reported.
"""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace_verify.blackbox.cluster import HasBookies, HasEnsemble
from headrace_verify.blackbox.link import TO_BROKER, TO_CLIENTS
from headrace_verify.blackbox.schedule import (
    BOOKIE_FAULTS,
    CALM_S,
    CHAINS,
    ENSEMBLE_FAULTS,
    MANY_FAULTS,
    NETWORK_FAULTS,
    NODE_FAULTS,
    ROLLING_FAULTS,
    Fault,
)
from headrace_verify.history import NOTE, OK, History, now_ns
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_verify.blackbox.cluster import Cluster
    from headrace_verify.blackbox.crew import Crew

DELAY_S_MAX = 0.3
CLOCK_JUMP_S_MAX = 3_600
FILE_BYTES_MAX = 4 << 20
DIE_AFTER_S_MAX = 1.2
SLOW_S_MIN, SLOW_S_MAX = 0.5, 7.0
"""For a bookie's responses: a broker's time-out is 5 s, clients' is 4 s."""
_DIRECTIONS = {"cut": (), "cut-to-broker": (TO_BROKER,), "cut-to-clients": (TO_CLIENTS,)}


@dataclass(slots=True)
class InjectedFault:
    """A fault as executed."""

    fault: Fault
    target: str
    began_ns: int
    healed_ns: int


@dataclass(slots=True)
class Done:
    """All executed faults, and problems meanwhile."""

    injected: list[InjectedFault] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


class FaultInjector:
    """Executes a schedule."""

    def __init__(self, cluster: Cluster, crew: Crew, history: History, seconds: float) -> None:
        self._cluster = cluster
        self._crew = crew
        self._history = history
        self._missing = cluster.missing()
        self._seconds = seconds
        self._left_out = 0
        self._over = threading.Event()
        self._released = threading.Event()
        self.done = Done()
        self.now = ""
        """A description of the active faults."""

    def run(
        self, schedule: Sequence[Fault], begun_ns: int, on_progress: Callable[[], None]
    ) -> None:
        """Execute everything; returns when everything is healed."""
        ends = []
        for chain in CHAINS:
            faults = [fault for fault in schedule if fault.chain == chain]
            end = threading.Event()
            arguments = (faults, begun_ns, end)
            threading.Thread(target=self._thread, args=arguments, daemon=True).start()
            ends.append(end)
        for end in ends:
            while not end.wait(0.2):
                on_progress()

    def close(self) -> None:
        """Let the threads end, after all processes have exited."""
        self._over.set()
        self._released.set()

    def _thread(self, faults: Sequence[Fault], begun_ns: int, end: threading.Event) -> None:
        try:
            self._work(faults, begun_ns)
        finally:
            end.set()
        # A process dies with the thread that started it (PR_SET_PDEATHSIG), so the thread must live
        # on.
        self._released.wait()

    def _work(self, faults: Sequence[Fault], begun_ns: int) -> None:
        free_s = 0.0
        for fault in faults:
            if fault.kind in self._missing:
                self.done.skipped[fault.kind] = self._missing[fault.kind]
                continue
            # A start may take longer than was drawn: the calm between two faults is kept
            # nevertheless.
            wait_s = max(fault.at_s, free_s) - (now_ns() - begun_ns) / 1e9
            if self._over.wait(max(0.0, wait_s)):
                return
            if (now_ns() - begun_ns) / 1e9 + fault.lasts_s > self._seconds + CALM_S:
                self._left_out += 1
                why = f"{self._left_out} of the schedule: the run ended before they were due"
                self.done.skipped["late faults"] = why
                continue
            try:
                self._do(fault)
            except (HeadraceError, OSError) as error:
                self.done.wrong.append(f"{fault.kind} at {fault.at_s} s: {error}")
            free_s = (now_ns() - begun_ns) / 1e9 + CALM_S

    def _do(self, fault: Fault) -> None:
        began_ns = now_ns()
        self.now = fault.kind
        fields = {"what": "fault", "fault": fault.kind, "lasts_s": fault.lasts_s}
        self._history.write(OK, NOTE, **fields)
        if fault.kind in MANY_FAULTS:
            target = self._fault_many(fault)
        elif fault.kind in BOOKIE_FAULTS:
            target = self._fault_bookie(fault)
        elif fault.kind in ENSEMBLE_FAULTS:
            target = self._fault_ensemble(fault)
        elif fault.kind in ROLLING_FAULTS:
            target = self._roll(fault)
        elif fault.kind in NODE_FAULTS:
            target = self._fault_node(fault)
        elif fault.kind in NETWORK_FAULTS:
            target = self._fault_link(fault)
        else:
            target = self._fault_client(fault)
        self._history.write(OK, NOTE, what="healed", fault=fault.kind, target=target)
        self.now = ""
        self.done.injected.append(InjectedFault(fault, target, began_ns, now_ns()))

    def _fault_node(self, fault: Fault) -> str:
        cluster, targets = self._cluster, self._cluster.targets(fault.kind)
        node = targets[fault.target % len(targets)]
        name = cluster.name(node)
        if not cluster.is_alive(node):
            words = cluster.log_tail(node)
            self.done.wrong.append(f"{name} had exited on its own before {fault}: {words}")
            cluster.kill(node)
            cluster.start(node)
        match fault.kind:
            case "kill":
                cluster.kill(node)
                self._over.wait(fault.lasts_s)
                cluster.start(node)
            case "kill-in-start":
                cluster.kill(node)
                cluster.start_and_die(node, fault.strength * DIE_AFTER_S_MAX)
                self._over.wait(fault.lasts_s)
                cluster.start(node)
            case "stop":
                code = cluster.stop(node)
                if code:
                    self.done.wrong.append(f"{name} was stopped, and exited with code {code}")
                self._over.wait(fault.lasts_s)
                cluster.start(node)
            case "pause":
                cluster.pause(node)
                self._over.wait(fault.lasts_s)
                cluster.resume(node)
            case "disk":
                cluster.limit_files(node, int(fault.strength * FILE_BYTES_MAX))
                self._over.wait(fault.lasts_s)
                cluster.limit_files(node, None)
            case _:
                jump_s = (fault.strength * 2 - 1) * CLOCK_JUMP_S_MAX
                cluster.set_clock(node, jump_s)
                self._over.wait(fault.lasts_s)
                cluster.set_clock(node, 0.0)
        return name

    def _fault_bookie(self, fault: Fault) -> str:
        cluster, targets = self._cluster, self._cluster.targets(fault.kind)
        assert isinstance(cluster, HasBookies), "the target supports its own kinds of faults"
        node = targets[fault.target % len(targets)]
        if fault.kind == "journal":
            cluster.fill_journal(node, int(fault.strength * FILE_BYTES_MAX))
            self._over.wait(fault.lasts_s)
            cluster.fill_journal(node, None)
        else:
            cluster.slow_bookie(node, SLOW_S_MIN + fault.strength * (SLOW_S_MAX - SLOW_S_MIN))
            self._over.wait(fault.lasts_s)
            cluster.slow_bookie(node, 0.0)
        return cluster.name(node)

    def _fault_ensemble(self, fault: Fault) -> str:
        cluster, targets = self._cluster, self._cluster.targets(fault.kind)
        assert isinstance(cluster, HasEnsemble), "the target supports its own kinds of faults"
        if fault.kind == "kill-leader":
            node = cluster.leader()
            cluster.kill(node)
            self._over.wait(fault.lasts_s)
            cluster.start(node)
        else:
            node = targets[fault.target % len(targets)]
            cluster.fill_zookeeper(node, int(fault.strength * FILE_BYTES_MAX))
            self._over.wait(fault.lasts_s)
            cluster.fill_zookeeper(node, None)
        return cluster.name(node)

    def _roll(self, fault: Fault) -> str:
        cluster, targets = self._cluster, self._cluster.targets(fault.kind)
        for node in targets:
            code = cluster.stop(node)
            if code:
                self.done.wrong.append(
                    f"{cluster.name(node)} was restarted: it exited with code {code}"
                )
            cluster.start(node)
        return ", ".join(cluster.name(node) for node in targets)

    def _fault_many(self, fault: Fault) -> str:
        """Choose two or more nodes, at most half plus one of them."""
        cluster, targets = self._cluster, sorted(set(self._cluster.targets(fault.kind)))
        rng = seeded(f"{fault.target} {fault.strength}")
        count = min(len(targets), 2 + int(fault.strength * len(targets) / 2))
        nodes = rng.sample(targets, count)
        if fault.kind == "kill-many":
            cluster.kill(*nodes)
            self._over.wait(fault.lasts_s)
            cluster.start(*nodes)
        else:
            for node in nodes:
                cluster.pause(node)
            self._over.wait(fault.lasts_s)
            for node in nodes:
                cluster.resume(node)
        return ", ".join(cluster.name(node) for node in sorted(nodes))

    def _fault_link(self, fault: Fault) -> str:
        links = self._cluster.links
        link = links[fault.target % len(links)]
        is_for_all = fault.strength > 0.5
        if fault.kind == "reset":
            link.reset(is_for_all=is_for_all)
        elif fault.kind == "delay":
            link.slow(fault.strength * DELAY_S_MAX)
        else:
            link.cut(*_DIRECTIONS[fault.kind], is_for_all=is_for_all)
        self._over.wait(fault.lasts_s)
        link.heal()
        return f"{link.name}{'' if is_for_all else ', half of its connections'}"

    def _fault_client(self, fault: Fault) -> str:
        client = self._crew.pick(fault.target)
        if fault.kind == "pause-client":
            client.signal(signal.SIGSTOP)
            self._over.wait(fault.lasts_s)
            client.signal(signal.SIGCONT)
        else:
            self._crew.kill(client)
            self._over.wait(fault.lasts_s)
            self._crew.replace(client)
        return client.spec.name
