"""Dead letters whose topic is served by another broker: copies reach it, once."""

from __future__ import annotations

import asyncio
from functools import partial
from uuid import UUID

import pytest
from tests.unit.http.test_queues_of_brokers import GROUP, TOPIC, with_brokers
from tests.waiting import until

from headrace.broker.shares import dead_letters
from headrace.errors import (
    BatchCorrupt,
    BrokerUnreachable,
    NotOwner,
    PolicyViolation,
    RecordInvalid,
    RequestInvalid,
    TopicIdUnknown,
    TopicUnknown,
)
from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.records.identifiers import OFFSETS_TOPIC

DEAD = "jobs.dead"
CONFIG = {"errors.deadletterqueue.topic.name": DEAD}


async def make_dead_letter_topic(cluster, partitions=1, **config):
    """The dead letter topic, and the broker that serves its first partition."""
    nodes = [broker.node for broker in cluster.brokers.values()]
    await nodes[0].topics.create(DEAD, partitions, 1, config)
    await until(lambda: all(DEAD in node.topics.by_name for node in nodes))
    await until(lambda: any(n.ownership.is_mine(n.topics.get(DEAD), 0) for n in nodes))
    return next(n for n in nodes if n.ownership.is_mine(n.topics.get(DEAD), 0))


async def copies(node):
    log = node.topics.get(DEAD).require_log(0)
    await log.wait_loaded()
    return list(iterate_records(await log.reader.read(0, 10_000_000)))


async def reject_one(cluster, number, value):
    """Send a message to a partition, receive it, and have the group give it up."""
    await cluster.put(number, value)
    broker = cluster.owner(number)
    (message,) = [one for one in await broker.receive(max=10) if one["value"] == value.decode()]
    dead = [{"receipt": message["receipt"], "reason": "unreadable"}]
    assert all(one["ok"] for one in await broker.settle(dead_letter=dead))


async def is_finished(cluster, number):
    return (await cluster.states())[number].start == 1


@with_brokers(3)
async def test_every_partitions_dead_letters_reach_a_topic_with_one_partition(cluster):
    await cluster.make_queue(**CONFIG)
    node = await make_dead_letter_topic(cluster)
    for number in range(6):
        await reject_one(cluster, number, b"%d" % number)
    async with asyncio.timeout(30):
        while len(await copies(node)) < 6:
            await asyncio.sleep(0.01)
        while not all([await is_finished(cluster, number) for number in range(6)]):
            await asyncio.sleep(0.01)
    found = await copies(node)
    assert sorted(copy.value for copy in found) == [b"%d" % number for number in range(6)]
    headers = [dict(copy.headers) for copy in found]
    assert {one["__dlq.errors.topic"] for one in headers} == {TOPIC.encode()}
    assert {one["__dlq.errors.group"] for one in headers} == {GROUP.encode()}


@with_brokers(2)
async def test_a_copy_whose_answer_was_lost_is_not_made_twice(cluster):
    await cluster.make_queue(**CONFIG)
    node = await make_dead_letter_topic(cluster)
    other = next(b for b in cluster.brokers.values() if b.node is not node)
    number = cluster.topic_owners().index(other.node.config.broker_id)
    peers = other.node.queue_owners.peers
    real, calls = peers.append, []

    async def loses_the_first_answer(*asked, **how):
        await real(*asked, **how)
        calls.append(asked)
        if len(calls) == 1:
            raise BrokerUnreachable("the answer was lost")

    cluster.patch.setattr(peers, "append", loses_the_first_answer)
    await reject_one(cluster, number, b"once")
    async with asyncio.timeout(30):
        while not await is_finished(cluster, number):
            await asyncio.sleep(0.01)
    assert len(calls) == 2
    assert [copy.value for copy in await copies(node)] == [b"once"]


@with_brokers(2)
async def test_a_dead_letter_topic_without_an_owner_is_waited_for(cluster):
    await cluster.make_queue(**CONFIG)
    node = await make_dead_letter_topic(cluster)
    other = next(b for b in cluster.brokers.values() if b.node is not node)
    number = cluster.topic_owners().index(other.node.config.broker_id)
    cluster.patch.setattr(dead_letters, "RETRY_S_MAX", 0.2)
    is_away = True
    real = other.node.queue_owners.peers.append

    async def away(*asked, **how):
        if is_away:
            raise BrokerUnreachable("no answer")
        await real(*asked, **how)

    cluster.patch.setattr(other.node.queue_owners.peers, "append", away)
    await reject_one(cluster, number, b"late")
    await until(lambda: other.node.dead_letters.failed_total >= 2)
    assert await copies(node) == []
    assert not await is_finished(cluster, number), "a record is finished only when it is copied"
    is_away = False
    async with asyncio.timeout(30):
        while not await is_finished(cluster, number):
            await asyncio.sleep(0.01)
    assert [copy.value for copy in await copies(node)] == [b"late"]


@with_brokers(2)
async def test_copies_above_the_topics_limit_are_halved_before_they_are_sent(cluster):
    await cluster.make_queue(**CONFIG)
    node = await make_dead_letter_topic(cluster, **{"max.message.bytes": "2000"})
    other = next(b for b in cluster.brokers.values() if b.node is not node)
    number = cluster.topic_owners().index(other.node.config.broker_id)
    peers, sent = other.node.queue_owners.peers, []
    real = peers.append

    async def closes_the_connection(broker, topic_id, partition, batch, **how):
        sent.append(len(batch))
        if len(batch) > 2000:
            raise BrokerUnreachable("the connection was closed")
        await real(broker, topic_id, partition, batch, **how)

    cluster.patch.setattr(peers, "append", closes_the_connection)
    values = [bytes([65 + n]) * 700 for n in range(4)]
    await cluster.put(number, *values)
    messages = await other.receive(max=10)
    dead = [{"receipt": one["receipt"], "reason": "unreadable"} for one in messages]
    assert all(one["ok"] for one in await other.settle(dead_letter=dead))
    await until(lambda: other.node.dead_letters.copied_total == 4)
    assert max(sent) <= 2000
    assert [copy.value for copy in await copies(node)] == values


def batch_of(**headers):
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return encode_batch([Record(0, 1, None, b"x", named)])


NAMED = {"headrace_producer": b"dead-letter/x", "headrace_sequence": b"0"}


BAD_BATCHES = {
    "no bytes": (b"", BatchCorrupt),
    "a batch that is cut short": (batch_of(**NAMED)[:-1], BatchCorrupt),
    "a record without a sequence": (batch_of(), RequestInvalid),
    "a producer's name alone": (batch_of(headrace_producer=b"p"), RequestInvalid),
    "a negative sequence": (
        batch_of(headrace_producer=b"p", headrace_sequence=b"-1"),
        RequestInvalid,
    ),
    "two batches": (batch_of(**NAMED) * 2, RecordInvalid),
    "an idempotent producer's batch": (
        encode_batch(
            [Record(0, 1, None, b"x", [])], producer_id=4, producer_epoch=0, base_sequence=0
        ),
        RequestInvalid,
    ),
}


@with_brokers(2)
async def test_an_owner_refuses_copies_that_no_broker_would_send(cluster):
    node = await make_dead_letter_topic(cluster)
    other = next(b.node for b in cluster.brokers.values() if b.node is not node)
    append = partial(other.queue_owners.peers.append, are_copies=True)
    topic_id = node.topics.get(DEAD).id
    (there,) = [one for one in other.cluster.brokers() if one.id == node.config.broker_id]
    for what, (batch, kind) in BAD_BATCHES.items():
        with pytest.raises(kind):
            await append(there, topic_id, 0, batch)
        assert await copies(node) == [], what
    good = batch_of(**NAMED)
    with pytest.raises(TopicIdUnknown):
        await append(there, UUID(int=77), 0, good)
    with pytest.raises(TopicUnknown):
        await append(there, topic_id, 1, good)
    (here,) = [one for one in other.cluster.brokers() if one.id == other.config.broker_id]
    with pytest.raises(NotOwner):
        await append(here, topic_id, 0, good)
    internal = (await node.topics.ensure_internal(OFFSETS_TOPIC)).id
    with pytest.raises(PolicyViolation):
        await append(there, internal, 0, good)
    await append(there, topic_id, 0, good)
    await append(there, topic_id, 0, good)
    assert [copy.value for copy in await copies(node)] == [b"x"]
