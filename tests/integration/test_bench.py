"""`headrace bench`, for real and short: Headrace alone, and with the systems that are installed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.waiting import wait_until

from headrace_bench.loads import ROCKETMQ_LOADS
from headrace_bench.processes import tree_of
from headrace_bench.systems.registry import BY_NAME

COMMAND = [sys.executable, "-m", "headrace.cli.main", "bench"]
PATIENCE_S = 120


def bench(*arguments, timeout=240):
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
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
    assert {"produce-100-1p", "beside-produce-100", "beside-latency-1000", "rocketmq-send"} <= names
    assert {one["name"] for one in listed["systems"]} == set(BY_NAME)


def test_an_unknown_workload_is_refused_with_the_list_of_known_ones(tmp_path):
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
        assert sum(n for key, n in run["histogram_ns"].items() if key != "max") == 1_500
        assert found["systems"][name]["sides"][policy]["idle_mb"] > 1
    assert json.loads((folder / "beside.json").read_text()) == found


def test_latency_of_headrace_is_measured_with_both_promises(tmp_path):
    check_latency("headrace", tmp_path)


def test_latency_of_redis_is_measured_with_both_promises(tmp_path):
    check_latency("redis", tmp_path)


def test_rocketmqs_protocol_is_measured_with_all_its_loads(tmp_path):
    done = bench(
        *("--workload", "rocketmq", "--peer", "headrace", "--quick", "--json"),
        *("--data-dir", tmp_path / "data", "--output", tmp_path / "results"),
    )
    if "is in memory" in done.stderr:
        pytest.skip("temporary files are in memory here: nothing to measure syncs on")
    assert done.returncode == 0, done.stderr
    loads = json.loads(done.stdout)["rocketmq"]["loads"]
    assert set(loads) == {load.name for load in ROCKETMQ_LOADS}
    for load in ROCKETMQ_LOADS:
        assert loads[load.name]["failures"] == []
        ((run,),) = loads[load.name]["rounds"].values()
        if load.has_times:
            assert 0 < run["p50"] <= run["p99"] <= run["max"]
        elif load.kind == "clients":
            assert 0 <= run["cpu_percent"] < 100
            assert run["rss_mb"] > 10
        else:
            assert run["records"] > 0
            assert run["cpu_s_per_million"] > 0
    (delayed,) = loads["rocketmq-delayed"]["rounds"]["headrace/synced"]
    assert sum(n for key, n in delayed["histogram_ns"].items() if key != "max") == 1_000


@contextlib.contextmanager
def running(tmp_path, *arguments):
    """A bench that measures latencies of Headrace alone, and what it says."""
    said = tmp_path / "said"
    options = ("--workload", "beside-latency", "--peer", "headrace", "--quick", "--json")
    folders = ("--data-dir", tmp_path / "data", "--output", tmp_path / "results")
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [*COMMAND, *map(str, (*options, *folders, *arguments))],
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    try:
        yield process, said
    finally:
        for pid in reversed(tree_of(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def wait_for_child(process, said, word):
    """The process below the bench whose command has `word` in it, when it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for pid in tree_of(process.pid)[1:]:
            with contextlib.suppress(OSError):
                if word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return pid
        if process.poll() is not None:
            break
        time.sleep(0.01)
    text = said.read_text()
    if "is in memory" in text:
        pytest.skip("temporary files are in memory here: nothing to measure syncs on")
    raise AssertionError(text)


def test_a_signal_ends_what_was_started_and_says_so(tmp_path):
    with running(tmp_path) as (process, said):
        wait_for_child(process, said, b"headrace_bench.latency")
        below = tree_of(process.pid)[1:]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)
        text = said.read_text()
        assert process.returncode == 128 + signal.SIGTERM, text
        assert "stopped by SIGTERM" in text
        wait_until(lambda: not [pid for pid in below if Path(f"/proc/{pid}").exists()])
        assert list((tmp_path / "data").iterdir()) == []


def test_a_server_that_vanishes_is_written_down_and_the_others_are_measured(tmp_path):
    with running(tmp_path) as (process, said):
        wait_for_child(process, said, b"headrace_bench.latency")
        os.kill(wait_for_child(process, said, b"serve"), signal.SIGKILL)
        out, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said.read_text()
        entry = json.loads(out)["beside"]["loads"]["beside-latency-1000"]
        (failure,) = entry["failures"]
        sides = ["headrace/synced", "headrace/unsynced"]
        sides.remove(failure.split(": ")[0])  # the first, unless the machine was slow to kill
        assert list(entry["rounds"]) == sides
