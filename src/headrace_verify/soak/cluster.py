"""Soaked brokers over a real ZooKeeper and real bookies, and the objects that they leave there.

Invariants: everything is on the loopback interface. Brokers collect garbage after seconds instead
of an hour, and bookies after seconds instead of a day: otherwise an hour's run would see no
deletion. Leftovers are found by the code of `headrace cluster verify`, and by ZooKeeper's own node
count.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.administration.cluster import open_admin
from headrace.administration.cluster_settings import ClusterSettings
from headrace.dev_cluster.cluster import DevCluster
from headrace.dev_cluster.settings import ClusterOptions
from headrace.runtime.clock import SystemClock
from headrace_verify.real_broker import RealBroker
from headrace_verify.self_proof import spoiled_launch
from headrace_verify.soak.leftovers import Ages
from headrace_verify.soak.samples import Shared, folder_bytes
from headrace_verify.soak.targets import BROKER_OPTIONS, Watched
from headrace_verify.soak.verdict import SWEEP_GRACE_MS, SWEEP_INTERVAL_MS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.administration.verification import Findings

BROKER_COUNT, BOOKIE_COUNT = 2, 3
UNTIDY = 1.25
"""A bookie's files may be this many times as large as their live data: it compacts below 80 %."""
CHECK_INTERVAL_S_MIN, CHECK_INTERVAL_S_MAX, CHECK_COST_FACTOR = 1.0, 5.0, 10
"""Minimum and maximum interval between checks of the shared state; within these, a multiple of the
last check's duration, because it is work for ZooKeeper, too."""
_BOOKIE_SETTINGS = {
    "journalMaxGroupWaitMSec": "1",
    "journalMaxSizeMB": "16",
    "journalMaxBackups": "1",
    # Deleted ledgers' data: by default it is removed after a quarter of an hour if a file of 1 GiB
    # contains nothing else, and compacted after an hour if it is a large part of the file, or else
    # a day.
    "logSizeLimit": str(8 << 20),
    "flushInterval": "5000",
    "gcWaitTime": "10000",
    "minorCompactionInterval": "15",
    "majorCompactionInterval": "30",
}
_SWEEP = ("--sweep-interval-ms", str(SWEEP_INTERVAL_MS), "--sweep-grace-ms", str(SWEEP_GRACE_MS))


class SoakedCluster:
    """See Soaked."""

    copies: float = BOOKIE_COUNT * UNTIDY

    def __init__(self, folder: Path, bug: str = "") -> None:
        self._folder = folder
        options = ClusterOptions(bookie_count=BOOKIE_COUNT, bookie_settings=_BOOKIE_SETTINGS)
        self._servers = DevCluster(folder / "servers", options)
        self._launch = spoiled_launch("soak", bug) if bug else ()
        self._brokers: list[RealBroker] = []
        self._orphans, self._stale = Ages(), Ages()
        self._clock = SystemClock()
        self._due_s = 0.0

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """See Soaked."""
        return [broker.address for broker in self._brokers]

    @property
    def http_addresses(self) -> Sequence[tuple[str, int]]:
        """See Soaked."""
        return [broker.http_address for broker in self._brokers]

    def start(self) -> None:
        """See Soaked."""
        self._servers.start()
        for number in range(1, BROKER_COUNT + 1):
            options = [*BROKER_OPTIONS, *_SWEEP, "--broker-id", str(number)]
            options += ["--zookeeper", self._servers.zookeeper_addresses]
            broker = RealBroker(self._folder / f"broker-{number}", options, self._launch)
            self._brokers.append(broker)
            broker.start()

    def stop(self) -> None:
        """See Soaked."""
        for broker in self._brokers:
            broker.terminate()
        self._servers.kill()

    def watched(self) -> Sequence[Watched]:
        """See Soaked."""
        return [
            Watched(f"broker {number}", broker.pid, broker.http_address)
            for number, broker in enumerate(self._brokers, start=1)
        ]

    def disk_bytes(self) -> int:
        """See Soaked: on all bookies."""
        numbers = range(1, BOOKIE_COUNT + 1)
        return folder_bytes(*(self._folder / "servers" / f"bookie-{n}" for n in numbers))

    def shared(self, at_s: float) -> Shared | None:
        """See Soaked. Raises ConnectionError if ZooKeeper does not return its state."""
        if at_s < self._due_s:
            return None
        begun_ns = self._clock.now_ns()
        found = asyncio.run(self._findings())
        orphans = {orphan.ledger for orphan in found.orphans}
        statistics = dict(
            line.split("\t", 1)
            for line in self._servers.ask_zookeeper("mntr").splitlines()
            if "\t" in line
        )
        if "zk_znode_count" not in statistics:
            raise ConnectionError("ZooKeeper does not return its node count")
        took_s = (self._clock.now_ns() - begun_ns) / 1e9
        self._due_s = at_s + max(
            CHECK_INTERVAL_S_MIN, min(CHECK_INTERVAL_S_MAX, CHECK_COST_FACTOR * took_s)
        )
        return Shared(
            found.ledgers + len(orphans),
            len(orphans),
            self._orphans.oldest_s(at_s, orphans),
            len(found.stale),
            self._stale.oldest_s(at_s, found.stale),
            int(statistics["zk_znode_count"]),
            int(statistics["zk_watch_count"]),
            tuple(found.problems),
        )

    async def _findings(self) -> Findings:
        async with open_admin(ClusterSettings(self._servers.zookeeper_addresses)) as admin:
            return await admin.verify()

    def ended(self) -> str:
        """See Soaked."""
        for one, broker in zip(self.watched(), self._brokers, strict=True):
            if broker.has_ended:
                return f"{one.name}: {broker.log_tail()}"
        for server in (*self._servers.bookies, *self._servers.zookeepers):
            if not server.is_alive:
                return f"{server.name}: {server.log.read_text(errors='replace')[-800:]}"
        return ""

    def logs(self) -> Sequence[Path]:
        """See Soaked."""
        return [broker.log_path for broker in self._brokers]
