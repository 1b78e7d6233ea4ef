"""A replay writes each record once, in the order of its key, at the speed that was asked for."""

import itertools
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer

from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import DeliveryInDoubt, LeaseHeld, OptionInvalid
from headrace.pipeline.jobs.replay import ReplayConfig, plan_replay, run_replay, slices
from headrace.pipeline.jobs.transfer import Copy, Cut, JobMarks, JobState, run_copy
from headrace.pipeline.jobs.windows import Bounds, Connection, Window

START_MS = 1_700_000_000_000


@pytest.fixture
def target(broker, topic):
    name = f"{topic}-again"
    create_topic(broker, name, 2, {"retention.ms": "-1"})
    return name


def publish(broker, topic, count, first=0, step_ms=100, swapped=()):
    """Records of 7 keys; those in `swapped` carry the time of the record before them."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    for number in range(first, first + count):
        late_ms = 15_000 if number in swapped else 0
        producer.produce(
            topic, b"%d" % number, b"key-%d" % (number % 7), partition=number % 7 % 3,
            timestamp=START_MS + number * step_ms - late_ms, headers=[("n", b"%d" % number)],
        )  # fmt: skip
    assert producer.flush(60) == 0


def by_key(rows):
    found = {}
    for row in sorted(rows, key=lambda each: (each.partition, each.offset)):
        found.setdefault(bytes(row.key), []).append(row)
    return found


def test_a_range_is_replayed_in_order_of_keys_and_only_once(broker, topic, target, spark, read):
    publish(broker, topic, 700)
    bounds = Bounds(since_ms=START_MS + 10_000, until_ms=START_MS + 60_000)
    config = ReplayConfig(
        Connection(broker), topic, target, bounds, chunk_records=90,
        sql="SELECT * EXCEPT (value), concat('v', cast(value AS string)) AS value FROM records"
        " WHERE cast(cast(value AS string) AS int) % 2 = 0",
    )  # fmt: skip
    expected = [number for number in range(100, 600) if number % 2 == 0]
    plan = plan_replay(config, spark=spark)
    assert (plan["read"], plan["written"]) == (500, len(expected))
    assert read(target).count() == 0
    report = run_replay(config, spark=spark)
    assert (report.read, report.written, report.is_done) == (500, len(expected), True)
    assert report.chunks > 4
    rows = read(target).collect()
    assert sorted(int(bytes(row.value)[1:]) for row in rows) == expected
    for key, all_ in by_key(rows).items():
        numbers = [int(bytes(row.value)[1:]) for row in all_]
        assert numbers == sorted(numbers), key
        assert len({row.partition for row in all_}) == 1
    assert all(int(row.timestamp.timestamp() * 1000) == START_MS + int(bytes(row.value)[1:]) * 100
               for row in rows)  # fmt: skip
    assert all(row.headers[0].key == "n" for row in rows)
    publish(broker, topic, 50, first=700)
    again = run_replay(config, spark=spark)
    assert (again.written, again.resumed, again.is_done) == (0, True, True)
    assert read(target).count() == len(expected)


def test_a_job_is_continued_only_with_its_own_options(broker, topic, target, spark, read):
    """Also at a speed, in the middle of which it stops; times are shifted all the same."""
    publish(broker, topic, 100)
    shift_ms = -90_500
    config = ReplayConfig(
        Connection(broker), topic, target, job=target, speed=2.5, times=shift_ms
    )  # fmt: skip
    stopped = run_replay(config, spark=spark, should_stop=iter([False, True, True]).__next__)
    assert not stopped.is_done
    with pytest.raises(OptionInvalid, match="other options"):
        run_replay(
            ReplayConfig(Connection(broker), topic, target, job=target, times="now"), spark=spark
        )
    assert run_replay(config, spark=spark).is_done
    rows = read(target).collect()
    times = {int(bytes(row.value)): round(row.timestamp.timestamp() * 1000) for row in rows}
    assert times == {number: START_MS + number * 100 + shift_ms for number in range(100)}
    for key, all_ in by_key(rows).items():
        numbers = [int(bytes(row.value)) for row in all_]
        assert numbers == sorted(numbers), key


def test_a_second_run_of_a_job_writes_nothing_at_the_same_time(broker, topic, target, spark, read):
    """On the same machine it is refused; if another takes the job over, the first one stops."""
    publish(broker, topic, 300)
    config = ReplayConfig(Connection(broker), topic, target, job=target, chunk_records=100)
    refused = []

    def run_again(chunk):
        with pytest.raises(LeaseHeld, match="is being run by process"):
            run_replay(config, spark=spark)
        refused.append(chunk)
        if len(refused) == 2:  # as a run on another machine does
            marks = JobMarks(config.connection, f"headrace-replay.{target}")
            marks.write(marks.read())

    with pytest.raises(DeliveryInDoubt, match="taken it over"):
        run_replay(config, spark=spark, on_chunk=run_again)
    assert len(refused) == 2
    assert read(target).count() == sum(chunk.written for chunk in refused) < 300
    assert run_replay(config, spark=spark).is_done
    rows = read(target).collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(300))


def job_of(broker, topic, **given):
    """A job that has copied a third, whose rows nobody may ask for; and a run of it."""
    window = Window({topic: {"0": 100}}, {topic: {"0": 300}}, {})
    copy = Copy(
        Connection(broker), f"headrace-replay.{topic}", "spec", window=lambda: window,
        rows=lambda *_: pytest.fail("records were written"), **given,
    )  # fmt: skip
    marks = JobMarks(copy.connection, copy.group)
    state = JobState("spec", window, window.start, {})
    marks.write(state)
    return copy, marks, state


def test_a_job_is_taken_over_before_the_records_are_read(broker, topic):
    """That may take minutes, and what the first run does in them would be done again."""
    planned = []

    def cuts(window):
        with pytest.raises(DeliveryInDoubt, match="taken it over"):
            marks.write(state)
        planned.append(window)
        return []

    copy, marks, state = job_of(broker, topic, cuts=cuts)
    assert not run_copy(copy, should_stop=lambda: True).is_done
    assert planned == [state.window]


def test_a_job_that_another_run_has_begun_meanwhile_is_not_begun_again(broker, topic):
    window = Window({topic: {"0": 0}}, {topic: {"0": 300}}, {})
    other = JobState("spec", window._replace(start={topic: {"0": 200}}), {topic: {"0": 200}}, {})

    def cuts(_):
        JobMarks(copy.connection, copy.group).write(other)
        return []

    copy = Copy(
        Connection(broker), f"headrace-replay.{topic}", "spec", window=lambda: window,
        rows=lambda *_: pytest.fail("records were written"), cuts=cuts,
    )  # fmt: skip
    with pytest.raises(DeliveryInDoubt, match="taken it over"):
        run_copy(copy)
    assert JobMarks(copy.connection, copy.group).read() == other


def test_a_replay_that_is_stopped_in_a_pause_writes_nothing_before_its_time(broker, topic):
    copy, _, state = job_of(broker, topic, cuts=lambda window: [Cut(10**9, window.end, 500)])
    report = run_copy(copy, should_stop=iter([False, False, True]).__next__)
    assert (report.is_done, report.chunks, report.pauses_cut) == (False, 0, 0)
    assert JobMarks(copy.connection, copy.group).read() == state


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT key, max(value) AS value FROM records GROUP BY key",
        "SELECT * FROM records ORDER BY value",
        "SELECT *, row_number() OVER (PARTITION BY key ORDER BY offset) AS n FROM records",
        "SELECT key FROM records",
    ],
)
def test_sql_that_loses_the_order_or_the_value_is_refused(broker, topic, target, spark, read, sql):
    publish(broker, topic, 10)
    with pytest.raises(OptionInvalid, match=r"(order of keys|without a value)"):
        run_replay(ReplayConfig(Connection(broker), topic, target, sql=sql), spark=spark)
    assert read(target).count() == 0


def test_a_replay_at_twice_the_speed_takes_half_the_time(broker, topic, target, spark, read):
    publish(broker, topic, 240, swapped={50, 51, 180})
    config = ReplayConfig(Connection(broker), topic, target, speed=2.0, times="now")
    begun = time.monotonic()
    report = run_replay(config, spark=spark)
    # 24 s of records: the last slice of 4 s is due after 10 s.
    assert time.monotonic() - begun >= 10
    assert (report.written, report.is_done) == (240, True)
    rows = read(target).collect()
    for key, all_ in by_key(rows).items():
        numbers = [int(bytes(row.value)) for row in all_]
        assert numbers == sorted(numbers), key
    arrived = {int(bytes(row.value)): row.timestamp.timestamp() for row in rows}
    assert 8 <= arrived[239] - arrived[0] <= 10 + report.late_ms_max / 1000 + 5


def test_one_wrong_time_does_not_hold_up_a_replay_at_a_speed(spark):
    """Partition 0 begins in 1970, and one record of partition 1 is of 2149."""
    times = {0: [1, *range(10, 60)], 1: [*range(10, 30), 126 * 365 * 86_400, *range(31, 60)]}
    rows = [
        ("t", partition, offset, START_MS + (second * 1000 if offset or partition else -START_MS))
        for partition, seconds in times.items() for offset, second in enumerate(seconds)
    ]  # fmt: skip
    columns = "topic string, partition int, offset bigint, ms bigint"
    records = spark.createDataFrame(rows, columns)
    records = records.selectExpr("*", "timestamp_millis(ms) AS timestamp")
    window = Window({"t": {"0": 0, "1": 0}}, {"t": {"0": 51, "1": 50}}, {})
    cut = slices(records, window, 1.0, 600_000)
    due = [one.due_ms for one in cut]
    # From 1970 to 10 s after the start, in steps of 2 s.
    assert [one.pause_cut_ms for one in cut if one.pause_cut_ms] == [START_MS + 10_000 - 600_000]
    assert due == sorted(set(due))
    assert (due[0], due[1]) == (0, 600_000)
    assert due[-1] == 600_000 + 50_000 - 2_000, "then at the pace of the others"
    assert cut[-1].end == window.end
    assert all(late - early == 2_000 for early, late in itertools.pairwise(due[1:]))
    reached = {one.due_ms: one.end["t"] for one in cut}
    assert reached[600_000 + 20_000]["1"] in range(20, 24)


CHILD = """
import sys
from headrace.pipeline.jobs.replay import ReplayConfig, run_replay
from headrace.pipeline.jobs.windows import Connection
from headrace.pipeline.session import SessionConfig, make_session
broker, topic, target = sys.argv[1:]
spark = make_session(SessionConfig("local[2]", memory_mb=512, short_run=True))
config = ReplayConfig(Connection(broker), topic, target, job=target, chunk_records=400)
run_replay(config, spark=spark, on_chunk=lambda chunk: print(chunk.left, flush=True))
"""


def test_a_replay_killed_in_the_middle_is_completed_without_a_duplicate(
    broker, topic, target, spark, read
):
    """Killed while a chunk is being written; the restart has another chunk size."""
    publish(broker, topic, 3_000)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, broker, topic, target], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(2):
        assert child.stdout.readline()
    time.sleep(0.8)
    child.kill()
    child.wait()
    child.stdout.close()
    before = read(target).count()
    assert 0 < before < 3_000
    config = ReplayConfig(Connection(broker), topic, target, job=target, chunk_records=1_000)
    report = run_replay(config, spark=spark)
    assert report.resumed
    rows = read(target).collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(3_000))
    for key, all_ in by_key(rows).items():
        numbers = [int(bytes(row.value)) for row in all_]
        assert numbers == sorted(numbers), key
