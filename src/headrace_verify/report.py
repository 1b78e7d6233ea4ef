"""The report of a run: one folder with everything that others need to judge it.

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
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from headrace.runtime.clock import SystemClock
from headrace_verify.verdicts import verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.crash import Attacked, Outcome


def summary(seed: int, attacked: Attacked) -> dict[str, Any]:
    """The whole report as plain values."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    return {
        "what": "headrace verify crash",
        "version": version("headrace"),
        "at": now.isoformat(timespec="seconds"),
        "seed": seed,
        "platform": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        },
        "verdict": verdict_of(attacked),
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


def write_report(folder: Path, report: dict[str, Any]) -> list[str]:
    """Write the folder; returns the names of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for attack in report["attacks"]:
        for number, finding in enumerate(attack["findings"], 1):
            name = f"violation-{attack['name']}-{number}.json"
            (folder / name).write_text(json.dumps(finding, indent=2, default=str) + "\n")
            names.append(name)
    if _draw(folder / "chart.png", report):
        names.append("chart.png")
    else:
        report["chart"] = "skipped: matplotlib is not installed"
    (folder / "report.json").write_text(json.dumps(report, indent=2, default=str) + "\n")
    return ["report.json", *names]


def load_pyplot() -> Any:
    """Matplotlib's pyplot with a file backend; None if it is not installed."""
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        return None


def _draw(path: Path, report: dict[str, Any]) -> bool:
    """Draw a bar for each attack; returns False without matplotlib."""
    pyplot = load_pyplot()
    if pyplot is None:
        return False
    attacks = report["attacks"]
    if not attacks:
        return True
    figure, axes = pyplot.subplots(figsize=(8, 0.6 * len(attacks) + 1.4))
    names = [f"{one['name']} ({one['unit']})" for one in attacks]
    colours = ["tab:red" if one["violations"] else "tab:blue" for one in attacks]
    bars = axes.barh(names, [max(1, one["checked"]) for one in attacks], color=colours)
    axes.bar_label(bars, [f" {one['checked']:,}" for one in attacks])
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.set_title(f"headrace verify crash, seed {report['seed']}: {report['verdict']}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return True
