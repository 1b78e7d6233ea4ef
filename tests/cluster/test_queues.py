"""Queues over a real BookKeeper: an owner dies, and every record is accounted for."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.cluster.brokers import Brokers
from tests.integration.clients import create_topic
from tests.integration.test_http_queues import Queue
from tests.waiting import wait_until

TOPIC, GROUP, DEAD = "jobs", "workers", "jobs.dead"
AT_ONCE, DELAYED = 12, 3
DELAY_MS = 20_000
"""Longer than it takes to receive, settle and kill."""
CALM_S = 3
LIMIT_S = 120


@pytest.fixture
def brokers(tmp_path, shared_cluster):
    root = ("--zookeeper-root", f"/{tmp_path.name}")
    made = Brokers(tmp_path, shared_cluster.zookeeper.address, 3, *root)
    yield made
    made.close()


class Place(Queue):
    """The queue at the broker that owns its partition; the topic and the group exist."""

    def __init__(self, broker) -> None:
        self.broker = broker
        self.path = f"/v1/queues/{TOPIC}/{GROUP}"


def configure(brokers: Brokers) -> None:
    values = {
        "share.auto.offset.reset": "earliest",
        "share.record.lock.duration.ms": "60000",
        "errors.deadletterqueue.topic.name": DEAD,
    }
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in values.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, GROUP, incremental_configs=entries)
    client = AdminClient({"bootstrap.servers": brokers.bootstrap})
    client.incremental_alter_configs([resource])[resource].result(30)


def send(brokers: Brokers) -> dict[str, int]:
    """Delayed message -> when it is due."""
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    due_ms = time.time_ns() // 1_000_000 + DELAY_MS
    for number in range(AT_ONCE):
        producer.produce(TOPIC, str(number))
    for number in range(DELAYED):
        headers = {"headrace-deliver-at": str(due_ms)}
        producer.produce(TOPIC, f"late {number}", headers=headers)
    assert producer.flush(30) == 0
    return {f"late {number}": due_ms for number in range(DELAYED)}


def dead_letters(brokers: Brokers) -> list[bytes]:
    """All that the dead letter topic holds."""
    client = Consumer(
        {"bootstrap.servers": brokers.bootstrap, "group.id": "dead", "enable.auto.commit": False}
    )
    found: list[bytes] = []
    known = client.list_topics(timeout=30).topics
    if DEAD in known:
        for number in known[DEAD].partitions:
            place = TopicPartition(DEAD, number, 0)
            end = client.get_watermark_offsets(place, timeout=30)[1]
            client.assign([place])
            count = 0
            while count < end:
                message = client.poll(30)
                assert message is not None
                assert message.error() is None, message.error()
                found.append(message.value())
                count += 1
    client.close()
    return found


def test_the_owner_is_killed_and_every_record_is_acknowledged_delayed_or_dead_once(brokers):
    create_topic(brokers.bootstrap, TOPIC, 1, headrace_message_attributes="true")
    configure(brokers)
    owner = brokers.leaders(TOPIC)[0]
    due = send(brokers)
    queue = Place(brokers.by_id[owner])
    held: dict[str, str] = {}
    while len(held) < AT_ONCE:
        held |= {m["value"]: m["receipt"] for m in queue.receive(max=100, wait_ms=20_000)}
    assert set(held) == {str(number) for number in range(AT_ONCE)}
    results = queue.settle(
        ack=[held[str(number)] for number in range(4)],
        dead_letter=[{"receipt": held["4"], "reason": "unreadable"}],
    )
    assert all(result["ok"] for result in results), results
    brokers.by_id[owner].kill()
    assert time.time_ns() // 1_000_000 < min(due.values()), "the delays have to be pending"
    wait_until(lambda: brokers.leaders(TOPIC)[0] != owner, LIMIT_S)
    queue = Place(brokers.by_id[brokers.leaders(TOPIC)[0]])
    want = {str(number) for number in range(5, AT_ONCE)} | set(due)
    acked: list[str] = []
    deadline = time.monotonic() + LIMIT_S
    while len(acked) < len(want):
        assert time.monotonic() < deadline, f"received {acked} of {want}"
        status, answer = queue.ask("POST", "/receive", {"max": 100, "wait_ms": 5_000})
        if status != 200:
            assert answer["retriable"], answer
            continue
        messages = answer["messages"]
        now_ms = time.time_ns() // 1_000_000
        assert all(due.get(m["value"], 0) <= now_ms for m in messages), "delivered too early"
        if messages:
            assert all(r["ok"] for r in queue.settle(ack=[m["receipt"] for m in messages]))
        acked += [m["value"] for m in messages]
    assert sorted(acked) == sorted(want), "acknowledged and dead ones are not delivered again"
    assert queue.receive(max=100, wait_ms=CALM_S * 1_000) == []
    assert wait_until(lambda: dead_letters(brokers), LIMIT_S) == [b"4"]
    status, answer = queue.ask("GET", "")
    assert status == 200, answer
    (part,) = answer["partitions"]
    assert (part["in_flight"], part["waiting_for_dead_letter_copy"], part["lag"]) == (0, 0, 0)


class Anywhere(Queue):
    """The queue at any broker; the topic and the group exist."""

    def __init__(self, broker, topic: str) -> None:
        self.broker = broker
        self.path = f"/v1/queues/{topic}/{GROUP}"


def test_any_broker_serves_the_whole_topic_while_owners_are_killed(brokers):
    """Received at one broker and settled at another: each message is acknowledged once."""
    partitions, topic = 6, "spread"
    create_topic(brokers.bootstrap, topic, partitions)
    configure(brokers)
    wait_until(lambda: len(set(brokers.leaders(topic).values())) == 3, LIMIT_S)
    sent = {f"{number}.{n}" for number in range(partitions) for n in range(200)}
    producer = Producer({"bootstrap.servers": brokers.bootstrap})
    for value in sorted(sent):
        producer.produce(topic, value, partition=int(value.split(".")[0]))
    assert producer.flush(30) == 0
    asked, settled = Anywhere(brokers.by_id[1], topic), Anywhere(brokers.by_id[2], topic)
    acked: list[str] = []
    doubtful: set[str] = set()
    deadline = time.monotonic() + LIMIT_S
    is_killed, is_empty = False, False
    while not is_empty:
        assert time.monotonic() < deadline, f"{len(acked)} of {len(sent)}"
        status, answer = asked.ask("POST", "/receive", {"max": 50, "wait_ms": CALM_S * 1_000})
        if status != 200:
            assert (status, answer["retriable"]) == (503, True), answer
            continue
        assert all(one["error"]["retriable"] for one in answer.get("failed", ())), answer
        messages = answer["messages"]
        is_empty = not messages and "failed" not in answer
        results = settled.settle(ack=[m["receipt"] for m in messages]) if messages else []
        for message, result in zip(messages, results, strict=True):
            if result["ok"]:
                acked.append(message["value"])
                continue
            assert is_killed, result
            if result["retriable"]:  # its owner gave no answer: it may have been acknowledged
                doubtful.add(message["value"])
        if not is_killed and len(acked) > len(sent) // 4:
            brokers.by_id[3].kill()
            is_killed = True
    assert is_killed
    assert len(acked) == len(set(acked)), "none is acknowledged twice, though an owner was killed"
    assert sent - set(acked) <= doubtful, "none is lost"
    assert set(acked) <= sent
