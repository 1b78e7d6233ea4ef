"""Load tools as processes: run to their end, or measured in a window of steady load.

Invariants: no tool outlives the bench, nor waits for a server that has exited (`serving` names the
loaded one). A figure of a window is what the tool itself reports while it runs, without its start,
its first reports and its end.
"""

from __future__ import annotations

import math
import os
import re
import selectors
import subprocess
import time
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace_bench.processes import SystemFailed, Usage, usage_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

FIRST_REPORT_MAX_S = 60.0
SILENCE_MAX_S = 30.0
_POLL_INTERVAL_S = 0.5
_SAID_BYTES = 3_000
_is_alive: ContextVar[Callable[[], bool] | None] = ContextVar("is_alive", default=None)


@contextmanager
def serving(is_alive: Callable[[], bool]) -> Iterator[None]:
    """Within this context, waiting raises SystemFailed as soon as the server has exited."""
    token = _is_alive.set(is_alive)
    try:
        yield
    finally:
        _is_alive.reset(token)


def check_server() -> None:
    """Raise SystemFailed if the loaded server has exited; call it while waiting."""
    is_alive = _is_alive.get()
    if is_alive is not None and not is_alive():
        raise SystemFailed("the server exited under load")


@contextmanager
def tool(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    *,
    is_merged: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """A tool's process, killed if the block is left before it has exited.

    Its stderr is merged with its output (`is_merged`), or a separate pipe.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if is_merged else subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, **(environment or {})},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def run_tool(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 180,
    folder: Path | None = None,
) -> str:
    """Run a load tool to its end; returns its output. Raises SystemFailed."""
    name = Path(command[0]).name
    deadline = time.monotonic() + timeout_s
    out = errors = b""
    with tool(command, environment, folder) as process:
        while True:
            try:
                out, errors = process.communicate(timeout=_POLL_INTERVAL_S)
                break
            except subprocess.TimeoutExpired as error:
                check_server()
                if time.monotonic() > deadline:
                    raise SystemFailed(f"{name} did not exit within {timeout_s:.0f} s") from error
    if process.returncode != 0:
        output = (out + errors).decode(errors="replace")
        raise SystemFailed(f"{name} failed: {output[-_SAID_BYTES:]}")
    return out.decode(errors="replace")


class Window(NamedTuple):
    """The warm-up after a tool's first report, and the length of the window.

    It ends early once the tool has done `records_enough`, including its warm-up.
    """

    warmup_s: float
    seconds: float
    records_enough: float = math.inf

    @property
    def whole_s(self) -> float:
        """Including the warm-up."""
        return self.warmup_s + self.seconds

    def times(self, length: float) -> Window:
        """Scaled by this factor."""
        return Window(self.warmup_s * length, self.seconds * length, self.records_enough * length)


class Steady(NamedTuple):
    """A tool's work within its window, and the server's resources for it.

    `total` counts from the tool's start: at least this many records exist.
    """

    records: float
    seconds: float
    used: Usage
    total: float

    @property
    def records_per_s(self) -> float:
        """Of the window."""
        return self.records / self.seconds

    def and_then(self, other: Steady) -> Steady:
        """Two windows as one; memory is that of the later one."""
        used = Usage(
            self.used.cpu_s + other.used.cpu_s,
            self.used.written_bytes + other.used.written_bytes,
            other.used.rss_bytes,
        )
        return Steady(self.records + other.records, self.seconds + other.seconds, used, self.total)


class Tool(NamedTuple):
    """How to run a tool that reports while it runs, and how to parse its lines."""

    command: Sequence[str]
    rate_of: Callable[[str], float | None]
    """Parse a line's records per second; None for other lines."""
    environment: Mapping[str, str] | None = None
    looks_back_s: float = 0.0
    """Each report is the average of this many seconds; 0: of the time since the previous one."""


def watch(one: Tool, window: Window, pids: Sequence[int]) -> Steady:
    """Run a tool until its window is complete (then it is killed), or it exits earlier.

    The warm-up begins with its first non-zero report. The rate of the window is the mean of its
    reports, weighted by their time; CPU, bytes and memory are those of `pids` and their descendants
    between the window's start and end. Raises SystemFailed if it fails, reports no progress for
    SILENCE_MAX_S, or never reports enough.
    """
    name = Path(one.command[0]).name
    seen = _Reports(one, window, pids)
    output = ""
    with tool(one.command, one.environment, is_merged=True) as process:
        for text in _lines(process, seen):
            output = (output + text + "\n")[-_SAID_BYTES:]
            rate = one.rate_of(text)
            if rate is not None and seen.add(rate, time.perf_counter()):
                return seen.steady()
        code = process.wait()
    if code:
        raise SystemFailed(f"{name} failed: {output}")
    if not seen.seconds:
        raise SystemFailed(f"{name} exited before the end of its warm-up; its output: {output}")
    return seen.steady()


class _Reports:
    """Sums up reports: first the warm-up, then the window."""

    def __init__(self, one: Tool, window: Window, pids: Sequence[int]) -> None:
        self._tool, self._window, self._pids = one, window, pids
        self._started_at = time.perf_counter()
        self._last_at: float | None = None
        self._warm_at = 0.0
        self._before: Usage | None = None
        self._after = Usage(0.0, 0, 0)
        self._began_at = self._records = self._total = self._rate = 0.0
        self._moved_at = time.perf_counter()
        self.seconds = 0.0

    def check_progress(self) -> None:
        """Raise SystemFailed if the server has exited, or there was no progress for too long."""
        check_server()
        allowed_s = FIRST_REPORT_MAX_S if self._last_at is None else SILENCE_MAX_S
        if time.perf_counter() - self._moved_at > allowed_s:
            raise SystemFailed(f"the tool reported no progress for {allowed_s:.0f} s")

    def add(self, rate: float, now: float) -> bool:
        """Add one report; returns True when the window is complete."""
        if rate > 0:
            self._moved_at = now
        if self._last_at is None:
            if rate <= 0:
                return False
            # A tool that reports past averages has worked for a while before its first report.
            since = self._started_at if self._tool.looks_back_s else now
            self._last_at, self._warm_at = now, since + self._window.warmup_s
        took, self._last_at = now - self._last_at, now
        self._total += rate * took
        if self._before is None:
            if now >= self._warm_at - _SLACK_S:
                self._before, self._began_at = usage_of(self._pids), now
            return False
        self._records += rate * took
        self._rate = rate
        self.seconds = now - self._began_at
        self._after = usage_of(self._pids)
        is_enough = self._total >= self._window.records_enough
        return is_enough or self.seconds >= self._window.seconds - _SLACK_S

    def steady(self) -> Steady:
        """The contents of the window."""
        records = self._records
        if self._tool.looks_back_s:  # only the last report covers nothing but the window
            records = self._rate * self.seconds
        if not self.seconds or not records or self._before is None:
            raise SystemFailed("the tool reported nothing in its window")
        return Steady(records, self.seconds, self._after.since(self._before), self._total)


_SLACK_S = 0.05  # reports arrive every second, not to the millisecond


def _lines(process: subprocess.Popen[bytes], seen: _Reports) -> Iterator[str]:
    """The tool's output, line by line, as it arrives; lines may end with a carriage return."""
    assert process.stdout is not None
    handle = process.stdout.fileno()
    os.set_blocking(handle, False)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while True:
            if selector.select(_POLL_INTERVAL_S):
                more = os.read(handle, 1 << 16)
                if not more:
                    break
                *lines, rest = re.split(rb"[\r\n]+", rest + more)
                yield from (line.decode(errors="replace") for line in lines)
            seen.check_progress()
    if rest:
        yield rest.decode(errors="replace")
