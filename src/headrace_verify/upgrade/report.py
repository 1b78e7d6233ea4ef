"""The report of a run: what was opened, how much was compared, what was wrong.

Invariants: `report.json` contains everything that others need to judge the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_verify.report import head, write_json
from headrace_verify.upgrade import archive

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.upgrade.run import Outcome


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values."""
    return {
        **head("upgrade", outcome),
        "version": archive.current(),
        "seconds": round(outcome.seconds, 1),
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
    return [write_json(folder, "report.json", report)]
