"""A broker's transaction coordinator over real logs: markers, offsets, deletion, restart."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.kit.broker import BrokerHarness
from tests.kit.records import append, batch
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.coordinators import transaction_coordinator
from headrace.broker.coordinators.marker_sender import MarkerSender
from headrace.coordination.groups.commands import (
    FetchOffsetsCommand,
    OffsetToCommit,
    TransactionalCommitCommand,
)
from headrace.coordination.kit.machine import EndsTransaction
from headrace.coordination.transactions.commands import (
    AddPartitionsCommand,
    EndTransactionCommand,
    InitProducerIdCommand,
    ListTransactionsCommand,
    MarkersWrittenCommand,
    WriteMarkers,
)
from headrace.errors import (
    BrokerUnreachable,
    ConcurrentTransactions,
    OffsetCommitUnstable,
    ProducerFenced,
    TransactionAbortable,
    TransactionCoordinatorFenced,
)
from headrace.records.identifiers import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.broker.node import Node
    from headrace.log.partition_log import PartitionLog

CONFIG = BrokerConfig(offsets_partition_count=2, transactions_partition_count=2)


class TransactionalBroker(BrokerHarness):
    """A broker, and the calls of one producer."""

    async def start(self) -> Node:
        node = await super().start()
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
            await node.topics.ensure_internal(name)
        return node

    async def init(self, timeout_ms: int = 60_000) -> tuple[int, int]:
        command = InitProducerIdCommand("t", timeout_ms)
        reply = await self.node.transactions.submit(command)
        assert reply.error is None
        return reply.producer_id, reply.producer_epoch

    async def add(self, producer: tuple[int, int], *partitions: tuple[str, int]) -> None:
        command = AddPartitionsCommand("t", *producer, frozenset(partitions))
        assert (await self.node.transactions.submit(command)).error is None

    async def end(self, producer: tuple[int, int], *, commit: bool = True) -> None:
        command = EndTransactionCommand("t", *producer, commit)
        assert (await self.node.transactions.submit(command)).error is None

    async def state(self) -> str:
        reply = await self.node.transactions.list_transactions(ListTransactionsCommand())
        return reply.transactions[0].state

    async def wait_for_state(self, state: str) -> None:
        async with asyncio.timeout(10):
            while await self.state() != state:
                await asyncio.sleep(0.01)

    async def log(self, name: str, number: int = 0) -> PartitionLog:
        log = self.node.topics.get(name).partitions[number]
        await log.wait_loaded()
        return log

    async def write(self, producer: tuple[int, int], name: str, number: int = 0) -> None:
        of_producer = {"producer_id": producer[0], "producer_epoch": producer[1]}
        data = batch(b"v", **of_producer, base_sequence=0, is_transactional=True)
        await append(await self.log(name, number), data)


@asynccontextmanager
async def world() -> AsyncIterator[TransactionalBroker]:
    made = TransactionalBroker(CONFIG)
    async with made.running():
        yield made


async def test_a_commit_ends_the_transaction_in_every_partition():
    async with world() as w:
        await w.node.topics.create("a", 2)
        producer = await w.init()
        await w.add(producer, ("a", 0), ("a", 1))
        for number in (0, 1):
            await w.write(producer, "a", number)
            assert (await w.log("a", number)).visibility.last_stable_offset == 0
        await w.end(producer)
        await w.wait_for_state("CompleteCommit")
        for number in (0, 1):
            assert (await w.log("a", number)).visibility.last_stable_offset == 2


async def ending(w, monkeypatch, held_s, reports=0):
    """The producer of a transaction that is being committed: its marker is written after `held_s`,
    and so many times before that no marker at all is reported to be."""
    await w.node.topics.create("a", 1)
    producer = await w.init()
    await w.add(producer, ("a", 0))
    await w.write(producer, "a")
    send, loop = MarkerSender.send, asyncio.get_running_loop()

    def send_later(sender, effect, epoch, report):
        loop.call_later(held_s, send, sender, effect, epoch, report)
        none = MarkersWrittenCommand(effect.transactional_id, effect.token, frozenset())
        for number in range(reports):
            loop.call_later(held_s / 2 * number / reports, report, none)

    monkeypatch.setattr(MarkerSender, "send", send_later)
    await w.end(producer)
    return producer


@pytest.mark.parametrize("held_s", [0.03, 1.0])
async def test_the_next_transaction_waits_a_moment_for_the_previous_one_to_be_completed(
    held_s, monkeypatch
):
    """A client would repeat its request only after 20 to 100 ms."""

    async with world() as w:
        loop = asyncio.get_running_loop()
        producer = await ending(w, monkeypatch, held_s)
        started_s = loop.time()
        command = AddPartitionsCommand("t", *producer, frozenset({("a", 0)}))
        error = (await w.node.transactions.submit(command)).error
        waited_s = loop.time() - started_s
        if held_s < 0.1:
            assert error is None
            assert waited_s >= held_s - 0.005
        else:
            assert isinstance(error, ConcurrentTransactions)
            assert waited_s < held_s, "others on its connection wait as well"
            await w.wait_for_state("CompleteCommit")


async def test_the_next_transaction_begins_as_soon_as_the_previous_one_is_completed(monkeypatch):
    for name in ("COMPLETION_WAIT_S", "COMPLETION_LOOK_S"):
        monkeypatch.setattr(transaction_coordinator, name, 60)

    async with world() as w:
        producer = await ending(w, monkeypatch, 0.05)
        command = AddPartitionsCommand("t", *producer, frozenset({("a", 0)}))
        async with asyncio.timeout(30):
            reply = await w.node.transactions.submit(command)
        assert reply.error is None


async def test_the_next_transaction_waits_for_markers_that_are_reported_one_after_another(
    monkeypatch,
):
    async with world() as w:
        producer = await ending(w, monkeypatch, 0.05, reports=20)
        command = AddPartitionsCommand("t", *producer, frozenset({("a", 0)}))
        assert (await w.node.transactions.submit(command)).error is None


async def test_a_topic_that_is_deleted_does_not_hold_up_the_end():
    async with world() as w:
        for name in ("a", "b"):
            await w.node.topics.create(name, 1)
        producer = await w.init()
        await w.add(producer, ("a", 0), ("b", 0))
        await w.write(producer, "b")
        await w.node.services.topics.delete("a")
        await w.end(producer)
        await w.wait_for_state("CompleteCommit")
        assert w.node.marker_sender.waiting_count == 0
        assert (await w.log("b")).visibility.last_stable_offset == 2


async def test_offsets_count_after_the_marker_and_outlive_the_broker():
    async with world() as made:
        await made.node.topics.create("a", 1)
        producer = await made.init()
        partition = made.node.groups.partition_for("g")
        await made.add(producer, (OFFSETS_TOPIC, partition))
        made.node.topics.get(OFFSETS_TOPIC).partitions[partition].begin_verification(producer[0])
        commit = TransactionalCommitCommand(
            "g", *producer, -1, "", None, [OffsetToCommit("a", 0, 7)]
        )
        reply = await made.node.groups.submit(commit)
        assert reply.results[0].error is None
        await made.restart()
        fetch = FetchOffsetsCommand("g", [("a", 0)], require_stable=True)
        found = (await made.node.groups.submit(fetch)).offsets[0]
        assert isinstance(found.error, OffsetCommitUnstable)
        await made.end(producer)
        await made.wait_for_state("CompleteCommit")
        for _ in range(2):
            found = (await made.node.groups.submit(fetch)).offsets[0]
            assert (found.error, found.offset) == (None, 7)
            await made.restart()


async def test_a_transaction_of_a_dead_producer_ends_after_a_restart_without_a_request():
    """Its readers would wait for ever: a new owner reads its log when the first client asks."""

    async with world() as made:
        await made.node.topics.create("a", 1)
        producer = await made.init(timeout_ms=200)
        await made.add(producer, ("a", 0))
        await made.write(producer, "a")
        await made.restart()
        log = await made.log("a")
        await until(lambda: log.visibility.last_stable_offset >= 2)


async def test_offsets_that_come_after_their_transactions_marker_are_refused():
    async with world() as w:
        await w.node.topics.create("a", 1)
        producer = await w.init()
        partition = w.node.groups.partition_for("g")
        await w.add(producer, (OFFSETS_TOPIC, partition))
        fetch = FetchOffsetsCommand("g", [("a", 0)])
        await w.node.groups.submit(fetch)  # the group's shard is loaded
        held = w.node.topics.get(OFFSETS_TOPIC).partitions[partition]
        held.begin_verification(producer[0])
        await w.end(producer)
        await w.wait_for_state("CompleteCommit")
        commit = TransactionalCommitCommand(
            "g", *producer, -1, "", None, [OffsetToCommit("a", 0, 7)]
        )
        reply = await w.node.groups.submit(commit)
        assert reply.results[0].error is not None
        found = (await w.node.groups.submit(fetch)).offsets[0]
        assert found.offset == -1


async def test_an_older_epoch_commits_no_offsets_and_harms_no_coordinator():
    async with world() as w:
        await w.node.topics.create("a", 1)
        partition = w.node.groups.partition_for("g")
        marker = EndsTransaction(5, 3, 0, True, 1)
        assert await w.node.groups.write_marker(partition, marker) is None
        commit = TransactionalCommitCommand("g", 5, 2, -1, "", None, [OffsetToCommit("a", 0, 7)])
        reply = await w.node.groups.submit(commit)
        assert isinstance(reply.results[0].error, ProducerFenced)
        newer = marker._replace(producer_epoch=4, coordinator_epoch=2)
        assert await w.node.groups.write_marker(partition, newer) is None
        older = newer._replace(producer_epoch=5, coordinator_epoch=1)
        error = await w.node.groups.write_marker(partition, older)
        assert isinstance(error, TransactionCoordinatorFenced)
        found = await w.node.groups.submit(FetchOffsetsCommand("g", [("a", 0)]))
        assert found.error is None
        assert found.offsets[0].offset == -1


@pytest.mark.parametrize("is_adding", [False, True])
async def test_a_write_is_checked_with_the_coordinator(is_adding):
    async with world() as w:
        await w.node.register(("localhost", 1), ("localhost", 2))
        await w.node.topics.create("a", 1)
        producer = await w.init()
        checks, place = w.node.transaction_checks, frozenset({("a", 0)})
        error = await checks.check("t", producer, place, is_adding=is_adding)
        if is_adding:
            assert error is None
        else:
            assert isinstance(error, TransactionAbortable)
            await w.add(producer, ("a", 0))
        assert await checks.check("t", producer, place, is_adding=False) is None
        older = producer[0], producer[1] - 1
        error = await checks.check("t", older, place, is_adding=is_adding)
        assert isinstance(error, ProducerFenced)


class FlakyPeers:
    """Another broker that answers the third call only."""

    def __init__(self) -> None:
        self.calls = 0

    async def write_markers(self, _broker, requests):
        self.calls += 1
        if self.calls < 3:
            raise BrokerUnreachable("not yet")
        return [dict.fromkeys(request.partitions) for request in requests]

    async def add_partitions(self, _broker, _command):
        raise AssertionError("not called here")


async def test_a_marker_is_sent_to_another_broker_until_it_answers(monkeypatch):
    async with world() as w:
        await w.node.register(("localhost", 1), ("localhost", 2))
        await w.node.topics.create("a", 1)
        peers = FlakyPeers()
        w.node.marker_sender.peers = peers
        # The partition's leader is another broker as far as the sender knows.
        monkeypatch.setattr(w.node.marker_sender, "_broker_id", 99)
        reported = asyncio.get_running_loop().create_future()
        place = frozenset({("a", 0)})
        effect = WriteMarkers("t", 1, 5, 0, True, 1, place)
        w.node.marker_sender.send(effect, 0, reported.set_result)
        async with asyncio.timeout(10):
            command = await reported
        assert (command.token, command.partitions, peers.calls) == (1, place, 3)
