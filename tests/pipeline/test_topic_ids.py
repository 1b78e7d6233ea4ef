"""A topic that is deleted and recreated is not taken for the former one."""

import re

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import OptionInvalid, TopicRecreated
from headrace.pipeline.fetch import read_range
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
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
