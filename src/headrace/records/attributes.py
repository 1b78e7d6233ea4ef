"""Queue attributes: the reserved headers, shared by all protocols.

Invariants: pure; names, semantics and limits, no policy. Numbers are decimal text, texts are UTF-8;
if a header is repeated the last one counts, as in Kafka's `lastHeader`, and a null value counts as
not set. `scan_records` reads the attributes of a whole batch in one pass over its decompressed
bytes and skips records without a reserved header. Do not change the names: stored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headrace.errors import BatchCorrupt, RecordInvalid
from headrace.records.codec import read_record_headers
from headrace.records.identifiers import is_lite_topic
from headrace.records.validation import RESERVED_PREFIX
from headrace.records.varints import read_varint

if TYPE_CHECKING:
    from headrace.records.batch import BatchHeader

DELIVER_AT = "headrace-deliver-at"
"""When to deliver the message, in ms since the epoch."""
DELAY = "headrace-delay"
"""How long after its arrival to deliver the message, in ms."""
EXPIRE_AT = "headrace-expire-at"
"""When the message expires and is no longer delivered, in ms since the epoch."""
PRIORITY = "headrace-priority"
"""0 (lowest) to 9 (highest); default 4, as in JMS."""
TAG = "headrace-tag"
"""A word to filter by."""
KEYS = "headrace-keys"
"""Space-separated words to find the message by."""
MESSAGE_GROUP = "headrace-message-group"
"""Messages of one group are delivered in order, one at a time."""
LITE_TOPIC = "headrace-lite-topic"
"""The lite topic of the message, in a topic of lite topics: also its key, which decides on its
partition. Without effect in other topics."""
MESSAGE_ID = "headrace-message-id"
"""The sender's id of the message."""
HALF = "headrace-half"
"""The producer group of a half message, which consumers do not see until it is committed."""
PRODUCER = "headrace-producer"
"""The name of a named sequence, which makes the append exactly-once; requires SEQUENCE."""
SEQUENCE = "headrace-sequence"
"""The message's number in its named sequence, strictly increasing."""
TRACEPARENT = "traceparent"
"""W3C Trace Context."""

SETTING: Final = "headrace.message.attributes"
"""The topic's setting that says whether they are read."""
READING: Final = frozenset({"read", "true"})
"""Its values with which they are."""

PRIORITY_DEFAULT = 4
PRIORITY_MAX = 9
TIME_MS_MAX = (1 << 53) - 1
"""The largest integer that JSON readers represent exactly; the year 287396."""
DELAY_MS_MAX = 100 * 366 * 24 * 3_600_000
"""A hundred years."""
SEQUENCE_MAX = TIME_MS_MAX
TEXT_BYTES_MAX = 255
"""Limit for a tag, message group, message id and producer name."""
KEYS_BYTES_MAX = 4_096
KEYS_MAX = 64
SHOWN_MAX = 40

_CACHED_BYTES_MAX = 256  # of a record's headers
_DIGITS_MAX = 16  # of TIME_MS_MAX; int() of a long text takes quadratic time
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_TRACEPARENT_BYTES_MAX = 256

Headers = Sequence[tuple[str, bytes | None]]


# --- one record's headers ----------------------------------------------------------------------


def find_header(headers: Headers, name: str) -> bytes | None:
    """The value of the last header named `name`; None if it is absent or null."""
    for key, value in reversed(headers):
        if key == name:
            return value
    return None


def _invalid(name: str, value: bytes, allowed: str) -> RecordInvalid:
    shown = repr(value[:SHOWN_MAX].decode("utf-8", "backslashreplace"))
    shown += "..." if len(value) > SHOWN_MAX else ""
    return RecordInvalid(f"header {name} holds {shown}: set it to {allowed}", header=name)


def _number(name: str, value: bytes, largest: int) -> int:
    if not (0 < len(value) <= _DIGITS_MAX and value.isdigit() and int(value) <= largest):
        raise _invalid(name, value, f"a number from 0 to {largest}")
    return int(value)


def _text(name: str, value: bytes, bytes_max: int = TEXT_BYTES_MAX) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise _invalid(name, value, "UTF-8 text") from error
    if not 0 < len(value) <= bytes_max or text.isspace() or _CONTROL.search(text):
        allowed = f"1 to {bytes_max} bytes of UTF-8 that are not blank, without control characters"
        raise _invalid(name, value, allowed)
    return text


def _tag(name: str, value: bytes) -> str:
    text = _text(name, value)
    if "|" in text or any(character.isspace() for character in text):
        raise _invalid(name, value, "one word without '|', which separates tags in a filter")
    return text


def _keys(name: str, value: bytes) -> list[str]:
    found = _text(name, value, KEYS_BYTES_MAX).split()
    if len(found) > KEYS_MAX:
        raise _invalid(name, value, f"at most {KEYS_MAX} words")
    return found


def read_integer(headers: Headers, name: str, largest: int) -> int | None:
    """The header as a number from 0 to `largest`. Raises RecordInvalid if it is not one."""
    value = find_header(headers, name)
    return None if value is None else _number(name, value, largest)


def read_text(headers: Headers, name: str) -> str | None:
    """The header as text of at most TEXT_BYTES_MAX bytes. Raises RecordInvalid."""
    value = find_header(headers, name)
    return None if value is None else _text(name, value)


def expire_at_ms(headers: Headers) -> int | None:
    """When the message expires. Raises RecordInvalid."""
    return read_integer(headers, EXPIRE_AT, TIME_MS_MAX)


def priority(headers: Headers) -> int:
    """The message's priority, 0 to 9. Raises RecordInvalid."""
    value = read_integer(headers, PRIORITY, PRIORITY_MAX)
    return PRIORITY_DEFAULT if value is None else value


def tag(headers: Headers) -> str | None:
    """The message's tag. Raises RecordInvalid."""
    value = find_header(headers, TAG)
    return None if value is None else _tag(TAG, value)


def keys(headers: Headers) -> list[str]:
    """The words to find the message by. Raises RecordInvalid."""
    value = find_header(headers, KEYS)
    return [] if value is None else _keys(KEYS, value)


class TraceParent(NamedTuple):
    """A message's position in a trace (W3C Trace Context), in lower-case hexadecimal."""

    trace_id: str
    parent_id: str


def parse_trace_parent(value: bytes | None) -> TraceParent | None:
    """The message's position in a trace; None if the header is absent or malformed.

    A malformed `traceparent` is ignored, never refused: W3C Trace Context, section 4.3.
    """
    if value is None or len(value) > _TRACEPARENT_BYTES_MAX:
        return None
    found = _TRACEPARENT.fullmatch(value)
    if found is None or (value[:2] == b"00" and found[3]):
        return None
    trace_id, parent_id = found[1].decode(), found[2].decode()
    return TraceParent(trace_id, parent_id) if int(trace_id, 16) and int(parent_id, 16) else None


# --- a batch -----------------------------------------------------------------------------------


class NamedSequence(NamedTuple):
    """One record's number in a named sequence."""

    producer: str
    sequence: int


class RecordAttributes(NamedTuple):
    """What admission needs to know about a record that is delayed, half or in a sequence."""

    batch_index: int
    """Index in its batch, from 0."""
    due_ms: int | None
    """When to deliver it; None: immediately."""
    named: NamedSequence | None
    is_half: bool = False
    """Whether it is a half message."""


_NUMBERS: Final = {
    DELIVER_AT: TIME_MS_MAX,
    DELAY: DELAY_MS_MAX,
    EXPIRE_AT: TIME_MS_MAX,
    PRIORITY: PRIORITY_MAX,
    SEQUENCE: SEQUENCE_MAX,
}
"""Attribute -> largest value."""
RESERVED: Final = frozenset({*_NUMBERS, TAG, KEYS, MESSAGE_GROUP, MESSAGE_ID, HALF, PRODUCER})
"""The names that admission checks. Others with the same prefix are stored and have no effect."""
EFFECTIVE: Final = RESERVED - {TAG, KEYS, MESSAGE_ID}
"""Those that change how a message is stored or delivered, so that it would be another message where
they are not read. Tags, keys and message ids are found and filtered by on every topic."""
_BY_BYTES: Final = {name.encode(): name for name in RESERVED}


def check_read(headers: Headers) -> None:
    """Raises RecordInvalid if a record for a topic that reads attributes has a malformed one."""
    _checked({name: value for name, value in headers if value is not None and name in RESERVED})


def check_unread(headers: Headers, topic: str, now_ms: int) -> None:
    """Raises RecordInvalid if a record for a topic that does not read attributes asks for one."""
    for name, value in headers:
        if value is not None:
            _check_ineffective(name, value, f"topic {topic}", now_ms)


def check_unread_batch(payload: bytes, header: BatchHeader, now_ms: int) -> None:
    """The same for the valid records of a batch, given its decompressed bytes."""
    for index, section in _marked_sections(payload, header):
        try:
            for name, value in _values(section).items():
                _check_ineffective(name, value, "the topic", now_ms)
        except RecordInvalid as error:
            raise _in_batch(error, index) from None


def _check_ineffective(name: str, value: bytes, topic: str, now_ms: int) -> None:
    if name not in EFFECTIVE or (name == DELIVER_AT and _is_past(value, now_ms)):
        return
    raise RecordInvalid(
        f"header {name} would have no effect, because {topic} does not read queue attributes: "
        f"set {SETTING}=read on the topic, or leave the header out (with {SETTING}=ignore, "
        "Kafka clients can store it without effect)",
        header=name,
    )


def _is_past(value: bytes, now_ms: int) -> bool:
    """Whether the record is due: a delivered one, which says when it was, can be forwarded."""
    return value.isdigit() and len(value) <= _DIGITS_MAX and int(value) <= now_ms


def scan_records(payload: bytes, header: BatchHeader, received_ms: int) -> list[RecordAttributes]:
    """Check the attributes of all records in a batch, given its decompressed bytes.

    Returns the attributes of records that are delayed, half messages or in a named sequence.
    Raises RecordInvalid, naming the record, on a malformed attribute; BatchCorrupt on malformed
    records.
    """
    found: list[RecordAttributes] = []
    try:
        for index, section in _marked_sections(payload, header):
            is_small = len(section) <= _CACHED_BYTES_MAX
            try:
                parsed = _parse_cached(section) if is_small else _parse(section)
            except RecordInvalid as error:
                raise _in_batch(error, index) from None
            if parsed is not None:
                due_ms, delay_ms, named, is_half = parsed
                if due_ms is None and delay_ms is not None:
                    due_ms = received_ms + delay_ms
                found.append(RecordAttributes(index, due_ms, named, is_half))
    except IndexError:
        raise BatchCorrupt("the batch ends inside a record") from None
    return found


def _marked_sections(payload: bytes, header: BatchHeader) -> Iterator[tuple[int, bytes]]:
    """(index, encoded headers) of the records that contain the reserved prefix.

    Raises BatchCorrupt, and IndexError if the payload ends too early.
    """
    find = payload.find
    hit = find(RESERVED_PREFIX)
    at, size = 0, len(payload)
    for index in range(header.record_count):
        if hit < 0:
            return
        byte = payload[at]
        if byte < 128:
            length = (byte >> 1) ^ -(byte & 1)
            at += 1
        else:
            length, at = read_varint(payload, at)
        end = at + length
        if not at < end <= size:
            raise BatchCorrupt(f"record {index} has {length} bytes, {size - at} are left")
        if hit < end:
            yield index, payload[_headers_at(payload, at) : end]
            hit = find(RESERVED_PREFIX, end)
        at = end


def _in_batch(error: RecordInvalid, index: int) -> RecordInvalid:
    return RecordInvalid(
        f"record {index} of the batch: {error}; the whole batch is rejected",
        record_errors=[(index, str(error))],
        **error.fields,
    )


def _headers_at(payload: bytes, at: int) -> int:
    """The position of the headers of the record whose attributes byte is at `at`."""
    at += 1
    for _ in range(2):  # skip the deltas of timestamp and offset
        while payload[at] & 0x80:
            at += 1
        at += 1
    for _ in range(2):  # skip key and value
        byte = payload[at]
        if byte < 128:
            at += 1
            size = (byte >> 1) ^ -(byte & 1)
        else:
            size, at = read_varint(payload, at)
        if size > 0:
            at += size
    return at


_Parsed: TypeAlias = "tuple[int | None, int | None, NamedSequence | None, bool]"
"""(due_ms, delay_ms, named sequence, whether it is a half message)"""


def _parse(section: bytes) -> _Parsed | None:
    """Check the attributes in a record's headers; None if none of them concerns admission.

    Raises RecordInvalid, BatchCorrupt, and IndexError if the section ends too early.
    """
    return _checked(_values(section))


def _values(section: bytes) -> dict[str, bytes]:
    """The attributes in a record's headers, unchecked. Raises BatchCorrupt, IndexError."""
    values: dict[str, bytes] = {}
    count, at = read_varint(section, 0)
    end = len(section)
    for _ in range(count):
        size, at = read_varint(section, at)
        name = section[at : at + size] if size >= 0 else None
        if name is None or at + size > end:
            raise BatchCorrupt("a record header's name extends past its record")
        size, at = read_varint(section, at + size)
        known = _BY_BYTES.get(name)
        if known is not None and size >= 0:
            values[known] = section[at : at + size]
        elif known is not None:
            values.pop(known, None)
        at += max(size, 0)
    if at != end:
        raise BatchCorrupt(f"a record's headers end {end - at} bytes before the record does")
    return values


_parse_cached = lru_cache(maxsize=1_024)(_parse)
"""Records from one producer often have identical headers."""


def _checked(values: dict[str, bytes]) -> _Parsed | None:
    for name, value in values.items():
        if name in _NUMBERS:
            _number(name, value, _NUMBERS[name])
        elif name == TAG:
            _tag(name, value)
        elif name == KEYS:
            _keys(name, value)
        else:
            _text(name, value)
    named = None
    if PRODUCER in values or SEQUENCE in values:
        if PRODUCER not in values or SEQUENCE not in values:
            present, absent = (PRODUCER, SEQUENCE) if PRODUCER in values else (SEQUENCE, PRODUCER)
            raise RecordInvalid(
                f"header {present} is set without {absent}: set both, or neither", header=absent
            )
        named = NamedSequence(values[PRODUCER].decode(), int(values[SEQUENCE]))
    is_half = HALF in values
    if is_half and MESSAGE_ID not in values:
        raise RecordInvalid(
            f"header {HALF} is set without {MESSAGE_ID}, the id to commit it by: set both",
            header=MESSAGE_ID,
        )
    due_ms = int(values[DELIVER_AT]) if DELIVER_AT in values else None
    delay_ms = int(values[DELAY]) if DELAY in values else None
    if due_ms is None and delay_ms is None and named is None and not is_half:
        return None
    return due_ms, delay_ms, named, is_half


def named_sequences_of(payload: bytes, header: BatchHeader) -> list[NamedSequence]:
    """The named sequences of a stored batch; other and malformed attributes are ignored.

    Raises BatchCorrupt on malformed records.
    """
    found: list[NamedSequence] = []
    try:
        for headers in _headers_of(payload, header):
            try:
                name = read_text(headers, PRODUCER)
                sequence = read_integer(headers, SEQUENCE, SEQUENCE_MAX)
            except RecordInvalid:
                continue
            if name is not None and sequence is not None:
                found.append(NamedSequence(name, sequence))
    except IndexError:
        raise BatchCorrupt("the batch ends inside a record") from None
    return found


def lite_topics_of(payload: bytes, header: BatchHeader) -> list[tuple[int, str]]:
    """(index, lite topic) of the records that have a legal one, of a batch that can be decoded."""
    found: list[tuple[int, str]] = []
    for index, headers in enumerate(_headers_of(payload, header)):
        name = find_header(headers, LITE_TOPIC)
        if name is not None and is_lite_topic(name):
            found.append((index, name.decode()))
    return found


def _headers_of(payload: bytes, header: BatchHeader) -> Iterator[Headers]:
    """The headers of each record. Raises IndexError if the batch ends inside one."""
    at = 0
    for _ in range(header.record_count):
        length, at = read_varint(payload, at)
        headers, _ = read_record_headers(payload, at)
        at += length
        yield headers
