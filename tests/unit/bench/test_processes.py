"""Processes are counted with everything below them, and ended with it."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from headrace_bench.processes import Processes, SystemFailed, tree_of, undisturbed, usage_of
from headrace_bench.stopping import Stopped, stopped_by_signals

WORK = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
data = b"x" * (1 << 20)
with open("data", "wb") as file:
    for _ in range(8):
        file.write(data)
while sum(os.times()[:2]) < 0.2:
    pass
print("ready", flush=True)
child.wait()
"""


def test_a_tree_of_processes_is_counted_and_ended(tmp_path):
    processes = Processes("work", tmp_path / "work")
    processes.clear()
    process = processes.spawn([sys.executable, "-c", WORK])
    try:
        processes.wait_until(lambda: "ready" in processes.output())
        tree = tree_of(process.pid)
        used = usage_of(processes.pids)
        assert len(tree) == 2
        assert used.cpu_s >= 0.19
        assert used.rss_bytes > usage_of(tree[1:]).rss_bytes > 0
    finally:
        processes.stop()
    deadline = time.monotonic() + 30
    while any(usage_of([pid]).rss_bytes for pid in tree) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(usage_of([pid]).rss_bytes for pid in tree)
    assert not (tmp_path / "work").exists()


def test_a_system_that_ends_at_once_says_what_it_said(tmp_path):
    processes = Processes("work", tmp_path / "work")
    processes.clear()
    processes.spawn([sys.executable, "-c", "print('no such setting')"])
    with pytest.raises(SystemFailed, match=r"(?s)work exited while starting.*no such setting"):
        processes.wait_until(lambda: False)
    processes.stop()


def test_a_second_interrupt_waits_until_systems_are_ended():
    before = signal.getsignal(signal.SIGINT)
    with undisturbed():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def _signalled(number):
    with stopped_by_signals():
        try:
            os.kill(os.getpid(), number)
        except Exception:
            pytest.fail("taken for a failure of what was measured")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_passes_what_catches_failures_and_gives_its_exit_code(number):
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        _signalled(number)
    assert (stopped.value.name, stopped.value.exit_code) == (number.name, 128 + number)
    assert signal.getsignal(number) is before
