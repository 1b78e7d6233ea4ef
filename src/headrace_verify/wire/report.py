"""The report of a run: a summary, and a file for each violation.

Invariants: contains everything that others need to judge the run, as JSON.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from headrace.runtime.clock import SystemClock
from headrace_verify.verdicts import HELD, INCONCLUSIVE, VIOLATED, verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.wire.run import Outcome, Result


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    return {
        "what": f"headrace verify {outcome.plan.mode}",
        "version": version("headrace"),
        "at": now.isoformat(timespec="seconds"),
        "seed": outcome.plan.seed,
        "seconds": outcome.plan.seconds,
        "platform": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        },
        "verdict": verdict_of(outcome),
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
    folder.mkdir(parents=True, exist_ok=True)
    names = ["report.json"]
    (folder / names[0]).write_text(json.dumps(report, indent=2) + "\n")
    for number, one in enumerate(outcome.results):
        if one.wrong:
            found = {**report["cases"][number], "seed": outcome.plan.seed, "sent": one.sent.hex()}
            names.append(f"violation-{number}.json")
            (folder / names[-1]).write_text(json.dumps(found, indent=2) + "\n")
    return names
