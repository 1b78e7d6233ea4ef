"""Runs each load on each system in turn, several rounds, and keeps what every round gave.

Rules of the room: all sides run all the time and take turns, so that a slow minute of the machine
hits all of them; only one is loaded at a time. A system that is not there is written down as such.
What a side's processes used is measured over exactly its run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from headrace.bench.figures import Figures, figures_of, shown
from headrace.bench.growth import Growth, Series, of_sides
from headrace.bench.loads import CALIBRATION, RUN_BYTES_MAX, SHARES, Load
from headrace.bench.parts import PartMissing
from headrace.bench.processes import undisturbed, usage_of
from headrace.bench.run import commit, machine
from headrace.bench.systems.registry import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.bench.systems.system import Side, System

WARMUP_S = 1.0
CONSOLE = Console(stderr=True, soft_wrap=True)


class Plan(NamedTuple):
    """What to run on what."""

    loads: Sequence[Load]
    series: Sequence[Series]
    systems: Sequence[System]


class Runner:
    """One call: which systems, how many rounds, and what came out."""

    def __init__(self, folder: Path, rounds: int, length: float) -> None:
        self._folder = folder
        self._rounds = rounds
        self._length = length
        self._commit = commit()
        self._numbers = iter(range(1, 1_000_000))
        self._rates: dict[tuple[str, str], float] = {}
        self.wrap: Callable[[str, int, Callable[[], Figures]], Figures] | None = None
        """Goes around each measured run of Headrace: name, process, run. Such as a profiler."""

    def run(self, plan: Plan, kept: dict[str, Any], save: Callable[[Any], None]) -> dict[str, Any]:
        """Start what is there, run all of the plan, end it.

        `kept` is what earlier calls gave: it is added to. `save` gets it after each load.
        """
        results: dict[str, Any] = {"systems": {}, "loads": {}, "growth": {}, **kept}
        sides: list[Side] = []
        try:
            self._start(plan.systems, results, sides)
            for load in plan.loads:
                entry = self._entry()
                results["loads"][load.name] = entry
                chosen = [side for side in sides if side.policy in load.policies]
                for number in range(self._rounds + 1):
                    for side in chosen:
                        self._one(load, side, number, entry)
                save(results)
            growth = Growth(of_sides(sides), self._rounds, self._length)
            for series in plan.series:
                results["growth"][series.name] = {**self._entry(), **growth.run(series)}
                save(results)
        finally:
            with undisturbed():
                for side in sides:
                    side.stop()
        return results

    def _entry(self) -> dict[str, Any]:
        return {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "commit": self._commit,
            "machine": machine(self._folder),
            "rounds": {},
            "failures": [],
        }

    def _start(
        self, systems: Sequence[System], results: dict[str, Any], started: list[Side]
    ) -> None:
        for system in systems:
            about: dict[str, Any] = {"title": system.title, "tool": system.tool, "sides": {}}
            results["systems"][system.name] = about
            about["missing"] = system.missing()
            if about["missing"]:
                CONSOLE.print(f"[yellow]{system.title}: {about['missing']}[/yellow]; "
                              f"headrace bench --install {system.name}")  # fmt: skip
                continue
            try:
                about["version"] = system.version()
                for side in system.sides(self._folder):
                    started.append(side)  # it is ended also when it does not start
                    side.start()
                    about["sides"][side.policy] = {
                        "words": side.words,
                        "ready_s": side.ready_s,
                        "idle_mb": usage_of(side.pids).rss_bytes / 1e6,
                    }
            except Exception as error:
                about["missing"] = f"did not start: {self._said(error)}"
                CONSOLE.print(f"[red]{system.title}[/red] {about['missing']}")
                for side in [one for one in started if one.name == system.name]:
                    side.stop()
                    started.remove(side)

    def _said(self, error: BaseException) -> str:
        said = str(error) or type(error).__name__
        return said.replace(str(self._folder), "DATA").replace(str(Path.home()), "~")[:500]

    def _one(self, load: Load, side: Side, number: int, entry: dict[str, Any]) -> None:
        kinds = {"produce": self._produce, "consume": self._consume, "latency": self._latency}

        def measured() -> Figures:
            return kinds[load.kind](load, side, is_first=number == 0)

        key = f"{side.name}/{side.policy}"
        try:
            if number and self.wrap and side.name == "headrace":
                figures = self.wrap(f"{load.name}-{side.policy}", side.pids[0], measured)
            else:
                figures = measured()
        except Exception as error:
            entry["failures"].append(f"{key}: {self._said(error)}")
            CONSOLE.print(f"[red]{load.name} {key}[/red]: {self._said(error)}")
            return
        if not figures:
            return
        CONSOLE.print(f"  {load.name} {number}: {key}: {shown(figures)}")
        if number:
            entry["rounds"].setdefault(key, []).append(figures)

    def _produce(self, load: Load, side: Side, *, is_first: bool) -> Figures:
        key = (load.name, f"{side.name}/{side.policy}")
        if is_first:
            self._write(load, side, CALIBRATION[load.record_bytes], key)
        seconds = min(WARMUP_S, load.seconds) if is_first else load.seconds
        wanted = int(self._rates.get(key, 0.0) * seconds * self._length)
        allowed = RUN_BYTES_MAX // load.record_bytes
        return self._write(load, side, max(1_000, min(wanted, allowed)), key)

    def _write(self, load: Load, side: Side, records: int, key: tuple[str, str]) -> Figures:
        name = f"bench-{next(self._numbers):06d}"
        before = usage_of(side.pids)
        try:
            done = side.produce(name, records, load.record_bytes)
            used = usage_of(side.pids).since(before)
        finally:
            side.drop(name)
        self._rates[key] = done.records_per_s
        return figures_of(done.records, load.record_bytes, done.records_per_s, used)

    def _consume(self, load: Load, side: Side, *, is_first: bool) -> Figures:
        """A topic filled once would do for a log, but not for a queue, which is empty then."""
        if is_first:
            return {}
        records = max(1_000, int(load.records * self._length))
        name = f"bench-{next(self._numbers):06d}"
        try:
            side.produce(name, records, load.record_bytes)
            before = usage_of(side.pids)
            rate = side.consume(name, records, load.record_bytes)
            used = usage_of(side.pids).since(before)
        finally:
            side.drop(name)
        if rate is None:
            return {}
        return figures_of(records, load.record_bytes, rate, used)

    def _latency(self, load: Load, side: Side, *, is_first: bool) -> Figures:
        if is_first:
            return {}  # each run leaves its first second out
        name = f"bench-{next(self._numbers):06d}"
        try:
            seen = side.latency(name, load.rate_per_s, load.seconds * self._length)
        finally:
            side.drop(name)
        if seen is None:
            return {}
        if seen.histogram is None:
            return {**seen.told_ms}
        percentiles = {key: seen.histogram.at(share) / 1e6 for key, share in SHARES.items()}
        return {**percentiles, "histogram_ns": seen.histogram.as_json()}


def chosen_systems(names: Sequence[str]) -> list[System]:
    """The systems so named, Headrace first; all where none is named. Raises PartMissing."""
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise PartMissing(f"no system {unknown[0]!r}: choose from {', '.join(BY_NAME)}")
    return [system for name, system in BY_NAME.items() if not names or name in names]
