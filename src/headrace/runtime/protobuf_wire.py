"""The wire format of protobuf, for what is read or written without the library.

Invariants: bytes in, bytes out; needs no library, because a broker has protobuf only where it runs
in a cluster. Do not change: sent on the wire, and stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Data = TypeVar("Data", bytes, memoryview)

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types."""
_VARINT_BYTES_MAX: Final = 10
"""Of 64 bits."""


class ProtobufInvalid(Exception):
    """Bytes that are no protobuf message."""


def varint(value: int) -> bytes:
    """An encoded number, 0 or more."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def number_field(number: int, value: int) -> bytes:
    """A field that holds a number; nothing for 0, as in proto3."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """A field that holds bytes, text or a message."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value


def fields(data: Data) -> Iterator[tuple[int, int, int | Data]]:
    """(number, wire type, value) of a message's fields: the number of a VARINT, the bytes of
    everything else. Raises ProtobufInvalid."""
    at, end = 0, len(data)
    while at < end:
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, kind, value
            continue
        size = {FIXED64: 8, FIXED32: 4}.get(kind, -1)
        if kind == BYTES:
            size, at = read_varint(data, at)
        if size < 0 or at + size > end:
            raise ProtobufInvalid(f"field {key >> 3} at byte {at}")
        yield key >> 3, kind, data[at : at + size]
        at += size


def read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """(number, its end). Raises ProtobufInvalid."""
    value = 0
    for index, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ProtobufInvalid(f"a number at byte {at} does not end")


def texts(data: bytes, number: int) -> list[str]:
    """Every value of a text field. Raises ProtobufInvalid."""
    try:
        return [value.decode() for value in messages(data, number)]
    except UnicodeDecodeError as error:
        raise ProtobufInvalid("text that is not UTF-8") from error


def messages(data: bytes, number: int) -> list[bytes]:
    """Every value of a field that holds bytes or messages. Raises ProtobufInvalid."""
    return [value for one, _, value in fields(data) if one == number and isinstance(value, bytes)]
