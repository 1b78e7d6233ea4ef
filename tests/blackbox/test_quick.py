"""The quick profile of `headrace verify blackbox`, as `make test` runs it, and its self-proof."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace_verify.blackbox.bugs import BUGS, find

QUICK_BUGS = [bug for bug in BUGS if bug.number == 20]


def test_real_clients_under_faults_see_nothing_that_must_not_be(tmp_path):
    arguments = ["verify", "blackbox", "--quick", "--json", "--report", str(tmp_path)]
    result = CliRunner().invoke(cli, arguments)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["violations"] == []
    assert report["anomalies"] == []
    assert report["faults"]["kill"] >= 1
    assert report["operations"]["transaction"]["ok"] > 10
    assert set(report["messages"]) == {"shared", "ordered", "compacted", "lite"}
    for counts in report["messages"].values():
        states = dict(counts)
        sent = states.pop("sent")
        assert sent == sum(states.values())
        assert states["acknowledged"] > sent / 2
        assert states["pending"] == states["delayed"] == 0
    assert not [name for name in report["skipped"] if name.startswith("rocketmq-")]
    assert result.exit_code == 0
    told = [path.read_text() for path in tmp_path.glob("librdkafka-idempotent*.log")]
    assert told
    # It takes a new epoch then, and stores again what is stored: no broker's fault may bring it to.
    assert not any("skipped sequence numbers" in log for log in told)


def prove(bug, folder):
    found = find(bug, 1, folder, lambda _fraction, _state: None)
    assert found.kinds.intersection(bug.found_by), (
        f"nobody noticed: {bug.name}; found: {found.kinds}"
    )


@pytest.mark.parametrize("bug", QUICK_BUGS, ids=lambda bug: bug.name)
def test_a_bug_in_a_real_broker_is_found(tmp_path, bug):
    prove(bug, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_planted_bug_is_found(tmp_path, bug):
    prove(bug, tmp_path)
