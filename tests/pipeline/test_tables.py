"""A table for each topic, whatever its name, and tables that hold the latest record of each key."""

import json
from collections import Counter
from random import Random

import duckdb
import pytest
from confluent_kafka import Producer

from headrace.pipeline.catalog import (
    OFFSETS_PROPERTY,
    TableName,
    load_table,
    open_catalog,
    read_progress,
    table_of_topic,
)
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.errors import OptionInvalid, TableMoved, TableUnusable
from headrace.pipeline.jobs.archive import ArchiveConfig, _Archive, run_archive, run_archives
from headrace.pipeline.jobs.maintain import MaintainConfig, run_maintain
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile
from headrace.pipeline.publishing import Publisher
from headrace.pipeline.session import session_for


def test_each_topic_has_a_table_of_its_own_that_duckdb_and_pyiceberg_read(
    spark, broker, send, warehouse, topic
):
    names = [f"{topic}.v1", f"{topic}-9", f"{topic}_x"]
    for number, name in enumerate(names):
        create_topic(broker, name, 2, {"retention.ms": "-1"})
        send(name, 40 + number, partitions=2, headers=[("h", b"x")])
    config = ArchiveConfig(broker, ",".join(names), warehouse.folder)
    with pytest.raises(OptionInvalid, match="3 topics, and each has a table of its own"):
        run_archive(config, spark=spark)
    reports = run_archives(config, spark=spark)
    assert [report.record_count for report in reports] == [40, 41, 42]
    for number, name in enumerate(names):
        table = table_of_topic(warehouse, name)
        assert table == TableName("headrace", "headrace", name)
        rows = spark.table(table.in_spark).collect()
        assert Counter(row.topic for row in rows) == {name: 40 + number}
        proof = run_reconcile(ReconcileConfig(broker, name, table.in_spark), spark=spark)
        assert proof.is_exact, proof.problems
        scan = load_table(warehouse, table).scan()
        assert scan.to_arrow().num_rows == 40 + number
        found = scan.to_duckdb("records").execute(
            'SELECT count(*), count(DISTINCT (partition, "offset")), min(decode(value))'
            " FROM records"
        )
        assert found.fetchall() == [(40 + number, 40 + number, "value-0")]
        files = f"{warehouse.folder}/headrace/{name}/data/**/*.parquet"
        query = f"SELECT count(*), sum(len(headers)) FROM read_parquet('{files}')"
        assert duckdb.sql(query).fetchall() == [(40 + number, 40 + number)]
    again = run_maintain(MaintainConfig(warehouse.folder, table.in_spark), spark=spark)
    assert again.snapshots_expired == 0
    assert sum(report.record_count for report in run_archives(config, spark=spark)) == 0


def test_a_topic_that_is_in_the_shared_table_of_earlier_versions_stays_there(
    spark, broker, send, topic, tmp_path_factory, warehouse
):
    send(topic, 10)
    shared = ArchiveConfig(broker, topic, warehouse.folder, "headrace.archive")
    run_archive(shared, spark=spark)
    send(topic, 5, first=10)
    report = run_archive(ArchiveConfig(broker, topic, warehouse.folder), spark=spark)
    assert (report.table, report.record_count) == ("headrace.headrace.archive", 5)
    assert table_of_topic(warehouse, "another") == TableName("headrace", "headrace", "another")


def test_an_upsert_table_holds_what_a_model_of_compaction_holds(
    spark, broker, topic, warehouse, table
):
    """Puts, deletes and repeated keys in three rounds of two commits each."""
    name = f"{topic}-compacted"
    create_topic(broker, name, 2, {"cleanup.policy": "compact"})
    producer = Producer({"bootstrap.servers": broker})
    random, model, offsets = Random(topic), {}, Counter()
    config = ArchiveConfig(
        broker, name, warehouse.folder, table, mode="upsert", round_records_max=70
    )
    for _ in range(3):
        for _ in range(120):
            key, partition = b"k%d" % random.randrange(25), random.randrange(2)
            value = None if random.random() < 0.3 else b"%d" % random.randrange(10**6)
            producer.produce(name, value, key, partition)
            offset, offsets[partition] = offsets[partition], offsets[partition] + 1
            model.pop((partition, key), None)
            if value is not None:
                model[partition, key] = (offset, value)
        assert producer.flush(60) == 0
        run_archive(config, spark=spark)
        rows = spark.table(f"headrace.{table}").collect()
        found = {(row.partition, bytes(row.key)): (row.offset, bytes(row.value)) for row in rows}
        assert len(rows) == len(model)
        assert found == model
    gone = sorted(model)[:3]
    for partition, key in gone:
        producer.produce(name, None, key, partition)
    producer.produce(name, None, b"never-there", 0)
    assert producer.flush(60) == 0
    run_archive(config, spark=spark)
    assert spark.table(f"headrace.{table}").count() == len(model) - 3
    assert run_archive(config, spark=spark).record_count == 0
    scan = open_catalog(warehouse).load_table(TableName.parse(table).in_catalog).scan()
    kept = {(row["partition"], row["key"]) for row in scan.to_arrow().to_pylist()}
    assert kept == model.keys() - set(gone)
    with pytest.raises(TableUnusable, match="it is in mode upsert, and mode append was asked for"):
        run_archive(ArchiveConfig(broker, name, warehouse.folder, table), spark=spark)


def test_a_merge_that_changes_nothing_is_progress_all_the_same(
    spark, broker, topic, warehouse, table
):
    producer = Producer({"bootstrap.servers": broker})
    config = ArchiveConfig(broker, topic, warehouse.folder, table, mode="upsert")
    for _ in range(2):
        producer.produce(topic, None, b"never-there", 0)
        assert producer.flush(60) == 0
        assert run_archive(config, spark=spark).record_count == 1
    assert run_archive(config, spark=spark).record_count == 0
    assert spark.table(f"headrace.{table}").count() == 0


@pytest.mark.parametrize("kept", [[b"a"], []])
def test_a_merge_that_changes_nothing_is_no_progress_after_a_rollback(
    spark, broker, topic, warehouse, table, kept
):
    """To a table that is empty, too."""
    producer = Producer({"bootstrap.servers": broker})
    config = ArchiveConfig(broker, topic, warehouse.folder, table, mode="upsert")
    place, catalog = TableName.parse(table), open_catalog(warehouse)
    for key, value in ((b"a", b"1"), (b"a", b"2" if kept else None), (b"b", b"1")):
        producer.produce(topic, value, key, 0)
        assert producer.flush(60) == 0
        assert run_archive(config, spark=spark).record_count == 1
        if key == b"a":
            good = catalog.load_table(place.in_catalog).current_snapshot().snapshot_id
    idle = _Archive(config, spark)
    progress = idle._progress()
    spark.sql(f"CALL headrace.system.rollback_to_snapshot('headrace.{table}', {good})")
    producer.produce(topic, None, b"never-there", 0)
    assert producer.flush(60) == 0
    end = idle._latest()
    with pytest.raises(TableMoved):
        idle._commit(progress, idle._start(progress, end)[0], end)
    assert run_archive(config, spark=spark).record_count == 2
    rows = spark.table(f"headrace.{table}").collect()
    assert sorted(bytes(row.key) for row in rows) == [*kept, b"b"]


@pytest.mark.parametrize("deletes_later", [False, True])
def test_a_merge_that_was_overtaken_brings_no_deleted_key_back(
    spark, broker, topic, warehouse, table, deletes_later
):
    """One writer reads progress; another merges the key, and a tombstone, before it merges."""
    producer = Producer({"bootstrap.servers": broker})
    config = ArchiveConfig(broker, topic, warehouse.folder, table, mode="upsert")
    place = TableName.parse(table)

    def archived(key, value):
        producer.produce(topic, value, key, 0)
        assert producer.flush(60) == 0
        assert run_archive(config, spark=spark).record_count == 1

    archived(b"other", b"0")
    catalog = open_catalog(warehouse)
    progress = read_progress(catalog.load_table(place.in_catalog))
    archived(b"k", b"1")
    if deletes_later:
        archived(b"k", None)
    expected = {b"other"} if deletes_later else {b"other", b"k"}
    own = session_for(spark, warehouse)
    source = own.read.format("headrace").option("kafka.bootstrap.servers", broker)
    late = source.option("subscribe", topic).load().where("offset = 1")
    with pytest.raises(TableMoved, match="another writer changed the table"):
        Publisher(own, place, catalog).merge(
            late,
            since_snapshot_id=progress.snapshot_id,
            properties={OFFSETS_PROPERTY: json.dumps({topic: {"0": 2}})},
        )
    rows = spark.table(f"headrace.{table}").collect()
    assert {bytes(row.key) for row in rows} == expected
    assert run_archive(config, spark=spark).record_count == 0


def test_typed_values_are_columns_and_what_is_none_is_a_side_table(
    spark, read, broker, topic, warehouse, table, tmp_path
):
    schema = tmp_path / "schema.json"
    schema.write_text(
        json.dumps({"type": "object", "required": ["id"], "properties": {
            "id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}})
    )  # fmt: skip
    producer = Producer({"bootstrap.servers": broker})
    for value in (b'{"id":1,"tags":["a"]}', b"nonsense", b'{"id":2}', b'{"tags":[]}', None):
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    typed = {"valueFormat": "json", "valueSchemaFile": str(schema)}
    frame = read(topic, **typed)
    good = frame.where("undecodable IS NULL").selectExpr("offset", "value.*")
    good.writeTo(f"headrace.{table}").using("iceberg").create()
    assert [tuple(row) for row in spark.table(f"headrace.{table}").orderBy("offset").collect()] == [
        (0, 1, ["a"]), (2, 2, None), (4, None, None)
    ]  # fmt: skip
    bad = frame.where("undecodable IS NOT NULL").select("offset", "undecodable.*").collect()
    assert [(row.offset, bytes(row.value)) for row in bad] == [
        (1, b"nonsense"),
        (3, b'{"tags":[]}'),
    ]
    assert "not valid JSON" in bad[0].reason
    assert '"id" is a required property' in bad[1].reason
    create_topic(broker, f"{topic}-copy", 1, {})
    (
        frame.where("undecodable IS NULL AND value IS NOT NULL").select("key", "value")
        .write.format("headrace").option("bootstrap.servers", broker).options(**typed)
        .option("topic", f"{topic}-copy").mode("append").save()
    )  # fmt: skip
    copied = sorted(bytes(row.value) for row in read(f"{topic}-copy").collect())
    assert [json.loads(each) for each in copied] == [{"id": 1, "tags": ["a"]}, {"id": 2}]


def test_a_round_that_is_repeated_with_another_schema_leaves_no_record_out(
    spark, broker, topic, warehouse, tmp_path
):
    """Version 2 finds one of the records and keeps the other in the side table, and is no schema
    that the table follows. By version 3, none is a value."""
    lists, places = ({"type": "array", "items": {"type": "string"}}, {"type": "integer"})
    tags = [
        {"properties": {"tags": lists}},
        {"properties": {"tags": {"type": "object", "properties": {"a": places}}}},
        {"properties": {"tags": lists}, "required": ["note"]},
    ]
    configs = []
    for version, each in enumerate(tags):
        schema = tmp_path / f"{version}.json"
        schema.write_text(json.dumps({"type": "object", **each}))
        values = {"valueFormat": "json", "valueSchemaFile": str(schema)}
        configs.append(ArchiveConfig(broker, topic, warehouse, values=values))
    producer = Producer({"bootstrap.servers": broker})

    def archive(version, *values):
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0
        return run_archive(configs[version], spark=spark).record_count

    assert archive(0, b'{"tags":["a"]}') == 1
    with pytest.raises(TableUnusable, match="cannot follow the topic's schema: Not a struct"):
        archive(1, b'{"tags":{"a":1}}', b"nonsense")
    assert archive(2, b"[]") == 3
    table = spark.table(TableName.of_topic(topic).in_spark)
    assert [(row.offset, row.value.tags) for row in table.collect()] == [(0, ["a"])]
    side = spark.table(f"headrace.headrace_undecodable.`{topic}`").collect()
    assert sorted((row.offset, bytes(row.value)) for row in side) == [
        (1, b'{"tags":{"a":1}}'),
        (2, b"nonsense"),
        (3, b"[]"),
    ]
