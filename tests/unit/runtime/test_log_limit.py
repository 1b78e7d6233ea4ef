"""A client cannot make a broker log without bound."""

from __future__ import annotations

import logging

from tests.clocks import HandClock

from headrace.cli.serve import RATE_LIMITED_LOGGERS
from headrace.runtime.log_limit import BURST, LogLimit


def record(name: str = "loud") -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", 0, "client %s", ("x",), None)


def test_a_burst_passes_then_one_for_each_interval_and_it_says_what_is_missing():
    clock = HandClock()
    limit = LogLimit(["loud"], clock, burst=5, interval_s=2)
    assert sum(limit.filter(record()) for _ in range(100)) == 5
    assert limit.filter(record("other"))
    clock.ns += 2_000_000_000
    passed = record()
    assert limit.filter(passed)
    assert passed.getMessage() == "client x (and 95 similar lines dropped)"
    assert not limit.filter(record())
    clock.ns += 1_000_000_000_000
    assert sum(limit.filter(record()) for _ in range(100)) == 5


def test_an_outage_of_the_storage_cannot_fill_the_disk_with_each_try_of_a_client():
    """Found by `headrace verify blackbox`: no bookies, and a line for each refused append."""
    limit = LogLimit(RATE_LIMITED_LOGGERS, HandClock())
    passed = sum(limit.filter(record("headrace.log.step_queue")) for _ in range(10_000))
    assert passed == BURST
