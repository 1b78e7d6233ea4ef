"""Brokers of one cluster in this process, each with a Kafka port of its own, over memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.node import Node
from headrace.kafka.dispatch import KafkaFace
from headrace.metadata.facts import PinFact, pin_key
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata.store import ANY
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch
from headrace.runtime.clock import SystemClock
from headrace.runtime.randomness import SystemRandomness
from headrace.server.peers import call_peers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.log.partition_log import PartitionLog
    from headrace.storage.memory import MemoryLedgerStore

TIMEOUT_S = 60

_nodes: WeakKeyDictionary[MemoryMetadata, list[Node]] = WeakKeyDictionary()
"""The running brokers of each cluster."""


@asynccontextmanager
async def broker(
    broker_id: int, metadata: MemoryMetadata, ledgers: MemoryLedgerStore
) -> AsyncIterator[Node]:
    """A broker of a cluster in this process, with a Kafka port of its own.

    All brokers know each other when it begins, so that nothing that is made from then on moves
    because one of them joined.
    """
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
    peers, face = call_peers(node), KafkaFace(node)
    await node.register(await face.listen("127.0.0.1", 0), ("127.0.0.1", 0))
    nodes = _nodes.setdefault(metadata, [])
    nodes.append(node)
    everybody = {one.config.broker_id for one in nodes}
    try:
        await until(
            lambda: all({fact.id for fact in one.ownership.brokers()} == everybody for one in nodes)
        )
        yield node
    finally:
        nodes.remove(node)
        await node.leave()
        await face.close()
        await peers.close()
        await node.close()
        await node.metadata.close()


async def serve(node: Node) -> None:
    """Wait until the partition `t-0` is at `node`."""
    await until(lambda: "t" in node.topics.by_name)
    topic = node.topics.get("t")
    await until(lambda: node.ownership.is_mine(topic, 0))
    await topic.partitions[0].wait_loaded()


async def move(node: Node, to: Node) -> None:
    """Have the partition `t-0` served at `to`."""
    key = pin_key(node.topics.get("t").id, 0)
    await node.metadata.put(key, PinFact(to.config.broker_id).encode(), ANY)
    await serve(to)


async def append(node: Node, value: bytes) -> None:
    batch = encode_batch([Record(0, node.clock.now_ms(), None, value, [])])
    log = node.topics.get("t").partitions[0]
    async with asyncio.timeout(TIMEOUT_S):
        while (appended := log.append(batch, check_batch(batch))) is None:
            await log.ready.wait()  # for its first ledger
        await appended.completion.wait()


def hold_answers(node: Node) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold back what `node` tells of its logs' offsets: (somebody has asked, answer)."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def loaded_late(name: str, number: int) -> PartitionLog:
        partition = node.topics.get(name).require_log(number)
        asked.set()
        await answer.wait()
        await partition.wait_loaded()
        return partition

    node.services.topics.log = loaded_late  # type: ignore[method-assign]
    return asked, answer
