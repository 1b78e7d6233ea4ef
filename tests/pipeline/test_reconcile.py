"""Reconciling finds what was planted, and only that."""

import time
from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.waiting import wait_until

from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile

HEADERS = [("a", b"1"), ("a", b"2"), ("bc", b"d"), ("none", None), ("empty", b"")]


def key_and_value(key, value):
    return lambda row: row | {"key": key, "value": value}


def headers(change):
    return lambda row: row | {"headers": change([dict(each) for each in row["headers"]])}


def header(index, **fields):
    return headers(lambda all_: [*all_[:index], all_[index] | fields, *all_[index + 1 :]])


def later(**amount):
    return lambda row: row | {"timestamp": row["timestamp"] + timedelta(**amount)}


# (key, value) as published, what becomes of the row in the table, the columns that then differ
MUTATIONS = [
    ((b"k", None), key_and_value(None, b"k"), ("key", "value")),
    ((None, b"v"), key_and_value(b"v", None), ("key", "value")),
    ((b"ab", b"c"), key_and_value(b"a", b"bc"), ("key", "value")),
    ((b"k", b"v"), key_and_value(b"v", b"k"), ("key", "value")),
    ((b"", b"v"), key_and_value(None, b"v"), ("key",)),
    ((None, b"v"), key_and_value(b"", b"v"), ("key",)),
    ((b"k", b"v"), key_and_value(b"K", b"v"), ("key",)),
    ((b"k", b""), key_and_value(b"k", None), ("value",)),
    ((b"k", None), key_and_value(b"k", b""), ("value",)),
    ((b"k", b"v"), key_and_value(b"k", b"v\0"), ("value",)),
    ((b"k", b"v"), lambda row: row | {"headers": None}, ("headers",)),
    ((b"k", b"v"), headers(lambda all_: []), ("headers",)),
    ((b"k", b"v"), headers(lambda all_: all_[:-1]), ("headers",)),
    ((b"k", b"v"), headers(lambda all_: all_[1:]), ("headers",)),
    ((b"k", b"v"), headers(lambda all_: [all_[1], all_[0], *all_[2:]]), ("headers",)),
    ((b"k", b"v"), headers(lambda all_: [*all_, all_[-1]]), ("headers",)),
    ((b"k", b"v"), header(0, key="b"), ("headers",)),
    ((b"k", b"v"), header(0, value=b"3"), ("headers",)),
    ((b"k", b"v"), header(2, key="b", value=b"cd"), ("headers",)),
    ((b"k", b"v"), header(3, value=b""), ("headers",)),
    ((b"k", b"v"), header(4, value=None), ("headers",)),
    ((b"k", b"v"), later(milliseconds=1), ("timestamp",)),
    ((b"k", b"v"), later(microseconds=1), ("timestamp",)),
    ((b"k", b"v"), lambda row: row | {"timestamp": None}, ("timestamp",)),
    ((b"k", b"v"), lambda row: row | {"timestampType": 1}, ("timestampType",)),
    ((b"k", b"v"), lambda row: row | {"timestampType": None}, ("timestampType",)),
]


def test_every_field_that_changes_in_the_table_is_found(broker, topic, warehouse, table, spark):
    producer = Producer({"bootstrap.servers": broker})
    for number, ((key, value), _, _) in enumerate(MUTATIONS):
        place = number % 3
        producer.produce(topic, value, key, place, headers=HEADERS, timestamp=1_700_000_000_000)
        producer.produce(topic, b"as published", None, place, headers=HEADERS)
    assert producer.flush(60) == 0
    run_archive(ArchiveConfig(broker, topic, warehouse.folder, table), spark=spark)
    frame = spark.table(f"headrace.{table}")
    rows = {(row.partition, row.offset): row.asDict(recursive=True) for row in frame.collect()}
    expected = {}
    for number, (_, change, columns) in enumerate(MUTATIONS):
        place = (number % 3, 2 * (number // 3))
        rows[place] = change(rows[place])
        expected[place] = columns
    changed = spark.createDataFrame(list(rows.values()), frame.schema)
    changed.coalesce(1).writeTo(f"headrace.{table}").overwritePartitions()
    report = run_reconcile(ReconcileConfig(broker, topic, table), spark=spark)
    assert {
        (proof.partition, each.offset): each.columns
        for proof in report.partitions
        for each in proof.differing
    } == expected
    assert sum(proof.differing_count for proof in report.partitions) == len(MUTATIONS)
    assert len(report.problems) == 3


def test_a_record_at_another_place_is_found(archived, spark, topic):
    table = f"headrace.{archived.table}"
    spark.sql(f"UPDATE {table} SET partition = 2 WHERE partition = 1 AND offset = 7")
    spark.sql(f"UPDATE {table} SET offset = 700 WHERE partition = 0 AND offset = 9")
    spark.sql(f"UPDATE {table} SET topic = 'other' WHERE partition = 0 AND offset = 10")
    assert run_reconcile(archived, spark=spark).problems == [
        f"{topic}-0: 2 missing in the table (offsets 9, 10)",
        f"{topic}-0: 1 in the table at or after the log's end 100: the log was truncated, or"
        " another writer added them",
        f"{topic}-1: 1 missing in the table (offsets 7)",
        f"{topic}-2: 1 archived twice",
        f"{topic}-2: 1 differ from the log (offset 7: key, value)",
        "1 rows of topic other, which no archive has recorded",
    ]


@pytest.fixture
def archived(broker, topic, warehouse, table, spark, send):
    send(topic, 300, timestamp=1_700_000_000_000)
    run_archive(ArchiveConfig(broker, topic, warehouse.folder, table), spark=spark)
    return ReconcileConfig(broker, topic, table, published=dict.fromkeys(range(3), 100))


def test_an_archive_that_matches_the_log_has_no_problems(archived, spark):
    report = run_reconcile(archived, spark=spark)
    assert report.is_exact
    assert (report.stored_count, report.archived_count, report.watermark_count) == (300, 300, 300)
    assert [(each.archived.first, each.archived.last) for each in report.partitions] == [
        (0, 99)
    ] * 3


def test_a_compacted_topic_is_exact_if_each_missing_record_was_superseded(
    spark, warehouse, table, broker, topic, send, contents
):
    """The table holds 400 records of 10 keys, of which the log then drops most."""
    name = f"{topic}-compacted"
    create_topic(broker, name, 1, {"segment.bytes": "8000", "min.cleanable.dirty.ratio": "0.01"})
    for first in range(0, 400, 40):
        send(name, 40, first=first, value=b"value".ljust(60), partitions=1)
    run_archive(ArchiveConfig(broker, name, warehouse.folder, table), spark=spark)
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker})
    admin.incremental_alter_configs([resource])[resource].result(30)
    wait_until(lambda: len(contents(name)) < 300, timeout_s=90)
    time.sleep(1)  # the round that has begun ends
    config = ReconcileConfig(broker, name, table)
    report = run_reconcile(config, spark=spark)
    assert report.problems == []
    assert report.stored_count == report.archived_count < 300
    assert report.not_covered == (
        f"{name}-0: {400 - report.stored_count} records that compaction has removed from the log",
    )
    spark.sql(f"UPDATE headrace.{table} SET key = CAST('alone' AS BINARY) WHERE offset = 0")
    assert run_reconcile(config, spark=spark).problems == [
        f"{name}-0: 1 in the table but not in the log"
    ]


def test_a_gap_and_a_duplicate_are_named(archived, spark, topic):
    table = f"headrace.{archived.table}"
    spark.sql(f"DELETE FROM {table} WHERE partition = 1 AND offset IN (7, 8)")
    spark.sql(f"INSERT INTO {table} SELECT * FROM {table} WHERE partition = 2 AND offset = 50")
    report = run_reconcile(archived, spark=spark)
    assert not report.is_exact
    assert report.problems == [
        f"{topic}-1: 2 missing in the table (offsets 7, 8)",
        f"{topic}-2: 1 archived twice",
    ]


def test_other_bytes_and_rows_from_nowhere_are_named(archived, spark, topic):
    table = f"headrace.{archived.table}"
    spark.sql(
        f"UPDATE {table} SET value = CAST('forged' AS BINARY) WHERE partition = 0 AND offset = 3"
    )
    spark.sql(f"DELETE FROM {table} WHERE partition = 1 AND offset = 99")
    short = replace(archived, published={0: 100, 1: 101, 2: 100})
    assert run_reconcile(short, spark=spark).problems == [
        f"{topic}-0: 1 differ from the log (offset 3: value)",
        f"{topic}-1: published 101, stored 100",
        f"{topic}-1: 1 missing in the table (offsets 99)",
    ]
