"""How a ledger lies in an object, and what the object is called.

Invariants: bytes in, bytes out. The layout is in `docs/FORMAT.md`. Do not change: stored.
An object follows from its ledger alone, so two brokers that offload one ledger write the same
bytes under the same name. The checksum of a block begins with the ledger's id and the block's
number: a block in another's place does not match.
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
"""What one checksum covers, and the least that is read: an object store takes some 10 ms to
answer, whatever the size, and 256 KiB take less than that to send."""
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
    """Where things are in one object: bytes from its start."""

    ledger: int
    size: int
    """Bytes of the ledger; they begin at HEADER_SIZE."""
    footer_size: int
    has_footer: bool
    block_bytes: int = BLOCK_BYTES

    @property
    def block_count(self) -> int:
        """How many blocks the ledger's bytes fill, the last one perhaps not wholly."""
        return -(-self.size // self.block_bytes)

    @property
    def footer_at(self) -> int:
        """Where the footer begins: behind the ledger's bytes."""
        return HEADER_SIZE + self.size

    @property
    def index_at(self) -> int:
        """Where the checksums begin: one of each block, and the footer's."""
        return self.footer_at + self.footer_size

    @property
    def tail_size(self) -> int:
        """Bytes of checksums and trailer."""
        return 4 * (self.block_count + 1) + TRAILER_SIZE

    @property
    def object_size(self) -> int:
        """All bytes of the object."""
        return self.index_at + self.tail_size


def object_name(ledger: int) -> str:
    """The object's name under the cluster's prefix: spread by the lowest byte of the id."""
    return f"ledgers/{ledger & 0xFF:02x}/{ledger:016x}{_SUFFIX}"


def ledger_of_name(name: str) -> LedgerId | None:
    """The ledger whose object this is, None for other names."""
    stem = name.rpartition("/")[2].removesuffix(_SUFFIX)
    try:
        ledger = int(stem, 16)
    except ValueError:
        return None
    return LedgerId(ledger) if name.endswith(object_name(ledger)) else None


def block_crc(ledger: int, number: int, data: Buffer) -> int:
    """The checksum of one block."""
    return crc32c(data, crc32c(_SEED.pack(ledger, number)))


def footer_crc(ledger: int, footer: Buffer) -> int:
    """The checksum of what was given to `seal`."""
    return block_crc(ledger, _FOOTER_NUMBER, footer)


def encode_header(layout: Layout) -> bytes:
    """The first HEADER_SIZE bytes of an object."""
    flags = _HAS_FOOTER if layout.has_footer else 0
    fields = (VERSION, layout.block_bytes, layout.ledger, layout.size, layout.footer_size, flags)
    body = _HEADER.pack(_HEADER_MAGIC, 0, *fields)[8:]
    return _HEADER.pack(_HEADER_MAGIC, crc32c(body), *fields)


def decode_header(data: Buffer, ledger: int) -> Layout:
    """Read it back. Raises DataCorrupt, FormatUnsupported."""
    if len(data) != HEADER_SIZE:
        raise _corrupt(ledger, f"its header is {len(data)} bytes short or long")
    magic, crc, version, block_bytes, found, size, footer_size, flags = _HEADER.unpack(data)
    if magic != _HEADER_MAGIC or crc != crc32c(memoryview(data)[8:]):
        raise _corrupt(ledger, "its header does not match its checksum")
    if version != VERSION:
        raise FormatUnsupported(
            f"the object of ledger {ledger} has version {version}, this Headrace reads {VERSION}:"
            " start a newer one",
            ledger=ledger,
            version=version,
        )
    if found != ledger:
        raise _corrupt(ledger, f"it holds ledger {found}")
    return Layout(ledger, size, footer_size, bool(flags & _HAS_FOOTER), block_bytes)


def encode_tail(layout: Layout, crcs: array[int], footer: Buffer) -> bytes:
    """Checksums and trailer: what lies behind the footer."""
    assert len(crcs) == layout.block_count, "each block has its checksum"
    index = Struct(f"<{len(crcs) + 1}I").pack(*crcs, footer_crc(layout.ledger, footer))
    return index + _TRAILER.pack(
        _TRAILER_MAGIC, crc32c(index), len(index), layout.ledger & 2**32 - 1
    )


def decode_tail(data: Buffer, layout: Layout) -> array[int]:
    """The checksums, the footer's last. Raises DataCorrupt."""
    view = memoryview(data)
    if len(view) != layout.tail_size:
        raise _corrupt(layout.ledger, "it is cut short")
    index = view[:-TRAILER_SIZE]
    magic, crc, size, ledger = _TRAILER.unpack(view[-TRAILER_SIZE:])
    if (
        magic != _TRAILER_MAGIC
        or size != len(index)
        or crc != crc32c(index)
        or ledger != layout.ledger & 2**32 - 1
    ):
        raise _corrupt(layout.ledger, "its checksums do not match their own")
    return array("I", Struct(f"<{len(index) // 4}I").unpack(index))


def _corrupt(ledger: int, problem: str) -> DataCorrupt:
    return DataCorrupt(
        f"the object of ledger {ledger} is damaged ({problem}): the records in it are not served;"
        " restore the object from a backup or an older version",
        ledger=ledger,
    )
