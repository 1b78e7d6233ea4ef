"""kill -9 of a writer under load (not power loss: the page cache outlives the process)."""

from __future__ import annotations

import pytest

from headrace.storage.files import write_ahead_log
from headrace_verify.crash.kill_cycles import run_kill_cycles

ROUNDS = 40
"""On a busy machine writers hardly get to write before they are killed."""


def test_acknowledged_appends_survive_a_killed_writer(tmp_path):
    acknowledgements = 0
    for round_ in range(ROUNDS):
        model = run_kill_cycles(25, 11 + round_, tmp_path / f"data-{round_}")
        assert model.wrong == []
        acknowledgements += model.acknowledgements
        if acknowledgements > 100:
            return
    raise AssertionError(f"{acknowledgements} acknowledgements: nothing was proved")


@pytest.mark.long
def test_two_hundred_kills_in_a_row(tmp_path):
    model = run_kill_cycles(200, 5, tmp_path / "data")
    assert model.wrong == []


def test_a_frame_that_stays_in_memory_is_missed(monkeypatch, tmp_path):
    write = write_ahead_log.WriteAheadLog.write
    kept = []

    def buffered(self, *frame):
        if kept:
            write(self, *kept.pop())
        kept.append(frame)

    monkeypatch.setattr(write_ahead_log.WriteAheadLog, "write", buffered)
    assert any(
        run_kill_cycles(25, 3 + round_, tmp_path / f"data-{round_}").wrong
        for round_ in range(ROUNDS)
    )
