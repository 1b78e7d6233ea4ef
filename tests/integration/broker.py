"""A broker in a process of its own: started, restarted, stopped and killed, its log kept.

Invariants: nothing of the running broker is imported; a test knows what a client knows, and the
process's own standard output, log and exit code. What a broker leaves behind, stopped or killed,
must pass `headrace check`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import psutil

from headrace.dev_cluster.ports import free_port, free_ports
from headrace.inspection.check import check
from headrace.inspection.findings import Severity

READY_TIMEOUT_S = 90
STOP_TIMEOUT_S = 120

RUNNING: list[Broker] = []
"""All that were started and not stopped, so that a failing test can show their logs."""


class Place(NamedTuple):
    """One listener of a broker."""

    kafka: str
    http: str = ""

    @property
    def address(self) -> tuple[str, int]:
        """Where Kafka clients connect."""
        host, _, port = self.kafka.rpartition(":")
        return host, int(port)


class Broker:
    """One broker on one folder. Its ports stay the same from one start to the next."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.data_dir = folder / "data"
        self.log_path = folder / "broker.log"
        self.options = options
        self.kafka = self.http = "127.0.0.1:0"
        self.returns_to_its_ports = True
        """Unless a test clears it: workers that a folder has without the option share port 0."""
        self._of_workers: tuple[str, str] | None = None
        """Where workers listen: once they do, `kafka` and `http` are lists."""
        self.process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self.is_damaged = False
        """Whether a test has spoiled the folder: then it need not pass `headrace check`."""

    @classmethod
    def of_workers(cls, folder: Path, count: int, *options: str) -> Broker:
        """One of several workers that can be restarted: they listen at ports in a row."""
        broker = cls(folder, "--workers", str(count), *options)
        first = free_ports(2 * count)
        broker._of_workers = f"127.0.0.1:{first}", f"127.0.0.1:{first + count}"
        return broker

    # --- life --------------------------------------------------------------------------------

    def start(self) -> Broker:
        """Start it and wait until it says that it is ready."""
        assert self.process is None, "it runs already"
        folder = self.log_path.parent
        folder.mkdir(parents=True, exist_ok=True)
        self._log = open(self.log_path, "ab")  # noqa: SIM115 - closed by `_ended`
        command = [sys.executable, "-m", "headrace.cli.main", "serve", "--json"]
        if self.returns_to_its_ports and "--workers" not in self.options:
            self._fix_ports()
        kafka, http = self._of_workers or (self.kafka, self.http)
        command += ["--data-dir", str(self.data_dir), "--kafka", kafka, "--http", http]
        ready_path = folder / "ready.json"
        with open(ready_path, "wb") as out:
            self.process = subprocess.Popen(
                [*command, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=self._log,
                start_new_session=True,
            )
        RUNNING.append(self)
        try:
            ready = json.loads(self._wait_ready(ready_path))
        except BaseException:
            self.kill()
            raise
        assert ready["ready"] is True
        self.kafka, self.http = ready["kafka"], ready["http"]
        return self

    @property
    def listeners(self) -> dict[str, str]:
        """The addresses of its listeners, by their names."""
        path = self.log_path.parent / "ready.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        return found.get("listeners") or {"PLAINTEXT": self.kafka}

    def listen(self, *names: str) -> None:
        """Have it start with these listeners, at the addresses that it had for them."""
        known = self.listeners
        self.kafka = ",".join(f"{one}://{known.get(one, '127.0.0.1:0')}" for one in names)

    def _fix_ports(self) -> None:
        """Choose ports that it finds free after a restart: see headrace.dev_cluster.ports."""
        self.kafka, self.http = _with_ports(self.kafka), _with_ports(self.http)
        if "--rocketmq" in self.options:
            at = self.options.index("--rocketmq") + 1
            rocketmq = _with_ports(self.options[at])
            self.options = (*self.options[:at], rocketmq, *self.options[at + 1 :])

    def _wait_ready(self, path: Path) -> str:
        assert self.process is not None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not (text := path.read_text()).endswith("\n"):
            code = self.process.poll()
            assert code is None, f"the broker ended with code {code}:\n{self.log()[-4000:]}"
            assert time.monotonic() < deadline, f"not ready:\n{self.log()[-4000:]}"
            time.sleep(0.01)
        return text

    def stop(self) -> None:
        """Ask it to end, as an operator would, and see that it ends well."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._ended()
        assert code == 0, f"stopped with code {code}:\n{self.log()[-4000:]}"
        self._check_folder()

    def kill(self) -> None:
        """Kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._ended()
            self._check_folder()

    def _check_folder(self) -> None:
        """What lies on the disk now is sound, as far as `headrace check` can tell."""
        if self.is_damaged or not self.data_dir.exists():
            return
        found = [one for one in check(self.data_dir).findings if one.severity is not Severity.NOTE]
        assert not found, found[:5]

    def _ended(self) -> None:
        self.process = None
        assert self._log is not None
        self._log.close()
        RUNNING.remove(self)

    def restart(self) -> None:
        """A clean stop and a start."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Kill -9 and a start."""
        self.kill()
        self.start()

    # --- what can be seen from outside -------------------------------------------------------

    @property
    def address(self) -> tuple[str, int]:
        """Where Kafka clients connect."""
        return Place(self.kafka).address

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        """All it has logged, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_size(self) -> int:
        """Bytes logged so far: a mark for `log_since`."""
        return self.log_path.stat().st_size

    def log_since(self, mark: int) -> list[str]:
        """The lines logged after `mark`."""
        with open(self.log_path, "rb") as log:
            log.seek(mark)
            return log.read().decode(errors="replace").splitlines()

    def memory_bytes(self) -> int:
        """Resident memory."""
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def peak_memory_bytes(self) -> int:
        """The most resident memory that it has had."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def get(self, path: str) -> tuple[int, str]:
        """(status, body) of a GET over HTTP."""
        try:
            with urllib.request.urlopen(f"http://{self.http}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def connect(self) -> socket.socket:
        """A plain connection to the Kafka port."""
        connection = socket.create_connection(self.address, 60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _with_ports(listeners: str) -> str:
    """The listeners, those on any port at one of their own."""
    return re.sub(r":0(?=,|$)", lambda _: f":{free_port()}", listeners)


def bytes_below(folder: Path) -> int:
    """What the ledgers in a folder take, while the broker makes and removes some."""
    total = 0
    for path in folder.rglob("*.ledger"):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def kill_cycles(default: int) -> int:
    """How often the kill -9 tests kill: HEADRACE_KILL_CYCLES, for a long run."""
    return int(os.environ.get("HEADRACE_KILL_CYCLES", default))
