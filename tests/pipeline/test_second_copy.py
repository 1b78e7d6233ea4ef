"""Old records of a topic that is a table: in the table alone, and consumers do not notice."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.integration.broker import Broker
from tests.integration.clients import TIMEOUT_S, create_topic
from tests.pipeline.test_tiered_reads import rows
from tests.waiting import wait_until

from headrace.broker.housekeeping.tabling import NOT_YET
from headrace.pipeline.catalog import TableName, load_table
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.maintain import MaintainConfig, MaintainReport, run_maintain
from headrace.pipeline.warehouse import Warehouse

COUNT = 6_000
SLOW_S = 600


def headrace(broker: Broker, *arguments: str) -> str:
    command = [sys.executable, "-m", "headrace", "--bootstrap", broker.kafka, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def produce(broker: Broker, topic: str, count: int, first: int = 0) -> list[tuple[Any, ...]]:
    """Produce records of every shape; returns them as a consumer sees them."""
    rng, sent = Random(count), []
    producer = Producer({"bootstrap.servers": broker.kafka, "batch.num.messages": 9})
    for number in range(first, first + count):
        key = rng.choice([None, b"", b"k%d" % number])
        value = rng.choice([None, b"", rng.randbytes(rng.choice([10, 900]))])
        headers = rng.choice([None, [("a", b"1"), ("a", None)]])
        time_ms = 1_700_000_000_000 + rng.randrange(10_000)
        producer.produce(topic, value, key, 0, timestamp=time_ms, headers=headers)
        sent.append((number, time_ms, key, value, headers))
        if number % 50 == 49:  # in bursts, so that ledgers are closed on the way
            assert producer.flush(TIMEOUT_S) == 0
    assert producer.flush(TIMEOUT_S) == 0
    return sent


def consume(
    broker: Broker, topic: str, offset: int, end: int, patience_s: float = TIMEOUT_S
) -> list[tuple[Any, ...]]:
    settings = {"bootstrap.servers": broker.kafka, "group.id": "g", "auto.offset.reset": "error"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[tuple[Any, ...]] = []
    while len(found) < end - offset:
        message = consumer.poll(patience_s)
        assert message is not None, f"{len(found)} records"
        assert message.error() is None, message.error()
        own = message.offset(), message.timestamp()[1], message.key(), message.value()
        found.append((*own, message.headers()))
    consumer.close()
    return found


def ledgers_of(broker: Broker, topic: str) -> list[dict[str, Any]]:
    status, body = broker.get(f"/v1/topics/{topic}/ledgers?partition=0")
    assert status == 200, body
    found: list[dict[str, Any]] = json.loads(body)["partitions"][0]["ledgers"]
    return found


def check_tasks(broker: Broker, topic: str, url: str, end: int) -> None:
    """The tasks of a read give the same from the table's files, and no broker sends a byte."""
    bounds = {"endingOffsets": json.dumps({topic: {"0": end}}), "maxRecordsPerTask": "1000"}
    given = {"bootstrap.servers": broker.kafka, "subscribe": topic, **bounds}
    expected = rows(given)
    names = "headrace_fetch_bytes_total", "headrace_tier_cold_read_bytes_total"
    before = [metric(broker, name) for name in names]
    assert rows({**given, "objects": url, "http": broker.http}) == expected
    fetched, cold = (metric(broker, name) - was for name, was in zip(names, before, strict=True))
    assert cold == 0
    assert fetched < 1_000, "more than an empty answer to a reader that has just ended"


def files_of(table: Any) -> set[str]:
    return {task.file.file_path for task in table.scan().plan_files()}


def maintained(place: Warehouse, table: TableName, spark: Any) -> MaintainReport:
    """The table after all that maintenance may ever do to it."""
    return run_maintain(
        MaintainConfig(place, table.in_spark, files_min=1, keep_snapshots=1, snapshot_age_hours=0),
        spark=spark,
    )


@pytest.mark.timeout(1_800)
def test_consumers_get_the_same_records_from_the_table_after_maintenance_and_restarts(
    spark, warehouse, tmp_path
):
    topic = f"old-{tmp_path.name}"  # a table outlives a test that is run once more
    table = TableName.of_topic(topic)
    objects, folder = tmp_path / "objects", warehouse.folder
    folder.mkdir(exist_ok=True)
    options = ("--tiering-interval-ms", "200", "--objects", f"file://{objects}")
    broker = Broker(tmp_path / "broker", *options, "--tables", str(folder)).start()
    try:
        create_topic(
            broker.kafka, topic, segment_bytes=100_000, retention_ms=-1,
            remote_storage_enable="true", local_retention_bytes="0",
            **{"headrace.table": "append", "headrace.table.replaces.objects": "true"},
        )  # fmt: skip
        sent = produce(broker, topic, COUNT)
        place = Warehouse.at(folder)
        archive = ArchiveConfig(broker.kafka, topic, place, is_daily=True)
        run_archive(archive, spark=spark)
        wait_until(lambda: len(list(objects.rglob("*.ledger"))) > 3, SLOW_S)
        reasons = {one["object_kept_because"] for one in ledgers_of(broker, topic)[:3]}
        assert NOT_YET in reasons, reasons
        maintained(place, table, spark)

        def is_replaced() -> bool:
            """All but the newest sealed ledger, whose footer the broker needs to open."""
            *old, _newest, _active = ledgers_of(broker, topic)
            return len(old) > 3 and all(one["is_tabled"] for one in old)

        wait_until(is_replaced, SLOW_S)
        wait_until(lambda: len(list(objects.rglob("*.ledger"))) <= 1, SLOW_S)
        assert consume(broker, topic, 0, COUNT) == sent
        *_, newest, _active = ledgers_of(broker, topic)
        check_tasks(broker, topic, f"file://{objects}", newest["base_offset"])
        told = headrace(broker, "topic", "ledgers", topic)
        assert re.search(r"old records: \d+ ledgers in the topic's table", told), told
        # More records, and maintenance of all that may be rewritten: no second copy again.
        kept = files_of(load_table(place, table))
        sent += produce(broker, topic, 500, COUNT)
        run_archive(archive, spark=spark)
        maintained(place, table, spark)
        assert kept <= files_of(load_table(place, table))
        assert maintained(place, table, spark).snapshots_expired >= 0
        broker.kill()
        broker.start()
        assert consume(broker, topic, 100, len(sent)) == sent[100:]
        status, body = broker.get(f"/v1/topics/{topic}/records?partition=0&offset=5&max=3")
        assert status == 200, body
        found = [record["offset"] for record in json.loads(body)["records"]]
        assert found == [5, 6, 7]
        # A file deleted by hand: an error, no empty answer; restored, all is there again.
        hidden = {
            path: path.read_bytes()
            for path in folder.joinpath("headrace", topic).rglob("*.parquet")
        }
        for path in hidden:
            path.unlink()
        broker.restart()
        with pytest.raises(AssertionError, match="0 records"):
            consume(broker, topic, 0, 10, patience_s=10)
        assert broker.get(f"/v1/topics/{topic}/records?partition=0&offset=0&max=3")[0] >= 400
        assert "restore the file" in broker.log()
        wait_until(lambda: metric(broker, "headrace_tier_table_missing") > 3, SLOW_S)
        for path, data in hidden.items():
            path.write_bytes(data)
        assert consume(broker, topic, 0, len(sent)) == sent
    finally:
        broker.kill()


def metric(broker: Broker, name: str) -> float:
    _, body = broker.get("/metrics")
    (line,) = [one for one in body.splitlines() if one.startswith(f"{name} ")]
    return float(line.split()[1])
