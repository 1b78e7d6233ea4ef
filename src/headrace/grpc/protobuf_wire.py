"""The wire format of protobuf, as far as the small services of this package need it.

Invariants: bytes in, bytes out; needs no library, because a broker has protobuf only where it runs
in a cluster. Do not change: sent on the wire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS_MAX = 64


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
    return varint(number << 3 | _VARINT) + varint(value) if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """A field that holds bytes, text or a message."""
    return varint(number << 3 | _BYTES) + varint(len(value)) + value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: numbers, and bytes of everything else. Raises ProtobufInvalid."""
    at = 0
    try:
        while at < len(data):
            key, at = _read_varint(data, at)
            kind = key & 7
            if kind == _VARINT:
                value, at = _read_varint(data, at)
                yield key >> 3, value
                continue
            if kind == _BYTES:
                size, at = _read_varint(data, at)
            elif kind in {_FIXED64, _FIXED32}:
                size = 8 if kind == _FIXED64 else 4
            else:
                raise ProtobufInvalid(f"a field of wire type {kind}")
            if at + size > len(data):
                raise ProtobufInvalid("a message that ends within a field")
            yield key >> 3, data[at : at + size]
            at += size
    except IndexError as error:
        raise ProtobufInvalid("a message that ends within a number") from error


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
        shift += 7
        if shift >= _VARINT_BITS_MAX + 6:
            raise ProtobufInvalid("a number of more than 64 bits")


def texts(data: bytes, number: int) -> list[str]:
    """Every value of a text field. Raises ProtobufInvalid."""
    try:
        return [value.decode() for value in messages(data, number)]
    except UnicodeDecodeError as error:
        raise ProtobufInvalid("text that is not UTF-8") from error


def messages(data: bytes, number: int) -> list[bytes]:
    """Every value of a field that holds bytes or messages. Raises ProtobufInvalid."""
    return [value for one, value in fields(data) if one == number and isinstance(value, bytes)]
