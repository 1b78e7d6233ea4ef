"""What protocols ask of queues beyond HTTP's, through the services of brokers that share them."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.http.test_queues_of_brokers import GROUP, TOPIC, with_brokers

from headrace.broker.services.queue_receipts import ReceiptSettlements, receipt_text
from headrace.broker.services.record_sends import Outgoing
from headrace.broker.shares.share_reads import Selection
from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.coordination.shares.commands import ACCEPT
from headrace.errors import ConfigInvalid, DeliverySettled
from headrace.records.codec import Record

BYTES_MAX = 1 << 20


class Waits:
    """A client that stays."""

    def has_gone(self):
        return False

    async def wait_gone(self):
        await asyncio.Event().wait()


class Consumer:
    """One group's consumer at one broker."""

    def __init__(self, broker):
        self.node = broker.node
        self.queues = broker.node.services.queues
        self.topic = broker.node.services.topics.get(TOPIC)

    async def receive(self, records_max=100, wait_s=0.0, **asked):
        """The (value, receipt, deliveries) of messages."""
        member = asked.pop("member", None) or self.queues.new_member()
        request = ReceiveRequest(GROUP, f"t-{member}", records_max, BYTES_MAX, True, **asked)

        def show(partition, deliveries, records):
            return [
                (one.value, receipt_text(partition, one.offset, member), deliveries)
                for one in records
            ]

        found = await self.queues.receive(self.topic, request, show, Waits(), wait_s)
        return found.messages

    async def settle(self, receipts, kind=ACCEPT):
        asked = ReceiptSettlements()
        for one in receipts:
            asked.add(one, kind)
        asked.finish()
        return await self.queues.settle(self.topic, GROUP, asked, lambda member: f"t-{member}")


def tagged(number, tag):
    return Record(0, 1, None, b"%d" % number, [("headrace-tag", tag.encode())])


async def send(broker, *outgoing):
    services = broker.node.services
    return await services.sends.send(services.topics.get(TOPIC), outgoing)


@with_brokers(2)
async def test_any_broker_selects_by_tags_and_sql_and_skips_the_rest_for_the_group(cluster):
    await cluster.make_queue()
    first, second = cluster.brokers.values()
    await send(first, *(Outgoing(tagged(n, "xyz"[n % 3]), n % 6) for n in range(30)))
    consumer = Consumer(first)
    with pytest.raises(ConfigInvalid):
        await consumer.receive(selection=Selection(sql="(("))
    found = await consumer.receive(selection=Selection("x || y", "TAGS <> 'y'"), wait_s=5)
    assert sorted(int(value) for value, *_ in found) == [*range(0, 30, 3)]
    assert await Consumer(second).receive() == []
    outcomes = await Consumer(second).settle([receipt for _, receipt, _ in found])
    assert outcomes == [None] * 10
    again = await consumer.settle([receipt for _, receipt, _ in found])
    assert {type(one) for one in again} == {DeliverySettled}


@with_brokers(2)
async def test_what_one_receive_leaves_another_one_at_another_broker_gets(cluster):
    await cluster.make_queue()
    first, second = cluster.brokers.values()
    await send(first, *(Outgoing(tagged(n, "xy"[n % 2]), n % 6) for n in range(24)))
    chosen = Selection("x", leaves_others=True)
    assert len(await Consumer(first).receive(selection=chosen)) == 12
    found = await Consumer(second).receive(selection=Selection("y", leaves_others=True))
    assert sorted(int(value) for value, *_ in found) == [*range(1, 24, 2)]
