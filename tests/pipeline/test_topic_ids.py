"""A topic that is deleted and recreated is not taken for the former one."""

import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager, nullcontext

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

from headrace.pipeline.catalog import TableName
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import OptionInvalid, TopicRecreated
from headrace.pipeline.fetch import read_range
from headrace.pipeline.jobs import resend, transfer
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.backlog import (
    SAMPLE_COLUMNS,
    BacklogConfig,
    Sample,
    store_samples,
    stored_samples,
)
from headrace.pipeline.jobs.quality import Expectations, check_quality, store_violations
from headrace.pipeline.jobs.replay import ReplayConfig, plan_replay, run_replay
from headrace.pipeline.jobs.resend import ResendConfig, run_resend
from headrace.pipeline.jobs.traces import TraceConfig, group_events, store_events, stored_events
from headrace.pipeline.jobs.windows import (
    TOPIC_ID_COLUMN,
    WHOLE_LOG,
    Connection,
    read_window,
    resolve_window,
)
from headrace.pipeline.options import SourceOptions, parse_source
from headrace.pipeline.planning import OffsetRange
from headrace.pipeline.source import HeadraceReader
from headrace.pipeline.tasks import read_of_topic


@pytest.fixture
def recreate(broker, send):
    """Delete a topic, and create a longer one under its name."""

    def again(topic, count):
        admin = AdminClient({"bootstrap.servers": broker})
        admin.delete_topics([topic])[topic].result(30)
        create_topic(broker, topic, 3, {})
        send(topic, count, value=b"second")

    return again


def test_a_recreated_topic_has_another_id(broker, topic, recreate):
    cluster = ClusterClient({"bootstrap.servers": broker})
    before = cluster.subscription_of((topic,), None)
    assert before.partitions == {topic: {"0": 0, "1": 0, "2": 0}}
    assert cluster.topic_id_or_none(topic) == before.topic_ids[topic]
    assert re.fullmatch(r"[\w-]{22}", before.topic_ids[topic])
    recreate(topic, 3)
    assert cluster.subscription_of((), f"{topic}.*").topic_ids[topic] != before.topic_ids[topic]
    assert cluster.describe(["never-created", topic]).keys() == {topic}
    with pytest.raises(OptionInvalid, match="never-created"):
        cluster.subscription_of((topic, "never-created"), None)


def test_a_task_notices_that_its_topic_was_recreated_while_it_read(broker, topic, send, recreate):
    send(topic, 30)
    topic_id = ClusterClient({"bootstrap.servers": broker}).topic_id_or_none(topic)
    options = SourceOptions(client={"bootstrap.servers": broker}, batch_rows=2)
    piece = OffsetRange(topic, 0, 0, 10)
    assert (
        sum(batch.num_rows for batch in read_of_topic(piece, topic_id, options, read_range)) == 10
    )
    batches = read_of_topic(piece, topic_id, options, read_range)
    next(batches)
    recreate(topic, 60)
    with pytest.raises(TopicRecreated, match=f"its id was {topic_id} and is now"):
        list(batches)
    accepting = SourceOptions(client={"bootstrap.servers": broker}, fail_on_data_loss=False)
    assert list(read_of_topic(piece, topic_id, accepting, read_range)) == []


def test_a_read_can_insist_on_an_id(broker, topic):
    def reader(topic_id):
        options = {"topicIds": f'{{"{topic}": "{topic_id}"}}', "subscribe": topic}
        return HeadraceReader(parse_source({"bootstrap.servers": broker, **options}))

    assert (
        reader(ClusterClient({"bootstrap.servers": broker}).topic_id_or_none(topic)).partitions()
        == []
    )
    with pytest.raises(TopicRecreated, match="its id was former"):
        reader("former").partitions()


def test_a_stream_does_not_mix_two_topics(
    spark, streamed, written, finish, send, topic, recreate, tmp_path
):
    def run(**options):
        finish(written(streamed(topic, **options).select("value")))

    def second():
        rows = spark.read.parquet(str(tmp_path / "out")).collect()
        return sum(row.value.startswith(b"second") for row in rows), len(rows)

    send(topic, 30)
    run()
    recreate(topic, 60)
    with pytest.raises(PySparkException, match="was deleted and recreated: its id was"):
        run()
    assert second() == (0, 30)
    run(failOnDataLoss="false")
    assert second() == (60, 90)
    send(topic, 30, value=b"second")
    run()
    assert second() == (90, 120)


def test_an_archive_does_not_mix_two_topics(spark, broker, send, topic, recreate, warehouse, table):
    config = ArchiveConfig(broker, topic, warehouse.folder, table)
    send(topic, 30)
    run_archive(config, spark=spark)
    recreate(topic, 60)
    for fails in (True, False):
        again = ArchiveConfig(broker, topic, warehouse.folder, table, fail_on_data_loss=fails)
        with pytest.raises(TopicRecreated, match="archive into a new table"):
            run_archive(again, spark=spark)
    assert spark.table(f"headrace.{table}").count() == 30


@pytest.fixture
def target(broker, topic):
    name = f"{topic}-again"
    create_topic(broker, name, 3, {})
    return name


def values(rows):
    return Counter(bytes(row.value).partition(b"-")[0] for row in rows)


@contextmanager
def killed_once_written(module, monkeypatch):
    """Expect a job to end as if it was killed after its first write."""
    written = module.write_once

    def then_killed(*arguments):
        written(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_once", then_killed)
        with pytest.raises(KeyboardInterrupt):
            yield


def test_a_replay_copies_a_recreated_topic_also_if_it_was_killed_before(
    spark, broker, send, topic, target, recreate, read, monkeypatch
):
    config = ReplayConfig(Connection(broker), topic, target)
    send(topic, 30)
    with killed_once_written(transfer, monkeypatch):
        run_replay(config, spark=spark)
    recreate(topic, 30)  # the same offsets as before
    assert run_replay(config, spark=spark).written == 30
    assert values(read(target).collect()) == {b"value": 30, b"second": 30}


def test_a_replay_does_not_take_a_recreated_target_for_the_one_that_it_wrote(
    spark, broker, send, topic, target, recreate, read
):
    send(topic, 30)
    run_replay(ReplayConfig(Connection(broker), topic, target, chunk_records=15), spark=spark)
    recreate(target, 3)
    for act in (plan_replay, run_replay):
        with pytest.raises(TopicRecreated, match=f"{target} was deleted and recreated.*--job"):
            act(ReplayConfig(Connection(broker), topic, target), spark=spark)
    run_replay(ReplayConfig(Connection(broker), topic, target, job="again"), spark=spark)
    assert values(read(target).collect()) == {b"value": 30, b"second": 3}


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("recreated", ["source", "target"])
def test_records_are_sent_again_from_and_to_recreated_topics(
    spark, broker, send, topic, target, recreate, read, monkeypatch, recreated, is_killed
):
    config = ResendConfig(Connection(broker), target, source=topic)
    send(topic, 30)
    with killed_once_written(resend, monkeypatch) if is_killed else nullcontext():
        run_resend(config, spark=spark)
    recreate({"source": topic, "target": target}[recreated], 6)
    again = run_resend(config, spark=spark)
    assert (again.resumed, again.written) == (False, {"source": 6, "target": 30}[recreated])
    assert values(read(target).collect()) == {b"value": 30, b"second": 6}


def test_a_table_of_results_keeps_those_of_a_former_topic(
    spark, broker, send, topic, recreate, table
):
    events, violations = (TableName.parse(f"{table}_{name}") for name in ("events", "violations"))
    config, expected = TraceConfig(topic), Expectations(checks={"no": "false"})

    def run():
        window = resolve_window(Connection(broker).cluster, (topic,), WHOLE_LOG)
        records = read_window(spark, Connection(broker), window)
        done = group_events(spark, [])
        store_events(stored_events(records, config), done, events, window, spark=spark)
        report = check_quality(records, topic, expected, window, 0)
        store_violations(report, violations.in_spark, spark=spark)
        return window.topic_ids[topic]

    send(topic, 30)
    first = run()
    recreate(topic, 30)
    second = run()
    assert run() == second != first
    for one in (events, violations):
        rows = spark.table(one.in_spark).collect()
        assert Counter(row.topic_id for row in rows) == {first: 30, second: 30}


def test_samples_of_a_backlog_are_of_the_topic_that_is_there(
    spark, broker, send, topic, recreate, table
):
    """A table that an earlier version made has no ids."""
    name, connection = f"headrace.{table}", Connection(broker)
    spark.sql("CREATE NAMESPACE IF NOT EXISTS headrace.headrace")
    older = SAMPLE_COLUMNS.replace(f", {TOPIC_ID_COLUMN}", "")
    spark.sql(f"CREATE TABLE {name} ({older}) USING iceberg")

    def sample(at_ms):
        samples = (Sample(at_ms, {}, {topic: {"0": 5}}),)
        store_samples(BacklogConfig(connection, topic, "g", samples), name, spark=spark)

    sample(1)
    recreate(topic, 3)
    sample(2)
    topic_id = connection.cluster.topic_id_or_none(topic)
    for wanted, found in ((topic_id, [2]), (None, [1, 2])):
        stored = stored_samples(spark, name, "g", topic, 0, wanted)
        assert [one.at_ms for one in stored] == found


def test_a_search_shows_records_of_a_former_topic_and_says_so(
    spark, broker, broker_process, send, topic, recreate, warehouse, table
):
    config = ArchiveConfig(broker, topic, warehouse.folder, table)
    send(topic, 30)
    run_archive(config, spark=spark)
    recreate(topic, 30)
    command = [sys.executable, "-m", "headrace", "--bootstrap", broker, "find", topic, "--json"]
    command += ["--http", broker_process.http, "--master", "local[1]"]
    command += ["--warehouse", str(warehouse.folder), "--table", table]
    for wanted, count in (
        (["--key", "key-3"], 3),
        (["--where", "cast(value AS string) LIKE '%-13'"], 1),
    ):
        done = subprocess.run(
            [*command, *wanted], capture_output=True, text=True, check=False, timeout=300
        )
        assert f"holds the records of an earlier {topic}" in done.stderr
        found = json.loads(done.stdout)["messages"]
        assert Counter((one["state"], one["value"].partition("-")[0]) for one in found) == {
            ("archived", "value"): count,
            ("log", "second"): count,
        }
