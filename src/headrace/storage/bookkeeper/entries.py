"""The payload format of our entries: a head, then bytes of the ledger or of its trailer.

Invariants: bytes in, bytes out. Do not change: stored.

A ledger's bytes are in its DATA entries, in order. An entry's head holds the position of its bytes
in the ledger, so a position can be found by bisection without an index. An append that is larger
than an entry is split into FRAGMENT entries and a last DATA entry; their heads hold the start of
the append, so a ledger whose writer died in the middle ends before it.
After the bytes, `seal` appends a trailer, the entry index and the caller's footer, split into
TRAILER entries and a last TAIL, which holds the start of the trailer. Their heads hold the end of
the bytes. An inline checkpoint is between data entries, in CHECKPOINT_PART entries and a last
CHECKPOINT, which holds its start and the end of the one before. The layout is in `docs/FORMAT.md`.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import DataCorrupt, FormatUnsupported

if TYPE_CHECKING:
    from headrace.storage.ledger import Buffer

MAGIC: Final = b"Hr"
VERSION: Final = 1
DATA: Final = 1
FRAGMENT: Final = 2
TRAILER: Final = 3
TAIL: Final = 4
CHECKPOINT_PART: Final = 5
CHECKPOINT: Final = 6
HEAD: Final = Struct(">2sBBqq")
_TAIL: Final = Struct(">qII")
_CHECKPOINT: Final = Struct(">qq")
INDEX_INTERVAL_BYTES: Final = 64 << 10


class Head(NamedTuple):
    """`position`: of the entry's first byte; `start`: of the append that it belongs to."""

    kind: int
    position: int
    start: int


def pack_head(kind: int, position: int, start: int) -> bytes:
    """The head of an entry."""
    return HEAD.pack(MAGIC, VERSION, kind, position, start)


def read_head(payload: memoryview) -> Head:
    """The head of an entry. Raises DataCorrupt, FormatUnsupported."""
    if len(payload) < HEAD.size:
        raise DataCorrupt(
            f"an entry of {len(payload)} bytes has no head: it is not one of Headrace's"
        )
    magic, version, kind, position, start = HEAD.unpack_from(payload)
    if magic != MAGIC:
        raise DataCorrupt("an entry lacks the magic of Headrace's entries")
    if version != VERSION:
        raise FormatUnsupported(
            f"an entry has version {version}, this version of Headrace supports {VERSION}: its"
            " ledger is not served; start a newer one",
            version=version,
        )
    return Head(kind, position, start)


def end_after(payload: memoryview) -> int:
    """The end of the ledger, given its last entry's payload. Raises as `read_head`."""
    head = read_head(payload)
    if head.kind == DATA:
        return head.position + len(payload) - HEAD.size
    return head.start if head.kind == FRAGMENT else head.position


class EntryIndex:
    """Positions of entries: sparse, one per 64 KiB or entry, whichever is larger."""

    __slots__ = ("_entries", "_positions")

    def __init__(self) -> None:
        self._entries = array("q", [0])
        self._positions = array("q", [0])

    def add(self, entry: int, position: int) -> None:
        """Add an entry, in any order."""
        at = bisect_right(self._positions, position)
        if position - self._positions[at - 1] < INDEX_INTERVAL_BYTES:
            return
        if at < len(self._positions) and (
            self._positions[at] - position < INDEX_INTERVAL_BYTES and self._entries[at] != entry + 1
        ):
            return
        self._entries.insert(at, entry)
        self._positions.insert(at, position)

    def before(self, position: int) -> tuple[int, int]:
        """(entry, its position): the last known one that begins at or before `position`."""
        at = bisect_right(self._positions, position) - 1
        return self._entries[at], self._positions[at]

    def after(self, position: int) -> tuple[int, int] | None:
        """(entry, its position): the first known one that begins after `position`."""
        at = bisect_right(self._positions, position)
        return (self._entries[at], self._positions[at]) if at < len(self._positions) else None

    @property
    def size_bytes(self) -> int:
        """Approximate memory use."""
        return 16 * len(self._entries)

    def encode(self) -> bytes:
        """Encode: all entries, then all positions."""
        out = b""
        for numbers in (self._entries, self._positions):
            copy = array("q", numbers)
            if sys.byteorder == "little":
                copy.byteswap()
            out += copy.tobytes()
        return out

    @classmethod
    def decode(cls, data: Buffer) -> EntryIndex:
        """Decode stored bytes. Raises DataCorrupt."""
        if len(data) % 16:
            raise DataCorrupt("the index of a ledger's entries is truncated")
        numbers = array("q")
        numbers.frombytes(data)
        if sys.byteorder == "little":
            numbers.byteswap()
        index = cls()
        half = len(numbers) // 2
        index._entries, index._positions = numbers[:half], numbers[half:]
        if not half or index._entries[0] or index._positions[0]:
            raise DataCorrupt("the index of a ledger's entries lacks its first entry")
        return index


def trailer_entries(
    index: EntryIndex, footer: bytes, end: int, first_entry: int, bytes_max: int
) -> list[bytes]:
    """The payloads of a trailer that starts with entry `first_entry`, after `end` bytes."""
    encoded = index.encode()
    blob = encoded + footer
    room = bytes_max - HEAD.size - _TAIL.size
    chunks = [blob[at : at + room] for at in range(0, len(blob), room)]
    last = chunks.pop()
    out = [pack_head(TRAILER, end, end) + chunk for chunk in chunks]
    tail = _TAIL.pack(first_entry, len(encoded), len(footer))
    return [*out, pack_head(TAIL, end, end) + tail + last]


def checkpoint_entries(
    data: bytes, end: int, first_entry: int, previous: int, bytes_max: int
) -> list[bytes]:
    """The payloads of an inline checkpoint after `end` bytes.

    `previous`: the last entry of the checkpoint before; -1 if there is none.
    """
    room = bytes_max - HEAD.size - _CHECKPOINT.size
    chunks = [data[at : at + room] for at in range(0, len(data), room)] or [b""]
    last = chunks.pop()
    out = [pack_head(CHECKPOINT_PART, end, end) + chunk for chunk in chunks]
    return [*out, pack_head(CHECKPOINT, end, end) + _CHECKPOINT.pack(first_entry, previous) + last]


def checkpoint_links(last: memoryview) -> tuple[int, int]:
    """(its first entry, the last entry of the one before or -1). Raises DataCorrupt."""
    if len(last) < HEAD.size + _CHECKPOINT.size:
        raise DataCorrupt("an inline checkpoint of a ledger is truncated")
    first, previous = _CHECKPOINT.unpack_from(last, HEAD.size)
    return first, previous


def read_checkpoint_data(payloads: list[memoryview]) -> bytes:
    """The data of an inline checkpoint, from all its payloads."""
    parts = [payload[HEAD.size :] for payload in payloads[:-1]]
    return b"".join([*parts, payloads[-1][HEAD.size + _CHECKPOINT.size :]])


def trailer_begin(tail: memoryview) -> int:
    """The first entry of the trailer that ends with the payload `tail`. Raises DataCorrupt."""
    if len(tail) < HEAD.size + _TAIL.size:
        raise DataCorrupt("the tail of a ledger is truncated")
    first: int = _TAIL.unpack_from(tail, HEAD.size)[0]
    return first


def read_trailer(payloads: list[memoryview]) -> tuple[EntryIndex, bytes]:
    """(index, footer) from all the payloads of a trailer. Raises DataCorrupt."""
    tail = payloads[-1]
    _first, index_size, footer_size = _TAIL.unpack_from(tail, HEAD.size)
    blob = b"".join(
        [*(payload[HEAD.size :] for payload in payloads[:-1]), tail[HEAD.size + _TAIL.size :]]
    )
    if len(blob) != index_size + footer_size:
        raise DataCorrupt(f"a ledger's trailer has {len(blob)} bytes, not the announced number")
    return EntryIndex.decode(blob[:index_size]), blob[index_size:]
