"""The report of a run: that of `verify wire`, with the source of each case.

Invariants: plain values and files; nothing is judged here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace_verify.security.table import THREATS
from headrace_verify.wire import report as wire_report
from headrace_verify.wire.report import write_report

if TYPE_CHECKING:
    from headrace_verify.wire.run import Outcome

__all__ = ["as_json", "write_report"]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values: each case with its source and its guarantee."""
    report = wire_report.as_json(outcome)
    rows = {threat.case.name: threat for threat in THREATS}
    for one in report["cases"]:
        threat = rows[one["case"]]
        one |= {"drawn_from": threat.after, "must_hold": threat.holds}
    return report
