"""Long work reports its progress, also without a terminal."""

from __future__ import annotations

import os
import signal

from headrace.cli import progress
from headrace_verify.commands.stopping import stop_requested


def test_a_log_gets_a_line_a_minute_and_short_work_none(monkeypatch, capsys) -> None:
    now_ns = 0
    monkeypatch.setattr(progress.time, "perf_counter_ns", lambda: now_ns)
    line = progress.StatusLine()
    for second in range(150):
        now_ns = second * 10**9
        line.show(second / 150, f"{second} runs")
    line.end()
    assert capsys.readouterr().err == " 40%  60 runs\n 80%  120 runs\n"


def test_the_first_sigterm_requests_a_stop_and_restores_the_default_handler(capsys) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_requested() as is_over:
        assert not is_over()
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_over()
        assert signal.getsignal(signal.SIGTERM) is before
    assert "finishing" in capsys.readouterr().err
