"""The primitive types of Kafka's protocol, for hand-written codecs.

Invariants: every read is bounded by the frame; an invalid length or count raises FrameInvalid
before anything is allocated for it.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final

from headrace.errors import Rejected

INT16: Final = Struct(">h")
INT32: Final = Struct(">i")
INT64: Final = Struct(">q")
STRUCT_ERROR = struct_error
TAGS_MAX: Final = 1_000
"""Per section: clients send a handful, and a million would block the loop for most of a second."""
ELEMENTS_MAX: Final = 50_000
"""All arrays and tagged fields of one request together: each element takes some microseconds of the
loop's thread, while all other requests wait."""


class FrameInvalid(Rejected):
    """The bytes of a request violate the protocol: the connection is closed."""


class Elements:
    """How many more elements the request being read may contain."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ELEMENTS_MAX

    def begin(self) -> None:
        """Start reading a new request."""
        self.left = ELEMENTS_MAX

    def take(self, count: int) -> None:
        """Raise FrameInvalid if the request has too many elements in total."""
        self.left -= count
        if self.left < 0:
            raise FrameInvalid(f"more than {ELEMENTS_MAX} elements: split the request")


elements = Elements()
"""Shared: requests are read one after the other, in the loop's thread."""


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """(value, position after it) of an unsigned varint of at most 5 bytes."""
    value = shift = 0
    while True:
        if shift > 28:
            raise FrameInvalid("a varint is longer than 5 bytes")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def write_uvarint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_tag_count(data: memoryview, at: int) -> tuple[int, int]:
    """(number of tagged fields, position after the count)."""
    count, at = read_uvarint(data, at)
    if count > min(TAGS_MAX, len(data) - at):
        raise FrameInvalid(f"{count} tagged fields do not fit the request, or are too many")
    if count:
        elements.take(count)
    return count, at


def skip_tags(data: memoryview, at: int) -> int:
    """The position after a section of tagged fields, all of which are ignored."""
    count, at = read_tag_count(data, at)
    for _ in range(count):
        _tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
        if at > len(data):
            raise FrameInvalid("a tagged field extends beyond the request")
    return at


def check_end(data: memoryview, at: int) -> None:
    """Raise FrameInvalid unless the request ends at `at`."""
    if at != len(data):
        raise FrameInvalid(f"{len(data) - at} bytes follow the request")


def read_string(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """(bytes or None, position after it) of a nullable string with an int16 length."""
    (size,) = INT16.unpack_from(data, at)
    at += 2
    if size < 0:
        return None, at
    end = at + size
    if end > len(data):
        raise FrameInvalid("a string extends beyond the request")
    return bytes(data[at:end]), end


def read_compact_string(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """(bytes or None, position after it) of a compact nullable string."""
    size, at = read_uvarint(data, at)
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(data):
        raise FrameInvalid("a string extends beyond the request")
    return bytes(data[at:end]), end


def read_count(data: memoryview, at: int, least_bytes: int) -> tuple[int, int]:
    """(count, position after it) of an array with an int32 count; null counts as 0."""
    (count,) = INT32.unpack_from(data, at)
    at += 4
    if count * least_bytes > len(data) - at:
        raise FrameInvalid(f"an array of {count} elements does not fit the request")
    if count <= 0:
        return 0, at
    elements.take(count)
    return count, at


def read_compact_count(data: memoryview, at: int, least_bytes: int) -> tuple[int, int]:
    """(count, position after it) of a compact array; null counts as 0."""
    count, at = read_uvarint(data, at)
    count = max(count - 1, 0)
    if count * least_bytes > len(data) - at:
        raise FrameInvalid(f"an array of {count} elements does not fit the request")
    elements.take(count)
    return count, at


def compact_string(value: bytes) -> bytes:
    """A compact string."""
    return write_uvarint(len(value) + 1) + value


def string(value: bytes) -> bytes:
    """A string with an int16 length."""
    return INT16.pack(len(value)) + value
