"""The quick profile of `headrace verify soak`, as `make test` runs it, and its self-proof."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace.verify.soak.bugs import BUGS, find


def test_a_broker_under_mixed_load_gives_back_what_it_takes_and_loses_nothing(tmp_path):
    arguments = ["verify", "soak", "--time", "6s", "--json", "--report", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["violations"] == []
    assert report["load"]["lost"] == []
    assert report["load"]["read_again"] > 20
    assert report["looks"] >= 3
    assert report["probe_rounds"] > 2
    assert len((tmp_path / "samples.jsonl").read_text().splitlines()) == report["looks"] + 2
    assert result.exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_planted_bug_is_found(bug):
    assert find(bug, 1, lambda _fraction, _name: None), f"nobody noticed: {bug.name}"


def test_an_unknown_bug_is_refused():
    result = CliRunner().invoke(cli, ["verify", "soak", "--planted", "no such bug"])
    assert result.exit_code == 2
