"""Tables and charts of all systems, from kept results; and the page that holds them.

Invariants: measures nothing. A figure is the median of its rounds, with the lowest and highest
beside it; a percentile covers all rounds' messages together. Each side shows the setting that
provides the guarantee, and missing systems are listed.
"""

from __future__ import annotations

import os
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_bench.charts import TITLES, draw
from headrace_bench.growth import SERIES, Series
from headrace_bench.hdr import HdrHistogram
from headrace_bench.loads import (
    CLIENT_FIGURES,
    FIGURES,
    LOADS,
    QUEUE_LOADS,
    ROCKETMQ_LOADS,
    SHARES,
    Load,
)
from headrace_bench.report import load_results, put_between, save_results
from headrace_bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class Part(NamedTuple):
    """A part of the page, with results of its own."""

    name: str
    """Of its results and markers."""
    loads: tuple[Load, ...]
    series: tuple[Series, ...]


BESIDE = Part("beside", (*LOADS, *QUEUE_LOADS), SERIES)
ROCKETMQ = Part("rocketmq", ROCKETMQ_LOADS, ())
PARTS = {part.name: part for part in (BESIDE, ROCKETMQ)}


class SideBook:
    """Where the results of all systems are kept, and the generated page."""

    def __init__(self, folder: Path | None, page: Path | None, part: Part = BESIDE) -> None:
        self.results = folder / f"{part.name}.json" if folder else None
        self.page = page
        self._part = part

    def load(self) -> dict[str, Any]:
        """Load the kept results, or nothing."""
        return load_results(self.results)

    def save(self, results: dict[str, Any]) -> None:
        """Keep all rounds."""
        if self.results is not None:
            save_results(self.results, results)

    def publish(self, results: dict[str, Any]) -> None:
        """Draw the charts, and rewrite the tables of the page."""
        if self.results is None or not results:
            return
        has_charts = self._part is BESIDE
        charts = draw(results, self.results.parent / "charts") if has_charts else []
        if self.page is not None and self.page.exists():
            pictures = [f"![{TITLES[name]}]({self._link(name)})" for name in charts]
            text = markdown(results, self._part)
            text += "".join(f"\n{picture}\n" for picture in pictures)
            begin, end = (f"<!-- {self._part.name}: {at} -->" for at in ("begin", "end"))
            put_between(self.page, begin, end, text)

    def _link(self, name: str) -> str:
        assert self.results is not None
        assert self.page is not None
        return os.path.relpath(self.results.parent / "charts" / name, self.page.parent)


def markdown(results: dict[str, Any], part: Part = BESIDE) -> str:
    """The text between the markers of the page."""
    lines = _systems_table(results)
    for load in part.loads:
        entry = results["loads"].get(load.name)
        if entry is not None and entry["rounds"]:
            lines += ["", f"### Comparison: {load.title[0].lower()}{load.title[1:]}", ""]
            lines += [_about(entry, entry["rounds"].values()), ""]
            lines += load_table(load, entry, results)
            if any("* " in line for line in lines[-len(entry["rounds"]) :]):
                lines += [
                    "",
                    "`*`: reported by the tool itself, not corrected for coordinated omission.",
                ]
            lines += [f"- failed: {one.splitlines()[0]}" for one in entry["failures"]]
    for series in part.series:
        entry = results["growth"].get(series.name)
        if entry is not None and entry["rounds"]:
            lines += ["", f"### Growth: {series.title[0].lower()}{series.title[1:]}", ""]
            points = [runs for side in entry["rounds"].values() for runs in side.values()]
            lines += [_about(entry, points), "", *growth_table(series, entry, results)]
            lines += [f"- failed: {one.splitlines()[0]}" for one in entry["failures"]]
    return "\n".join(lines) + "\n"


def growth_table(series: Series, entry: dict[str, Any], results: dict[str, Any]) -> list[str]:
    """One series: a row for each value, with a column per side."""
    sides = list(entry["rounds"])
    names = []
    for key in sides:
        name, _, policy = key.partition("/")
        system = results["systems"][name]
        names.append(f"{system['title']}, {system['sides'][policy]['words']}")
    figures = (series.figure, "cpu_s_per_million", "rss_mb")
    headings = [f"{name}: {FIGURES[key][0]}" for key in figures for name in names]
    lines = [f"| {series.axis} | " + " | ".join(headings) + " |"]
    lines += ["| --- " * (len(headings) + 1) + "|"]
    for value in series.values:
        cells = []
        for figure in figures:
            digits = FIGURES[figure][2]
            for key in sides:
                found = [run[figure] for run in entry["rounds"][key].get(str(value), [])]
                text = f"{median(found):,.{digits}f}{_spread(found, digits)}" if found else "-"
                cells.append(text)
        lines.append(f"| {value:,} | " + " | ".join(cells) + " |")
    return lines


def _about(entry: dict[str, Any], runs: Iterable[list[Any]]) -> str:
    where, runs = entry["machine"], list(runs)
    rounds = max((len(one) for one in runs), default=0)
    seconds = [run["seconds"] for one in runs for run in one if "seconds" in run]
    windows = f"Windows of {min(seconds):.1f} to {max(seconds):.1f} s. " if seconds else ""
    return (
        f"{windows}Median (lowest-highest) of {rounds} round{'' if rounds == 1 else 's'}, "
        f"{entry['date']}, commit {entry['commit']}, {where['cores']} cores, {where['disk']}, "
        f"fsync {where['sync_us']} us, system load {where['load']}."
    )


def _systems_table(results: dict[str, Any]) -> list[str]:
    lines = ["| system | version | synced | unsynced | ready after start | memory idle | tool |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name, system in results["systems"].items():
        sides = system["sides"]
        if system["missing"] or not sides:
            why = (system["missing"] or "not scheduled").splitlines()[0]
            lines.append(
                f"| {system['title']} | not run: {why}; "
                f"`headrace bench --install {name}` | | | | | |"
            )
            continue
        words = [sides.get(policy, {}).get("words", "-") for policy in (SYNCED, UNSYNCED)]
        ready = median(side["ready_s"] for side in sides.values())
        idle = median(side["idle_mb"] for side in sides.values())
        lines.append(
            f"| {system['title']} | {system['version']} | {words[0]} | {words[1]} | {ready:.2f} s "
            f"| {idle:,.0f} MB | {system['tool']} |"
        )
    return lines


def load_table(load: Load, entry: dict[str, Any], results: dict[str, Any]) -> list[str]:
    """One load: a row for each side, grouped by guarantee, the fastest first."""
    figures = _figures(load)
    columns = list(SHARES) if load.has_times else [heading for heading, *_ in figures.values()]
    unit = " ms" if load.has_times else ""
    lines = ["| durability | system | " + " | ".join(f"{name}{unit}" for name in columns) + " |"]
    lines += ["| --- " * (len(columns) + 2) + "|"]
    for policy in (SYNCED, UNSYNCED):
        rows = []
        for key, runs in entry["rounds"].items():
            name, _, of_policy = key.partition("/")
            if of_policy == policy:
                system = results["systems"][name]
                words = system["sides"][policy]["words"]
                rank, cells = _row(load, runs)
                rows.append((rank, f"| {policy} | {system['title']}, {words} | {cells} |"))
        lines += [row for _, row in sorted(rows)]
    return lines


def _figures(load: Load) -> dict[str, tuple[str, str, int]]:
    return CLIENT_FIGURES if load.kind == "clients" else FIGURES


def _row(load: Load, runs: list[dict[str, Any]]) -> tuple[float, str]:
    if load.has_times:
        return _latency_row(runs)
    figures = _figures(load)
    values = {key: [run[key] for run in runs] for key in figures}
    cells = [
        f"{median(values[key]):,.{figures[key][2]}f}{_spread(values[key], figures[key][2])}"
        for key in figures
    ]
    rank = (
        median(values["cpu_percent"])
        if load.kind == "clients"
        else -median(values["records_per_s"])
    )
    return rank, " | ".join(cells)


def _latency_row(runs: list[dict[str, Any]]) -> tuple[float, str]:
    """Percentiles of all rounds' messages; if a tool reports no single messages, its rounds'
    median."""
    together = HdrHistogram()
    for run in runs:
        together.merge(HdrHistogram.from_json(run.get("histogram_ns", {})))
    cells, rank = [], 0.0
    for name, share in SHARES.items():
        values = [run[name] for run in runs if name in run]
        value = together.at(share) / 1e6 if together.count else median(values or [0.0])
        mark = "" if together.count else "*"
        cells.append(f"{value:,.2f}{mark}{_spread(values, 2)}" if values else "-")
        rank = value if name == "p50" else rank
    return rank, " | ".join(cells)


def _spread(values: list[float], digits: int) -> str:
    return f" ({min(values):,.{digits}f}-{max(values):,.{digits}f})" if len(values) > 1 else ""
