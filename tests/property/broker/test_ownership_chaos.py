"""Brokers that die, hang, are cut off and come back, at random: one history per partition remains.

Idempotent producers send to any broker that accepts the record, zombies included. A broker that is
cut off gets no notice from the metadata store, so that only fencing keeps it out.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from tests.kit.broker import BrokerHarness

from headrace.broker.broker_config import BrokerConfig
from headrace.errors import HeadraceError, MetadataUnavailable
from headrace.metadata.facts import PinFact, pin_key
from headrace.metadata.load_facts import MOVES, MovedPartition, MovesFact
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.metadata.store import ANY
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.storage.ledger import LedgerInfo
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from headrace.broker.node import Node

BROKERS = (1, 2, 3)
PARTITIONS = 3
STEPS = 25


class CutStore(MemoryMetadataStore):
    """A session that can be cut off: it ends for all others, and its owner does not notice."""

    def __init__(self, shared: MemoryMetadata) -> None:
        super().__init__(shared)
        self.whole = asyncio.Event()
        self.whole.set()

    def cut(self) -> None:
        self.whole.clear()
        gone = [key for key, owner in self._shared.owners.items() if owner is self]
        for key in gone:
            del self._shared.owners[key], self._shared.entries[key]
        self._shared.notify(gone)

    async def get(self, key):
        self._check_whole()
        return await super().get(key)

    async def list(self, prefix):
        self._check_whole()
        return await super().list(prefix)

    def _write(self, operations, ephemeral):
        self._check_whole()
        return super()._write(operations, ephemeral)

    def watch(self, prefix):
        keys = super().watch(prefix)

        async def late():
            async for key in keys:
                await self.whole.wait()
                yield key

        return late()

    def _check_whole(self) -> None:
        if not self.whole.is_set():
            raise MetadataUnavailable("cut off")


class Chaos:
    def __init__(self, seed: int, settle_s: float) -> None:
        self.settle_s = settle_s
        self.random = random.Random(seed)
        self.metadata = MemoryMetadata()
        self.ledgers = MemoryLedgerStore()
        self.nodes: dict[int, Node] = {}
        self.acked: dict[int, list[tuple[int, bytes]]] = {n: [] for n in range(PARTITIONS)}
        self.is_over = False
        self.zombie_attempts = 0

    async def start(self, broker_id: int) -> None:
        config = BrokerConfig(broker_id=broker_id, rebalance_delay_ms=5, join_timeout_ms=5_000)
        ledgers = self.ledgers.beside()
        rig = BrokerHarness(config, ledgers, CutStore(self.metadata), shared_ledgers=ledgers)
        node = await rig.start()
        await node.register(("127.0.0.1", 1), ("127.0.0.1", 0))
        self.nodes[broker_id] = node

    async def kill(self, broker_id: int) -> None:
        node = self.nodes.pop(broker_id)
        await node.tasks.close()
        node.metadata.whole.set()
        await node.metadata.close()

    async def produce(self, number: int) -> None:
        """One record after the other, each until it is acknowledged."""
        sequence = 0
        while not self.is_over or not sequence:
            value = b"%d" % sequence
            batch = encode_batch(
                [Record(0, 1_000, None, value, [])],
                producer_id=100 + number,
                producer_epoch=0,
                base_sequence=sequence,
            )
            offset = await self.send(number, batch)
            self.acked[number].append((offset, value))
            sequence += 1
            await asyncio.sleep(self.random.random() * 0.003)

    async def send(self, number: int, batch: bytes) -> int:
        while True:
            nodes = list(self.nodes.values())
            self.random.shuffle(nodes)
            for node in nodes:
                topic = node.topics.by_name.get("t")
                if topic is None:
                    continue
                log = topic.log(number)
                if log is None:
                    continue
                try:
                    async with asyncio.timeout(0.5):
                        appended = log.append(batch, check_batch(batch))
                        if appended is None:
                            await log.ready.wait()
                            continue
                        self.zombie_attempts += not node.metadata.whole.is_set()
                        await appended.completion.wait()
                        return appended.base_offset
                except (HeadraceError, TimeoutError):
                    continue
            await asyncio.sleep(0.001)

    async def disturb(self) -> None:
        for _ in range(STEPS):
            await asyncio.sleep(self.random.random() * 0.03)
            whole = [n for n, node in self.nodes.items() if node.metadata.whole.is_set()]
            cut = [n for n in self.nodes if n not in whole]
            step = self.random.choice(("cut", "heal", "kill", "move", "cut", "heal", "silence"))
            if step == "cut" and len(whole) > 1:
                self.nodes[self.random.choice(whole)].metadata.cut()
            elif step == "heal" and cut:
                self.nodes[self.random.choice(cut)].metadata.whole.set()
            elif step == "kill":
                victim = self.random.choice(sorted(self.nodes))
                await self.kill(victim)
                await self.start(victim)
            elif step == "silence":
                # The session is silent for a moment: it steps down, and up again.
                node = self.nodes[self.random.choice(sorted(self.nodes))]
                guard = node.ownership.guard
                guard._end_term()
                await asyncio.sleep(self.random.random() * 0.01)
                has_survived = node.metadata.whole.is_set() and self.random.random() < 0.7
                if not guard.is_up:  # it may have been checked, and found safe
                    guard.is_up = True
                    node.ownership._step_up(has_survived)
            elif step == "move" and whole:
                node = self.nodes[whole[0]]
                topic = node.topics.by_name.get("t")
                if topic is not None:
                    await self.move(node, topic.id)

    async def move(self, node, topic_id) -> None:
        """As an operator does it, or as load does."""
        number, target = self.random.randrange(PARTITIONS), self.random.choice(BROKERS)
        if self.random.random() < 0.5:
            await node.metadata.put(pin_key(topic_id, number), PinFact(target).encode(), ANY)
            return
        entry = await node.metadata.get(MOVES)
        moves = [] if entry is None else MovesFact.decode(entry.value).moves
        moves = [move for move in moves if move.partition != number]
        fact = MovesFact([*moves, MovedPartition(topic_id, number, target, 0)])
        await node.metadata.put(MOVES, fact.encode(), ANY)

    async def run(self) -> None:
        for broker_id in BROKERS:
            await self.start(broker_id)
        await self.nodes[1].topics.create("t", PARTITIONS)
        producers = [asyncio.ensure_future(self.produce(n)) for n in range(PARTITIONS)]
        await self.disturb()
        for node in self.nodes.values():
            node.metadata.whole.set()
        self.is_over = True
        async with asyncio.timeout(self.settle_s):
            await asyncio.gather(*producers)
            for number in range(PARTITIONS):
                assert await self.stored(number) == self.acked[number], f"partition {number}"
        for broker_id in list(self.nodes):
            await self.kill(broker_id)

    async def stored(self, number: int) -> list[tuple[int, bytes]]:
        """What the owner serves, once all brokers agree on the owner."""
        while True:
            topics = {node: node.topics.by_name.get("t") for node in self.nodes.values()}
            owners = {n.ownership.leader(t, number) for n, t in topics.items() if t is not None}
            if len(owners) != 1 or None in topics.values():
                await asyncio.sleep(0.005)
                continue
            for node in self.nodes.values():
                topic = node.topics.by_name["t"]
                leader = node.ownership.leader(topic, number).broker
                if leader != node.config.broker_id or not node.ownership.is_mine(topic, number):
                    continue
                log = topic.partitions[number]
                try:
                    await log.wait_loaded()
                    found: list[tuple[int, bytes]] = []
                    offset = log.log_start_offset
                    while offset < log.high_watermark:
                        data = await log.reader.read(offset, 1 << 20)
                        for record in iterate_records(data):
                            found.append((record.offset, record.value))
                            offset = record.offset + 1
                except HeadraceError:
                    continue
                return found
            await asyncio.sleep(0.005)


def check(seed: int, settle_s: float = 20) -> int:
    chaos = Chaos(seed, settle_s)
    asyncio.run(chaos.run())
    for acked in chaos.acked.values():
        assert [offset for offset, _value in acked] == list(range(len(acked)))
    return chaos.zombie_attempts


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_brokers_each_partition_has_one_history(seed):
    check(seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_histories_and_zombies_did_try():
    assert sum(check(seed) for seed in range(100, 500)) > 0


async def _without_fence(self, ledger):
    """A recovery that looks, and leaves the former writer alone."""
    found = self._find(ledger)
    return LedgerInfo(ledger, found.readable, True, found.footer)


def test_a_broker_that_is_not_fenced_is_found_out(monkeypatch):
    monkeypatch.setattr(MemoryLedgerStore, "recover", _without_fence)

    def search():
        for seed in range(12):
            check(seed, settle_s=3)

    with pytest.raises((AssertionError, TimeoutError)):
        search()
