"""A proof of delivery finds exactly what was lost, doubled or left, against a plain count."""

import json
import random
from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.pipeline.demo.clients import create_topic
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.certificate import verify
from headrace.pipeline.jobs.delivery_proof import (
    DeliveryConfig,
    GroupPosition,
    Sent,
    prove_delivery,
)
from headrace.pipeline.jobs.windows import Bounds, Connection

PARTITIONS = 3
START_MS = 1_700_000_000_000


@pytest.fixture
def topic(broker, topic):
    """A topic that stores named sequences as they come: the broker drops no duplicate."""
    name = f"{topic}-stored"
    settings = {"retention.ms": "-1", "headrace.message.attributes": "ignore"}
    create_topic(broker, name, PARTITIONS, settings)
    return name


def numbered(producer, sequence):
    return [("headrace-producer", producer.encode()), ("headrace-sequence", b"%d" % sequence)]


def publish(broker, topic, sends):
    """Write (producer, sequence or None, partition) in this order."""
    client = Producer({"bootstrap.servers": broker, "enable.idempotence": True})
    refused = []
    for number, (producer, sequence, partition) in enumerate(sends):
        headers = None if sequence is None else numbered(producer, sequence)
        client.produce(
            topic, b"value-%d" % number, producer.encode(), partition, headers=headers,
            timestamp=START_MS + number * 1000,
            on_delivery=lambda error, _: refused.append(error) if error else None,
        )  # fmt: skip
    assert client.flush(60) == 0
    assert not refused


def commit(broker, topic, group, offsets):
    consumer = Consumer({"bootstrap.servers": broker, "group.id": group})
    parts = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    consumer.commit(offsets=parts, asynchronous=False)
    consumer.close()


@pytest.fixture
def exact(broker, topic, table, warehouse, spark):
    """Two producers of 100 and 50 records, archived and acknowledged completely."""
    sends = [("a", n, n % PARTITIONS) for n in range(100)]
    sends += [("b", n, n % PARTITIONS) for n in range(50)]
    random.Random(5).shuffle(sends)
    publish(broker, topic, sends)
    run_archive(ArchiveConfig(broker, topic, warehouse.folder, table), spark=spark)
    ends = Counter(partition for *_, partition in sends)
    offsets = {topic: {str(partition): count for partition, count in ends.items()}}
    return DeliveryConfig(
        Connection(broker),
        topic,
        table=table,
        groups=(GroupPosition("workers", offsets),),
        sent={"a": Sent(0, 99), "b": Sent(0, 49)},
    )


def test_what_is_complete_is_proven_and_the_certificate_says_by_what(exact, spark):
    found = prove_delivery(exact, spark=spark)
    assert (found["verdict"], found["problems"], found["not_proven"]) == ("proven", [], [])
    assert [(one["producer"], one["sent"], one["distinct"]) for one in found["producers"]] == [
        ("a", 100, 100),
        ("b", 50, 50),
    ]
    assert found["groups"][0]["acknowledged"] == 150
    assert found["stored"] == found["archived"]["partitions"]
    assert verify(json.loads(json.dumps(found))) == []
    for change in (
        lambda body: body["producers"][0].update(distinct=99),
        lambda body: body["window"]["0"].__setitem__(1, 5),
        lambda body: body.update(topic="other"),
        lambda body: body["stored"]["0"]["fingerprint"].__setitem__(0, 1),
    ):
        body = json.loads(json.dumps(found))
        change(body)
        assert verify(body) != []


def test_without_the_producers_own_count_it_is_not_proven(exact, spark):
    found = prove_delivery(replace(exact, sent=None), spark=spark)
    assert found["verdict"] == "not proven"
    assert found["not_proven"] == [
        f"{name}: what was sent outside sequences 0 to {last}, because the producer's own count was"
        " not given"
        for name, last in (("a", 99), ("b", 49))
    ]


def test_injected_loss_duplicates_and_reorder_are_found_exactly(
    broker, topic, table, warehouse, spark
):
    """Against a count in plain Python; the seed is the test's."""
    chance = random.Random(11)
    sent = {"p1": Sent(0, 299), "p2": Sent(10, 209), "p3": Sent(0, 9)}
    lost = {
        ("p1", 0),
        ("p1", 7),
        ("p1", 8),
        ("p1", 299),
        ("p2", 100),
        *[("p3", n) for n in range(10)],
    }
    doubled = {("p1", 20), ("p2", 30), ("p2", 31)}
    sends = [
        (name, number, chance.randrange(PARTITIONS))
        for name, each in sent.items()
        for number in range(each.first, each.last + 1)
        if (name, number) not in lost
    ]
    sends += [(name, number, chance.randrange(PARTITIONS)) for name, number in doubled]
    sends.append(("p2", 500, 0))  # more than it says it sent
    sends.append(("nobody", None, 1))
    chance.shuffle(sends)
    publish(broker, topic, sends)
    run_archive(ArchiveConfig(broker, topic, warehouse.folder, table), spark=spark)
    name = f"headrace.{table}"
    spark.sql(f"DELETE FROM {name} WHERE partition = 1 AND offset BETWEEN 5 AND 8")
    spark.sql(f"DELETE FROM {name} WHERE partition = 2 AND offset = 0")
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE partition = 0 AND offset = 3")
    counts = Counter(partition for *_, partition in sends)
    committed = {0: counts[0], 1: counts[1] - 4}
    commit(broker, topic, f"{topic}-readers", committed)
    progress = {topic: {str(partition): offset for partition, offset in committed.items()}}
    config = DeliveryConfig(
        Connection(broker), topic, table=table, sent=sent,
        groups=(GroupPosition("readers", progress),),
    )  # fmt: skip
    found = prove_delivery(config, spark=spark)
    assert found["verdict"] == "failed"
    missing = defaultdict(set)
    for one in found["producers"]:
        for low, high in one["missing_spans"]:
            missing[one["producer"]] |= set(range(low, high + 1))
    assert {(name, number) for name, all_ in missing.items() for number in all_} == lost
    assert {
        (one["producer"], number) for one in found["producers"] for number in one["duplicated"]
    } == doubled
    assert [one["unexpected"] for one in found["producers"]] == [0, 1, 0]
    assert found["unnumbered"] == 1
    assert found["archived"]["missing"] == {"1": [[5, 8]], "2": [[0, 0]]}
    assert found["archived"]["partitions"]["0"]["count"] == counts[0] + 1
    assert found["groups"][0]["unfinished"] == {
        "1": [[counts[1] - 4, counts[1] - 1]],
        "2": [[0, counts[2] - 1]],
    }
    assert found["groups"][0]["acknowledged"] == counts[0] + counts[1] - 4
    assert f"readers: no position on {topic}-2: offsets 0 to {counts[2] - 1}" in found["not_proven"]
    assert verify(json.loads(json.dumps(found))) == []


def test_a_window_by_time_is_the_same_offsets_each_time(broker, topic, spark):
    publish(broker, topic, [("a", n, 0) for n in range(60)])
    bounds = Bounds(since_ms=START_MS + 10_000, until_ms=START_MS + 40_000)
    config = DeliveryConfig(
        Connection(broker), topic, bounds, sent={"a": Sent(10, 39)}, bucket_ms=10_000
    )
    first = prove_delivery(config, spark=spark)
    assert first["window"]["0"] == [10, 40]
    assert first["verdict"] == "proven"
    assert [(one["begin_ms"] - START_MS, one["stored"]) for one in first["buckets"]] == [
        (10_000, 10),
        (20_000, 10),
        (30_000, 10),
    ]
    publish(broker, topic, [("a", n, 0) for n in range(60, 70)])
    again = prove_delivery(config, spark=spark)
    assert {**first, "made_at": "", "sha256": ""} == {**again, "made_at": "", "sha256": ""}


def test_records_that_a_group_gave_up_are_not_acknowledged(broker, topic, spark):
    dead = f"{topic}.dead"
    create_topic(broker, dead, 1, {})
    publish(broker, topic, [("a", n, 0) for n in range(20)])
    client = Producer({"bootstrap.servers": broker})
    for offset, group in ((3, b"workers"), (17, b"workers"), (4, b"others")):
        origin = {"topic": topic.encode(), "partition": b"0", "offset": b"%d" % offset}
        origin |= {"group": group, "message": b"failed"}
        client.produce(
            dead, b"v", headers=[(f"__dlq.errors.{name}", value) for name, value in origin.items()]
        )
    assert client.flush(30) == 0
    offsets = {topic: {"0": 20, "1": 0, "2": 0}}
    group = GroupPosition("workers", offsets, "share", (dead,), from_start=True)
    config = DeliveryConfig(Connection(broker), topic, groups=(group,), sent={"a": Sent(0, 19)})
    found = prove_delivery(config, spark=spark)
    assert found["problems"] == [f"workers: 2 given up to dead letters ({topic}-0:3, {topic}-0:17)"]
    assert found["groups"][0]["acknowledged"] == 18
