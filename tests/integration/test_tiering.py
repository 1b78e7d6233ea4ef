"""Closed ledgers in object storage: real clients read across the border and do not notice."""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.integration.broker import Broker, bytes_below
from tests.integration.browser import CHROMIUM, chromium
from tests.integration.clients import TIMEOUT_S, create_topic, delete_topic, watermarks
from tests.integration.raw import Raw
from tests.s3_server import Proxy, S3Server
from tests.waiting import wait_until

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
    try:
        yield broker.start()
    finally:
        broker.kill()


def value_of(number: int) -> bytes:
    """Whatever a codec does, these do not shrink, and each contains its number."""
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


def produce_until_cold(broker: Broker, topic: str, offset: int) -> int:
    """Produce until all before `offset` is in object storage alone; how many records."""
    count = 0
    deadline = time.monotonic() + 2 * TIMEOUT_S
    while special_offset(broker, topic, -4) <= offset:
        assert time.monotonic() < deadline, "local copies stay"
        produce(broker, topic, count, 160)
        count += 160
        time.sleep(0.1)
    return count


def consume(broker: Broker, topic: str, offset: int, count: int) -> list[tuple[int, int]]:
    """(offset, number) of the records from `offset` on, up to the last of `count`."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": broker.kafka, "group.id": "tiers"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, offset)])
    found: list[tuple[int, int]] = []
    try:
        while not found or found[-1][0] < offset + count - 1:
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
            LIST_OFFSETS,
            11,
            topics=({"name": topic, "partitions": (partition,)},),
            replica_id=-1,
            timeout=1_000,
        )
    found = answer.topics[0].partitions[0]
    assert found.error_code == 0
    return found.offset


def metric(broker: Broker, name: str) -> float:
    status, text = broker.get("/metrics")
    assert status == 200
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))


def check_in_the_console(broker: Broker, topic: str) -> None:
    """A browser shows which ledgers are where, and what the broker did with object storage."""
    with chromium(f"http://{broker.http}") as browser:
        with browser.page(f"topics/{topic}/ledgers?partition=0") as page:
            states = page.get_by_role("region", name="Ledgers of partition 0").locator("tbody tr")
            states.get_by_text("in object storage alone", exact=True).first.wait_for()
        with browser.page("cluster") as page:
            tiers = page.get_by_role("region", name="Object storage").locator("tbody tr")
            assert "available" in tiers.inner_text()


def test_a_consumer_reads_across_the_border_also_after_a_crash(tiered, storage, name):
    create_topic(tiered.kafka, name, local_retention_bytes=400_000, **TIERED)
    count = produce_until_cold(tiered, name, 1000)
    wait_until(lambda: metric(tiered, "headrace_tier_pending_ledgers") == 0)

    def border() -> tuple[int, int, int]:
        return tuple(special_offset(tiered, name, which) for which in (-4, -5, -6))

    # Of one moment: what was sealed last may be offloaded only now.
    local, tiered_end, to_tier = wait_until(lambda: (now := border()) == border() and now)
    assert local <= tiered_end + 1 <= count, "not local, so tiered"
    assert special_offset(tiered, name, -2) == 0
    assert to_tier == tiered_end + 1
    kept = sum(p.stat().st_size for p in storage.objects())
    assert kept > 1000 * 1500
    # A local copy goes after it was noted that the other is the only one.
    wait_until(lambda: bytes_below(tiered.data_dir / "ledgers") < count * 1600 - 1000 * 1500)
    assert consume(tiered, name, 0, count) == dense(0, count)
    assert metric(tiered, "headrace_tier_cold_reads_total") > 0
    (shown,) = json.loads(tiered.get("/v1/brokers?details=true")[1])["brokers"]
    tier = shown["figures"]["tier"]
    assert (tier["is_away"], tier["problem"], tier["failures"]) == (False, None, 0)
    assert min(tier[one] for one in ("offloads", "offload_bytes", "cold_reads")) > 0
    if CHROMIUM is not None:
        check_in_the_console(tiered, name)
    tiered.crash()
    writer = threading.Thread(target=produce, args=(tiered, name, count, 1000))
    writer.start()
    assert consume(tiered, name, 0, count + 1000) == dense(0, count + 1000)
    writer.join()
    assert consume(tiered, name, 777, 10) == dense(777, 10)
    assert watermarks(tiered.kafka, name) == (0, count + 1000)
    assert " ERROR " not in tiered.log()


def test_retention_and_topic_deletion_leave_no_objects(tiered, storage, name):
    create_topic(
        tiered.kafka, name, local_retention_bytes=250_000, retention_bytes=1_000_000, **TIERED
    )
    count, deadline = 0, time.monotonic() + 2 * TIMEOUT_S
    # What is dropped before it was offloaded leaves no object to delete: go on until one was.
    while watermarks(tiered.kafka, name)[0] < 800 or not metric(
        tiered, "headrace_tier_deletes_total"
    ):
        produce(tiered, name, count, 160)
        count += 160
        assert time.monotonic() < deadline, "retention drops nothing"
        time.sleep(0.05)  # others need the processor, too
    wait_until(lambda: metric(tiered, "headrace_tier_pending_ledgers") == 0)
    while True:  # until retention is done with what there is
        low = watermarks(tiered.kafka, name)[0]
        found = consume(tiered, name, low, count - low)
        if watermarks(tiered.kafka, name)[0] == low:
            break
    assert found == dense(low, count - low)
    delete_topic(tiered.kafka, name)
    wait_until(lambda: not storage.objects())
    assert " ERROR " not in tiered.log()


# --- object storage that stalls ------------------------------------------------------------------


@pytest.fixture
def stalling(tmp_path, monkeypatch):
    """(broker, proxy): the proxy lies between the broker and a real S3 server."""
    server = S3Server(tmp_path).start()
    proxy = Proxy(server.port)
    for name, value in server.environment(proxy.port).items():
        monkeypatch.setenv(name, value)
    broker = Broker(tmp_path / "broker", *OPTIONS, "--objects", server.url)
    try:
        yield broker.start(), proxy
    finally:
        proxy.resume()
        broker.kill()
        proxy.close()
        server.stop()


def test_storage_that_stalls_delays_offloading_and_cold_reads_only(stalling, name):
    from confluent_kafka import Consumer, Producer, TopicPartition

    broker, proxy = stalling
    cold, hot = f"{name}-cold", f"{name}-hot"
    create_topic(broker.kafka, cold, local_retention_bytes=100_000, **TIERED)
    create_topic(broker.kafka, hot)
    count = produce_until_cold(broker, cold, 400)
    proxy.stall()
    broker.crash()  # nothing is in memory, and the start does not need the storage
    produce(broker, cold, count, 400)  # the partition whose old records are away
    # One consumer for both partitions: the storage must not hold up what is here.
    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "both", "fetch.wait.max.ms": 100}
    )
    consumer.assign([TopicPartition(cold, 0, 0), TopicPartition(hot, 0, 0)])
    producer = Producer({"bootstrap.servers": broker.kafka, "linger.ms": 0})
    delays_s, appends_s, cold_found = [], [], []
    try:
        for number in range(15):
            began = time.monotonic()
            producer.produce(hot, value_of(number), partition=0)
            assert producer.flush(TIMEOUT_S) == 0
            appends_s.append(time.monotonic() - began)
            while True:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None
                assert message.topic() == hot
                assert message.error() is None, message.error()
                if int(message.value()[:8]) == number:
                    break
            delays_s.append(time.monotonic() - began)
        # The storage would hold up an append, or a fetch, for half a minute.
        assert statistics.median(appends_s) < 2, appends_s
        assert max(appends_s) < 15, appends_s
        # A fetch waits 500 ms at most for what is away, before it answers with what is here.
        assert statistics.median(delays_s) < 4, delays_s
        assert max(delays_s) < 20, delays_s
        wait_until(lambda: metric(broker, "headrace_tier_pending_bytes") > 0)
        proxy.resume()
        while len(cold_found) < count + 400:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{len(cold_found)} records"
            assert message.error() is None, message.error()
            cold_found.append((message.offset(), int(message.value()[:8])))
        assert cold_found == dense(0, count + 400)
        wait_until(lambda: metric(broker, "headrace_tier_pending_bytes") == 0, timeout_s=60)
    finally:
        consumer.close()
    assert " ERROR " not in broker.log()
    assert broker.log().count("WARNING") < 12, "what is away is told once, not at every turn"


def test_a_broker_that_cannot_use_its_object_storage_does_not_start_and_says_why(tmp_path):
    blocked = tmp_path / "a-file"
    blocked.write_text("no folder")
    for url, word in (
        (f"file://{blocked}/objects", "Not a directory"),
        ("ftp://host/x", "file:///folder"),
        ("s3://bucket?secret=abc", "pass credentials in the environment"),
    ):
        broker = Broker(tmp_path / "broker", "--objects", url)
        with pytest.raises(AssertionError, match="ended with code"):
            broker.start()
        broker.kill()
        text = broker.log()
        assert word in text
        assert "Traceback" not in text
        assert "secret=abc" not in text
