"""The control that knows no broker: what a write costs on this machine."""

from __future__ import annotations

import time

from headrace_verify.wire.control import PAUSE_S, Control


def test_it_reports_the_longest_write_of_a_time_and_the_unfinished_one(tmp_path):
    begun_ns = time.monotonic_ns()
    with Control(tmp_path / "control") as control:
        while len(control._writes) < 3:
            time.sleep(0.01)
        assert control.worst_ms(begun_ns) >= PAUSE_S * 1000
        assert control.worst_ms(begun_ns) <= (time.monotonic_ns() - begun_ns) / 1e6
    stopped_ns = time.monotonic_ns()
    time.sleep(0.2)  # as if the disk stood still
    assert control.worst_ms(stopped_ns) >= 200
