"""Power loss: at every operation of the disk, in every mode, what was acknowledged is there.

The rig is `headrace_verify`'s; that it sees bugs is proved in `test_planted.py`.
"""

from __future__ import annotations

import asyncio

import pytest

from headrace.storage.files import wal_sync
from headrace_verify.crash.exploration import explore
from headrace_verify.crash.power_loss import PROFILES
from headrace_verify.crash.scenario import run_faulty_workload


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("sync_turns", [0, 3], ids=["inline", "thread"])
def test_after_a_power_loss_the_acknowledged_is_there_and_nothing_else(
    monkeypatch, profile, sync_turns
):
    if sync_turns:
        monkeypatch.setattr(wal_sync, "INLINE_SYNC_NS", -1)
    report = asyncio.run(explore(7, profile, sync_turns=sync_turns, states_max=1_500))
    assert report.violations == []
    assert report.states >= 1_000, "the account was too short to prove anything"


def test_a_power_loss_while_a_checkpoint_and_appends_run_at_once():
    """With real threads, so no two runs are alike; whatever comes up must hold."""
    report = asyncio.run(explore(3, "posix-strict", has_threads=True, turns=60, states_max=2_000))
    assert report.violations == []
    assert report.states >= 500, "the account was too short to prove anything"


@pytest.mark.parametrize("sync_turns", [0, 3], ids=["inline", "thread"])
def test_failed_appends_never_reappear_once_their_positions_are_reused(monkeypatch, sync_turns):
    """Failed syncs and torn writes, and then a loss of power at any later operation."""
    if sync_turns:
        monkeypatch.setattr(wal_sync, "INLINE_SYNC_NS", -1)
    states = 0
    for seed in range(3):
        report = asyncio.run(
            explore(
                seed,
                "posix-strict",
                sync_turns=sync_turns,
                workload=run_faulty_workload,
                turns=40,
                generations=1,
                states_max=800,
            )
        )
        assert report.violations == []
        states += report.states
    assert states >= 1_000, "the account was too short to prove anything"
