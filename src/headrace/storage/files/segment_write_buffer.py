"""Buffers small appends in memory and writes them to the segments in larger batches.

Invariants: knows bytes and positions, not files. The WAL contains everything buffered here, so a
crash loses nothing: recovery replays it into the segments. Readers check the buffer, too.
For a broker with many partitions, one system call per small append would be the largest cost (2.5
of 3.4 us per append to 100 ledgers, 8.6 of 9.7 us to 2,000, whose files do not all stay open). The
bytes buffered for a ledger are one contiguous run up to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.storage.files.group import Ledger

SMALL_BYTES = 8 << 10
"""Runs shorter than this are buffered; larger ones are written directly."""
RUN_BYTES_MAX = 64 << 10
"""Limit per ledger; a ledger that reaches it is written."""
BUFFERED_BYTES_MAX = 8 << 20
"""Limit for all ledgers: less than the disk reserve."""
BUFFERED_LEDGERS_MAX = 4_096
"""A checkpoint writes them all in one turn of the loop, which takes at most 40 ms."""


class BufferedRun:
    """The run of buffered bytes at the end of one ledger, not yet in its segment."""

    __slots__ = ("parts", "size", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.size = 0
        self.parts: list[bytes] = []

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self.start + self.size

    def joined(self) -> bytes:
        """All buffered bytes; the parts are joined once."""
        if len(self.parts) > 1:
            self.parts = [b"".join(self.parts)]
        return self.parts[0]


class SegmentWriteBuffer:
    """The buffered runs of all ledgers, oldest first."""

    __slots__ = ("_bytes", "_ledgers")

    def __init__(self) -> None:
        self._ledgers: dict[int, Ledger] = {}
        self._bytes = 0

    def add(self, ledger: Ledger, data: bytes, position: int) -> None:
        """Buffer `data`, which starts at the ledger's end."""
        run = ledger.buffered
        if run is None:
            run = ledger.buffered = BufferedRun(position)
            self._ledgers[ledger.id] = ledger
        assert position == run.start + run.size, "the bytes buffered for a ledger are contiguous"
        run.parts.append(data)
        run.size += len(data)
        self._bytes += len(data)

    def due(self) -> Ledger | None:
        """A ledger to write now because a limit is exceeded, or None."""
        if self._bytes <= BUFFERED_BYTES_MAX and len(self._ledgers) <= BUFFERED_LEDGERS_MAX:
            return None
        return next(iter(self._ledgers.values()), None)

    def all(self) -> list[Ledger]:
        """The ledgers with buffered bytes."""
        return list(self._ledgers.values())

    def drop(self, ledger: Ledger) -> None:
        """Discard the ledger's buffered bytes: written, or no longer needed."""
        run = ledger.buffered
        if run is not None:
            self._bytes -= run.size
            del self._ledgers[ledger.id]
            ledger.buffered = None

    def discard_after(self, ledger: Ledger, end: int) -> None:
        """Discard bytes after `end`: their append has failed, and others may take their place."""
        run = ledger.buffered
        if run is None or run.end <= end:
            return
        start, data = run.start, run.joined()
        self.drop(ledger)
        if end > start:
            self.add(ledger, data[: end - start], start)
