"""The brokers under test, seen as processes that can be started, killed, frozen and starved.

Invariants: imports no broker code. `Cluster` is the interface: a run knows nodes by number, links
by number, and a bootstrap address. This module implements a single broker; `workers` those of one
machine, `real_cluster` brokers with their ZooKeepers and bookies.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace_verify.blackbox.fake_clock import WHY_NO_CLOCK, FakeClock
from headrace_verify.real_broker import HAS_ROCKETMQ, RealBroker
from headrace_verify.self_proof import spoiled_launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace_verify.blackbox.link import Network


class Breakable(Protocol):
    """A link that can be cut, delayed and reset: a proxy, or packets between nodes."""

    name: str

    def cut(self, *directions: str, is_for_all: bool = True) -> None:
        """Block these directions; none given: both."""
        ...

    def heal(self) -> None:
        """Unblock everything."""
        ...

    def slow(self, delay_s: float) -> None:
        """Delay everything by this much."""
        ...

    def reset(self, *, is_for_all: bool = True) -> None:
        """Reset connections."""
        ...


class Cluster(Protocol):
    """Nodes that faults can hit, and links that can be cut."""

    liveness_s: float
    """After the last healing, a new client must write and read within this time."""

    @property
    def node_count(self) -> int:
        """The number of nodes; they are numbered from 0."""
        ...

    @property
    def bootstrap(self) -> str:
        """Where clients connect: through the links."""
        ...

    @property
    def http(self) -> str:
        """Where HTTP clients connect, in the form of `bootstrap`: one address per broker."""
        ...

    @property
    def rocketmq(self) -> str:
        """Where RocketMQ's clients connect, in the same form; empty: nowhere."""
        ...

    @property
    def links(self) -> Sequence[Breakable]:
        """Between clients and nodes, and between nodes."""
        ...

    def targets(self, kind: str) -> Sequence[int]:
        """The nodes that a kind of fault may hit; a likelier one is listed more than once."""
        ...

    def name(self, node: int) -> str:
        """A readable name."""
        ...

    def start(self, *nodes: int) -> None:
        """Start these nodes, or all, and wait until they serve. Raises Fatal."""
        ...

    def start_and_die(self, node: int, after_s: float) -> None:
        """Start a node and kill it after this time."""
        ...

    def stop(self, node: int) -> int:
        """Stop a node regularly; returns its exit code."""
        ...

    def kill(self, *nodes: int) -> None:
        """kill -9 these nodes, or all, at once."""
        ...

    def pause(self, node: int) -> None:
        """Freeze it."""
        ...

    def resume(self, node: int) -> None:
        """Thaw it."""
        ...

    def limit_files(self, node: int, size_bytes: int | None) -> None:
        """Fill its disk completely or nearly: writes fail soon or immediately; None: undo."""
        ...

    def set_clock(self, node: int, offset_s: float) -> None:
        """Let its wall clock jump. Only if `missing` does not name `clock`."""
        ...

    def missing(self) -> dict[str, str]:
        """Kinds of faults that cannot be injected here, and why."""
        ...

    def is_alive(self, node: int) -> bool:
        """Whether its process is running."""
        ...

    def log_tail(self, node: int) -> str:
        """The end of its log."""
        ...

    def complaints(self) -> Sequence[str]:
        """What an operator would complain about once everything is healed."""
        ...

    def logs(self) -> Mapping[str, Path]:
        """The logs to keep, by name."""
        ...

    def close(self) -> None:
        """Kill everything and remove its data."""
        ...


class Bundle:
    """Links that fail together: all paths to one node. Used like a Link."""

    def __init__(self, name: str, *links: Breakable) -> None:
        self.name = name
        self._links = links

    def cut(self, *directions: str, is_for_all: bool = True) -> None:
        """See Breakable."""
        for link in self._links:
            link.cut(*directions, is_for_all=is_for_all)

    def heal(self) -> None:
        """See Breakable."""
        for link in self._links:
            link.heal()

    def slow(self, delay_s: float) -> None:
        """See Breakable."""
        for link in self._links:
            link.slow(delay_s)

    def reset(self, *, is_for_all: bool = True) -> None:
        """See Breakable."""
        for link in self._links:
            link.reset(is_for_all=is_for_all)


@runtime_checkable
class HasBookies(Protocol):
    """A cluster that supports bookie faults, too. Nodes as `targets` names them."""

    def fill_journal(self, node: int, left_bytes: int | None) -> None:
        """Limit its journal's disk to this much space; None: undo, and it runs again."""
        ...

    def slow_bookie(self, node: int, delay_s: float) -> None:
        """Delay its responses; 0: undo."""
        ...


@runtime_checkable
class HasEnsemble(Protocol):
    """A cluster with its own ZooKeepers. Nodes as `targets` names them."""

    def leader(self) -> int:
        """The ZooKeeper that is leader; any of them if there is none at the moment."""
        ...

    def fill_zookeeper(self, node: int, left_bytes: int | None) -> None:
        """Limit its disk to this much space; None: undo, and it runs again."""
        ...


class SingleBroker:
    """A single broker."""

    def __init__(self, folder: Path, network: Network, bug: str | None = None) -> None:
        self._network = network
        link = network.link(lambda: self.broker.address)
        http = network.link(lambda: self.broker.http_address)
        rocketmq = network.link(lambda: self.broker.rocketmq_addresses[0])
        self.links = [Bundle(link.name, link, http, rocketmq)]
        host, port = link.address
        self.bootstrap = f"{host}:{port}"
        self.http = f"{http.address[0]}:{http.address[1]}"
        self.rocketmq = f"{rocketmq.address[0]}:{rocketmq.address[1]}" if HAS_ROCKETMQ else ""
        launch: tuple[str, ...] = ()
        if bug is not None:
            launch = spoiled_launch("blackbox", bug)
        options = ["--advertise", self.bootstrap, "--no-auto-create-topics"]
        options += ["--rocketmq", "127.0.0.1:0"] if HAS_ROCKETMQ else []
        self.broker = RealBroker(folder, options, launch)
        self._clock = FakeClock.find(folder / "clock")
        if self._clock is not None:
            self.broker.environment = self._clock.environment

    node_count = 1
    liveness_s = 15.0

    def targets(self, kind: str) -> Sequence[int]:
        """See Cluster."""
        return (0,)

    def name(self, node: int) -> str:
        """See Cluster."""
        return "broker"

    def start(self, *nodes: int) -> None:
        """See Cluster."""
        self.broker.start()

    def start_and_die(self, node: int, after_s: float) -> None:
        """See Cluster."""
        self.broker.start_and_die(after_s)

    def stop(self, node: int) -> int:
        """See Cluster."""
        return self.broker.terminate()

    def kill(self, *nodes: int) -> None:
        """See Cluster."""
        self.broker.kill()

    def pause(self, node: int) -> None:
        """See Cluster."""
        self._signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """See Cluster."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self.broker.pid is not None:
            os.kill(self.broker.pid, number)

    def limit_files(self, node: int, size_bytes: int | None) -> None:
        """See Cluster. EFBIG instead of ENOSPC: available on every machine, and it truncates
        writes."""
        if self.broker.pid is not None:
            limit = resource.RLIM_INFINITY if size_bytes is None else size_bytes
            limits = limit, resource.RLIM_INFINITY
            resource.prlimit(self.broker.pid, resource.RLIMIT_FSIZE, limits)

    def set_clock(self, node: int, offset_s: float) -> None:
        """See Cluster."""
        if self._clock is not None:
            self._clock.jump(offset_s)

    def missing(self) -> dict[str, str]:
        """See Cluster."""
        found = {}
        if self._clock is None:
            found["clock"] = WHY_NO_CLOCK
        if not hasattr(resource, "prlimit"):
            found["disk"] = "no prlimit here: disks cannot be filled"
        return found

    def is_alive(self, node: int) -> bool:
        """See Cluster."""
        return self.broker.pid is not None and not self.broker.has_ended

    def log_tail(self, node: int) -> str:
        """See Cluster."""
        return self.broker.log_tail()

    def complaints(self) -> Sequence[str]:
        """See Cluster."""
        return ()

    def logs(self) -> Mapping[str, Path]:
        """See Cluster."""
        return {"broker.log": self.broker.log_path}

    def close(self) -> None:
        """See Cluster."""
        self.resume(0)
        self.broker.kill()
        shutil.rmtree(self.broker.data_dir, ignore_errors=True)
