"""Long work says how far it is, also where nobody watches a terminal."""

from __future__ import annotations

from headrace.cli import progress


def test_a_log_gets_a_line_a_minute_and_short_work_none(monkeypatch, capsys) -> None:
    now_ns = 0
    monkeypatch.setattr(progress.time, "perf_counter_ns", lambda: now_ns)
    line = progress.StatusLine()
    for second in range(150):
        now_ns = second * 10**9
        line.show(second / 150, f"{second} runs")
    line.end()
    assert capsys.readouterr().err == " 40%  60 runs\n 80%  120 runs\n"
