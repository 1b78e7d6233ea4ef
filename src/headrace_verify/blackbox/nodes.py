"""The nodes of a cluster: brokers, bookies and ZooKeepers, which are started and killed alike.

Invariants: a broker is the installed command, the others are Apache's own servers. Each is
restarted as an operator's supervisor would do: until it serves.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Protocol

from headrace.errors import Fatal, HeadraceError
from headrace_verify.history import now_ns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.dev_cluster.processes import ServerProcess
    from headrace_verify.blackbox.fake_clock import FakeClock
    from headrace_verify.real_broker import RealBroker

START_TIMEOUT_S = 400.0
RETRY_S = 0.3
_BALLAST_CHUNK = 1 << 20
_LOG_TAIL_BYTES = 1 << 22
_LOST_JOURNAL = re.compile(rb"Recovery log \d+ is missing")
_AWAKE_S = 0.05
"""The time a slowed process runs between two stops, to answer requests."""


class Deadline:
    """The time a node may take to return."""

    def __init__(self, seconds: float = START_TIMEOUT_S) -> None:
        self._until_ns = now_ns() + int(seconds * 1e9)

    @property
    def is_over(self) -> bool:
        """Whether it has taken too long."""
        return now_ns() > self._until_ns


class Node(Protocol):
    """One process of a cluster."""

    name: str
    is_ours: bool
    """Whether it is one of our brokers: it must not exit on its own."""

    @property
    def is_alive(self) -> bool:
        """Whether its process is running."""
        ...

    @property
    def log_path(self) -> Path:
        """Its log."""
        ...

    def begin(self) -> None:
        """Start it without waiting for others that it needs."""
        ...

    def wait(self) -> None:
        """Wait until it serves. Raises Fatal."""
        ...

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        ...

    def kill(self) -> None:
        """kill -9."""
        ...

    def signal(self, number: int) -> None:
        """Send it a signal, if it is running."""
        ...


class BrokerNode:
    """A broker; also the supervisor of several."""

    is_ours = True

    def __init__(self, name: str, broker: RealBroker, clock: FakeClock | None = None) -> None:
        self.name = name
        self.broker = broker
        self.clock = clock
        if clock is not None:
            broker.environment = clock.environment

    @property
    def is_alive(self) -> bool:
        """See Node."""
        return self.broker.pid is not None and not self.broker.has_ended

    @property
    def log_path(self) -> Path:
        """See Node."""
        return self.broker.log_path

    def begin(self) -> None:
        """See Node."""

    def wait(self) -> None:
        """See Node: it exits if it finds no ZooKeeper, so it is restarted until it serves."""
        deadline = Deadline()
        while not self.is_alive:
            try:
                self.broker.start()
            except Fatal:
                self.broker.kill()
                if deadline.is_over:
                    raise
                time.sleep(RETRY_S)

    def start_and_die(self, after_s: float) -> None:
        """Start it and kill it after this time."""
        self.broker.start_and_die(after_s)

    def stop(self) -> int:
        """See Node."""
        return self.broker.terminate()

    def kill(self) -> None:
        """See Node."""
        self.broker.kill()

    def signal(self, number: int) -> None:
        """See Node."""
        if self.is_alive and self.broker.pid is not None:
            os.kill(self.broker.pid, number)


class ServerNode:
    """A bookie or a ZooKeeper."""

    is_ours = False

    def __init__(self, server: ServerProcess, wait_ready: Callable[[ServerProcess], None]) -> None:
        self.name = server.name
        self._server = server
        self._wait_ready = wait_ready

    @property
    def is_alive(self) -> bool:
        """See Node."""
        return self._server.is_alive

    @property
    def log_path(self) -> Path:
        """See Node."""
        return self._server.log

    def begin(self) -> None:
        """See Node."""
        if not self.is_alive:
            self._server.start()

    def wait(self) -> None:
        """See Node: a bookie that finds no ZooKeeper exits, and is restarted.

        One whose previous session is still alive gives up without exiting (BookKeeper 4.17):
        operators use a probe that detects it, and kill it. One that could not write a new journal
        file requires that file from then on: see `_forget_lost_journal`.
        """
        deadline = Deadline()
        while True:
            try:
                self.begin()
                self._wait_ready(self._server)
                return
            except HeadraceError as error:
                if deadline.is_over:
                    raise Fatal(f"{self.name} does not return: {error}") from error
                self.kill()
                _forget_lost_journal(self.log_path)
                time.sleep(RETRY_S)

    def stop(self) -> int:
        """See Node."""
        self._server.stop()
        return 0  # how Apache's servers exit is not under test

    def kill(self) -> None:
        """See Node."""
        self._server.kill()

    def signal(self, number: int) -> None:
        """See Node. A process to be stopped has stopped when this returns."""
        if self.is_alive:
            if number == signal.SIGSTOP:
                self._server.suspend()
            else:
                os.kill(self._server.pid, number)


def _forget_lost_journal(log_path: Path) -> None:
    """Remove a bookie's mark if it names a journal file that was never created.

    BookKeeper 4.17 marks the next journal file before it creates it; on a full disk it never does,
    and cannot start again without it. Without a mark it replays all of its files.
    """
    with log_path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
        is_lost = _LOST_JOURNAL.search(log.read()) is not None
    if is_lost:
        (log_path.parent / "ledgers" / "current" / "lastMark").unlink(missing_ok=True)


class SlowAnswers:
    """A process with late responses: it is stopped and resumed repeatedly.

    Simulates a hanging disk or a garbage collection pause: requests wait meanwhile.
    """

    def __init__(self, node: Node, delay_s: float) -> None:
        self._node = node
        self._delay_s = delay_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._toggle, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it run normally from now on."""
        self._over.set()
        self._thread.join()

    def _toggle(self) -> None:
        while not self._over.is_set():
            self._signal(signal.SIGSTOP)
            self._over.wait(self._delay_s)
            self._signal(signal.SIGCONT)
            self._over.wait(_AWAKE_S)

    def _signal(self, number: int) -> None:
        try:
            self._node.signal(number)
        except OSError:
            pass  # it has just exited: a bookie does when its session expires


class SmallDisk:
    """An in-memory file system of a few MiB, which can be filled.

    It is mounted in this process's own mount namespace, so it outlives the processes that use it,
    not the run.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ballast = folder / "ballast"
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise Fatal(f"a small disk cannot be mounted: {done.stderr.strip()}")

    def fill(self, left_bytes: int) -> None:
        """Leave only this much space."""
        room = shutil.disk_usage(self._folder).free - left_bytes
        with self._ballast.open("wb") as file:
            try:
                while room > 0:
                    file.write(bytes(min(room, _BALLAST_CHUNK)))
                    file.flush()
                    room -= _BALLAST_CHUNK
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def close(self) -> None:
        """Unmount it, with all of its contents."""
        subprocess.run(["umount", "-l", str(self._folder)], check=False)  # noqa: S603, S607

    def empty(self) -> None:
        """Free the space."""
        self._ballast.unlink(missing_ok=True)
