"""A coordinator's time: aligned once, and standing still while nothing may happen."""

from __future__ import annotations

import asyncio

from tests.clocks import HandClock

from headrace.broker.coordinators.shard_time import ShardTime


def test_no_time_passes_while_it_stands_still_and_the_wall_clock_is_read_once() -> None:
    """Members that could not reach their coordinator must not expire."""
    clock = HandClock(500, skew_ms=999_500)
    time = ShardTime(clock, lambda: None)
    time.align()
    clock.skew_ms += 3_600_000
    clock.ms += 40
    assert time.now_ms() == 1_000_040
    time.stand_still()
    clock.ms += 9_000
    time.go_on()
    assert time.now_ms() == 1_000_040
    clock.ms += 5
    assert time.now_ms() == 1_000_045
    time.align()
    assert time.now_ms() == 4_609_045


async def test_it_wakes_for_the_earliest_and_not_while_it_stands_still() -> None:
    clock = HandClock(500, skew_ms=999_500)
    woken = asyncio.Event()
    time = ShardTime(clock, woken.set)
    time.wake_at(time.now_ms() + 60_000)
    time.wake_at(time.now_ms() + 10)
    time.wake_at(time.now_ms() + 60_000)
    await asyncio.wait_for(woken.wait(), 5)
    woken.clear()
    time.wake_at(time.now_ms() + 10)
    time.stand_still()
    await asyncio.sleep(0.05)
    assert not woken.is_set()
