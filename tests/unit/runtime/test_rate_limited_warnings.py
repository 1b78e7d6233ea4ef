"""A fault of every request is logged once a minute, with its count."""

from __future__ import annotations

import logging

from tests.clocks import HandClock

from headrace.runtime.rate_limited_warnings import INTERVAL_NS, KEYS_MAX, RateLimitedWarnings


def test_each_warning_is_logged_once_a_minute_with_a_count(caplog):
    clock = HandClock()
    warnings = RateLimitedWarnings(logging.getLogger("headrace.test"), clock)
    with caplog.at_level(logging.WARNING, logger="headrace.test"):
        for _ in range(4):
            warnings.warn("a-0", "a-0 is damaged")
        warnings.warn("b-0", "b-0 is damaged")
        clock.ns += INTERVAL_NS
        warnings.warn("a-0", "a-0 is damaged")
    assert caplog.messages == [
        "a-0 is damaged",
        "b-0 is damaged",
        "a-0 is damaged (and 3 times more since the last warning)",
    ]


def test_the_number_of_remembered_warnings_is_bounded():
    warnings = RateLimitedWarnings(logging.getLogger("headrace.test.quiet"), HandClock())
    warnings._log.setLevel(logging.CRITICAL)
    for number in range(3 * KEYS_MAX):
        warnings.warn(str(number), "damaged")
    assert len(warnings._logged) <= KEYS_MAX
