"""What protocols ask of queues beyond HTTP's, through the services of brokers that share them."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from tests.unit.http.test_queues_of_brokers import GROUP, TOPIC, with_brokers
from tests.waiting import until

from headrace.broker.services import check_backs
from headrace.broker.services.message_timers import HalfReference
from headrace.broker.services.queue_receipts import ReceiptSettlements, receipt_text
from headrace.broker.services.record_sends import BATCH_BYTES_MAX, Outgoing, Sent
from headrace.broker.services.timer_receipts import DelayedReceipt, HalfReceipt
from headrace.broker.shares.share_reads import Selection
from headrace.broker.shares.share_receive import ATTEMPT, ReceiveRequest
from headrace.coordination.shares.commands import ACCEPT, RELEASE
from headrace.coordination.timers.state_records import COMMITTED, ROLLED_BACK
from headrace.errors import (
    BatchTooLarge,
    ConfigInvalid,
    DeliverySettled,
    ReceiptInvalid,
    RecordStateInvalid,
    StorageUnavailable,
)
from headrace.log.appended import STORED
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

    async def receive(self, records_max=100, wait_s=0.0, client=None, **asked):
        """The (value, receipt, deliveries) of messages."""
        member = asked.pop("member", None) or self.queues.new_member()
        request = ReceiveRequest(GROUP, f"t-{member}", records_max, BYTES_MAX, True, **asked)

        def show(partition, deliveries, records):
            return [
                (one.value, receipt_text(partition, one.offset, member), deliveries)
                for one in records
            ]

        found = await self.queues.receive(self.topic, request, show, client or Waits(), wait_s)
        return found.messages

    async def settle(self, receipts, kind=ACCEPT):
        asked = ReceiptSettlements()
        for one in receipts:
            asked.add(one, kind)
        asked.finish()
        return await self.queues.settle(self.topic, GROUP, asked, lambda member: f"t-{member}")


async def attributed(cluster):
    """The nodes of a cluster whose topic reads attributes."""
    await cluster.make_queue({"headrace.message.attributes": "read"})
    return [one.node for one in cluster.brokers.values()]


def tagged(number, tag):
    return Record(0, 1, None, b"%d" % number, [("headrace-tag", tag.encode())])


async def send(node, *outgoing):
    services = node.services
    return await services.sends.send(services.topics.get(TOPIC), outgoing)


@contextlib.contextmanager
def first_append_fails(node, error):
    """The first batch that the node appends is not stored."""
    appends = node.services.sends._appends
    append = appends.append_and_wait

    async def failing(partition, batch):
        appends.append_and_wait = append
        raise error

    appends.append_and_wait = failing
    yield


LARGE = BATCH_BYTES_MAX * 3 // 4
GROUPED = [("headrace-message-group", b"g")]


def numbered(sequence, size):
    """Of a named producer."""
    headers = [("headrace-producer", b"p"), ("headrace-sequence", b"%d" % sequence)]
    return Record(0, 1, None, b"%d" % sequence + bytes(size), headers)


PARTS = {
    "too large for one batch": [
        Record(0, 1, None, b"%d" % n + bytes(size), GROUPED)
        for n, size in enumerate([LARGE, LARGE, 1], start=1)
    ],
    "too large for one batch, in a named sequence": [
        numbered(n, size) for n, size in enumerate([LARGE, LARGE, 1], start=1)
    ],
    "a named sequence, with another record between": [
        numbered(1, 1),
        Record(0, 1, None, b"2"),
        numbered(3, 1),
    ],
}


@pytest.mark.parametrize("records", PARTS.values(), ids=PARTS)
def test_records_of_a_partition_after_a_failed_batch_are_not_stored_before_it(records):
    @with_brokers(1)
    async def scenario(cluster):
        await cluster.make_queue(
            {"headrace.message.attributes": "read", "max.message.bytes": str(BATCH_BYTES_MAX)}
        )
        node = next(iter(cluster.brokers.values())).node
        outgoing = [Outgoing(one, 0) for one in records]
        elsewhere = Outgoing(Record(0, 1, None, b"elsewhere"), 1)
        with first_append_fails(node, StorageUnavailable("for a moment")):
            *failed, other = await send(node, *outgoing, elsewhere)
        assert [type(one) for one in failed] == [StorageUnavailable] * 3
        assert (other.partition, other.place.offset) == (1, 0)
        again = await send(node, *outgoing)
        assert [(one.place.offset, one.place.state) for one in again] == [
            (n, STORED) for n in range(3)
        ]

    scenario()


@with_brokers(1)
async def test_halves_of_a_batch_that_is_too_large_keep_their_order_when_one_fails(cluster):
    await cluster.make_queue({"max.message.bytes": "1000"})
    node = next(iter(cluster.brokers.values())).node
    appends = node.services.sends._appends
    append, batches = appends.append_and_wait, []

    async def second_fails(partition, batch):
        batches.append(batch)
        if len(batches) == 2:
            raise StorageUnavailable("for a moment")
        return await append(partition, batch)

    appends.append_and_wait = second_fails
    outgoing = [Outgoing(Record(0, 1, None, bytes(700)), 0) for _ in range(2)]
    failed = await send(node, *outgoing)
    assert [type(one) for one in failed] == [StorageUnavailable] * 2
    assert len(batches) == 2, "the whole, and its first half"
    assert [one.place.offset for one in await send(node, *outgoing)] == [0, 1]


@with_brokers(1)
async def test_a_record_that_is_refused_costs_those_of_other_batches_nothing(cluster):
    await cluster.make_queue({"max.message.bytes": str(1 << 20)})
    node = next(iter(cluster.brokers.values())).node
    sizes = [LARGE, LARGE, 1]
    found = await send(node, *(Outgoing(Record(0, 1, None, bytes(size)), 0) for size in sizes))
    assert [type(one) for one in found] == [BatchTooLarge, BatchTooLarge, Sent]


@with_brokers(2)
async def test_any_broker_selects_by_tags_and_sql_and_skips_the_rest_for_the_group(cluster):
    await cluster.make_queue()
    first, second = cluster.brokers.values()
    await send(first.node, *(Outgoing(tagged(n, "xyz"[n % 3]), n % 6) for n in range(30)))
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
async def test_messages_left_by_one_selection_are_received_at_another_broker(cluster):
    await cluster.make_queue()
    first, second = cluster.brokers.values()
    await send(first.node, *(Outgoing(tagged(n, "xy"[n % 2]), n % 6) for n in range(24)))
    chosen = Selection("x", leaves_others=True)
    assert len(await Consumer(first).receive(selection=chosen)) == 12
    found = await Consumer(second).receive(selection=Selection("y", leaves_others=True))
    assert sorted(int(value) for value, *_ in found) == [*range(1, 24, 2)]


def keyed(value, key):
    return Record(0, 1, key.encode(), value.encode(), [])


def values(messages):
    return [value.decode() for value, *_ in messages]


def receipts(messages):
    return [receipt for _, receipt, _ in messages]


@with_brokers(2)
async def test_messages_of_one_key_come_together_and_lock_it_until_all_are_settled(cluster):
    await cluster.make_queue(**{"headrace.share.key.order": "true"})
    first, second = cluster.brokers.values()
    one, other = Consumer(first), Consumer(second)
    await send(first.node, *(Outgoing(keyed(f"a{n}", "a"), 2) for n in range(5)))
    await send(first.node, Outgoing(keyed("b0", "b"), 2))
    got = await one.receive(3, takes_followers=True, wait_s=5)
    assert values(got) == ["a0", "a1", "a2"]
    assert values(await other.receive(9, takes_followers=True)) == ["b0"]
    assert await one.settle([receipts(got)[0], receipts(got)[2]]) == [None, None]
    assert await other.receive(9, takes_followers=True) == [], "the second is not settled"
    assert await one.settle([receipts(got)[1]], RELEASE) == [None]
    again = await other.receive(9, takes_followers=True)
    assert [(value.decode(), count) for value, _, count in again] == [
        ("a1", 2), ("a3", 1), ("a4", 1),
    ]  # fmt: skip


@with_brokers(2)
async def test_a_message_group_whose_lock_ends_comes_again_in_order_with_the_right_counts(cluster):
    await cluster.make_queue(**{"headrace.share.key.order": "true"})
    first, second = cluster.brokers.values()
    await send(first.node, *(Outgoing(keyed(f"a{n}", "a"), 1) for n in range(3)))
    for count in (1, 2, 3):
        consumer = Consumer(first if count % 2 else second)
        got = await consumer.receive(9, takes_followers=True, lock_ms=100, wait_s=5)
        assert [(value.decode(), seen) for value, _, seen in got] == [
            ("a0", count), ("a1", count), ("a2", count),
        ]  # fmt: skip


@with_brokers(2)
async def test_a_receive_that_is_repeated_gets_the_same_messages_at_any_broker(cluster):
    await cluster.make_queue()
    first, second = cluster.brokers.values()
    await send(first.node, *(Outgoing(keyed(f"{n}", "k"), n % 6) for n in range(12)))
    member = first.node.services.queues.member_of_attempt(GROUP, "attempt 1")
    assert member == second.node.services.queues.member_of_attempt(GROUP, "attempt 1")
    asked = {"member": member, "attempt": ATTEMPT}
    got = await Consumer(first).receive(4, wait_s=5, **asked)
    assert len(got) == 4
    again = await Consumer(second).receive(100, **asked)
    assert sorted(again) == sorted(got), "nothing new, and no further delivery counted"
    assert await Consumer(first).settle(receipts(got)[:3]) == [None] * 3
    assert await Consumer(second).receive(100, **asked) == got[3:]
    assert len(await Consumer(second).receive(100)) == 8
    assert await Consumer(first).settle(receipts(got)[3:]) == [None]
    assert await Consumer(second).receive(100, **asked) == []


@with_brokers(2)
async def test_other_brokers_settle_while_a_partition_here_does_not_answer(cluster):
    await cluster.make_queue()
    first, second = cluster.brokers.values()
    await send(first.node, *(Outgoing(keyed(f"{n}", "k"), n % 6) for n in range(6)))
    got = []
    while len(got) < 6:
        got += await Consumer(first).receive(wait_s=5)
    here, there = first.node.shares, second.node.shares
    settle_here, settle_there = here.settle, there.settle
    has_asked = asyncio.Event()

    async def after_the_other(*arguments, **named):
        await has_asked.wait()
        return await settle_here(*arguments, **named)

    async def noted(*arguments, **named):
        has_asked.set()
        return await settle_there(*arguments, **named)

    here.settle, there.settle = after_the_other, noted
    settling = Consumer(first).settle(receipts(got))
    assert await asyncio.wait_for(settling, 10) == [None] * 6


@with_brokers(1)
async def test_keys_that_are_parked_or_released_in_one_call_share_a_sync(cluster):
    await cluster.make_queue(**{"headrace.share.key.order": "true"})
    (broker,) = cluster.brokers.values()
    queues, topic = broker.node.services.queues, broker.node.services.topics.get(TOPIC)
    await queues.park_here(topic, 0, GROUP, [b"first"])
    journal = broker.node.shares._host.get(topic, 0).shard._log
    append, appends = journal.append, []

    def counted(records, *more):
        appends.append(len(records))
        return append(records, *more)

    journal.append = counted
    keys = [b"%d" % number for number in range(20)]
    await queues.park_here(topic, 0, GROUP, keys)
    assert len(appends) == 1
    parked = await queues.list_parked_here(topic, 0, GROUP)
    assert {one.key for one in parked} == {b"first", *keys}
    asked = [b"first", b"not parked", *keys]
    assert await queues.unpark_here(topic, 0, GROUP, asked) == [b"first", *keys]
    assert len(appends) == 2


@with_brokers(2)
async def test_messages_of_a_lost_receive_attempt_wait_for_its_retry(cluster):
    await cluster.make_queue()
    first, second = cluster.brokers.values()
    await send(first.node, *(Outgoing(keyed(f"{n}", "k"), n % 6) for n in range(6)))
    lost, asked = Waits(), {"member": "7" * 32, "attempt": ATTEMPT}
    lost.has_gone = lambda: True
    assert await Consumer(first).receive(client=lost, lock_ms=60_000, **asked) == []
    assert await Consumer(second).receive() == [], "it was not given back"
    assert len(await Consumer(second).receive(**asked)) == 6
    assert await Consumer(first).receive(client=lost, member="8" * 32) == []


def with_headers(value, **headers):
    named = [(name.replace("_", "-"), one.encode()) for name, one in headers.items()]
    return Record(0, 1, None, value.encode(), named)


@with_brokers(2)
async def test_a_delayed_record_is_recalled_by_the_receipt_of_its_send(cluster):
    first, second = await attributed(cluster)
    topic, timers = second.services.topics.get(TOPIC), second.services.timers
    later = {"headrace_delay": "600000"}
    outgoing = [Outgoing(with_headers(f"{n}", **later), n % 6) for n in range(12)]
    outgoing.insert(3, Outgoing(with_headers("now"), 3))
    sent = await send(first, *outgoing)
    assert sent[3].place.state == "stored"
    assert sent[3].receipt is None
    kept = [one.receipt for one in sent if one.receipt is not None]
    assert len({*kept}) == 12
    listed, _more, failed = await timers.list_delayed(topic, range(6), (-1, -1, -1), 100)
    assert not failed
    receipts = [DelayedReceipt(one.partition, one.due_ms, one.number).text for one in listed]
    assert sorted(receipts) == sorted(kept), "as they are listed"
    now_ms = first.clock.now_ms
    assert await timers.recall(topic, kept[5], now_ms)
    assert not await timers.recall(topic, kept[5], now_ms), "again: nothing changes"
    with pytest.raises(RecordStateInvalid):
        await timers.recall(topic, kept[5], lambda: now_ms() + 700_000)
    for wrong in ("", "x", kept[0][:-3], "MS4yLjM0NTY3ODk"):
        with pytest.raises((ReceiptInvalid, RecordStateInvalid)):
            await timers.recall(topic, wrong, now_ms)
    listed, _more, _failed = await timers.list_delayed(topic, range(6), (-1, -1, -1), 100)
    assert len(listed) == 11


@with_brokers(2)
async def test_a_half_message_ends_by_the_receipt_of_its_send(cluster):
    first, second = await attributed(cluster)
    topic = second.services.topics.get(TOPIC)
    names = {"headrace_half": "shop", "headrace_message_id": "same"}
    halves = [Outgoing(with_headers(f"{n}", **names), n) for n in range(2)]
    sent = await send(first, *halves)
    assert [one.place.state for one in sent] == ["half", "half"]
    parsed = [HalfReceipt.parse(one.receipt) for one in sent]
    asked = [HalfReference(*one, "", at == 0, "") for at, one in enumerate(parsed)]
    outcomes, failed = await second.services.timers.settle(topic, asked)
    assert [one.outcome for one in outcomes] == [COMMITTED, ROLLED_BACK]
    assert not failed


CHECKED_SOON = {
    "headrace.message.attributes": "read",
    "headrace.half.check.first.ms": "300",
    "headrace.half.check.interval.ms": "600000",
}


def halves(count, group="shop"):
    names = {"headrace_half": group, "headrace_message_id": "id"}
    return [Outgoing(with_headers(f"{group}{n}", **names), n % 6) for n in range(count)]


async def checked_cluster(cluster):
    await cluster.make_queue(CHECKED_SOON)
    return [one.node for one in cluster.brokers.values()]


def bodies(shown):
    return sorted(one.body.value.decode() for one in shown)


@with_brokers(2)
async def test_check_backs_of_any_broker_are_pushed_to_a_waiting_client_and_nothing_is_polled(
    cluster,
):
    first, second = await checked_cluster(cluster)
    calls, genuine = [], first.services.calls.ask_broker

    async def counted(name, broker_id, asked, *more):
        calls.append((name, asked))
        return await genuine(name, broker_id, asked, *more)

    def takes(group):
        return sum(name == "halves.checks" and asked[0] == group for name, asked in calls)

    cluster.patch.setattr(first.services.calls, "ask_broker", counted)
    waiting = asyncio.create_task(first.services.timers.poll_checks("shop", 100, None))
    other = asyncio.create_task(first.services.timers.poll_checks("other", 100, None))
    await until(lambda: (takes("shop"), takes("other")) == (2, 2))  # each broker, once
    await send(second, *halves(6))
    found = list((await asyncio.wait_for(waiting, 60))[0])
    while len(found) < 6:
        found += (await asyncio.wait_for(first.services.timers.poll_checks("shop", 9, 20), 60))[0]
    assert bodies(found) == [f"shop{n}" for n in range(6)]
    assert not other.done(), "it is another group's"
    assert takes("other") == 2, "nothing is polled, however long it takes"
    await send(first, *halves(1, "other"))
    assert bodies((await asyncio.wait_for(other, 60))[0]) == ["other0"]


@with_brokers(2)
async def test_each_check_back_goes_to_one_of_those_that_wait_at_all_brokers(cluster):
    nodes = await checked_cluster(cluster)
    found = []

    async def take(node):
        while True:
            found.extend((await node.services.timers.poll_checks("shop", 2, None))[0])

    takers = [asyncio.create_task(take(node)) for node in nodes for _ in range(2)]
    await send(nodes[0], *halves(24))
    await until(lambda: len(found) >= 24)
    await asyncio.sleep(0.3)
    assert bodies(found) == sorted(f"shop{n}" for n in range(24))
    for taker in takers:
        taker.cancel()


@with_brokers(2)
async def test_a_check_back_waits_for_a_client_that_asks_for_it(cluster):
    first, second = await checked_cluster(cluster)
    await send(first, *halves(4))
    hosts = [node.timers.host.hosted for node in (first, second)]
    await until(
        lambda: sum(len(one.state.halves.asked("shop", 9)) for host in hosts for one in host) >= 4
    )
    found, failed = await second.services.timers.poll_checks("shop", 9, 0)
    assert (bodies(found), failed) == (["shop0", "shop1", "shop2", "shop3"], {})
    assert await first.services.timers.poll_checks("shop", 9, 0) == ([], {})
    cluster.patch.setattr(check_backs, "WAITERS_MAX", 0)
    with pytest.raises(StorageUnavailable):
        await first.services.timers.poll_checks("shop", 9, 0)
