"""Verdicts on figures, and the table in docs/BENCHMARKS.md.

Invariants: a figure is the median of its rounds, with the lowest and highest beside it. The page
between the markers is generated here; the rest is written manually.
"""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_bench.workloads import FIGURES, PAIRS, WORKLOADS, Bar, Side, Workload

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
NAMES = {"headrace": "Headrace", "kafka": "Kafka"}


class Verdict(NamedTuple):
    """One bar, and whether it was reached."""

    figure: str
    ours: str
    theirs: str
    result: str
    bar: str
    verdict: str


def rounds_of(entry: dict[str, Any], side: Side, figure: str) -> list[float]:
    """All rounds of one figure on one side."""
    runs = entry["rounds"].get(f"{side.peer}/{side.policy}", [])
    return [run[figure] for run in runs if figure in run]


def _number(value: float, figure: str) -> str:
    _, unit, digits = FIGURES[figure]
    return f"{value:,.{digits}f}{'' if unit.startswith('/') else ' '}{unit}"


def _with_spread(values: list[float], figure: str) -> str:
    if not values:
        return "-"
    digits = FIGURES[figure][2]
    spread = f" ({min(values):,.{digits}f}-{max(values):,.{digits}f})" if len(values) > 1 else ""
    return _number(median(values), figure) + spread


def _policy(side: Side, workload: Workload) -> str:
    if workload.kind in ("consume", "fetch", "isolation", "idle", "http_queue"):
        return NAMES[side.peer]
    words = {
        ("headrace", "synced"): "synced (default)",
        ("headrace", "unsynced"): "flush.ms=1000",
        ("kafka", "synced"): "flush.messages=1",
        ("kafka", "unsynced"): "unsynced (default)",
    }
    return f"{NAMES[side.peer]} {words[side.peer, side.policy]}"


def judge(workload: Workload, entry: dict[str, Any]) -> list[Verdict]:
    """Compare each bar of a workload with the measurements."""
    return [_judge(workload, bar, entry) for bar in workload.bars]


def _judge(workload: Workload, bar: Bar, entry: dict[str, Any]) -> Verdict:
    heading = FIGURES[bar.figure][0]
    sign = ">=" if bar.at_least else "<="
    if bar.pair:
        ours_side, theirs_side = PAIRS[bar.pair]
        ours, theirs = (rounds_of(entry, s, bar.figure) for s in (ours_side, theirs_side))
        measured = median(ours) / max(median(theirs), 1e-12) if ours and theirs else None
        result = "-" if measured is None else f"{measured:.2f} x"
        unit = " x"
    else:
        ours_side, theirs_side = bar.side, None
        ours, theirs = rounds_of(entry, bar.side, bar.figure), []
        measured = median(ours) if ours else None
        result = "-" if measured is None else _number(measured, bar.figure)
        unit = f" {FIGURES[bar.figure][1]}"
    parts = [] if bar.limit is None else [f"{sign} {bar.limit:g}{unit}"]
    parts += [] if bar.goal is None else [f"goal {bar.goal:g}{unit}"]
    return Verdict(
        figure=heading,
        ours=f"{_with_spread(ours, bar.figure)}, {_policy(ours_side, workload)}",
        theirs=f"{_with_spread(theirs, bar.figure)}, {_policy(theirs_side, workload)}"
        if theirs_side
        else "",
        result=result,
        bar=", ".join(parts),
        verdict=_verdict(bar, measured),
    )


def _verdict(bar: Bar, measured: float | None) -> str:
    if measured is None:
        return "not measured"

    def reached(limit: float) -> bool:
        return measured >= limit if bar.at_least else measured <= limit

    if bar.limit is not None and not reached(bar.limit):
        return "**missed**"
    if bar.goal is not None and reached(bar.goal):
        return "goal met"
    return "met" if bar.limit is not None else "goal missed"


class Book:
    """Where results are kept: raw rounds as JSON, and the generated part of a page.

    With `page` None, only the JSON is written. With `results` None, nothing is kept.
    """

    def __init__(self, results: Path | None, page: Path | None) -> None:
        self.results = results
        self.page = page

    def load(self) -> dict[str, Any]:
        """The kept results: workload name -> entry."""
        return load_results(self.results)

    def save(self, results: dict[str, Any]) -> None:
        """Write all raw rounds, and the tables."""
        if self.results is None:
            return
        save_results(self.results, results, indent=1)
        if self.page is not None and self.page.exists():
            put_between(self.page, BEGIN, END, markdown(results))


def load_results(path: Path | None) -> dict[str, Any]:
    """Load the kept results; none if nothing was kept yet."""
    if path is None or not path.exists():
        return {}
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def save_results(path: Path, results: dict[str, Any], indent: int | None = None) -> None:
    """Write results in the format of `load_results`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=indent, sort_keys=True) + "\n")


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two markers of a page; the rest is written manually."""
    head, _, rest = page.read_text().partition(begin)
    if not rest:
        return
    page.write_text(f"{head}{begin}\n\n{text}\n{end}{rest.partition(end)[2]}")


def markdown(results: dict[str, Any]) -> str:
    """One table per workload."""
    lines = []
    for workload in WORKLOADS:
        entry = results.get(workload.name)
        if entry is None:
            continue
        lines += [f"### {workload.title}", "", f"Tool: {workload.tool}. {_about(entry)}", ""]
        lines += ["| figure | Headrace | Kafka 4.3.0 | result | target | verdict |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(verdict)} |" for verdict in judge(workload, entry)]
        lines += [""]
        lines += [f"- failed run: {failure.splitlines()[0]}" for failure in entry["failures"]]
        lines += [""] if entry["failures"] else []
    return "\n".join(lines)


def _about(entry: dict[str, Any]) -> str:
    rounds = max((len(runs) for runs in entry["rounds"].values()), default=0)
    machine = entry["machine"]
    return (
        f"Median (lowest-highest) of {rounds} round{'' if rounds == 1 else 's'}, "
        f"{entry['date']}, commit {entry['commit']}, {machine['cores']} cores, "
        f"{machine['disk']}, fsync {machine['sync_us']} us, system load {machine['load']}."
    )
