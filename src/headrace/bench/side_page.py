"""Tables and charts of all systems side by side, from kept results; and the page that holds them.

Rules of the room: nothing is measured here. A figure is the median of its rounds, the lowest and
highest beside it; a percentile is of all rounds' messages together. The setting that makes the
promise stands beside each side, and a system that was not there is named.
"""

from __future__ import annotations

import json
from statistics import median
from typing import TYPE_CHECKING, Any

from headrace.bench.hdr import HdrHistogram
from headrace.bench.loads import FIGURES, LOADS, SHARES, Load
from headrace.bench.report import put_between
from headrace.bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from pathlib import Path

BEGIN, END = "<!-- beside: begin -->", "<!-- beside: end -->"


class SideBook:
    """Where the results of all systems are kept, and the page that is made from them."""

    def __init__(self, results: Path | None, page: Path | None) -> None:
        self.results = results
        self.page = page

    def load(self) -> dict[str, Any]:
        """What is on file, or nothing."""
        if self.results is None or not self.results.exists():
            return {}
        kept: dict[str, Any] = json.loads(self.results.read_text())
        return kept

    def save(self, results: dict[str, Any]) -> None:
        """Keep all rounds, and write the tables again."""
        if self.results is None:
            return
        self.results.parent.mkdir(parents=True, exist_ok=True)
        self.results.write_text(json.dumps(results, indent=None, sort_keys=True) + "\n")
        if self.page is not None and self.page.exists():
            put_between(self.page, BEGIN, END, markdown(results))


def markdown(results: dict[str, Any]) -> str:
    """What stands between the markers of the page."""
    lines = [_about(results), ""]
    lines += _systems_table(results)
    for load in LOADS:
        entry = results["loads"].get(load.name)
        if entry is not None and entry["rounds"]:
            lines += ["", f"### Beside others: {load.title[0].lower()}{load.title[1:]}", ""]
            lines += load_table(load, entry, results)
            lines += [f"- failed: {one.splitlines()[0]}" for one in entry["failures"]]
    return "\n".join(lines) + "\n"


def _about(results: dict[str, Any]) -> str:
    where = results["machine"]
    counts = [len(r) for e in results["loads"].values() for r in e["rounds"].values()]
    rounds = max(counts, default=0)
    return (
        f"Median (lowest-highest) of {rounds} round{'' if rounds == 1 else 's'}, "
        f"{results['date']}, commit {results['commit']}, {where['cores']} cores, {where['disk']}, "
        f"a sync {where['sync_us']} us, load before {where['load']}."
    )


def _systems_table(results: dict[str, Any]) -> list[str]:
    lines = ["| system | version | synced | unsynced | ready after start | memory idle | tool |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name, system in results["systems"].items():
        sides = system["sides"]
        if system["missing"]:
            lines.append(
                f"| {system['title']} | not run: {system['missing'].splitlines()[0]}; "
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
    """One load: a row for each side, equal promises together, the quickest first."""
    columns = list(SHARES) if load.kind == "latency" else [FIGURES[key][0] for key in FIGURES]
    unit = " ms" if load.kind == "latency" else ""
    lines = ["| promise | system | " + " | ".join(f"{name}{unit}" for name in columns) + " |"]
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


def _row(load: Load, runs: list[dict[str, Any]]) -> tuple[float, str]:
    if load.kind == "latency":
        together = HdrHistogram()
        for run in runs:
            together.merge(HdrHistogram.from_json(run["histogram_ns"]))
        cells = []
        for name, share in SHARES.items():
            spread = _spread([run[name] for run in runs], 2)
            cells.append(f"{together.at(share) / 1e6:,.2f}{spread}")
        return together.at(0.5), " | ".join(cells)
    values = {key: [run[key] for run in runs] for key in FIGURES}
    cells = [
        f"{median(values[key]):,.{FIGURES[key][2]}f}{_spread(values[key], FIGURES[key][2])}"
        for key in FIGURES
    ]
    return -median(values["records_per_s"]), " | ".join(cells)


def _spread(values: list[float], digits: int) -> str:
    return f" ({min(values):,.{digits}f}-{max(values):,.{digits}f})" if len(values) > 1 else ""
