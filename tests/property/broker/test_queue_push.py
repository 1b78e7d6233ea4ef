"""Random histories of subscriptions to a queue against a plain model of credit and deliveries."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
from tests.kit.broker import broker

from headrace.broker.services.batch_search import record_bytes
from headrace.broker.services.queue_receipts import ReceiptSettlements
from headrace.broker.services.record_sends import Outgoing
from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.coordination.shares.commands import ACCEPT, RELEASE, RENEW, UNDELIVERED
from headrace.errors import RequestInvalid
from headrace.records.codec import Record

GROUP, PARTITIONS, STEPS, LIMIT_S = "workers", 3, 40, 30


class Subscriber:
    """A subscription, and what the model says of it."""

    def __init__(self, rig: ModelledQueue, name: str) -> None:
        self.rig, self.name = rig, name
        asked = ReceiveRequest(GROUP, "", 0, 0, lock_ms=60_000)
        self.push = rig.services.queues.subscribe(rig.topic, asked, lambda one: f"t-{one}")
        self.granted = self.granted_bytes = 0
        self.got_count = self.got_bytes = 0
        self.held: dict[str, int] = {}
        self.ended = False
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        while messages := await self.push.next():
            for one in messages:
                number = int(one.record.value.split(b".")[0])
                self.got_count += 1
                assert self.got_count <= self.granted, "more than were granted"
                assert self.got_bytes < self.granted_bytes, "more bytes than were granted"
                self.got_bytes += record_bytes(one.record)
                assert not self.ended, "the subscription has ended"
                self.rig.deliver(number, one.deliveries)
                self.held[one.receipt] = number
            assert self.push.credit[0] == self.granted - self.got_count
            assert self.push.credit[1] == self.granted_bytes - self.got_bytes

    def grant(self, count: int, size: int) -> None:
        self.granted += count
        self.granted_bytes += size
        self.push.grant(count, size)

    async def settle(self, count: int, kind: int) -> None:
        asked, numbers = ReceiptSettlements(), []
        for receipt in list(self.held)[:count]:
            asked.add(receipt, kind, 0 if kind == RELEASE else -1)
            number = self.held[receipt]
            if kind != RENEW:
                del self.held[receipt]
                numbers.append(number)
        asked.finish()
        if kind == RELEASE:  # from now on it may come again, before the answer does
            self.rig.give_back(numbers)
        assert not any(await self.push.settle(asked))
        if kind == ACCEPT:
            self.rig.finished.update(numbers)
        assert self.push.unsettled == len(self.held)

    async def cancel(self) -> None:
        self.ended = True
        self.rig.give_back(self.held.values())
        kind = self.rig.rng.choice([RELEASE, UNDELIVERED])
        if kind == UNDELIVERED:
            self.rig.counts.subtract(self.held.values())
        self.held.clear()
        await self.push.cancel(kind)
        await asyncio.wait_for(self.task, LIMIT_S)
        assert await self.push.next() == []


class ModelledQueue:
    """A broker with a queue, its subscribers, and the model of its messages."""

    def __init__(self, node, topic, seed: int) -> None:
        self.services, self.topic = node.services, topic
        self.rng = random.Random(seed)
        self.sent = 0
        self.in_flight: set[int] = set()
        self.counts: Counter[int] = Counter()
        self.finished: set[int] = set()
        self.subscribers: list[Subscriber] = []
        self.names = 0

    def deliver(self, number: int, deliveries: int) -> None:
        assert number not in self.in_flight, f"{number} is with two consumers"
        assert number not in self.finished, f"{number} was finished"
        self.in_flight.add(number)
        self.counts[number] += 1
        assert deliveries == self.counts[number], f"{number} was delivered {deliveries} times"

    def give_back(self, numbers) -> None:
        self.in_flight.difference_update(numbers)

    async def send(self) -> None:
        outgoing = []
        for _ in range(self.rng.randrange(1, 20)):
            value = b"%d." % self.sent + b"x" * self.rng.randrange(200)
            outgoing.append(Outgoing(Record(0, 1, None, value, []), self.sent % PARTITIONS))
            self.sent += 1
        await self.services.sends.send(self.topic, outgoing)

    def join(self) -> None:
        self.names += 1
        self.subscribers.append(Subscriber(self, f"s{self.names}"))

    async def step(self) -> None:
        rng, some = self.rng, self.subscribers
        draw = rng.random()
        if draw < 0.25:
            await self.send()
        elif draw < 0.35 or not some:
            self.join()
        elif draw < 0.6:
            rng.choice(some).grant(rng.randrange(1, 15), rng.randrange(0, 2_000))
        elif draw < 0.9:
            kind = rng.choice([ACCEPT, ACCEPT, ACCEPT, RELEASE, RENEW])
            await rng.choice(some).settle(rng.randrange(1, 10), kind)
        elif len(some) > 1:
            await some.pop(rng.randrange(len(some))).cancel()
        await asyncio.sleep(rng.choice([0, 0, 0.002]))
        for one in some:
            if one.task.done():
                one.task.result()

    async def finish(self) -> None:
        """Whatever happened, one more consumer with enough credit gets the rest."""
        for one in self.subscribers:
            await one.cancel()
        self.join()
        (last,) = self.subscribers[-1:]
        last.grant(10_000, 1 << 30)
        async with asyncio.timeout(LIMIT_S):
            while len(self.finished) < self.sent:
                await last.settle(1_000, ACCEPT)
                if last.task.done():
                    last.task.result()
                await asyncio.sleep(0.002)
        await last.cancel()
        assert self.finished == {*range(self.sent)}


@pytest.mark.parametrize("seed", range(12))
async def test_subscriptions_deliver_each_message_to_one_consumer_within_its_credit(seed):
    async with broker() as rig:
        settings = {
            "share.auto.offset.reset": "earliest",
            "share.delivery.count.limit": "10",
        }
        await rig.node.group_configs.change(GROUP, lambda _: settings)
        await rig.node.topics.create("jobs", PARTITIONS, 1, {})
        history = ModelledQueue(rig.node, rig.node.topics.get("jobs"), seed)
        for _ in range(STEPS):
            await history.step()
        await history.finish()


async def test_a_subscription_extends_its_locks_until_it_ends():
    async with broker() as rig:
        settings = {"share.auto.offset.reset": "earliest"}
        await rig.node.group_configs.change(GROUP, lambda _: settings)
        await rig.node.topics.create("jobs", PARTITIONS, 1, {})
        history = ModelledQueue(rig.node, rig.node.topics.get("jobs"), 1)
        await history.send()
        queues = rig.node.services.queues
        asked = ReceiveRequest(GROUP, "", 0, 0, lock_ms=300)
        one, other = (queues.subscribe(history.topic, asked, str) for _ in range(2))
        one.grant(100)
        async with asyncio.timeout(LIMIT_S):
            while one.unsettled < history.sent:
                await one.next()
        other.grant(100)
        waiting = asyncio.create_task(other.next())
        await asyncio.sleep(1)
        assert not waiting.done(), "three locks long nothing came again"
        assert one.unsettled == history.sent
        with pytest.raises(RequestInvalid):
            one.grant(10_000)
        await one.cancel(UNDELIVERED)
        again = await asyncio.wait_for(waiting, LIMIT_S)
        assert {message.deliveries for message in again} == {1}
        await other.cancel()
