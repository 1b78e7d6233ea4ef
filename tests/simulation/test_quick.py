"""The quick profile of `headrace verify simulate`, as `make test` runs it, and its self-proof."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

pytest.importorskip("google.protobuf", reason="a cluster needs headrace[cluster]")

from headrace.cli.main import cli
from headrace_verify.self_proof import choose
from headrace_verify.simulation.bugs import BUGS, find
from headrace_verify.simulation.explore import Limits, explore, shrink
from headrace_verify.simulation.run import draw_scenario, simulate
from headrace_verify.simulation.schedule import DISK_FAULTS, KINDS, draw_schedule
from headrace_verify.workloads import QUEUES, TRANSACTIONS

TRACE = """
from headrace_verify.simulation.run import draw_scenario, simulate
print(simulate(draw_scenario(8, 20.0)).trace, simulate(draw_scenario(1000, 60.0)).trace)
print(simulate(draw_scenario(7, 40.0, is_lone=True)).trace)
"""


def test_simulated_clusters_hold_whatever_happens_to_them(tmp_path):
    arguments = ["verify", "simulate", "--quick", "--json", "--report", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(one["problems"], one["anomalies"]) for one in report["failures"]] == []
    assert report["unstable_seeds"] == []
    assert report["broker_hours"] > 0.3
    assert len(report["faults"]) > 10
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("workload", "seed", "wanted"),
    [
        (TRANSACTIONS, 3, "transaction ok"),
        (TRANSACTIONS, 88, "committed ok"),  # its coordinator was not loaded after a takeover
        (QUEUES, 2, "settle ok"),
        (QUEUES, 6, "drained ok"),
    ],
)
def test_transactions_and_queues_hold_whatever_happens_to_them(workload, seed, wanted):
    result = simulate(draw_scenario(seed, 60.0, workload=workload))
    assert (result.problems, result.verdict.anomalies) == ([], [])
    assert wanted in {f"{event['f']} {event['k']}" for event in result.events}


def test_a_stopped_campaign_reports_its_finished_runs():
    ends = iter([False, True])
    outcome = explore(1, Limits(hours=100.0), lambda *_: None, is_over=lambda: next(ends))
    assert outcome.runs == 1


def test_a_seed_gives_the_same_run_in_every_process():
    def trace(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", TRACE]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert trace("1") == trace("2")


@pytest.mark.parametrize(
    ("number", "seed"), [(39, 1), (21, 1), (31, 1), (23, 1), (38, 122), (3, 1), (26, 1), (54, 1)]
)
def test_a_planted_bug_is_found(number, seed):
    bug = choose(BUGS, str(number))[0]
    found = find(bug, seed).result
    assert found is not None, f"nobody noticed: {bug.name}"


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_planted_bug_is_found(bug):
    assert find(bug, 1).result is not None, f"nobody noticed: {bug.name}"


def test_a_failure_is_shrunk_to_the_faults_that_it_takes():
    faults = draw_schedule(1, 500.0, KINDS)
    wanted = {faults[3], faults[17]}
    assert set(shrink(faults, lambda some: wanted <= set(some))) == wanted


def test_a_fault_can_be_taken_out_without_changing_those_before_it():
    scenario = draw_scenario(8, 20.0)
    whole = simulate(scenario)
    last = max(fault.at_s for fault in scenario.schedule)
    rest = scenario._replace(schedule=scenario.schedule[:-1])
    begun = whole.events[0]["t"] / 1e9
    before = [one for one in whole.events if one["t"] / 1e9 < begun + last - 1]
    assert simulate(rest).events[: len(before)] == before


def test_a_run_without_clients_work_or_faults_is_no_proof():
    result = CliRunner().invoke(cli, ["verify", "simulate", "--planted", "no such bug"])
    assert result.exit_code == 2


def test_a_failure_can_be_replayed_from_its_report_file(tmp_path):
    from headrace_verify.simulation import report as reports
    from headrace_verify.simulation.explore import Failure, Outcome

    result = simulate(draw_scenario(8, 20.0))
    needed = result.scenario.schedule[1:]
    outcome = Outcome(8, failures=[Failure(result, True, needed, (), 0)])
    reports.write_report(tmp_path, outcome, reports.as_json(outcome))
    scenario = reports.read_scenario(tmp_path / "seed-8.json", is_shrunk=False)
    assert scenario == result.scenario
    shrunk = reports.read_scenario(tmp_path / "seed-8.json", is_shrunk=True)
    assert shrunk == scenario._replace(schedule=needed, points=())
    assert simulate(scenario).trace == result.trace


def test_a_broker_that_is_alone_holds_whatever_happens_to_it_and_to_its_disk():
    done: dict[str, int] = {}
    for seed in range(4):
        scenario = draw_scenario(seed, 30.0, is_lone=True)
        faults = draw_schedule(seed, 30.0, (*DISK_FAULTS, "power", "crash"))
        result = simulate(scenario._replace(schedule=tuple(faults)))
        assert (result.problems, result.verdict.anomalies) == ([], [])
        done |= result.faults
    assert {"power", "crash"} & set(done)
    assert set(DISK_FAULTS) & set(done)


def test_fault_points_are_hit_only_where_the_seed_enables_them():
    scenario = draw_scenario(12, 20.0)._replace(schedule=())
    calm = simulate(scenario._replace(points=()))
    assert (calm.held, calm.fault_points) == (True, {})
    points = ("bytes in pieces", "ledger rolled", "timer late")
    odd = simulate(scenario._replace(points=points))
    assert odd.held
    assert set(odd.fault_points) == set(points)


def test_a_long_run_that_missed_a_fault_point_is_no_proof():
    from headrace_verify.simulation.explore import RUNS_FOR_ALL_POINTS, Outcome
    from headrace_verify.simulation.fault_points import POINTS

    done = {"operations": 1, "faults": {"crash": 1}, "fault_points": dict.fromkeys(POINTS, 1)}
    assert Outcome(1, runs=RUNS_FOR_ALL_POINTS, **done).held
    del done["fault_points"]["watch late"]
    assert not Outcome(1, runs=RUNS_FOR_ALL_POINTS, **done).held
    assert Outcome(1, runs=8, **done).held
