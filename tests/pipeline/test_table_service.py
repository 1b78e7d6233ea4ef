"""Topics that are tables by their settings: one service, killed and started anywhere."""

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from threading import Event

import pytest
from confluent_kafka import Producer
from tests.pipeline.process_trees import kill_tree
from tests.waiting import wait_until

from headrace.pipeline.catalog import TableName, load_table_or_none, open_catalog
from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile
from headrace.pipeline.jobs.table_settings import TableSetting
from headrace.pipeline.jobs.tables import ALL_TOPICS, TablesConfig, serve_tables

SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
WIDER = {**SCHEMA, "properties": {"note": {"type": "string"}, **SCHEMA["properties"]}}

START_S = 400
"""Bounds a hang: a service starts Spark, which on a busy machine takes minutes."""


def headrace(broker, *arguments):
    command = [sys.executable, "-m", "headrace", "--bootstrap", broker, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@contextmanager
def service(broker, warehouse, log):
    """Killed at the end, with all of its processes."""
    command = [sys.executable, "-m", "headrace", "--bootstrap", broker, "pipeline", "tables"]
    command += ["--warehouse", str(warehouse.folder), "--master", "local[2]"]
    with (
        open(log, "a") as out,
        subprocess.Popen(command, stdout=out, stderr=out) as process,
    ):
        try:
            yield process
        finally:
            kill_tree(process)


def status(broker, warehouse, *topics):
    place = ("--warehouse", str(warehouse.folder))
    return json.loads(headrace(broker, "table", "status", *topics, *place, "--json"))


def pending(broker, warehouse, *topics):
    found = status(broker, warehouse, *topics)
    return [(row["topic"], row["pending"], row["problem"]) for row in found]


@pytest.mark.timeout(1_800)
def test_the_service_fills_tables_that_settings_name_and_survives_kills(
    broker, topic, send, spark, warehouse, tmp_path
):
    kept = f"{topic}-latest"
    create_topic(broker, kept, 2, {"cleanup.policy": "compact"})
    send(topic, 3_000)
    for name, mode in ((topic, "append"), (kept, "upsert")):
        headrace(broker, "table", "enable", name, "--mode", mode)
    assert pending(broker, warehouse, topic) == [(topic, 3_000, "no table yet")]
    model, random, producer = {}, Random(5), Producer({"bootstrap.servers": broker})
    log = tmp_path / "log"

    def publish(count):
        for number in range(count):
            key, partition = b"k%d" % random.randrange(30), random.randrange(2)
            value = None if random.random() < 0.3 else b"%d" % number
            producer.produce(kept, value, key, partition)
            model[partition, key] = value
        assert producer.flush(60) == 0

    publish(400)
    for first in (3_000, 6_000):  # killed as soon as a round is done
        with service(broker, warehouse, log):
            wait_until(lambda: pending(broker, warehouse, topic)[0][1] < 3_000, timeout_s=START_S)
        send(topic, 3_000, first=first)
        publish(200)
    names = [(topic, 0, None), (kept, 0, None)]
    with service(broker, warehouse, log):
        wait_until(lambda: pending(broker, warehouse, topic, kept) == names, timeout_s=START_S)
        begun = time.monotonic()
        send(topic, 3, first=9_000)
        wait_until(lambda: pending(broker, warehouse, topic) == names[:1], timeout_s=120)
        waited_s = time.monotonic() - begun
        print(f"lag of a quiet topic: {waited_s:.1f} s")
        # Of the last commit, which took at least one of the three.
        assert 0 < status(broker, warehouse, topic)[0]["lag_s"] < waited_s + 60
    table = TableName.of_topic(topic)
    proof = run_reconcile(ReconcileConfig(broker, topic, table.in_spark), spark=spark)
    assert proof.problems == []
    assert proof.archived_count == 9_003
    fields = open_catalog(warehouse).load_table(table.in_catalog)
    assert [str(each.transform) for each in fields.spec().fields] == ["identity", "identity", "day"]
    assert fields.scan().to_arrow().num_rows == 9_003
    rows = spark.table(TableName.of_topic(kept).in_spark).collect()
    found = {(row.partition, bytes(row.key)): bytes(row.value) for row in rows}
    assert len(rows) == len(found)
    assert found == {key: value for key, value in model.items() if value is not None}
    headrace(broker, "table", "disable", topic)
    assert status(broker, warehouse, topic)[0]["mode"] == "none"


def test_a_service_that_is_started_before_the_brokers_says_so_and_waits(tmp_path):
    said, is_done = [], Event()
    config = TablesConfig("127.0.0.1:1", str(tmp_path), discover_ms=200)
    with ThreadPoolExecutor() as threads:
        serving = threads.submit(
            serve_tables,
            config,
            spark=None,
            on_failure=lambda *failure: said.append(failure),
            should_stop=is_done.is_set,
        )
        try:
            wait_until(lambda: said or serving.done(), START_S)
            assert [topic for topic, _ in said] == [ALL_TOPICS]
            assert "Check that the broker is up" in said[0][1]
            assert not serving.done()
        finally:
            is_done.set()
        serving.result(START_S)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_typed_columns_grow_with_the_schema_and_what_is_none_is_in_the_side_table(
    broker, topic, spark, warehouse, tmp_path, mode
):
    producer = Producer({"bootstrap.servers": broker})
    config = TablesConfig(broker, str(warehouse.folder)).archive_of(topic, TableSetting(mode))
    place = TableName.parse(config.table)
    for number, schema in enumerate((SCHEMA, WIDER, SCHEMA)):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(schema))
        for key, value in enumerate((b'{"id":%d,"note":"n"}' % number, b"nonsense%d" % number)):
            producer.produce(topic, value, b"%d-%d" % (number, key), partition=0)
        assert producer.flush(30) == 0
        values = {"valueFormat": "json", "valueSchemaFile": str(path)}
        once = ArchiveConfig(
            broker, topic, warehouse.folder, config.table,
            mode=config.mode, values=values, is_daily=True,
        )  # fmt: skip
        assert run_archive(once, spark=spark).record_count == 2
        assert run_archive(once, spark=spark).record_count == 0
    rows = spark.table(place.in_spark).orderBy("offset").collect()
    assert [(row.offset, row.value.id, row.value.note) for row in rows] == [
        (0, 0, None), (2, 1, "n"), (4, 2, None),
    ]  # fmt: skip
    side = place._replace(namespace="headrace_undecodable")
    bad = load_table_or_none(open_catalog(warehouse), side).scan().to_arrow().to_pylist()
    assert sorted((row["offset"], row["value"]) for row in bad) == [
        (1, b"nonsense0"), (3, b"nonsense1"), (5, b"nonsense2"),
    ]  # fmt: skip
    assert all("not valid JSON" in row["reason"] for row in bad)
