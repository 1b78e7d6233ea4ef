"""The report of simulated runs: a summary, and a file for each failure that replays it.

Invariants: contains everything that others need to judge the runs, as JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.errors import RequestInvalid
from headrace.storage.bookkeeper.quorum import Quorum
from headrace_verify.report import head, write_json
from headrace_verify.simulation.run import Scenario
from headrace_verify.simulation.schedule import Fault

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.simulation.explore import Failure, Outcome

LOG_LINES = 200


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The whole report as plain values."""
    real_s = outcome.real_s or 1.0
    return {
        **head("simulate", outcome),
        "seed": outcome.seed,
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
    names = [write_json(folder, "report.json", report)]
    for failure in outcome.failures:
        names += write_failure(folder, failure)
    return names


def write_failure(folder: Path, failure: Failure) -> list[str]:
    """Write the files to replay one failure, and its history; returns their names."""
    result = failure.result
    stem = f"seed-{result.scenario.seed}"
    content = {**_failure(failure), "log": result.log_lines[-LOG_LINES:]}
    name = write_json(folder, f"{stem}.json", content)
    with (folder / f"{stem}-history.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(event) + "\n" for event in result.events)
    return [name, f"{stem}-history.jsonl"]


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
