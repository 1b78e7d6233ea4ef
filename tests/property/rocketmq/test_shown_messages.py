"""Messages written by hand, against protobuf's library filled in field by field."""

from __future__ import annotations

from base64 import b64encode
from hashlib import md5
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.records import attributes
from headrace.records.codec import Record, header_name
from headrace.rocketmq import wire
from headrace.rocketmq.messages import BORN_HOST
from headrace.rocketmq.shown_messages import attempt, delivery, made_id, message, response

TOPIC_ID = UUID(int=0x1234567890ABCDEF1234567890ABCDEF)
RESPONSE = wire.response_of("ReceiveMessage")
TEXTS = {
    attributes.MESSAGE_ID: "message_id",
    attributes.TAG: "tag",
    attributes.MESSAGE_GROUP: "message_group",
    attributes.TRACEPARENT: "trace_context",
    BORN_HOST: "born_host",
}
OTHERS = (attributes.KEYS, attributes.HALF, attributes.DELIVER_AT, attributes.PRIORITY)
INNER = (*TEXTS, *OTHERS, "headrace-unknown")
names = st.sampled_from(INNER) | st.binary(max_size=8).map(header_name).filter(
    lambda name: not name.startswith("headrace-")
)
values = (
    st.none()
    | st.binary(max_size=300)
    | st.text(max_size=60).map(str.encode)
    | st.integers(0, 10**17).map(lambda number: b"%d" % number)
)
records = st.builds(
    Record,
    st.integers(0, 2**62),
    st.integers(-1, 2**52),
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=300) | st.integers(0, 40_000).map(bytes),
    st.lists(st.tuples(names, values), max_size=12),
)


def text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def expected(record: Record, topic, partition: int):
    """The message, with its fields set one by one."""
    shown = wire.Message(topic=topic, body=record.value or b"")
    system = shown.system_properties
    system.body_digest.type = wire.MD5
    system.body_digest.checksum = md5(shown.body).hexdigest().upper()
    system.body_encoding = wire.IDENTITY
    system.message_type = wire.NORMAL
    system.queue_id, system.queue_offset = partition, record.offset
    if record.timestamp_ms >= 0:
        for field in ("born_timestamp", "store_timestamp"):
            getattr(system, field).SetInParent()
            wire.set_ms(getattr(system, field), record.timestamp_ms)
    for name, value in record.headers:
        if value is not None:
            expect_header(shown, name, value)
    if not system.message_id:
        system.message_id = made_id(TOPIC_ID, partition, record.offset)
    if record.key is not None and not system.keys and text(record.key).strip():
        system.keys.append(text(record.key))
    return shown


def expect_header(shown, name: str, value: bytes) -> None:
    system = shown.system_properties
    if name in TEXTS:
        setattr(system, TEXTS[name], text(value))
        if name == attributes.MESSAGE_GROUP:
            system.message_type = wire.FIFO
    elif name == attributes.KEYS:
        system.keys.extend(text(value).split())
    elif name == attributes.HALF:
        system.message_type = wire.TRANSACTION
    elif name == attributes.DELIVER_AT and value.isdigit() and len(value) <= 16:
        system.delivery_timestamp.SetInParent()
        wire.set_ms(system.delivery_timestamp, int(value))
        system.message_type = wire.DELAY
    elif name == attributes.PRIORITY and value.isdigit() and len(value) == 1:
        system.priority = int(value)
        system.message_type = wire.PRIORITY
    elif not name.startswith("headrace-"):
        shown.user_properties[text(name.encode(errors="surrogateescape"))] = text(value)


@given(records, st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(1, 2**40))
def test_a_message_is_what_the_library_would_make_of_its_record(record, partition, count, lock_ms):
    topic = wire.Resource(resource_namespace="space", name="topic")
    named = topic.SerializeToString()
    want = expected(record, topic, partition)
    found = message(record, named, TOPIC_ID, partition)
    assert wire.Message.FromString(found) == want
    pulled = response(record, named, TOPIC_ID, partition, attempt(1))
    want.system_properties.delivery_attempt = 1
    assert wire.response_of("PullMessage").FromString(pulled).message == want
    more = delivery(f"{partition}.{record.offset}.member", count, lock_ms)
    system = want.system_properties
    system.receipt_handle = f"{partition}.{record.offset}.member"
    system.delivery_attempt = count
    wire.set_ms(system.invisible_duration, lock_ms)
    received = RESPONSE.FromString(response(record, named, TOPIC_ID, partition, more))
    assert received == RESPONSE(message=want)
