"""How soon a worker that died is started again."""

from __future__ import annotations

from headrace.server.supervisor import RESTART_DELAYS_S, STEADY_S, RestartDelays


def test_a_worker_that_served_is_started_again_at_once_however_often_it_is_killed():
    delays = RestartDelays()
    assert [delays.after(STEADY_S) for _ in range(10)] == [0.0] * 10


def test_a_worker_that_dies_again_and_again_waits_longer_each_time_until_it_has_served():
    delays = RestartDelays()
    waits = [delays.after(0.1) for _ in range(7)]
    assert waits == [*RESTART_DELAYS_S, 5.0, 5.0]
    assert delays.after(STEADY_S) == 0.0
