"""Builds the codec of one message in one version: classes, and functions that read and write.

Responsibilities: compiles the source that `reader_source` and `writer_source` generate from a
checked-in definition, on first use. Client data never becomes source: an API key and a version
select a definition, and both were validated against the table of supported APIs before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct, pack, unpack_from
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn
from uuid import UUID

from headrace.kafka.wire.definitions import layout_name, load, named_layouts
from headrace.kafka.wire.primitives import (
    FrameInvalid,
    elements,
    read_tag_count,
    read_uvarint,
    write_uvarint,
)
from headrace.kafka.wire.reader_source import reader_source
from headrace.kafka.wire.writer_source import writer_source

if TYPE_CHECKING:
    from headrace.kafka.wire.definitions import Field, MessageDefinition

Read = Callable[[bytes, int, int], tuple[Any, int]]
"""(data, position, end) -> (value, position after it)."""
NO_ID: Final = bytes(16)


class Message:
    """A decoded message: a slot for each field of the version, the default for all others."""

    __slots__: tuple[str, ...] = ()

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        given = (f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({', '.join(given)})"


class Writer(NamedTuple):
    """Encodes a message."""

    is_flexible: bool
    write: Callable[[Mapping[str, Any], Callable[[bytes], None]], None]
    structs: Mapping[str, Callable[[Mapping[str, Any], Callable[[bytes], None]], None]]
    """Encodes an element of an array, by its kind."""


class Encoded:
    """The elements of an array, encoded some at a time: a handler gives others their turns between
    them, and a long array is not encoded in one go. See schema.encode_elements."""

    __slots__ = ("_count", "_pieces")

    def __init__(self) -> None:
        self._count = 0
        self._pieces: list[bytes] = []

    def add(self, count: int, piece: bytes) -> None:
        """Add elements, in order."""
        self._count += count
        self._pieces.append(piece)

    def __len__(self) -> int:
        return self._count

    @property
    def data(self) -> bytes:
        """Of all."""
        return b"".join(self._pieces)


def build_reader(api_key: int, version: int, kind: str) -> Read:
    """Raises definitions.NoSuchMessage."""
    definition = load(api_key, version, kind)
    names: dict[str, Any] = dict(READER_NAMES)
    for name, fields in definition.structs.items():
        cls = names[f"new_{name}"] = _class(name, fields, names)
        assert cls.__slots__ == tuple(field.name for field in fields if field.is_present)
    source = "\n".join(reader_source(definition, name) for name in definition.structs)
    for layout in named_layouts(source):
        names["unpack_" + layout_name(layout)] = Struct(layout).unpack_from
    _run(source, definition, names)
    read: Read = names[f"read_{definition.name}"]
    return read


def build_writer(api_key: int, version: int, kind: str) -> Writer:
    """Raises definitions.NoSuchMessage."""
    definition = load(api_key, version, kind)
    names: dict[str, Any] = dict(_WRITER_NAMES)
    for name, fields in definition.structs.items():
        for field in fields:
            names[f"default_{name}_{field.name}"] = field.default
    source = "\n".join(writer_source(definition, name) for name in definition.structs)
    for layout in named_layouts(source):
        names["pack_" + layout_name(layout)] = Struct(layout).pack
    _run(source, definition, names)
    for fields in definition.structs.values():
        for field in fields:
            if field.is_present and field.tag is not None and field.kind in definition.structs:
                parts: list[bytes] = []
                values = _defaults(definition, field.kind)
                names[f"write_{field.kind}"](values, parts.append)
                names[f"default_bytes_{field.kind}"] = b"".join(parts)
    structs = {name: names[f"write_{name}"] for name in definition.structs}
    return Writer(definition.is_flexible, structs[definition.name], structs)


def _run(source: str, definition: MessageDefinition, names: dict[str, Any]) -> None:
    code = compile(source, f"<codec of {definition.name}>", "exec")
    exec(code, names)  # noqa: S102 - made from a file of this package alone


def _class(name: str, fields: tuple[Field, ...], names: dict[str, Any]) -> type[Message]:
    """The class of a struct; its defaults become names in the reader's namespace."""
    present = [field.name for field in fields if field.is_present]
    body: dict[str, Any] = {"__slots__": tuple(present), "__module__": __name__}
    for field in fields:
        default = field.default
        if default is None and f"new_{field.kind}" in names and not field.is_nullable:
            inner = names[f"new_{field.kind}"]
            default = inner(*(names[f"default_{field.kind}_{slot}"] for slot in inner.__slots__))
        names[f"default_{name}_{field.name}"] = default
        if not field.is_present:
            body[field.name] = default
    if present:
        lines = [f"def __init__(self, {', '.join(present)}):"]
        lines += [f"    self.{slot} = {slot}" for slot in present]
        exec("\n".join(lines), {}, body)  # noqa: S102 - as in `_run`
    return type(name, (Message,), body)


def _defaults(definition: MessageDefinition, name: str) -> dict[str, Any]:
    return {
        field.name: _defaults(definition, field.kind)
        if field.kind in definition.structs and not field.is_array and not field.is_nullable
        else field.default
        for field in definition.structs[name]
        if field.is_present
    }


def _is_null(field: str) -> NoReturn:
    raise FrameInvalid(f"{field} is null, which it must not be")


def _does_not_fit(field: str, count: int) -> NoReturn:
    raise FrameInvalid(f"{field}: an array of {count} elements does not fit the message")


def _reaches_past(field: str) -> NoReturn:
    raise FrameInvalid(f"{field} reaches past the end of what holds it")


def _id_bytes(value: UUID | None) -> bytes:
    return NO_ID if value is None else value.bytes


def _tag_bytes(tag: int, data: bytes) -> bytes:
    return write_uvarint(tag) + write_uvarint(len(data)) + data


READER_NAMES: Final[dict[str, Any]] = {
    "unpack": unpack_from,
    "read_uvarint": read_uvarint,
    "read_tag_count": read_tag_count,
    "take": elements.take,
    "is_null": _is_null,
    "does_not_fit": _does_not_fit,
    "reaches_past": _reaches_past,
    "NO_ID": NO_ID,
    "UUID": UUID,
}
"""The namespace of the readers' source."""
_WRITER_NAMES: Final[dict[str, Any]] = {
    "Encoded": Encoded,
    "pack": pack,
    "write_uvarint": write_uvarint,
    "COUNTS": [bytes((size + 1,)) for size in range(127)],
    "id_bytes": _id_bytes,
    "tag_bytes": _tag_bytes,
}
