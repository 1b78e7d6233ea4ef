"""One ledger read from its object: its layout and checksums.

Invariants: knows the object's format, not its readers. Opening takes two small requests (header and
checksums) and verifies the object against the ledger chain. Data with a checksum mismatch, the
header included, is requested once more, in case it was corrupted in transit; then the mismatch is
counted, logged and reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt
from headrace.storage.tiering.object_files import ObjectFile
from headrace.storage.tiering.object_format import (
    HEADER_SIZE,
    Layout,
    decode_header,
    decode_tail,
    first_bad_block,
    footer_crc,
)

if TYPE_CHECKING:
    from array import array

    from headrace.storage.tiering.ledger_blob import LedgerBlob

ATTEMPTS = 2


class RemoteLedger:
    """See RangeSource."""

    __slots__ = ("_blob", "_crcs", "_layout", "_place", "ledger", "size")

    is_rebuilt = False
    """See RangeSource."""

    def __init__(self, blob: LedgerBlob, size: int) -> None:
        self.ledger = blob.ledger
        self.size = size
        self._blob = blob
        self._layout: Layout | None = None
        self._crcs: array[int] | None = None
        self._place: ObjectFile | None = None

    @property
    def is_open(self) -> bool:
        """Whether its layout was read."""
        return self._crcs is not None

    @property
    def layout(self) -> Layout:
        """Its layout; the ledger is open."""
        assert self._layout is not None
        return self._layout

    @property
    def crcs(self) -> array[int]:
        """The checksums of its blocks, and of its footer; the ledger is open."""
        assert self._crcs is not None
        return self._crcs

    @property
    def place(self) -> ObjectFile | None:
        """Its file, if it is open and in a local folder."""
        return self._place

    @property
    def block_bytes(self) -> int:
        """See RangeSource; the ledger was opened."""
        assert self._layout is not None
        return self._layout.block_bytes

    async def is_whole(self) -> bool:
        """Whether the object has its full length and a valid header and trailer.

        Raises like `open`.
        """
        size = await self._blob.size()
        if size < HEADER_SIZE or size != (await self._read_header()).object_size:
            return False
        await self.open()
        return True

    async def _read_header(self) -> Layout:
        problem: DataCorrupt | None = None
        for _ in range(ATTEMPTS):
            data = await self._blob.get(0, HEADER_SIZE)
            try:
                layout = decode_header(data, self.ledger)
            except DataCorrupt as error:
                problem = error
                continue
            if layout.size == self.size:
                return layout
            problem = self._blob.corrupt(0, f"it holds {layout.size} bytes of {self.size}")
        assert problem is not None
        raise self._blob.counted(problem)

    async def open(self) -> None:
        """Read the layout. Raises StorageUnavailable, DataCorrupt, FormatUnsupported."""
        layout = await self._read_header()
        problem: DataCorrupt | None = None
        for _ in range(ATTEMPTS):
            tail = await self._blob.get(layout.index_at, layout.tail_size)
            try:
                self._crcs, self._layout = decode_tail(tail, layout), layout
                break
            except DataCorrupt as error:
                problem = error
        else:
            assert problem is not None
            raise self._blob.counted(problem)
        path = self._blob.path
        self._place = None if path is None else ObjectFile(path, layout, self._crcs)

    def shut(self) -> None:
        """Release the memory."""
        self._crcs = self._place = None

    async def read_blocks(self, first: int, count: int) -> memoryview:
        """See RangeSource."""
        layout, crcs = self._layout, self._crcs
        if layout is None or crcs is None:
            await self.open()
            layout, crcs = self._layout, self._crcs
        assert layout is not None
        assert crcs is not None
        step = layout.block_bytes
        start = first * step
        size = min(count * step, self.size - start)
        bad = -1
        for _ in range(ATTEMPTS):
            data = await self._blob.get(HEADER_SIZE + start, size)
            self._blob.counters.cold_bytes += size
            bad = first_bad_block(self.ledger, first, step, data, crcs)
            if bad < 0:
                return data
        raise self._blob.counted(self._blob.corrupt(bad * step, "checksum mismatch in a block"))

    async def read_footer(self) -> bytes | None:
        """The footer passed to `seal`; the ledger is open. Raises like `read_blocks`."""
        layout, crcs = self._layout, self._crcs
        assert layout is not None
        assert crcs is not None
        if not layout.has_footer:
            return None
        for _ in range(ATTEMPTS):
            data = await self._blob.get(layout.footer_at, layout.footer_size)
            if footer_crc(self.ledger, data) == crcs[-1]:
                return bytes(data)
        raise self._blob.counted(self._blob.corrupt(self.size, "checksum mismatch in its footer"))
