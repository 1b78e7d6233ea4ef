"""Iterates over the batches of a sealed ledger, run by run, for compaction; without I/O.

Invariants: pure. Determines what to read next, and verifies what was read: the CRC and placement of
each batch, and the end of the ledger. Used by both the broker and the compaction process.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.log.compaction.rounds import BatchRun
from headrace.log.offset_index import OffsetIndex
from headrace.log.segment import Segment
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from headrace.records.batch import Buffer

_SIZE: Final = Struct(">I")


class SealedRuns:
    """A reader's progress in the ledger."""

    def __init__(self, segment: Segment, end_position: int, read_bytes: int) -> None:
        """`segment` has its index loaded, and is not changed. `read_bytes`: read size, unless a
        batch is larger."""
        # A copy: the verified range that readers rely on is not changed.
        aside = Segment(segment.ledger, segment.base_offset, segment.leader_epoch)
        aside.end_offset, aside.index = segment.end_offset, segment.index
        aside.is_compacted = segment.is_compacted
        self._segment = aside
        self._end = end_position
        self._read_bytes = read_bytes
        self._want = read_bytes
        self._offset = segment.base_offset
        self.position = 0
        """The position of the next run."""

    @property
    def size(self) -> int:
        """The number of bytes to read at `position`; 0 at the end. Raises DataCorrupt if the ledger
        ends at another offset."""
        left = self._end - self.position
        if not left and self._offset != self._segment.end_offset:
            raise self._segment.corrupt(
                self.position, f"it ends at offset {self._offset}, too early"
            )
        return min(self._want, left)

    def take(self, data: Buffer) -> BatchRun | None:
        """The next run in the bytes read; None if more bytes are needed. Raises DataCorrupt,
        BatchCorrupt."""
        segment, position, size = self._segment, self.position, self.size
        if len(data) < size:
            raise segment.corrupt(position + len(data), "the ledger is truncated")
        segment.verify_crc(data, position)
        run = BatchRun.of(data)
        if not run.batches:
            if self._want >= self._end - position:
                raise segment.corrupt(position, "a batch extends past the end")
            self._want = max(self._want * 2, read_header(data).size if size >= HEADER_SIZE else 0)
            return None
        offset = self._offset
        for at, header in run.batches:
            if header.base_offset < offset:
                raise segment.corrupt(position + at, f"offset {header.base_offset} is out of order")
            offset = header.last_offset + 1
        at, header = run.batches[-1]
        self._offset, self._want = offset, self._read_bytes
        self.position = position + at + header.size
        return run


def encode_segment(segment: Segment, path: str) -> bytes:
    """The data that another process needs to read the ledger from its file."""
    facts = json.dumps(
        (
            path,
            segment.ledger,
            segment.base_offset,
            segment.end_offset,
            segment.leader_epoch,
            segment.is_compacted,
            segment.end_position,
        )
    ).encode()
    return _SIZE.pack(len(facts)) + facts + segment.index.encode()


def decode_segment(data: bytes) -> tuple[Segment, str]:
    """Decode what `encode_segment` returned."""
    begin = _SIZE.size + _SIZE.unpack_from(data)[0]
    path, ledger, base_offset, end_offset, leader_epoch, is_compacted, end_position = json.loads(
        data[_SIZE.size : begin]
    )
    segment = Segment(LedgerId(ledger), base_offset, leader_epoch)
    segment.end_offset, segment.is_compacted = end_offset, is_compacted
    segment.end_position, segment.index = end_position, OffsetIndex.decode(data[begin:])
    return segment, path
