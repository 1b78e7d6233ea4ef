"""The archive: exact over kills, and never two writers."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from tests.pipeline.process_trees import kill_tree
from tests.waiting import wait_until

from headrace.pipeline.catalog import ADDED_COLUMNS, TableName, lease, open_catalog, read_progress
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.errors import LeaseHeld, RecordsLost, TableMoved
from headrace.pipeline.jobs.archive import ArchiveConfig, _Archive, run_archive
from headrace.pipeline.jobs.maintain import MaintainConfig, run_maintain
from headrace.pipeline.jobs.pacing import UNKNOWN_RECORD_BYTES
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile
from headrace.pipeline.proof import prove as reconcile_alone


@pytest.fixture
def config(broker, topic, warehouse, table):
    return ArchiveConfig(broker, topic, warehouse.folder, table, round_records_max=400)


def prove(config, spark):
    report = run_reconcile(
        ReconcileConfig(config.bootstrap, config.topic, config.table), spark=spark
    )
    assert report.problems == []
    return report.archived_count


def traced(broker_process, topic):
    """What the broker says of the tables that the first record is in."""
    place = f"http://{broker_process.http}/v1/topics/{topic}/trace?partition=0&offset=0"
    with urllib.request.urlopen(place, timeout=60) as answer:
        events = json.load(answer)["events"]
    return [
        (one["table"], int(one["snapshot_or_earlier"])) for one in events
        if one["event"] == "in_table"
    ]  # fmt: skip


def test_rounds_are_commits_and_a_second_run_has_nothing_to_do(
    config, spark, send, topic, broker_process, warehouse, caplog
):
    send(topic, 1_000, headers=[("h", b"x")])
    rounds = []
    report = run_archive(config, spark=spark, on_round=rounds.append)
    assert (report.record_count, report.round_count) == (1_000, 3)
    assert [each.remaining for each in rounds] == [601, 202, 0]
    table = TableName.parse(config.table)
    group, brokers = f"headrace-table.{table.in_spark}", {"bootstrap.servers": config.bootstrap}
    committed = ClusterClient(brokers).committed_of
    assert committed(frozenset({group})) == {group: report.offsets}
    snapshot = read_progress(open_catalog(warehouse).load_table(table.in_catalog)).snapshot_id
    assert traced(broker_process, topic) == [(table.in_spark, snapshot)]
    assert run_archive(config, spark=spark).round_count == 0
    send(topic, 30, first=1_000)
    member = {"enable.auto.commit": False, "session.timeout.ms": 300_000}
    member |= {"max.poll.interval.ms": 1_800_000, "group.id": group}
    consumer = Consumer(brokers | member)  # then the archive's commits are refused
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.2) or consumer.assignment(), timeout_s=120)
    assert run_archive(config, spark=spark).record_count == 30
    consumer.close()
    assert "its offsets were not committed" in caplog.text
    assert f"End the consumers of the group {group}" in caplog.text
    assert "acl add" not in caplog.text
    assert traced(broker_process, topic) == [(table.in_spark, snapshot)]
    assert prove(config, spark) == 1_030
    row = spark.table(f"headrace.{config.table}").where("partition = 0 AND offset = 0").first()
    assert (bytes(row.value), row.headers[0].key, row.topic) == (b"value-0", "h", topic)


@pytest.mark.timeout(1_500)
def test_killed_again_and_again_it_goes_on_without_gap_or_duplicate(config, spark, send, topic):
    send(topic, 30_000)
    child = Path(__file__).parent / "archive_child.py"
    command = [sys.executable, child, config.bootstrap, topic, str(config.warehouse), config.table]
    files = f"**/{config.table.partition('.')[2]}/data/**/*.parquet"
    # One dies within its first round, one between commits, one in the middle of a commit.
    for lines, delay_s in ((0, 0.0), (1, 0.3), (2, 0.0)):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            if lines == 0:
                # Spark takes minutes to start where five processes share two slow cores.
                wait_until(
                    lambda: process.poll() is not None or any(config.warehouse.glob(files)),
                    timeout_s=400,
                )
                assert process.poll() is None
            for _ in range(lines):
                assert process.stdout.readline()
            time.sleep(delay_s)
            kill_tree(process)
    archived = spark.table(f"headrace.{config.table}").count()
    assert 9_000 <= archived < 30_000
    report = run_archive(
        ArchiveConfig(config.bootstrap, topic, config.warehouse, config.table), spark=spark
    )
    assert report.record_count == 30_000 - archived
    assert prove(config, spark) == 30_000


def test_a_job_leaves_the_session_that_the_process_has_alone(config, spark, send, topic):
    theirs = {
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.catalog.headrace.warehouse": "file:///of/another",
    }
    before = {name: spark.conf.get(name) for name in theirs}
    for name, value in theirs.items():
        spark.conf.set(name, value)
    try:
        send(topic, 6)
        assert run_archive(config).record_count == 6
        run_maintain(MaintainConfig(config.warehouse, config.table))
        reconcile = ReconcileConfig(config.bootstrap, topic, config.table)
        assert reconcile_alone(reconcile, config.warehouse, "local[2]").is_exact
        assert spark.range(3).count() == 3
        assert {name: spark.conf.get(name) for name in theirs} == theirs
        assert spark.getActiveSession() is spark
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def test_an_archive_that_is_stopped_as_it_ends_is_done(config, spark, send, topic):
    send(topic, 60)
    stops = replace(config, round_records_max=40)
    for is_done in (False, True):  # a round of 40, and the last one, of 20
        stopped = threading.Event()
        report = run_archive(
            stops, spark=spark, on_round=lambda _, at=stopped: at.set(), should_stop=stopped.is_set
        )
        assert (report.is_done, report.round_count) == (is_done, 1)


def test_of_two_writers_of_the_same_offsets_the_table_takes_one(config, spark, send, topic):
    """Beside maintenance, which is no conflict."""
    send(topic, 60)
    orphan = _Archive(config, spark)
    orphan._create_table()
    for first in (0, 60):
        progress = orphan._progress()
        end = orphan._latest()
        start, _ = orphan._start(progress, end)
        assert run_archive(config, spark=spark).record_count == 60
        with pytest.raises(TableMoved):
            orphan._commit(progress, start, end)
        send(topic, 60, first=first + 60)
    progress = orphan._progress()
    end = orphan._latest()
    compaction = MaintainConfig(
        config.warehouse, config.table, files_min=2, keep_snapshots=None, orphan_age_hours=None
    )
    assert run_maintain(compaction, spark=spark).files_rewritten == 6
    orphan._commit(progress, orphan._start(progress, end)[0], end)
    assert prove(config, spark) == 180


def test_rounds_are_appends_that_streaming_and_incremental_reads_see(config, spark, send, topic):
    send(topic, 300)
    run_archive(config, spark=spark)
    name = f"headrace.{config.table}"
    (first,) = spark.sql(f"SELECT snapshot_id FROM {name}.refs").first()
    send(topic, 900, first=300)
    run_archive(config, spark=spark)
    history = spark.sql(
        f"SELECT operation FROM {name}.snapshots s JOIN {name}.history h USING (snapshot_id)"
        " WHERE h.is_current_ancestor"
    )
    assert [row.operation for row in history.collect()] == ["append"] * 4
    later = spark.read.format("iceberg").option("start-snapshot-id", str(first)).load(name)
    assert later.count() == 900
    query = (
        spark.readStream.format("iceberg").load(name)
        .writeStream.format("memory").queryName("seen").start()
    )  # fmt: skip
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert spark.table("seen").select("partition", "offset").distinct().count() == 1_200
    assert prove(config, spark) == 1_200


def test_a_second_archive_is_turned_away_at_once(config, warehouse):
    with (
        lease(warehouse, TableName.parse(config.table)),
        pytest.raises(LeaseHeld, match="is being written by process"),
    ):
        run_archive(config, spark=None)


def test_maintenance_keeps_the_rows_and_the_place(config, spark, send, topic, warehouse):
    for first in range(0, 180, 30):
        send(topic, 30, first=first)
        run_archive(config, spark=spark)
    place = MaintainConfig(
        warehouse.folder, config.table, files_min=2, keep_snapshots=1, snapshot_age_hours=0,
        orphan_age_hours=None,
    )  # fmt: skip
    # A literal without a zone would be read as 13 hours later there.
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Honolulu")
    try:
        young = run_maintain(
            replace(place, snapshot_age_hours=1, target_file_bytes=None), spark=spark
        )
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert young.snapshots_expired == 0
    report = run_maintain(place, spark=spark)
    assert report.files_rewritten == 18
    assert report.files_added == 3
    assert report.snapshots_expired >= 6
    table = open_catalog(warehouse).load_table(TableName.parse(config.table).in_catalog)
    assert read_progress(table).offsets == {topic: {"0": 60, "1": 60, "2": 60}}
    assert run_archive(config, spark=spark).round_count == 0
    assert prove(config, spark) == 180


def test_a_continuous_archive_is_maintained_between_rounds_and_beside_them(
    config, spark, send, topic, warehouse
):
    """Without maintenance: 36 data files, and a snapshot for each round."""
    rounds, maintained, beside = [], [], []
    send(topic, 3)
    own = MaintainConfig(
        warehouse.folder, config.table, files_min=2, keep_snapshots=2, snapshot_age_hours=0,
        orphan_age_hours=None,
    )  # fmt: skip

    def on_round(done):
        rounds.append(done.record_count)
        if done.number == 3:
            beside.append(run_maintain(own, spark=spark))
        send(topic, 3, first=3 * done.number)

    tiny = replace(
        config, continuous=True, round_wait_ms=0, poll_interval_ms=1, maintain_rounds=5,
        keep_snapshots=2, snapshot_age_hours=0,
    )  # fmt: skip
    run_archive(
        tiny,
        spark=spark,
        on_round=on_round,
        on_maintenance=maintained.append,
        should_stop=lambda: len(rounds) == 12,
    )
    assert rounds == [3] * 12
    assert (len(maintained), len(beside)) == (2, 1)
    assert (beside[0].files_rewritten, beside[0].files_added) == (9, 3)
    table = open_catalog(warehouse).load_table(TableName.parse(config.table).in_catalog)
    assert len(list(table.scan().plan_files())) == 9
    assert len(table.metadata.snapshots) <= 7  # two a round, one of them staged
    assert run_archive(config, spark=spark).record_count == 3
    assert prove(config, spark) == 39


def test_a_continuous_archive_gathers_records_until_a_round_is_worth_it(config, spark, send, topic):
    send(topic, 30)
    rounds, looks = [], iter(range(100))
    gathering = replace(
        config, continuous=True, round_bytes_min=40 * UNKNOWN_RECORD_BYTES, round_wait_ms=10**9,
        poll_interval_ms=1,
    )  # fmt: skip

    def should_stop():
        if next(looks) == 5:  # 30 records were not worth a round so far
            assert rounds == []
            send(topic, 10, first=30)
        return bool(rounds)

    run_archive(gathering, spark=spark, on_round=rounds.append, should_stop=should_stop)
    assert [each.record_count for each in rounds] == [40]


def test_the_table_of_an_earlier_version_gets_the_columns_that_it_lacks(config, spark, send, topic):
    send(topic, 30)
    run_archive(config, spark=spark)
    table = f"headrace.{config.table}"
    for column in ADDED_COLUMNS:
        spark.sql(f"ALTER TABLE {table} DROP COLUMN {column}")
    compared = ReconcileConfig(config.bootstrap, topic, config.table)
    assert len(run_reconcile(compared, spark=spark).problems) == 3
    send(topic, 30, first=30)
    assert run_archive(config, spark=spark).record_count == 30
    rows = spark.table(table).collect()
    assert {(row.offset >= 10, row.timestampType) for row in rows} == {(False, None), (True, 0)}
    report = run_reconcile(compared, spark=spark)
    assert [proof.differing_count for proof in report.partitions] == [10, 10, 10]
    assert {each.columns for proof in report.partitions for each in proof.differing} == {
        ("timestampType",)
    }


def test_a_log_that_ends_before_the_table_is_not_archived_into_it(config, spark, send, topic):
    send(topic, 30)
    run_archive(config, spark=spark)
    table = f"headrace.{config.table}"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('headrace.offsets' = "
              f"'{{\"{topic}\": {{\"0\": 99}}}}')")  # fmt: skip
    with pytest.raises(RecordsLost, match="the table ends at offset 99, but the log holds 0 to 10"):
        run_archive(config, spark=spark)


def test_after_a_rollback_by_hand_no_record_is_lost_and_none_is_there_twice(
    config, spark, send, topic, warehouse
):
    """Between two looks of a continuous archive, too, whose next round has no record to write."""
    place = MaintainConfig(
        warehouse.folder, config.table, files_min=2, keep_snapshots=None, orphan_age_hours=None
    )
    catalog = open_catalog(warehouse)
    goods = []
    for first in range(0, 120, 30):
        send(topic, 30, first=first)
        run_archive(config, spark=spark)
        run_maintain(place, spark=spark)
        goods.append(
            catalog.load_table(TableName.parse(config.table).in_catalog).current_snapshot()
        )
    idle = _Archive(config, spark)
    for good, has_rows in ((goods[2], False), (goods[0], True)):
        progress = idle._progress()
        spark.sql(f"CALL headrace.system.rollback_to_snapshot("
                  f"'headrace.{config.table}', {good.snapshot_id})")  # fmt: skip
        producer = Producer({"bootstrap.servers": config.bootstrap, "transactional.id": topic})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(topic, b"one more", partition=0)
        assert producer.flush(60) == 0
        producer.commit_transaction(60) if has_rows else producer.abort_transaction(60)
        end = idle._latest()
        with pytest.raises(TableMoved):
            idle._commit(progress, idle._start(progress, end)[0], end)
        reached = run_archive(config, spark=spark).offsets[topic]
        assert prove(config, spark) == 120 + has_rows
        assert spark.table(f"headrace.{config.table}").count() == 120 + has_rows
        run_maintain(place, spark=spark)
        assert idle._progress().offsets[topic] == reached


def test_records_archived_uncommitted_wait_for_their_transaction(config, spark, topic):
    producer = Producer({"bootstrap.servers": config.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    early = replace(config, client={"isolation.level": "read_uncommitted"})
    assert run_archive(early, spark=spark).record_count == 5
    assert run_archive(config, spark=spark).record_count == 0
    producer.commit_transaction(30)
    run_archive(config, spark=spark)
    assert prove(config, spark) == 5
