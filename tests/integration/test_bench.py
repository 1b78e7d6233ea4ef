"""`headrace bench`, for real and short: Headrace alone, and whoever else is there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from headrace.bench.systems.registry import BY_NAME


def bench(*arguments, timeout=240):
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", "bench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def test_the_list_names_workloads_and_systems():
    done = bench("--list", "--json")
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    names = {one["name"] for one in listed["workloads"]}
    assert {"produce-100-1p", "beside-produce-100", "beside-latency-1000"} <= names
    assert {one["name"] for one in listed["systems"]} == set(BY_NAME)


def test_what_does_not_exist_is_said_with_what_does(tmp_path):
    done = bench("--workload", "nonsense", "--data-dir", tmp_path)
    assert done.returncode == 2
    assert "beside-produce-100" in done.stderr


def check_latency(name, tmp_path):
    if missing := BY_NAME[name].missing():
        pytest.skip(f"{BY_NAME[name].title}: {missing}; `headrace bench --install {name}`")
    folder = tmp_path / "results"
    done = bench(
        *("--workload", "beside-latency", "--peer", name, "--quick", "--json"),
        *("--data-dir", tmp_path / "data", "--output", folder),
    )
    if "is in memory" in done.stderr:
        pytest.skip("temporary files are in memory here: nothing to measure syncs on")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["beside"]
    entry = found["loads"]["beside-latency-1000"]
    assert entry["failures"] == []
    for policy in ("synced", "unsynced"):
        (run,) = entry["rounds"][f"{name}/{policy}"]
        assert 0 < run["p50"] <= run["p99"] <= run["max"]
        assert sum(n for key, n in run["histogram_ns"].items() if key != "max") == 600
        assert found["systems"][name]["sides"][policy]["idle_mb"] > 1
    assert json.loads((folder / "beside.json").read_text()) == found


def test_latency_of_headrace_is_measured_with_both_promises(tmp_path):
    check_latency("headrace", tmp_path)


def test_latency_of_redis_is_measured_with_both_promises(tmp_path):
    check_latency("redis", tmp_path)
