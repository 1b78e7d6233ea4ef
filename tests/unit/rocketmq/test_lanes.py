"""RocketMQ's lanes on a broker in memory: normal, in order, delayed, in transactions, dead letters.

Every message is a record that the other protocols read, and the other way round.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import tracemalloc
from hashlib import md5
from types import SimpleNamespace

import pytest
from tests.unit.rocketmq.rocketmq_rig import (
    TestCall,
    on_rocketmq,
    receive_request,
)
from tests.waiting import until

from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services.reads import AT_START, Start
from headrace.broker.services.record_sends import Outgoing, Sent
from headrace.broker.services.timer_receipts import HalfReceipt
from headrace.errors import StorageUnavailable
from headrace.log.visibility import READ_COMMITTED
from headrace.metadata.endpoints import ROCKETMQ, Endpoint
from headrace.records.attributes import HALF, MESSAGE_ID
from headrace.records.codec import Record, encode_batch
from headrace.records.partitioner import partition_of_key
from headrace.rocketmq import clients, codes, in_progress, wire
from headrace.rocketmq.caller import Caller
from headrace.rocketmq.codes import Refused
from headrace.rocketmq.handles import Transaction

GROUP = "workers"


def bodies(messages):
    return [one.body for one in messages]


async def records(rocket, topic, number=0):
    read = rocket.node.services.reads.read
    found = await read(
        rocket.node.services.topics.get(topic), number, Start(AT_START), 100, READ_COMMITTED
    )
    return found.records


@on_rocketmq
async def test_a_message_comes_back_as_it_was_sent_until_it_is_acknowledged(rocket):
    await rocket.create("jobs")
    entry = await rocket.send(
        "jobs", b"\x00\xff", tag="paid", keys=["k1", "k2"], properties={"region": "eu"},
        born_host="app-7", born_timestamp_ms=int(time.time() * 1000) - 5,
    )  # fmt: skip
    (got,) = await rocket.receive("jobs", GROUP)
    system = got.system_properties
    assert (got.topic.name, got.body, dict(got.user_properties)) == (
        "jobs",
        b"\x00\xff",
        {"region": "eu"},
    )
    assert (system.message_id, system.tag, list(system.keys)) == (
        entry.message_id,
        "paid",
        ["k1", "k2"],
    )
    assert (system.born_host, system.queue_id, system.queue_offset) == ("app-7", 0, 0)
    assert (system.delivery_attempt, system.message_type) == (1, wire.NORMAL)
    digest = system.body_digest
    assert (digest.type, digest.checksum) == (wire.MD5, md5(b"\x00\xff").hexdigest().upper())
    assert await rocket.receive("jobs", GROUP) == []
    assert await rocket.acknowledge("jobs", GROUP, got) == [codes.OK]
    assert await rocket.acknowledge("jobs", GROUP, got) == [codes.OK], "again is no error"
    got.system_properties.receipt_handle = "garbage"
    assert await rocket.acknowledge("jobs", GROUP, got) == [codes.INVALID_RECEIPT_HANDLE]


@on_rocketmq
async def test_other_protocols_read_what_rocketmq_wrote(rocket):
    await rocket.create("jobs", "mixed")
    await rocket.send(
        "jobs",
        message_type=wire.FIFO,
        message_group="g",
        tag="t",
        keys=["k"],
        properties={"a": "b"},
    )
    (record,) = await records(rocket, "jobs")
    headers = dict(record.headers)
    assert record.value == b"body"
    assert headers.pop("headrace-message-id").startswith(b"01")
    assert headers == {
        "headrace-tag": b"t",
        "headrace-keys": b"k",
        "headrace-message-group": b"g",
        "a": b"b",
    }


@on_rocketmq
async def test_rocketmq_receives_what_other_protocols_wrote(rocket):
    await rocket.create("jobs")
    services = rocket.node.services
    headers = [("headrace-tag", b"t"), ("a", b"b"), ("raw", b"\xff"), ("none", None)]
    headers.append(("\udcfe", b"name"))
    record = Record(0, 1_700_000_000_000, b"key", b"value", headers)
    (sent,) = await services.sends.send(services.topics.get("jobs"), [Outgoing(record)])
    assert isinstance(sent, Sent)
    (got,) = await rocket.receive("jobs", GROUP)
    system = got.system_properties
    assert (got.body, list(system.keys), system.tag) == (b"value", ["key"], "t")
    assert dict(got.user_properties) == {"a": "b", "raw": "/w==", "/g==": "name"}
    assert wire.ms_of(system.born_timestamp) == 1_700_000_000_000
    assert len(system.message_id) == 34


@on_rocketmq
async def test_a_message_that_is_not_acknowledged_comes_again_on_time(rocket):
    await rocket.create("jobs")
    await rocket.send("jobs")
    (got,) = await rocket.receive("jobs", GROUP, invisible_ms=600_000)
    where = {"group": {"name": GROUP}, "topic": {"name": "jobs"}}
    change = wire.request_of("ChangeInvisibleDuration")(
        **where, receipt_handle=got.system_properties.receipt_handle
    )
    wire.set_ms(change.invisible_duration, 300)
    begun_s = time.monotonic()
    call = rocket.begin("ChangeInvisibleDuration", change)
    await call.over.wait()
    answer = wire.response_of("ChangeInvisibleDuration").FromString(call.sent[0])
    assert answer.status.code == codes.OK
    assert answer.receipt_handle
    (again,) = await rocket.receive("jobs", GROUP, wait_ms=20_000)
    assert time.monotonic() - begun_s > 0.28
    assert again.system_properties.delivery_attempt == 2
    assert await rocket.acknowledge("jobs", GROUP, got) == [codes.INVALID_RECEIPT_HANDLE]
    assert await rocket.acknowledge("jobs", GROUP, again) == [codes.OK]


@on_rocketmq
async def test_messages_of_a_group_come_in_order_and_others_go_on(rocket):
    await rocket.create("orders", "fifo", partitions=3)
    await rocket.set_group(GROUP, share_auto_offset_reset="earliest")
    for number in range(3):
        for group in ("a", "b"):
            body = f"{group}{number}".encode()
            await rocket.send("orders", body, message_type=wire.FIFO, message_group=group)
    seen = []
    while len(seen) < 6:
        got = await rocket.receive("orders", GROUP, wait_ms=5_000)
        assert len({one.system_properties.message_group for one in got}) == len(got)
        seen += bodies(got)
        assert await rocket.acknowledge("orders", GROUP, *got) == [codes.OK] * len(got)
    for group in (b"a", b"b"):
        assert [one for one in seen if one[:1] == group] == [group + b"%d" % n for n in range(3)]


@on_rocketmq
async def test_a_normal_message_with_a_message_group_is_one_in_order(rocket):
    await rocket.create("jobs", "fifo", 8)
    for number in range(3):
        await rocket.send("jobs", b"%d" % number, message_type=wire.NORMAL, message_group="g")
    for number in range(3):
        (got,) = await rocket.receive("jobs", GROUP)
        system = got.system_properties
        assert (got.body, system.message_type) == (b"%d" % number, wire.FIFO)
        assert await rocket.acknowledge("jobs", GROUP, got) == [codes.OK]


@on_rocketmq
async def test_the_messages_of_a_receive_come_by_priority_if_their_group_is_not_in_order(rocket):
    for topic in ("jobs", "others"):
        await rocket.create(topic, "mixed")
        await rocket.send(topic, b"4")
        for rank in (0, 9, 5, 9):
            await rocket.send(topic, b"%d" % rank, message_type=wire.PRIORITY, priority=rank)
    assert bodies(await rocket.receive("jobs", GROUP)) == [b"9", b"9", b"5", b"4", b"0"]
    await rocket.set_group("ordered", headrace_share_key_order="true")
    await rocket.set_group("ordered", share_auto_offset_reset="earliest")
    assert bodies(await rocket.receive("others", "ordered")) == [b"4", b"0", b"9", b"5", b"9"]


@on_rocketmq
async def test_a_group_in_order_takes_several_messages_of_a_message_group_at_a_time(rocket):
    await rocket.create("orders", "fifo")
    await rocket.set_group(
        GROUP, **{"headrace.share.key.order": "true", "share.auto.offset.reset": "earliest"}
    )
    for number in range(4):
        await rocket.send("orders", b"%d" % number, message_type=wire.FIFO, message_group="g")
    first = await rocket.receive("orders", GROUP, batch_size=3)
    assert bodies(first) == [b"0", b"1", b"2"]
    assert await rocket.acknowledge("orders", GROUP, *first[:2]) == [codes.OK] * 2
    assert await rocket.receive("orders", GROUP) == [], "the rest waits for the last one"
    assert await rocket.acknowledge("orders", GROUP, first[2]) == [codes.OK]
    assert bodies(await rocket.receive("orders", GROUP, wait_ms=5_000)) == [b"3"]


@on_rocketmq
async def test_a_receive_whose_answer_was_lost_gets_the_same_messages_again(rocket):
    await rocket.create("jobs")
    for number in range(3):
        await rocket.send("jobs", b"%d" % number)
    lost = await rocket.receive("jobs", GROUP, batch_size=2, attempt_id="1")
    again = await rocket.receive("jobs", GROUP, batch_size=2, attempt_id="1")
    assert bodies(again) == bodies(lost)
    assert [one.system_properties.delivery_attempt for one in again] == [1, 1]
    assert bodies(await rocket.receive("jobs", GROUP, attempt_id="2")) == [b"2"]
    assert await rocket.acknowledge("jobs", GROUP, *again) == [codes.OK] * 2


@on_rocketmq
async def test_a_delayed_message_comes_when_it_is_due_and_not_if_it_is_recalled(rocket):
    await rocket.create("later", "delay")
    due_ms = int(time.time() * 1000) + 2_000
    kept, recalled = [
        await rocket.send("later", body, message_type=wire.DELAY, delivery_timestamp_ms=due_ms)
        for body in (b"kept", b"recalled")
    ]
    topic = {"name": "later"}
    for _ in range(2):
        answer = await rocket.ask(
            "RecallMessage", topic=topic, recall_handle=recalled.recall_handle
        )
        assert (answer.status.code, answer.message_id) == (codes.OK, recalled.message_id)
    assert await rocket.receive("later", GROUP) == []
    (got,) = await rocket.receive("later", GROUP, wait_ms=20_000)
    assert got.body == b"kept"
    assert time.time() * 1000 >= due_ms
    assert wire.ms_of(got.system_properties.delivery_timestamp) == due_ms
    code = await rocket.code("RecallMessage", topic=topic, recall_handle=kept.recall_handle)
    assert code == codes.MESSAGE_NOT_FOUND, "it was delivered"
    for garbage in ("garbage", "garbage.x", "", kept.recall_handle.replace(".", "")):
        code = await rocket.code("RecallMessage", topic=topic, recall_handle=garbage)
        assert code == codes.BAD_REQUEST, garbage
    past = await rocket.send("later", message_type=wire.DELAY, delivery_timestamp_ms=1)
    (got,) = await rocket.receive("later", GROUP, wait_ms=5_000)
    assert got.system_properties.message_id == past.message_id


@on_rocketmq
async def test_a_half_message_is_delivered_once_it_is_committed(rocket):
    await rocket.create("paid", "transaction")
    kept = await rocket.send("paid", b"kept", message_type=wire.TRANSACTION)
    dropped = await rocket.send("paid", b"dropped", message_type=wire.TRANSACTION)
    assert await rocket.receive("paid", GROUP) == []

    async def end(entry, resolution, topic="paid"):
        return await rocket.code(
            "EndTransaction",
            topic={"name": topic},
            message_id=entry.message_id,
            transaction_id=entry.transaction_id,
            resolution=resolution,
        )

    await rocket.create("other", "transaction")
    await rocket.send("other", b"kept", message_type=wire.TRANSACTION)
    assert await end(kept, wire.COMMIT, "other") == codes.INVALID_TRANSACTION_ID
    assert await rocket.receive("other", GROUP) == [], "it has the same numbers, and still waits"
    assert await end(dropped, wire.ROLLBACK) == codes.OK
    assert await end(kept, wire.COMMIT) == codes.OK
    assert await end(kept, wire.COMMIT) == codes.OK, "again changes nothing"
    assert await end(kept, wire.ROLLBACK) == codes.PRECONDITION_FAILED
    assert await end(kept, 0) == codes.BAD_REQUEST
    paid = rocket.node.services.topics.get("paid")
    kept.transaction_id = Transaction(HalfReceipt(0, 4711), paid.id).text
    assert await end(kept, wire.COMMIT) == codes.INVALID_TRANSACTION_ID
    kept.transaction_id = "garbage"
    assert await end(kept, wire.COMMIT) == codes.INVALID_TRANSACTION_ID
    assert bodies(await rocket.receive("paid", GROUP, wait_ms=5_000)) == [b"kept"]


class Telemetry:
    """A client's stream."""

    def __init__(self, rocket, client_id="client@1"):
        path = f"/{wire.SERVICE}/Telemetry"
        self.call = TestCall(path, client_id)
        self.requests = rocket.messaging.methods[path].handler(self.call)

    async def ask(self, settings):
        self.requests.message(wire.TelemetryCommand(settings=settings).SerializeToString())
        return await self.next()

    async def next(self):
        while not self.call.sent:
            self.call.arrived.clear()
            await asyncio.wait_for(self.call.arrived.wait(), 10)
        return wire.TelemetryCommand.FromString(self.call.sent.pop(0))


@on_rocketmq
async def test_a_producer_is_asked_about_a_transaction_that_hangs(rocket):
    await rocket.create("paid", "transaction")
    services = rocket.node.services
    changes = {"headrace.half.check.first.ms": "200", "headrace.message.type": "transaction"}
    await services.configurations.replace_topic("paid", changes)
    stream = Telemetry(rocket)
    publishing = {"topics": [{"name": "paid"}]}
    answer = await stream.ask({"client_type": wire.PRODUCER, "publishing": publishing})
    assert answer.status.code == codes.OK
    assert answer.settings.publishing.max_body_size == 4 * 1024 * 1024
    assert answer.settings.backoff_policy.max_attempts == 3
    sent = await rocket.send("paid", b"half", message_type=wire.TRANSACTION, tag="t")
    asked = (await stream.next()).recover_orphaned_transaction_command
    assert (asked.message.body, asked.message.topic.name) == (b"half", "paid")
    assert asked.message.system_properties.message_id == sent.message_id
    assert asked.transaction_id == sent.transaction_id
    code = await rocket.code(
        "EndTransaction",
        topic={"name": "paid"},
        message_id=sent.message_id,
        transaction_id=asked.transaction_id,
        resolution=wire.COMMIT,
        source=2,
    )
    assert code == codes.OK
    assert bodies(await rocket.receive("paid", GROUP, wait_ms=5_000)) == [b"half"]


async def half(rocket, topic, group):
    """Send a half message as other protocols can: with a producer group of their choice."""
    services = rocket.node.services
    headers = [(MESSAGE_ID, b"m"), (HALF, group.encode())]
    record = Record(0, int(time.time() * 1000), None, topic.encode(), headers)
    (sent,) = await services.sends.send(services.topics.get(topic), [Outgoing(record)])
    assert isinstance(sent, Sent)


async def checked_soon(rocket, name):
    await rocket.create(name, "transaction")
    changes = {"headrace.half.check.first.ms": "200", "headrace.message.type": "transaction"}
    await rocket.node.services.configurations.replace_topic(name, changes)


@on_rocketmq
async def test_a_producer_is_not_asked_about_messages_of_another_topic(rocket):
    await checked_soon(rocket, "orders")
    await checked_soon(rocket, "payments")
    stream = Telemetry(rocket)
    publishing = {"topics": [{"name": "orders"}]}
    await stream.ask({"client_type": wire.PRODUCER, "publishing": publishing})
    await half(rocket, "payments", "orders")
    await asyncio.sleep(0.5)
    await half(rocket, "orders", "orders")
    asked = (await stream.next()).recover_orphaned_transaction_command
    assert (asked.message.topic.name, asked.message.body) == ("orders", b"orders")


@on_rocketmq
async def test_a_check_back_waits_for_a_producer_that_lost_its_stream(rocket):
    await checked_soon(rocket, "orders")
    publishing = {"topics": [{"name": "orders"}]}
    settings = {"client_type": wire.PRODUCER, "publishing": publishing}
    stream = Telemetry(rocket)
    await stream.ask(settings)
    stream.call.cancel()
    await half(rocket, "orders", "orders")
    await asyncio.sleep(1.0)
    stream = Telemetry(rocket)
    await stream.ask(settings)
    asked = (await stream.next()).recover_orphaned_transaction_command
    assert asked.message.body == b"orders"


@on_rocketmq
async def test_one_connection_cannot_take_the_place_of_all_clients(rocket):
    async def heartbeat(session, number):
        request = wire.request_of("Heartbeat")(client_type=wire.PRODUCER)
        call = rocket.begin("Heartbeat", request, f"client@{number}", session=session)
        await asyncio.wait_for(call.over.wait(), 10)
        return wire.response_of("Heartbeat").FromString(call.sent[0]).status.code

    first, second = [ClientSession("ROCKETMQ", "10.0.0.7", ANONYMOUS) for _ in range(2)]
    found = [await heartbeat(first, number) for number in range(101)]
    assert found == [codes.OK] * 100 + [codes.TOO_MANY_REQUESTS]
    assert await heartbeat(first, 99) == codes.OK
    assert await heartbeat(second, 100) == codes.OK
    ended = rocket.begin("NotifyClientTermination", wire.Status(), "client@0", session=first)
    await asyncio.wait_for(ended.over.wait(), 10)
    assert await heartbeat(first, 101) == codes.OK


@on_rocketmq
async def test_forwarded_messages_become_dead_letters_of_the_group(rocket):
    await rocket.create("jobs")
    sent = await rocket.send("jobs", b"poison", tag="t", keys=["k"], properties={"a": "b"})
    (got,) = await rocket.receive("jobs", GROUP)
    code = await rocket.code(
        "ForwardMessageToDeadLetterQueue",
        group={"name": GROUP},
        topic={"name": "jobs"},
        receipt_handle=got.system_properties.receipt_handle,
        message_id=sent.message_id,
    )
    assert code == codes.OK
    for _ in range(100):
        if rocket.node.services.topics.find("dlq.workers") is not None:
            break
        await asyncio.sleep(0.05)
    (letter,) = await rocket.receive(f"%DLQ%{GROUP}", "undertakers", wait_ms=5_000)
    assert letter.topic.name == f"%DLQ%{GROUP}"
    assert (letter.body, letter.system_properties.tag) == (b"poison", "t")
    assert letter.system_properties.message_id == sent.message_id
    assert letter.user_properties["a"] == "b"


@on_rocketmq
async def test_a_push_consumer_holds_its_messages_as_long_as_it_lives(rocket):
    await rocket.create("jobs")
    await rocket.send("jobs")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(clients, "RENEW_S", 0.1)
        patched.setattr(clients, "LOCK_MS", 1_500)
        patched.setattr("headrace.rocketmq.receiving.LOCK_MS", 1_500)
        rocket.messaging.clients.start()
        (got,) = await rocket.receive("jobs", GROUP, auto_renew=True)
        assert await rocket.receive("jobs", GROUP, wait_ms=2_000) == [], "it is renewed"
        code = await rocket.code("NotifyClientTermination", group={"name": GROUP})
        assert code == codes.OK
        (again,) = await rocket.receive("jobs", GROUP, wait_ms=20_000)
    assert again.system_properties.delivery_attempt == 2
    assert again.system_properties.message_id == got.system_properties.message_id


@on_rocketmq
async def test_a_consumer_gets_the_settings_of_its_group(rocket):
    stream = Telemetry(rocket)
    subscription = {"group": {"name": GROUP}}
    asked = {"client_type": wire.PUSH_CONSUMER, "subscription": subscription}
    answer = (await stream.ask(asked)).settings
    assert answer.backoff_policy.max_attempts == 17
    steps = [wire.ms_of(one) for one in answer.backoff_policy.customized_backoff.next]
    assert (steps[0], steps[-1], len(steps)) == (1_000, 7_200_000, 18)
    assert not answer.subscription.fifo
    assert answer.subscription.receive_batch_size == 32
    await rocket.set_group(GROUP, **{"headrace.share.key.order": "true"})
    answer = (await stream.ask(asked)).settings
    assert answer.subscription.fifo
    assert answer.backoff_policy.HasField("exponential_backoff")
    own = rocket.node.services.configurations.overrides_of_group(GROUP)
    assert own["share.delivery.count.limit"] == "17"
    assert own["errors.deadletterqueue.topic.name"] == "dlq.workers"


@on_rocketmq
async def test_a_receive_that_does_not_say_how_long_it_waits_waits_as_the_clients_settings_say(
    rocket,
):
    """So it is with Go's simple consumer, whose deadline is 3 s later."""
    queues, waited_s = rocket.node.services.queues, []
    receive = queues.receive

    async def noted(*arguments):
        waited_s.append(arguments[-1])
        return await receive(*arguments[:-1], 0)

    queues.receive = noted
    await rocket.create("jobs")
    stream = Telemetry(rocket)
    request = receive_request("jobs", GROUP)
    request.ClearField("long_polling_timeout")
    deadline = asyncio.get_running_loop().time() + 3_600
    for seconds in (None, 1, 0):
        if seconds is not None:
            subscription = {"group": {"name": GROUP}, "long_polling_timeout": {"seconds": seconds}}
            await stream.ask({"client_type": wire.SIMPLE_CONSUMER, "subscription": subscription})
        assert await rocket.stream("ReceiveMessage", request, deadline=deadline) == (
            codes.MESSAGE_NOT_FOUND,
            [],
        )
    assert waited_s == [20, 1, 20]


@on_rocketmq
async def test_a_lite_consumer_is_known_by_its_heartbeat_after_a_restart_too(rocket):
    await rocket.create("jobs")
    await rocket.send("jobs")
    for kind in (wire.LITE_PUSH_CONSUMER, wire.LITE_SIMPLE_CONSUMER):
        assert await rocket.code("Heartbeat", client_type=kind) == codes.OK
        assert await rocket.code("Heartbeat") == codes.OK, "says nothing"
        # Java's client has lite consumers whose heartbeats say this.
        assert await rocket.code("Heartbeat", client_type=wire.PUSH_CONSUMER) == codes.OK
        code, messages = await rocket.stream("ReceiveMessage", receive_request("jobs", GROUP))
        assert (code, messages) == (codes.ILLEGAL_TOPIC, [])
    settings = {"client_type": wire.SIMPLE_CONSUMER, "subscription": {"group": {"name": GROUP}}}
    assert (await Telemetry(rocket).ask(settings)).status.code == codes.OK
    assert len(await rocket.receive("jobs", GROUP)) == 1


@on_rocketmq
async def test_settings_of_a_stream_are_answered_one_after_another_and_the_last_ones_hold(rocket):
    stream = Telemetry(rocket)
    tasks = len(asyncio.all_tasks())
    for number in range(100):
        subscription = {"group": {"name": f"group-{number}"}}
        settings = {"client_type": wire.PUSH_CONSUMER, "subscription": subscription}
        stream.requests.message(wire.TelemetryCommand(settings=settings).SerializeToString())
    assert len(asyncio.all_tasks()) == tasks + 1
    assert (await stream.next()).settings.subscription.group.name == "group-99"
    assert stream.call.sent == []
    asked = {"client_type": wire.PUSH_CONSUMER, "subscription": {"group": {"name": GROUP}}}
    assert (await stream.ask(asked)).settings.subscription.group.name == GROUP


@on_rocketmq
async def test_a_consumer_groups_id_stays_one(rocket):
    await rocket.create("jobs")
    await rocket.send("jobs")
    queue = {"topic": {"name": "jobs"}, "id": 0}
    where = {"group": {"name": "pullers"}, "message_queue": queue}
    stream = Telemetry(rocket)
    subscription = {"group": {"name": "pullers"}}
    settings = {"client_type": wire.PULL_CONSUMER, "subscription": subscription}
    assert (await stream.ask(settings)).status.code == codes.OK
    assert await rocket.code("UpdateOffset", **where, offset=1) == codes.OK
    code, _none = await rocket.stream("ReceiveMessage", receive_request("jobs", "pullers"))
    assert code == codes.ILLEGAL_CONSUMER_GROUP
    assert not rocket.node.services.configurations.overrides_of_group("pullers")


@on_rocketmq
async def test_a_producer_of_topics_that_do_not_exist_costs_nothing(rocket):
    await rocket.create("jobs")
    tasks = len(asyncio.all_tasks())
    topics = [{"name": "jobs"}, *({"name": f"t{number}"} for number in range(500))]
    await Telemetry(rocket).ask({"client_type": wire.PRODUCER, "publishing": {"topics": topics}})
    assert len(asyncio.all_tasks()) <= tasks + 1


@on_rocketmq
async def test_a_client_that_goes_loses_no_delivery(rocket):
    await rocket.create("jobs")
    call = rocket.begin("ReceiveMessage", receive_request("jobs", GROUP, wait_ms=30_000))
    await asyncio.sleep(0.1)
    call.cancel()
    await rocket.send("jobs")
    (got,) = await rocket.receive("jobs", GROUP, wait_ms=5_000)
    assert got.system_properties.delivery_attempt == 1


@on_rocketmq
async def test_a_client_that_goes_before_it_has_read_its_messages_loses_no_delivery(rocket):
    await rocket.create("jobs")
    for auto_renew in (False, True):
        await rocket.send("jobs")
        request = receive_request("jobs", GROUP, auto_renew=auto_renew)
        call = rocket.begin("ReceiveMessage", request, is_reading=False)
        while len(call.sent) < 2:
            await asyncio.sleep(0.01)
        call.cancel()
        (got,) = await rocket.receive("jobs", GROUP, wait_ms=5_000)
        assert got.system_properties.delivery_attempt == 1
        assert await rocket.acknowledge("jobs", GROUP, got) == [codes.OK]


@on_rocketmq
async def test_messages_are_sent_as_fast_as_the_client_reads(rocket):
    await rocket.create("jobs")
    for number in range(5):
        await rocket.send("jobs", b"%d" % number)
    call = rocket.begin("ReceiveMessage", receive_request("jobs", GROUP), is_reading=False)
    while len(call.sent) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert len(call.sent) == 2, "the status and the first message"
    waiting_bytes = call.kept_bytes
    call.reading.set()
    await asyncio.wait_for(call.over.wait(), 10)
    assert len(call.sent) == 7
    assert (waiting_bytes, call.kept_bytes) == (sum(map(len, call.sent[2:6])), 0)


@on_rocketmq
async def test_what_a_pull_has_read_counts_until_the_client_has_read_it(rocket):
    """Of 1,000 unread pulls each had 8 MiB."""
    await rocket.create("jobs")
    for _ in range(5):
        await rocket.send("jobs", bytes(1_000))
    where = {"group": {"name": "pullers"}, "message_queue": {"topic": {"name": "jobs"}, "id": 0}}
    request = wire.request_of("PullMessage")(**where, batch_size=10)
    call = rocket.begin("PullMessage", request, is_reading=False)
    await until(lambda: len(call.sent) == 2)
    assert 4_000 < call.kept_bytes < 6_000
    assert not rocket.messaging.in_progress.bytes, "the request is not kept"
    call.reading.set()
    await asyncio.wait_for(call.over.wait(), 10)
    assert len(call.sent) == 7
    assert not call.kept_bytes


@on_rocketmq
async def test_what_a_pull_has_read_counts_with_keys_and_headers(rocket):
    """Records may have nothing else."""
    await rocket.create("jobs")
    one = Record(0, 0, bytes(500), None, [("h", bytes(1_500)), ("empty", None)])
    (log,) = rocket.node.topics.get("jobs").partitions
    await rocket.node.appends.append_and_wait(log, encode_batch([one] * 3))
    where = {"group": {"name": "pullers"}, "message_queue": {"topic": {"name": "jobs"}, "id": 0}}
    call = rocket.begin("PullMessage", wire.request_of("PullMessage")(**where, batch_size=10))
    kept: list[int] = []
    call.keep = kept.append
    await asyncio.wait_for(call.over.wait(), 10)
    assert kept[0] >= 6_000
    assert not sum(kept)


def waiting_for(topic: str) -> list[tuple[str, object]]:
    """A receive and a pull that wait for 30 s."""
    pull = wire.request_of("PullMessage")(
        group={"name": "pullers"}, message_queue={"topic": {"name": topic}}, batch_size=10
    )
    wire.set_ms(pull.long_polling_timeout, 30_000)
    receive = receive_request(topic, GROUP, wait_ms=30_000)
    return [("ReceiveMessage", receive), ("PullMessage", pull)]


@on_rocketmq
async def test_requests_that_wait_for_messages_take_no_room_of_others(rocket):
    """They may be as large as one may be, and wait for as long as their client wants."""
    await rocket.create("jobs")
    calls = [rocket.begin(*one) for one in waiting_for("jobs")]
    assert rocket.messaging.in_progress.bytes
    await until(lambda: not rocket.messaging.in_progress.bytes)
    assert not any(call.is_finished for call in calls)
    for call in calls:
        call.cancel()


@on_rocketmq
async def test_requests_that_wait_for_messages_are_not_kept(rocket):
    """What is not counted any more: of 1,000 calls of a connection each had 256 KiB."""
    await rocket.create("jobs")
    calls = []
    for name, request in waiting_for("jobs"):
        unread = b"\xaa\x7d" + b"\xa0\x8d\x06" + bytes(100_000)  # of a field that nobody knows
        request.MergeFromString(unread)
        calls.append(rocket.begin(name, request))
        tracemalloc.start()
        try:
            calls += [rocket.begin(name, request) for _ in range(20)]
            await until(lambda: not rocket.messaging.in_progress.bytes)
            kept_bytes = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert not any(call.is_finished for call in calls)
        assert kept_bytes < 10 * 100_000, name
    for call in calls:
        call.cancel()


@on_rocketmq
async def test_settings_are_not_kept_while_a_client_does_not_read_the_answer(rocket):
    command = wire.TelemetryCommand()
    command.settings.client_type = wire.PRODUCER  # neither publishes nor subscribes: an error
    unread = b"\xaa\x7d" + b"\xa0\x8d\x06" + bytes(100_000)  # of a field that nobody knows
    body = command.SerializeToString() + unread
    calls = [rocket.stream_call(wire.TELEMETRY, rocket.session, {}) for _ in range(20)]
    tracemalloc.start()
    try:
        for call in calls:
            call.reading.clear()
            rocket.messaging.methods[call.path].handler(call).message(bytes(bytearray(body)))
        await until(lambda: all(call.sent for call in calls))
        kept_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert not rocket.messaging.in_progress.bytes
    assert kept_bytes < 10 * 100_000
    for call in calls:
        call.cancel()


def test_requests_in_progress_of_an_address_leave_room_for_others(monkeypatch):
    """Whatever number of connections it has, also without a login."""
    monkeypatch.setattr(in_progress, "ALL_BYTES_MAX", 3_000)
    monkeypatch.setattr(in_progress, "CONNECTION_BYTES_MAX", 1_500)
    held, taken = in_progress.InProgress(), []

    def begin(peer: str, size: int) -> None:
        call = TestCall("/t", "client")  # on a connection of its own
        call.peer = peer
        taken.append(held.begin(call, size))

    for _ in range(7):
        begin("10.0.0.1", 300)
    with pytest.raises(Refused, match="of this address"):
        begin("10.0.0.1", 300)
    assert held.bytes == 2_100
    with pytest.raises(Refused, match="on this connection"):
        begin("10.0.0.2", 1_501)
    begin("10.0.0.2", 300)
    for one in taken:
        one.release()
    assert held.by_address == held.by_connection == {}


@on_rocketmq
async def test_pull_consumers_read_by_offset(rocket):
    await rocket.create("jobs")
    for number in range(3):
        await rocket.send("jobs", b"%d" % number)
    queue = {"topic": {"name": "jobs"}, "id": 0}
    where = {"group": {"name": "pullers"}, "message_queue": queue}
    assert await rocket.code("GetOffset", **where) == codes.OFFSET_NOT_FOUND
    request = wire.request_of("PullMessage")(**where, offset=1, batch_size=10)
    code, got = await rocket.stream("PullMessage", request)
    assert (code, bodies(got)) == (codes.OK, [b"1", b"2"])
    ends = [
        (await rocket.ask("QueryOffset", message_queue=queue, query_offset_policy=policy)).offset
        for policy in (wire.BEGINNING, wire.END)
    ]
    assert ends == [0, 3]
    assert await rocket.code("UpdateOffset", **where, offset=2) == codes.OK
    answer = await rocket.ask("GetOffset", **where)
    assert (answer.status.code, answer.offset) == (codes.OK, 2)


@on_rocketmq
async def test_a_pull_ends_when_its_client_goes_or_its_deadline_comes(rocket):
    await rocket.create("jobs")
    queue = {"topic": {"name": "jobs"}, "id": 0}
    request = wire.request_of("PullMessage")(
        group={"name": "pullers"}, message_queue=queue, batch_size=10
    )
    wire.set_ms(request.long_polling_timeout, 60_000)
    call = rocket.begin("PullMessage", request)
    await asyncio.sleep(0.1)
    (pull,) = [one for one in asyncio.all_tasks() if one.get_name() == "PullMessage"]
    call.cancel()
    await asyncio.wait_for(pull, 5)
    soon_s = asyncio.get_running_loop().time() + 0.8
    async with asyncio.timeout(5):
        code, got = await rocket.stream("PullMessage", request, deadline=soon_s)
    assert (code, got) == (codes.MESSAGE_NOT_FOUND, [])


def frames_of(task):
    coroutine = task.get_coro()
    while getattr(coroutine, "cr_frame", None) is not None:
        yield coroutine.cr_frame
        coroutine = coroutine.cr_await
        if inspect.isgenerator(coroutine):  # that of Paced
            yield coroutine.gi_frame
            coroutine = coroutine.gi_frame.f_locals["coroutine"]


@on_rocketmq
async def test_a_request_that_waits_keeps_nothing_that_was_decoded(rocket):
    await rocket.create("jobs")
    queue = {"topic": {"name": "jobs"}}
    pull = wire.request_of("PullMessage")(group={"name": "pullers"}, message_queue=queue)
    wire.set_ms(pull.long_polling_timeout, 30_000)
    for rpc, request in [
        ("ReceiveMessage", receive_request("jobs", GROUP, wait_ms=30_000)),
        ("PullMessage", pull),
    ]:
        call = rocket.begin(rpc, request)
        await asyncio.sleep(0.1)
        (task,) = [one for one in asyncio.all_tasks() if one.get_name() == rpc]
        kept = [value for frame in frames_of(task) for value in frame.f_locals.values()]
        assert len(kept) > 10
        assert not any(isinstance(one, type(request)) for one in kept)
        call.cancel()
        await asyncio.wait_for(task, 5)


@on_rocketmq
async def test_a_change_waits_for_a_renewal_that_would_undo_it(rocket):
    await rocket.create("jobs")
    held = rocket.messaging.clients
    heartbeat = rocket.begin(
        "Heartbeat", wire.request_of("Heartbeat")(client_type=wire.PUSH_CONSUMER)
    )
    await heartbeat.over.wait()
    caller = Caller(
        rocket.node.services, heartbeat, "Heartbeat", ClientSession("R", "h", ANONYMOUS)
    )
    client = held.seen(caller)
    held.hold(client, "jobs", GROUP, ["0.1.x", "0.2.x"])
    client.renewing = frozenset(["0.1.x"])
    await asyncio.wait_for(held.drop(caller.key, ["0.2.x"]), 1)
    dropping = asyncio.create_task(held.drop(caller.key, ["0.1.x"]))
    await asyncio.sleep(0.05)
    assert not dropping.done()
    assert not client.held
    client.renewing = ()
    client.is_renewed.set()
    await asyncio.wait_for(dropping, 1)


@on_rocketmq
async def test_a_receive_gets_what_its_filter_selects_and_the_rest_is_skipped(rocket):
    await rocket.create("jobs")
    for number, (tag, region) in enumerate([("a", "eu"), ("b", "us"), ("c", "eu"), ("a", "us")]):
        await rocket.send("jobs", b"%d" % number, tag=tag, properties={"region": region})
    tags = {"type": wire.TAG, "expression": "a || b"}
    assert bodies(await rocket.receive("jobs", "tags", filter_expression=tags)) == [
        b"0",
        b"1",
        b"3",
    ]
    sql = {"type": wire.SQL, "expression": "region = 'eu' AND TAGS IS NOT NULL"}
    assert bodies(await rocket.receive("jobs", "sql", filter_expression=sql)) == [b"0", b"2"]
    every = {"type": wire.TAG, "expression": "*"}
    assert len(await rocket.receive("jobs", "all", filter_expression=every)) == 4
    assert await rocket.receive("jobs", "tags", filter_expression=every) == []
    for wrong in ({"type": wire.SQL, "expression": "region ="}, {"expression": "a | b"}):
        request = receive_request("jobs", GROUP, filter_expression=wrong)
        code, _none = await rocket.stream("ReceiveMessage", request)
        assert code == codes.ILLEGAL_FILTER_EXPRESSION
    request = wire.request_of("PullMessage")(
        group={"name": "pullers"},
        message_queue={"topic": {"name": "jobs"}},
        batch_size=10,
        filter_expression=tags,
    )
    assert bodies((await rocket.stream("PullMessage", request))[1]) == [b"0", b"1", b"3"]


@on_rocketmq
async def test_routes_name_the_address_by_which_the_client_asked(rocket):
    await rocket.create("orders", "fifo", partitions=2)
    asked = {"scheme": wire.DOMAIN_NAME, "addresses": [{"host": "mq.example", "port": 8081}]}
    answer = await rocket.ask("QueryRoute", topic={"name": "orders"}, endpoints=asked)
    assert [queue.id for queue in answer.message_queues] == [0, 1]
    for queue in answer.message_queues:
        assert queue.broker.endpoints.addresses[0].host == "mq.example"
        assert list(queue.accept_message_types) == [wire.FIFO]
        assert queue.permission == wire.READ_WRITE
    answer = await rocket.ask("QueryRoute", topic={"name": "orders"})
    address = answer.message_queues[0].broker.endpoints.addresses[0]
    assert (address.host, address.port) == ("broker.test", 8081)
    where = {"topic": {"name": "orders"}, "group": {"name": GROUP}}
    assert len((await rocket.ask("QueryAssignment", **where)).assignments) == 1
    await rocket.set_group(GROUP, **{"headrace.share.key.order": "true"})
    assert len((await rocket.ask("QueryAssignment", **where)).assignments) == 2


@on_rocketmq
async def test_routes_name_other_brokers_by_what_they_have_registered(rocket):
    """A name, or an address of either family; one without the listener is represented by this."""
    await rocket.create("orders", "fifo", partitions=5)
    hosts = ["mq.example", "192.0.2.7", "2001:db8::7"]
    schemes = [wire.DOMAIN_NAME, wire.IPV4, wire.IPV6]
    owners = [
        SimpleNamespace(id=7 + number, endpoints=(Endpoint(ROCKETMQ, "ROCKETMQ", host, 8081, ""),))
        for number, host in enumerate(hosts)
    ]
    owners += [SimpleNamespace(id=17, endpoints=None), None]
    rocket.node.services.cluster.leader_of = lambda _topic, number: owners[number]
    answer = await rocket.ask("QueryRoute", topic={"name": "orders"})
    found = [queue.broker.endpoints for queue in answer.message_queues]
    assert [one.scheme for one in found[:3]] == schemes
    expected = [(host, 8081) for host in hosts] + [("broker.test", 8081)] * 2
    assert [(one.addresses[0].host, one.addresses[0].port) for one in found] == expected
    names = [queue.broker.name for queue in answer.message_queues]
    own = f"broker-{rocket.node.services.cluster.broker_id}"
    assert names == ["broker-7", "broker-8", "broker-9", own, own]


def acknowledgement(topic, *receipts):
    where = {"group": {"name": GROUP}, "topic": {"name": topic}}
    entries = [{"receipt_handle": one} for one in receipts]
    return wire.request_of("AckMessage")(**where, entries=entries)


async def codes_of(call):
    """The code of each acknowledgement."""
    await asyncio.wait_for(call.over.wait(), 30)
    response = wire.response_of("AckMessage").FromString(call.sent[0])
    return [one.status.code for one in response.entries] or response.status.code


def commands_of(rocket):
    """The settlements of each command, from now on."""
    shares = rocket.node.services.queues._shares
    settle, seen = shares.settle, []

    async def counted(*arguments, **named):
        seen.append(arguments[-1])
        return await settle(*arguments, **named)

    shares.settle = counted
    return seen


@on_rocketmq
async def test_acknowledgements_that_arrive_together_are_one_command_with_results_of_their_own(
    rocket,
):
    await rocket.create("jobs")
    for _ in range(6):
        await rocket.send("jobs")
    got = await rocket.receive("jobs", GROUP)
    handles = [one.system_properties.receipt_handle for one in got]
    commands = commands_of(rocket)
    asked = [handles[:1], handles[1:3], ["garbage"], handles[3:4], [], handles[4:5] * 2]
    asked += [handles[:1], handles[5:]]  # the first one again: it must learn that it is settled
    calls = [rocket.begin("AckMessage", acknowledgement("jobs", *some)) for some in asked]
    assert [call.is_finished for call in calls] == [not some for some in asked]
    found = [await codes_of(call) for call in calls]
    invalid = codes.INVALID_RECEIPT_HANDLE
    assert found == [
        *([codes.OK], [codes.OK] * 2, [invalid], [codes.OK], codes.BAD_REQUEST, [invalid] * 2),
        *([codes.OK], [codes.OK]),
    ]
    assert len(commands[0]) == 1, "four neighbours are one range"
    assert len(commands) == 2
    assert await rocket.acknowledge("jobs", GROUP, got[4]) == [codes.OK], "twice was not done"
    assert not rocket.messaging.in_progress.by_connection


@on_rocketmq
async def test_acknowledgements_that_arrive_together_fail_together_if_they_are_not_stored(rocket):
    await rocket.create("jobs")
    for _ in range(2):
        await rocket.send("jobs")
    got = await rocket.receive("jobs", GROUP)
    handles = [one.system_properties.receipt_handle for one in got]
    shares = rocket.node.services.queues._shares
    settle, is_stored = shares.settle, asyncio.Event()

    async def failing(*_arguments, **_named):
        await is_stored.wait()
        raise StorageUnavailable("for a moment")

    shares.settle = failing
    calls = [rocket.begin("AckMessage", acknowledgement("jobs", one)) for one in handles]
    for _ in range(10):
        await asyncio.sleep(0)
    assert [call.is_finished for call in calls] == [False] * 2, "nothing is durable yet"
    is_stored.set()
    assert [await codes_of(call) for call in calls] == [[codes.INTERNAL_SERVER_ERROR]] * 2
    shares.settle = settle
    assert await rocket.acknowledge("jobs", GROUP, *got) == [codes.OK] * 2


def spelled(receipt):
    """The same delivery, in other texts."""
    partition, offset, member = receipt.split(".")
    arabic = "".join(chr(ord("\u0660") + int(digit)) for digit in offset)
    return [
        f"0{partition}.{offset}.{member}",
        f"{partition}.0{offset}.{member}",
        f"{partition}.{arabic}.{member}",
    ]


@on_rocketmq
async def test_a_receipt_has_one_spelling(rocket):
    await rocket.create("jobs")
    await rocket.send("jobs")
    (got,) = await rocket.receive("jobs", GROUP)
    receipt = got.system_properties.receipt_handle
    invalid = codes.INVALID_RECEIPT_HANDLE
    asked = [*spelled(receipt), receipt]
    calls = [rocket.begin("AckMessage", acknowledgement("jobs", one)) for one in asked]
    assert [await codes_of(call) for call in calls] == [[invalid]] * 3 + [[codes.OK]]


@on_rocketmq
async def test_sends_that_arrive_together_have_results_of_their_own_once_they_are_stored(rocket):
    await rocket.create("orders")
    messages = [rocket.message("orders", b"%d" % number) for number in range(4)]
    messages.insert(2, rocket.message("orders", b"refused", tag="a|b"))
    request = wire.request_of("SendMessage")
    calls = [rocket.begin("SendMessage", request(messages=[one])) for one in messages]
    # What is refused is answered at once; the others have stored nothing yet, and know no offset.
    assert [call.is_finished for call in calls] == [False, False, True, False, False]
    for call in calls:
        await asyncio.wait_for(call.over.wait(), 30)
    found = [wire.response_of("SendMessage").FromString(call.sent[0]) for call in calls]
    assert found.pop(2).status.code == codes.ILLEGAL_MESSAGE_TAG
    assert [one.status.code for one in found] == [codes.OK] * 4
    assert [one.entries[0].offset for one in found] == [0, 1, 2, 3]
    assert not rocket.messaging.in_progress.by_connection


@on_rocketmq
async def test_a_partition_that_does_not_answer_holds_up_its_own_sends_alone(rocket):
    await rocket.create("orders", "fifo", partitions=2)
    groups = {}
    for number in range(20):
        name = f"g{number}"
        groups.setdefault(partition_of_key(name.encode(), 2), []).append(name)
    appends = rocket.node.services.sends._appends
    append, goes_on = appends.append_and_wait, asyncio.Event()

    async def held_up(partition, batch):
        if partition.name.endswith("-0"):
            await goes_on.wait()
        return await append(partition, batch)

    appends.append_and_wait = held_up
    fifo = {"message_type": wire.FIFO}
    messages = [
        rocket.message("orders", b"1", message_group=groups[0][0], **fifo),
        rocket.message("orders", b"2", message_group=groups[1][0], **fifo),
        rocket.message("orders", b"3", message_group=groups[1][1], **fifo),
    ]
    request = wire.request_of("SendMessage")
    calls = [rocket.begin("SendMessage", request(messages=[one])) for one in messages]
    for call in calls[1:]:
        await asyncio.wait_for(call.over.wait(), 10)
    assert not calls[0].is_finished
    goes_on.set()
    await asyncio.wait_for(calls[0].over.wait(), 10)
    found = [wire.response_of("SendMessage").FromString(call.sent[0]) for call in calls]
    assert [one.entries[0].offset for one in found] == [0, 0, 1]
