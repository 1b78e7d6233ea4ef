"""RocketMQ's messages, and the records that store them: one to one, property by property.

Invariants: pure. What RocketMQ calls a system property is a queue attribute (`records.attributes`)
in the record's headers, so that every protocol reads it; user properties are headers of their own
names. How records are shown to clients: `shown_messages`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.records.attributes import (
    DELIVER_AT,
    HALF,
    KEYS,
    KEYS_BYTES_MAX,
    KEYS_MAX,
    LITE_TOPIC,
    MESSAGE_GROUP,
    MESSAGE_ID,
    PRIORITY,
    PRIORITY_MAX,
    TAG,
    TEXT_BYTES_MAX,
    TRACEPARENT,
)
from headrace.records.codec import Record
from headrace.records.validation import RESERVED_PREFIX
from headrace.rocketmq import codes, wire
from headrace.rocketmq.codes import Refused
from headrace.rocketmq.names import lite_name

if TYPE_CHECKING:
    from collections.abc import Collection

PROPERTIES_BYTES_MAX: Final = 16 * 1024
PROPERTIES_MAX: Final = 128
GROUP_LENGTH_MAX: Final = 64
BORN_SKEW_MS_MAX: Final = 60 * 60 * 1000
"""A client's clock that differs by more is not believed: retention goes by this time."""
BORN_HOST: Final = "headrace-born-host"
"""The address that the sending client gave. Do not change: stored."""
_BORN_HOST_LENGTH_MAX: Final = 255
INNER: Final = RESERVED_PREFIX.decode()
HIDDEN: Final = frozenset({TRACEPARENT})

_RESERVED: Final = """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION
    TRACE_ON UNIQ_KEY EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME
    TRANSACTION_PREPARED_QUEUE_OFFSET TRANSACTION_CHECK_TIMES CHECK_IMMUNITY_TIME_IN_SECONDS
    INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    POP_CK POP_CK_OFFSET 1ST_POP_TIME __SHARDINGKEY __transactionId__ INNER_NUM INNER_BASE DUP_INFO
    INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS
    TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY
    DLQ_ORIGIN_TOPIC DLQ_ORIGIN_MESSAGE_ID
"""
RESERVED_PROPERTIES: Final = frozenset(_RESERVED.split())
"""What RocketMQ's own messages use (`MessageConst.STRING_HASH_SET`)."""
_TYPE_NAMES: Final = {
    wire.NORMAL: "NORMAL",
    wire.FIFO: "FIFO",
    wire.DELAY: "DELAY",
    wire.TRANSACTION: "TRANSACTION",
    wire.LITE: "LITE",
    wire.PRIORITY: "PRIORITY",
}


def type_name(message_type: int) -> str:
    """RocketMQ's name of a message type."""
    return _TYPE_NAMES.get(message_type, str(message_type))


class Parsed(NamedTuple):
    """A message that a client sends."""

    record: Record
    message_type: int
    message_id: str
    due_ms: int | None


def record_of(
    message: Any, body: bytes, half_group: str, accepted: Collection[int], now_ms: int
) -> Parsed:
    """The record of a message. Raises Refused with RocketMQ's code.

    `body`: decompressed; `half_group`: the producer group of half messages; `accepted`: the message
    types of its topic.
    """
    system = message.system_properties
    message_type = _checked_type(system, accepted)
    message_id = _text(
        system.message_id, codes.ILLEGAL_MESSAGE_ID, "the message id", TEXT_BYTES_MAX
    )
    headers: list[tuple[str, bytes | None]] = [(MESSAGE_ID, message_id)]
    if system.HasField("tag"):
        headers.append((TAG, _tag(system.tag)))
    if system.keys:
        headers.append((KEYS, _keys(system.keys)))
    due_ms = key = None
    if message_type == wire.FIFO:
        headers.append((MESSAGE_GROUP, _message_group(system.message_group)))
    elif message_type == wire.DELAY:
        due_ms = max(wire.ms_of(system.delivery_timestamp), 0)
        headers.append((DELIVER_AT, b"%d" % due_ms))
    elif message_type == wire.PRIORITY:
        headers.append((PRIORITY, b"%d" % system.priority))
    elif message_type == wire.LITE:
        key = lite_name(system.lite_topic)
        headers.append((LITE_TOPIC, key))
    elif message_type == wire.TRANSACTION:
        headers.append((HALF, half_group.encode()))
    if system.HasField("trace_context") and len(system.trace_context) <= TEXT_BYTES_MAX:
        headers.append((TRACEPARENT, system.trace_context.encode()))
    if system.born_host:
        headers.append((BORN_HOST, system.born_host[:_BORN_HOST_LENGTH_MAX].encode()))
    if message.user_properties:
        headers += _user_properties(message.user_properties)
    born_ms = wire.ms_of(system.born_timestamp)
    # A lite topic expires by the times of its messages.
    if abs(born_ms - now_ms) > BORN_SKEW_MS_MAX or key is not None:
        born_ms = now_ms
    record = Record(0, born_ms, key, body, headers)
    return Parsed(record, message_type, system.message_id, due_ms)


def _checked_type(system: Any, accepted: Collection[int]) -> int:
    """The message's type, which must fit its fields and its topic. Raises Refused."""
    has = {
        wire.FIFO: bool(system.message_group),
        wire.DELAY: system.HasField("delivery_timestamp"),
        wire.PRIORITY: system.HasField("priority"),
        wire.LITE: bool(system.lite_topic),
    }
    given = [kind for kind, is_set in has.items() if is_set]
    stated = system.message_type or wire.NORMAL
    if stated == wire.NORMAL and len(given) == 1:
        (stated,) = given  # RocketMQ goes by the fields alone
    wanted = [stated] if stated in has else []
    if stated not in _TYPE_NAMES or given != wanted:
        fields = ", ".join(map(type_name, given)) or "no other type"
        raise Refused(
            codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the message says that it is {type_name(stated)} and has the fields of {fields}:"
            " set a message group (FIFO), a delivery time (DELAY), a priority (PRIORITY)"
            " or a lite topic (LITE), and only one of them",
        )
    if stated not in accepted:
        shown = ", ".join(map(type_name, sorted(accepted)))
        raise Refused(
            codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"the topic takes {shown} messages, this one is {type_name(stated)}: use another topic,"
            f" or set headrace.message.type={type_name(stated).lower()} (or mixed) on this one",
        )
    if stated == wire.PRIORITY and not 0 <= system.priority <= PRIORITY_MAX:
        raise Refused(
            codes.BAD_REQUEST,
            f"priority {system.priority} is not possible: use 0 (lowest) to {PRIORITY_MAX}",
        )
    return int(stated)


def _text(text: str, code: int, what: str, bytes_max: int) -> bytes:
    value = text.encode()
    if not text.strip() or len(value) > bytes_max or not text.isprintable():
        raise Refused(
            code, f"{what} is not possible: use 1 to {bytes_max} bytes of printable text, not blank"
        )
    return value


def _tag(tag: str) -> bytes:
    if "|" in tag or any(character.isspace() for character in tag):
        raise Refused(
            codes.ILLEGAL_MESSAGE_TAG,
            "the tag is not possible: use one word without '|', which separates tags in a filter",
        )
    return _text(tag, codes.ILLEGAL_MESSAGE_TAG, "the tag", TEXT_BYTES_MAX)


def _keys(keys: Any) -> bytes:
    some = keys[: KEYS_MAX + 1]
    for key in some:
        if not key.strip():
            raise Refused(codes.ILLEGAL_MESSAGE_KEY, "a key is blank: leave it out")
    joined = " ".join(some)
    if len(joined.split()) > KEYS_MAX:
        raise Refused(codes.ILLEGAL_MESSAGE_KEY, f"a message has at most {KEYS_MAX} keys")
    return _text(joined, codes.ILLEGAL_MESSAGE_KEY, "the list of keys", KEYS_BYTES_MAX)


def _message_group(group: str) -> bytes:
    if len(group) > GROUP_LENGTH_MAX:
        raise Refused(
            codes.ILLEGAL_MESSAGE_GROUP,
            f"the message group has {len(group)} characters: use at most {GROUP_LENGTH_MAX}",
        )
    return _text(group, codes.ILLEGAL_MESSAGE_GROUP, "the message group", TEXT_BYTES_MAX)


def _user_properties(properties: Any) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes]] = []
    size = 0
    if len(properties) <= PROPERTIES_MAX:
        found = [(name, value.encode()) for name, value in sorted(properties.items())]
        size = sum(len(name.encode()) + len(value) for name, value in found)
    if len(properties) > PROPERTIES_MAX or size > PROPERTIES_BYTES_MAX:
        raise Refused(
            codes.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the message has too many properties ({len(properties)}), or too large ones: use at"
            f" most {PROPERTIES_MAX} of {PROPERTIES_BYTES_MAX} bytes together",
        )
    for name, _value in found:
        is_inner = name in RESERVED_PROPERTIES or name.startswith(INNER) or name in HIDDEN
        if is_inner or not name.strip() or not name.isprintable():
            raise Refused(
                codes.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the property {name[:100]!r} is reserved, blank or not printable: rename it",
            )
    return list(found)
