"""A system's processes: start, stop, and their CPU, memory and written bytes from /proc.

Invariants: only processes that were started here are examined or stopped, by their ids. A system
may consist of several processes (children, and theirs): their figures are added.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import Retriable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_START_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 20.0


class SystemFailed(Retriable):
    """A system under test, or a load tool, has failed."""


class Usage(NamedTuple):
    """The resources that a tree of processes has used so far; `rss_bytes` is the current value."""

    cpu_s: float
    written_bytes: int
    rss_bytes: int

    def since(self, before: Usage) -> Usage:
        """The resources used after `before`; memory is the current value."""
        return Usage(
            self.cpu_s - before.cpu_s, self.written_bytes - before.written_bytes, self.rss_bytes
        )


def tree_of(pid: int) -> list[int]:
    """`pid` and its descendants, by the parent of every process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has exited meanwhile
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def usage_of(pids: Sequence[int]) -> Usage:
    """The sum over `pids` and their descendants."""
    cpu, written, rss = 0.0, 0, 0
    for pid in {one for root in pids for one in tree_of(root)}:
        folder = Path(f"/proc/{pid}")
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            status = (folder / "status").read_text()
            counters = (folder / "io").read_text()
        except OSError:
            continue
        # Includes children that exited and were waited for (15, 16).
        cpu += sum(int(fields[index]) for index in (11, 12, 13, 14)) / TICKS_PER_S
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        rss += int(found[1]) * 1024 if found else 0
        found = re.search(r"^write_bytes: (\d+)", counters, re.MULTILINE)
        written += int(found[1]) if found else 0
    return Usage(cpu, written, rss)


@contextmanager
def undisturbed() -> Iterator[None]:
    """While systems are being stopped, Ctrl-C and SIGTERM are deferred: nothing may be left
    running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.signal(one, signal.SIG_IGN) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class Processes:
    """The processes of one system, with one folder for data and logs."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """The processes that were started here."""
        return [process.pid for process in self._running]

    def is_alive(self) -> bool:
        """Something was started, and all of it is running."""
        return bool(self._running) and all(process.poll() is None for process in self._running)

    def clear(self) -> None:
        """An empty folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start one process; its output goes to `<folder>/<number>.log`."""
        with (self.folder / f"{len(self._running)}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Poll every 10 ms until it is ready. Raises SystemFailed if it exits or is too slow."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not is_ready():
            ended = [process for process in self._running if process.poll() is not None]
            if ended or time.monotonic() > deadline:
                what = (
                    "exited while starting" if ended else f"was not ready in {_START_TIMEOUT_S} s"
                )
                raise SystemFailed(f"{self.name} {what}; its output: {self.output()}")
            time.sleep(0.01)

    def output(self) -> str:
        """The end of the processes' output."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(log.read_text(errors="replace")[-1500:] for log in logs)

    def stop(self) -> None:
        """Stop what was started, last first, and remove the folder."""
        for process in reversed(self._running):
            below = tree_of(process.pid)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pid in below[1:]:  # its remaining children, if they are still in its session
                try:
                    if os.getsid(pid) == process.pid:
                        os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        self._running.clear()
        shutil.rmtree(self.folder, ignore_errors=True)
