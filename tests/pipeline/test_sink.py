"""Writing topics: every row once, over crashes, replays and other cuts; and nothing changed."""

from collections import Counter

import pytest
from pyspark.errors import PySparkException

from headrace.pipeline.delivery import TaskDelivery, commit_batch
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import DeliveryInDoubt, RecordRefused, RowsChanged
from headrace.pipeline.options import SinkOptions
from headrace.pipeline.target import KafkaTopics
from headrace.pipeline.written import RowToWrite, WriteIdentity


@pytest.fixture
def run(broker):
    """One run of a batch: tasks write their values; those in `dying` die before they report."""

    def execute(topic, name, *tasks, batch=0, dying=(), commits=True):
        options = SinkOptions({"bootstrap.servers": broker})
        reports = []
        for number, values in enumerate(tasks):
            with KafkaTopics(options) as topics:
                identity = WriteIdentity(f"query-of-{topic}", batch, name, number)
                delivery = TaskDelivery(topics, identity)
                for value in values:
                    delivery.send([RowToWrite(topic, -1, value[:5], value, (), 0)])
                topics.flush()
                if number not in dying:
                    reports.append(delivery.finish())
        if not dying and commits:
            with KafkaTopics(options) as topics:
                commit_batch(topics, reports)
        return sum(report.written_count for report in reports)

    return execute


@pytest.fixture
def add_partitions(broker):
    def add(topic, count):
        from confluent_kafka.admin import AdminClient, NewPartitions

        admin = AdminClient({"bootstrap.servers": broker})
        admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)

    return add


@pytest.fixture
def values_of(contents):
    return lambda topic: Counter(value for *_, value in contents(topic))


def numbered(count, first=0):
    return [b"%05d-value" % number for number in range(first, first + count)]


def test_a_batch_that_died_half_way_is_completed_and_not_repeated(run, values_of, topic):
    run(topic, "a", numbered(400), dying=(0,))
    assert run(topic, "b", numbered(1_000)) == 600
    assert run(topic, "c", numbered(1_000)) == 0
    assert values_of(topic) == Counter(numbered(1_000))


def test_a_replay_in_other_tasks_writes_what_is_missing_and_nothing_twice(run, values_of, topic):
    equal = [b"same-value"] * 3
    run(topic, "a", numbered(300) + equal[:2], numbered(100, first=300), dying=(1,))
    assert run(topic, "b", numbered(150) + equal[:1], numbered(450, 150) + equal[1:]) == 200
    assert run(topic, "c", numbered(600) + equal) == 0
    assert run(topic, "d", numbered(50, first=700), batch=1) == 50
    assert values_of(topic) == Counter(numbered(600) + equal + numbered(50, first=700))


def test_partitions_added_before_the_commit_repeat_nothing(run, values_of, topic, add_partitions):
    run(topic, "a", numbered(200), commits=False)
    add_partitions(topic, 5)
    assert run(topic, "b", numbered(100), numbered(100, first=100)) == 0
    add_partitions(topic, 7)
    assert run(topic, "c", numbered(200)) == 0
    assert values_of(topic) == Counter(numbered(200))


def test_a_replay_with_other_rows_fails_and_is_not_committed(run, values_of, topic):
    run(topic, "a", numbered(10), dying=(0,))
    with pytest.raises(RowsChanged, match="not among its rows"):
        run(topic, "b", numbered(4))
    run(topic, "c", numbered(10))
    with pytest.raises(RowsChanged, match="now it has 4 rows"):
        run(topic, "d", numbered(4))
    assert values_of(topic) == Counter(numbered(10))


def test_a_checkpoint_older_than_the_topic_is_refused(run, topic):
    run(topic, "a", numbered(10), batch=7)
    with pytest.raises(DeliveryInDoubt, match=r"replays batch 6.*has already begun batch 7"):
        run(topic, "b", numbered(10), batch=6)


def test_a_record_the_client_refuses_is_an_error_that_names_the_setting(run, topic):
    with pytest.raises(RecordRefused, match=r"kafka\.message\.max\.bytes"):
        run(topic, "a", [b"x" * 3_000_000])


@pytest.mark.parametrize("at_least_once", [False, True])
def test_batches_are_no_larger_than_each_topic_takes(broker, topic, at_least_once):
    """Of two topics in one task, and although the client may send batches of 1 MB."""
    small, smaller = f"{topic}-small", f"{topic}-smaller"
    create_topic(broker, small, 1, {"max.message.bytes": "300000"})
    create_topic(broker, smaller, 1, {"max.message.bytes": "20000"})
    values = [b"%05d" % number + b"x" * 2_000 for number in range(600)]
    with KafkaTopics(SinkOptions({"bootstrap.servers": broker, "linger.ms": "200"})) as topics:
        identity = WriteIdentity(f"query-of-{topic}", 0, "a", 0)
        delivery = TaskDelivery(topics, identity, at_least_once=at_least_once)
        for name in (small, topic, smaller):
            for value in values:
                delivery.send([RowToWrite(name, -1, value[:5], value, (), 0)])
        assert delivery.finish().written_count == 1_800
        for name in (small, topic, smaller):
            found = Counter(
                record.value
                for number, (start, end) in topics.bounds(name).items()
                for record in topics.records(name, number, start, end)
            )
            assert found == Counter(values)


def test_a_frame_becomes_records(spark, read, broker, topic):
    frame = spark.sql(
        f"""SELECT '{topic}' AS topic, 2 AS partition, CAST(id AS STRING) AS key, 'v' AS value,
               array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers,
               timestamp_millis(1700000000000 + id) AS timestamp FROM range(5)"""
    ).coalesce(1)
    writing = frame.write.format("headrace").mode("append").option("bootstrap.servers", broker)
    writing.option("writeId", f"load-{topic}").save()
    writing.option("writeId", f"load-{topic}").save()  # the same load once more
    other = frame.limit(3).write.format("headrace").mode("append")
    other = other.option("bootstrap.servers", broker).option("writeId", f"load-{topic}")
    with pytest.raises(PySparkException, match="RowsChanged"):
        other.save()
    rows = read(topic).orderBy("offset").collect()
    assert [(row.partition, bytes(row.key)) for row in rows] == [
        (2, b"%d" % number) for number in range(5)
    ]
    assert [row.timestamp.timestamp() for row in rows][:2] == [1_700_000_000.0, 1_700_000_000.001]
    assert [header.key for header in rows[0].headers] == ["h", "headrace-written"]


@pytest.fixture
def stream(spark, broker, tmp_path):
    """Run a query from topic to topic, on one checkpoint, until all is written."""

    def execute(source, target, **cuts):
        query = (
            spark.readStream.format("headrace")
            .option("bootstrap.servers", broker)
            .option("subscribe", source)
            .option("maxOffsetsPerTrigger", "300")
            .option("pinEnd", "true")
            .options(**cuts)
            .load()
            .select("key", "value")
            .writeStream.format("headrace")
            .option("bootstrap.servers", broker)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    return execute


@pytest.fixture
def forget_commit(tmp_path):
    """The crash between the end of the sink and Spark's own commit of a batch."""

    def forget(batch):
        for name in (f"{batch}", f".{batch}.crc"):
            (tmp_path / "commits" / name).unlink()

    return forget


def test_a_replayed_micro_batch_is_exact_in_other_cuts_and_after_new_partitions(
    stream, forget_commit, add_partitions, broker, send, values_of, topic
):
    target = f"{topic}-out"
    create_topic(broker, target, 2, {})
    send(topic, 600)
    stream(topic, target, maxRecordsPerTask="20")
    forget_commit(1)
    stream(topic, target, maxRecordsPerTask="90")
    forget_commit(1)
    add_partitions(target, 4)
    stream(topic, target, minPartitions="7")
    send(topic, 300, first=600)
    stream(topic, target)
    assert values_of(target) == Counter(b"value-%d" % number for number in range(900))


def test_overwrite_is_refused(spark, broker, topic):
    frame = spark.sql("SELECT 'v' AS value")
    writing = frame.write.format("headrace").mode("overwrite").option("topic", topic)
    with pytest.raises(PySparkException, match="a topic is append-only"):
        writing.option("bootstrap.servers", broker).save()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("1 AS id", "needs the column value"),
        ("1 AS value", "value has type int, but a record needs binary or string"),
        ("'v' AS value, 2L AS partition", "partition has type bigint"),
        ("'v' AS value, 5 AS timestamp", "timestamp has type int"),
        ("'v' AS value, map('a', 'b') AS headers", "headers has type map"),
    ],
)
def test_columns_are_checked_before_a_task_runs(spark, broker, columns, message):
    frame = spark.sql(f"SELECT {columns}, assert_true(false, 'a task ran') IS NULL AS key")
    frame = frame.selectExpr("*").withColumn("key", frame.key.cast("string"))
    writing = frame.write.format("headrace").mode("append").option("bootstrap.servers", broker)
    with pytest.raises(PySparkException, match=message):
        writing.option("topic", "t").save()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("timestamp_millis(0) AS timestamp", "timestamp before 1970-01-01 00:00:00.001"),
        ("array(named_struct('key', CAST(NULL AS STRING), 'value', X'00')) AS headers", "null key"),
    ],
)
def test_a_row_that_a_record_cannot_hold_is_refused(
    spark, broker, contents, topic, column, message
):
    frame = spark.sql(f"SELECT 'v' AS value, {column}")
    writing = frame.write.format("headrace").mode("append").option("bootstrap.servers", broker)
    with pytest.raises(PySparkException, match=message):
        writing.option("topic", topic).save()
    assert contents(topic) == []
