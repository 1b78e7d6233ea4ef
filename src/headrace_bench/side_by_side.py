"""Runs all loads on each system, one system at a time, and keeps each round's figures.

Invariants: only the measured system runs: it is started for its turn and stopped after it, and
turns alternate, round by round. A system that is missing, does not start or fails is recorded as
such and excluded; the others' figures are kept. Resources are measured over exactly the window of
the rate.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from headrace_bench.agenda import SideName, Step, Turn, turns
from headrace_bench.figures import Figures, figures_of, shown
from headrace_bench.growth import Filled, Growth
from headrace_bench.loads import FILLS, SHARES, Load
from headrace_bench.parts import PartMissing
from headrace_bench.processes import SystemFailed, undisturbed, usage_of
from headrace_bench.run import commit, machine
from headrace_bench.systems.kafka_protocol import KafkaProtocolSide
from headrace_bench.systems.registry import BY_NAME
from headrace_bench.systems.rocketmq_protocol import RocketSide
from headrace_bench.tools import Window, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace_bench.growth import Series
    from headrace_bench.systems.system import Latency, Side, System

CONSOLE = Console(stderr=True, soft_wrap=True)
_FILL_S = 4.0  # how long to write for a consume run, if no load has written its input
_EMPTY_SHARE = 0.9  # the first report of a tool that empties a queue is in no total
_SURE_SHARE = 0.98  # the fraction of a tool's count by rate that is certainly there to be read


class Plan(NamedTuple):
    """What to run on what."""

    loads: Sequence[Load]
    series: Sequence[Series]
    systems: Sequence[System]


class Runner:
    """One run: which systems, how many rounds, and the results."""

    def __init__(self, folder: Path, rounds: int, length: float) -> None:
        self._folder = folder
        self._rounds = rounds
        self._length = length
        self._commit = commit()
        self._numbers = iter(range(1, 1_000_000))
        self._failed_starts: set[SideName] = set()
        self._started: set[SideName] = set()
        self._results: dict[str, Any] = {}
        self.wrap: Callable[[str, int, Callable[[], Figures]], Figures] | None = None
        """Wraps each measured run of Headrace: name, process, run. For example, a profiler."""

    def run(self, plan: Plan, kept: dict[str, Any], save: Callable[[Any], None]) -> dict[str, Any]:
        """Give each available side its turns.

        `kept` has the results of earlier runs, which are extended. `save` is called after each
        turn.
        """
        results = self._results = {"systems": {}, "loads": {}, "growth": {}, **kept}
        where = machine(self._folder)
        for kind, several in (("loads", plan.loads), ("growth", plan.series)):
            for one in several:
                results[kind][one.name] = self._entry(where)
        sides = self._sides(plan.systems)
        ahead = turns(plan.loads, plan.series, list(sides), self._rounds, self._length)
        total_s = sum(turn.seconds for turn in ahead)
        CONSOLE.print(f"{len(ahead)} turns, {self._rounds} rounds: about {_minutes(total_s)}")
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
                   TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
        with Progress(*columns, console=CONSOLE, transient=True) as progress:
            task = progress.add_task("", total=total_s)

            def advance(what: str, seconds: float) -> None:
                progress.update(task, description=what, advance=seconds)

            for index, turn in enumerate(ahead):
                left_s = sum(later.seconds for later in ahead[index:])
                CONSOLE.print(f"turn {index + 1} of {len(ahead)}, round {turn.number}: "
                              f"{turn.side}, about {_minutes(left_s)} left")  # fmt: skip
                if turn.side not in self._failed_starts:
                    self._turn(turn, sides[turn.side], advance)
                else:
                    advance("", turn.seconds)
                save(results)
        return results

    def _entry(self, where: dict[str, Any]) -> dict[str, Any]:
        return {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "commit": self._commit,
            "machine": where,
            "rounds": {},
            "failures": [],
        }

    def _sides(self, systems: Sequence[System]) -> dict[SideName, Side]:
        """The available sides, not started; each system is recorded."""
        found: dict[SideName, Side] = {}
        for system in systems:
            earlier = self._results["systems"].get(system.name, {})
            about: dict[str, Any] = {"title": system.title, "tool": system.tool}
            # figures of loads that are not part of this run
            about["sides"] = earlier.get("sides", {})
            if "version" in earlier:
                about["version"] = earlier["version"]
            self._results["systems"][system.name] = about
            about["missing"] = system.missing()
            if not about["missing"]:
                try:
                    about["version"] = system.version()
                    for side in system.sides(self._folder):
                        found[SideName(side.name, side.policy)] = side
                except Exception as error:
                    about["missing"] = f"could not be queried: {self._message_of(error)}"
            if about["missing"]:
                CONSOLE.print(f"[yellow]{system.title}: {escape(about['missing'])}[/yellow]; "
                              f"headrace bench --install {system.name}")  # fmt: skip
        return found

    def _message_of(self, error: BaseException) -> str:
        message = str(error) or type(error).__name__
        return message.replace(str(self._folder), "DATA").replace(str(Path.home()), "~")[:500]

    def _turn(self, turn: Turn, side: Side, advance: Callable[[str, float], None]) -> None:
        try:
            advance(f"{turn.side}: start", 0.0)
            if not self._start(side, turn):
                advance("", turn.seconds)
                return
            advance("", turn.start_s)
            work = _Work(side, self._length, self._name)
            for step in turn.steps:
                advance(f"{turn.side}: {step.title}", 0.0)
                if not side.is_alive():
                    CONSOLE.print(f"[red]{turn.side} has exited[/red]: restarting")
                    side.stop()
                    if not self._start(side, turn):
                        break
                    work = _Work(side, self._length, self._name)
                self._step(step, turn, side, work)
                advance("", step.seconds)
        finally:
            with undisturbed():
                side.stop()

    def _name(self) -> str:
        return f"bench-{next(self._numbers):06d}"

    def _start(self, side: Side, turn: Turn) -> bool:
        """Start it and record its idle state; returns False if that is impossible this time."""
        about = self._results["systems"][side.name]
        try:
            side.start()
        except Exception as error:
            message = f"did not start: {self._message_of(error)}"
            CONSOLE.print(f"[red]{turn.side}[/red] {escape(message)}")
            for what in dict.fromkeys(step.what for step in turn.steps):
                self._entry_of(what)["failures"].append(f"{turn.side}: {message}")
            if turn.side not in self._started:  # never yet: excluded from now on
                self._failed_starts.add(turn.side)
            if not about["sides"]:
                about["missing"] = message
            return False
        about["missing"] = ""
        if turn.side not in self._started:
            self._started.add(turn.side)
            about["sides"][side.policy] = {
                "words": side.words,
                "ready_s": side.ready_s,
                "idle_mb": usage_of(side.pids).rss_bytes / 1e6,
            }
        return True

    def _entry_of(self, what: Load | Series) -> dict[str, Any]:
        kind = "loads" if isinstance(what, Load) else "growth"
        entry: dict[str, Any] = self._results[kind][what.name]
        return entry

    def _step(self, step: Step, turn: Turn, side: Side, work: _Work) -> None:
        entry = self._entry_of(step.what)
        at = "" if isinstance(step.what, Load) else f" {step.value}"
        where = f"{step.what.name}{at}"

        def measured() -> Figures:
            return work.run(step)

        try:
            if isinstance(step.what, Load):
                os.sync()  # flush earlier writes, so that this run does not wait for them
            with serving(side.is_alive):
                if self.wrap and side.name == "headrace" and isinstance(step.what, Load):
                    figures = self.wrap(f"{where}-{side.policy}", side.pids[0], measured)
                else:
                    figures = measured()
        except Exception as error:
            entry["failures"].append(f"{turn.side}{at and f' at{at}'}: {self._message_of(error)}")
            CONSOLE.print(f"[red]{where} {turn.side}[/red]: {escape(self._message_of(error))}")
            return
        if not figures:
            return
        CONSOLE.print(f"  {where}: {turn.side}: {shown(figures)}")
        if isinstance(step.what, Load):
            entry["rounds"].setdefault(str(turn.side), []).append(figures)
        else:
            points = entry["rounds"].setdefault(str(turn.side), {})
            points.setdefault(str(step.value), []).append(figures)


class _Work:
    """The steps of one turn on its side, and results that later steps can use."""

    def __init__(self, side: Side, length: float, name: Callable[[], str]) -> None:
        self._side = side
        self._length = length
        self._name = name
        self._filled: dict[int, Filled] = {}
        self._growth = Growth(side, length, name) if isinstance(side, KafkaProtocolSide) else None

    def run(self, step: Step) -> Figures:
        """The figures of one step; none if the system's tools cannot measure it."""
        if not isinstance(step.what, Load):
            assert self._growth is not None, "series are for Kafka's protocol alone"
            return self._growth.point(step.what, step.value)
        window = step.what.window.times(self._length)
        kinds = {"produce": self._produce, "consume": self._consume, "latency": self._latency,
                 "queue": self._queue, "delayed": self._delayed,
                 "clients": self._clients, "lite": self._lite}  # fmt: skip
        return kinds[step.what.kind](step.what, window)

    def _produce(self, load: Load, window: Window) -> Figures:
        """Written data stays until the turn ends, or the next of its size."""
        for old in [size for size in self._filled if size != load.record_bytes]:
            self._side.drop(self._filled.pop(old).name)
        name = self._name()
        done = self._side.produce(name, load.record_bytes, window)
        filled = Filled(name, int(done.total * _SURE_SHARE))
        self._filled[load.record_bytes] = filled
        figures = figures_of(done, load.record_bytes)
        if self._growth is not None:
            self._growth.learn(load.record_bytes, figures)
            self._growth.filled = filled
        return figures

    def _consume(self, load: Load, window: Window) -> Figures:
        if load.record_bytes not in self._filled:
            self._produce(load, Window(0.0, _FILL_S * self._length))
        filled = self._filled[load.record_bytes]
        done = self._side.consume(filled.name, filled.records, load.record_bytes, window)
        return {} if done is None else figures_of(done, load.record_bytes)

    def _queue(self, load: Load, window: Window) -> Figures:
        """Write, then empty the queue; no other load reads it."""
        if load.acknowledge not in self._side.acknowledges:
            return {}
        self._produce(load, FILLS[load.acknowledge].times(self._length))
        filled = self._filled.pop(load.record_bytes)
        done = self._side.empty(filled.name, filled.records, load.acknowledge, window)
        self._side.drop(filled.name)
        if done.total >= filled.records * _EMPTY_SHARE:
            raise SystemFailed("the queue was empty before the end of the window")
        return figures_of(done, load.record_bytes)

    def _latency(self, load: Load, window: Window) -> Figures:
        """The sender excludes its first second."""
        name = self._name()
        return _times(self._side.latency(name, load.rate_per_s, window.seconds))

    def _delayed(self, load: Load, window: Window) -> Figures:
        """As many messages in a short run: it has no rate."""
        del window
        return _times(self._rocketmq.delayed(self._name(), load.count))

    def _clients(self, load: Load, window: Window) -> Figures:
        return self._rocketmq.clients(self._name(), load.count, window.seconds)

    def _lite(self, load: Load, window: Window) -> Figures:
        done = self._rocketmq.lite(self._name(), load.count, load.record_bytes, window)
        return figures_of(done, load.record_bytes)

    @property
    def _rocketmq(self) -> RocketSide:
        assert isinstance(self._side, RocketSide), "only loads of its protocol ask for it"
        return self._side


def _times(seen: Latency | None) -> Figures:
    """The figures of message latencies; none if they cannot be measured."""
    if seen is None:
        return {}
    if seen.histogram is None:
        return {**seen.reported_ms}
    if not seen.histogram.count:
        raise SystemFailed("no message arrived")
    percentiles = {key: seen.histogram.at(share) / 1e6 for key, share in SHARES.items()}
    return {**percentiles, "histogram_ns": seen.histogram.as_json()}


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f} minutes"


def chosen_systems(names: Sequence[str], known: Mapping[str, System] = BY_NAME) -> list[System]:
    """The systems of `known` with these names, Headrace first; without names, all that are not
    optional.

    Raises PartMissing.
    """
    unknown = [name for name in names if name not in known]
    if unknown:
        raise PartMissing(f"no system {unknown[0]!r}: choose from {', '.join(known)}")
    return [
        system
        for name, system in known.items()
        if name in names or (not names and not system.is_extra)
    ]
