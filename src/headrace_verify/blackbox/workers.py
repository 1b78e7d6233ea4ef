"""Workers of one machine under test: `headrace serve --workers N`, including its supervisor.

Invariants: known only by processes and ports. A worker is found by its command line among the
supervisor's children; only the supervisor restarts it.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.dev_cluster.ports import free_ports
from headrace.errors import Fatal
from headrace_verify.blackbox.fabric import CLIENTS, Edge
from headrace_verify.blackbox.fake_clock import WHY_NO_CLOCK, FakeClock
from headrace_verify.blackbox.forwarder import FORWARDER_PORT, LOOPBACK, Forwarder
from headrace_verify.blackbox.nodes import RETRY_S, BrokerNode, Deadline
from headrace_verify.real_broker import HAS_ROCKETMQ, RealBroker
from headrace_verify.self_proof import spoiled_launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace_verify.blackbox.cluster import Breakable
    from headrace_verify.blackbox.fabric import Fabric

WORKERS = 3
MACHINE = "machine"
_PROBE_S = 1.0
_ENDED = re.compile(r"worker (\d+) ended with code (-?\d+): starting")
_ASKED_FOR = {0, -9, -15}


class Workers:
    """See Cluster. Node 0 is the supervisor, the others are its workers."""

    liveness_s = 30.0
    """The supervisor waits up to 5 s before it restarts one that dies repeatedly."""

    def __init__(self, folder: Path, fabric: Fabric | None, bug: str | None = None) -> None:
        self._folder = folder
        launch = tuple(RealBroker.command())
        if bug is not None:
            launch = spoiled_launch("blackbox", bug)
        self.links: list[Breakable] = []
        if fabric is None:
            first = free_ports(3 * WORKERS)
            self._host, kafka = LOOPBACK, first
            http, rocketmq = first + WORKERS, first + 2 * WORKERS
        else:
            self._host, kafka, http, rocketmq = fabric.add(MACHINE), 9092, 9180, 8081
            launch = (*fabric.launch(MACHINE), *launch)
            self.links.append(Edge(fabric, "the workers and their clients", [(CLIENTS, MACHINE)]))
        self._has_network = fabric is not None
        self._forwarders: list[Forwarder] = []
        https = [f"{self._host}:{http + number}" for number in range(WORKERS)]
        if fabric is not None:
            # HTTP administration is served only on the machine's loopback interface.
            for number in range(WORKERS):
                here, there = (self._host, FORWARDER_PORT + number), (LOOPBACK, http + number)
                self._forwarders.append(Forwarder(fabric.launch(MACHINE), here, there))
            https = [forwarder.address for forwarder in self._forwarders]
        self.http = ",".join(https)
        ports = range(rocketmq, rocketmq + WORKERS) if HAS_ROCKETMQ else ()
        self.rocketmq = ",".join(f"{self._host}:{port}" for port in ports)
        options = ["--workers", str(WORKERS), "--no-auto-create-topics"]
        options += ["--insecure"] if fabric is not None else []
        options += ["--rocketmq", f"{self._host}:{rocketmq}"] if HAS_ROCKETMQ else []
        broker = RealBroker(folder, options, launch)
        broker.listen(self._host, kafka, http, None if fabric is None else LOOPBACK)
        self._ports = [kafka + number for number in range(WORKERS)]
        self._all = BrokerNode("supervisor", broker, FakeClock.find(folder / "clock"))
        self.bootstrap = ",".join(f"{self._host}:{port}" for port in self._ports)
        self.node_count = 1 + WORKERS
        self._killed: dict[int, int] = {}
        """Node -> the process that was killed or stopped."""

    def targets(self, kind: str) -> Sequence[int]:
        """See Cluster."""
        workers = range(1, self.node_count)
        if kind in {"disk", "kill-in-start"}:
            return workers
        return [0] if kind == "clock" else [0, *workers]

    def name(self, node: int) -> str:
        """See Cluster."""
        return f"worker {node - 1}" if node else "supervisor"

    def start(self, *nodes: int) -> None:
        """See Cluster: waits for a worker."""
        self._all.wait()
        deadline = Deadline()
        for node in nodes or range(1, self.node_count):
            while node and not self._serves(node):
                if deadline.is_over:
                    raise Fatal(f"{self.name(node)} does not return: {self.log_tail(0)}")
                time.sleep(RETRY_S)

    def start_and_die(self, node: int, after_s: float) -> None:
        """See Cluster."""
        deadline = Deadline()
        while self._pid(node) in {None, self._killed.get(node)} and not deadline.is_over:
            time.sleep(0.01)
        time.sleep(after_s)
        self.kill(node)

    def stop(self, node: int) -> int:
        """See Cluster."""
        if not node:
            return self._all.stop()
        pid = self._signal(node, signal.SIGTERM)
        deadline = Deadline()
        while pid is not None and self._pid(node) == pid and not deadline.is_over:
            time.sleep(0.02)
        return 0  # the supervisor logs its exit code: see `complaints`

    def kill(self, *nodes: int) -> None:
        """See Cluster."""
        if not nodes or 0 in nodes:
            self._all.kill()
        for node in nodes:
            if node:
                self._signal(node, signal.SIGKILL)

    def pause(self, node: int) -> None:
        """See Cluster."""
        self._signal(node, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """See Cluster."""
        self._signal(node, signal.SIGCONT)

    def limit_files(self, node: int, size_bytes: int | None) -> None:
        """See Cluster."""
        pid = self._pid(node)
        if pid is not None:
            limit = resource.RLIM_INFINITY if size_bytes is None else size_bytes
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def set_clock(self, node: int, offset_s: float) -> None:
        """See Cluster: all workers share one."""
        if self._all.clock is not None:
            self._all.clock.jump(offset_s)

    def missing(self) -> dict[str, str]:
        """See Cluster."""
        found = {}
        if self._all.clock is None:
            found["clock"] = WHY_NO_CLOCK
        if not hasattr(resource, "prlimit"):
            found["disk"] = "no prlimit here: disks cannot be filled"
        if not self._has_network:
            why = "no network namespace here, and workers cannot be put behind proxies"
            found |= dict.fromkeys(("cut", "cut-to-broker", "cut-to-clients"), why)
            found |= dict.fromkeys(("delay", "reset"), why)
        return found

    def is_alive(self, node: int) -> bool:
        """See Cluster: the supervisor handles a dead worker."""
        return self._all.is_alive

    def log_tail(self, node: int) -> str:
        """See Cluster."""
        return self._all.broker.log_tail()

    def complaints(self) -> Sequence[str]:
        """See Cluster: workers that exited without being stopped."""
        found = []
        for line in self._all.log_path.read_text(errors="replace").splitlines():
            found_end = _ENDED.search(line)
            if found_end and int(found_end[2]) not in _ASKED_FOR:
                found.append(f"worker {found_end[1]} exited on its own, with code {found_end[2]}")
        return found

    def logs(self) -> Mapping[str, Path]:
        """See Cluster."""
        return {"broker.log": self._all.log_path}

    def close(self) -> None:
        """The process of a supervisor's worker; None if there is none, or no /proc to find it
        in."""
        for node in range(1, self.node_count):
            self._signal(node, signal.SIGKILL)
        self._all.kill()
        for forwarder in self._forwarders:
            forwarder.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _pid(self, node: int) -> int | None:
        above = self._all.broker.pid
        return above if not node or above is None else worker_pid(above, node - 1)

    def _signal(self, node: int, number: int) -> int | None:
        pid = self._pid(node)
        if pid is not None:
            if number in {signal.SIGKILL, signal.SIGTERM}:
                self._killed[node] = pid
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return None
        return pid

    def _serves(self, node: int) -> bool:
        if self._pid(node) in {None, self._killed.get(node)}:
            return False
        try:
            socket.create_connection((self._host, self._ports[node - 1]), _PROBE_S).close()
        except OSError:
            return False
        return True


def worker_pid(supervisor: int, number: int) -> int | None:
    """The process of a supervisor's worker; None if there is none, or no /proc to find it in."""
    wanted = f"--worker\0{number}\0"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if wanted in path.read_text():
                stat = path.with_name("stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == supervisor:
                    return int(path.parent.name)
        except OSError:
            continue  # it has exited meanwhile
    return None
