"""What RocketMQ's clients say about a message, by every protocol that sends and receives it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.broker import BrokerHarness, broker
from tests.unit.http.http_rig import Web
from tests.unit.rocketmq.rocketmq_rig import Rocket

from headrace.records import attributes
from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.rocketmq import wire
from headrace.rocketmq.messages import BORN_HOST

Fields = dict[str, Any]
TOPIC = "all"
NOW_MS = 1_750_000_000_000
"""Earlier than any clock: what is due by then is delivered at once."""


class Attribute(NamedTuple):
    """A field of SystemProperties, and the header that stores it."""

    header: str
    values: st.SearchStrategy[Any]
    message_type: int = 0
    """The type of the messages that have it; 0: any."""


texts = st.text(min_size=1, max_size=60).filter(
    lambda text: text.isprintable() and text.strip() == text
)
ATTRIBUTES = {
    "delivery_timestamp_ms": Attribute(attributes.DELIVER_AT, st.integers(1, NOW_MS), wire.DELAY),
    "priority": Attribute(
        attributes.PRIORITY, st.integers(0, attributes.PRIORITY_MAX), wire.PRIORITY
    ),
    "message_group": Attribute(attributes.MESSAGE_GROUP, texts, wire.FIFO),
    "tag": Attribute(attributes.TAG, texts.filter(lambda text: not set(text) & set(" |"))),
    "trace_context": Attribute(attributes.TRACEPARENT, texts),
    "born_host": Attribute(BORN_HOST, texts),
}
TYPED = [name for name, one in ATTRIBUTES.items() if one.message_type]
sets = st.builds(
    lambda typed, others: typed | others,
    st.one_of(st.just({}), *(st.fixed_dictionaries({n: ATTRIBUTES[n].values}) for n in TYPED)),
    st.fixed_dictionaries(
        {}, optional={n: one.values for n, one in ATTRIBUTES.items() if n not in TYPED}
    ),
)
"""What messages have: a type's attribute at most, and any of the others."""


def headers_of(fields: Fields) -> dict[str, str]:
    return {ATTRIBUTES[name].header: str(value) for name, value in fields.items()}


def type_of(fields: Fields) -> int:
    return max([ATTRIBUTES[name].message_type for name in fields], default=0) or wire.NORMAL


class Clients:
    """A client of each protocol, at one broker. Those that read return what each body has."""

    def __init__(self, rig: BrokerHarness) -> None:
        self.rocket, self.web, self.kafka = Rocket(rig), Web(rig), rig.client()
        self.senders = {
            "rocketmq": self._send_rocketmq,
            "http": self._send_http,
            "kafka": self._send_kafka,
        }

    async def _send_rocketmq(self, body: str, fields: Fields) -> None:
        kind = type_of(fields)
        await self.rocket.send(TOPIC, body.encode(), message_type=kind, **fields)

    async def _send_http(self, body: str, fields: Fields) -> None:
        sent = {"records": [{"value": body, "headers": [*headers_of(fields).items()]}]}
        _status, answer = await self.web.ask("POST", f"/v1/topics/{TOPIC}/records", sent)
        assert answer["results"][0]["ok"], answer

    async def _send_kafka(self, body: str, fields: Fields) -> None:
        headers = [(name, value.encode()) for name, value in headers_of(fields).items()]
        record = Record(0, NOW_MS, None, body.encode(), headers)
        part = {"index": 0, "records": encode_batch([record])}
        topics = [{"name": TOPIC, "partition_data": [part]}]
        request = {"acks": -1, "timeout": 5_000, "topic_data": topics}
        answer = await self.kafka.ask(0, 7, request)
        assert not answer.responses[0].partition_responses[0].error_code, answer

    async def received_by_rocketmq(self, count: int) -> dict[str, Fields]:
        found: dict[str, Fields] = {}
        while len(found) < count:
            got = await self.rocket.receive(TOPIC, "workers", wait_ms=20_000)
            await self.rocket.acknowledge(TOPIC, "workers", *got)
            found |= {one.body.decode(): fields_of(one.system_properties) for one in got}
        return found

    async def read_over_http(self) -> dict[str, Fields]:
        _status, answer = await self.web.ask("GET", f"/v1/topics/{TOPIC}/records")
        return {one["value"]: unnumbered(dict(one["headers"])) for one in answer["records"]}

    async def fetched_by_kafka(self) -> dict[str, Fields]:
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        request = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
        topics = [{"topic": TOPIC, "partitions": [part]}]
        answer = await self.kafka.ask(1, 4, request | {"topics": topics})
        found = {}
        for record in iterate_records(answer.responses[0].partitions[0].records):
            assert record.value is not None
            headers = {name: value.decode() for name, value in record.headers if value is not None}
            found[record.value.decode()] = unnumbered(headers)
        return found


def unnumbered(headers: dict[str, str]) -> dict[str, str]:
    """The headers without the id that RocketMQ's clients give each message."""
    return {name: value for name, value in headers.items() if name != attributes.MESSAGE_ID}


def fields_of(system: Any) -> Fields:
    """The attributes and the type of a received message."""
    found: Fields = {"message_type": system.message_type}
    for name in ATTRIBUTES:
        field = name.removesuffix("_ms")
        value = getattr(system, field)
        is_time = field != name
        if system.HasField(field) if is_time or name == "priority" else value:
            found[name] = wire.ms_of(value) if is_time else value
    return found


@settings(max_examples=40, deadline=None)
@given(st.lists(sets, min_size=1, max_size=4))
def test_what_a_client_of_one_protocol_says_of_a_message_those_of_all_protocols_read(messages):
    async def scenario() -> None:
        async with broker() as rig:
            clients = Clients(rig)
            await clients.rocket.create(TOPIC, "mixed")
            sent = {f"{by} {at}": one for by in clients.senders for at, one in enumerate(messages)}
            for body, fields in sent.items():
                await clients.senders[body.split()[0]](body, fields)
            typed = {body: one | {"message_type": type_of(one)} for body, one in sent.items()}
            assert await clients.received_by_rocketmq(len(sent)) == typed
            headers = {body: headers_of(one) for body, one in sent.items()}
            assert await clients.read_over_http() == headers
            assert await clients.fetched_by_kafka() == headers

    asyncio.run(scenario())
