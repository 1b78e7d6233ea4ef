"""Closed ledgers in object storage: real clients read across the border and do not notice."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest
from tests.integration.broker import Broker, wait_until
from tests.integration.clients import TIMEOUT_S, create_topic, delete_topic, watermarks
from tests.integration.raw import Raw
from tests.s3_server import S3Server

if TYPE_CHECKING:
    from pathlib import Path

LIST_OFFSETS = 2
OPTIONS = ("--tiering-interval-ms", "150", "--retention-check-interval-ms", "300")
TIERED = {"segment_bytes": 200_000, "remote_storage_enable": "true"}


class Folder:
    """Objects in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "objects"
        self.url = f"file://{self.root}"

    def environment(self) -> dict[str, str]:
        return {}

    def objects(self) -> list[Path]:
        return sorted(self.root.rglob("*.ledger"))

    def stop(self) -> None:
        """Nothing runs."""


def make_storage(kind: str, folder: Path) -> Folder | S3Server:
    return Folder(folder) if kind == "folder" else S3Server(folder).start()


@pytest.fixture(params=["folder", "s3"])
def storage(request, tmp_path, monkeypatch):
    """Object storage of each kind that runs here."""
    made = make_storage(request.param, tmp_path)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    yield made
    made.stop()


@pytest.fixture
def tiered(storage, tmp_path):
    """A broker over it."""
    broker = Broker(tmp_path / "broker", *OPTIONS, "--objects", storage.url)
    yield broker.start()
    broker.kill()


def value_of(number: int) -> bytes:
    """Whatever a codec does, these do not shrink, and each tells its number."""
    return b"%08d" % number + os.urandom(1500)


def produce(broker: Broker, topic: str, first: int, count: int) -> None:
    from confluent_kafka import Producer

    failed = []
    producer = Producer({"bootstrap.servers": broker.kafka, "batch.num.messages": 8})
    for number in range(first, first + count):
        producer.produce(
            topic,
            value_of(number),
            partition=0,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )
        if number % 40 == 39:  # in bursts, so that ledgers are closed on the way
            assert producer.flush(TIMEOUT_S) == 0
    assert producer.flush(TIMEOUT_S) == 0
    assert not failed


def consume(broker: Broker, topic: str, offset: int, count: int) -> list[tuple[int, int]]:
    """(offset, number) of the records from `offset` on."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": broker.kafka, "group.id": "tiers"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[tuple[int, int]] = []
    try:
        while len(found) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{len(found)} records of {count}"
            assert message.error() is None, message.error()
            found.append((message.offset(), int(message.value()[:8])))
    finally:
        consumer.close()
    return found


def dense(first: int, count: int) -> list[tuple[int, int]]:
    return [(number, number) for number in range(first, first + count)]


def special_offset(broker: Broker, topic: str, timestamp: int) -> int:
    partition = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    with Raw(broker.address) as raw:
        answer = raw.call(
            LIST_OFFSETS, 9, topics=({"name": topic, "partitions": (partition,)},), replica_id=-1
        )
    found = answer.topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset


def metric(broker: Broker, name: str) -> float:
    status, text = broker.get("/metrics")
    assert status == 200
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def test_a_consumer_reads_across_the_border_also_after_a_crash(tiered, storage, name):
    create_topic(tiered.kafka, name, local_retention_bytes=400_000, **TIERED)
    produce(tiered, name, 0, 2000)
    local = wait_until(lambda: (o := special_offset(tiered, name, -4)) > 1400 and o)
    tiered_end = special_offset(tiered, name, -5)
    assert local <= tiered_end + 1 <= 2000, "what is not local is tiered"
    assert special_offset(tiered, name, -2) == 0
    assert special_offset(tiered, name, -6) == tiered_end + 1
    files = sum(p.stat().st_size for p in (tiered.data_dir / "ledgers").rglob("*.ledger"))
    assert files < 1_000_000 < 2_000_000 < sum(p.stat().st_size for p in storage.objects())
    assert consume(tiered, name, 0, 2000) == dense(0, 2000)
    assert metric(tiered, "headrace_tier_cold_reads_total") > 0
    tiered.crash()
    writer = threading.Thread(target=produce, args=(tiered, name, 2000, 1000))
    writer.start()
    assert consume(tiered, name, 0, 3000) == dense(0, 3000)
    writer.join()
    assert consume(tiered, name, 777, 10) == dense(777, 10)
    assert watermarks(tiered.kafka, name) == (0, 3000)
    assert " ERROR " not in tiered.log()


def test_what_retention_and_a_deleted_topic_leave_behind_is_nothing(tiered, storage, name):
    create_topic(
        tiered.kafka, name, local_retention_bytes=250_000, retention_bytes=1_000_000, **TIERED
    )
    produce(tiered, name, 0, 2000)
    low = wait_until(lambda: (low := watermarks(tiered.kafka, name)[0]) > 1200 and low)
    wait_until(lambda: len(storage.objects()) <= 6)
    assert consume(tiered, name, low, 2000 - low) == dense(low, 2000 - low)
    delete_topic(tiered.kafka, name)
    wait_until(lambda: not storage.objects())
    assert " ERROR " not in tiered.log()
