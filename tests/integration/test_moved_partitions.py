"""A partition moves to a broker that its consumer has never heard of, and the consumer reads on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.node import Node
from headrace.kafka.dispatch import KafkaFace
from headrace.kafka.handlers.metadata import metadata as handle_metadata
from headrace.metadata.facts import PinFact, pin_key
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata.store import ANY
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch
from headrace.runtime.clock import SystemClock
from headrace.runtime.randomness import SystemRandomness
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TIMEOUT_S = 60


class Asked(NamedTuple):
    """A topic of a Metadata request."""

    name: str


@asynccontextmanager
async def broker(
    broker_id: int, metadata: MemoryMetadata, ledgers: MemoryLedgerStore
) -> AsyncIterator[Node]:
    """A broker of a cluster in this process, with a Kafka port of its own."""
    own = ledgers.beside()
    config = BrokerConfig(broker_id=broker_id, rebalance_delay_ms=20, join_timeout_ms=300)
    node = Node(
        config,
        own,
        MemoryMetadataStore(metadata),
        SystemClock(),
        SystemRandomness(),
        shared_ledgers=own,
    )
    await node.open()
    face = KafkaFace(node)
    await node.register(await face.listen("127.0.0.1", 0), ("127.0.0.1", 0))
    try:
        yield node
    finally:
        await node.leave()
        await face.close()
        await node.close()
        await node.metadata.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def serve(node: Node) -> None:
    """Wait until the partition `t-0` is at `node`."""
    await until(lambda: "t" in node.topics.by_name)
    topic = node.topics.get("t")
    await until(lambda: node.ownership.is_mine(topic, 0))
    await topic.partitions[0].wait_loaded()


async def append(node: Node, value: bytes) -> None:
    batch = encode_batch([Record(0, node.clock.now_ms(), None, value, [])])
    log = node.topics.get("t").partitions[0]
    async with asyncio.timeout(TIMEOUT_S):
        while (appended := log.append(batch, check_batch(batch))) is None:
            await log.ready.wait()  # for its first ledger
        await appended.completion.wait()


def read_one(consumer) -> bytes:
    """The next record. What a poll raises is not caught: nothing here is the consumer's fault."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        for messages in consumer.poll(timeout_ms=100).values():
            return messages[0].value
    raise AssertionError("the consumer does not read on")


def test_kafka_python_follows_a_partition_to_a_broker_that_joined_after_it() -> None:
    from kafka import KafkaConsumer, TopicPartition

    async def scenario() -> None:
        metadata, ledgers = MemoryMetadata(), MemoryLedgerStore()
        async with broker(1, metadata, ledgers) as one:
            await one.topics.create("t", 1)
            await serve(one)
            host, port = one.kafka_address
            consumer = await asyncio.to_thread(
                KafkaConsumer, bootstrap_servers=f"{host}:{port}", auto_offset_reset="earliest"
            )
            with contextlib.closing(consumer):
                consumer.assign([TopicPartition("t", 0)])
                # At the end of an empty log: nothing that was read tells it an epoch, so it has
                # no position to validate first, and asks whom it is told of at once.
                while consumer.highwater(TopicPartition("t", 0)) is None:
                    assert not await asyncio.to_thread(consumer.poll, timeout_ms=100)
                async with broker(2, metadata, ledgers) as two:
                    reading = asyncio.create_task(asyncio.to_thread(read_one, consumer))
                    key = pin_key(one.topics.get("t").id, 0)
                    await one.metadata.put(key, PinFact(2).encode(), ANY)
                    await serve(two)
                    await append(two, b"at 2")
                    assert await reading == b"at 2"
                    await asyncio.to_thread(consumer.close)

    asyncio.run(scenario())


def test_metadata_names_no_leader_that_is_not_among_its_brokers() -> None:
    async def scenario() -> None:
        metadata, ledgers = MemoryMetadata(), MemoryLedgerStore()
        async with broker(1, metadata, ledgers) as one, AsyncExitStack() as stack:
            two = await stack.enter_async_context(broker(2, metadata, ledgers))
            await one.topics.create("t", 1)
            await one.metadata.put(pin_key(one.topics.get("t").id, 0), PinFact(2).encode(), ANY)
            await serve(two)
            await until(lambda: one.ownership.leader(one.topics.get("t"), 0).broker == 2)
            create = one.topics.create

            async def create_late(name: str) -> None:
                await stack.aclose()  # broker 2 goes while the request waits for the new topic
                await until(lambda: [fact.id for fact in one.brokers()] == [1])
                await create(name)

            one.topics.create = create_late  # type: ignore[method-assign,assignment]
            asked = (Asked("t"), Asked("new"))
            answer = await handle_metadata(
                one, SimpleNamespace(topics=asked), SimpleNamespace(version=9)
            )
            assert [topic["error_code"] for topic in answer["topics"]] == [0, 0]
            leaders = {p["leader_id"] for t in answer["topics"] for p in t["partitions"]}
            assert leaders <= {broker["node_id"] for broker in answer["brokers"]} | {-1}

    asyncio.run(scenario())
