"""The primitive types of Kafka's protocol, for what is read and written by hand.

Invariants: every read is bounded by the frame; a length or count that lies raises
FrameInvalid before anything is allocated for it.
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
"""In one place: clients send a handful, and a million keep the loop for most of a second."""
ELEMENTS_MAX: Final = 50_000
"""Of all arrays and tagged fields of one request together: each is looked at in the loop's thread
for some microseconds, while everybody else waits."""


class FrameInvalid(Rejected):
    """The bytes of a request do not follow the protocol: the connection is closed."""


class Elements:
    """How many elements the request that is being read may still hold."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = ELEMENTS_MAX

    def begin(self) -> None:
        """A new request is read."""
        self.left = ELEMENTS_MAX

    def take(self, count: int) -> None:
        """Raises FrameInvalid where there are too many in all."""
        self.left -= count
        if self.left < 0:
            raise FrameInvalid(f"more than {ELEMENTS_MAX} elements: send several requests")


elements = Elements()
"""One for all: requests are read one after the other, in the loop's thread."""


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """(value, position behind it) of an unsigned varint of at most 5 bytes."""
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
    """(how many tagged fields follow, position behind the count)."""
    count, at = read_uvarint(data, at)
    if count > min(TAGS_MAX, len(data) - at):
        raise FrameInvalid(f"{count} tagged fields do not fit the request, or are too many")
    if count:
        elements.take(count)
    return count, at


def skip_tags(data: memoryview, at: int) -> int:
    """The position behind a tagged-fields section, none of which is of interest."""
    count, at = read_tag_count(data, at)
    for _ in range(count):
        _tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
        if at > len(data):
            raise FrameInvalid("a tagged field reaches past the request")
    return at


def check_end(data: memoryview, at: int) -> None:
    """Raises FrameInvalid unless `at` is where the request ends."""
    if at != len(data):
        raise FrameInvalid(f"{len(data) - at} bytes are left behind the request")


def read_string(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """(bytes or None, position behind) of a nullable string with an int16 length."""
    (size,) = INT16.unpack_from(data, at)
    at += 2
    if size < 0:
        return None, at
    end = at + size
    if end > len(data):
        raise FrameInvalid("a string reaches past the request")
    return bytes(data[at:end]), end


def read_compact_string(data: memoryview, at: int) -> tuple[bytes | None, int]:
    """(bytes or None, position behind) of a compact nullable string."""
    size, at = read_uvarint(data, at)
    if size == 0:
        return None, at
    end = at + size - 1
    if end > len(data):
        raise FrameInvalid("a string reaches past the request")
    return bytes(data[at:end]), end


def read_count(data: memoryview, at: int, least_bytes: int) -> tuple[int, int]:
    """(count, position behind) of an array with an int32 count; null counts as 0."""
    (count,) = INT32.unpack_from(data, at)
    at += 4
    if count * least_bytes > len(data) - at:
        raise FrameInvalid(f"an array of {count} elements does not fit the request")
    if count <= 0:
        return 0, at
    elements.take(count)
    return count, at


def read_compact_count(data: memoryview, at: int, least_bytes: int) -> tuple[int, int]:
    """(count, position behind) of a compact array; null counts as 0."""
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
