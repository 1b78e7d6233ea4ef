"""A real cluster under test: ZooKeepers, bookies, brokers, and the links between them.

Invariants: known only by commands, ports and addresses. In a private network, each node has its own
address and any pair of nodes can be cut; otherwise all are on the loopback interface, with proxies
between clients and brokers, and between brokers and ZooKeepers.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.dev_cluster.cluster import DevCluster
from headrace.dev_cluster.settings import ClusterOptions, ServerPlace
from headrace_verify.blackbox.cluster import Bundle
from headrace_verify.blackbox.fabric import CLIENTS, Edge
from headrace_verify.blackbox.fake_clock import WHY_NO_CLOCK, FakeClock
from headrace_verify.blackbox.forwarder import FORWARDER_PORT, LOOPBACK, Forwarder
from headrace_verify.blackbox.nodes import BrokerNode, Node, ServerNode, SlowAnswers, SmallDisk
from headrace_verify.blackbox.schedule import BOOKIE_FAULTS, ENSEMBLE_FAULTS
from headrace_verify.real_broker import HAS_ROCKETMQ, RealBroker
from headrace_verify.self_proof import spoiled_launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace_verify.blackbox.cluster import Breakable
    from headrace_verify.blackbox.fabric import Fabric
    from headrace_verify.blackbox.link import Network


class Size(NamedTuple):
    """The number of each."""

    brokers: int
    bookies: int
    zookeepers: int


WHOLE, SMALL = Size(3, 4, 3), Size(2, 3, 1)
"""A quick run can start SMALL in time."""
SESSION_MS = 2_000
BOOKIE_SESSION_MS = 10_000
"""Longer than any time-out: a slow bookie still counts as alive."""
KAFKA_PORT, HTTP_PORT, ROCKETMQ_PORT = 9092, 9180, 8081
LEDGER_DISK_BYTES = 96 << 20
"""A bookie's disk for `_LOAD_S` seconds of the full load, or less: a permanently full one is
useless, and does not return while its journal does not fit into its ledgers."""
_LOAD_S = 240.0
JOURNAL_DISK_BYTES = 192 << 20
ZOOKEEPER_DISK_BYTES = 256 << 20
_BOOKIE_SETTINGS = {
    "diskCheckInterval": "1000",
    "journalMaxGroupWaitMSec": "1",
    # The journal's disk is small, too, and must never be full of obsolete data.
    "journalMaxSizeMB": "16",
    "journalMaxBackups": "1",
}
_VERIFY_TIMEOUT_S = 60


class RealCluster:
    """See Cluster. Nodes: brokers first, then bookies, then ZooKeepers."""

    liveness_s = 40.0
    """A machine that runs everything is slow; sessions and elections take seconds."""

    def __init__(
        self,
        folder: Path,
        network: Network,
        fabric: Fabric | None,
        size: Size = WHOLE,
        bug: str | None = None,
        load_s: float = 0.0,
    ) -> None:
        """`load_s`: duration of the full load, or half the duration of half of it."""
        self._folder = folder
        self._ledger_disk_bytes = int(LEDGER_DISK_BYTES * max(1.0, load_s / _LOAD_S))
        self._size = size
        self._fabric = fabric
        self._launch: tuple[str, ...] = ()
        if bug is not None:
            self._launch = spoiled_launch("blackbox", bug)
        self._disks: list[SmallDisk] = []
        self._journals: list[SmallDisk] = []
        self._zookeeper_disks: list[SmallDisk] = []
        self._slow: dict[int, SlowAnswers] = {}
        places = self._make_places()
        options = ClusterOptions(
            bookie_count=size.bookies,
            zookeeper_count=size.zookeepers,
            bookie_settings=_BOOKIE_SETTINGS,
            bookie_session_timeout_ms=BOOKIE_SESSION_MS,
            places=places,
        )
        self._servers = DevCluster(folder / "servers", options)
        self._servers.start()
        self.links: list[Breakable] = []
        self._addresses: list[tuple[str, int]] = []
        self._forwarders: list[Forwarder] = []
        self._https: list[str] = []
        self._rocketmqs: list[str] = []
        self._brokers = self._make_brokers(network)
        self.http = ",".join(self._https)
        self.rocketmq = ",".join(self._rocketmqs if HAS_ROCKETMQ else ())
        self.bootstrap = ",".join(f"{host}:{port}" for host, port in self._addresses)
        wait_ready = self._servers.wait_ready
        servers = [*self._servers.bookies, *self._servers.zookeepers]
        self._nodes: list[Node] = [*self._brokers]
        self._nodes += [ServerNode(server, wait_ready) for server in servers]
        self.node_count = len(self._nodes)

    # --- parts -------------------------------------------------------------------------------

    def _make_places(self) -> dict[str, ServerPlace]:
        fabric, places = self._fabric, {}
        if fabric is None:
            return {}
        for number in range(1, self._size.bookies + 1):
            name = f"bookie-{number}"
            places[name] = ServerPlace(fabric.add(name), "eth0", fabric.launch(name))
            folder = self._folder / "servers" / name
            self._disks.append(SmallDisk(folder / "ledgers", self._ledger_disk_bytes))
            self._journals.append(SmallDisk(folder / "journal", JOURNAL_DISK_BYTES))
        for number in range(1, self._size.zookeepers + 1):
            name = "zookeeper" if number == 1 else f"zookeeper-{number}"
            places[name] = ServerPlace(fabric.add(name), "eth0", fabric.launch(name))
            folder = self._folder / "servers" / name
            self._zookeeper_disks.append(SmallDisk(folder / "data", ZOOKEEPER_DISK_BYTES))
        return places

    def _make_brokers(self, network: Network) -> list[BrokerNode]:
        made = []
        for number in range(1, self._size.brokers + 1):
            name = f"broker-{number}"
            options = ["--broker-id", str(number), "--no-auto-create-topics"]
            options += ["--session-timeout-ms", str(SESSION_MS)]
            if self._fabric is None:
                broker = self._behind_proxies(network, name, options)
            else:
                options += ["--zookeeper", self._servers.zookeeper_addresses, "--insecure"]
                host = self._fabric.add(name)
                self._rocketmqs.append(f"{host}:{ROCKETMQ_PORT}")
                options += ["--rocketmq", self._rocketmqs[-1]] if HAS_ROCKETMQ else []
                launch = self._launch or tuple(RealBroker.command())
                enter = self._fabric.launch(name)
                broker = RealBroker(self._folder / name, options, (*enter, *launch))
                broker.listen(host, KAFKA_PORT, HTTP_PORT, LOOPBACK)
                # HTTP administration is served only on loopback: that of the broker's namespace.
                forwarder = Forwarder(enter, (host, FORWARDER_PORT), (LOOPBACK, HTTP_PORT))
                self._forwarders.append(forwarder)
                self._https.append(forwarder.address)
                self._addresses.append(broker.address)
            made.append(BrokerNode(name, broker, FakeClock.find(self._folder / name / "clock")))
        if self._fabric is not None:
            self.links += self._edges(self._fabric)
        return made

    def _behind_proxies(self, network: Network, name: str, options: list[str]) -> RealBroker:
        zookeepers = []
        for server in self._servers.zookeepers:
            address = server.host, server.port
            link = network.link(partial(_same, address), f"{name} and {server.name}")
            self.links.append(link)
            zookeepers.append(f"{link.address[0]}:{link.address[1]}")
        front = network.link(lambda: broker.address, f"{name} and its clients")
        web = network.link(lambda: broker.http_address)
        self._https.append(f"{web.address[0]}:{web.address[1]}")
        rocket = network.link(lambda: broker.rocketmq_addresses[0])
        self._rocketmqs.append(f"{rocket.address[0]}:{rocket.address[1]}")
        options += ["--rocketmq", "127.0.0.1:0"] if HAS_ROCKETMQ else []
        self.links.append(Bundle(front.name, front, web, rocket))
        self._addresses.append(front.address)
        host, port = front.address
        options += ["--zookeeper", ",".join(zookeepers), "--advertise", f"{host}:{port}"]
        broker = RealBroker(self._folder / name, options, self._launch)
        return broker

    def _edges(self, fabric: Fabric) -> list[Breakable]:
        """What may be cut: of each broker its clients, ZooKeepers, bookies, peers, everything; of
        bookies and ZooKeepers each other, and everything."""
        brokers = [f"broker-{number}" for number in range(1, self._size.brokers + 1)]
        bookies = [f"bookie-{number}" for number in range(1, self._size.bookies + 1)]
        zookeepers = sorted(set(self._servers.options.places) - set(bookies))
        groups: dict[str, list[tuple[str, str]]] = {}
        for at, broker in enumerate(brokers):
            peers = [peer for peer in brokers if peer != broker]
            groups[f"{broker} and its clients"] = [(CLIENTS, broker)]
            groups[f"{broker} and ZooKeeper"] = [(broker, one) for one in zookeepers]
            groups[f"{broker} and all bookies"] = [(broker, one) for one in bookies]
            one_bookie = bookies[at % len(bookies)]
            groups[f"{broker} and {one_bookie}"] = [(broker, one_bookie)]
            groups[f"{broker} and its peers"] = [(broker, one) for one in peers]
            all_others = [CLIENTS, *peers, *bookies, *zookeepers]
            groups[f"{broker} and all others"] = [(broker, one) for one in all_others]
        for bookie in bookies:
            groups[f"{bookie} and ZooKeeper"] = [(bookie, one) for one in zookeepers]
            others = [*brokers, *zookeepers, *(one for one in bookies if one != bookie)]
            groups[f"{bookie} and all others"] = [(bookie, one) for one in others]
        for one in zookeepers:
            fellows = [fellow for fellow in zookeepers if fellow != one]
            if fellows:
                groups[f"{one} and its ensemble"] = [(one, fellow) for fellow in fellows]
            groups[f"{one} and all others"] = [(one, o) for o in [*fellows, *brokers, *bookies]]
        return [Edge(fabric, name, pairs) for name, pairs in groups.items()]

    # --- faults ------------------------------------------------------------------------------

    def targets(self, kind: str) -> Sequence[int]:
        """See Cluster: half of the faults hit brokers."""
        brokers = range(self._size.brokers)
        bookies = range(self._size.brokers, self._size.brokers + self._size.bookies)
        if kind in {"kill-in-start", "clock", "roll-brokers"}:
            return brokers
        if kind in {"disk", "roll-bookies"} or kind in BOOKIE_FAULTS:
            return bookies
        zookeepers = range(self._size.brokers + self._size.bookies, self.node_count)
        if kind in ENSEMBLE_FAULTS:
            return zookeepers
        return [*brokers, *brokers, *bookies, *zookeepers]

    def name(self, node: int) -> str:
        """See Cluster."""
        return self._nodes[node].name

    def start(self, *nodes: int) -> None:
        """See Cluster. ZooKeepers first, bookies next, brokers last."""
        chosen = [self._nodes[node] for node in sorted(nodes or range(self.node_count))]
        ours = [node for node in chosen if node.is_ours]
        others = [node for node in chosen if not node.is_ours]
        for node in reversed(others):
            node.begin()
        for node in (*reversed(others), *ours):
            node.wait()

    def start_and_die(self, node: int, after_s: float) -> None:
        """See Cluster."""
        self._brokers[node].start_and_die(after_s)

    def stop(self, node: int) -> int:
        """See Cluster."""
        return self._nodes[node].stop()

    def kill(self, *nodes: int) -> None:
        """See Cluster."""
        for node in nodes or range(self.node_count):
            self._nodes[node].kill()

    def pause(self, node: int) -> None:
        """See Cluster."""
        self._nodes[node].signal(signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """See Cluster."""
        self._nodes[node].signal(signal.SIGCONT)

    def limit_files(self, node: int, size_bytes: int | None) -> None:
        """See Cluster: the disk of a bookie's ledgers is full."""
        self._fill(self._disks[node - self._size.brokers], node, size_bytes)

    def fill_journal(self, node: int, left_bytes: int | None) -> None:
        """See HasBookies: it exits at the first entry that it cannot write."""
        self._fill(self._journals[node - self._size.brokers], node, left_bytes)

    def leader(self) -> int:
        """See HasEnsemble."""
        first = self._size.brokers + self._size.bookies
        return first + self._servers.leading_zookeeper()

    def fill_zookeeper(self, node: int, left_bytes: int | None) -> None:
        """See HasEnsemble: it exits at the first transaction that it cannot write."""
        first = self._size.brokers + self._size.bookies
        self._fill(self._zookeeper_disks[node - first], node, left_bytes)

    def _fill(self, disk: SmallDisk, node: int, left_bytes: int | None) -> None:
        if left_bytes is None:
            disk.empty()
            self.start(node)  # it may have exited, or be read-only
        else:
            disk.fill(left_bytes)

    def slow_bookie(self, node: int, delay_s: float) -> None:
        """See HasBookies."""
        before = self._slow.pop(node, None)
        if before is not None:
            before.end()
            self.start(node)  # it may have exited, with its session
        if delay_s:
            self._slow[node] = SlowAnswers(self._nodes[node], delay_s)

    def set_clock(self, node: int, offset_s: float) -> None:
        """See Cluster."""
        clock = self._brokers[node].clock
        if clock is not None:
            clock.jump(offset_s)

    def missing(self) -> dict[str, str]:
        """See Cluster."""
        found: dict[str, str] = {}
        if not self._disks:
            why = "no mount namespace here: disks of bookies cannot be filled"
            found |= {"disk": why, "journal": why, "zookeeper-disk": why}
        if self._brokers[0].clock is None:
            found["clock"] = WHY_NO_CLOCK
        return found

    # --- observation -------------------------------------------------------------------------

    def is_alive(self, node: int) -> bool:
        """See Cluster. Not checked for Apache's servers: they may exit."""
        found = self._nodes[node]
        if not found.is_ours and not found.is_alive:
            self.start(node)
        return found.is_alive

    def log_tail(self, node: int) -> str:
        """See Cluster."""
        path = self._nodes[node].log_path
        return path.read_text(errors="replace")[-800:] if path.exists() else ""

    def complaints(self) -> Sequence[str]:
        """See Cluster: the findings of `headrace cluster verify`."""
        command = [*RealBroker.command(), "cluster", "verify", "--json"]
        command += ["--zookeeper", self._servers.zookeeper_addresses]
        done = subprocess.run(  # noqa: S603 - our own command
            command, capture_output=True, text=True, check=False, timeout=_VERIFY_TIMEOUT_S
        )
        try:
            return [f"cluster verify: {what}" for what in json.loads(done.stdout)["problems"]]
        except ValueError:
            return [f"cluster verify failed: {done.stderr[-300:]}"]

    def logs(self) -> Mapping[str, Path]:
        """See Cluster."""
        return {f"{node.name}.log".replace(" ", "-"): node.log_path for node in self._nodes}

    def close(self) -> None:
        """See Cluster."""
        for slow in self._slow.values():
            slow.end()
        for one in self._nodes:
            one.kill()
        for forwarder in self._forwarders:
            forwarder.close()
        self._servers.kill()
        for disk in (*self._disks, *self._journals, *self._zookeeper_disks):
            disk.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _same(address: tuple[str, int]) -> tuple[str, int]:
    return address
