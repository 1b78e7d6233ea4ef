"""Leader epochs that stand beside positions: librdkafka reads on where it has read to."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from tests.integration.in_process import TIMEOUT_S, append, hold_answers, move
from tests.kit.cluster import Cluster

if TYPE_CHECKING:
    from headrace.broker.node import Node


def member(node: Node, reset: str) -> Any:
    """A librdkafka consumer that refreshes its metadata often."""
    from confluent_kafka import Consumer

    host, port = node.cluster.kafka_address
    return Consumer(
        {
            "bootstrap.servers": f"{host}:{port}",
            "group.id": "g",
            "auto.offset.reset": reset,
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 100,
            "log_level": 0,
        }
    )


async def read_to(consumer: Any, last: int, seen: list[int]) -> None:
    """Poll until the record at `last` has come; every offset is added to `seen`."""
    async with asyncio.timeout(TIMEOUT_S):
        while last not in seen:
            messages = await asyncio.to_thread(consumer.consume, 100, 0.1)
            seen += [message.offset() for message in messages if message.error() is None]


async def test_a_late_answer_about_the_logs_start_does_not_send_a_consumer_back_to_it() -> None:
    """librdkafka asks for the start once more, half a second later, when an answer comes that it
    asked for before its last assignment. It starts again there if the same offset comes with
    another epoch, however far it has read meanwhile."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    cluster = Cluster(has_ports=True)
    async with cluster.running(1) as one, cluster.running(2) as two:
        await one.topics.create("t", 1)
        await move(one, one)
        for _ in range(3):
            await append(one, b"v")
        asked, answer = hold_answers(one)
        consumer, seen = member(one, "earliest"), list[int]()
        with contextlib.closing(consumer):
            consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
            async with asyncio.timeout(TIMEOUT_S):
                await asked.wait()
            await asyncio.to_thread(consumer.assign, [TopicPartition("t", 0, OFFSET_BEGINNING)])
            answer.set()
            await read_to(consumer, 2, seen)
            await move(one, two)
            for last in range(3, 20):  # for longer than it waits before it asks again
                await append(two, b"v")
                await read_to(consumer, last, seen)
            assert seen == list(range(20))


async def test_a_consumer_whose_epoch_was_trimmed_away_continues_after_it() -> None:
    """Told that its epoch is unknown, it would take the log for cut off and go to the end."""
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    cluster = Cluster(has_ports=True)
    async with cluster.running(1) as one, cluster.running(2) as two:
        await one.topics.create("t", 1)
        await move(one, one)
        for _ in range(3):
            await append(one, b"v")
        consumer, seen = member(one, "latest"), list[int]()
        with contextlib.closing(consumer):
            consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
            await read_to(consumer, 2, seen)
            _asked, answer = hold_answers(two)  # where its epoch ended
            await move(one, two)
            for _ in range(3):
                await append(two, b"v")
            await two.topics.get("t").partitions[0].lifecycle_host.trim(3)
            answer.set()
            await read_to(consumer, 5, seen)
            assert seen == list(range(6))
