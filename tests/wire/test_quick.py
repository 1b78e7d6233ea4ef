"""The quick profile of `headrace verify wire`, as `make test` runs it, and its self-proof."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace_verify.wire.bugs import BUGS, find


def test_hostile_clients_harm_no_other_client(tmp_path):
    arguments = ["verify", "wire", "--quick", "--json", "--report", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    report = json.loads((tmp_path / "report.json").read_text())
    violations = {one["case"]: one["violations"] for one in report["cases"] if one["violations"]}
    assert violations == {}
    assert report["good_client"]["lost"] == []
    assert report["good_client"]["writes"] > 20
    assert {one["listener"] for one in report["cases"]} == {"kafka", "http", "rocketmq"}
    assert result.exit_code == 0


def test_a_limit_that_is_taken_away_is_noticed():
    bug = BUGS[0]
    assert find(bug, 1, lambda _fraction, _name: None, 1), f"nobody noticed: {bug.name}"


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_planted_bug_is_found(bug):
    assert find(bug, 1, lambda _fraction, _name: None), f"nobody noticed: {bug.name}"


def test_a_run_that_checks_nothing_fails():
    result = CliRunner().invoke(cli, ["verify", "wire", "--only", "no such case"])
    assert result.exit_code == 2
