"""What a partition's timers keep of producers: bounded, and long enough for retries."""

from __future__ import annotations

from headrace.coordination.timers.config import HalfConfig
from headrace.coordination.timers.state_records import StoredOrigin
from headrace.coordination.timers.timer_state import ORIGIN_MS, TimerState


def test_producers_that_are_quiet_for_long_are_forgotten_and_others_are_not():
    state = TimerState(HalfConfig())
    state.apply(StoredOrigin(1, 0, 10, 1_000))
    state.apply(StoredOrigin(2, 0, 10, 1_000))
    for hour in range(96):  # each producer comes once, as short programs do, but for number 2
        now_ms = hour * 3_600_000
        state.apply(StoredOrigin(2, 0, hour, now_ms))
        for number in range(100):
            state.apply(StoredOrigin(1_000 + hour * 100 + number, 0, 0, now_ms))
    assert 1 not in state.origins
    assert state.origins[2].sequences == [91, 92, 93, 94, 95]
    assert 4_800 <= len(state.origins) <= 5_000, "those of the last two days"
    assert min(one.seen_ms for one in state.origins.values()) >= 95 * 3_600_000 - ORIGIN_MS
