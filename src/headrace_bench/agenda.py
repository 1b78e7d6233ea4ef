"""The order of a side-by-side run, with estimated times.

Invariants: pure. A turn is one side from its start to its end, alone on the machine; a round gives
each side one turn, so that a slow minute of the machine does not always hit the same one. The
seconds are estimates for an idle machine, to show the remaining time; nothing depends on them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace_bench.growth import READ_S, SIDES, WINDOW, Fetching, Series, Work, work_of
from headrace_bench.loads import FILLS, Load
from headrace_bench.workloads import UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Sequence

# From the start of the processes until topics can be created, and their shutdown.
_START_S = {"kafka": 7.0, "rabbitmq": 7.0, "rabbitmq-classic": 7.0, "rocketmq": 14.0}
_START_OTHERS_S = 2.0
_START_APART_S = 26.0  # of RocketMQ with proxy and broker apart, and the stop of the other one
_TOOL_S = 1.5  # from a tool's start to its first report
_TOOL_START_S = {"redis": 0.5, "nats": 1.0, "rocketmq": 10.0}
_READ_PASSES = 3
_OPEN_S = 0.0004  # per idle connection


class SideName(NamedTuple):
    """A side, without its processes."""

    name: str
    policy: str

    def __str__(self) -> str:
        """Its name in results."""
        return f"{self.name}/{self.policy}"


class Step(NamedTuple):
    """One load, or one point of a series, on one side."""

    what: Load | Series
    value: int
    """Of a series: the value of the variable."""
    seconds: float

    @property
    def title(self) -> str:
        """A readable name."""
        if isinstance(self.what, Load):
            return self.what.title
        return f"{self.what.title}: {self.value:,}"


class Turn(NamedTuple):
    """One side, started for the turn and stopped after it."""

    number: int
    """The round, counted from 1."""
    side: SideName
    start_s: float
    steps: tuple[Step, ...]

    @property
    def seconds(self) -> float:
        """Including start and stop."""
        return self.start_s + sum(step.seconds for step in self.steps)


def turns(
    loads: Sequence[Load],
    series: Sequence[Series],
    sides: Sequence[SideName],
    rounds: int,
    length: float,
) -> list[Turn]:
    """All turns in order; a side without work in a round has no turn in it."""
    found = []
    for number in range(1, rounds + 1):
        for side in sides:
            steps = [
                Step(load, 0, _load_s(load, side.name, length))
                for load in loads
                if load.is_for(side.name, side.policy) and load.is_in(number)
            ]
            if side.name in SIDES and side.policy == UNSYNCED:
                steps += _growth([one for one in series if one.is_in(number)], length)
            if steps:
                start_s = _START_S.get(side.name, _START_OTHERS_S)
                found.append(Turn(number, side, start_s, tuple(steps)))
    return found


def _load_s(load: Load, name: str, length: float) -> float:
    tool_s = _TOOL_START_S.get(name, _TOOL_S)
    if load.kind == "delayed":  # of its own length, however short the run is
        return load.window.whole_s
    if load.kind == "lite":
        return load.window.whole_s * length + (_START_APART_S if name == "rocketmq" else 0.0)
    whole_s = _refill_s(load) * length + tool_s + load.window.whole_s * length
    is_own = load.kind in ("produce", "consume", "latency") and load.name.startswith("beside")
    if (
        name == "rocketmq" and is_own
    ):  # it has only one kind; its warm-up ends with its first report
        return tool_s + load.window.seconds * length + _TOOL_S if load.kind == "produce" else 0.0
    if load.kind == "consume" and name in SIDES:
        return _READ_PASSES * (tool_s + 3 * load.window.warmup_s * length)
    return whole_s


def _refill_s(load: Load) -> float:
    """The time to write what a queue's consumer empties."""
    return FILLS[load.acknowledge].seconds if load.kind == "queue" else 0.0


def _growth(series: Sequence[Series], length: float) -> list[Step]:
    seen: set[Work] = set()
    steps = []
    for one in series:
        for value in one.values:
            work = work_of(one, value)
            seconds = 0.0
            if work not in seen:
                seconds = READ_S * length + 0.3
                if not isinstance(work, Fetching):
                    seconds = _TOOL_S + WINDOW.whole_s * length + work.connections * _OPEN_S
            seen.add(work)
            steps.append(Step(one, value, seconds))
    return steps
