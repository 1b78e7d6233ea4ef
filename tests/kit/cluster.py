"""Several brokers of a test, in one process, over shared metadata and ledgers in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from tests.kit.broker import BrokerHarness
from tests.kit.records import append, batch
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.machine import Machine
from headrace.broker.ownership.shared_ownership import SharedOwnership
from headrace.errors import HeadraceError
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.records.codec import iterate_records
from headrace.server.peers import kafka_peers
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headrace.broker.node import Node
    from headrace.broker.topics.topic import Topic


class Cluster:
    """Brokers that come and go. `kill` leaves everything as it lies, as kill -9 would."""

    def __init__(self, *, has_ports: bool = False) -> None:
        """`has_ports`: the brokers reach each other, and clients reach them, over sockets."""
        self.has_ports = has_ports
        self.metadata = MemoryMetadata()
        self.ledgers = MemoryLedgerStore()
        self.rigs: dict[int, BrokerHarness] = {}
        self.settings: dict[str, Any] = {"rebalance_delay_ms": 20, "join_timeout_ms": 300}
        """Of the brokers that start from now on."""

    @property
    def nodes(self) -> dict[int, Node]:
        """The brokers that run."""
        return {broker_id: rig.node for broker_id, rig in self.rigs.items()}

    async def start(self, broker_id: int, slots: Sequence[int] = ()) -> Node:
        """A broker that all others know, so that nothing made from then on moves because it joined.
        `slots`: see Node; then each broker has ledgers of its own."""
        ledgers = MemoryLedgerStore() if slots else self.ledgers.beside()
        rig = BrokerHarness(
            BrokerConfig(broker_id=broker_id, **self.settings),
            ledgers,
            MemoryMetadataStore(self.metadata),
            shared_ledgers=None if slots else ledgers,
            slots=slots,
            machine=Machine(peers=kafka_peers) if self.has_ports else Machine(),
        )
        node = await rig.start()
        await rig.join(has_port=self.has_ports)
        self.rigs[broker_id] = rig
        await until(
            lambda: all(
                {fact.id for fact in other.ownership.brokers()} == {*self.rigs}
                for other in self.nodes.values()
            )
        )
        return node

    async def kill(self, broker_id: int, *, is_session_over: bool = True) -> Node:
        rig = self.rigs.pop(broker_id)
        await rig.kill()
        if is_session_over:
            await rig.metadata.close()
        return rig.node

    async def stop(self, broker_id: int) -> None:
        rig = self.rigs.pop(broker_id)
        await rig.node.leave()
        await rig.stop()
        await rig.metadata.close()

    @asynccontextmanager
    async def running(self, broker_id: int) -> AsyncIterator[Node]:
        """A broker from its start to its end."""
        node = await self.start(broker_id)
        try:
            yield node
        finally:
            await self.stop(broker_id)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker_id in list(self.rigs):
            await self.kill(broker_id)

    def owners(self, name: str, node: Node | None = None) -> list[int]:
        """The owner of each partition, as one broker sees it."""
        seen_by = node or next(iter(self.nodes.values()))
        topic = seen_by.topics.by_name.get(name)
        if topic is None:
            return []
        count = len(topic.partitions)
        return [seen_by.ownership.leader(topic, number).broker for number in range(count)]

    def targets(self, name: str, node: Node) -> list[int]:
        """The broker to which each partition is to move, or where it is to stay, as one broker
        sees it."""
        topic, ownership = node.topics.get(name), node.ownership
        assert isinstance(ownership, SharedOwnership)
        return [ownership.placement.target(topic, at) for at in range(len(topic.partitions))]

    def agree(self, name: str, among: set[int]) -> bool:
        """Whether all brokers name the same owners, these serve, and no others do."""
        views = [self.owners(name, node) for node in self.nodes.values()]
        if not views[0] or any(view != views[0] for view in views) or not set(views[0]) <= among:
            return False
        for broker_id, node in self.nodes.items():
            topic = node.topics.get(name)
            for number, owner in enumerate(views[0]):
                if node.ownership.is_mine(topic, number) != (owner == broker_id):
                    return False
                if owner == broker_id and topic.partitions[number].failure:
                    return False
        return True

    async def append(self, name: str, number: int, value: bytes) -> int:
        """Append at whichever broker owns the partition, as a client with retries does."""
        for _ in range(500):
            for node in self.nodes.values():
                topic = node.topics.by_name.get(name)
                if topic is None:
                    continue
                try:
                    return await append_at(node, topic, number, value)
                except HeadraceError:
                    continue
            await asyncio.sleep(0.005)
        raise AssertionError("no broker took the record")

    async def values(self, name: str, number: int) -> list[bytes]:
        for node in self.nodes.values():
            topic = node.topics.get(name)
            if node.ownership.is_mine(topic, number):
                log = topic.partitions[number]
                await log.wait_loaded()
                found: list[bytes] = []
                offset = log.log_start_offset
                while offset < log.high_watermark:
                    for record in iterate_records(await log.reader.read(offset, 1 << 20)):
                        assert record.offset == offset, "offsets are dense"
                        found.append(record.value)
                        offset += 1
                return found
        raise AssertionError("no broker owns it")


async def append_at(node: Node, topic: Topic, number: int, value: bytes) -> int:
    """Append at this broker."""
    data = batch(value, timestamp_ms=node.clock.now_ms())
    return await append(topic.require_log(number), data)
