"""Runs each load on each system in turn, several rounds, and keeps what every round gave.

Rules of the room: all sides run all the time and take turns, so that a slow minute of the machine
hits all of them; only one is loaded at a time. A system that is not there is written down as such.
What a side's processes used is measured over exactly its run.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.bench.loads import CALIBRATION, LOADS, RUN_BYTES_MAX, SHARES, Load
from headrace.bench.parts import PartMissing
from headrace.bench.processes import Usage, usage_of
from headrace.bench.run import commit, machine
from headrace.bench.systems.registry import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.bench.systems.system import Side, System

CONSOLE = Console(stderr=True, soft_wrap=True)
Figures = dict[str, Any]


def figures_of(records: int, record_bytes: int, rate_per_s: float, used: Usage) -> Figures:
    """The figures of one run of writing or reading."""
    size = records * record_bytes
    return {
        "records": records,
        "records_per_s": rate_per_s,
        "mb_per_s": rate_per_s * record_bytes / 1e6,
        "cpu_s_per_million": used.cpu_s / records * 1e6,
        "cpu_s_per_gb": used.cpu_s / size * 1e9,
        "written_per_byte": used.written_bytes / size,
        "rss_mb": used.rss_bytes / 1e6,
    }


class Runner:
    """One call: which systems, how many rounds, and what came out."""

    def __init__(self, folder: Path, rounds: int, length: float) -> None:
        self._folder = folder
        self._rounds = rounds
        self._length = length
        self._numbers = iter(range(1, 1_000_000))
        self._rates: dict[tuple[str, str], float] = {}
        self.wrap: Callable[[Load, Side, Callable[[], Figures]], Figures] | None = None
        """Something that goes around each measured run, such as a profiler."""

    def run(
        self, loads: Sequence[Load], systems: Sequence[System], save: Callable[[Any], None]
    ) -> dict[str, Any]:
        """Start what is there, run all loads, end it; `save` gets the results after each load."""
        results: dict[str, Any] = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "commit": commit(),
            "machine": machine(self._folder),
            "systems": {},
            "loads": {},
        }
        sides = self._start(systems, results)
        try:
            for load in loads:
                entry: dict[str, Any] = {"rounds": {}, "failures": []}
                entry["load"] = machine(self._folder)["load"]
                results["loads"][load.name] = entry
                chosen = [side for side in sides if side.policy in load.policies]
                for number in range(self._rounds + 1):
                    for side in chosen:
                        self._one(load, side, number, entry)
                save(results)
        finally:
            for side in sides:
                side.stop()
        return results

    def _start(self, systems: Sequence[System], results: dict[str, Any]) -> list[Side]:
        started: list[Side] = []
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
                    side.start()
                    started.append(side)
                    about["sides"][side.policy] = {
                        "words": side.words,
                        "ready_s": side.ready_s,
                        "idle_mb": usage_of(side.pids).rss_bytes / 1e6,
                    }
            except Exception as error:
                about["missing"] = f"did not start: {self._said(error)}"
                CONSOLE.print(f"[red]{system.title}[/red] {about['missing']}")
        return started

    def _said(self, error: BaseException) -> str:
        return str(error).replace(str(self._folder), "DATA").replace(str(Path.home()), "~")[:500]

    def _one(self, load: Load, side: Side, number: int, entry: dict[str, Any]) -> None:
        kinds = {"produce": self._produce, "consume": self._consume, "latency": self._latency}

        def measured() -> Figures:
            return kinds[load.kind](load, side, is_first=number == 0)

        key = f"{side.name}/{side.policy}"
        try:
            around = self.wrap if number else None
            figures = around(load, side, measured) if around else measured()
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
        records = CALIBRATION[load.record_bytes]
        if not is_first:
            wanted = self._rates.get(key, 0.0) * load.seconds * self._length
            allowed = RUN_BYTES_MAX // load.record_bytes
            records = max(1_000, min(int(wanted), allowed))
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
        del is_first
        records = max(1_000, int(load.records * self._length))
        name = f"bench-{next(self._numbers):06d}"
        try:
            side.produce(name, records, load.record_bytes)
            before = usage_of(side.pids)
            rate = side.consume(name, records, load.record_bytes)
            used = usage_of(side.pids).since(before)
        finally:
            side.drop(name)
        return figures_of(records, load.record_bytes, rate, used)

    def _latency(self, load: Load, side: Side, *, is_first: bool) -> Figures:
        name = f"bench-{next(self._numbers):06d}"
        seconds = 0.5 if is_first else load.seconds * self._length
        try:
            seen = side.latency(name, load.rate_per_s, seconds)
        finally:
            side.drop(name)
        if seen is None:
            return {}
        percentiles = {key: seen.histogram.at(share) / 1e6 for key, share in SHARES.items()}
        return {**percentiles, "histogram_ns": seen.histogram.as_json()}


def shown(figures: Figures) -> str:
    """One run in one line."""
    if "p50" in figures:
        return ", ".join(f"{name} {figures[name]:,.3f} ms" for name in SHARES)
    return (
        f"{figures['records_per_s']:,.0f} records/s, {figures['mb_per_s']:,.1f} MB/s, "
        f"{figures['cpu_s_per_million']:,.2f} CPU s a million, "
        f"{figures['written_per_byte']:.2f} bytes to disk a byte"
    )


def chosen_systems(names: Sequence[str]) -> list[System]:
    """The systems so named, Headrace first; all where none is named. Raises PartMissing."""
    unknown = [name for name in names if name not in BY_NAME]
    if unknown:
        raise PartMissing(f"no system {unknown[0]!r}: choose from {', '.join(BY_NAME)}")
    return [system for name, system in BY_NAME.items() if not names or name in names]


def chosen_loads(names: Sequence[str]) -> list[Load]:
    """The loads whose names begin so; all where none is named."""
    return [load for load in LOADS if not names or any(load.name.startswith(n) for n in names)]
