"""The report of simulated runs: a summary, and a file for each failure that replays it.

Invariants: contains everything that others need to judge the runs, as JSON.
"""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from headrace.errors import RequestInvalid
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.quorum import Quorum
from headrace_verify.simulation.run import Scenario
from headrace_verify.simulation.schedule import Fault
from headrace_verify.verdicts import verdict_of

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.simulation.explore import Failure, Outcome

LOG_LINES = 200


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values."""
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    real_s = outcome.real_s or 1.0
    return {
        "what": "headrace verify simulate",
        "version": version("headrace"),
        "at": now.isoformat(timespec="seconds"),
        "seed": outcome.seed,
        "platform": {
            "system": platform.platform(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        },
        "verdict": verdict_of(outcome),
        "runs": outcome.runs,
        "seeds": [outcome.seed, outcome.seed + outcome.runs - 1],
        "replayed": outcome.replays,
        "unstable_seeds": outcome.unstable,
        "real_s": round(outcome.real_s, 1),
        "simulated_hours": round(outcome.simulated_s / 3600, 3),
        "broker_hours": round(outcome.broker_s / 3600, 3),
        "simulated_per_real": round(outcome.simulated_s / real_s, 1),
        "messages": outcome.messages,
        "messages_per_s": round(outcome.messages / real_s),
        "operations": outcome.operations,
        "faults": dict(sorted(outcome.faults.items())),
        "mischief": dict(sorted(outcome.fault_points.items())),
        "mischief_missed": outcome.missed,
        "failures": [_failure(failure) for failure in outcome.failures],
    }


def _failure(failure: Failure) -> dict[str, Any]:
    result, scenario = failure.result, failure.result.scenario
    return {
        "seed": scenario.seed,
        "trace": f"{result.trace:08x}",
        "same_trace_again": failure.is_replayed,
        "problems": result.problems,
        **result.verdict.as_json(),
        "points_needed": list(failure.points),
        "faults_needed": [fault._asdict() for fault in failure.shrunk],
        "shrink_runs": failure.shrink_runs,
        "scenario": {
            **scenario._asdict(),
            "quorum": list(scenario.quorum),
            "schedule": [list(fault) for fault in scenario.schedule],
        },
    }


def write_report(folder: Path, outcome: Outcome, report: dict[str, Any]) -> list[str]:
    """Write the folder; returns the names of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ["report.json"]
    (folder / names[0]).write_text(json.dumps(report, indent=2) + "\n")
    for failure in outcome.failures:
        names += write_failure(folder, failure)
    return names


def write_failure(folder: Path, failure: Failure) -> list[str]:
    """Write the files to replay one failure, and its history; returns their names."""
    folder.mkdir(parents=True, exist_ok=True)
    result = failure.result
    stem = f"seed-{result.scenario.seed}"
    content = {**_failure(failure), "log": result.log_lines[-LOG_LINES:]}
    (folder / f"{stem}.json").write_text(json.dumps(content, indent=1) + "\n")
    with (folder / f"{stem}-history.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in result.events)
    return [f"{stem}.json", f"{stem}-history.jsonl"]


def read_scenario(path: Path, *, is_shrunk: bool) -> Scenario:
    """Load the scenario of a failure's file, with all faults or those needed. Raises
    RequestInvalid."""
    try:
        found = json.loads(path.read_text())
        values = found["scenario"]
        faults = [Fault(*one) for one in values["schedule"]]
        if is_shrunk:
            faults = [Fault(**one) for one in found["faults_needed"]]
            values["points"] = found["points_needed"]
        values |= {
            "quorum": Quorum(*values["quorum"]),
            "roles": tuple(values["roles"]),
            "schedule": tuple(faults),
            "points": tuple(values["points"]),
        }
        return Scenario(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestInvalid(
            f"{path} is not the file of a failed run ({error!r}): give a seed-N.json of a report"
        ) from error
