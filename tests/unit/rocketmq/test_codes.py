"""Every error has a code of RocketMQ's, and each bad request the one that RocketMQ gives it."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import time
from types import SimpleNamespace

import pytest
from tests.unit.rocketmq.rocketmq_rig import TestCall, on_rocketmq, receive_request
from tests.waiting import until

from headrace import errors
from headrace.broker.services.topic_service import NewTopic
from headrace.records.batch import iterate_headers
from headrace.rocketmq import codes, wire
from headrace.rocketmq.bodies import BODY_BYTES_MAX, Bodies
from headrace.rocketmq.codes import Refused, code_of
from headrace.rocketmq.in_progress import Held, InProgress
from headrace.rocketmq.receiving import poll_s

GROUP = "workers"
KINDS = [
    kind
    for _name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.HeadraceError)
]


SEEN = {
    "ILLEGAL_TOPIC": 40002,
    "ILLEGAL_MESSAGE_TAG": 40004,
    "ILLEGAL_MESSAGE_KEY": 40005,
    "ILLEGAL_MESSAGE_GROUP": 40006,
    "ILLEGAL_MESSAGE_PROPERTY_KEY": 40007,
    "ILLEGAL_MESSAGE_ID": 40009,
    "ILLEGAL_FILTER_EXPRESSION": 40010,
    "ILLEGAL_INVISIBLE_TIME": 40011,
    "ILLEGAL_DELIVERY_TIME": 40012,
    "INVALID_RECEIPT_HANDLE": 40013,
    "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE": 40014,
    "MESSAGE_CORRUPTED": 40016,
    "CLIENT_ID_REQUIRED": 40017,
    "ILLEGAL_POLLING_TIME": 40018,
    "UNAUTHORIZED": 40100,
    "MESSAGE_NOT_FOUND": 40401,
    "TOPIC_NOT_FOUND": 40402,
    "MESSAGE_BODY_TOO_LARGE": 41301,
    "MESSAGE_BODY_EMPTY": 41302,
    "MESSAGE_PROPERTIES_TOO_LARGE": 43101,
}
"""As RocketMQ 5.5.0 answers the bad requests below (40010 and, for malformed receipts, 40013 where
it has an internal error)."""


def test_codes_have_the_numbers_that_rocketmq_answers():
    assert {name: getattr(codes, name) for name in SEEN} == SEEN


@on_rocketmq
async def test_a_receipt_that_is_none_gets_the_code_of_one_that_is_stale(rocket):
    await rocket.create("jobs")
    where = {"topic": {"name": "jobs"}, "group": {"name": GROUP}}
    await rocket.send("jobs")
    (held,) = await rocket.receive("jobs", GROUP)
    good = held.system_properties.receipt_handle
    bad = ["", "x", "0.0", "0.0.none", "9.0.none", "0.99.none", f"{good}.", "\u00e9" * 300]
    entries = [{"receipt_handle": one} for one in [*bad, good]]
    response = await rocket.ask("AckMessage", **where, entries=entries)
    found = [one.status.code for one in response.entries]
    assert found == [codes.INVALID_RECEIPT_HANDLE] * len(bad) + [codes.OK]
    for rpc in ("ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"):
        for handle in bad:
            code = await rocket.code(rpc, **where, receipt_handle=handle)
            assert code == codes.INVALID_RECEIPT_HANDLE, (rpc, handle)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_a_code_by_which_clients_do_what_it_says(kind):
    code = code_of(kind())
    if issubclass(kind, errors.Rejected):
        assert 40000 <= code < 50000, "the same request gets the same answer"
    elif issubclass(kind, errors.Retriable) and code not in {
        codes.TOPIC_NOT_FOUND,  # as RocketMQ says it
        codes.TOO_MANY_REQUESTS,
        codes.FORBIDDEN,  # a full disk, see the table
    }:
        assert 50000 <= code < 60000, "clients try again"


def test_a_refusal_has_the_code_that_it_names():
    assert code_of(Refused(codes.ILLEGAL_TOPIC, "x")) == codes.ILLEGAL_TOPIC


@on_rocketmq
async def test_a_message_that_cannot_be_stored_is_refused_with_rocketmqs_code(rocket):
    await rocket.create("jobs")
    await rocket.create("all", "mixed")
    day_ms = 24 * 3_600_000
    configs = {"headrace.message.type": "mixed", "headrace.delay.max.ms": str(day_ms)}
    await rocket.node.services.configurations.replace_topic("all", configs)
    now_ms = int(time.time() * 1000)
    many = {f"p{number}": "" for number in range(129)}
    for expected, body, system in [
        (codes.MESSAGE_BODY_EMPTY, b"", {}),
        (codes.MESSAGE_BODY_TOO_LARGE, bytes(4 * 1024 * 1024 + 1), {}),
        (codes.MESSAGE_PROPERTIES_TOO_LARGE, b"x", {"properties": {"p": "x" * 16_384}}),
        (codes.MESSAGE_PROPERTIES_TOO_LARGE, b"x", {"properties": many}),
        (
            codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            b"x",
            {"message_group": "g", "priority": 1},
        ),
        (
            codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            b"x",
            {"message_type": wire.FIFO, "priority": 1},
        ),
        (codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, b"x", {"message_type": wire.FIFO}),
        (codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, b"x", {"message_type": wire.DELAY}),
        (codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, b"x", {"message_type": 77}),
        (codes.ILLEGAL_MESSAGE_ID, b"x", {"message_id": ""}),
        (codes.ILLEGAL_MESSAGE_TAG, b"x", {"tag": "a|b"}),
        (codes.ILLEGAL_MESSAGE_TAG, b"x", {"tag": ""}),
        (codes.ILLEGAL_MESSAGE_KEY, b"x", {"keys": [" "]}),
        (codes.ILLEGAL_MESSAGE_KEY, b"x", {"keys": ["k" * 5_000]}),
        (codes.ILLEGAL_MESSAGE_PROPERTY_KEY, b"x", {"properties": {"TAGS": "x"}}),
        (codes.ILLEGAL_MESSAGE_PROPERTY_KEY, b"x", {"properties": {"headrace-half": "x"}}),
        (codes.MESSAGE_CORRUPTED, b"no gzip", {"body_encoding": wire.GZIP}),
        (codes.MESSAGE_CORRUPTED, b"x", {"body_encoding": 9}),
        (
            codes.MESSAGE_BODY_TOO_LARGE,
            gzip.compress(bytes(5 * 1024 * 1024)),
            {"body_encoding": wire.GZIP},
        ),
        (
            codes.ILLEGAL_MESSAGE_GROUP,
            b"x",
            {"message_type": wire.FIFO, "message_group": "g" * 65},
        ),
        (
            codes.ILLEGAL_DELIVERY_TIME,
            b"x",
            {"message_type": wire.DELAY, "delivery_timestamp_ms": now_ms + 2 * day_ms},
        ),
        (codes.BAD_REQUEST, b"x", {"message_type": wire.PRIORITY, "priority": 10}),
    ]:
        assert await rocket.send_code("all", body, **system) == expected, system
    fifo = {"message_type": wire.FIFO, "message_group": "g"}
    for one in (fifo, {"message_group": "g"}):
        assert await rocket.send_code("jobs", **one) == codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert await rocket.send_code("none") == codes.TOPIC_NOT_FOUND
    for name in ("", "__consumer_offsets", "a/b", "%RETRY%g"):
        assert await rocket.send_code(name) == codes.ILLEGAL_TOPIC, name
    assert await rocket.code("SendMessage") == codes.MESSAGE_CORRUPTED
    two = [rocket.message("jobs"), rocket.message("all")]
    assert await rocket.code("SendMessage", messages=two) == codes.MESSAGE_CORRUPTED
    assert await rocket.receive("all", GROUP) == [], "nothing of it was stored"


@on_rocketmq
async def test_a_batch_is_stored_as_a_whole_or_refused_as_a_whole(rocket):
    await rocket.create("jobs")
    good, bad = rocket.message("jobs"), rocket.message("jobs", tag="a|b")
    code = await rocket.code("SendMessage", messages=[good, bad])
    assert code == codes.ILLEGAL_MESSAGE_TAG
    assert await rocket.receive("jobs", GROUP) == []
    more = [rocket.message("jobs", b"%d" % number) for number in range(5)]
    response = await rocket.ask("SendMessage", messages=more)
    assert [one.offset for one in response.entries] == [0, 1, 2, 3, 4]
    assert len(await rocket.receive("jobs", GROUP)) == 5


@on_rocketmq
async def test_a_batch_has_at_most_1000_messages_of_16_mib(rocket):
    await rocket.create("jobs")
    many = [rocket.message("jobs", b"x") for _ in range(1_001)]
    assert await rocket.code("SendMessage", messages=many) == codes.MESSAGE_CORRUPTED
    packed = gzip.compress(bytes(4 * 1024 * 1024))
    bombs = [rocket.message("jobs", packed, body_encoding=wire.GZIP) for _ in range(5)]
    assert await rocket.code("SendMessage", messages=bombs) == codes.MESSAGE_BODY_TOO_LARGE
    assert await rocket.receive("jobs", GROUP) == [], "nothing of it was stored"


@on_rocketmq
async def test_a_request_with_very_many_fields_is_refused_before_it_is_decoded(rocket):
    path = f"/{wire.SERVICE}"
    for rpc, field in [("SendMessage", 1), ("AckMessage", 3), ("SyncLiteSubscription", 4)]:
        call = rocket.begin(rpc, wire.Status())
        await call.over.wait()
        again = type(call)(call.path, "client@1")
        tasks = len(asyncio.all_tasks())
        rocket.messaging.methods[f"{path}/{rpc}"].handler(again, bytes([field << 3 | 2, 0]) * 9_000)
        assert again.is_finished
        assert len(asyncio.all_tasks()) == tasks
        code = wire.response_of(rpc).FromString(again.sent[0]).status.code
        assert code == codes.BAD_REQUEST


@on_rocketmq
async def test_requests_in_progress_on_one_connection_are_bounded(rocket):
    await rocket.create("jobs")
    size = 1024 * 1024
    sent = [
        rocket.begin("SendMessage", wire.request_of("SendMessage")(
            messages=[rocket.message("jobs", bytes(size))]
        ))
        for _ in range(65)
    ]  # fmt: skip
    refused = wire.response_of("SendMessage").FromString(sent[-1].sent[0])
    assert refused.status.code == codes.TOO_MANY_REQUESTS
    for call in sent:
        await asyncio.wait_for(call.over.wait(), 30)
    await rocket.send("jobs")


def bombs(rocket, topic):
    """A request of 16 KiB that decompresses to 16 MiB."""
    packed = gzip.compress(bytes(4 * 1024 * 1024))
    messages = [rocket.message(topic, packed, body_encoding=wire.GZIP) for _ in range(4)]
    return wire.request_of("SendMessage")(messages=messages)


@on_rocketmq
async def test_bodies_that_grow_are_decompressed_beside_the_loop_and_count_as_what_they_grow_to(
    rocket,
):
    configs = {"max.message.bytes": str(5 * 1024 * 1024)}
    await rocket.node.services.topics.create(NewTopic("large", 1, -1, configs))
    request = bombs(rocket, "large")
    threads, have_begun = rocket.messaging._sending._threads, asyncio.Event()
    run = threads.run

    async def run_later(function):
        await have_begun.wait()
        return await run(function)

    threads.run = run_later
    sent = [rocket.begin("SendMessage", request) for _ in range(5)]
    progress = rocket.messaging.in_progress
    assert progress.bytes == 5 * request.ByteSize(), "nothing was decompressed yet"
    await until(lambda: sum(call.is_finished for call in sent) == 2)
    assert progress.bytes > 3 * 16 * 1024 * 1024
    have_begun.set()
    for call in sent:
        await asyncio.wait_for(call.over.wait(), 30)
    found = [wire.response_of("SendMessage").FromString(call.sent[0]) for call in sent]
    refused = [codes.TOO_MANY_REQUESTS] * 2  # 64 MiB, and the requests themselves
    assert [one.status.code for one in found] == [codes.OK] * 3 + refused
    assert not progress.bytes
    assert not progress.by_connection
    (got,) = await rocket.receive("large", GROUP, batch_size=1)
    assert got.body == bytes(4 * 1024 * 1024)


@on_rocketmq
async def test_a_large_request_is_stored_in_batches_that_hold_up_the_loop_briefly(rocket):
    configs = {"max.message.bytes": str(16 * 1024 * 1024)}
    await rocket.node.services.topics.create(NewTopic("large", 1, -1, configs))
    sizes = [1, 3_000_000, 3_000_000, 10, 1_000_000, 4_000_000]
    messages = [rocket.message("large", bytes(size)) for size in sizes]
    response = await rocket.ask("SendMessage", messages=messages)
    assert [one.offset for one in response.entries] == list(range(len(sizes)))
    log = rocket.node.services.topics.get("large").require_log(0)
    counts = []
    while sum(counts) < len(sizes):
        data = await log.reader.read(sum(counts), 1)
        counts += [header.record_count for _at, header in iterate_headers(data)]
    assert counts == [2, 3, 1]


@on_rocketmq
async def test_properties_count_for_the_size_of_a_batch(rocket):
    """In one request, and in requests that arrive together."""
    configs = {"max.message.bytes": str(16 * 1024 * 1024)}
    await rocket.node.services.topics.create(NewTopic("large", 1, -1, configs))
    properties = {"p": "x" * 15_000}
    many = [rocket.message("large", properties=properties) for _ in range(300)]
    await rocket.ask("SendMessage", messages=many)
    request = wire.request_of("SendMessage")
    calls = [
        rocket.begin("SendMessage", request(messages=[rocket.message("large", properties=given)]))
        for given in [properties] * 20
    ]
    for call in calls:
        await asyncio.wait_for(call.over.wait(), 5)
    log = rocket.node.services.topics.get("large").require_log(0)
    counts = []
    while sum(counts) < len(many) + len(calls):
        data = await log.reader.read(sum(counts), 1)
        counts += [header.record_count for _at, header in iterate_headers(data)]
    assert counts == [274, 26, 17, 3]


@on_rocketmq
async def test_a_compressed_body_is_read_up_to_what_its_topic_takes(rocket):
    await rocket.create("jobs")
    again = {"compression.type": "lz4"}
    await rocket.node.services.topics.create(NewTopic("again", 1, -1, again))
    body = gzip.compress(bytes(2 * 1024 * 1024))
    expected = {"jobs": codes.MESSAGE_BODY_TOO_LARGE, "again": codes.OK}
    for topic, code in expected.items():
        assert await rocket.send_code(topic, body, body_encoding=wire.GZIP) == code, topic
    empty = gzip.compress(b"")
    assert await rocket.send_code("jobs", empty, body_encoding=wire.GZIP) == (
        codes.MESSAGE_BODY_EMPTY
    )


def test_bodies_are_decompressed_at_once_only_if_that_is_quick():
    text = b"".join(b"%d," % number for number in range(20_000))
    few = gzip.compress(bytes(300_000))
    for body, is_quick in [(gzip.compress(text), True), (gzip.compress(bytes(10_000)), True),
                           (gzip.compress(bytes(50_000)), False), (few, False)]:  # fmt: skip
        message = wire.Message(body=body)
        message.system_properties.body_encoding = wire.GZIP
        given = Bodies([message, wire.Message(body=b"plain")])
        found = given.unpack(BODY_BYTES_MAX)
        assert found == [gzip.decompress(body), b"plain"]
        assert given.inline(BODY_BYTES_MAX) == (found if is_quick else None)
        size = given.unpacked_bytes(found)
        assert size == len(found[0]) <= given.unpacked_bytes_max(BODY_BYTES_MAX)


def test_requests_in_progress_of_all_connections_are_bounded():
    progress, size = InProgress(), 60 * 1024 * 1024

    def begin(number: int) -> Held:
        call = TestCall("/t", "client")  # on a connection of its own
        call.peer = f"10.0.0.{number}"
        return progress.begin(call, size)

    held = [begin(number) for number in range(4)]
    with pytest.raises(Refused, match="of all clients"):
        begin(4)
    with pytest.raises(Refused, match="on this connection"):
        held[0].add(5 * 1024 * 1024)
    held[0].release()
    held[0].release()
    held.append(begin(4))
    assert progress.bytes == 4 * size
    for one in held:
        one.release()
    assert not progress.bytes
    assert not progress.by_connection


@on_rocketmq
async def test_requests_without_messages_are_small(rocket):
    for path, method in rocket.messaging.methods.items():
        is_send = path.endswith("/SendMessage")
        assert method.request_bytes_max == (None if is_send else 256 * 1024), path


@on_rocketmq
async def test_calls_that_arrive_together_share_a_batch_and_nothing_else(rocket):
    await rocket.create("jobs")
    await rocket.create("later", "mixed")
    large = bytes(1_100_000)  # more than the topic takes
    sent = [
        rocket.ask("SendMessage", messages=[rocket.message(topic, body)])
        for topic, body in [*(("jobs", b"%d" % n) for n in range(20)), ("later", b"x")]
    ]
    sent.insert(7, rocket.ask("SendMessage", messages=[rocket.message("jobs", large)]))
    sent.append(rocket.ask("SendMessage", messages=[rocket.message("none")]))
    answers = await asyncio.gather(*sent)
    found = [one.status.code for one in answers]
    assert found.pop(7) == codes.MESSAGE_BODY_TOO_LARGE
    assert found.pop() == codes.TOPIC_NOT_FOUND
    assert set(found) == {codes.OK}
    assert [one.entries[0].offset for one in answers[:7]] == list(range(7))
    got = await rocket.receive("jobs", GROUP)
    assert [one.body for one in got] == [b"%d" % number for number in range(20)]


@on_rocketmq
async def test_a_call_whose_response_cannot_be_made_is_answered_and_no_longer_counted(rocket):
    await rocket.create("jobs")
    sends = rocket.node.services.sends
    send = sends.send

    async def send_and_lose_a_result(topic, records):
        return (await send(topic, records))[:-1]

    sends.send = send_and_lose_a_result
    request = wire.request_of("SendMessage")
    calls = [
        rocket.begin("SendMessage", request(messages=[rocket.message("jobs")])) for _ in range(2)
    ]
    for call in calls:
        await asyncio.wait_for(call.over.wait(), 5)
    found = [wire.response_of("SendMessage").FromString(call.sent[0]) for call in calls]
    assert [one.status.code for one in found] == [codes.OK, codes.INTERNAL_SERVER_ERROR]
    assert not rocket.messaging.in_progress.by_connection


@on_rocketmq
async def test_other_bad_requests_have_rocketmqs_codes(rocket):
    await rocket.create("jobs")
    where = {"topic": {"name": "jobs"}, "group": {"name": GROUP}}
    assert await rocket.code("QueryRoute", "", topic=where["topic"]) == codes.CLIENT_ID_REQUIRED
    assert await rocket.code("QueryRoute", topic={"name": "none"}) == codes.TOPIC_NOT_FOUND
    assert await rocket.code("AckMessage", **where) == codes.BAD_REQUEST
    assert await rocket.code("AckMessage", **where, entries=[{}] * 1_001) == codes.BAD_REQUEST
    hosts = {"addresses": [{"host": "h" * 100, "port": 1}] * 50}
    code = await rocket.code("QueryRoute", topic=where["topic"], endpoints=hosts)
    assert code == codes.BAD_REQUEST, "they would be repeated for each queue"
    unknown = wire.Resource.FromString(b"\x12\x04jobs\x7a\xff\x3f" + bytes(8_191))
    answer = await rocket.ask("QueryRoute", topic=unknown)
    assert answer.message_queues[0].topic.ByteSize() == 6
    assert await rocket.code("Heartbeat", client_type=99) == codes.UNRECOGNIZED_CLIENT_TYPE
    assert await rocket.code("Heartbeat", client_type=wire.PRODUCER) == codes.OK
    assert await rocket.code("Heartbeat") == codes.OK, "older clients do not say what they are"
    assert await rocket.code("SyncLiteSubscription", **where) == codes.ILLEGAL_TOPIC
    lite = {"messages": [rocket.message("jobs", message_type=wire.LITE, lite_topic="l")]}
    refused = (await rocket.ask("SendMessage", **lite)).status
    assert refused.code == codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    for invisible_ms in (9_999, 12 * 3_600_000 + 1):
        request = receive_request("jobs", GROUP, invisible_ms=invisible_ms)
        code, _none = await rocket.stream("ReceiveMessage", request)
        assert code == codes.ILLEGAL_INVISIBLE_TIME
    request = receive_request("jobs", " ")
    assert (await rocket.stream("ReceiveMessage", request))[0] == codes.ILLEGAL_CONSUMER_GROUP
    request = receive_request("jobs", GROUP)
    code, none = await rocket.stream("ReceiveMessage", request)
    assert (code, none) == (codes.MESSAGE_NOT_FOUND, [])
    code, _none = await rocket.stream("ReceiveMessage", request, deadline=0.1)
    assert code == codes.ILLEGAL_POLLING_TIME


@pytest.mark.parametrize(
    ("asked_s", "left_s", "waits_s"),
    [(30, 33, 30), (40, 40, 38), (5, 5, 4.7), (1, 5, 1)],
)
async def test_a_wait_ends_before_the_deadline(asked_s, left_s, waits_s):
    """Where the deadline is the time that is asked for, the way of the answer needs a part."""
    deadline = asyncio.get_running_loop().time() + left_s
    caller = SimpleNamespace(call=SimpleNamespace(deadline=deadline))
    request = receive_request("jobs", GROUP, wait_ms=asked_s * 1_000)
    assert waits_s - 1 < poll_s(caller, request, 20_000) <= waits_s


@on_rocketmq
async def test_bytes_that_are_no_request_end_their_call_alone(rocket):
    for rpc in ("SendMessage", "ReceiveMessage"):
        call = rocket.begin(rpc, wire.Status())
        rocket.messaging.methods[call.path].handler(call, b"\xff\xff")
        assert call.status in {0, 3}
    call = rocket.begin("QueryRoute", wire.Message(body=b"other fields"))
    await call.over.wait()
    assert wire.response_of("QueryRoute").FromString(call.sent[0]).status.code
