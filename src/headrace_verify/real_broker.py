"""The installed command as a process: started, killed, restarted on the same ports."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.dev_cluster.ports import free_ports
from headrace.errors import Fatal
from headrace.runtime.clock import SystemClock
from headrace_verify.verdicts import NotRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HAS_ROCKETMQ = importlib.util.find_spec("google.protobuf") is not None
"""Whether the broker can serve RocketMQ's clients."""
READY_TIMEOUT_S = 150
"""A start takes a second; on an overloaded machine, half a minute and more."""
_PR_SET_PDEATHSIG = 1


def die_with_us() -> Callable[[], None] | None:
    """A child's parent-death signal on Linux: a dying harness leaves no broker running."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def addresses_in(text: str) -> list[tuple[str, int]]:
    """Parse the addresses in `HOST:PORT,HOST:PORT...`."""
    parts = (one.rpartition(":") for one in text.split(",") if one)
    return [(host, int(port)) for host, _, port in parts]


class RealBroker:
    """`headrace serve` on one folder, or the command that `launch` returns instead."""

    def __init__(
        self,
        folder: Path,
        options: Sequence[str] = (),
        launch: Sequence[str] = (),
        listener: str = "",
    ) -> None:
        """`listener`: the name of a second one for Kafka's clients."""
        self.data_dir = folder / "data"
        self._options = options
        self._launch = launch
        self._listener = listener
        self.environment: dict[str, str] = {}
        """In addition to that of this process."""
        self.log_path = folder / "broker.log"
        self.log_level = "warning"
        self.address = ("127.0.0.1", 0)
        """The Kafka address; the port is fixed from the first start on."""
        self._http = "127.0.0.1:0"
        self.addresses: list[tuple[str, int]] = []
        """The Kafka addresses of its last start; one per worker."""
        self.listeners: dict[str, str] = {}
        """The addresses of several listeners, by their names."""
        self.http_addresses: list[tuple[str, int]] = []
        self.rocketmq_addresses: list[tuple[str, int]] = []
        """Where RocketMQ\'s clients are served; empty: nowhere (`--rocketmq`)."""
        self._process: subprocess.Popen[bytes] | None = None
        self._prepare = die_with_us()
        self._companions: dict[str, RealBroker] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def beside(self, name: str, options: Sequence[str], listener: str = "") -> RealBroker:
        """Another broker that is launched like this one, and ends with it; not started yet."""
        if name not in self._companions:
            folder = self.data_dir.parent / name
            self._companions[name] = RealBroker(folder, options, self._launch, listener)
        return self._companions[name]

    @staticmethod
    def command() -> list[str]:
        """The installed script beside the interpreter, or else the module."""
        script = Path(sys.executable).with_name("headrace")
        # Always through this interpreter: a wrapper in front of it would receive the kill.
        return [sys.executable, str(script)] if script.exists() else _MODULE

    def start(self) -> float:
        """Start and wait until it is ready; returns the seconds it took. Raises Fatal, NotRun."""
        clock = SystemClock()
        begun_ns = clock.now_ns()
        command = [
            *(self._launch or self.command()),
            "serve",
            *self._options,
            "--json",
            "--log-level",
            self.log_level,
        ]
        self._choose_ports()
        command += ["--data-dir", str(self.data_dir), "--http", self._http]
        host, port = self.address
        first, more = f"{host}:{port}", f",{self._listener}://{host}:0"
        command += ["--kafka", f"PLAINTEXT://{first}{more}" if self._listener else first]
        with self.log_path.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | self.environment if self.environment else None,
                preexec_fn=self._prepare,  # noqa: PLW1509 - one call of libc
            )
        self._process = process
        stuck = threading.Timer(READY_TIMEOUT_S, process.kill)
        stuck.start()
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
        finally:
            stuck.cancel()
        if not line.endswith(b"\n"):
            process.kill()
            process.wait()
            if clock.now_ns() - begun_ns >= READY_TIMEOUT_S * 1_000_000_000:
                raise NotRun(f"the broker was not ready after {READY_TIMEOUT_S} s, and was killed")
            raise Fatal(f"the broker does not start: {self.log_tail()}")
        ready: dict[str, Any] = json.loads(line)
        # Workers report all of theirs, at consecutive ports.
        self.addresses = addresses_in(ready["kafka"])
        self.http_addresses = addresses_in(ready["http"])
        self.listeners = ready.get("listeners", {})
        self.address, self._http = self.addresses[0], ready["http"].partition(",")[0]
        self.rocketmq_addresses = addresses_in(ready.get("rocketmq", ""))
        return (clock.now_ns() - begun_ns) / 1e9

    def _choose_ports(self) -> None:
        """Ports that it finds free again when it is started anew; each worker has its own."""
        options = self._options
        count = int(options[options.index("--workers") + 1]) if "--workers" in options else 1
        (host, port), (http_host, http_port) = self.address, self.http_address
        if host == http_host == "127.0.0.1" and (port, http_port) == (0, 0):
            first = free_ports(2 * count)
            self.listen(host, first, first + count)

    @property
    def pid(self) -> int | None:
        """The process; None while it is not running."""
        return None if self._process is None else self._process.pid

    @property
    def http_address(self) -> tuple[str, int]:
        """The HTTP address, once it is ready."""
        host, _, port = self._http.rpartition(":")
        return host, int(port)

    def listen(
        self, host: str, kafka_port: int, http_port: int, http_host: str | None = None
    ) -> None:
        """Set its addresses from the next start on; `http_host` if it differs."""
        self.address, self._http = (host, kafka_port), f"{http_host or host}:{http_port}"

    @property
    def has_ended(self) -> bool:
        """Whether its process has exited on its own."""
        return self._process is not None and self._process.poll() is not None

    def terminate(self, timeout_s: float = 40) -> int:
        """Request a stop, as an operator would; returns the exit code, -9 if it had to be
        killed."""
        for companion in self._companions.values():
            companion.kill()
        process = self._process
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return -9
        finally:
            self.kill()

    def log_tail(self) -> str:
        """The end of its log."""
        return self.log_path.read_text(errors="replace")[-800:]

    def start_and_die(self, after_s: float) -> None:
        """Start it and kill it after this time."""
        early = threading.Timer(after_s, self.kill_if_running)
        early.start()
        try:
            self.start()
        except Fatal:
            pass  # as planned, it died before it was ready
        early.join()
        self.kill()

    def kill_if_running(self) -> None:
        """kill -9 while another thread waits for its start."""
        process = self._process
        if process is not None:
            process.kill()

    def kill(self) -> None:
        """kill -9."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


_MODULE = [sys.executable, "-m", "headrace.cli.main"]
