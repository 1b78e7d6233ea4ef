"""A figure is what a tool reports within its window; no tool outlives the bench or its server."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_bench import tools
from headrace_bench.processes import SystemFailed
from headrace_bench.tools import Tool, Window, run_tool, serving, watch

TELLS = """
import os, sys, time
print(os.getpid(), file=open(sys.argv[1], "w"))
for rate in map(int, sys.argv[2:]):
    time.sleep(0.05)
    print(f"rate {rate}", end="\\r", flush=True)
"""


def rate_of(line):
    return float(line.removeprefix("rate ")) if line.startswith("rate ") else None


def telling(tmp_path, *rates):
    return Tool([sys.executable, "-c", TELLS, str(tmp_path / "pid"), *map(str, rates)], rate_of)


def is_gone(tmp_path):
    try:
        os.kill(int((tmp_path / "pid").read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_start_and_warm_up_are_not_in_the_figure_and_the_tool_is_ended(tmp_path):
    rates = [0, 0, 5] + [100] * 10_000
    done = watch(telling(tmp_path, *rates), Window(0.1, 0.3), [os.getpid()])
    assert done.records_per_s == pytest.approx(100)
    assert done.seconds >= 0.2
    assert done.total > done.records
    assert done.used.rss_bytes > 0
    assert is_gone(tmp_path)


def test_a_window_is_over_when_enough_was_done(tmp_path):
    done = watch(telling(tmp_path, *[100] * 10_000), Window(0.0, 600.0, 20.0), [])
    assert done.records_per_s == pytest.approx(100)
    assert 20 <= done.total < 60


def test_a_tool_that_ends_before_its_window_is_full_is_still_measured(tmp_path):
    done = watch(telling(tmp_path, 1, *[50] * 8), Window(0.0, 600.0), [])
    assert done.records_per_s == pytest.approx(50)


def test_a_tool_that_ends_while_it_warms_up_has_no_figures(tmp_path):
    with pytest.raises(SystemFailed, match="before the end of its warm-up"):
        watch(telling(tmp_path, 1, 2, 3), Window(600.0, 1.0), [])


def test_a_tool_that_does_nothing_any_more_is_a_failure_and_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "SILENCE_MAX_S", 0.3)
    with pytest.raises(SystemFailed, match="no progress"):
        watch(telling(tmp_path, 7, *[0] * 10_000), Window(0.0, 600.0), [])
    assert is_gone(tmp_path)


def test_a_tool_is_ended_when_its_server_has_ended(tmp_path):
    answers = iter([True, False])
    with serving(lambda: next(answers, False)), pytest.raises(SystemFailed, match="server exited"):
        watch(telling(tmp_path, *[7] * 10_000), Window(0.0, 600.0), [])
    assert is_gone(tmp_path)
    sleeps = [sys.executable, "-c", "import time; time.sleep(600)"]
    with serving(lambda: False), pytest.raises(SystemFailed, match="server exited"):
        run_tool(sleeps)


def test_a_tool_that_fails_is_a_failure_with_its_words():
    failing = [sys.executable, "-c", "raise SystemExit('not today')"]
    with pytest.raises(SystemFailed, match="not today"):
        run_tool(failing)
    with pytest.raises(SystemFailed, match="not today"):
        watch(Tool(failing, rate_of), Window(0.0, 1.0), [])


REPORTS = st.lists(st.tuples(st.floats(0.01, 2.0), st.integers(1, 10**6)), min_size=3, max_size=40)


@given(reports=REPORTS, warmup_s=st.floats(0, 5), seconds=st.floats(0.1, 10))
def test_a_window_weighs_each_report_by_the_time_it_is_for(reports, warmup_s, seconds):
    """The model: reports after the first one that follows the warm-up, until it is full."""
    seen = tools._Reports(Tool(["a tool"], rate_of), Window(warmup_s, seconds), [])
    at, times = 0.0, []
    for took, _ in reports:
        at += took
        times.append(at)
    warm_at = times[0] + warmup_s - tools._SLACK_S
    begin = next((n for n, when in enumerate(times) if when >= warm_at), None)
    is_full = False
    for when, (_, rate) in zip(times, reports, strict=True):
        is_full = seen.add(float(rate), when)
        if is_full:
            break
    if begin is None or begin + 1 >= len(times):
        with pytest.raises(SystemFailed):
            seen.steady()
        return
    inside = [
        n
        for n in range(begin + 1, len(times))
        if times[n - 1] - times[begin] < seconds - tools._SLACK_S
    ]
    done = seen.steady()
    assert done.records == pytest.approx(sum(reports[n][0] * reports[n][1] for n in inside))
    assert done.seconds == pytest.approx(sum(reports[n][0] for n in inside))
    assert is_full == (done.seconds >= seconds - tools._SLACK_S)


def test_a_tool_reporting_over_a_past_window_is_read_by_its_last_report_alone():
    asked = Tool(["a tool"], rate_of, looks_back_s=10.0)
    seen = tools._Reports(asked, Window(0.0, 10.0), [])
    for second in range(11, 22):
        seen.add(float(second), float(second) + seen._started_at)
    assert seen.steady().records_per_s == pytest.approx(21)
