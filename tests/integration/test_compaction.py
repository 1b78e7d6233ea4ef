"""A compacted topic keeps the latest value of each key, while clients read and over a crash."""

from __future__ import annotations

import time

import pytest
from tests.integration.clients import TIMEOUT_S, create_topic, watermarks
from tests.waiting import wait_until

KEYS, ROUNDS = 40, 30
SEGMENT_BYTES = 8_000


def write(at: str, topic: str, rounds: int) -> dict[bytes, bytes]:
    """Each key once per round; every fifth key ends with a tombstone. What is left of it."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": at, "linger.ms": 1, "enable.idempotence": True})
    left: dict[bytes, bytes] = {}
    for turn in range(rounds):
        for number in range(KEYS):
            key, value = b"k%d" % number, b"%d.%d" % (number, turn)
            is_deleted = number % 5 == 0 and turn == rounds - 1
            producer.produce(topic, None if is_deleted else value.ljust(60), key)
            if is_deleted:
                left.pop(key, None)
            else:
                left[key] = value.ljust(60)
        assert producer.flush(TIMEOUT_S) == 0
    return left


def read(at: str, topic: str) -> tuple[int, dict[bytes, bytes]]:
    """(records, value of each key) as a consumer of all that is committed finds them."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    settings = {"bootstrap.servers": at, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(settings | {"isolation.level": "read_committed"})
    found: dict[bytes, bytes] = {}
    count, last = 0, -1
    deadline = time.monotonic() + TIMEOUT_S
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            assert time.monotonic() < deadline, f"stopped after offset {last}"
            message = consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF
                break
            assert message.offset() > last, "offsets rise"
            last, count = message.offset(), count + 1
            if message.value() is None:
                found.pop(message.key(), None)
            else:
                found[message.key()] = message.value()
    finally:
        consumer.close()
    return count, found


@pytest.mark.parametrize("options", [(), ("--log-cleaner-process-bytes-min", "0")])
def test_a_compacted_topic_keeps_the_latest_value_of_each_key(make_broker, options):
    broker = make_broker("--compaction-interval-ms", "100", *options)
    create_topic(
        broker.kafka,
        "table",
        cleanup_policy="compact",
        segment_bytes=SEGMENT_BYTES,
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=0,
    )
    left = write(broker.kafka, "table", ROUNDS)
    end = watermarks(broker.kafka, "table")
    # The open ledger is not compacted, so a few rounds of each key stay.
    wait_until(lambda: read(broker.kafka, "table")[0] < KEYS * ROUNDS // 2)
    assert read(broker.kafka, "table")[1] == left
    assert watermarks(broker.kafka, "table") == end

    broker.crash()
    assert read(broker.kafka, "table")[1] == left
    assert watermarks(broker.kafka, "table") == end
    left = write(broker.kafka, "table", ROUNDS)
    wait_until(lambda: read(broker.kafka, "table")[0] < KEYS * ROUNDS)
    assert read(broker.kafka, "table")[1] == left
    assert " ERROR " not in broker.log()
