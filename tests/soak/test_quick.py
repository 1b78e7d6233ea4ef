"""The quick profile of `headrace verify soak`, as `make test` runs it, and its self-proof."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from headrace.cli.main import cli
from headrace_verify.soak.bugs import BUGS, find
from headrace_verify.soak.targets import CLUSTER


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


def soaked(folder, target: str, *options: str):
    """The report of a run that held."""
    arguments = ["verify", "soak", "--target", target, *options, "--report", str(folder)]
    result = CliRunner().invoke(cli, arguments)
    report = json.loads((folder / "report.json").read_text())
    assert report["violations"] == []
    assert report["load"]["read_again"] > 20
    assert result.exit_code == 0, result.output
    looks = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(looks) == report["looks"] + 2
    return report, looks


def test_each_worker_and_the_supervisor_is_judged_by_itself(tmp_path):
    report, looks = soaked(tmp_path, "workers", "--time", "3s")
    assert list(looks[-1]["processes"]) == ["worker 0", "worker 1", "the supervisor"]
    assert all(one["tasks"] for one in list(looks[-1]["processes"].values())[:2])
    assert {"sockets, worker 1", "threads, the supervisor"} <= set(report["figures"])


@pytest.mark.long
def test_a_cluster_gives_back_what_it_takes_and_leaves_nothing_of_what_is_gone(
    cluster_parts, tmp_path
):
    report, looks = soaked(tmp_path, "cluster", "--quick")
    assert list(looks[-1]["processes"]) == ["broker 1", "broker 2"]
    assert all(one["cache_bytes"] > 0 for one in looks[-1]["processes"].values())
    seen = [look["shared"] for look in looks if look["shared"] is not None]
    assert max(one["orphans"] for one in seen) > 0
    assert max(one["stale"] for one in seen) > 0
    assert (seen[-1]["orphans"], seen[-1]["stale"], seen[-1]["problems"]) == (0, 0, [])
    assert "sockets, broker 2" in report["figures"]


@pytest.mark.long
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_planted_bug_is_found(bug, request):
    if bug.target == CLUSTER:
        request.getfixturevalue("cluster_parts")
    assert find(bug, 1, lambda _fraction, _name: None), f"nobody noticed: {bug.name}"


def test_an_unknown_bug_is_refused():
    result = CliRunner().invoke(cli, ["verify", "soak", "--planted", "no such bug"])
    assert result.exit_code == 2
