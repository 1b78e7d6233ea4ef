"""RocketMQ: a name server and a broker that flushes before it answers, or later.

Rules of the room: its own benchmark classes write and read. Its consumer knows no end and no
latency of single messages, so it is stopped when everything has been read. Heap and settings are
said here; its start scripts would take 8 GiB.
"""

from __future__ import annotations

import re
import socket
import subprocess
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
REPORT_MS = 250
_READ_TIMEOUT_S = 120.0
_QUIET_S = 10.0
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

    `seconds` is what the run took: a short run ends before the tool's first report. The first
    message of each thread may fail while the topic is made.
    """
    total = re.search(r"\[Complete\] Send Total: (\d+) .*Send Failed: (\d+)", out)
    if total is None or int(total[2]) > max(THREADS, int(total[1]) // 10):
        raise SystemFailed(f"RocketMQ's Producer: {out[-300:]!r}")
    reported = [int(tps) for tps in re.findall(r"Current Time.*Send TPS: (\d+)", out)]
    steady = sorted(tps for tps in reported[1:] if tps)
    return float(steady[len(steady) // 2]) if steady else int(total[1]) / seconds


def consumed_of(line: str) -> int | None:
    """Messages a second that the Consumer tells in one of its lines, else None."""
    found = re.search(r"Consume TPS: (\d+)", line)
    return int(found[1]) if found else None


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
        self._processes.wait_until(self._is_registered)

    def _is_registered(self) -> bool:
        """The name server knows the broker: a topic can be made in its cluster."""
        words = ["updateTopic", "-n", f"127.0.0.1:{self._names}", "-c", "bench", "-t", "first"]
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
        each = max(1, records // THREADS)
        words = ["-n", f"127.0.0.1:{self._names}", "-t", name, "-q", str(each * THREADS)]
        words += ["-s", str(record_bytes), "-w", str(THREADS), "-ri", str(REPORT_MS)]
        began = time.perf_counter()
        out = run_tool(self._java("512m", "example.benchmark.Producer", *words))
        return Produced(each * THREADS, sent_of(out, time.perf_counter() - began))

    def consume(self, name: str, records: int, record_bytes: int) -> float:
        """See Side."""
        words = ["-n", f"127.0.0.1:{self._names}", "-t", name, "-g", name, "-ri", str(REPORT_MS)]
        process = subprocess.Popen(
            self._java("512m", "example.benchmark.Consumer", *words),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            return self._watch(process, records)
        finally:
            process.kill()
            process.wait()

    @staticmethod
    def _watch(process: subprocess.Popen[str], records: int) -> float:
        """Its reports until nearly all is read; the rate is of the reports that had something."""
        assert process.stdout is not None
        rates: list[int] = []
        deadline = time.monotonic() + _READ_TIMEOUT_S
        idle_since = time.monotonic()
        for line in process.stdout:
            rate = consumed_of(line)
            now = time.monotonic()
            if rate:
                rates.append(rate)
                idle_since = now
            read = sum(rates) * REPORT_MS / 1e3
            if read >= records * 0.98 or (rates and now - idle_since > _QUIET_S):
                break
            if now > deadline:
                raise SystemFailed(f"RocketMQ's Consumer read {read:.0f} of {records} records")
        if not rates:
            raise SystemFailed("RocketMQ's Consumer read nothing")
        # The last report of a run covers a part of its interval only.
        return float(sorted(rates)[len(rates) // 2])

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
    tool=f"benchmark Producer of its examples, {THREADS} threads that wait for answers; Consumer; "
    "broker with 1 GiB of heap",
    version=lambda: VERSION,
    missing=missing,
    install=install,
    sides=_sides,
)
