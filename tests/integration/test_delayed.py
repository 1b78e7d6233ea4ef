"""Delayed delivery through real clients: never early, exactly once, over kill -9, cancelled.

HEADRACE_KILL_CYCLES sets how often the kill -9 test kills.
"""

from __future__ import annotations

import random
import threading
import time

import pytest
from tests.integration.broker import Broker, kill_cycles
from tests.integration.clients import TIMEOUT_S, create_topic

TOPIC = "later"
EARLY_MS = 1
"""Clients and broker read one clock, in whole milliseconds."""


def make_topic(broker: Broker, partitions: int = 1) -> None:
    create_topic(broker.kafka, TOPIC, partitions, headrace_message_attributes="true")


def producer(broker: Broker, **options):
    from confluent_kafka import Producer

    return Producer({"bootstrap.servers": broker.kafka, "linger.ms": 5, **options})


def consume(broker: Broker, count: int, timeout_s: float = TIMEOUT_S) -> list[tuple]:
    """(value, receive time, timestamp, headers) of the first `count` records."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": broker.kafka, "group.id": "r", "auto.offset.reset": "earliest"}
    )
    partitions = consumer.list_topics(TOPIC, TIMEOUT_S).topics[TOPIC].partitions
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in partitions])
    found = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count and time.monotonic() < deadline:
        for message in consumer.consume(1_000, 0.2):
            assert message.error() is None, message.error()
            now_ms = time.time_ns() // 1_000_000
            found.append(
                (message.value(), now_ms, message.timestamp()[1], dict(message.headers() or []))
            )
    consumer.close()
    return found


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_records_come_when_they_are_due_in_the_order_of_their_times(own_broker, is_idempotent):
    make_topic(own_broker)
    client = producer(own_broker, **{"enable.idempotence": is_idempotent})
    failures = []
    now_ms = time.time_ns() // 1_000_000
    due = {}
    for index in range(300):
        value = b"%d" % index
        delay_ms = index * 37 % 1_500 + 1_000
        due[value] = now_ms + delay_ms
        header = {"headrace-deliver-at": str(due[value])}
        if index % 3 == 0:
            header = {}  # at once, between the others
            due[value] = 0
        client.produce(
            TOPIC, value, headers=header, callback=lambda error, _: failures.append(error)
        )
    client.produce(TOPIC, b"relative", headers={"headrace-delay": "1200"})
    assert client.flush(TIMEOUT_S) == 0
    assert not any(failures), failures[:3]
    found = consume(own_broker, 301)
    assert sorted(value for value, *_ in found) == sorted([*due, b"relative"])
    for value, received_ms, timestamp_ms, headers in found:
        if due.get(value):
            assert received_ms >= due[value] - EARLY_MS, "delivered early"
            assert timestamp_ms == due[value]
            assert headers["headrace-deliver-at"] == b"%d" % due[value]
    order = [due[value] for value, *_ in found if due.get(value)]
    assert order == sorted(order)


def test_what_is_due_too_late_or_malformed_is_refused_and_nothing_is_stored(own_broker):
    make_topic(own_broker)
    client = producer(own_broker)
    errors = {}
    for value, due in ((b"far", "9" * 15), (b"odd", "soon"), (b"past", "5")):
        client.produce(
            TOPIC,
            value,
            headers={"headrace-deliver-at": due},
            callback=lambda error, message: errors.update({message.value(): error}),
        )
        client.flush(TIMEOUT_S)
    assert errors[b"far"] is not None
    assert errors[b"odd"] is not None
    assert errors[b"past"] is None
    assert [value for value, *_ in consume(own_broker, 1)] == [b"past"]


def test_everything_is_delivered_once_in_time_over_kill_9(own_broker):
    """A producer sends all the time, the broker is killed at random moments, and at the end every
    acknowledged record was delivered exactly once, and none before it was due."""
    rng = random.Random(7)
    make_topic(own_broker, 2)
    client = producer(own_broker, **{"enable.idempotence": True, "message.timeout.ms": 120_000})
    due: dict[bytes, int] = {}
    acknowledged: set[bytes] = set()
    over = threading.Event()

    def acknowledge(error, message):
        if error is None:
            acknowledged.add(message.value())

    def produce():
        index = 0
        while not over.is_set():
            value = b"%d" % index
            due[value] = time.time_ns() // 1_000_000 + rng.choice([20, 300, 1_500, 4_000])
            header = {"headrace-deliver-at": str(due[value])}
            client.produce(TOPIC, value, headers=header, on_delivery=acknowledge)
            client.poll(0)
            index += 1
            over.wait(0.002)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for _ in range(kill_cycles(3)):
            time.sleep(rng.uniform(0.5, 2.5))
            own_broker.crash()
    finally:
        time.sleep(1)
        over.set()
        thread.join()
    assert client.flush(TIMEOUT_S) == 0
    found = consume(own_broker, len(acknowledged))
    time.sleep(0.5)
    found = consume(own_broker, len(found) + 1, 3)  # nothing comes twice later on
    values = [value for value, *_ in found]
    assert len(values) == len(set(values)), "delivered twice"
    assert acknowledged <= set(values), "lost"
    assert all(timestamp >= due[value] for value, _, timestamp, _ in found)
    assert len(acknowledged) > 100
