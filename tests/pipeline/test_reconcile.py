"""Reconciling finds what was planted, and only that."""

from dataclasses import replace

import pytest

from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile


@pytest.fixture
def archived(broker, topic, warehouse, table, spark, send):
    send(topic, 300)
    run_archive(ArchiveConfig(broker, topic, warehouse.folder, table), spark=spark)
    return ReconcileConfig(broker, topic, table, published=dict.fromkeys(range(3), 100))


def test_what_agrees_has_no_problems(archived, spark):
    report = run_reconcile(archived, spark=spark)
    assert report.is_exact
    assert (report.stored_count, report.archived_count, report.watermark_count) == (300, 300, 300)
    assert [(each.archived.first, each.archived.last) for each in report.partitions] == [
        (0, 99)
    ] * 3


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
        f"{topic}-0: same offsets, other bytes",
        f"{topic}-1: published 101, stored 100",
        f"{topic}-1: 1 missing in the table (offsets 99)",
    ]
