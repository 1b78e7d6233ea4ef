"""Reading topics with Spark, in batches and as a stream."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceReader
from tests.waiting import wait_until

from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.options import offsets_to_json
from headrace.pipeline.planning import total
from headrace.pipeline.stream_lag import GROUP_PREFIX, StreamLag
from headrace.pipeline.streams import run_available


def test_a_topic_is_a_table(read, send, topic):
    send(topic, 7, headers=[("h", b"x"), ("n", None)], timestamp=1_700_000_000_123)
    row = read(topic).where("offset = 0 AND partition = 1").collect()[0].asDict(recursive=True)
    assert row.pop("timestamp").timestamp() == 1_700_000_000.123
    assert row == {
        "topic": topic, "partition": 1, "offset": 0, "timestampType": 0,
        "key": bytearray(b"key-1"), "value": bytearray(b"value-1"),
        "headers": [{"key": "h", "value": bytearray(b"x")}, {"key": "n", "value": None}],
        "raw": None,
    }  # fmt: skip
    assert read(topic, includeHeaders="false").where("headers IS NOT NULL").count() == 0


def test_offsets_bound_a_read_and_several_tasks_share_a_partition(read, send, topic):
    send(topic, 3_000)
    start = offsets_to_json({topic: {"0": 10, "1": -2, "2": 1_000}})
    end = offsets_to_json({topic: {"0": 900, "1": -1, "2": 1_000}})
    frame = read(topic, startingOffsets=start, endingOffsets=end, maxRecordsPerTask="250")
    assert frame.rdd.getNumPartitions() == 8
    offsets = Counter((row.partition, row.offset) for row in frame.collect())
    assert set(offsets) == {(0, n) for n in range(10, 900)} | {(1, n) for n in range(1_000)}
    assert set(offsets.values()) == {1}
    assert read(topic, minPartitions="6").rdd.getNumPartitions() == 6


def test_timestamps_bound_a_read(read, send, topic):
    for number in range(9):
        send(topic, 3, first=3 * number, timestamp=1_700_000_000_000 + number)
    frame = read(topic, startingTimestamp="1700000000003", endingTimestamp="1700000000007")
    assert sorted({row.offset for row in frame.collect()}) == [3, 4, 5, 6]
    assert frame.count() == 12
    assert read(topic, startingTimestamp="1800000000000").count() == 0


def test_a_pattern_subscribes_to_what_it_matches(read, send, broker):
    from headrace.pipeline.demo.clients import create_topic

    for name in ("pattern-a", "pattern-b", "other-pattern-a"):
        create_topic(broker, name, 1, {})
        send(name, 2, partitions=1)
    offsets = [ConsumerGroupTopicPartitions("g", [TopicPartition("pattern-a", 0, 1)])]
    admin = AdminClient({"bootstrap.servers": broker})
    admin.alter_consumer_group_offsets(offsets)["g"].result(30)
    assert "__consumer_offsets" in admin.list_topics(timeout=30).topics
    found = read(None, subscribePattern="pattern-.|__.*").select("topic").collect()
    assert Counter(row.topic for row in found) == {"pattern-a": 2, "pattern-b": 2}


def test_unknown_topics_and_offsets_beyond_the_end_are_named_in_the_error(read, send, topic):
    send(topic, 3)
    with pytest.raises(PySparkException, match="There is no topic 'never-made'"):
        read("never-made").count()
    beyond = offsets_to_json({topic: {"0": 5_000, "1": 0, "2": 0}})
    with pytest.raises(PySparkException, match=r"offset 5000 of .*ends at 1.*failOnDataLoss"):
        read(topic, endingOffsets=beyond).count()
    with pytest.raises(PySparkException, match="startingOffsets requests offset 5000"):
        read(topic, startingOffsets=beyond).count()
    assert read(topic, endingOffsets=beyond, failOnDataLoss="false").count() == 1


def test_a_stream_limits_itself_and_goes_on_from_its_checkpoint(
    spark, streamed, written, finish, send, topic, tmp_path
):
    def run(limit):
        stream = streamed(topic, maxOffsetsPerTrigger=limit, pinEnd="true")
        query = finish(written(stream.select("partition", "offset")))
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    send(topic, 900)
    assert run("300") == [300, 300, 300]
    send(topic, 100, first=900)
    for name in ("2", ".2.crc"):  # killed before batch 2 was committed
        (tmp_path / "checkpoint" / "commits" / name).unlink()
        (tmp_path / "out" / "_spark_metadata" / name).unlink()
    sizes = run("60")
    assert sizes[0] == 300
    assert sum(sizes[1:]) == 100
    assert max(sizes[1:]) <= 60
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert len(rows) == 1_000
    assert {(row.partition, row.offset) for row in rows} == {
        (number % 3, number // 3) for number in range(1_000)
    }


def test_a_first_batch_whose_records_retention_deleted_is_not_replayed_without_them(
    broker, streamed, written, finish, send, topic, tmp_path
):
    send(topic, 300)

    def run():
        finish(written(streamed(topic).select("value")))

    run()
    for name in ("0", ".0.crc"):  # the first run of batch 0 failed
        (tmp_path / "checkpoint" / "commits" / name).unlink()
        (tmp_path / "out" / "_spark_metadata" / name).unlink()
    admin = AdminClient({"bootstrap.servers": broker})
    gone = admin.delete_records([TopicPartition(topic, 1, 60)])
    assert [each.result(30).low_watermark for each in gone.values()] == [60]
    with pytest.raises(PySparkException, match=r"RecordsLost.*-1: offsets 0 to 100 were requested"):
        run()


def test_available_now_is_one_batch_up_to_the_end_at_its_start(
    spark, streamed, written, send, topic, tmp_path
):
    send(topic, 200)
    query = written(streamed(topic).select("value")).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert spark.read.parquet(str(tmp_path / "out")).count() == 200


def test_all_that_is_available_is_read_in_limited_batches(
    spark, broker, written, send, topic, tmp_path
):
    def write(frame):
        return written(frame.select("value"))

    def run(limit):
        stream = (
            spark.readStream.format("headrace")
            .option("bootstrap.servers", broker)
            .option("subscribe", topic)
            .option("maxOffsetsPerTrigger", limit)
        )
        query = run_available(stream, write)
        assert not query.isActive
        return [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]

    send(topic, 90)
    assert run("30") == [30, 30, 30]
    send(topic, 50, first=90)
    assert sum(run("30")) == 50
    assert run("30") == []
    assert spark.read.parquet(str(tmp_path / "out")).distinct().count() == 140


def test_what_plans_and_what_reads_imports_pyspark_from_the_environment(spark):
    """Not from Spark's zip, which would be compiled in each process anew."""

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.planned_by = pyspark.__file__

        def read(self, _partition: object) -> Iterator[tuple[str, str]]:
            yield self.planned_by, __import__("pyspark").__file__

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "imports"

        def schema(self) -> str:
            return "planned string, read string"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Source)
    row = spark.read.format("imports").load().first()
    assert row == (pyspark.__file__, pyspark.__file__)
    assert Path(pyspark.__file__).is_file()


def test_sql_finds_the_source_and_its_predicates_decide_what_is_fetched(
    spark, read, send, broker, topic
):
    """Nobody has registered it. A DataFrame that is used again has all its rows."""
    for number in range(30):
        send(topic, 3, first=3 * number, timestamp=1_700_000_000_000 + number)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW found USING headrace OPTIONS ("
        f"'bootstrap.servers' '{broker}', 'subscribe' '{topic}')"
    )
    every = spark.table("found").collect()
    assert len(every) == 90
    time = "timestamp_millis(1700000000000 + {})"
    for predicate, holds, tasks in (
        ("partition = 1", lambda row: row.partition == 1, 1),
        ("partition IN (0, 2) AND offset >= 25", lambda r: r.partition != 1 and r.offset > 24, 2),
        ("offset < 0", lambda row: False, 0),
        ("topic = 'another'", lambda row: False, 0),
        ("key = X'6B65792D37'", lambda row: row.key == b"key-7", 3),
        (
            f"timestamp >= {time.format(28)} AND timestamp < {time.format(29)}",
            lambda row: row.offset == 28,
            3,
        ),
        ("key = X'6B65792D37' OR offset = 1", lambda r: r.key == b"key-7" or r.offset == 1, 3),
        ("partition = 0 AND length(value) > 7", lambda r: r.partition == 0 and len(r.value) > 7, 1),
    ):
        assert sorted(spark.table("found").where(predicate).collect()) == sorted(
            filter(holds, every)
        ), predicate
        frame = read(topic, pushFilters="true").where(predicate)
        assert sorted(frame.collect()) == sorted(filter(holds, every)), predicate
        assert frame.rdd.getNumPartitions() == max(tasks, 1), predicate
    assert spark.table("found").count() == 90


@pytest.fixture
def in_catalog(spark):
    """The name of a table, which is dropped afterwards."""
    yield "topic_in_catalog"
    spark.sql("DROP TABLE IF EXISTS topic_in_catalog")


def test_a_topic_is_a_table_of_sparks_catalog(spark, read, send, broker, topic, in_catalog):
    send(topic, 90)
    end = offsets_to_json({topic: {"0": 20, "1": 0, "2": 0}})
    spark.sql(
        f"CREATE TABLE {in_catalog} USING headrace OPTIONS ('bootstrap.servers' '{broker}',"
        f" 'subscribe' '{topic}', 'endingOffsets' '{end}')"
    )
    table = spark.table(in_catalog)
    assert table.schema.simpleString() == read(topic).schema.simpleString()
    whole = sorted(read(topic, endingOffsets=end).collect())
    assert sorted(table.collect()) == whole
    assert len(whole) == 20
    found = spark.sql(f"SELECT key FROM {in_catalog} WHERE offset >= 15 AND partition = 0")
    assert found.count() == 5
    start = offsets_to_json({topic: {"0": 13}})
    later = f"SELECT * FROM {in_catalog} WITH ('startingOffsets' = '{start}')"
    assert sorted(spark.sql(later).collect()) == whole[13:]
    with pytest.raises(PySparkException, match=r"option bootstrap\.servers is missing"):
        table.write.format("headrace").mode("append").save()  # columns do not say where to
    with pytest.raises(PySparkException, match=r"option bootstrap\.servers is missing"):
        table.limit(1).write.insertInto(in_catalog)


def test_a_stream_reads_a_topic_by_its_table(spark, send, broker, topic, in_catalog, tmp_path):
    send(topic, 90)
    spark.sql(
        f"CREATE TABLE {in_catalog} USING headrace"
        f" OPTIONS ('bootstrap.servers' '{broker}', 'subscribe' '{topic}')"
    )
    out, checkpoint = str(tmp_path / "out"), str(tmp_path / "checkpoint")
    stream = spark.readStream.table(in_catalog).writeStream.format("parquet")
    query = stream.option("path", out).option("checkpointLocation", checkpoint).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert spark.read.parquet(out).distinct().count() == 90


@pytest.mark.parametrize("name", ["kafka.sasl.password", "schemaRegistry.password"])
def test_a_table_of_sparks_catalog_keeps_no_secret(spark, broker, topic, in_catalog, name):
    with pytest.raises(PySparkException, match="is a secret") as refused:
        spark.sql(
            f"CREATE TABLE {in_catalog} USING headrace OPTIONS ('bootstrap.servers' '{broker}',"
            f" 'subscribe' '{topic}', '{name}' 'canary-secret')"
        )
    assert "canary-secret" not in str(refused.value)
    assert not spark.catalog.tableExists(in_catalog)


def test_partitions_and_times_of_each_are_chosen_as_with_sparks_own_connector(read, send, topic):
    for number in range(9):
        send(topic, 3, first=3 * number, timestamp=1_700_000_000_000 + number)
    chosen = json.dumps({topic: [2, 0]})
    assert {row.partition for row in read(None, assign=chosen).collect()} == {0, 2}
    times = offsets_to_json({topic: {"0": 1_700_000_000_007}})
    ends = offsets_to_json({topic: {"2": 1_700_000_000_002}})
    frame = read(
        None, assign=chosen, startingOffsetsByTimestamp=times, endingOffsetsByTimestamp=ends
    )
    found = Counter((row.partition, row.offset) for row in frame.collect())
    assert set(found) == {(0, 7), (0, 8), (2, 0), (2, 1)}
    late = {"startingTimestamp": "1800000000000", "startingOffsetsByTimestampStrategy": "error"}
    with pytest.raises(PySparkException, match="has no record at or after 1800000000000 ms"):
        read(topic, **late).collect()


def test_secrets_are_in_no_plan_checkpoint_log_or_error(
    spark, read, send, broker, topic, tmp_path, spark_log
):
    send(topic, 10)
    secrets = {
        "kafka.sasl.password": "hidden-one",
        "kafka.ssl.key.password": "hidden-two",
        "kafka.ssl.key.pem": "hidden-three",
    }
    frame = read(topic, **secrets)
    plan = frame._jdf.queryExecution().toString()
    with pytest.raises(PySparkException) as refused:
        read(topic, **secrets, startingOffsets=offsets_to_json({topic: {"0": 99}})).collect()
    reader = spark.readStream.format("headrace").option("subscribe", topic)
    stream = reader.option("bootstrap.servers", broker).options(**secrets).load()
    query = (
        stream.select("key", "value").writeStream.format("headrace")
        .option("bootstrap.servers", broker).options(**secrets)
        .option("topic", f"{topic}-copy").option("delivery", "atLeastOnce")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    )  # fmt: skip
    from headrace.pipeline.demo.clients import create_topic

    create_topic(broker, f"{topic}-copy", 1, {})
    query = query.start()
    assert query.awaitTermination(120)
    progress = str(query.lastProgress and query.lastProgress.json) + str(query.explain(True))
    stored = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert any(topic.encode() in each for each in stored)
    seen = [plan, progress, str(refused.value), spark_log.read_text(), repr(frame)]
    for each in [text.encode() for text in seen] + stored:
        assert b"hidden-" not in each


SLOW_READER = r"""
import re, sys, time
from headrace.pipeline import direct, fetch
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.planning import OffsetRange
broker, topic, way, count = sys.argv[1:]
read = {"direct": direct.read_directly, "client": fetch.read_through_client}[way]
options = SourceOptions(client={"bootstrap.servers": broker})
rows = 0
for batch in read(OffsetRange(topic, 0, 0, int(count)), options):
    rows += batch.num_rows
    time.sleep(0.1)
peak = re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())  # its own, not a parent's
print(rows, int(peak[1]) >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["direct", "client"])
@pytest.mark.parametrize("where", ["keys", "headers"])
def test_memory_of_a_slow_reader_is_bounded_by_key_and_header_bytes_too(broker, topic, where, way):
    name, count, size = f"{topic}-wide", (440 if where == "keys" else 4_000), 900_000
    create_topic(broker, name, 1, {})
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    for _ in range(count):
        if where == "keys":
            producer.produce(name, None, b"k" * size, 0)
        else:
            producer.produce(name, None, None, 0, headers=[("h", b"h" * (size // 9))])
        if len(producer) > 100:
            producer.flush(60)
    assert producer.flush(120) == 0
    command = [sys.executable, "-c", SLOW_READER, broker, name, way, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    rows, peak_mib = map(int, done.stdout.split())
    assert rows == count
    assert peak_mib <= 320, "with all 400 MB in memory it would be 470"


def test_a_named_streams_lag_is_that_of_a_group(spark, broker, streamed, written, send, topic):
    seen, name = [], topic.replace("-", "_")
    listener = StreamLag({"bootstrap.servers": broker}, seen.append)
    spark.streams.addListener(listener)
    send(topic, 100)
    try:
        stream = streamed(topic, maxOffsetsPerTrigger="60", pinEnd="true")
        query = written(stream).queryName(name).start()
        try:
            query.processAllAvailable()
            wait_until(lambda: len(seen) >= 2)
        finally:
            query.stop()
    finally:
        spark.streams.removeListener(listener)
    assert [(one.query, one.batch, one.lag) for one in seen] == [
        (name, 0, 100 - seen[0].rows), (name, 1, 0),
    ]  # fmt: skip
    assert sum(one.rows for one in seen) == 100
    assert all(one.rows_per_s > 0 for one in seen)
    cluster, group = ClusterClient({"bootstrap.servers": broker}), GROUP_PREFIX + name
    reached = {topic: {"0": 34, "1": 33, "2": 33}}
    wait_until(lambda: cluster.committed_of(frozenset({group})) == {group: reached})
    send(topic, 9)
    assert total(reached, cluster.latest(reached)) == 9
