"""The report of a run: a summary, and a file for each violation.

Invariants: contains everything that others need to judge the run, as JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_verify.report import head, write_json
from headrace_verify.verdicts import HELD, INCONCLUSIVE, VIOLATED

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.wire.run import Outcome, Result


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values."""
    return {
        **head(outcome.plan.mode, outcome),
        "seed": outcome.plan.seed,
        "seconds": outcome.plan.seconds,
        "good_client": {
            "writes": outcome.writes,
            "p99_ms": round(outcome.p99_ms, 1),
            "lost": outcome.lost,
        },
        "cases": [
            {
                "case": one.case.name,
                "listener": one.case.listener,
                "verdict": word_of(one),
                "seconds": round(one.seconds, 2),
                "checked": one.checked,
                "sent_bytes": one.sent_bytes,
                "violations": one.wrong,
                "skipped": one.skipped,
                "figures": one.figures,
            }
            for one in outcome.results
        ],
        "skipped": outcome.skipped,
    }


def word_of(result: Result) -> str:
    """The verdict on one case."""
    if result.wrong:
        return VIOLATED
    return HELD if result.checked else INCONCLUSIVE


def write_report(folder: Path, outcome: Outcome, report: dict[str, Any]) -> list[str]:
    """Write the folder; returns the names of its files."""
    names = [write_json(folder, "report.json", report)]
    for number, one in enumerate(outcome.results):
        if one.wrong:
            found = {**report["cases"][number], "seed": outcome.plan.seed, "sent": one.sent.hex()}
            names.append(write_json(folder, f"violation-{number}.json", found))
    return names
