"""Share groups with franz-go's share consumer (KIP-932): another code base than Java's."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from tests.integration.clients import create_topic
from tests.integration.foreign import go_program
from tests.integration.test_transactions import fresh

RUN_TIMEOUT_S = 60
DELIVERIES_MAX = 3


class Group:
    """A share group that begins at the start of a topic of its own."""

    def __init__(self, broker, partitions: int) -> None:
        go_program()  # skips, where there is no Go, before anything is made
        self.bootstrap = broker.kafka
        self.topic, self.name = fresh("topic"), fresh("group")
        create_topic(broker.kafka, self.topic, partitions)
        config = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": str(DELIVERIES_MAX),
        }
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in config.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, self.name, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": broker.kafka})
        admin.incremental_alter_configs([resource])[resource].result(30)

    def write(self, values: list[str]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            producer.produce(self.topic, value.encode())
        assert producer.flush(30) == 0

    def consume(self) -> list[dict[str, object]]:
        """The deliveries to one member, which does what the values ask for until it is silent."""
        command, _environment = go_program()
        flags = ["-bootstrap", self.bootstrap, "-topic", self.topic, "-group", self.name]
        done = subprocess.run(
            [*command, "share", *flags],
            capture_output=True, text=True, check=False, timeout=RUN_TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
        return [json.loads(line) for line in done.stdout.splitlines()]


def counts_of(deliveries: list[dict[str, object]], value: str) -> list[int]:
    """How often each record of this value was delivered; the deliveries are counted from 1."""
    counted: Counter[tuple[object, object]] = Counter()
    for one in deliveries:
        if one["value"] == value:
            place = (one["partition"], one["offset"])
            counted[place] += 1
            assert one["count"] == counted[place]
    return list(counted.values())


@pytest.mark.parametrize("partitions", [1, 3])
def test_each_record_is_acknowledged_by_itself(broker, partitions):
    group = Group(broker, partitions)
    group.write(["accept", "release", "reject", "renew", "fail"] * 40)

    deliveries = group.consume()

    for value in ("accept", "reject", "renew"):
        assert counts_of(deliveries, value) == [1] * 40
    assert counts_of(deliveries, "release") == [2] * 40
    assert counts_of(deliveries, "fail") == [DELIVERIES_MAX] * 40
    assert group.consume() == []


def test_records_held_by_a_leaving_member_are_delivered_to_the_next(broker):
    group = Group(broker, 1)
    group.write(["accept", "hold", "reject", "hold"])

    first = group.consume()
    second = group.consume()

    assert [one["value"] for one in first] == ["accept", "hold", "reject", "hold"]
    assert [(one["offset"], one["count"]) for one in second] == [(1, 2), (3, 2)]
    assert group.consume() == []
