"""The end of the transactional part: how long clients may take to catch up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace_verify.blackbox import transactions
from headrace_verify.blackbox.transactions import CATCH_UP_MAX, _Settling

LIMIT_S = 10.0


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass with each pause alone."""
    time = SimpleNamespace(s=0.0)
    monkeypatch.setattr(transactions, "now_ns", lambda: int(time.s * 1e9))
    return time


def settle(clock, step):
    """Wait for one group, of which `step(seconds)` gives the progress; True: it has caught up."""

    def pause(seconds):
        clock.s += seconds

    settling = _Settling(None, SimpleNamespace(pause=pause, number=1), LIMIT_S)

    def is_read(group, _topics):
        found = step(clock.s)
        if found is not True:
            settling._progress[group] = found
        return found is True

    return list(settling._wait(is_read, {"copies": {"orders": 2}}, "has not copied everything"))


def test_a_group_that_makes_progress_may_take_longer_than_the_limit(clock):
    assert settle(clock, lambda s: True if s > 3 * LIMIT_S else int(s)) == []


def test_a_group_without_progress_is_reported_after_the_limit(clock):
    (said,) = settle(clock, lambda _s: 7)
    assert "copies has not copied everything" in said
    assert LIMIT_S <= clock.s < LIMIT_S + 1


def test_progress_without_end_is_reported_too(clock):
    (said,) = settle(clock, int)
    assert "copies has not copied everything" in said
    assert clock.s == pytest.approx(CATCH_UP_MAX * LIMIT_S, abs=1)
