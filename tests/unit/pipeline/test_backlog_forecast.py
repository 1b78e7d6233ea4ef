"""Forecasts against the arithmetic of a queue."""

import pytest

from headrace.pipeline.jobs.backlog import Forecast, Sample, advise, forecast


def sample(at_s, committed, end):
    return Sample(at_s * 1000, {"orders": {"0": committed}}, {"orders": {"0": end}})


@pytest.mark.parametrize(
    ("arrival", "drain", "lag"), [(10, 15, 1_000), (0, 4, 100), (100, 101, 7), (3, 30, 12_345)]
)
def test_a_backlog_is_empty_when_the_difference_of_rates_has_consumed_it(arrival, drain, lag):
    first = sample(0, 0, lag + 60 * (drain - arrival))
    last = sample(60, 60 * drain, lag + 60 * drain)
    found = forecast("orders", [first, last])
    assert (found.arrival_per_s, found.drain_per_s) == (arrival, drain)
    simulated, left = 60.0, float(lag)
    while left > 0:
        simulated, left = simulated + 0.01, left - (drain - arrival) * 0.01
    assert found.empty_at_ms == pytest.approx(simulated * 1000, abs=20)


def test_a_backlog_that_grows_is_never_empty():
    found = forecast("orders", [sample(0, 0, 100), sample(10, 50, 200)])
    assert found == Forecast(10.0, 5.0, None, "never at this rate")
    assert forecast("orders", [sample(0, 0, 9)]).verdict.startswith("unknown")
    assert forecast("orders", [sample(0, 0, 9), sample(5, 9, 9)]).empty_at_ms == 5_000


def test_deleted_records_are_no_backlog():
    """Of a group that has not committed, or not since retention deleted what follows."""
    for committed in ({}, {"orders": {"0": 20}}):
        one = Sample(0, committed, {"orders": {"0": 100}}, {"orders": {"0": 100}})
        assert one.lag("orders") == 0
        assert forecast("orders", [one]).verdict == "empty now"
    assert one._replace(starts={"orders": {"0": 90}}).lag("orders") == 10


def test_a_first_commit_is_no_rate():
    """A group that begins at the end has skipped the records before, not processed them."""
    first = Sample(0, {"orders": {}}, {"orders": {"0": 1_000}})
    last = Sample(10_000, {"orders": {"0": 1_000}}, {"orders": {"0": 1_100}})
    assert forecast("orders", [first, last]).verdict == "never at this rate"


def partition(number, lag, oldest_ms=None, committed=0):
    return {"partition": number, "lag": lag, "oldest_ms": oldest_ms, "committed": committed}


@pytest.mark.parametrize(
    ("found", "partitions", "keys", "retention_ms", "words"),
    [
        (Forecast(10.0, 5.0, None, "never"), [partition(0, 100)], [], -1, ["2.0 times"]),
        (Forecast(1.0, 0.0, None, "never"), [partition(0, 9, committed=7)], [], -1, ["0:7"]),
        (Forecast(1.0, 5.0, 9_000, "empty"), [partition(0, 9)], [], -1, []),
        (Forecast(1.0, 5.0, 9_000, "empty"), [partition(0, 9)],
         [{"key": "k", "records": 8, "share": 0.8}], -1, ["'k' has 80%"]),
        (Forecast(1.0, 5.0, 9_000, "empty"), [partition(0, 90), partition(1, 5), partition(2, 5)],
         [], -1, ["Partition 0 has 90%"]),
        (Forecast(1.0, 5.0, 9_000_000, "empty"), [partition(0, 9, oldest_ms=0)], [], 60_000,
         ["delete unread records in 55 s"]),
        (Forecast(1.0, 0.5, None, "never"), [partition(0, 9, oldest_ms=0)], [], 604_800_000,
         ["2.0 times", "delete unread records in 6 days"]),
        (Forecast(1.0, 5.0, 50_000, "empty"), [partition(0, 9, oldest_ms=0)], [], 60_000, []),
    ],
)  # fmt: skip
def test_advice_follows_from_the_figures(found, partitions, keys, retention_ms, words):
    lag = sum(one["lag"] for one in partitions)
    advice = advise(lag, found, partitions, keys, retention_ms, now_ms=5_000)
    assert len(advice) == len(words)
    for line, word in zip(advice, words, strict=True):
        assert word in line
