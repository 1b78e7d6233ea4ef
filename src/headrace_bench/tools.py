"""Load tools as processes: run to their end, or watched through a window of steady load.

Invariants: no tool outlives the bench, nor waits for a server that has ended (`serving` says
which one it loads). A figure of a window is what the tool itself reports while it runs; its start,
its first reports and its end are not in it.
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
_LOOK_S = 0.5
_SAID_BYTES = 3_000
_is_alive: ContextVar[Callable[[], bool] | None] = ContextVar("is_alive", default=None)


@contextmanager
def serving(is_alive: Callable[[], bool]) -> Iterator[None]:
    """Within this, waiting ends with SystemFailed as soon as the server has ended."""
    token = _is_alive.set(is_alive)
    try:
        yield
    finally:
        _is_alive.reset(token)


def check_server() -> None:
    """Raise SystemFailed when the server that is loaded has ended; call it while waiting."""
    is_alive = _is_alive.get()
    if is_alive is not None and not is_alive():
        raise SystemFailed("the server ended while it was loaded")


@contextmanager
def tool(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    *,
    is_merged: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """A tool's process, killed when the block is left before it has ended.

    Its errors come with what it prints (`is_merged`), or on a pipe of their own.
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
    """Run a load tool to its end; returns what it printed. Raises SystemFailed."""
    name = Path(command[0]).name
    deadline = time.monotonic() + timeout_s
    out = errors = b""
    with tool(command, environment, folder) as process:
        while True:
            try:
                out, errors = process.communicate(timeout=_LOOK_S)
                break
            except subprocess.TimeoutExpired as error:
                check_server()
                if time.monotonic() > deadline:
                    raise SystemFailed(f"{name} did not end in {timeout_s:.0f} s") from error
    if process.returncode != 0:
        said = (out + errors).decode(errors="replace")
        raise SystemFailed(f"{name} failed: {said[-_SAID_BYTES:]}")
    return out.decode(errors="replace")


class Window(NamedTuple):
    """What is left out after a tool's first report, and how long is measured then.

    It ends earlier as soon as the tool has done `records_enough`, its warm-up included.
    """

    warmup_s: float
    seconds: float
    records_enough: float = math.inf

    @property
    def whole_s(self) -> float:
        """With the warm-up."""
        return self.warmup_s + self.seconds

    def times(self, length: float) -> Window:
        """So many times as long."""
        return Window(self.warmup_s * length, self.seconds * length, self.records_enough * length)


class Steady(NamedTuple):
    """What a tool did within its window, and what the server used for it.

    `total` counts from the tool's start: so many records are there at least.
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
    """How a tool is run that reports while it runs, and how one line of it is read."""

    command: Sequence[str]
    rate_of: Callable[[str], float | None]
    """The records a second that a line tells; None of a line that tells none."""
    environment: Mapping[str, str] | None = None
    looks_back_s: float = 0.0
    """Each report is the average of so many seconds; 0: of the time since the one before."""


def watch(one: Tool, window: Window, pids: Sequence[int]) -> Steady:
    """Run a tool until its window is over (then it is killed), or it ends by itself before.

    The warm-up begins with its first report of more than nothing. The rate of the window is the
    mean of its reports, each weighted by the time it is for; CPU, bytes and memory are those of
    `pids` and what is below them between the window's first and last moment. Raises SystemFailed
    when it fails, reports nothing done for SILENCE_MAX_S, or never tells enough.
    """
    name = Path(one.command[0]).name
    seen = _Reports(one, window, pids)
    said = ""
    with tool(one.command, one.environment, is_merged=True) as process:
        for text in _lines(process, seen):
            said = (said + text + "\n")[-_SAID_BYTES:]
            rate = one.rate_of(text)
            if rate is not None and seen.add(rate, time.perf_counter()):
                return seen.steady()
        code = process.wait()
    if code:
        raise SystemFailed(f"{name} failed: {said}")
    if not seen.seconds:
        raise SystemFailed(f"{name} ended before its warm-up was over; it said: {said}")
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
        """Raise SystemFailed when the server has ended, or nothing was done for too long."""
        check_server()
        allowed_s = FIRST_REPORT_MAX_S if self._last_at is None else SILENCE_MAX_S
        if time.perf_counter() - self._moved_at > allowed_s:
            raise SystemFailed(f"the tool reported nothing done for {allowed_s:.0f} s")

    def add(self, rate: float, now: float) -> bool:
        """Take one report; True when the window is over."""
        if rate > 0:
            self._moved_at = now
        if self._last_at is None:
            if rate <= 0:
                return False
            # Who looks back has worked for a while before it reports at all.
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
        """What the window held."""
        records = self._records
        if self._tool.looks_back_s:  # the last report alone is of nothing but the window
            records = self._rate * self.seconds
        if not self.seconds or not records or self._before is None:
            raise SystemFailed("the tool reported nothing in its window")
        return Steady(records, self.seconds, self._after.since(self._before), self._total)


_SLACK_S = 0.05  # reports come each second, not to the millisecond


def _lines(process: subprocess.Popen[bytes], seen: _Reports) -> Iterator[str]:
    """What the tool prints, line by line, as it comes; lines may end with a carriage return."""
    assert process.stdout is not None
    handle = process.stdout.fileno()
    os.set_blocking(handle, False)
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while True:
            if selector.select(_LOOK_S):
                more = os.read(handle, 1 << 16)
                if not more:
                    break
                *lines, rest = re.split(rb"[\r\n]+", rest + more)
                yield from (line.decode(errors="replace") for line in lines)
            seen.check_progress()
    if rest:
        yield rest.decode(errors="replace")
