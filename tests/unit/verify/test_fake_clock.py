"""A clock that jumps lets a process do all else as before."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from headrace_verify.blackbox.fake_clock import WHY_NO_CLOCK, FakeClock

SAY_WHEN_ASKED = """
import datetime, json, sys, time
for _ in sys.stdin:
    before = time.monotonic()
    time.sleep(0.01)
    other = datetime.datetime.now().timestamp()
    print(json.dumps([time.time(), other, before, time.monotonic()]), flush=True)
"""
CONTEND = """
import json, threading, time
def work(until):
    while time.monotonic() < until:
        sum(range(1000))
began = time.monotonic()
threads = [threading.Thread(target=work, args=(began + 1,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(time.process_time() / (time.monotonic() - began)))
"""


@pytest.fixture
def clock(tmp_path):
    found = FakeClock.find(tmp_path / "clock")
    if found is None:
        pytest.skip(f"NO CLOCK THAT JUMPS: {WHY_NO_CLOCK}")
    return found


def begin(program, clock):
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | clock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_jump_moves_the_wall_clock_of_a_running_process_alone_and_sleeps_sleep(clock):
    offsets = (0.0, 7_000.0, -3_600.25, 0.5)
    seen = []
    with begin(SAY_WHEN_ASKED, clock) as process:
        for offset_s in offsets:
            clock.jump(offset_s)
            process.stdin.write("\n")
            process.stdin.flush()
            seen.append(json.loads(process.stdout.readline()))
        process.stdin.close()
    began = seen[0][2]
    for offset_s, (wall, other, before, after) in zip(offsets, seen, strict=True):
        assert wall - seen[0][0] == pytest.approx(offset_s + after - seen[0][3], abs=0.005)
        assert wall - other == pytest.approx(0, abs=0.005)
        assert 0.01 <= after - before < 6
        assert before - began < 60


def test_threads_that_wait_for_the_interpreter_do_not_spin(clock):
    """Under libfaketime they did, and an attack met a slow broker."""
    with begin(CONTEND, clock) as process:
        cores_used = json.loads(process.stdout.readline())
    assert cores_used < 1.3


def test_where_there_is_no_compiler_there_is_no_clock(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace_verify.blackbox.fake_clock.find_compiler", lambda: None)
    assert FakeClock.find(tmp_path / "clock") is None
