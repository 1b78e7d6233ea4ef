"""RocketMQ: a name server and a broker that flushes before it responds, or later.

Invariants: the benchmark Producer of its own examples writes. There are no figures of reading a
log, because their Consumer only reports averages of ten seconds, including idle ones, and none of
latency, because neither has a rate option. A queue is emptied by its push consumer in pop mode
(`rocketmq_load`), which acknowledges each message and is compiled here. Heap and settings are set
here, because its start scripts would take 8 GiB.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.dev_cluster.ports import free_port
from headrace_bench import parts
from headrace_bench.kafka_parts import java
from headrace_bench.processes import SystemFailed
from headrace_bench.systems import go_load
from headrace_bench.systems.own_server import OwnServer
from headrace_bench.systems.system import Side, System
from headrace_bench.tools import Steady, Tool, Window, run_tool, watch
from headrace_bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace_bench.loads import Acknowledge

VERSION = "5.5.0"
_MODULES = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-example", "rocketmq-proxy")
_SOURCE = Path(__file__).parent / "rocketmq_load" / "EmptyQueue.java"
_CLASSES = f"rocketmq_load-{hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:12]}"
FLUSH = {SYNCED: "SYNC_FLUSH", UNSYNCED: "ASYNC_FLUSH"}
THREADS = 64
FAILED_MAX = 1_000
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


def _classes() -> Path:
    return parts.peers_folder() / _CLASSES


def missing() -> str:
    """What is missing, or ""."""
    absent = [m for m in _MODULES if not (_folder() / f"{m}-{VERSION}.jar").exists()]
    absent += [] if (_classes() / "EmptyQueue.class").exists() else [_CLASSES]
    return f"no {', no '.join(absent)}" if absent else ""


def install() -> None:
    """Download broker, name server and the benchmark classes with dependencies; compile the
    load."""
    jars = [_folder() / f"{module}-{VERSION}.jar" for module in _MODULES]
    if not all(jar.exists() for jar in jars):
        wanted = [f"org.apache.rocketmq:{module}:{VERSION}" for module in _MODULES]
        parts.fetch_maven(wanted, _folder())
    beside = Path(java()).with_name("javac")
    compiler = str(beside) if beside.exists() else shutil.which("javac")
    if compiler is None:
        raise parts.PartMissing("no Java compiler (javac): install a JDK 17 or 21")
    _classes().mkdir(parents=True, exist_ok=True)
    run_tool([compiler, "-cp", f"{_folder()}/*", "-d", str(_classes()), str(_SOURCE)])


def sent_of(line: str) -> float | None:
    """Messages per second over its last ten seconds, from the Producer's output.

    Raises SystemFailed if a large part of them could not be sent.
    """
    found = re.search(r"Current Time: .*TPS: (\d+) .*Send Failed: (\d+)", line)
    if found is None:
        return None
    if int(found[2]) > FAILED_MAX:
        raise SystemFailed(f"RocketMQ's Producer: {line[-300:]!r}")
    return float(found[1])


class RocketMq(OwnServer):
    """A name server and a broker with one flush policy."""

    acknowledges: Collection[Acknowledge] = frozenset({"each"})

    def __init__(self, folder: Path, policy: str) -> None:
        words = f"flushDiskType={FLUSH[policy]}"
        super().__init__("rocketmq", folder / f"rocketmq-{policy}", policy, words)
        self._names = 0

    def _java(self, heap: str, main: str, *words: str, classes: str = "") -> list[str]:
        folder = self.processes.folder
        classes = f"{classes}:{_folder()}/*" if classes else f"{_folder()}/*"
        return [
            *(java(), f"-Xms{heap}", f"-Xmx{heap}", "-XX:MaxDirectMemorySize=1g"),
            *(f"-Duser.home={folder}", "-cp", classes),
            *(f"org.apache.rocketmq.{main}", *words),
        ]

    def spawn(self) -> None:
        """See OwnServer: starts the broker once the name server listens."""
        settings = self.spawn_names(self.port)
        self.spawn_java("1g", "broker.BrokerStartup", "-c", str(settings))

    def spawn_names(self, port: int) -> Path:
        """Start the name server; returns the settings of a broker at `port`."""
        folder = self.processes.folder
        self._names = free_port()
        settings, names = folder / "broker.conf", folder / "names.conf"
        names.write_text(f"listenPort={self._names}\nbindAddress=127.0.0.1\n")
        settings.write_text(
            _BROKER.format(
                names=self._names,
                port=port,
                ha=free_port(),
                folder=folder,
                flush=FLUSH[self.policy],
            )
        )
        self.spawn_java("256m", "namesrv.NamesrvStartup", "-c", str(names))
        self.processes.wait_until(lambda: self.accepts(self._names))
        return settings

    @property
    def names(self) -> str:
        """The name server's address."""
        return f"127.0.0.1:{self._names}"

    def spawn_java(self, heap: str, main: str, *words: str, classes: str = "") -> None:
        """Start one of RocketMQ's programs; `classes` come before its own."""
        home = {"ROCKETMQ_HOME": str(self.processes.folder)}
        self.processes.spawn(self._java(heap, main, *words, classes=classes), home)

    def answers(self) -> bool:
        """See OwnServer."""
        return "boot success" in (self.processes.folder / "1.log").read_text(errors="replace")

    def start(self) -> None:
        """See Side; until the name server knows the broker, topics cannot be created."""
        super().start()
        self.processes.wait_until(lambda: self.makes_topic("first", 1))

    def makes_topic(self, name: str, queues: int, *more: str) -> bool:
        """Create a topic; returns False as long as the name server does not know the broker."""
        words = ["-c", "bench", "-t", name, "-r", str(queues), "-w", str(queues), *more]
        return "create topic to" in self.run_admin("updateTopic", *words)

    def run_admin(self, command: str, *words: str) -> str:
        """Run a command of its `mqadmin`; returns the output. Raises SystemFailed."""
        main = "tools.command.MQAdminStartup"
        return run_tool(self._java("256m", main, command, "-n", self.names, *words))

    @staticmethod
    def accepts(port: int) -> bool:
        """Whether something listens there."""
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            return False
        return True

    def produce(self, name: str, record_bytes: int, window: Window) -> Steady:
        """See Side; its reports cover the last ten seconds, so only the last one is within the
        window."""
        if not self.makes_topic(name, 1):
            raise SystemFailed(f"RocketMQ did not create topic {name}")
        words = ["-n", self.names, "-t", name, "-q", "0", "-ri", "1000"]
        words += ["-s", str(record_bytes), "-w", str(THREADS)]
        command = self._java("512m", "example.benchmark.Producer", *words)
        return watch(Tool(command, sent_of, looks_back_s=10.0), window, self.pids)

    def consume(self, name: str, records: int, record_bytes: int, window: Window) -> None:
        """See Side: its Consumer reports averages of ten seconds, including idle ones."""
        del name, records, record_bytes, window

    def empty(self, name: str, records: int, acknowledge: Acknowledge, window: Window) -> Steady:
        """See Side; its client acknowledges each message separately, without confirmation."""
        del records
        assert acknowledge == "each"
        classes = f"{_classes()}:{_folder()}/*"
        home = f"-Duser.home={self.processes.folder}"
        command = [java(), "-Xms512m", "-Xmx512m", home, "-cp", classes, "EmptyQueue"]
        command += [f"127.0.0.1:{self._names}", name, f"group-{name}"]
        return watch(Tool(command, go_load.rate_of), window, self.pids)

    def latency(self, name: str, rate_per_s: int, seconds: float) -> None:
        """See Side: its benchmark sends at full speed, without a rate option."""
        del name, rate_per_s, seconds

    def drop(self, name: str) -> None:
        """See Side: topics are deleted with the broker."""


def _sides(folder: Path) -> list[Side]:
    return [RocketMq(folder, SYNCED), RocketMq(folder, UNSYNCED)]


SYSTEM = System(
    name="rocketmq",
    title="Apache RocketMQ",
    tool=f"benchmark Producer of its examples, {THREADS} threads that wait for responses, 1 queue; "
    "push consumer in pop mode; broker with 1 GiB of heap",
    version=lambda: VERSION,
    missing=missing,
    install=install,
    sides=_sides,
)
