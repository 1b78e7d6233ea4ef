"""The black box against workers and against a real cluster, as its user runs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

TIMEOUT_S = 900
pytestmark = pytest.mark.timeout(TIMEOUT_S + 60)


def attack(folder, target: str, *options: str) -> dict:
    """Run it in a process of its own, which may need a network of its own; its report."""
    command = [sys.executable, "-m", "headrace.cli.main", "verify", "blackbox", "--target", target]
    command += ["--report", str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    report = json.loads((folder / "report.json").read_text())
    assert report["violations"] == []
    assert report["anomalies"] == []
    assert done.returncode == 0, done.stderr
    return report


def test_a_real_cluster_that_is_killed_and_cut_shows_nothing_that_must_not_be(
    tmp_path, cluster_parts
):
    report = attack(tmp_path, "cluster", "--quick", "--time", "5s")
    assert report["faults"]["kill"] >= 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
def test_workers_that_are_killed_and_frozen_show_nothing_that_must_not_be(tmp_path, seed):
    report = attack(tmp_path, "workers", "--time", "60s", "--seed", str(seed))
    assert report["faults"]["kill"] >= 1


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_whole_cluster_under_mixed_faults_shows_nothing_that_must_not_be(
    tmp_path, cluster_parts, seed
):
    attack(tmp_path, "cluster", "--time", "120s", "--seed", str(seed))


@pytest.mark.long
def test_the_archive_that_works_through_all_faults_is_the_topic(tmp_path, cluster_parts):
    pytest.importorskip("pyspark")
    report = attack(tmp_path, "cluster", "--time", "120s", "--seed", "4", "--with-archive")
    assert report["archive"]["kills"] >= 1
    assert report["archive"]["archived"] == report["archive"]["stored"] > 0
