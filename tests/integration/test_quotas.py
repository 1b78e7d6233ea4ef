"""Client quotas with real clients: the rate is kept, others are not slowed, restarts keep it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from click.testing import CliRunner
from tests.integration.broker import Broker
from tests.integration.clients import TIMEOUT_S, create_topic
from tests.integration.raw import Raw
from tests.waiting import wait_until

from headrace.cli.main import cli

DESCRIBE, ALTER = 48, 49
RATE = 200_000
COUNT, SIZE = 1_000, 1_000


def set_quota(address: tuple[str, int], client_id: str, key: str, value: float) -> None:
    with Raw(address) as raw:
        entity = [{"entity_type": "client-id", "entity_name": client_id}]
        ops = [{"key": key, "value": value, "remove": False}]
        entries = [{"entity": entity, "ops": ops}]
        answer = raw.call(ALTER, 1, entries=entries, validate_only=False)
        assert [int(entry.error_code) for entry in answer.entries] == [0]


def quotas(address: tuple[str, int]) -> list[tuple[str | None, dict[str, float]]]:
    with Raw(address) as raw:
        answer = raw.call(DESCRIBE, 1, components=[], strict=False)
        return [
            (entry.entity[0].entity_name, {one.key: one.value for one in entry.values})
            for entry in answer.entries
        ]


def produce_s(at: str, topic: str, client_id: str) -> float:
    """How long a producer takes for COUNT records."""
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"bootstrap.servers": at, "client.id": client_id}
    producer = Producer({**settings, "linger.ms": 5, "batch.size": 20_000})
    begun_s = time.monotonic()
    for _ in range(COUNT):
        producer.produce(topic, b"v" * SIZE)
    assert producer.flush(TIMEOUT_S) == 0
    return time.monotonic() - begun_s


def consume_s(at: str, topic: str, client_id: str) -> float:
    """How long a consumer takes for COUNT records, from the first on."""
    from confluent_kafka import Consumer, TopicPartition

    settings: dict[str, Any] = {"bootstrap.servers": at, "client.id": client_id}
    consumer = Consumer(
        {**settings, "group.id": client_id, "auto.offset.reset": "earliest",
         "fetch.wait.max.ms": 20}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, 0)])
    begun_s, count = time.monotonic(), 0
    while count < COUNT:
        found = consumer.consume(COUNT, 0.1)
        assert all(message.error() is None for message in found)
        count += len(found)
        assert time.monotonic() - begun_s < TIMEOUT_S
    consumer.close()
    return time.monotonic() - begun_s


@pytest.mark.parametrize("key", ["producer_byte_rate", "consumer_byte_rate"])
def test_a_client_is_slowed_to_its_quota_and_another_is_not(own_broker, key):
    create_topic(own_broker.kafka, "t")
    set_quota(own_broker.address, "slow", key, RATE)
    measure = produce_s if key == "producer_byte_rate" else consume_s
    if measure is consume_s:
        produce_s(own_broker.kafka, "t", "loader")
    quick_s = measure(own_broker.kafka, "t", "quick")
    slow_s = measure(own_broker.kafka, "t", "slow")
    # A second's worth passes at once, and what led into debt last is not waited for.
    expected_s = COUNT * SIZE / RATE - 1
    assert slow_s > 0.9 * (expected_s - 20_000 / RATE)
    assert quick_s < slow_s / 2
    assert slow_s < 1.1 * expected_s + 1


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_quotas_are_there_again_after_a_restart(own_broker, how):
    set_quota(own_broker.address, "kept", "producer_byte_rate", 5)
    getattr(own_broker, how)()
    assert quotas(own_broker.address) == [("kept", {"producer_byte_rate": 5.0})]


def test_quotas_are_set_listed_and_deleted_on_the_command_line(own_broker):
    def quota(*words: str) -> str:
        options = ["--bootstrap", own_broker.kafka, "quota", *words]
        result = CliRunner().invoke(cli, options)
        assert result.exit_code == 0, result.output
        return result.output

    told = quota("set", "producer_byte_rate=1000", "--client-id", "a", "--dry-run")
    assert told == "valid for client-id a: producer_byte_rate=1000\n"
    assert json.loads(quota("list", "--json")) == {"quotas": []}
    quota("set", "producer_byte_rate=1000", "consumer_byte_rate=25", "--client-id", "a")
    told = quota("set", "request_percentage=50", "--user", "u", "--default-client-id")
    assert told == "changed for user u, default client-id: request_percentage=50\n"
    found = json.loads(quota("list", "--client-id", "a", "--json"))["quotas"]
    rates = {"consumer_byte_rate": 25.0, "producer_byte_rate": 1000.0}
    assert found == [{"entity": {"client-id": "a"}, "quotas": rates}]
    assert "request_percentage" in quota("list")
    quota("delete", "consumer_byte_rate", "--client-id", "a")
    assert ("a", {"producer_byte_rate": 1000.0}) in quotas(own_broker.address)
    quota("delete", "--client-id", "a")
    assert "producer_byte_rate" not in quota("list")


def test_every_worker_learns_of_a_change_without_a_restart(tmp_path):
    from tests.integration.clients import admin

    broker = Broker(tmp_path, "--workers", "2")
    broker.start()
    try:
        client = admin(broker.kafka)

        def both() -> list[tuple[str, int]]:
            known = client.list_topics(timeout=TIMEOUT_S).brokers.values()
            return [("127.0.0.1", one.port) for one in known] if len(known) == 2 else []

        addresses = wait_until(both)  # one worker may answer before it knows of the other
        set_quota(addresses[0], "everywhere", "request_percentage", 50)
        everywhere = [("everywhere", {"request_percentage": 50.0})]
        for address in addresses:
            wait_until(lambda at=address: quotas(at) == everywhere)
    finally:
        broker.stop()
