"""The codecs of all messages: against `kio`, an independent implementation, and bad bytes."""

from __future__ import annotations

import dataclasses
import datetime
import io
import tracemalloc
import uuid
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from headrace.kafka.apis import APIS
from headrace.kafka.wire.codecs import Message, build_reader, build_writer
from headrace.kafka.wire.definitions import REQUEST, RESPONSE, keys, load
from headrace.kafka.wire.primitives import FrameInvalid, elements, write_uvarint
from headrace.kafka.wire.schema import (
    read_request,
    read_response,
    write_request,
    write_response,
)
from headrace_verify.kafka_wire import is_in_kio

if TYPE_CHECKING:
    from random import Random

    from headrace.kafka.wire.definitions import Field, MessageDefinition

EVERY = [(key, kind, versions) for key, kind, versions in keys()]
SERVED = [
    (api.key, version, kind)
    for api in APIS.values()
    for version in {api.version_min, api.version_max}
    for kind in (REQUEST, RESPONSE)
]
INTEGERS = {
    kind: (0, 1, -1, 77, (1 << bits - 1) - 1, -(1 << bits - 1))
    for kind, bits in (("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64))
} | {"uint16": (0, 1, 65_535), "uint32": (0, 1, 2**32 - 1)}
OTHERS: dict[str, tuple[Any, ...]] = {
    "bool": (False, True),
    "float64": (0.0, 1.5, -2e9),
    "string": ("", "a", "ü" * 70, "x" * 300),
    "bytes": (b"", b"abc", bytes(200)),
    "records": (b"", b"abc", bytes(200)),
}

reader = lru_cache(1024)(build_reader)
writer = lru_cache(1024)(build_writer)


class Drawn:
    """Answers and requests as mappings, any value where the definition allows it."""

    def __init__(self, definition: MessageDefinition, rng: Random) -> None:
        self.definition, self.rng = definition, rng

    def struct(self, name: str) -> dict[str, Any]:
        return {
            field.name: self.value(field)
            for field in self.definition.structs[name]
            if field.is_present and (field.is_required or self.rng.random() < 0.7)
        }

    def value(self, field: Field) -> Any:
        choice = self.rng.choice
        if field.is_nullable and self.rng.random() < 0.25:
            return None
        if field.is_array:
            element = field._replace(is_array=False, is_nullable=False)
            return [self.value(element) for _ in range(choice((0, 1, 2, 3)))]
        if field.kind in self.definition.structs:
            return self.struct(field.kind)
        if field.kind == "uuid":
            return choice((None, uuid.UUID(int=self.rng.getrandbits(128))))
        if field.kind in OTHERS:
            return choice(OTHERS[field.kind])
        if field.name.endswith("error_code"):
            return choice((0, 3, 41))  # kio knows the codes of its day
        if field.name.endswith("_ms") or "timestamp" in field.name:
            return choice((0, 1, 100))  # kio makes dates of them
        return choice(INTEGERS[field.kind])


def kio_class(key: int, version: int, kind: str) -> Any:
    return (load_request_schema if kind == REQUEST else load_response_schema)(key, version)


def check_same(ours: Any, theirs: Any, place: str) -> None:
    """kio names a duration without its unit, and appends `_` to names that Python has taken."""
    if isinstance(ours, Message):
        names = [field.name for field in dataclasses.fields(theirs)]
        assert len(names) == len(ours.__slots__), place
        for name in ours.__slots__:
            known = (
                *(name, name.removesuffix("_ms"), f"{name}_", name.replace("stamp_ms", "stamp")),
                # Kafka 4.4 has renamed fields of TxnOffsetCommit and StreamsGroupHeartbeat.
                *(name.removesuffix("_or_member_epoch"), name.removesuffix("_legacy")),
            )
            other = next(one for one in known if one in names)
            check_same(getattr(ours, name), getattr(theirs, other), f"{place}.{name}")
    elif isinstance(ours, tuple):
        assert len(ours) == len(theirs), place
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            check_same(one, other, f"{place}[{number}]")
    elif isinstance(theirs, datetime.timedelta):
        assert ours == theirs // datetime.timedelta(milliseconds=1), place
    elif isinstance(theirs, datetime.datetime):
        assert ours == round(theirs.timestamp() * 1000), place
    elif theirs is None:
        assert ours is None or (ours == -1 and "time" in place), place  # no date
    else:
        assert ours == theirs or ours == int(theirs), place


def whole(key: int, version: int, kind: str, data: bytes) -> Any:
    """What is read, and that it ends where `data` does."""
    elements.begin()
    message, end = reader(key, version, kind)(data, 0, len(data))
    assert end == len(data)
    return message


def written(key: int, version: int, kind: str, rng: Random) -> bytes:
    definition = load(key, version, kind)
    parts: list[bytes] = []
    values = Drawn(definition, rng).struct(definition.name)
    writer(key, version, kind).write(values, parts.append)
    return b"".join(parts)


@pytest.mark.parametrize(("key", "kind", "versions"), EVERY, ids=lambda value: str(value))
@settings(max_examples=2, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_bytes_and_values_are_those_of_kio(key, kind, versions, rng):
    for version in filter(lambda version: is_in_kio(key, version), versions):
        data = written(key, version, kind, rng)
        cls = kio_class(key, version, kind)
        theirs, size = entity_reader(cls)(data, 0)
        assert size == len(data)
        check_same(whole(key, version, kind, data), theirs, f"v{version}")
        buffer = io.BytesIO()
        entity_writer(cls)(buffer, theirs)
        assert buffer.getvalue() == data


def read(key: int, version: int, kind: str, data: bytes) -> None:
    """As a peer does. Raises FrameInvalid alone."""
    try:
        (read_request if kind == REQUEST else read_response)(key, version, data, 0)
    except FrameInvalid:
        pass


@pytest.mark.parametrize(("key", "version", "kind"), SERVED, ids=str)
@settings(max_examples=1, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_a_message_cut_anywhere_is_refused(key, version, kind, rng):
    data = written(key, version, kind, rng)
    for end in range(len(data)):
        with pytest.raises(FrameInvalid):
            (read_request if kind == REQUEST else read_response)(key, version, data[:end], 0)


@pytest.mark.parametrize(("key", "version", "kind"), SERVED, ids=str)
@settings(max_examples=1, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_changed_bytes_are_read_or_refused(key, version, kind, rng):
    data = written(key, version, kind, rng)
    for _ in range(60 if data else 0):
        spoiled = bytearray(data)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(spoiled))
            spoiled[at] = rng.choice((0, 1, 127, 128, 255, spoiled[at] ^ 1 << at % 8))
        read(key, version, kind, bytes(spoiled))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SERVED), st.binary(max_size=300))
def test_any_bytes_at_all_are_read_or_refused(served, data):
    read(*served, data)


def test_no_count_takes_more_memory_than_its_bytes_could_fill():
    lies = [b"\xff\xff\xff\xff\x07", b"\x7f\xff\xff\xff", b"\x00\x00\xff\xff", b"\xff\xff\x7f"]
    for key, version, kind in SERVED:
        size = 120
        read(key, version, kind, bytes(size))  # the codec is built
        for lie in lies:
            for at in range(24):
                data = bytes(at) + lie + bytes(size)
                tracemalloc.start()
                read(key, version, kind, data)
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                assert peak < 400 * size, (key, version, kind, at, lie)


@pytest.mark.parametrize(
    ("key", "version", "kind"), [served for served in SERVED if load(*served).is_flexible], ids=str
)
@settings(max_examples=2, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_tagged_fields_of_later_versions_are_skipped(key, version, kind, rng):
    data = written(key, version, kind, rng)
    tagged = [
        field.tag for field in load(key, version, kind).structs[load(key, version, kind).name]
    ]
    if any(tag is not None for tag in tagged) or data[-1:] != b"\0":
        return  # there are some already
    longer = data[:-1] + b"\x02" + write_uvarint(9_999) + b"\x03abc" + b"\x64\x00"
    assert whole(key, version, kind, longer) == whole(key, version, kind, data)


def test_the_answer_to_api_versions_has_a_header_without_tagged_fields():
    answer = {"error_code": 0, "api_keys": []}
    assert write_response(18, 3, answer)[:2] == b"\x00\x00"  # the error code
    assert write_response(18, 3, answer)[2] == 1  # no APIs
    members = {"error_code": 27, "throttle_time_ms": 0}
    assert write_response(12, 4, members) == b"\0" + b"\0\0\0\0" + b"\0\x1b" + b"\0"


def test_a_field_without_a_default_must_be_given():
    with pytest.raises(KeyError, match="generation_id"):
        write_request(12, 4, {"group_id": "g", "member_id": "m"})


def test_decoded_requests_compare_and_print_by_value():
    body = write_request(12, 4, {"group_id": "g", "generation_id": 3, "member_id": "m"})
    one, other = (read_request(12, 4, body, 0) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one).startswith("HeartbeatRequest(group_id='g', generation_id=3")
    assert one != read_request(12, 4, body.replace(b"g", b"h"), 0)
    assert one != 3
