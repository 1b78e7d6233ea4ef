"""The pieces of the demo, on a small part of the flights."""

import signal
import time
from itertools import islice

import pytest
from tests.pipeline.process_trees import OnTerminal

from headrace.pipeline.demo.clients import consume_with_group, create_topic, publish
from headrace.pipeline.demo.delays import read_delays, run_delays
from headrace.pipeline.demo.flights import flights

ENDED_S = 15
"""Java takes longer to start under load; the broker stops in less."""


def test_published_consumed_and_computed_are_the_same_flights(spark, broker, tmp_path):
    create_topic(broker, "demo", 6, {"retention.ms": "-1"})
    create_topic(broker, "demo-delays", 1, {})
    seen = []
    published = publish(broker, "demo", islice(flights(), 5_000), seen.append)
    assert sum(published.values()) == seen[-1] == 5_000
    consumed = consume_with_group(broker, "demo", "readers", 5_000, seen.append)
    assert consumed.per_partition == published
    assert (consumed.gaps, consumed.duplicates) == (0, 0)
    batches = run_delays(spark, broker, "demo", "demo-delays", tmp_path, 2_500)
    assert batches >= 2
    delays = read_delays(spark, broker, "demo-delays")
    assert sum(each.flights for each in delays) == 5_000
    assert {each.hour for each in delays} <= set(range(5, 24))
    united = sum(each.flights for each in delays if each.carrier == "UA")
    assert united == sum(flight.key.startswith(b"UA") for flight in islice(flights(), 5_000))


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGTERM, "is up on"), (signal.SIGINT, "is up on"), (signal.SIGINT, "archive to")],
)
def test_a_demo_that_is_ended_by_a_signal_leaves_nothing(tmp_path, number, moment):
    """Also while Java starts, and while it is at work."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    demo = OnTerminal(
        "demo", "--out", str(tmp_path / "out"), TMPDIR=str(temporary), PYTHONUNBUFFERED="1"
    )
    demo.read_until(moment.encode())
    assert list(temporary.glob("headrace-demo-*"))
    begun = time.monotonic()
    demo.end_by(number)
    assert demo.end() == 130, demo.drawn
    assert time.monotonic() - begun < ENDED_S
    assert b"interrupted. The broker has stopped; its data was removed" in demo.drawn
    assert b"Traceback" not in demo.drawn
    assert not list(temporary.iterdir())
