"""Reports: what all modes' have in common, and that of `verify crash`.

Invariants: `report.json` says what was tested, on what machine, with which seed, what was skipped
and why; each violation has its own file with what is needed to reproduce it. The chart needs
matplotlib; without it, the report says so.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from headrace.runtime.clock import SystemClock
from headrace_verify.verdicts import verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace_verify.crash import Attacked, Outcome
    from headrace_verify.verdicts import Judged


def head(mode: str, judged: Judged) -> dict[str, Any]:
    """What the reports of all modes begin with: mode, version, time, machine and verdict."""
    return {
        "what": f"headrace verify {mode}",
        "version": version("headrace"),
        "at": datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).isoformat(
            timespec="seconds"
        ),
        "platform": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        },
        "verdict": verdict_of(judged),
    }


def write_json(folder: Path, name: str, value: Any) -> str:
    """Write a file into a report's folder; returns its name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps(value, indent=2, default=str) + "\n")
    return name


def add_chart(
    folder: Path, name: str, report: dict[str, Any], draw: Callable[[Any], Any]
) -> list[str]:
    """Write the figure that `draw(pyplot)` returns; returns the names of files.

    Without matplotlib, the report says so.
    """
    pyplot = _load_pyplot()
    if pyplot is None:
        report["chart"] = "skipped: matplotlib is not installed"
        return []
    figure = draw(pyplot)
    figure.tight_layout()
    figure.savefig(folder / name, dpi=110)
    pyplot.close(figure)
    return [name]


def summary(seed: int, attacked: Attacked) -> dict[str, Any]:
    """The whole report as plain values."""
    return {
        **head("crash", attacked),
        "seed": seed,
        "attacks": [
            {
                "name": one.attack.name,
                "promise": one.attack.promise,
                "verdict": word_of(one),
                "checked": one.task.checked,
                "unit": one.attack.unit,
                "seconds": round(one.seconds, 1),
                "violations": one.task.violation_count,
                "skipped": one.task.skipped,
                "inconclusive": one.gaps,
                "figures": one.task.figures,
                "findings": [found._asdict() for found in one.task.violations],
            }
            for one in attacked.outcomes
        ],
    }


def word_of(outcome: Outcome) -> str:
    """The verdict on one attack."""
    if outcome.task.is_impossible and not outcome.is_violated:
        return "SKIPPED"
    return verdict_of(outcome)


def write_report(folder: Path, _outcome: Attacked, report: dict[str, Any]) -> list[str]:
    """Write the folder; returns the names of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [
        write_json(folder, f"violation-{attack['name']}-{number}.json", finding)
        for attack in report["attacks"]
        for number, finding in enumerate(attack["findings"], 1)
    ]
    if report["attacks"]:
        names += add_chart(folder, "chart.png", report, partial(_draw, report))
    return [write_json(folder, "report.json", report), *names]


def _load_pyplot() -> Any:
    """Matplotlib's pyplot with a file backend; None if it is not installed."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return None


def _draw(report: dict[str, Any], pyplot: Any) -> Any:
    """A bar for each attack."""
    attacks = report["attacks"]
    figure, axes = pyplot.subplots(figsize=(8, 0.6 * len(attacks) + 1.4))
    names = [f"{one['name']} ({one['unit']})" for one in attacks]
    colours = ["tab:red" if one["violations"] else "tab:blue" for one in attacks]
    bars = axes.barh(names, [max(1, one["checked"]) for one in attacks], color=colours)
    axes.bar_label(bars, [f" {one['checked']:,}" for one in attacks])
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_title(f"headrace verify crash, seed {report['seed']}: {report['verdict']}")
    return figure
