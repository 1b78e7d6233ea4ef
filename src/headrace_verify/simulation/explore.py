"""Runs many seeds, one after another; replays and shrinks each that fails.

Invariants: the only real clock decides when time is up. A failure is reproducible if the same
scenario gives the same trace again; its faults are then removed, by halves first, as long as one of
the found kinds remains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from headrace.runtime.clock import SystemClock
from headrace_verify.simulation.fault_points import POINTS
from headrace_verify.simulation.run import draw_scenario, simulate
from headrace_verify.verdicts import HELD, missing, verdict_of
from headrace_verify.workloads import LOG

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_verify.simulation.run import Result, Scenario
    from headrace_verify.simulation.schedule import Fault

RUN_S = 60.0
"""Simulated seconds of faults in one run."""
T = TypeVar("T")

REPLAY_EVERY = 100
"""One clean run in this many is repeated, and its trace compared."""
SHRINK_RUNS_MAX = 90


RUNS_FOR_ALL_POINTS = 50
"""After this many runs, every fault point must have been hit."""


@dataclass(slots=True)
class Failure:
    """A run with a problem."""

    result: Result
    is_replayed: bool
    """Whether the same scenario gave the same trace again."""
    shrunk: tuple[Fault, ...]
    """The faults that are needed to reproduce it."""
    points: tuple[str, ...]
    """The fault points that are needed to reproduce it."""
    shrink_runs: int


@dataclass(slots=True)
class Outcome:
    """The result of many runs."""

    seed: int
    runs: int = 0
    replays: int = 0
    simulated_s: float = 0.0
    broker_s: float = 0.0
    real_s: float = 0.0
    messages: int = 0
    callbacks: int = 0
    operations: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    fault_points: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    unstable: list[int] = field(default_factory=list)
    """Seeds whose second run gave another trace."""

    @property
    def is_violated(self) -> bool:
        """See Judged."""
        return bool(self.failures or self.unstable)

    @property
    def gaps(self) -> list[str]:
        """See Judged."""
        evidence = {"completed operations": self.operations, "faults that took effect": self.faults}
        never = [f"the fault point {name!r} was never hit" for name in self.missed]
        return [*missing(evidence), *never]

    @property
    def held(self) -> bool:
        """Whether there is evidence, and nothing was wrong."""
        return verdict_of(self) == HELD

    @property
    def missed(self) -> list[str]:
        """The fault points that were never hit, once there were enough runs."""
        return (
            [] if self.runs < RUNS_FOR_ALL_POINTS else sorted(set(POINTS) - set(self.fault_points))
        )


class Limits(NamedTuple):
    """When to stop: whichever comes first, and after too many failures."""

    seconds: float | None = None
    """Of real time."""
    runs: int | None = None
    hours: float | None = None
    """Simulated, of clusters."""
    failures: int = 3

    def part(self, outcome: Outcome) -> float:
        """The fraction that is done; 1 and more: all."""
        wanted = (self.seconds, self.runs, self.hours)
        done = (outcome.real_s, outcome.runs, outcome.simulated_s / 3600)
        return max((is_ / of for is_, of in zip(done, wanted, strict=True) if of), default=1.0)


def explore(
    seed: int,
    limits: Limits,
    on_progress: Callable[[float, str], None],
    on_failure: Callable[[Failure], None] = lambda _failure: None,
    is_over: Callable[[], bool] = lambda: False,
    workload: str = LOG,
) -> Outcome:
    """Run seeds from `seed` on until a limit is reached, or `is_over` returns true between two of
    them.

    `on_failure` is called for each immediately.
    """
    clock = SystemClock()
    begun_ns = clock.now_ns()
    outcome = Outcome(seed)
    while len(outcome.failures) < limits.failures and not is_over():
        outcome.real_s = (clock.now_ns() - begun_ns) / 1e9
        part = limits.part(outcome)
        if part >= 1:
            break
        on_progress(part, f"seed {seed + outcome.runs}, {outcome.broker_s / 3600:.1f} broker-hours")
        found = len(outcome.failures)
        _run_one(outcome, draw_scenario(seed + outcome.runs, RUN_S, workload=workload))
        for failure in outcome.failures[found:]:
            on_failure(failure)
    outcome.real_s = (clock.now_ns() - begun_ns) / 1e9
    return outcome


def _run_one(outcome: Outcome, scenario: Scenario) -> None:
    result = simulate(scenario)
    outcome.runs += 1
    outcome.simulated_s += result.simulated_s
    outcome.broker_s += result.simulated_s * scenario.brokers
    outcome.messages += result.messages
    outcome.callbacks += result.callbacks
    outcome.operations += result.operations
    for total, found in (
        (outcome.faults, result.faults),
        (outcome.fault_points, result.fault_points),
    ):
        for kind, count in found.items():
            total[kind] = total.get(kind, 0) + count
    if not result.held:
        outcome.failures.append(understand(result))
    elif outcome.runs % REPLAY_EVERY == 1:
        outcome.replays += 1
        if simulate(scenario).trace != result.trace:
            outcome.unstable.append(scenario.seed)


def understand(result: Result) -> Failure:
    """Replay a failure, and find the faults needed to reproduce it."""
    again = simulate(result.scenario)
    is_replayed = again.trace == result.trace
    runs = 0

    scenario = result.scenario

    def fails(**parts: Any) -> bool:
        nonlocal runs
        if runs >= SHRINK_RUNS_MAX:
            return False
        runs += 1
        return bool(simulate(scenario._replace(**parts)).kinds & result.kinds)

    if fails(points=()):
        points: tuple[str, ...] = ()
    else:
        points = shrink(scenario.points, lambda some: fails(points=tuple(some)))
    scenario = scenario._replace(points=points)
    shrunk = shrink(scenario.schedule, lambda some: fails(schedule=tuple(some)))
    return Failure(result, is_replayed, shrunk, points, runs)


def shrink(faults: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> tuple[T, ...]:
    """Find a smaller list that fails as well: delta debugging, by halves, quarters, single
    faults."""
    found = tuple(faults)
    parts = 2
    while found:
        size = -(-len(found) // parts)
        for at in range(0, len(found), size):
            rest = found[:at] + found[at + size :]
            if fails(rest):
                found, parts = rest, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(found))
    return found
