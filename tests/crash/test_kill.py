"""kill -9 of a writer under load (not power loss: the page cache outlives the process)."""

from __future__ import annotations

import pytest
from tests.crash.kill_cycles import run_kill_cycles

from headrace.storage.files import wal_reader, write_ahead_log


def test_what_a_killed_writer_had_acknowledged_is_there(tmp_path):
    model = run_kill_cycles(25, 11, tmp_path / "data")
    assert model.wrong == []
    assert model.acknowledgements > 200, "the writers hardly wrote: nothing was proved"


@pytest.mark.long
def test_two_hundred_kills_in_a_row(tmp_path):
    model = run_kill_cycles(200, 5, tmp_path / "data")
    assert model.wrong == []


def _keep_the_last_frame_in_memory(patch):
    write = write_ahead_log.WriteAheadLog.write
    kept = []

    def buffered(self, *frame):
        if kept:
            write(self, *kept.pop())
        kept.append(frame)

    patch(write_ahead_log.WriteAheadLog, "write", buffered)


def _lose_the_last_frame(patch):
    frames = wal_reader.WalReader.frames

    def shortened(self, first_number, covered):
        yield from list(frames(self, first_number, covered))[:-1]

    patch(wal_reader.WalReader, "frames", shortened)


@pytest.mark.parametrize("bug", [_keep_the_last_frame_in_memory, _lose_the_last_frame])
def test_a_planted_bug_is_found_by_kills(monkeypatch, tmp_path, bug):
    bug(monkeypatch.setattr)
    assert run_kill_cycles(25, 3, tmp_path / "data").wrong != []
