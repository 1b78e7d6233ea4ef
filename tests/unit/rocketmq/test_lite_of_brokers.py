"""Lite topics where several brokers own the partitions, and when one of them dies."""

from __future__ import annotations

import asyncio
import functools

from tests.kit.cluster import Cluster
from tests.unit.rocketmq.rocketmq_rig import Rocket
from tests.unit.rocketmq.test_lite import GROUP, LEAVE, LOCK_MS, PARENT, REMOVE, SET, Lite, send
from tests.waiting import until

from headrace.rocketmq import codes

PARTITIONS = 6
NAMES = [f"n{number}" for number in range(24)]


class LiteCluster(Cluster):
    """Brokers that share a topic of lite topics."""

    def __init__(self) -> None:
        super().__init__(has_ports=True)
        self.rockets: dict[int, Rocket] = {}

    async def start(self, broker_id: int):
        await super().start(broker_id)
        self.rockets[broker_id] = Rocket(self.rigs[broker_id])

    async def kill(self, broker_id: int, **more: bool):
        del self.rockets[broker_id]
        return await super().kill(broker_id, **more)

    def are_settled(self) -> bool:
        """Whether each broker that is there owns some of the partitions, all agree on it, and none
        is to move: whoever holds a message of one that moves may not acknowledge it."""
        owners = self.owners(PARENT) if self.agree(PARENT, {*self.rigs}) else []
        if {*owners} != {*self.rockets}:
            return False
        return all(self.targets(PARENT, node) == owners for node in self.nodes.values())


def with_three_brokers(test):
    @functools.wraps(test)
    def run():
        async def scenario():
            async with LiteCluster() as cluster:
                for broker_id in (1, 2, 3):
                    await cluster.start(broker_id)
                await cluster.rockets[1].create(PARENT, "lite", PARTITIONS)
                await until(cluster.are_settled)
                await test(cluster)

        asyncio.run(scenario())

    del run.__wrapped__
    return run


@with_three_brokers
async def test_any_broker_takes_subscriptions_and_receives_and_a_takeover_keeps_positions(cluster):
    one, two, three = cluster.rockets.values()
    consumer = await Lite.open(one, "consumer")
    assert await consumer.sync(*NAMES, action=SET) == codes.OK
    for name in NAMES:
        await send(two, name, f"{name} first", f"{name} second")
    at_three = await Lite.open(three, "consumer")
    found, held = [], []
    while len(found) < 2 * len(NAMES):
        got = await at_three.receive(batch_size=7, wait_ms=30_000, invisible_ms=LOCK_MS)
        found += [message.body.decode() for message in got]
        firsts = [message for message in got if message.body.endswith(b"first")]
        held += [message for message in got if message not in firsts]
        if firsts:
            assert set(await two.acknowledge(PARENT, consumer.group, *firsts)) == {codes.OK}
    assert len({*found}) == len(found) == 2 * len(NAMES)

    await cluster.kill(2)
    await until(cluster.are_settled)
    for message in held:
        await consumer.give_back(message)
    for name in NAMES:
        await send(one, name, f"{name} third")
    taken: dict[str, list[str]] = {name: [] for name in NAMES}
    while any(len(bodies) < 2 for bodies in taken.values()):
        for body in await consumer.take(wait_ms=1_000):
            name, _, which = body.partition(" ")
            taken[name].append(which)
    assert taken == {name: ["second", "third"] for name in NAMES}


@with_three_brokers
async def test_a_new_owner_delivers_at_once_even_if_the_broker_that_died_knew_the_client(cluster):
    """The client repeats what it subscribes to every 30 s, here never."""
    one, two, three = cluster.rockets.values()
    gone = await Lite.open(two, "consumer")
    assert await gone.sync(*NAMES[:10]) == codes.OK
    assert await gone.sync(*NAMES[10:], "removed") == codes.OK
    assert await gone.sync("removed", action=REMOVE) == codes.OK
    consumer = await Lite.open(three, "consumer")
    waiting = asyncio.create_task(consumer.take(wait_ms=60_000))
    await cluster.kill(2)
    await until(cluster.are_settled)
    for name in (*NAMES, "removed"):
        await send(one, name, name)
    found = await waiting
    while len(found) < len(NAMES):
        found += await consumer.take(wait_ms=60_000)
    assert sorted(found) == sorted(NAMES)
    assert await consumer.take() == [], "it does not subscribe to the other one any more"


@with_three_brokers
async def test_a_partition_that_moves_keeps_what_clients_subscribe_to_and_what_they_ended(cluster):
    one, two, _three = cluster.rockets.values()
    stays, left = await Lite.open(one, "stays"), await Lite.open(one, "left")
    other = await Lite.open(two, "other")
    assert await left.sync(*NAMES, action=SET) == codes.OK
    await one.set_group(GROUP, **{"headrace.share.subscription": "exclusive"})
    assert await left.sync(action=LEAVE) == codes.OK
    assert await other.sync(*NAMES[:12], action=SET) == codes.OK
    assert await other.sync(*NAMES[12:], action=SET) == codes.OK
    assert await stays.sync(NAMES[12]) == codes.OK
    await cluster.kill(3)
    await until(cluster.are_settled)
    for name in NAMES:
        await send(one, name, name)
    assert await stays.take(wait_ms=60_000) == [NAMES[12]]
    found = []
    while len(found) < len(NAMES[13:]):
        found += await other.take(wait_ms=60_000)
    assert sorted(found) == sorted(NAMES[13:])
    assert [await left.take(), await other.take(), await stays.take()] == [[], [], []]
