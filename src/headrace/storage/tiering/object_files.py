"""Objects in a local folder, read as files.

Invariants: runs in the event loop's thread and never waits for a disk: what is not in the page
cache is left to `read_ahead`. So are blocks with a checksum mismatch, which it rereads and reports.
Blocks are read into one reused buffer, so their bytes are in the CPU cache when the checksum is
computed. Then the file's own pages are sent to the reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.runtime.disk import READ_ONLY
from headrace.runtime.file_bytes import FileBytes
from headrace.storage.tiering.object_format import HEADER_SIZE, block_crc

if TYPE_CHECKING:
    from array import array

    from headrace.runtime.clock import Clock
    from headrace.runtime.disk import Disk
    from headrace.storage.tiering.object_format import Layout

OPEN_MAX = 64
"""Limit of open files, for all ledgers together."""
CHECKED_BYTES_MAX = 4 << 20
"""Limit of bytes to verify in one turn of the loop: 0.6 ms. More is read in a thread."""
CHECKED_KEPT_NS = 1_000_000_000
CHECKED_KEPT = 64
"""Recently verified blocks are not verified again: adjacent reads share a block, and consumers of
one partition are often close to each other."""
FURTHER_BYTES = 16 << 20
"""Bytes ahead of a reader that must be cached; more than `read_ahead` has in flight otherwise."""


class ObjectFile:
    """The file of an object, with its layout and checksums."""

    __slots__ = ("crcs", "layout", "path")

    def __init__(self, path: str, layout: Layout, crcs: array[int]) -> None:
        self.path = path
        self.layout = layout
        self.crcs = crcs


class ObjectFiles:
    """The files of all ledgers read from a folder."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._open: dict[str, int] = {}
        """Path -> descriptor, least recently used first."""
        self._checked: dict[tuple[str, int], int] = {}
        """(path, block) -> when it was verified, oldest first."""
        self._block = bytearray()

    def close(self) -> None:
        """Close all files."""
        for path in list(self._open):
            self.forget(path)

    def forget(self, path: str) -> None:
        """The file was deleted or replaced."""
        fd = self._open.pop(path, None)
        if fd is not None:
            self._disk.close(fd)
        for key in [key for key in self._checked if key[0] == path]:
            del self._checked[key]

    def holds_on(self, place: ObjectFile, position: int) -> bool:
        """Whether the file is cached from `position` on, farther than a reader reads ahead."""
        size = min(FURTHER_BYTES, place.layout.size - position)
        try:
            return self._disk.is_cached(self._descriptor(place.path), size, HEADER_SIZE + position)
        except OSError:
            return False

    def locate(self, place: ObjectFile, position: int, size: int) -> FileBytes | None:
        """The ledger's bytes as a range of the object's file, cached and verified.

        Valid in this turn of the loop. None if that cannot be ensured without waiting.
        """
        if not self._are_whole(place, position, size):
            return None
        path = place.path
        return FileBytes(lambda: self._descriptor(path), HEADER_SIZE + position, size)

    def read(self, place: ObjectFile, position: int, size: int) -> bytearray | None:
        """A copy of the bytes, under the same conditions."""
        if not self._are_whole(place, position, size):
            return None
        data = bytearray(size)
        try:
            fd = self._descriptor(place.path)
            found = self._disk.pread_cached(fd, data, HEADER_SIZE + position)
        except OSError:
            return None
        return data if found == size else None

    # --- internal ----------------------------------------------------------------------------

    def _descriptor(self, path: str) -> int:
        fd = self._open.pop(path, -1)
        if fd < 0:
            fd = self._disk.open(path, READ_ONLY)
            while len(self._open) >= OPEN_MAX:
                self._disk.close(self._open.pop(next(iter(self._open))))
        self._open[path] = fd
        return fd

    def _are_whole(self, place: ObjectFile, position: int, size: int) -> bool:
        """Whether these bytes are cached and match their checksums."""
        step = place.layout.block_bytes
        first, end = position // step, -(-(position + size) // step)
        if (end - first) * step > CHECKED_BYTES_MAX or position + size > place.layout.size:
            return False
        try:
            fd = self._descriptor(place.path)
            if self._disk.is_cached(fd, size, HEADER_SIZE + position):
                now_ns = self._clock.now_ns()
                if all(self._is_whole(fd, place, block, now_ns) for block in range(first, end)):
                    return True
        except OSError:
            pass  # `read_ahead` reports the error
        self.forget(place.path)  # the file may have been replaced
        return False

    def _is_whole(self, fd: int, place: ObjectFile, block: int, now_ns: int) -> bool:
        key = (place.path, block)
        if now_ns - self._checked.get(key, -CHECKED_KEPT_NS) < CHECKED_KEPT_NS:
            return True
        layout = place.layout
        step = layout.block_bytes
        size = min(step, layout.size - block * step)
        if len(self._block) < step:
            self._block = bytearray(step)
        data = self._block if size == step else bytearray(size)
        if self._disk.pread_cached(fd, data, HEADER_SIZE + block * step) != size:
            return False
        if block_crc(layout.ledger, block, data) != place.crcs[block]:
            return False
        self._checked.pop(key, None)
        self._checked[key] = now_ns
        if len(self._checked) > CHECKED_KEPT:
            del self._checked[next(iter(self._checked))]
        return True
