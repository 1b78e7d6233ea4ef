"""The quick profile of `headrace verify security`, as `make test` runs it, and its self-proof."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace_verify.security.bugs import BUGS, find
from headrace_verify.security.table import CASES, THREATS


def test_no_attack_of_the_table_succeeds(tmp_path):
    arguments = ["verify", "security", "--quick", "--json", "--report", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    report = json.loads((tmp_path / "report.json").read_text())
    violations = {one["case"]: one["violations"] for one in report["cases"] if one["violations"]}
    assert violations == {}
    assert report["good_client"]["lost"] == []
    assert {one["listener"] for one in report["cases"]} == {"kafka", "http", "machine"}
    assert len(report["cases"]) > 35
    assert result.exit_code == 0


def test_each_attack_says_what_it_is_drawn_from_and_what_must_hold():
    assert all(threat.holds for threat in THREATS)
    assert sum(not threat.after for threat in THREATS) == 1, "the audit alone is drawn from none"
    assert len({case.name for case in CASES}) == len(CASES)


def test_secrets_that_are_logged_are_noticed():
    (bug,) = [bug for bug in BUGS if "environment" in bug.name]
    assert find(bug, 1, lambda _fraction, _name: None, 1), f"nobody noticed: {bug.name}"


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_planted_hole_is_found(bug):
    assert find(bug, 1, lambda _fraction, _name: None), f"nobody noticed: {bug.name}"
