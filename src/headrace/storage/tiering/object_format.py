"""The format and name of a ledger's object.

Invariants: bytes in, bytes out. The layout is in `docs/FORMAT.md`. Do not change: stored.
An object depends on its ledger only, so two brokers that offload the same ledger write the same
bytes under the same name. A block's checksum includes the ledger's id and the block's number, so
that misplaced blocks are detected.
"""

from __future__ import annotations

from array import array
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.errors import DataCorrupt, FormatUnsupported
from headrace.storage.ledger import Buffer, LedgerId

VERSION = 1
BLOCK_BYTES = 256 * 1024
"""The unit of checksums and of reads: object storage takes about 10 ms to answer, whatever the
size, and 256 KiB take less than that to transfer."""
HEADER_SIZE = 64
TRAILER_SIZE = 16

_HEADER_MAGIC, _TRAILER_MAGIC = b"HROB", b"HROE"
_HAS_FOOTER = 1
_HEADER = Struct("<4sIIIQQII24x")
_TRAILER = Struct("<4sIII")
_SEED = Struct("<QI")
_FOOTER_NUMBER = 0xFFFFFFFF
_SUFFIX = ".ledger"

assert _HEADER.size == HEADER_SIZE
assert _TRAILER.size == TRAILER_SIZE


class Layout(NamedTuple):
    """Positions in an object, in bytes from its start."""

    ledger: int
    size: int
    """Size of the ledger's bytes, which begin at HEADER_SIZE."""
    footer_size: int
    has_footer: bool
    block_bytes: int = BLOCK_BYTES

    @property
    def block_count(self) -> int:
        """The number of blocks, the last of which may be partial."""
        return -(-self.size // self.block_bytes)

    @property
    def footer_at(self) -> int:
        """The position of the footer, after the ledger's bytes."""
        return HEADER_SIZE + self.size

    @property
    def index_at(self) -> int:
        """The position of the checksums: one per block, and the footer's."""
        return self.footer_at + self.footer_size

    @property
    def tail_size(self) -> int:
        """Size of checksums and trailer."""
        return 4 * (self.block_count + 1) + TRAILER_SIZE

    @property
    def object_size(self) -> int:
        """Size of the whole object."""
        return self.index_at + self.tail_size


def object_name(ledger: int) -> str:
    """The object's name under the cluster's prefix, distributed by the lowest byte of the id."""
    return f"ledgers/{ledger & 0xFF:02x}/{ledger:016x}{_SUFFIX}"


def ledger_of_name(name: str) -> LedgerId | None:
    """The ledger of an object name; None for other names."""
    stem = name.rpartition("/")[2].removesuffix(_SUFFIX)
    try:
        ledger = int(stem, 16)
    except ValueError:
        return None
    return LedgerId(ledger) if name.endswith(object_name(ledger)) else None


def block_crc(ledger: int, number: int, data: Buffer) -> int:
    """The checksum of one block."""
    return crc32c(data, crc32c(_SEED.pack(ledger, number)))


def first_bad_block(ledger: int, first: int, step: int, data: memoryview, crcs: array[int]) -> int:
    """The first of the blocks in `data`, from number `first` on, with another checksum; or -1."""
    for at in range(-(-len(data) // step)):
        if block_crc(ledger, first + at, data[at * step : (at + 1) * step]) != crcs[first + at]:
            return first + at
    return -1


def footer_crc(ledger: int, footer: Buffer) -> int:
    """The checksum of the footer."""
    return block_crc(ledger, _FOOTER_NUMBER, footer)


def encode_header(layout: Layout) -> bytes:
    """The first HEADER_SIZE bytes of an object."""
    flags = _HAS_FOOTER if layout.has_footer else 0
    fields = (VERSION, layout.block_bytes, layout.ledger, layout.size, layout.footer_size, flags)
    body = _HEADER.pack(_HEADER_MAGIC, 0, *fields)[8:]
    return _HEADER.pack(_HEADER_MAGIC, crc32c(body), *fields)


def decode_header(data: Buffer, ledger: int) -> Layout:
    """Decode a header. Raises DataCorrupt, FormatUnsupported."""
    if len(data) != HEADER_SIZE:
        raise _corrupt(ledger, f"its header has {len(data)} bytes")
    magic, crc, version, block_bytes, found, size, footer_size, flags = _HEADER.unpack(data)
    if magic != _HEADER_MAGIC or crc != crc32c(memoryview(data)[8:]):
        raise _corrupt(ledger, "checksum mismatch in its header")
    if version != VERSION:
        raise FormatUnsupported(
            f"the object of ledger {ledger} has version {version}, this version of Headrace"
            f" supports {VERSION}: start a newer one",
            ledger=ledger,
            version=version,
        )
    if found != ledger:
        raise _corrupt(ledger, f"it holds ledger {found}")
    return Layout(ledger, size, footer_size, bool(flags & _HAS_FOOTER), block_bytes)


def encode_tail(layout: Layout, crcs: array[int], footer: Buffer) -> bytes:
    """Checksums and trailer, which follow the footer."""
    assert len(crcs) == layout.block_count, "one checksum per block"
    index = Struct(f"<{len(crcs) + 1}I").pack(*crcs, footer_crc(layout.ledger, footer))
    return index + _TRAILER.pack(
        _TRAILER_MAGIC, crc32c(index), len(index), layout.ledger & 2**32 - 1
    )


def decode_tail(data: Buffer, layout: Layout) -> array[int]:
    """The checksums, with the footer's last. Raises DataCorrupt."""
    view = memoryview(data)
    if len(view) != layout.tail_size:
        raise _corrupt(layout.ledger, "it is truncated")
    index = view[:-TRAILER_SIZE]
    magic, crc, size, ledger = _TRAILER.unpack(view[-TRAILER_SIZE:])
    if (
        magic != _TRAILER_MAGIC
        or size != len(index)
        or crc != crc32c(index)
        or ledger != layout.ledger & 2**32 - 1
    ):
        raise _corrupt(layout.ledger, "checksum mismatch in its checksums")
    return array("I", Struct(f"<{len(index) // 4}I").unpack(index))


def _corrupt(ledger: int, problem: str) -> DataCorrupt:
    return DataCorrupt(
        f"the object of ledger {ledger} is corrupt ({problem}): its records are not served;"
        " restore the object from a backup or an older version",
        ledger=ledger,
    )
