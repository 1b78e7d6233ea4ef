"""Records as the messages that clients receive, in protobuf's wire format.

Invariants: pure. A record that another protocol wrote is shown with what it has; inner headers do
not show. Written by hand: protobuf's library takes twice as long for small messages. A field that
is written twice counts as its last value, as headers do. Field numbers are those of `wire`. Do not
change: on the wire.
"""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from hashlib import md5
from typing import TYPE_CHECKING, Final

from headrace.records.attributes import (
    DELIVER_AT,
    HALF,
    KEYS,
    LITE_TOPIC,
    MESSAGE_GROUP,
    MESSAGE_ID,
    PRIORITY,
    TAG,
)
from headrace.records.codec import header_name_bytes
from headrace.rocketmq import wire
from headrace.rocketmq.messages import BORN_HOST, HIDDEN, INNER
from headrace.runtime.protobuf_wire import number_field, varint

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.records.codec import Record

_SIZES: Final = [varint(size) for size in range(1 << 14)]
"""Encoded: nearly all of them."""
_TOPIC, _PROPERTIES, _SYSTEM, _BODY = b"\x0a", b"\x12", b"\x1a", b"\x22"
"""The keys of Message's fields, as those that follow: number << 3 | wire type."""
_RESPONSE, _NAME, _VALUE = b"\x12", b"\x0a", b"\x12"
_TAG, _KEYS, _MESSAGE_ID, _BORN_HOST = b"\x0a", b"\x12", b"\x1a", b"\x42"
_BORN_AT, _STORED_AT, _DELIVER_AT = b"\x3a", b"\x4a", b"\x5a"
_RECEIPT, _QUEUE_OFFSET, _INVISIBLE = b"\x62", b"\x70", b"\x7a"
_ATTEMPT, _MESSAGE_GROUP, _TRACE_CONTEXT, _LITE_TOPIC, _PRIORITY = (
    b"\x80\x01",
    b"\x8a\x01",
    b"\x92\x01",
    b"\xaa\x01",
    b"\xb0\x01",
)
_DIGEST: Final = b"\x22\x24\x08\x02\x12\x20"
"""body_digest of 36 bytes: {type 1: MD5, checksum 2: 32 characters, which follow}. All official
clients accept it; they want upper case."""
_IDENTITY: Final = number_field(5, wire.IDENTITY)
_TYPE: Final = 6
_QUEUE_ID: Final = 13
_TIME_DIGITS_MAX: Final = 16
_TEXTS: Final = {
    TAG: _TAG,
    MESSAGE_ID: _MESSAGE_ID,
    BORN_HOST: _BORN_HOST,
    MESSAGE_GROUP: _MESSAGE_GROUP,
    LITE_TOPIC: _LITE_TOPIC,
}
"""The fields of SystemProperties that hold an attribute's text."""


def message(
    record: Record, topic: bytes, topic_id: UUID, partition: int, more: bytes = b""
) -> bytes:
    """A record as a Message.

    `topic`: the Resource by which the client names it; `more`: further fields of SystemProperties,
    such as those of a delivery (`delivery`).
    """
    body = record.value or b""
    digest = md5(body, usedforsecurity=False).hexdigest().upper().encode()
    offset = record.offset
    system = [_DIGEST, digest, _IDENTITY, number_field(_QUEUE_ID, partition)]
    system += (_QUEUE_OFFSET, _SIZES[offset] if offset < len(_SIZES) else varint(offset))
    if record.timestamp_ms >= 0:
        time = _field(b"", time_bytes(record.timestamp_ms))
        system += (_BORN_AT, time, _STORED_AT, time)
    parts = [_field(_TOPIC, topic)]
    kind = wire.NORMAL
    has_id = has_keys = False
    for name, value in record.headers:
        if value is None:
            continue
        if not name.startswith(INNER) and name not in HIDDEN:
            shown = _field(_NAME, _shown(header_name_bytes(name))) + _field(_VALUE, _shown(value))
            parts.append(_field(_PROPERTIES, shown))
            continue
        if name == MESSAGE_ID:
            has_id = bool(value)
        elif name == KEYS:
            words = _shown(value).decode().split()
            system += [_field(_KEYS, word.encode()) for word in words]
            has_keys = has_keys or bool(words)
            continue
        elif name == MESSAGE_GROUP:
            kind = wire.FIFO
        elif name == LITE_TOPIC:
            kind = wire.LITE
        elif name not in _TEXTS:
            kind = _add_attribute(system, name, value) or kind
            continue
        system.append(_field(_TEXTS[name], _shown(value)))
    system.append(number_field(_TYPE, kind))
    if not has_id:
        system.append(_field(_MESSAGE_ID, made_id(topic_id, partition, offset).encode()))
    # A lite topic's name is the key of its messages for the choice of the partition alone.
    has_keys = has_keys or kind == wire.LITE
    if record.key is not None and not has_keys and (key := _shown(record.key)).decode().strip():
        system.append(_field(_KEYS, key))
    system.append(more)
    parts += (_field(_SYSTEM, b"".join(system)), _field(_BODY, body))
    return b"".join(parts)


def response(record: Record, topic: bytes, topic_id: UUID, partition: int, more: bytes) -> bytes:
    """The same as the response of a receive or a pull."""
    return _field(_RESPONSE, message(record, topic, topic_id, partition, more))


def delivery(receipt: str, deliveries: int, lock_ms: int) -> bytes:
    """What SystemProperties say about one delivery."""
    return b"".join(
        (
            _field(_RECEIPT, receipt.encode()),
            attempt(deliveries),
            _field(_INVISIBLE, time_bytes(lock_ms)),
        )
    )


def attempt(deliveries: int) -> bytes:
    """What SystemProperties say about the count of deliveries."""
    return _ATTEMPT + varint(deliveries)


@lru_cache(maxsize=1024)
def time_bytes(ms: int) -> bytes:
    """A Timestamp or Duration."""
    return number_field(1, ms // 1_000) + number_field(2, ms % 1_000 * 1_000_000)


def made_id(topic_id: UUID, partition: int, offset: int) -> str:
    """The id of a message whose sender gave none: of RocketMQ's form, the same in each delivery."""
    return f"01{topic_id.hex[:8]}{partition:08X}{offset:016X}".upper()


def _add_attribute(system: list[bytes], name: str, value: bytes) -> int:
    """Add what a header says that is no text; returns the type that the message has because of it,
    or 0."""
    if name in HIDDEN:
        system.append(_field(_TRACE_CONTEXT, _shown(value)))
    elif name == HALF:
        return wire.TRANSACTION
    elif name == DELIVER_AT and value.isdigit() and len(value) <= _TIME_DIGITS_MAX:
        system.append(_field(_DELIVER_AT, time_bytes(int(value))))
        return wire.DELAY
    elif name == PRIORITY and value.isdigit() and len(value) == 1:
        system += (_PRIORITY, varint(int(value)))
        return wire.PRIORITY
    return 0


def _field(key: bytes, value: bytes) -> bytes:
    size = len(value)
    return key + (_SIZES[size] if size < len(_SIZES) else varint(size)) + value


def _shown(value: bytes) -> bytes:
    """Bytes as text: as Base64 if they are not UTF-8, as over HTTP."""
    if not value.isascii():
        try:
            value.decode()
        except UnicodeDecodeError:
            return b64encode(value)
    return value
