"""`headrace verify crash` as a command: what it lists, when it fails, what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace.errors import DataCorrupt
from headrace_verify.crash import run as crash
from headrace_verify.crash.bugs import BUGS
from headrace_verify.crash.recorder import RecordUnsound
from headrace_verify.crash.run import ATTACKS
from headrace_verify.self_proof import choose
from headrace_verify.task import Attack, Task


def invoke(*options):
    return CliRunner().invoke(cli, ["verify", "crash", *options])


@pytest.fixture
def attack(monkeypatch):
    """Puts one attack in the place of all."""

    def put(run, evidence=()):
        found = Attack("mine", "What I say holds.", "looks", 1, run, evidence)
        monkeypatch.setattr(crash, "ATTACKS", (found,))
        monkeypatch.setattr(crash, "BY_NAME", {"mine": found})

    return put


def test_every_promise_and_every_planted_bug_is_listed():
    listed = json.loads(invoke("--list", "--json").stdout)
    assert [one["name"] for one in listed["attacks"]] == list(crash.BY_NAME)
    assert len(listed["planted"]) == len(BUGS)
    assert all(one["promise"].endswith(".") for one in listed["attacks"])


def test_a_bug_is_planted_by_its_name_where_others_share_its_number(monkeypatch):
    planted = []

    def find(bug, _attacks, _seed, folder):
        planted.append(bug.name)
        task = Task(*bug.found_by, 1, 1.0, folder)
        task.wrong("found", seed=1)
        return task

    monkeypatch.setattr(crash, "is_found", find)
    done = invoke("--planted", "know six retries")
    assert done.exit_code == 0, done.output
    assert planted == ["know six retries"]


def test_each_planted_bug_names_an_attack():
    assert {attack for bug in BUGS for attack in bug.found_by} <= set(crash.BY_NAME)
    assert choose(BUGS, "all") == BUGS
    assert [bug.number for bug in choose(BUGS, "14")] == [14]
    assert choose(BUGS, "no such bug") == []


def test_a_run_that_checks_nothing_is_inconclusive(attack):
    attack(lambda task: None)
    result = invoke("--runs", "1", "--json")
    assert result.exit_code == 6
    report = json.loads(result.stdout)
    assert report["verdict"] == "INCONCLUSIVE"
    assert report["inconclusive"] == ["mine: no looks checked"]
    assert report["attacks"][0]["verdict"] == "INCONCLUSIVE"


def test_kills_without_acknowledgements_are_inconclusive(attack):
    def kill(task):
        task.checked += 40
        task.add("acknowledgements", 0)

    attack(kill, ("acknowledgements",))
    result = invoke("--runs", "1", "--json")
    assert result.exit_code == 6
    assert json.loads(result.stdout)["inconclusive"] == ["mine: no acknowledgements"]
    asking = {one.name for one in ATTACKS if "acknowledgements" in one.evidence}
    assert asking >= {"kills", "faults"}


@pytest.mark.parametrize(
    "error", [RecordUnsound("the recorded broker does not exit"), OSError(28, "disk full")]
)
def test_an_attack_that_could_not_run_is_inconclusive(attack, error):
    def fail(task):
        task.checked += 1
        raise error

    attack(fail)
    result = invoke("--runs", "1")
    assert result.exit_code == 6
    assert "INCONCLUSIVE: mine: the attack could not run" in result.stderr
    assert "VIOLATED" not in result.stderr


@pytest.mark.parametrize("error", [AssertionError("an invariant"), DataCorrupt("a record")])
def test_an_attack_that_ends_with_an_error_of_the_broker_is_a_violation(attack, error):
    def fail(task):
        task.checked += 1
        raise error

    attack(fail)
    assert invoke("--runs", "1").exit_code == 1


def test_a_run_in_which_all_held_succeeds(attack):
    def hold(task):
        task.checked += 3

    attack(hold)
    result = invoke("--json", "--seed", "5")
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert (report["verdict"], report["seed"]) == ("held", 5)


def test_a_violation_fails_the_run_and_leaves_what_replays_it(attack, tmp_path):
    def break_it(task):
        task.checked += 1
        task.skip("the other half: no time")
        task.wrong("a record is lost", seed=task.seed, byte=9)

    attack(break_it)
    result = invoke("--report", str(tmp_path), "--seed", "4")
    assert result.exit_code == 1
    assert "VIOLATION: a record is lost" in result.stderr
    assert "skipped: the other half" in result.stderr
    kept = json.loads((tmp_path / "violation-mine-1.json").read_text())
    assert kept["replay"] == {"attack": "mine", "seed": 4, "byte": 9}
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "VIOLATED"


def test_an_unknown_attack_or_time_is_refused():
    assert invoke("--only", "nonsense").exit_code == 2
    assert invoke("--time", "soon").exit_code == 2
    assert invoke("--planted", "nonsense").exit_code == 2


def test_a_task_stops_at_its_time_its_runs_or_too_many_violations(tmp_path):
    task = Task("mine", 1, 0.0, Path(tmp_path))
    assert task.has_time()
    task.runs = 1
    assert not task.has_time()
    counted = Task("mine", 1, 1e9, Path(tmp_path), runs_max=2)
    counted.runs = 2
    assert not counted.has_time()
    broken = Task("mine", 1, 1e9, Path(tmp_path))
    for _ in range(50):
        broken.wrong("again")
    assert broken.violation_count == 50
    assert not broken.has_time()


def test_a_run_that_is_interrupted_reports_what_it_has_checked(attack):
    def stop(task):
        task.checked += 2
        raise KeyboardInterrupt

    attack(stop)
    (one,) = json.loads(invoke("--json").stdout)["attacks"]
    assert one["checked"] == 2
    assert one["skipped"] == ["interrupted: the checks made until then count"]
