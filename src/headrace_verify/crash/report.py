"""The report of a run: one folder with everything that others need to judge it.

Invariants: `report.json` says what was tested, on what machine, with which seed, what was skipped
and why; each violation has its own file with what is needed to reproduce it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_verify.report import add_chart, head, write_json
from headrace_verify.verdicts import verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.crash.run import Attacked, Outcome


def as_json(seed: int, attacked: Attacked) -> dict[str, Any]:
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
