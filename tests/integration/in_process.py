"""Where brokers of this process serve the partition `t-0`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.kit.cluster import append_at
from tests.waiting import until

from headrace.metadata.facts import PinFact, pin_key
from headrace.metadata.store import ANY

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.log.partition_log import PartitionLog

TIMEOUT_S = 60


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
    async with asyncio.timeout(TIMEOUT_S):
        await append_at(node, node.topics.get("t"), 0, value)


def hold_answers(node: Node) -> tuple[asyncio.Event, asyncio.Event]:
    """Delay the answers of `node` about offsets: (a client has asked, answer now)."""
    asked, answer = asyncio.Event(), asyncio.Event()

    async def loaded_late(name: str, number: int) -> PartitionLog:
        partition = node.topics.readable.get(name).require_log(number)
        asked.set()
        await answer.wait()
        await partition.wait_loaded()
        return partition

    node.services.topics.readable_log = loaded_late  # type: ignore[method-assign]
    return asked, answer
