"""A clock that jumps lets a process do all else as before."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from headrace.verify.blackbox.fake_clock import FakeClock, find_faketime, why_no_clock

LOOK = """
import json, time
before = time.monotonic()
time.sleep(0.01)
print(json.dumps([time.time(), before, time.monotonic()]))
"""


def test_a_jump_moves_the_wall_clock_alone_and_sleeps_sleep(tmp_path):
    clock = FakeClock.find(tmp_path / "clock")
    if clock is None:
        pytest.skip(f"NO CLOCK THAT JUMPS: {why_no_clock()}")
    seen = {}
    for offset_s in (0.0, 7_000.0):
        clock.jump(offset_s)
        done = subprocess.run(
            [sys.executable, "-c", LOOK],
            env=os.environ | clock.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        seen[offset_s] = json.loads(done.stdout)
    assert seen[7_000.0][0] - seen[0.0][0] >= 6_999
    for _, before, after in seen.values():
        assert 0.01 <= after - before < 6_000


def test_where_there_is_no_library_there_is_no_clock_and_it_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_FAKETIME", raising=False)
    monkeypatch.setattr("headrace.verify.blackbox.fake_clock.FAKETIME_PLACES", (str(tmp_path),))
    assert find_faketime() is None
    assert FakeClock.find(tmp_path / "clock") is None
    assert "not installed" in why_no_clock()
