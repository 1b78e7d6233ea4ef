"""Moves by load: brokers in one process, over stores in memory, that balance on demand."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.kit.cluster import Cluster
from tests.waiting import until

from headrace.broker.ownership.balance import BALANCER, STALE_EVALUATIONS
from headrace.coordination.placement.rendezvous import place
from headrace.metadata.facts import PinFact, draining_key, pin_key
from headrace.metadata.load_facts import MOVES, LoadFact, MovedPartition, MovesFact, load_key
from headrace.metadata.store import ANY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.coordination.placement.load import Move

PATIENCE = 3


class Balanced:
    """Three brokers and a topic of six partitions, two at each; those of one are hot."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def start(self) -> None:
        for broker_id in (1, 2, 3):
            await self.cluster.start(broker_id)
        self.be_quick()
        await self.any.topics.create("t", 6)
        await until(lambda: self.cluster.agree("t", {1, 2, 3}))
        owners = self.owners
        self.hot = [number for number in range(6) if owners[number] == owners[0]]
        self.source = owners[0]
        assert len(self.hot) == 2

    def be_quick(self) -> None:
        for node in self.nodes:
            node.config.balance_patience = PATIENCE
            node.config.balance_cpu_percent_min = 0

    @property
    def nodes(self):
        return list(self.cluster.nodes.values())

    @property
    def any(self):
        return next(iter(self.cluster.nodes.values()))

    @property
    def owners(self) -> list[int]:
        return self.cluster.owners("t")

    async def load(self) -> None:
        """Some records to every partition, and many to the hot ones."""
        for number in range(6):
            for _ in range(60 if number in self.hot else 1):
                await self.cluster.append("t", number, b"x" * 2_000)

    async def looks(self, count: int) -> list[Move]:
        """Let every broker look so often, under load; what was moved."""
        moves = []
        for _ in range(count):
            await self.load()
            for node in self.cluster.nodes.values():
                move = await node.balance.evaluate()
                if move is not None:
                    moves.append(move)
                    await until(lambda m=move: self.owners[m.partition[1]] == m.target)
                    await until(lambda: self.cluster.agree("t", {1, 2, 3}))
        return moves

    async def next_move(self) -> Move:
        """Look until something is moved; how soon depends on how evenly this machine runs."""
        for _ in range(20 * PATIENCE):
            for move in await self.looks(1):
                return move
        raise AssertionError("nothing was moved")


@asynccontextmanager
async def balanced() -> AsyncIterator[Balanced]:
    async with Cluster() as cluster:
        made = Balanced(cluster)
        await made.start()
        yield made


async def test_of_two_hot_partitions_of_one_broker_one_moves_and_then_nothing_does() -> None:
    async with balanced() as b:
        before = b.owners
        assert await b.looks(PATIENCE - 1) == [], "patience"
        move = await b.next_move()
        assert move.partition[1] in b.hot
        assert move.source == b.source
        after = b.owners
        assert [n for n in range(6) if before[n] != after[n]] == [move.partition[1]]
        assert after[move.partition[1]] == move.target
        assert await b.looks(3 * PATIENCE) == [], "it rests, and is even"


async def test_a_pinned_partition_is_never_moved() -> None:
    async with balanced() as b:
        topic = b.any.topics.get("t")
        for number in b.hot:
            fact = PinFact(b.source)
            await b.any.metadata.put(pin_key(topic.id, number), fact.encode(), ANY)
        await until(
            lambda: all(
                len(node.ownership.view.pins.get(topic.id, {})) == 2
                for node in b.cluster.nodes.values()
            )
        )
        assert all(move.partition[1] not in b.hot for move in await b.looks(3 * PATIENCE))
        assert all(b.owners[number] == b.source for number in b.hot)


async def test_nothing_moves_where_the_setting_is_off_or_the_brokers_have_time_enough() -> None:
    async with balanced() as b:
        for node in b.cluster.nodes.values():
            node.config.is_balancing = False
        assert await b.looks(2 * PATIENCE) == []
        for node in b.cluster.nodes.values():
            node.config.is_balancing = True
            node.config.balance_cpu_percent_min = 50  # and nobody has told of any CPU time
        assert await b.looks(2 * PATIENCE) == []


async def test_a_broker_whose_load_is_not_known_stops_all_moves() -> None:
    async with balanced() as b:
        for node in b.cluster.nodes.values():
            node.config.balance_patience = STALE_EVALUATIONS + 3
        decider = place(BALANCER, 1, [1, 2, 3], {})[0]
        node = next(node for id_, node in b.cluster.nodes.items() if id_ != decider)
        assert await b.looks(1) == []
        look = node.balance.evaluate

        async def say_nothing() -> None:
            return None

        node.balance.evaluate = say_nothing
        assert await b.looks(4 * STALE_EVALUATIONS) == []
        node.balance.evaluate = look
        await b.next_move()


async def test_while_a_broker_drains_and_just_after_one_joined_nothing_moves() -> None:
    async with balanced() as b:
        metadata = b.any.metadata
        assert await b.looks(PATIENCE - 1) == []
        # None is emptied by it, and yet: an operator is at work.
        await metadata.put(draining_key(9), b"{}", ANY)
        await until(lambda: all(9 in n.ownership.view.draining for n in b.nodes))
        assert await b.looks(2 * PATIENCE) == []
        await metadata.delete(draining_key(9), ANY)
        await until(lambda: all(not n.ownership.view.draining for n in b.nodes))
        assert await b.looks(PATIENCE) == [], "the count begins anew"
        idle = next(broker for broker in (1, 2, 3) if broker != b.source)
        await b.cluster.stop(idle)
        await b.cluster.start(idle)
        b.be_quick()
        await until(lambda: b.cluster.agree("t", {1, 2, 3}))
        b.hot = [n for n in range(6) if b.owners[n] == b.source]
        assert await b.looks(PATIENCE) == [], "and anew"
        assert (await b.next_move()).partition[1] in b.hot


async def test_a_move_is_forgotten_while_its_broker_is_away_or_one_lives_that_does_not_follow():
    async with balanced() as b:
        topic = b.any.topics.get("t")
        home = b.owners[0]
        away = next(broker for broker in (1, 2, 3) if broker != home)
        fact = MovesFact([MovedPartition(topic.id, 0, away, 1)])
        await b.any.metadata.put(MOVES, fact.encode(), ANY)
        await until(lambda: b.owners[0] == away and b.cluster.agree("t", {1, 2, 3}))
        node = b.cluster.nodes[home]
        member = node.ownership._membership
        older = replace(member._fact, moves_version=None)
        await node.metadata.put(member._key, older.encode(), ANY, ephemeral=True)
        await until(lambda: b.owners[0] == home and b.cluster.agree("t", {1, 2, 3}))
        await node.metadata.put(member._key, member._fact.encode(), ANY, ephemeral=True)
        await until(lambda: b.owners[0] == away and b.cluster.agree("t", {1, 2, 3}))
        await b.cluster.stop(away)
        alive = {1, 2, 3} - {away}
        await until(lambda: b.cluster.agree("t", alive))


async def test_published_load_is_the_load_carried() -> None:
    async with balanced() as b:
        await b.looks(2)
        for broker, node in b.cluster.nodes.items():
            fact = LoadFact.decode((await node.metadata.get(load_key(broker))).value)
            named = {(rate.topic, rate.partition) for rate in fact.busiest}
            mine = {(node.topics.get("t").id, n) for n in range(6) if b.owners[n] == broker}
            assert named == mine
            assert fact.in_bytes_per_s == sum(rate.bytes_per_s for rate in fact.busiest) > 0
            assert fact.out_bytes_per_s == 0
