"""One running attack: its budget, its checks and its findings.

Invariants: an attack counts every check, names what it skipped and why, and adds to every violation
what is needed to reproduce it. Nothing here knows what is attacked.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

VIOLATIONS_KEPT = 20
"""Per attack: the rest is only counted."""


def _wall_s() -> float:
    return SystemClock().now_ns() / 1e9


def work_s() -> float:
    """Processor time of this process and its finished children.

    For budgets that mean the same on a busy machine.
    """
    return sum(os.times()[:4])


class Violation(NamedTuple):
    """A violated guarantee."""

    what: str
    replay: dict[str, Any]
    """How to reproduce it: the seed and the place."""


class Attack(NamedTuple):
    """One way to attack a guarantee."""

    name: str
    promise: str
    """A description of the guarantee."""
    unit: str
    """The unit of its count."""
    share: int
    """Its share of the total time."""
    run: Callable[[Task], None]
    evidence: tuple[str, ...] = ()
    """Figures without which its checks prove nothing, for example acknowledgements."""


class Task:
    """What an attack works with and reports to."""

    def __init__(
        self,
        name: str,
        seed: int,
        seconds: float,
        folder: Path,
        *,
        runs_max: int | None = None,
        flips_max: int | None = None,
        is_exhaustive: bool = False,
        on_progress: Callable[[Task], None] | None = None,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        """`now_s`: the clock for its time; None: the wall clock."""
        self.name = name
        self.seed = seed
        self.folder = folder
        self.runs_max = runs_max
        self.flips_max = flips_max
        self.is_exhaustive = is_exhaustive
        """Whether to run every case, however long it takes."""
        self.stop_at_first = False
        self.checked = 0
        self.runs = 0
        self.violation_count = 0
        self.violations: list[Violation] = []
        self.skipped: list[str] = []
        self.not_run: list[str] = []
        """Why it, or a part of it, could not run."""
        self.is_impossible = False
        """Report that this machine lacks what the attack needs."""
        self.planted = ""
        """The name of the bug to find, for child processes."""
        self.figures: dict[str, Any] = {}
        self._on_progress = on_progress
        self._now_s = now_s or _wall_s
        self._begun_s = self._now_s()
        self._seconds = seconds

    @property
    def seconds(self) -> float:
        """The time since its start."""
        return self._now_s() - self._begun_s

    @property
    def fraction(self) -> float:
        """The fraction of its time that has passed."""
        return min(1.0, self.seconds / self._seconds) if self._seconds else 1.0

    def has_time(self) -> bool:
        """Whether there is time, and reason, for another run."""
        if self._on_progress is not None:
            self._on_progress(self)
        if self.violation_count and (self.stop_at_first or len(self.violations) >= VIOLATIONS_KEPT):
            return False
        if self.runs_max is not None:
            return self.runs < self.runs_max
        return self.runs == 0 or self.seconds < self._seconds

    def is_out_of_time(self) -> bool:
        """Whether a run should end early: never if a number of runs was requested."""
        return self.runs_max is None and self.runs > 0 and self.seconds >= self._seconds

    def add(self, figure: str, count: int = 1) -> None:
        """Add to a counter of the report."""
        self.figures[figure] = self.figures.get(figure, 0) + count

    def wrong(self, what: str, **replay: Any) -> None:
        """Report a violation."""
        self.violation_count += 1
        if len(self.violations) < VIOLATIONS_KEPT:
            self.violations.append(Violation(what, {"attack": self.name, **replay}))

    def skip(self, why: str) -> None:
        """Report that something was skipped."""
        if why not in self.skipped:
            self.skipped.append(why)

    def could_not_run(self, why: str) -> None:
        """Report that this run, or a part of it, proves nothing."""
        self.not_run.append(why)

    def skip_all(self, why: str) -> None:
        """Report that the attack cannot run here; this is not a failure."""
        self.is_impossible = True
        self.skip(why)


def replace_existing(target: Any, name: str, value: Any) -> None:
    """Replace an attribute for good. A bug that patches a name which is no longer there would plant
    nothing. Raises AttributeError."""
    getattr(target, name)
    setattr(target, name, value)


@contextmanager
def patched(target: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of `target` within the context."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)
