"""The two brokers under test, as processes: start, stop, CPU, memory.

Invariants: both run on loopback, with their data on the same real disk, with their default
settings; exceptions are documented here. Neither is tuned for speed.
"""

from __future__ import annotations

import base64
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.dev_cluster.ports import free_port
from headrace_bench.kafka_parts import java, kafka_classpath

if TYPE_CHECKING:
    from collections.abc import Sequence

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S = 60.0

# The flags that kafka-run-class.sh and kafka-server-start.sh pass to the broker.
KAFKA_JVM = (
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    "-Djava.awt.headless=true",
)
KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Peer(Protocol):
    """A broker process."""

    name: str
    bootstrap: str
    http: str
    """The address of its HTTP interface, if that is measured."""
    pid: int
    ready_s: float

    def start(self) -> None:
        """Start it; returns when it responds."""
        ...

    def is_alive(self) -> bool:
        """It was started and has not exited."""
        ...

    def stop(self) -> None:
        """Stop it and remove its data."""
        ...


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used, in user and kernel mode, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def raise_file_limit(wanted: int) -> int:
    """Allow this process and its children `wanted` open files; returns the allowed number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for target in ((wanted, max(hard, wanted)), (hard, hard)):
        if soft >= wanted:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, target)
        except (ValueError, OSError):
            continue
        soft = target[0]
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class _Process:
    """The common part of both brokers: one child process with its own data folder."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bootstrap = ""
        self.http = ""
        self.pid = 0
        self.ready_s = 0.0
        self._child: subprocess.Popen[bytes] | None = None

    def _spawn(self, command: list[str]) -> float:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "broker.log", "wb") as log:
            started = time.perf_counter()
            self._child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        self.pid = self._child.pid
        return started

    def _log(self) -> str:
        return (self.folder / "broker.log").read_text(errors="replace")

    def _check_alive(self) -> None:
        assert self._child is not None
        if self._child.poll() is not None:
            raise RuntimeError(f"{self.name} exited while starting:\n{self._log()[-3000:]}")

    def is_alive(self) -> bool:
        """See Peer."""
        return self._child is not None and self._child.poll() is None

    def stop(self) -> None:
        """See Peer."""
        if self._child is None:
            return
        self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(30)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None
        shutil.rmtree(self.folder, ignore_errors=True)


class Kafka(_Process):
    """Apache Kafka in KRaft combined mode: broker and controller in one process."""

    name = "kafka"
    more_properties = ""
    """Lines after the others, which they override; assigned before a start."""

    def start(self) -> None:
        """See Peer."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        port, controller = free_port(), free_port()
        properties = self.folder / "server.properties"
        properties.write_text(
            (KAFKA_PROPERTIES + self.more_properties).format(
                port=port, controller=controller, data=self.folder / "data"
            )
        )
        classpath = kafka_classpath()
        # Must not begin with "-": the tool would take it for an option.
        cluster_id = base64.urlsafe_b64encode(b"h" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        subprocess.run(
            [
                java(),
                "-cp",
                classpath,
                "kafka.tools.StorageTool",
                "format",
                "-t",
                cluster_id,
                "-c",
                str(properties),
            ],
            check=True,
            capture_output=True,
        )
        started = self._spawn(
            [java(), *KAFKA_JVM, "-cp", classpath, "kafka.Kafka", str(properties)]
        )
        self.bootstrap = f"127.0.0.1:{port}"
        self._wait_accepting(port)
        self.ready_s = time.perf_counter() - started

    def _wait_accepting(self, port: int) -> None:
        """Wait for a response to a request: it accepts connections a little earlier."""
        from headrace_bench.raw_client import answers_api_versions

        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            self._check_alive()
            if answers_api_versions("127.0.0.1", port):
                return
            time.sleep(0.02)
        raise TimeoutError(
            f"Kafka did not respond within {START_TIMEOUT_S} s:\n{self._log()[-2000:]}"
        )


class Headrace(_Process):
    """Headrace, by its own command, as a user starts it."""

    name = "headrace"
    options: Sequence[str] = ()
    """More of `headrace serve`; assigned before a start."""

    def start(self) -> None:
        """See Peer."""
        from headrace_bench.raw_client import answers_api_versions

        shutil.rmtree(self.folder, ignore_errors=True)
        # A fixed port: the clock then stops at the first response, not at a parsed line.
        port, http = free_port(), free_port()
        self.http = f"127.0.0.1:{http}"
        command = [str(Path(sys.executable).parent / "headrace")]
        started = self._spawn(
            [
                *command,
                "serve",
                "--data-dir",
                str(self.folder / "data"),
                "--kafka",
                f"127.0.0.1:{port}",
                "--http",
                self.http,
                *self.options,
            ]
        )
        self.bootstrap = f"127.0.0.1:{port}"
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers_api_versions("127.0.0.1", port):
            self._check_alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"Headrace did not respond:\n{self._log()[-2000:]}")
            time.sleep(0.002)
        self.ready_s = time.perf_counter() - started


def disk_under(folder: Path) -> str:
    """The kind of file system under `folder`, such as ext4 (on tmpfs, a sync has no effect)."""
    best, kind = "", "unknown"
    target = str(folder.resolve())
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs, *_ = line.split()
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fs
    return kind
