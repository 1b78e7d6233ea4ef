"""When a broker steps down and up again."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.session_guard import SessionGuard
from headrace.runtime.clock import SystemClock
from headrace.runtime.session import Session


async def test_a_broker_serves_again_as_soon_as_its_session_is_resumed():
    """It does not wait for the next periodic check, which is 0.6 s away."""

    clock = SystemClock()
    session = Session(6_000, clock.now_ns())
    session.begin(6_000, clock.now_ns() - 5_000_000_000, clock.now_ns())
    session.suspend(clock.now_ns())
    up = asyncio.Event()
    guard = SessionGuard(session, clock, lambda: None, lambda _has_survived: up.set())
    task = asyncio.create_task(guard.run())
    await asyncio.sleep(0.05)
    assert not guard.is_up, "it is not safe for the last fifth of the session"
    session.resume(6_000, clock.now_ns(), clock.now_ns())
    async with asyncio.timeout(0.3):
        await up.wait()
    assert guard.is_up
    assert guard.term == 1
    task.cancel()


@pytest.mark.parametrize("is_new", [False, True])
def test_the_owner_is_notified_whether_its_session_has_survived(is_new):
    clock = SystemClock()
    session = Session(6_000, clock.now_ns())
    session.begin(6_000, clock.now_ns() - 7_000_000_000, clock.now_ns())
    told: list[bool] = []
    guard = SessionGuard(session, clock, lambda: None, told.append)
    guard.check()
    if is_new:
        session.lose(clock.now_ns())
        session.begin(6_000, clock.now_ns(), clock.now_ns())
    else:
        session.resume(6_000, clock.now_ns(), clock.now_ns())
    guard.check()
    assert told == [not is_new]


def test_a_session_that_was_replaced_unnoticed_has_not_survived():
    clock = SystemClock()
    session = Session(6_000, clock.now_ns())
    session.begin(6_000, clock.now_ns(), clock.now_ns())
    told: list[bool] = []
    guard = SessionGuard(session, clock, lambda: None, told.append)
    session.begin(6_000, clock.now_ns(), clock.now_ns())
    guard.check()
    assert guard.term == 1
    assert told == [False]


async def test_a_cancelled_wait_for_a_change_of_the_session_is_forgotten():
    session = Session(6_000, 0)
    for _ in range(3):
        try:
            async with asyncio.timeout(0.001):
                await session.wait_change_after(session.changes)
        except TimeoutError:
            continue
    assert not session._waiters
