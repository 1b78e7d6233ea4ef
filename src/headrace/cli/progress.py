"""A progress line on stderr, for a terminal; a log line per minute for commands that take hours.

Invariants: in a pipe or with --quiet, imports nothing. Refreshed by time, never per record.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from headrace.cli.output import counted, duration_text, say, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress, TaskID

    Update = Callable[..., None]
    """`rich.progress.Progress.update` of one task."""

REFRESH_NS = 100_000_000
LINE_EVERY_NS = 60_000_000_000


@contextmanager
def counting(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show progress towards a known total: call the yielded function with each increment."""
    with _bar(label, total) as update:
        yield lambda count: update(advance=count)


@contextmanager
def watching(label: str, look: Callable[[], tuple[int, int]]) -> Iterator[None]:
    """Show progress of work that does not report it: a thread asks `look`, which must not raise,
    for (done, total so far)."""
    if not sys.stderr.isatty():
        yield
        return
    from threading import Event, Thread

    with _bar(label, None) as update:
        is_over = Event()

        def follow() -> None:
            while not is_over.wait(REFRESH_NS / 1e9):
                done, total = look()
                update(completed=done, total=total or None)

        thread = Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


@contextmanager
def bytes_read(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress in bytes: call the yielded function with (bytes done, total bytes)."""
    with _bar(label, None, are_bytes=True) as update:
        yield lambda done, total: update(completed=done, total=total)


@contextmanager
def _bar(label: str, total: int | None, *, are_bytes: bool = False) -> Iterator[Update]:
    """A bar of one task, and what updates it; shown on a terminal alone."""
    if not sys.stderr.isatty():
        yield lambda **_fields: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    figures = (DownloadColumn(), TimeRemainingColumn()) if are_bytes else (MofNCompleteColumn(),)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *figures,
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        yield partial(shown.update, shown.add_task(label, total=total))


class StatusLine:
    """A progress text, rewritten in place: for callers that report occasionally."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._next_ns = time.perf_counter_ns() + LINE_EVERY_NS

    def show(self, fraction: float, state: str) -> None:
        """Show it: in place on a terminal, otherwise as a separate line occasionally."""
        if self._is_shown:
            sys.stderr.write(f"\r\x1b[K{fraction:4.0%}  {state}")
        elif time.perf_counter_ns() >= self._next_ns:
            self._next_ns = time.perf_counter_ns() + LINE_EVERY_NS
            sys.stderr.write(f"{fraction:4.0%}  {state}\n")
        else:
            return
        sys.stderr.flush()

    def end(self) -> None:
        """Clear the line."""
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")


class Meter:
    """Counts records and bytes; shows them while running, and prints a summary at the end."""

    def __init__(self, label: str, total: int | None, show: bool) -> None:
        self.records = 0
        self.size_bytes = 0
        self.done = 0
        self._label = label
        self._started_ns = time.perf_counter_ns()
        self._next_ns = self._started_ns + REFRESH_NS
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if show and sys.stderr.isatty():
            self._start(total)

    def _start(self, total: int | None) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task(self._label, total=total, state="")

    def set_total(self, total: int | None) -> None:
        """Set the total, once it is known."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total)

    def tick(self) -> None:
        """Refresh the display if it is due; cheap enough to be called often."""
        if self._progress is None:
            return
        now_ns = time.perf_counter_ns()
        if now_ns < self._next_ns:
            return
        self._next_ns = now_ns + REFRESH_NS
        assert self._task is not None
        rate = self.records / max(self.seconds(), 1e-9)
        state = f"{counted(self.records, 'record')}  {size_text(self.size_bytes)}  {rate:,.0f}/s"
        self._progress.update(self._task, completed=self.done, state=state)

    def seconds(self) -> float:
        """The time since its start."""
        return (time.perf_counter_ns() - self._started_ns) / 1e9

    def stop(self) -> None:
        """Clear the progress line."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def summary(self, verb: str, detail: str) -> None:
        """Print one line on stderr: number, time, rate."""
        self.stop()
        seconds = self.seconds()
        rate = self.records / max(seconds, 1e-9)
        say(
            f"{verb} {counted(self.records, 'record')}, {size_text(self.size_bytes)} in "
            f"{duration_text(seconds)} ({rate:,.0f} records/s){detail}"
        )
