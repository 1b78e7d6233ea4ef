"""The next owner of a coordinator's partition reads its state while the former one serves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.cluster import Cluster
from tests.unit.broker.test_shared_ownership import group_owners
from tests.waiting import until

from headrace.broker.coordinators.internal_topics import InternalPartition
from headrace.broker.coordinators.shard_replay import StateAhead, restore
from headrace.broker.ownership import hand_over
from headrace.broker.ownership.hand_over import HandOvers
from headrace.coordination.groups.commands import (
    CommitCommand,
    DeleteOffsetsCommand,
    FetchOffsetsCommand,
    OffsetToCommit,
)
from headrace.errors import OffsetOutOfRange, StorageUnavailable
from headrace.metadata.facts import PinFact, pin_key
from headrace.metadata.store import ANY
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.broker.coordinators.shard_log import Replayed
    from headrace.broker.node import Node


async def commit(node: Node, offset: int, name: str = "t") -> None:
    command = CommitCommand("g", -1, "", None, [OffsetToCommit(name, 0, offset)])
    assert (await node.groups.submit(command)).results[0].error is None


async def committed(node: Node) -> dict[str, int]:
    reply = await node.groups.submit(FetchOffsetsCommand("g"))
    assert reply.error is None
    return {found.topic: found.offset for found in reply.offsets}


class Watched:
    """Holds up the hand-over of the coordinator of `g`, and watches what its shard reads.

    Brokers balance other partitions meanwhile; those are none of the test's business.
    """

    def __init__(self, monkeypatch: Any, node: Node) -> None:
        watched = node.groups.partition_for("g")
        self.may_move, self.is_ready = asyncio.Event(), asyncio.Event()
        self.read: list[tuple[int, int | None, int]] = []
        """(leader epoch, where it began, records) of each replay."""
        move, replay = HandOvers._move, InternalPartition.replay

        async def late(hand_overs: Any, topic: Any, number: int, *others: Any) -> bool:
            if (topic.name, number) == (OFFSETS_TOPIC, watched):
                self.is_ready.set()
                await self.may_move.wait()
            return await move(hand_overs, topic, number, *others)

        async def counted(log: Any, after: int | None = None) -> AsyncIterator[Replayed]:
            count = 0
            async for replayed in replay(log, after):
                count += len(replayed) if isinstance(replayed, list) else 1
                yield replayed
            if log._partition.name == f"{OFFSETS_TOPIC}-{watched}":
                self.read.append((log.leader_epoch, after, count))

        monkeypatch.setattr(HandOvers, "_move", late)
        monkeypatch.setattr(InternalPartition, "replay", counted)


async def begin_move(node: Node, target: int) -> None:
    key = pin_key(node.topics.get(OFFSETS_TOPIC).id, node.groups.partition_for("g"))
    await node.metadata.put(key, PinFact(target).encode(), ANY)


async def test_only_what_came_after_the_announcement_is_read_after_the_hand_over(
    monkeypatch,
) -> None:
    monkeypatch.setattr(hand_over, "SEAL_BYTES_MIN", 1_000)

    async with Cluster() as cluster:
        owner, other = await group_owners(cluster)
        await owner.topics.create("gone", 1)
        for offset in range(40):
            await commit(owner, offset)
        await commit(owner, 3, "gone")
        watched = Watched(monkeypatch, owner)
        await begin_move(owner, other.config.broker_id)
        await watched.is_ready.wait()
        assert not other.groups.shards.opened(), "the former coordinator still serves"
        await commit(owner, 40)
        deleted = DeleteOffsetsCommand("g", [("gone", 0)])
        assert (await owner.groups.submit(deleted)).error is None
        watched.may_move.set()
        await until(lambda: any("g" in m.groups for m in other.groups.shards.machines()))
        ((epoch, after, count),) = watched.read
        assert (epoch, after + count) == (1, 43)
        assert after >= 41, "what was announced is not read again; a slow look ahead reads more"
        assert await committed(other) == {"t": 40}


async def test_a_move_that_does_not_take_place_leaves_no_state(monkeypatch) -> None:
    monkeypatch.setattr(hand_over, "SEAL_BYTES_MIN", 1_000)

    async with Cluster() as cluster:
        owner, other = await group_owners(cluster)
        for offset in range(40):
            await commit(owner, offset)
        watched = Watched(monkeypatch, owner)
        await begin_move(owner, other.config.broker_id)
        await watched.is_ready.wait()
        number = owner.groups.partition_for("g")
        await until(lambda: number in other.groups.shards._ahead)
        topic = other.topics.get(OFFSETS_TOPIC)
        other.ownership._next.drop((topic.id, number), "it is tested")
        assert number not in other.groups.shards._ahead


async def test_state_that_cannot_be_read_ahead_is_read_after_the_hand_over(monkeypatch) -> None:
    monkeypatch.setattr(hand_over, "SEAL_BYTES_MIN", 1_000)

    async with Cluster() as cluster:
        owner, other = await group_owners(cluster)
        for offset in range(40):
            await commit(owner, offset)

        def broken(*_: Any) -> Any:
            raise StorageUnavailable("no bookie answers")

        watched = Watched(monkeypatch, owner)
        watched.may_move.set()
        monkeypatch.setattr(InternalPartition, "replay_from", broken)
        monkeypatch.setattr(hand_over, "COORDINATOR_READY_WAIT_S", 1_000)
        await begin_move(owner, other.config.broker_id)
        async with asyncio.timeout(60):  # it reports that it is ready anyway
            await watched.is_ready.wait()
        monkeypatch.undo()
        await until(lambda: any("g" in m.groups for m in other.groups.shards.machines()))
        assert await committed(other) == {"t": 39}


class Machine:
    """Remembers what is applied."""

    def __init__(self, seen: list[bytes]) -> None:
        self.seen = seen

    def replayer(self) -> Any:
        return lambda records: self.seen.extend(value for _, value in records)


class Log:
    def __init__(self, start: int, values: list[bytes]) -> None:
        self.leader_epoch = 5
        self.start = start
        self.values = values

    async def replay(self, after: int | None = None) -> AsyncIterator[Replayed]:
        if after is not None and after < self.start:
            raise OffsetOutOfRange("trimmed")
        for value in self.values[self.start if after is None else after :]:
            yield [(b"k", value)]


@pytest.mark.parametrize(
    ("start", "epoch", "is_used"), [(0, 5, True), (2, 5, True), (3, 5, False), (0, 4, False)]
)
def test_a_state_read_ahead_is_used_if_nothing_is_missing(start, epoch, is_used) -> None:
    """A record trimmed since may have been a deletion."""
    values = [b"a", b"b", b"c", b"d"]
    ahead = StateAhead(Machine(values[:2]), 2, 100, epoch)
    log: Any = Log(start, values)
    machine, _ = asyncio.run(restore(lambda: Machine([]), log, ahead))
    assert (machine is ahead.machine) == is_used
    assert machine.seen == (values if is_used else values[start:])
