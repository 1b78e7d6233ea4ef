"""Work at intervals that may change."""

from __future__ import annotations

import asyncio

from headrace.runtime.rounds import Rounds
from headrace.runtime.tasks import Tasks

HOUR_MS = 3_600_000
LONG_S = 60


async def test_a_changed_interval_applies_to_the_pause_that_has_begun():
    rounds, tasks, done = Rounds(), Tasks(), asyncio.Event()
    interval_ms = HOUR_MS

    async def work() -> None:
        done.set()

    tasks.spawn(rounds.run("work", lambda: interval_ms, work), "work")
    for changed_ms in (2 * HOUR_MS, HOUR_MS):
        interval_ms = changed_ms
        rounds.intervals_changed()
        await asyncio.sleep(0)
        assert not done.is_set()
    interval_ms = 1
    rounds.intervals_changed()
    await asyncio.wait_for(done.wait(), LONG_S)
    await tasks.close()


async def test_an_error_in_a_round_is_logged_and_the_next_one_comes(caplog):
    rounds, tasks, done = Rounds(), Tasks(), asyncio.Event()
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            raise ValueError("no such luck")
        done.set()

    tasks.spawn(rounds.run("counting", lambda: 1, work), "counting")
    await asyncio.wait_for(done.wait(), LONG_S)
    await tasks.close()
    assert "internal error in counting" in caplog.text
    assert "no such luck" in caplog.text
