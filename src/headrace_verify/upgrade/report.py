"""The report of a run: what was opened, how much was compared, what was wrong.

Invariants: `report.json` contains everything that others need to judge the run.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.runtime.clock import SystemClock
from headrace_verify.upgrade import archive
from headrace_verify.verdicts import verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.upgrade.run import Outcome


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    return {
        "what": "headrace verify upgrade",
        "version": archive.current(),
        "at": now.isoformat(timespec="seconds"),
        "seconds": round(outcome.seconds, 1),
        "platform": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
        },
        "verdict": verdict_of(outcome),
        "violations": outcome.violations,
        "checks": [
            {
                "where": found.where,
                "checked": found.checked,
                "violations": found.wrong,
                "skipped": found.skipped,
            }
            for found in outcome.findings
        ],
    }


def write_report(folder: Path, _outcome: Outcome, report: dict[str, Any]) -> list[str]:
    """Write the folder; returns the names of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return ["report.json"]
