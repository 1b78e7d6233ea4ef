"""A topic's archive and its log are read as one: each record once, in the order of offsets."""

import json
import random
from collections import defaultdict
from dataclasses import replace

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import AnalysisException
from tests.pipeline.test_job_commands import headrace

from headrace.pipeline.catalog import TableName
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import OptionInvalid, RecordsLost, TableUnusable
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.history import History
from headrace.pipeline.jobs.replay import ReplayConfig, plan_replay, run_replay
from headrace.pipeline.jobs.windows import Bounds, Connection

START_MS = 1_700_000_000_000
PARTITIONS = 3


@pytest.fixture
def records(broker, topic):
    """Sends records of 7 keys; those of a key are in one partition. Keeps what was sent."""
    producer = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    sent = defaultdict(list)

    def send(count, late_ms=0):
        for _ in range(count):
            number = sum(map(len, sent.values()))
            partition = number % 7 % PARTITIONS
            at_ms = START_MS + number * 1_000 - (late_ms if number % 10 == 0 else 0)
            key, value = b"key-%d" % (number % 7), b"%d" % number
            producer.produce(topic, value, key, partition=partition, timestamp=at_ms,
                             headers=[("n", value)])  # fmt: skip
            sent[partition].append((at_ms, key, value))
        assert producer.flush(60) == 0
        return sent

    return send


@pytest.fixture
def archived(broker, topic, warehouse, spark, table):
    """Archives the topic as it is now; returns the table's name."""

    def archive(**options):
        name = table
        run_archive(ArchiveConfig(broker, topic, warehouse, name, **options), spark=spark)
        return TableName.parse(name)

    return archive


def delete_before(broker, topic, starts):
    asked = [TopicPartition(topic, partition, start) for partition, start in starts.items()]
    admin = AdminClient({"bootstrap.servers": broker})  # one that is freed answers nothing
    for done in admin.delete_records(asked).values():
        done.result(30)


def rows_of(frame):
    found = defaultdict(list)
    for row in sorted(frame.collect(), key=lambda one: (one.partition, one.offset)):
        at_ms = round(row.timestamp.timestamp() * 1000)
        found[row.partition].append((row.offset, at_ms, bytes(row.key), bytes(row.value)))
        assert [(one.key, bytes(one.value)) for one in row.headers] == [("n", bytes(row.value))]
    return found


def test_each_record_of_a_range_comes_once_from_the_table_or_the_log(
    broker, topic, records, archived, spark
):
    """Ranges by chance, against what was sent: where the log was cut differs by partition."""
    records(300, late_ms=20_000)
    name = archived()
    sent = records(200, late_ms=20_000)
    size = {partition: len(all_) for partition, all_ in sent.items()}
    archived_to = {0: 129, 1: 86, 2: 85}
    assert all(archived_to[p] <= size[p] for p in size)
    delete_before(broker, topic, {0: 60, 1: archived_to[1], 2: 1})
    history = History(spark, Connection(broker), name)
    chance = random.Random(7)
    times = [START_MS + chance.randrange(-5, 505) * 1_000 for _ in range(6)]
    ranges = [(None, None), (None, START_MS + 1_000), *zip(*[iter(sorted(times))] * 2, strict=True)]
    for since, until in ranges:
        window = history.resolve((topic,), Bounds(since_ms=since, until_ms=until))
        found = rows_of(history.read(window))
        for partition, all_ in sent.items():

            def first(bound, default, all_=all_):
                if bound is None:
                    return default
                return next((n for n, one in enumerate(all_) if one[0] >= bound), len(all_))

            start = first(since, 0)
            end = max(start, first(until, len(all_)))
            expected = [(n, *all_[n]) for n in range(start, end)]
            assert found[partition] == expected, (since, until, partition)


def test_offsets_may_begin_before_the_log_and_with_the_first_record(
    broker, topic, records, archived, spark
):
    sent = records(210)
    name = archived()
    delete_before(broker, topic, {0: 50, 1: 50, 2: 50})
    history = History(spark, Connection(broker), name)
    start = json.dumps({topic: {"0": 20, "1": -2, "2": 55}})
    found = rows_of(history.read(history.resolve((topic,), Bounds(from_offsets=start))))
    firsts = {partition: rows[0][0] for partition, rows in found.items()}
    assert firsts == {0: 20, 1: 0, 2: 55}
    assert {p: rows[-1][0] + 1 for p, rows in found.items()} == {p: len(a) for p, a in sent.items()}
    ends = dict.fromkeys(sent, 1)
    first_rows = Bounds(to_offsets=json.dumps({topic: {str(p): end for p, end in ends.items()}}))
    found = rows_of(history.read(history.resolve((topic,), first_rows)))
    assert {p: len(rows) for p, rows in found.items()} == ends


def test_a_replay_from_the_table_keeps_the_order_of_keys_and_is_continued(
    broker, topic, records, archived, spark, read
):
    """Its log has lost most of it, and it stops in the middle."""
    records(420)
    name = archived()
    sent = records(70)
    delete_before(broker, topic, {0: 100, 1: 100, 2: 100})
    target = f"{topic}-again"
    create_topic(broker, target, 2, {"retention.ms": "-1"})
    config = ReplayConfig(
        Connection(broker), topic, target, chunk_records=100, table=name,
        sql="SELECT * FROM records WHERE offset % 3 < 2",
    )  # fmt: skip
    assert plan_replay(config, spark=spark)["read"] == 490
    sorting = replace(config, sql="SELECT * FROM records ORDER BY offset")
    with pytest.raises(OptionInvalid, match="order of keys would be lost"):
        run_replay(sorting, spark=spark)
    chunks = []
    stopped = run_replay(
        config, spark=spark, on_chunk=chunks.append, should_stop=lambda: len(chunks) == 2
    )
    assert not stopped.is_done
    assert run_replay(config, spark=spark).is_done
    expected = defaultdict(list)
    for all_ in sent.values():
        for offset, (_, key, value) in enumerate(all_):
            if offset % 3 < 2:
                expected[key].append(value)
    found = defaultdict(list)
    for row in sorted(read(target).collect(), key=lambda one: (one.partition, one.offset)):
        found[bytes(row.key)].append(bytes(row.value))
    assert found == expected


def test_a_command_checks_what_only_the_table_holds(
    broker, topic, records, archived, warehouse, tmp_path
):
    sent = records(70)
    name = archived()
    delete_before(broker, topic, {partition: len(all_) for partition, all_ in sent.items()})
    expected = tmp_path / "expected.toml"
    checks = '"is small" = "cast(cast(value AS string) AS int) < 69"'
    expected.write_text(f'["{topic}"]\nrequired = ["key"]\n["{topic}".checks]\n{checks}\n')
    given = ["quality", topic, "--expect", str(expected), "--master", "local[2]", "--table"]
    refused = headrace(broker, *given, name.in_spark)
    assert (refused.returncode, "--table requires --warehouse" in refused.stderr) == (2, True)
    done = headrace(broker, *given, name.in_spark, "--warehouse", str(warehouse))
    assert "70 records checked" in done.stdout, done.stderr
    assert "violates 1 expectation" in done.stderr


def test_a_gap_between_table_and_log_is_an_error_and_not_skipped(
    broker, topic, records, archived, spark
):
    records(210)
    name = archived()
    records(210)
    delete_before(broker, topic, {0: 91, 1: 60, 2: 60})
    history = History(spark, Connection(broker), name)
    with pytest.raises(AnalysisException, match=f"{RecordsLost.__name__}.*offsets 90 to 180"):
        history.read(history.resolve((topic,), Bounds())).collect()


def test_a_table_that_does_not_hold_records_as_they_were_is_refused(
    broker, topic, records, archived, spark
):
    records(21)
    history = History(spark, Connection(broker), archived(mode="upsert"))
    with pytest.raises(TableUnusable, match="latest record of each key"):
        history.resolve((topic,), Bounds())
