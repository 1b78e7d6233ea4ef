"""The real RocketMQ as the oracle: the same client and the same requests at both servers.

It needs RocketMQ as the benchmarks install it (`headrace bench --workload rocketmq`), and 2 GB of
memory. Where Headrace answers otherwise on purpose, `BETTER` says so, and docs/ROCKETMQ.md why.
"""

from __future__ import annotations

import queue
import time
from itertools import count

import pytest
from tests.integration.test_rocketmq import LANES, address, output_of, post, python_program

from headrace.rocketmq import codes, wire

grpc = pytest.importorskip("grpc")

TYPES = ("normal", "fifo", "delay", "transaction")
CLIENT, GROUP = "by-hand@1", "workers"
METADATA = (
    *(("x-mq-language", "JAVA"), ("x-mq-protocol", "v2")),
    ("x-mq-client-version", "5.2.0"),
)
_numbers = count(1)


class Own:
    """A broker of ours."""

    name = "headrace"

    def __init__(self, folder):
        from tests.integration.broker import Broker

        self._broker = Broker(folder, "--rocketmq", "127.0.0.1:0")
        self._broker.start()
        self.at = address(self._broker)

    def create(self, name, message_type):
        config = {"headrace.message.type": message_type}
        post(self._broker, "/v1/topics", {"name": name, "partitions": 2, "config": config})

    def create_group(self, name):
        """The first receive does."""

    def stop(self):
        self._broker.stop()


class Real:
    """RocketMQ's proxy and its broker, apart: otherwise it has no lite topics."""

    name = "rocketmq"

    def __init__(self, folder):
        from headrace_bench.systems import rocketmq
        from headrace_bench.systems.rocketmq_protocol import Proxy

        if missing := rocketmq.missing():
            pytest.skip(f"no RocketMQ: {missing}")
        self._proxy = Proxy(folder, "unsynced", is_apart=True)
        self._proxy.start()
        self.at = f"127.0.0.1:{self._proxy.port}"

    def create(self, name, message_type):
        self._proxy.create(name, message_type)

    def create_group(self, name):
        self._proxy.create_group(name)

    def stop(self):
        self._proxy.stop()


@pytest.fixture(scope="module", params=[Own, pytest.param(Real, marks=pytest.mark.long)])
def server(request, tmp_path_factory):
    one = request.param(tmp_path_factory.mktemp("server"))
    yield one
    one.stop()


@pytest.fixture(scope="module")
def topics(server):
    """Message type -> a topic of that type."""
    for message_type in TYPES:
        server.create(f"of-{message_type}", message_type)
    server.create("empty", "normal")
    return {message_type: f"of-{message_type}" for message_type in TYPES} | {"empty": "empty"}


class Asking:
    """A client by hand."""

    def __init__(self, at):
        self._channel = grpc.insecure_channel(at)
        self._commands: queue.Queue = queue.Queue()

    def close(self):
        self._commands.put(None)
        self._channel.close()

    def consumes(self, topics):
        """Say so, as clients do before they receive: RocketMQ receives for no other."""
        command = wire.TelemetryCommand()
        settings = command.settings
        settings.client_type = wire.SIMPLE_CONSUMER
        settings.subscription.group.name = GROUP
        for topic in topics:
            settings.subscription.subscriptions.add(
                topic={"name": topic}
            ).expression.type = wire.TAG
        self._commands.put(command)
        answers = self._channel.stream_stream(
            f"/{wire.SERVICE}/{wire.TELEMETRY}",
            wire.TelemetryCommand.SerializeToString,
            wire.TelemetryCommand.FromString,
        )(iter(self._commands.get, None), metadata=_metadata(CLIENT))
        assert next(answers).HasField("settings")

    def code(self, rpc, client_id=CLIENT, timeout_s=30, **fields):
        """The code of the answer, or of the first one of a stream."""
        path, response_of = f"/{wire.SERVICE}/{rpc}", wire.response_of(rpc).FromString
        metadata = _metadata(client_id)
        request = wire.request_of(rpc)(**fields).SerializeToString()
        if rpc in wire.STREAMED:
            call = self._channel.unary_stream(path, None, response_of)
            found = list(call(request, metadata=metadata, timeout=timeout_s))
            (status,) = (one.status for one in found if one.HasField("status"))
            return status.code
        call = self._channel.unary_unary(path, None, response_of)
        return call(request, metadata=metadata, timeout=timeout_s).status.code


def _metadata(client_id):
    return (*METADATA, ("x-mq-client-id", client_id)) if client_id else METADATA


@pytest.fixture(scope="module")
def asking(server, topics):
    one = Asking(server.at)
    server.create_group(GROUP)
    one.consumes(topics.values())
    yield one
    one.close()


def message(topic, body=b"body", properties=(), **system):
    system = {"message_id": f"01{next(_numbers):032X}", "message_type": wire.NORMAL} | system
    return wire.Message(
        topic={"name": topic},
        body=body,
        user_properties=dict(properties),
        system_properties=system | {"body_encoding": wire.IDENTITY},
    )


def seconds(count):
    return {"seconds": int(count)}


def sent(*messages):
    return "SendMessage", {"messages": list(messages)}


def acknowledged(topic, handle):
    named = {"topic": {"name": topic}, "group": {"name": GROUP}}
    return "AckMessage", named | {"entries": [{"receipt_handle": handle, "message_id": "x"}]}


def received(topic, expression="*", kind=wire.TAG, invisible_s=15, poll_s=1, **more):
    queue = wire.MessageQueue(topic={"name": topic}, broker={"name": "bench"}, id=0)
    fields = {
        "group": {"name": GROUP},
        "message_queue": queue,
        "filter_expression": {"type": kind, "expression": expression},
        "batch_size": 1,
        "invisible_duration": seconds(invisible_s),
        "long_polling_timeout": seconds(poll_s),
    }
    return "ReceiveMessage", fields | more


FIFO = {"message_type": wire.FIFO}
REFUSED = {
    "an empty body": (lambda t: sent(message(t["normal"], b"")), codes.MESSAGE_BODY_EMPTY),
    "a body above 4 MiB": (
        lambda t: sent(message(t["normal"], bytes(4 * 1024 * 1024 + 1))),
        codes.MESSAGE_BODY_TOO_LARGE,
    ),
    "properties above 16 KiB": (
        lambda t: sent(message(t["normal"], properties={"p": "x" * 16_384})),
        codes.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    "129 properties": (
        lambda t: sent(message(t["normal"], properties={f"p{n}": "x" for n in range(129)})),
        codes.MESSAGE_PROPERTIES_TOO_LARGE,
    ),
    "a type that the topic does not have": (
        lambda t: sent(message(t["normal"], **FIFO, message_group="g")),
        codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "a FIFO message that has a delivery time instead of a message group": (
        lambda t: sent(message(t["delay"], **FIFO, delivery_timestamp=seconds(time.time() + 60))),
        codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
    ),
    "no message": (lambda _t: sent(), codes.MESSAGE_CORRUPTED),
    "messages of two topics": (
        lambda t: sent(message(t["normal"]), message(t["fifo"], **FIFO, message_group="g")),
        codes.MESSAGE_CORRUPTED,
    ),
    "no message id": (
        lambda t: sent(message(t["normal"], message_id="")),
        codes.ILLEGAL_MESSAGE_ID,
    ),
    "a topic that is none": (lambda _t: sent(message("a/b")), codes.ILLEGAL_TOPIC),
    "a topic without a name": (lambda _t: sent(message("")), codes.ILLEGAL_TOPIC),
    "a topic that does not exist": (
        lambda _t: ("QueryRoute", {"topic": {"name": "none"}}),
        codes.TOPIC_NOT_FOUND,
    ),
    "a tag with |": (
        lambda t: sent(message(t["normal"], tag="a|b")),
        codes.ILLEGAL_MESSAGE_TAG,
    ),
    "a blank key": (
        lambda t: sent(message(t["normal"], keys=[" "])),
        codes.ILLEGAL_MESSAGE_KEY,
    ),
    "a message group of 65 characters": (
        lambda t: sent(message(t["fifo"], **FIFO, message_group="g" * 65)),
        codes.ILLEGAL_MESSAGE_GROUP,
    ),
    "a reserved property": (
        lambda t: sent(message(t["normal"], properties={"TAGS": "x"})),
        codes.ILLEGAL_MESSAGE_PROPERTY_KEY,
    ),
    "no client id": (
        lambda t: ("QueryRoute", {"topic": {"name": t["normal"]}, "client_id": ""}),
        codes.CLIENT_ID_REQUIRED,
    ),
    "a delivery time that is too far away": (
        lambda t: sent(
            message(
                t["delay"],
                message_type=wire.DELAY,
                delivery_timestamp=seconds(time.time() + 100 * 365 * 86_400),
            )
        ),
        codes.ILLEGAL_DELIVERY_TIME,
    ),
    "a receipt handle that is none": (
        lambda t: acknowledged(t["normal"], "garbage"),
        codes.INVALID_RECEIPT_HANDLE,
    ),
    "a receive with a filter by tags that is none": (
        lambda t: received(t["empty"], "||"),
        codes.ILLEGAL_FILTER_EXPRESSION,
    ),
    "a receive with a filter by SQL that is none": (
        lambda t: received(t["empty"], "n >", wire.SQL),
        codes.ILLEGAL_FILTER_EXPRESSION,
    ),
    "a receive with an invisible duration below 10 s": (
        lambda t: received(t["empty"], invisible_s=9),
        codes.ILLEGAL_INVISIBLE_TIME,
    ),
    "a receive with an invisible duration above 12 h": (
        lambda t: received(t["empty"], invisible_s=12 * 3600 + 1),
        codes.ILLEGAL_INVISIBLE_TIME,
    ),
    "a receive with a deadline of 4 s": (
        lambda t: received(t["empty"], poll_s=1, timeout_s=4),
        codes.MESSAGE_NOT_FOUND,
    ),
    "a receive of a topic that does not exist": (
        lambda _t: received("none"),
        codes.TOPIC_NOT_FOUND,
    ),
    "a receive when there is nothing": (
        lambda t: received(t["empty"]),
        codes.MESSAGE_NOT_FOUND,
    ),
}
"""What is wrong -> (RPC with fields of its request, code)."""
TAKEN = {
    "a NORMAL message with a message group": (
        "fifo",
        {"message_type": wire.NORMAL, "message_group": "g"},
    ),
    "a message without a type, with a message group": (
        "fifo",
        {"message_type": 0, "message_group": "g"},
    ),
    "a NORMAL message with a delivery time": (
        "delay",
        {"message_type": wire.NORMAL, "delivery_timestamp": seconds(time.time() + 60)},
    ),
}
"""What is odd -> (the topic's message type, fields of a message)."""
BETTER = {
    "a receive with a deadline of 4 s": codes.ILLEGAL_POLLING_TIME,  # it waits for 5 s at least
    "a receive with a filter by SQL that is none": codes.INTERNAL_SERVER_ERROR,
    "a FIFO message that has a delivery time instead of a message group": codes.OK,
    "a receipt handle that is none": codes.INTERNAL_SERVER_ERROR,
}
"""What RocketMQ answers instead."""


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_request_has_rocketmqs_code(server, topics, asking, what):
    make, expected = REFUSED[what]
    rpc, fields = make(topics)
    if server.name == Real.name:
        expected = BETTER.get(what, expected)
    assert asking.code(rpc, **fields) == expected


@pytest.mark.parametrize("what", TAKEN)
def test_a_message_that_is_of_a_type_by_its_fields_is_taken(topics, asking, what):
    message_type, fields = TAKEN[what]
    rpc, request = sent(message(topics[message_type], **fields))
    assert asking.code(rpc, **request) == codes.OK


@pytest.mark.parametrize("lane", ["normal", "filters", "transaction", "lite"])
def test_an_official_client_gets_the_same(server, lane):
    message_type, expected = LANES[lane]
    topic = f"{lane}-{next(_numbers)}"
    server.create(topic, message_type)
    # RocketMQ receives for no client before it has its settings, and this one does not wait.
    waits = {"HEADRACE_AWAITS_SETTINGS": "1"} if server.name == Real.name else {}
    found = output_of(python_program(), server.at, lane, topic, f"group-{topic}", **waits)
    assert found == expected
