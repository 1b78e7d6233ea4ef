"""Abuse of requests derived from the grammar: corrupts each field of each API's requests in turn.

Invariants: kio's schemas write a whole request (`own_requests` those between brokers), with one
element in each array, and record the position of each primitive. Lengths and counts are such
positions, and so is every other field: changing them all costs no more.
"""

from __future__ import annotations

import dataclasses
import datetime
import io
import itertools
import struct
import typing
import uuid
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, NamedTuple

from kio.index import load_request_schema
from kio.serial import entity_writer

from headrace.kafka.client.exchange import API_VERSIONS, framed, request_frame, request_header
from headrace.kafka.wire.definitions import OWN_KEYS_FROM
from headrace.kafka.wire.primitives import write_uvarint
from headrace_verify.kafka_wire import METADATA, KafkaWire, is_in_kio
from headrace_verify.wire.abuse import Case
from headrace_verify.wire.own_requests import INTS, TEXTS, VERSIONS, OwnRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.rng import Rng
    from headrace_verify.wire.abuse import Abuse

TEXT = "wire-abused"
TRUNCATED_EVERY = 7
TAGS = 1_000_000
_VARINT_LIES = (
    b"\xff\xff\xff\xff\x07",  # 2^31 - 1
    b"\xff\xff\xff\xff\x0f",  # 2^32 - 1
    b"\xff" * 9 + b"\x01",  # ten bytes: 2^64 - 1
    b"\x80" * 14 + b"\x00",  # fifteen bytes: 0
)
_INT_LIES = {
    2: (32767, -1, -32768),
    4: (2**31 - 1, -1, -(2**31)),
    8: (2**63 - 1, -1, -(2**63)),
}
_INT_FORMATS = {2: ">h", 4: ">i", 8: ">q"}


class Served(NamedTuple):
    """A version of an API that the broker advertises, or that brokers use between each other."""

    api: int
    version: int
    topic_id: uuid.UUID = uuid.UUID(int=77)
    """The names in requests between brokers."""


class Written(NamedTuple):
    """A request without its size, and the positions of its primitives: (position, size)."""

    data: bytes
    body_at: int
    places: list[tuple[int, int]]
    is_flexible: bool


_TEXTS = (TEXT, TEXT, "range", *TEXTS)


class _Drawn:
    """Random values of types: encodable, with arbitrary meaning."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng

    def value(self, hint: Any, kafka_type: str | None = None) -> Any:
        """Draw a value of a type."""
        rng = self._rng
        if typing.get_origin(hint) in {typing.Union, UnionType}:
            if rng.randrange(3) == 0:
                return None
            inner = next(part for part in typing.get_args(hint) if part is not NoneType)
            return self.value(inner, kafka_type)
        if typing.get_origin(hint) is tuple:
            inner = typing.get_args(hint)[0]
            return tuple(self.value(inner, kafka_type) for _ in range(rng.choice((0, 1, 1, 3))))
        if dataclasses.is_dataclass(hint):
            return self.entity(hint)
        while hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        if issubclass(hint, datetime.timedelta):
            return datetime.timedelta(milliseconds=rng.choice((0, 1, 10, 30_000)))
        if issubclass(hint, uuid.UUID):
            return uuid.UUID(int=rng.randrange(1, 1 << 128))
        if issubclass(hint, str):
            return rng.choice(_TEXTS)
        if issubclass(hint, bytes):
            return rng.randbytes(rng.choice((0, 1, 8, 70)))
        if issubclass(hint, bool):
            return bool(rng.randrange(2))
        if issubclass(hint, float):
            return 1.0
        return self._whole(kafka_type)

    def _whole(self, kafka_type: str | None) -> int:
        bits = int("".join(filter(str.isdigit, kafka_type or "")) or 16)
        is_unsigned = (kafka_type or "").startswith("u")
        least = 0 if is_unsigned else -(1 << bits - 1)
        most = (1 << bits - (not is_unsigned)) - 1
        return min(max(self._rng.choice(INTS), least), most)

    def entity(self, cls: Any) -> Any:
        """Draw an entity, or a whole request."""
        hints = typing.get_type_hints(cls)
        values = {}
        for field in dataclasses.fields(cls):
            if "tag" not in field.metadata or field.default is dataclasses.MISSING:
                kind = field.metadata.get("kafka_type")
                values[field.name] = self.value(hints[field.name], kind)
        return cls(**values)


class _Noted(io.BytesIO):
    """Records the position of each primitive."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[int, int]] = []

    def write(self, data: Any, /) -> int:
        self.places.append((self.tell(), len(data)))
        return super().write(data)


def _full(hint: Any) -> Any:
    """Build a value of a type with something in every part of it."""
    if typing.get_origin(hint) in {typing.Union, UnionType}:
        return _full(next(part for part in typing.get_args(hint) if part is not NoneType))
    if typing.get_origin(hint) is tuple:
        return (_full(typing.get_args(hint)[0]),)
    if dataclasses.is_dataclass(hint):
        return _entity(hint)
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    if issubclass(hint, datetime.timedelta):
        return datetime.timedelta(milliseconds=10)
    if issubclass(hint, uuid.UUID):
        return uuid.UUID(int=77)
    if issubclass(hint, str):
        return TEXT
    if issubclass(hint, bytes):
        return b"\x00" * 8
    kind = next(kind for kind in (bool, int, float) if issubclass(hint, kind))
    return kind(1)


def _entity(cls: Any) -> Any:
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        if "tag" not in field.metadata or field.default is dataclasses.MISSING:
            values[field.name] = _full(hints[field.name])
    return cls(**values)


def write(served: Served, rng: Rng | None = None) -> Written:
    """Build a request in which every array has an element, or a random one."""
    if served.api >= OWN_KEYS_FROM:
        body = _Noted()
        OwnRequest(body, TEXT, served.topic_id, rng).write(served.api, served.version)
        return _written(served, body, is_flexible=True)
    cls: Any = load_request_schema(served.api, served.version)
    body = _Noted()
    entity_writer(cls)(body, _entity(cls) if rng is None else _Drawn(rng).entity(cls))
    return _written(served, body, is_flexible=bool(cls.__flexible__))


def _written(served: Served, body: _Noted, *, is_flexible: bool) -> Written:
    header = request_header(b"evil", served.api, served.version, 1, is_flexible=is_flexible)
    at = len(header)
    places = [(at + position, size) for position, size in body.places]
    return Written(header + body.getvalue(), at, places, is_flexible)


def advertised(abuse: Abuse, *, is_every: bool = False) -> list[Served]:
    """The advertised versions: oldest and newest of each API, or every one."""
    with abuse.open() as peer:
        peer.send(request_frame(b"", API_VERSIONS, 0, 1, b"", is_flexible=False))
        answer = peer.answer() or b""
    (count,) = struct.unpack_from(">i", answer, 6)
    found = []
    for number in range(count):
        api, least, most = struct.unpack_from(">hhh", answer, 10 + 6 * number)
        least = max(least, 3) if api == 0 else least  # v0 to v2 are advertised and rejected
        most = max(one for one in range(least, most + 1) if is_in_kio(api, one))
        versions = range(least, most + 1) if abuse.is_long or is_every else sorted({least, most})
        found += [Served(api, version) for version in versions]
    return found


def every_api(abuse: Abuse, *, is_every: bool = False) -> list[Served]:
    """The advertised versions, and those between brokers."""
    with KafkaWire(abuse.kafka) as wire:
        (topic,) = wire.call(METADATA, 12, topics=[{"name": TEXT}]).topics
    return [
        *advertised(abuse, is_every=is_every),
        *(Served(api, version, topic.topic_id) for api, version in VERSIONS),
    ]


def lies(written: Written) -> Iterator[bytes]:
    """Send the request repeatedly, with another wrong field each time."""
    data = written.data
    for at, size in written.places:
        found: list[bytes] = []
        if size in _INT_LIES:
            found = [struct.pack(_INT_FORMATS[size], lie) for lie in _INT_LIES[size]]
        elif size == 1 and written.is_flexible:
            found = list(_VARINT_LIES)
        for lie in found:
            yield framed(data[:at] + lie + data[at + size :])


def _in_turn(abuse: Abuse, all_of_them: list[bytes]) -> None:
    abuse.rng.shuffle(all_of_them)
    count = abuse.each(all_of_them)
    if count < len(all_of_them):
        abuse.skipped.append(
            f"{len(all_of_them) - count} of {len(all_of_them)} requests: out of time"
        )


def every_whole_request_is_taken(abuse: Abuse) -> None:
    for served in every_api(abuse):
        abuse.each([framed(write(served).data)], wait_s=0.1)


def what_brokers_ask_each_other_is_answered(abuse: Abuse) -> None:
    for served in every_api(abuse):
        if served.api >= OWN_KEYS_FROM:
            with abuse.open() as peer:
                peer.send(framed(write(served).data))
                abuse.expect(peer.answer() is not None, f"no response to API {served.api}")


def every_field_of_every_request_may_lie(abuse: Abuse) -> None:
    _in_turn(abuse, [lie for served in every_api(abuse) for lie in lies(write(served))])


def requests_cut_anywhere_harm_nobody(abuse: Abuse) -> None:
    cuts = []
    for served in every_api(abuse):
        data = write(served).data
        for end in range(TRUNCATED_EVERY, len(data), TRUNCATED_EVERY):
            cuts += [framed(data[:end]), framed(data)[:end]]
    _in_turn(abuse, cuts)


def bytes_behind_a_request_harm_nobody(abuse: Abuse) -> None:
    longer = []
    for served in every_api(abuse):
        data = write(served).data
        longer += [framed(data + tail) for tail in (b"\x00", b"\xff" * 7, bytes(100_000))]
    _in_turn(abuse, longer)


def a_million_unknown_tagged_fields_keep_nobody_waiting(abuse: Abuse) -> None:
    tags = write_uvarint(TAGS) + b"".join(write_uvarint(100 + tag) + b"\x00" for tag in range(TAGS))
    for served in ((18, 3), (3, 9), (0, 9), (1, 12)):
        written = write(Served(*served))
        header, body = written.data[: written.body_at - 1], written.data[written.body_at :]
        abuse.each([framed(header + tags + body), framed(header + b"\x00" + body[:-1] + tags)])


def a_million_elements_keep_nobody_waiting(abuse: Abuse) -> None:
    count = 1_000_000
    names = struct.pack(">i", count) + b"\x00\x01x" * count
    header = struct.pack(">hhih", 3, 1, 1, 0)
    abuse.each([framed(header + names)], wait_s=1)


def varints_that_never_end_harm_nobody(abuse: Abuse) -> None:
    requests = []
    for served in every_api(abuse):
        written = write(served)
        if written.is_flexible:
            start = written.data[: written.body_at]
            requests += [framed(start + b"\x80" * size) for size in (10, 64, 60_000)]
            requests.append(framed(start[:-1] + b"\xff" * 1000))
    _in_turn(abuse, requests)


def every_version_of_every_request_may_say_anything(abuse: Abuse) -> None:
    every = every_api(abuse, is_every=True)

    def drawn() -> Iterator[bytes]:
        for number in itertools.count():
            if number and not abuse.is_long:
                return
            for served in every:
                data = write(served, abuse.rng).data
                yield framed(data)
                spoiled = bytearray(data)
                spoiled[abuse.rng.randrange(8, len(spoiled))] ^= 1 << abuse.rng.randrange(8)
                yield framed(bytes(spoiled))

    abuse.each(drawn())


def _of_all(abuse: Abuse) -> list[Written]:
    return [write(served) for served in every_api(abuse)]


def random_changes_of_good_requests_harm_nobody(abuse: Abuse) -> None:
    rng, written = abuse.rng, _of_all(abuse)

    def changed() -> Iterator[bytes]:
        for _ in itertools.count():
            data = bytearray(rng.choice(written).data)
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(8, len(data))] = rng.choice((0, 1, 127, 128, 255))
            yield framed(bytes(data))

    abuse.each(changed())


CASES = (
    Case("kafka", every_whole_request_is_taken, 1),
    Case("kafka", what_brokers_ask_each_other_is_answered),
    Case("kafka", every_field_of_every_request_may_lie, 8),
    Case("kafka", requests_cut_anywhere_harm_nobody, 3),
    Case("kafka", bytes_behind_a_request_harm_nobody, 2),
    Case("kafka", varints_that_never_end_harm_nobody, 2),
    Case("kafka", a_million_unknown_tagged_fields_keep_nobody_waiting, 1),
    Case("kafka", a_million_elements_keep_nobody_waiting, 1),
    Case("kafka", every_version_of_every_request_may_say_anything, 4),
    Case("kafka", random_changes_of_good_requests_harm_nobody, 2),
)
