"""What is known of a session's life."""

from __future__ import annotations

import asyncio

from headrace.runtime.session import Session, SessionState, endless_session

MS = 1_000_000


def test_a_session_is_safe_for_its_timeout_after_the_last_answered_request():
    session = Session(timeout_ms=9_000, now_ns=0)
    assert (session.state, session.is_safe(0, 0)) == (SessionState.LOST, False)
    session.begin(timeout_ms=1_000, sent_ns=10 * MS, now_ns=20 * MS)  # the server's word counts
    assert session.is_safe(1_009 * MS, 0)
    assert not session.is_safe(1_010 * MS, 0)
    assert not session.is_safe(810 * MS, 200)
    session.confirm(500 * MS)
    session.confirm(400 * MS)  # an answer that came late proves nothing new
    assert session.is_safe(1_499 * MS, 0)
    session.suspend(600 * MS)
    assert (session.state, session.since_ns) == (SessionState.SUSPENDED, 600 * MS)
    assert session.is_safe(1_499 * MS, 0)  # nobody can have seen it end yet
    assert not session.is_safe(1_500 * MS, 0)
    session.resume(timeout_ms=1_000, sent_ns=1_600 * MS, now_ns=1_601 * MS)
    assert session.is_safe(2_599 * MS, 0)
    assert session.number == 1


def test_a_lost_session_is_never_safe_and_leaves_nothing_to_the_next():
    session = Session(timeout_ms=1_000, now_ns=0)
    session.begin(1_000, sent_ns=500 * MS, now_ns=500 * MS)
    session.lose(600 * MS)
    session.confirm(550 * MS)  # an answer to the old session that was still under way
    assert not session.is_safe(601 * MS, 0)
    session.begin(1_000, sent_ns=400 * MS, now_ns=700 * MS)
    assert session.number == 2
    assert not session.is_safe(1_400 * MS, 0)


async def test_changes_are_waited_for_and_none_is_missed():
    session = Session(timeout_ms=1_000, now_ns=0)
    seen = session.changes
    waiting = [asyncio.ensure_future(session.wait_change_after(seen)) for _ in range(2)]
    waiting.append(asyncio.ensure_future(session.wait_change_after(seen + 1)))
    await asyncio.sleep(0)
    waiting[0].cancel()
    session.begin(1_000, 0, 0)
    await waiting[1]
    await asyncio.sleep(0)
    assert not waiting[2].done()
    session.suspend(1)
    await waiting[2]
    await session.wait_change_after(seen)


def test_an_endless_session_is_safe_at_any_time():
    assert endless_session().is_safe(1 << 60, 1 << 40)
