"""Child processes that end with their owner, however the owner ends.

Invariants: knows processes and signals, not what runs in them. All processes of one Family share a
process group whose leader blocks on a pipe from the owner; when the pipe closes, because the owner
closed it or was killed, the leader kills the group. (PR_SET_PDEATHSIG would be tied to the thread
that started a process, and a pool's thread ends before its process does.)
"""

from __future__ import annotations

import os
import signal
import subprocess
from threading import Event
from typing import TYPE_CHECKING

from headrace.errors import Retriable
from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_LEADER = ("/bin/sh", "-c", "read _; kill -9 0")
_POLL_S = 0.01
_STOP_TIMEOUT_S = 30
_ENDED_WELL = (0, 143)  # Java's exit code after a regular stop by SIGTERM
_LOG_LINES = 12  # of the log to show if a process does not start


class ProcessNotReady(Retriable):
    """A process of a development cluster has exited, or was not ready in time."""


class Family:
    """A process group that dies with its owner."""

    def __init__(self) -> None:
        self._leader = subprocess.Popen(  # noqa: S603 - a constant
            _LEADER, stdin=subprocess.PIPE, process_group=0
        )

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a process whose output is appended to `log`."""
        with log.open("ab") as stream:
            return subprocess.Popen(  # noqa: S603 - our own command
                command,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                process_group=self._leader.pid,
            )

    def close(self) -> None:
        """Kill the remaining processes of the group."""
        stdin = self._leader.stdin
        assert stdin is not None
        stdin.close()
        self._leader.wait()


class ServerProcess:
    """One server that can be stopped, killed, suspended and restarted unchanged."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int],
        command: Sequence[str],
        log: Path,
        family: Family,
    ) -> None:
        self.name = name
        self.host, self.port = address
        self.log = log
        self._command = command
        self._family = family
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT; unchanged by restarts."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id; the process must have been started."""
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether its process exists: it may be suspended, or not ready yet."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended_well(self) -> bool:
        """Whether it has exited after a request to stop."""
        return self._process is not None and self._process.poll() in _ENDED_WELL

    def start(self) -> None:
        """Start it, without waiting until it is ready."""
        assert not self.is_alive, f"{self.name} is already running"
        self._process = self._family.start(self._command, self.log)

    def kill(self) -> None:
        """kill -9, and wait until it has exited; works on a suspended process, too."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def ask_to_stop(self) -> None:
        """Request a stop, without waiting."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()

    def stop(self) -> None:
        """Request a stop, wait, and kill the process if it does not exit."""
        self.ask_to_stop()
        if self._process is not None:
            try:
                self._process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()

    def suspend(self) -> None:
        """SIGSTOP: suspends it, but its connections stay open."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # until it has stopped

    def resume(self) -> None:
        """SIGCONT: resumes it."""
        self._signal(signal.SIGCONT)

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `is_ready()`. Raises ProcessNotReady with the end of the log."""
        clock, pause = SystemClock(), Event()
        end_ns = clock.now_ns() + int(timeout_s * 1e9)
        while not is_ready():
            if not self.is_alive:
                raise ProcessNotReady(self._story("has exited"))
            if clock.now_ns() > end_ns:
                raise ProcessNotReady(self._story(f"was not ready within {timeout_s:g} s"))
            pause.wait(_POLL_S)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} was not started"
        self._process.send_signal(number)

    def _story(self, what: str) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
        return "\n  ".join(
            [f"{self.name} at {self.address} {what}; end of its log {self.log}:", *lines]
        )
