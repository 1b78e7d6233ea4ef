"""Requests of the APIs between Headrace brokers, which are not advertised.

Invariants: encoded from their definitions (`own_messages.jsonl`) without any of the broker's code,
so a fault of its codecs cannot hide here. Kio has no schemas for them.
"""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.kafka.apis import OWN_APIS
from headrace.kafka.wire import definitions
from headrace.kafka.wire.definitions import FIXED, REQUEST
from headrace.kafka.wire.primitives import write_uvarint

if TYPE_CHECKING:
    from headrace.kafka.wire.definitions import Field, MessageDefinition
    from headrace_verify.rng import Rng

VERSIONS: Final = tuple(
    (api.key, version)
    for api in OWN_APIS.values()
    for version in range(api.version_min, api.version_max + 1)
)
"""(API key, version) of every one of them."""
INTS: Final = (0, 0, 0, 1, 1, 2, 3, 7, 100, -1, -2, 2**15 - 1, 2**31 - 1, 2**63 - 1, -(2**63))
_PLACES: Final = ("partition_index", "partitions")
"""Fields that name partitions: the topic has only the first one."""
TEXTS: Final = ("", "é", "x" * 300, "consumer", "a,b", "0", "\x00", "../x")


class OwnRequest:
    """Encodes requests: with something in every part of them, or at random."""

    def __init__(self, body: io.BytesIO, text: str, topic_id: UUID, rng: Rng | None = None) -> None:
        """`text`: the value of names; `topic_id`: of an existing topic, so that requests get past
        the look-up."""
        self._body = body
        self._text = text
        self._topic_id = topic_id
        self._rng = rng

    def write(self, api: int, version: int) -> None:
        """Encode the body of a request. Raises NoSuchMessage."""
        definition = definitions.load(api, version, REQUEST)
        assert definition.is_flexible
        self._struct(definition, definition.name)

    def _struct(self, definition: MessageDefinition, name: str) -> None:
        for field in definition.structs[name]:
            assert field.is_present
            if field.tag is not None:
                continue
            if field.is_array:
                count = 1 if self._rng is None else self._rng.choice((0, 1, 1, 3))
                self._body.write(write_uvarint(count + 1))
                for _ in range(count):
                    self._value(definition, field)
            else:
                self._value(definition, field)
        self._tagged([one for one in definition.structs[name] if one.tag is not None], definition)

    def _tagged(self, fields: list[Field], definition: MessageDefinition) -> None:
        """The tagged fields, or some of them."""
        rng = self._rng
        some = [one for one in fields if rng is None or rng.randrange(2)]
        self._body.write(write_uvarint(len(some)))
        body = self._body
        for field in some:
            self._body = io.BytesIO()
            self._value(definition, field)
            data, self._body = self._body.getvalue(), body
            body.write(write_uvarint(field.tag or 0) + write_uvarint(len(data)) + data)

    def _value(self, definition: MessageDefinition, field: Field) -> None:
        kind = field.kind
        if kind in definition.structs:
            assert not field.is_nullable
            self._struct(definition, kind)
        elif kind in {"string", "bytes"}:
            data = self._text_or_bytes(kind)
            self._body.write(write_uvarint(len(data) + 1))
            self._body.write(data)
        elif kind == "uuid":
            self._body.write(self._id().bytes)
        else:
            assert kind.startswith("int")
            layout, size = FIXED[kind]
            number = self._whole(8 * size, is_place=field.name in _PLACES)
            self._body.write(struct.pack(f">{layout}", number))

    def _text_or_bytes(self, kind: str) -> bytes:
        rng = self._rng
        if kind == "bytes":
            return b"\x00" * 8 if rng is None else rng.randbytes(rng.choice((0, 1, 8, 70)))
        return (self._text if rng is None else rng.choice((self._text, *TEXTS))).encode()

    def _id(self) -> UUID:
        rng = self._rng
        if rng is None or rng.randrange(4):
            return self._topic_id
        return UUID(int=rng.randrange(1, 1 << 128))

    def _whole(self, bits: int, *, is_place: bool) -> int:
        rng = self._rng
        if rng is None or (is_place and rng.randrange(4)):
            return int(not is_place)
        limit = 1 << (bits - 1)
        return min(max(rng.choice(INTS), -limit), limit - 1)
