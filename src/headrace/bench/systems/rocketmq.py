"""RocketMQ: a name server and a broker that flushes before it answers, or later.

Rules of the room: the benchmark Producer of its own examples writes. There is no figure of reading,
for their Consumer only tells averages of ten seconds, whether something was left to read or not;
and none of latency, for neither knows a rate. Heap and settings are said here; its start scripts
would take 8 GiB.
"""

from __future__ import annotations

import re
import socket
import time
from typing import TYPE_CHECKING

from headrace.bench import parts
from headrace.bench.kafka_parts import java
from headrace.bench.peers import free_port
from headrace.bench.processes import Processes, SystemFailed, run_tool
from headrace.bench.systems.system import Produced, Side, System
from headrace.bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "5.5.0"
_MODULES = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-example")
FLUSH = {SYNCED: "SYNC_FLUSH", UNSYNCED: "ASYNC_FLUSH"}
THREADS = 64
_BROKER = """\
brokerClusterName=bench
brokerName=bench
brokerId=0
brokerIP1=127.0.0.1
namesrvAddr=127.0.0.1:{names}
listenPort={port}
haListenPort={ha}
storePathRootDir={folder}/store
storePathCommitLog={folder}/store/commitlog
flushDiskType={flush}
autoCreateTopicEnable=true
"""


def _folder() -> Path:
    return parts.peers_folder() / "rocketmq"


def missing() -> str:
    """What is not there, or ""."""
    absent = [m for m in _MODULES if not (_folder() / f"{m}-{VERSION}.jar").exists()]
    return f"no {', no '.join(absent)}" if absent else ""


def install() -> None:
    """Fetch broker, name server and the benchmark classes with all they need."""
    parts.fetch_maven([f"org.apache.rocketmq:{module}:{VERSION}" for module in _MODULES], _folder())


def sent_of(out: str, seconds: float) -> float:
    """Messages a second that the Producer sent. Raises SystemFailed when many failed.

    It counts each second, and tells the rate over the last ten of these counts; a run of less than
    two seconds has none: then it is over `seconds`, the start of its JVM included.
    """
    total = re.search(r"\[Complete\] Send Total: (\d+) .*Send Failed: (\d+)", out)
    if total is None or int(total[2]) > int(total[1]) // 100:
        raise SystemFailed(f"RocketMQ's Producer: {out[-300:]!r}")
    counted = re.search(r"\[Complete\] .*Send TPS: (\d+)", out)
    if counted is not None and int(counted[1]):
        return float(counted[1])
    return int(total[1]) / seconds


class RocketMq:
    """A name server and a broker with one way to flush."""

    name = "rocketmq"

    def __init__(self, folder: Path, policy: str) -> None:
        self.policy = policy
        self.words = f"flushDiskType={FLUSH[policy]}"
        self.ready_s = 0.0
        self._names = 0
        self._processes = Processes("RocketMQ", folder / f"rocketmq-{policy}")

    @property
    def pids(self) -> list[int]:
        """See Side."""
        return self._processes.pids

    def _java(self, heap: str, main: str, *words: str) -> list[str]:
        folder = self._processes.folder
        return [
            *(java(), f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=1g"),
            *(f"-Duser.home={folder}", "-cp", f"{_folder()}/*"),
            *(f"org.apache.rocketmq.{main}", *words),
        ]

    def start(self) -> None:
        """See Side."""
        self._processes.clear()
        folder = self._processes.folder
        self._names, port = free_port(), free_port()
        settings, names = folder / "broker.conf", folder / "names.conf"
        names.write_text(f"listenPort={self._names}\nbindAddress=127.0.0.1\n")
        settings.write_text(
            _BROKER.format(
                names=self._names, port=port, ha=free_port(), folder=folder,
                flush=FLUSH[self.policy],
            )
        )  # fmt: skip
        home = {"ROCKETMQ_HOME": str(folder)}
        began = time.perf_counter()
        main = ("namesrv.NamesrvStartup", "-c", str(names))
        self._processes.spawn(self._java("256m", *main), home)
        self._processes.wait_until(lambda: self._accepts(self._names))
        self._processes.spawn(self._java("1g", "broker.BrokerStartup", "-c", str(settings)), home)
        self._processes.wait_until(lambda: "boot success" in self._said_by_broker())
        self.ready_s = time.perf_counter() - began
        self._processes.wait_until(lambda: self._makes_topic("first"))

    def _makes_topic(self, name: str) -> bool:
        """Make a topic of one queue; False as long as the name server does not know the broker."""
        words = ["updateTopic", "-n", f"127.0.0.1:{self._names}", "-c", "bench", "-t", name]
        words += ["-r", "1", "-w", "1"]
        out = run_tool(self._java("256m", "tools.command.MQAdminStartup", *words))
        return "create topic to" in out

    def _said_by_broker(self) -> str:
        return (self._processes.folder / "1.log").read_text(errors="replace")

    @staticmethod
    def _accepts(port: int) -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """See Side."""
        self._processes.stop()

    def produce(self, name: str, records: int, record_bytes: int) -> Produced:
        """See Side."""
        if not self._makes_topic(name):
            raise SystemFailed(f"RocketMQ did not make topic {name}")
        each = max(1, records // THREADS)
        words = ["-n", f"127.0.0.1:{self._names}", "-t", name, "-q", str(each * THREADS)]
        words += ["-s", str(record_bytes), "-w", str(THREADS)]
        began = time.perf_counter()
        out = run_tool(self._java("512m", "example.benchmark.Producer", *words))
        return Produced(each * THREADS, sent_of(out, time.perf_counter() - began))

    def consume(self, name: str, records: int, record_bytes: int) -> None:
        """See Side: its Consumer tells averages of ten seconds, idle ones among them."""
        del name, records, record_bytes

    def latency(self, name: str, rate_per_s: int, seconds: float) -> None:
        """See Side: its benchmark sends as fast as it can, at no rate."""
        del name, rate_per_s, seconds

    def drop(self, name: str) -> None:
        """See Side: topics go with the broker."""


def _sides(folder: Path) -> list[Side]:
    return [RocketMq(folder, SYNCED), RocketMq(folder, UNSYNCED)]


SYSTEM = System(
    name="rocketmq",
    title="Apache RocketMQ",
    tool=f"benchmark Producer of its examples, {THREADS} threads that wait for answers, 1 queue; "
    "broker with 1 GiB of heap",
    version=lambda: VERSION,
    missing=missing,
    install=install,
    sides=_sides,
)
