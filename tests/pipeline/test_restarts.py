"""A stream whose Python worker starts too late on a busy machine goes on."""

import logging
import sys
from collections import Counter

import psutil
import pytest

from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.restarts import RestartPolicy, with_restarts
from headrace.pipeline.source import HeadraceDataSource


@pytest.fixture
def hold_next_worker(spark, tmp_path):
    """Make the next Python worker that the driver starts longer than Spark waits for it."""
    flag, interpreter = tmp_path / "hold", tmp_path / "python"
    interpreter.write_text(
        f'#!/bin/sh\nrm "{flag}" 2>/dev/null && sleep 14\nexec "{sys.executable}" "$@"\n'
    )
    interpreter.chmod(0o755)
    context = spark.sparkContext
    before = context.pythonExec
    context.pythonExec = str(interpreter)
    spark.dataSource.register(HeadraceDataSource)
    yield flag.touch
    context.pythonExec = before
    spark.dataSource.register(HeadraceDataSource)


def test_a_worker_that_connects_too_late_does_not_end_a_stream(
    broker, streamed, to_topic, finish, send, contents, topic, hold_next_worker, caplog
):
    target = f"{topic}-out"
    create_topic(broker, target, 2, {})
    send(topic, 90)
    frame = streamed(topic).select("value")
    hold_next_worker()

    def run():
        finish(to_topic(frame, target))

    with caplog.at_level(logging.WARNING):
        with_restarts(run, "The stream", RestartPolicy(delay_ms=10))
    assert "The stream failed with a transient error" in caplog.text
    assert "connect back" in caplog.text
    values = Counter(value for *_, value in contents(target))
    assert values == Counter(b"value-%d" % number for number in range(90))


def test_the_death_of_the_planner_or_committer_does_not_end_a_stream(
    broker, streamed, to_topic, send, contents, topic, caplog
):
    """Spark starts both beside the stream, and says no more than that a stream was closed."""
    target = f"{topic}-out"
    create_topic(broker, target, 2, {})
    send(topic, 30)
    doomed = ["python_streaming_source_runner", "python_streaming_sink_runner"]
    sent = 30

    def run():
        nonlocal sent
        query = to_topic(streamed(topic).select("value"), target).start()
        try:
            query.processAllAvailable()
            if doomed and kill(doomed.pop(0)):
                send(topic, 30, first=sent)
                sent += 30
                query.processAllAvailable()
        finally:
            query.stop()

    with caplog.at_level(logging.WARNING):
        with_restarts(run, "The stream", RestartPolicy(delay_ms=10))
    assert "The stream failed with a transient error" in caplog.text
    values = Counter(value for *_, value in contents(target))
    assert values == Counter(b"value-%d" % number for number in range(sent))


def kill(module):
    """Kill this test's Spark processes that run the module; how many there were."""
    found = [
        each
        for each in psutil.Process().children(recursive=True)
        if any(module in word for word in each.cmdline())
    ]
    for each in found:
        each.kill()
    psutil.wait_procs(found, timeout=30)
    return len(found)
