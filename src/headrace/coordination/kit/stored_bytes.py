"""Kafka's primitive types, and varints, as stored in the records of machines.

Invariants: pure bytes; a record that is truncated or has invalid lengths raises RecordInvalid and
is never read beyond its end. Do not change: stored.
"""

from __future__ import annotations

from struct import Struct, error
from uuid import UUID

from headrace.errors import RecordInvalid

INT8 = Struct(">b")
INT16 = Struct(">h")
INT32 = Struct(">i")
INT64 = Struct(">q")
STRING_SIZE_MAX = 32_767
"""The length prefix is an int16."""
UVARINT_BITS_MAX = 35
_SMALL_NUMBERS = tuple(bytes((number,)) for number in range(0x80))


def stored_string(text: str) -> bytes:
    """A string with an int16 length."""
    data = text.encode()
    return INT16.pack(len(data)) + data


def compact_string(text: str) -> bytes:
    """A string of a flexible version."""
    data = text.encode()
    return uvarint(len(data) + 1) + data


def compact_nullable_string(text: str | None) -> bytes:
    """A nullable string of a flexible version."""
    return b"\0" if text is None else compact_string(text)


def compact_data(data: bytes) -> bytes:
    """Bytes of a flexible version."""
    return uvarint(len(data) + 1) + data


def uvarint(number: int) -> bytes:
    """An unsigned varint: groups of 7 bits."""
    if number < 0x80:
        return _SMALL_NUMBERS[number]
    data = bytearray()
    put_varint(data, number)
    return bytes(data)


def put_varint(out: bytearray, value: int) -> None:
    """Append `value` >= 0 as an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def get_varint(data: bytes, at: int) -> tuple[int, int]:
    """(the unsigned varint at `at`, the position after it). Raises IndexError, RecordInvalid."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise RecordInvalid("a varint of more than 64 bits")


def tagged_fields(fields: dict[int, bytes]) -> bytes:
    """Tagged fields in ascending order of their numbers."""
    parts = [uvarint(len(fields))]
    for tag in sorted(fields):
        parts += (uvarint(tag), uvarint(len(fields[tag])), fields[tag])
    return b"".join(parts)


class StoredReader:
    """Reads Kafka's primitive types from stored bytes. Every method raises RecordInvalid."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _number(self, form: Struct) -> int:
        try:
            number: int = form.unpack_from(self._data, self._position)[0]
        except error:
            raise RecordInvalid("a stored record ends inside a number") from None
        self._position += form.size
        return number

    def int8(self) -> int:
        return self._number(INT8)

    def int16(self) -> int:
        return self._number(INT16)

    def int32(self) -> int:
        return self._number(INT32)

    def int64(self) -> int:
        return self._number(INT64)

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if size < 0 or end > len(self._data):
            raise RecordInvalid(f"a stored record has an invalid length of {size}")
        taken = bytes(self._data[self._position : end])
        self._position = end
        return taken

    def raw(self, size: int) -> bytes:
        return self._take(size)

    def data(self) -> bytes:
        return self._take(self.int32())

    def uvarint(self) -> int:
        number = shift = 0
        while shift < UVARINT_BITS_MAX:
            byte = self._take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
        raise RecordInvalid("a stored record has a varint of more than five bytes")

    def tagged_fields(self) -> dict[int, bytes]:
        """The tagged fields at the end of a flexible value by number, including unknown ones."""
        fields: dict[int, bytes] = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = self._take(self.uvarint())
        return fields

    def compact_string(self) -> str:
        return self._text(self.uvarint() - 1)

    def compact_nullable_string(self) -> str | None:
        size = self.uvarint()
        return None if size == 0 else self._text(size - 1)

    def compact_data(self) -> bytes:
        return self._take(self.uvarint() - 1)

    def uuid(self) -> UUID:
        return UUID(bytes=self._take(16))

    def string(self) -> str:
        return self._text(self.int16())

    def _text(self, size: int) -> str:
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise RecordInvalid("a string of a stored record is not UTF-8") from None

    def nullable_string(self) -> str | None:
        start = self._position
        if self.int16() == -1:
            return None
        self._position = start
        return self.string()

    def count(self, size_min: int) -> int:
        count = self.int32()
        if count < 0 or count * size_min > len(self._data) - self._position:
            raise RecordInvalid(f"a stored record has an invalid count of {count}")
        return count

    def nullable_count(self, size_min: int) -> int:
        """The length of a nullable array; null counts as empty."""
        start = self._position
        if self.int32() == -1:
            return 0
        self._position = start
        return self.count(size_min)

    def compact_count(self, size_min: int) -> int:
        """The length of an array of a flexible version; -1: null."""
        count = self.uvarint() - 1
        if count * size_min > len(self._data) - self._position:
            raise RecordInvalid(f"a stored record has an invalid count of {count}")
        return count

    def end(self) -> None:
        if self._position != len(self._data):
            raise RecordInvalid(
                f"{len(self._data) - self._position} bytes are left after a stored record"
            )
