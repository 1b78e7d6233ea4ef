"""The pieces of the demo, on a small part of the flights."""

import os
import subprocess
import sys
from itertools import islice

from headrace.pipeline.demo.clients import consume_with_group, create_topic, publish
from headrace.pipeline.demo.delays import read_delays, run_delays
from headrace.pipeline.demo.flights import flights


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


def test_a_demo_that_is_ended_by_sigterm_leaves_nothing(tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "demo", "--out", str(tmp_path / "out")],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said = next(line for line in process.stdout if "is up on" in line)
    broker = int(said.split("process ")[1].split(",")[0])
    assert list(temporary.glob("headrace-demo-*"))
    process.terminate()
    process.communicate(timeout=120)
    assert not list(temporary.glob("headrace-demo-*"))
    assert not os.path.exists(f"/proc/{broker}")
