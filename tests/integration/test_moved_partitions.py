"""A partition moves to a broker that its consumer does not know, and the consumer reads on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import NamedTuple
from uuid import UUID

from tests.integration.in_process import TIMEOUT_S, append, move, serve
from tests.kit.cluster import Cluster
from tests.waiting import until

from headrace.broker.security.sessions import ClientSession
from headrace.kafka.handlers.metadata import metadata as handle_metadata


class Asked(NamedTuple):
    """A topic of a Metadata request."""

    name: str
    topic_id: UUID = UUID(int=0)


def read_one(consumer) -> bytes:
    """The next record. What a poll raises is not caught: nothing here is the consumer's fault."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for messages in consumer.poll(timeout_ms=100).values():
            return messages[0].value
    raise AssertionError("the consumer does not read on")


async def test_kafka_python_follows_a_partition_to_a_broker_that_joined_after_it() -> None:
    from kafka import KafkaConsumer, TopicPartition

    cluster = Cluster(has_ports=True)
    async with cluster.running(1) as one:
        await one.topics.create("t", 1)
        await serve(one)
        host, port = one.cluster.kafka_address
        consumer = await asyncio.to_thread(
            KafkaConsumer, bootstrap_servers=f"{host}:{port}", auto_offset_reset="earliest"
        )
        with contextlib.closing(consumer):
            consumer.assign([TopicPartition("t", 0)])
            # At the end of an empty log: nothing that was read tells it an epoch, so it has
            # no position to validate first, and asks whom it is told of at once.
            while consumer.highwater(TopicPartition("t", 0)) is None:
                assert not await asyncio.to_thread(consumer.poll, timeout_ms=100)
            async with cluster.running(2) as two:
                reading = asyncio.create_task(asyncio.to_thread(read_one, consumer))
                await move(one, two)
                await append(two, b"at 2")
                assert await reading == b"at 2"
                await asyncio.to_thread(consumer.close)


async def test_metadata_names_no_leader_that_is_not_among_its_brokers() -> None:
    cluster = Cluster(has_ports=True)
    async with cluster.running(1) as one, AsyncExitStack() as stack:
        two = await stack.enter_async_context(cluster.running(2))
        await one.topics.create("t", 1)
        await move(one, two)
        await until(lambda: one.ownership.leader(one.topics.get("t"), 0).broker == 2)
        create = one.topics.create

        async def create_late(name: str) -> None:
            await stack.aclose()  # broker 2 goes while the request waits for the new topic
            await until(lambda: [fact.id for fact in one.cluster.brokers()] == [1])
            await create(name)

        one.topics.create = create_late  # type: ignore[method-assign,assignment]
        asked = (Asked("t"), Asked("new"))
        answer = await handle_metadata(
            one,
            SimpleNamespace(
                topics=asked,
                allow_auto_topic_creation=True,
                include_topic_authorized_operations=False,
                include_cluster_authorized_operations=False,
            ),
            SimpleNamespace(version=9, session=ClientSession("PLAINTEXT", "127.0.0.1")),
        )
        assert [topic["error_code"] for topic in answer["topics"]] == [0, 0]
        leaders = {p["leader_id"] for t in answer["topics"] for p in t["partitions"]}
        assert leaders <= {broker["node_id"] for broker in answer["brokers"]} | {-1}
