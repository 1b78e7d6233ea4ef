"""How many lite topics a partition may have: who sends to others is refused, over each protocol."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.decoding import decoded_per_turn
from tests.unit.rocketmq.rocketmq_rig import on_rocketmq
from tests.unit.rocketmq.test_lite import PARENT, SET, Lite, append_named, send
from tests.waiting import until

from headrace.broker.services import admission, configurations
from headrace.broker.services.configurations import ConfigChange
from headrace.broker.services.record_sends import Outgoing, Sent
from headrace.broker.shares import lite_room
from headrace.errors import LiteTopicsFull
from headrace.kafka import apis, error_codes
from headrace.records.attributes import LITE_TOPIC
from headrace.records.codec import DECODED_AT_ONCE, Record, encode_batch
from headrace.rocketmq import codes, wire

FULL = codes.LITE_TOPIC_QUOTA_EXCEEDED


async def change(rocket, **configs):
    changes = [
        ConfigChange(f"headrace.{name}".replace("_", "."), configurations.SET, str(value))
        for name, value in configs.items()
    ]
    await rocket.node.services.configurations.change_topic(PARENT, changes)


async def limited(rocket, most, *names, **configs):
    """A consumer that has read a topic with such a limit, and subscribes to these."""
    await rocket.create(PARENT, "lite")
    await change(rocket, lite_topics_max=most, **configs)
    one = await Lite.open(rocket, "one")
    assert await one.sync(*names, action=SET) == codes.OK
    assert await one.take() == []
    return one


async def code(rocket, name):
    return await rocket.send_code(PARENT, message_type=wire.LITE, lite_topic=name)


def record(name):
    return Record(0, 1_700_000_000_000, name.encode(), b"value", [(LITE_TOPIC, name.encode())])


def index(rocket):
    hosted = rocket.node.shares.lite._host.get(rocket.node.topics.get(PARENT), 0)
    return hosted.shard.machine.index


async def produce(rocket, *names):
    """What a client of Kafka gets: (error code, indexes of the records that are named)."""
    batch = encode_batch([record(name) for name in names])
    part = {"index": 0, "records": batch}
    data = [{"name": PARENT, "partition_data": [part]}]
    asked = {"acks": -1, "timeout_ms": 1_000, "topic_data": data}
    answer = await rocket.rig.client().ask(apis.PRODUCE, 9, asked)
    found = answer.responses[0].partition_responses[0]
    return int(found.error_code), [one.batch_index for one in found.record_errors]


@on_rocketmq
async def test_at_the_limit_a_new_lite_topic_is_refused_and_one_that_is_there_goes_on(rocket):
    one = await limited(rocket, 2, "a", "b", "c", lite_expiration_ms=60_000)
    for name in "aba":
        await send(rocket, name, name)
    assert await code(rocket, "c") == FULL, "although no consumer has read a and b"
    assert await one.take() == ["a", "b", "a"]
    assert await code(rocket, "c") == FULL
    assert await code(rocket, "a") == codes.OK
    rocket.rig.clock.ahead_ms += 61_000
    assert await code(rocket, "c") == FULL, "which looks for those that have expired"
    await until(lambda: not len(index(rocket)))
    assert await code(rocket, "c") == codes.OK
    assert await one.take() == ["body"]
    assert await code(rocket, "a") == codes.OK
    assert await code(rocket, "b") == FULL
    await change(rocket, lite_topics_max=3)
    assert await code(rocket, "b") == codes.OK


@on_rocketmq
async def test_messages_sent_at_once_get_their_own_answers_and_no_more_lite_topics(rocket):
    one = await limited(rocket, 3, *(f"n{number}" for number in range(20)))
    found = await asyncio.gather(*(code(rocket, f"n{number % 20}") for number in range(40)))
    assert (found.count(codes.OK), found.count(FULL)) == (6, 34)
    assert len(await one.take()) == 6
    assert len(index(rocket)) == 3


@on_rocketmq
async def test_kafka_and_http_clients_are_refused_as_well_and_told_which_records(rocket):
    await limited(rocket, 2, "a")
    assert await produce(rocket, "a", "b", "a") == (0, [])
    assert await produce(rocket, "b", "c", "a", "d") == (error_codes.INVALID_RECORD, [1, 3])
    assert await produce(rocket, "not legal", "a") == (0, []), "it is in no lite topic"
    topic = rocket.node.topics.get(PARENT)
    sent = [Outgoing(record(name)) for name in "acb"]
    first, refused, last = await rocket.node.services.sends.send(topic, sent)
    assert isinstance(first, Sent)
    assert isinstance(refused, LiteTopicsFull)
    assert "headrace.lite.topics.max=2" in str(refused)
    assert (first.place.offset, last.place.offset) == (5, 6)
    await change(rocket, message_attributes="ignore", record_validation="header")
    assert await produce(rocket, "a", "c") == (error_codes.INVALID_RECORD, [1])
    await change(rocket, message_type="normal")
    assert await produce(rocket, "c") == (0, [])


@on_rocketmq
async def test_nothing_is_refused_while_nothing_has_been_read_and_nothing_is_lost(rocket):
    await rocket.create(PARENT, "lite")
    await change(rocket, lite_topics_max=2)
    for name in "abcd":
        await send(rocket, name, name)
    one = await Lite.open(rocket, "one")
    assert await one.sync("a", "b", "c", "d", "e") == codes.OK
    assert await one.take() == ["a", "b", "c", "d"]
    assert await code(rocket, "e") == FULL
    assert await code(rocket, "d") == codes.OK


@on_rocketmq
async def test_what_is_not_stored_takes_no_room(rocket):
    one = await limited(rocket, 2, "a", "b")
    for name in "xyz":
        large = {"body": b"x" * 2_000_000, "message_type": wire.LITE, "lite_topic": name}
        assert await rocket.send_code(PARENT, **large) == codes.MESSAGE_BODY_TOO_LARGE
    partition = rocket.node.topics.get(PARENT).require_log(0)
    rocket.node.shares.lite.note(partition, [(0, "lost"), (1, "also")])
    assert await code(rocket, "b") == FULL
    await append_named(rocket, b"a")
    assert await one.take() == ["0"]
    assert await code(rocket, "b") == codes.OK
    assert await code(rocket, "c") == FULL


@on_rocketmq
async def test_batches_have_a_bound_of_records_of_lite_topics_which_are_learned_in_turns(rocket):
    one = await limited(rocket, 3, "a", "b")
    most = admission.SPLIT_RECORDS_MAX
    assert await produce(rocket, *"a" * (most + 1)) == (error_codes.MESSAGE_TOO_LARGE, [])
    assert await produce(rocket, *"a" * (most - 1), "b") == (0, [])
    got, turns = await decoded_per_turn(one.receive(), pytest.MonkeyPatch())
    assert got
    assert max(turns) <= 2 * DECODED_AT_ONCE
    assert len(index(rocket)) == 2


@on_rocketmq
async def test_users_leave_room_for_the_lite_topics_of_others_on_all_partitions(rocket):
    one = await limited(rocket, 100, "n0", lite_expiration_ms=60_000)
    lite, log = rocket.node.shares.lite, rocket.node.topics.get(PARENT).require_log(0)

    async def sent(user, *names):
        """The indexes of those that are refused."""
        records = list(enumerate(names))
        try:
            lite.check(log, records, user)
        except LiteTopicsFull as full:
            return [at for at, _ in full.fields["record_errors"]]
        now_ms = rocket.node.clock.now_ms()
        await append_named(rocket, *(name.encode() for name in names), timestamp_ms=now_ms)
        lite.note(log, records, user)
        return []

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lite_room, "BROKER_MAX", lite_room.BROKER_MAX._replace(count_max=9))
        found = [await sent("noisy", f"n{number}") for number in range(9)]
        assert found == [[]] * 6 + [[0]] * 3
        assert await sent("noisy", "n1", "n2") == [], "what is there goes on"
        assert await sent("noisy", "n1", "more") == [1]
        assert await sent("quiet", "q1") == []
        assert await one.take() == ["0"]
        assert await sent("noisy", "more") == [0], "whether a consumer has read them or not"
        rocket.rig.clock.ahead_ms += 61_000
        assert await sent("noisy", "more") == [0], "which looks for those that have expired"
        await until(lambda: not len(index(rocket)))
        assert await sent("noisy", "more") == []
