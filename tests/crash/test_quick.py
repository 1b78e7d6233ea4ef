"""The quick profile of `headrace verify crash`, as `make test` runs it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli


def run(tmp_path, *options):
    arguments = ["verify", "crash", "--quick", "--json", "--report", str(tmp_path), *options]
    result = CliRunner().invoke(cli, arguments)
    report = json.loads((tmp_path / "report.json").read_text())
    return result, report


@pytest.mark.parametrize(
    "attack", ["power-broker", "power-files", "log", "tails", "flips", "faults", "broker"]
)
def test_every_promise_holds(tmp_path, attack):
    """`power` and `kills` have tests of their own here."""
    result, report = run(tmp_path, "--only", attack)
    (found,) = report["attacks"]
    assert found["findings"] == []
    if found["verdict"] == "SKIPPED":
        pytest.skip("; ".join(found["skipped"]))
    assert found["checked"] > 0
    assert result.exit_code == 0
