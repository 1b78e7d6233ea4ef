"""Writing topics: every row once, over crashes and replays."""

from collections import Counter

import pytest
from pyspark.errors import PySparkException

from headrace.pipeline.delivery import IdempotentDelivery, Row, WriteIdentity
from headrace.pipeline.errors import DeliveryFailed, OptionInvalid, RowsChanged
from headrace.pipeline.options import SinkOptions


@pytest.fixture
def task(broker):
    """One attempt of a task to write; dies without a word when `dies`."""

    def attempt(topic, values, batch=0, number=0, *, dies=False):
        identity = WriteIdentity(f"query-of-{topic}", batch, number)
        delivery = IdempotentDelivery(SinkOptions({"bootstrap.servers": broker}), identity)
        try:
            for value in values:
                delivery.send(Row(topic, -1, value[:5], value, [], 0))
            if dies:
                delivery._producer.flush(60)
                return None
            return delivery.finish()
        finally:
            delivery.close()

    return attempt


def numbered(count, first=0):
    return [b"%05d-value" % number for number in range(first, first + count)]


def test_a_batch_that_died_half_way_is_completed_and_not_repeated(task, contents, topic):
    assert task(topic, numbered(400), dies=True) is None
    assert task(topic, numbered(1_000)) == 600
    assert task(topic, numbered(1_000)) == 0
    assert Counter(value for *_, value in contents(topic)) == Counter(numbered(1_000))


def test_tasks_of_one_batch_share_partitions_without_mistaking_each_other(task, contents, topic):
    task(topic, numbered(300), number=0, dies=True)
    task(topic, numbered(300, first=300), number=1, dies=True)
    assert task(topic, numbered(400, first=300), number=1) == 100
    assert task(topic, numbered(300), number=0) == 0
    assert task(topic, numbered(50, first=700), batch=1, number=0) == 50
    assert Counter(value for *_, value in contents(topic)) == Counter(numbered(750))


def test_a_replay_with_other_rows_fails_before_it_writes_anything_twice(task, contents, topic):
    task(topic, numbered(10), dies=True)
    with pytest.raises(RowsChanged, match="sortRows"):
        task(topic, numbered(10, first=1))
    with pytest.raises(RowsChanged, match="missing"):
        task(topic, numbered(4))
    assert len(contents(topic)) == 10


def test_a_record_the_broker_refuses_is_an_error(task, topic):
    with pytest.raises((DeliveryFailed, Exception), match=r"(?i)large|size"):
        task(topic, [b"x" * 3_000_000])


def test_a_frame_becomes_records(spark, read, broker, topic):
    frame = spark.sql(
        f"""SELECT '{topic}' AS topic, 2 AS partition, CAST(id AS STRING) AS key, 'v' AS value,
               array(named_struct('key', 'h', 'value', CAST('x' AS BINARY))) AS headers,
               timestamp_millis(1700000000000 + id) AS timestamp FROM range(5)"""
    ).coalesce(1)
    writing = frame.write.format("headrace").mode("append").option("bootstrap.servers", broker)
    writing.option("writeId", f"load-{topic}").save()
    writing.option("writeId", f"load-{topic}").save()  # the same load once more
    rows = read(topic).orderBy("offset").collect()
    assert [(row.partition, bytes(row.key)) for row in rows] == [
        (2, b"%d" % number) for number in range(5)
    ]
    assert [row.timestamp.timestamp() for row in rows][:2] == [1_700_000_000.0, 1_700_000_000.001]
    assert [header.key for header in rows[0].headers] == ["h", "headrace-written"]


def test_a_replayed_micro_batch_writes_nothing_twice(spark, broker, send, read, topic, tmp_path):
    from headrace.pipeline.demo.clients import create_topic

    target = f"{topic}-out"
    create_topic(broker, target, 2, {})
    send(topic, 600)

    def run():
        query = (
            spark.readStream.format("headrace")
            .option("bootstrap.servers", broker)
            .option("subscribe", topic)
            .option("maxOffsetsPerTrigger", "300")
            .option("pinEnd", "true")
            .load()
            .select("key", "value")
            .writeStream.format("headrace")
            .option("bootstrap.servers", broker)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path))
            .start()
        )
        query.processAllAvailable()
        query.stop()

    run()
    for name in ("1", ".1.crc"):  # the crash between the sink's end and Spark's own commit
        (tmp_path / "commits" / name).unlink()
    run()
    send(topic, 300, first=600)
    run()
    values = Counter(bytes(row.value) for row in read(target).select("value").collect())
    assert values == Counter(b"value-%d" % number for number in range(900))


def test_columns_are_checked_before_anything_is_written(spark, broker):
    frame = spark.range(1)
    with pytest.raises((OptionInvalid, PySparkException), match="needs the column value"):
        frame.write.format("headrace").mode("append").option("bootstrap.servers", broker).save()
