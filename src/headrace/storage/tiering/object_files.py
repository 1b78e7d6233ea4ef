"""Objects in a folder of this machine, read as the files that they are.

Invariants: one loop's thread, which never waits for a disk here: what the page cache does
not hold is for the other way, `read_ahead`. Bytes whose block does not match its checksum are for
the other way as well: it reads them again, and reports them.
How it works: a block is read into one buffer that is used again and again, so its bytes are in the
processor's cache when their checksum is made. Then the file's own pages go to the reader.
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
"""Files that are kept open, all ledgers together."""
CHECKED_BYTES_MAX = 4 << 20
"""Checked in one turn of the loop: 0.6 ms. More is read in a thread."""
CHECKED_KEPT_NS = 1_000_000_000
CHECKED_KEPT = 64
"""Blocks that were checked lately need not be again: neighbouring reads share one, and consumers
of one partition are often close to each other."""
FURTHER_BYTES = 16 << 20
"""Of a file that memory holds; more than `read_ahead` has on its way where it does not."""


class Place:
    """Where one object's bytes are, and what their checksums must be."""

    __slots__ = ("crcs", "layout", "path")

    def __init__(self, path: str, layout: Layout, crcs: array[int]) -> None:
        self.path = path
        self.layout = layout
        self.crcs = crcs


class ObjectFiles:
    """The files of all ledgers that are read from a folder."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._disk = disk
        self._clock = clock
        self._open: dict[str, int] = {}
        """Path -> descriptor, from the least recently used."""
        self._checked: dict[tuple[str, int], int] = {}
        """(path, block) -> when it was found whole, oldest first."""
        self._block = bytearray()

    def close(self) -> None:
        """Give all descriptors back."""
        for path in list(self._open):
            self.forget(path)

    def forget(self, path: str) -> None:
        """The file has gone, or is another by now."""
        fd = self._open.pop(path, None)
        if fd is not None:
            self._disk.close(fd)
        for key in [key for key in self._checked if key[0] == path]:
            del self._checked[key]

    def holds_on(self, place: Place, position: int) -> bool:
        """Whether memory holds the file from here on, further than a reader is read ahead for."""
        size = min(FURTHER_BYTES, place.layout.size - position)
        try:
            return self._disk.is_cached(self._descriptor(place.path), size, HEADER_SIZE + position)
        except OSError:
            return False

    def locate(self, place: Place, position: int, size: int) -> FileBytes | None:
        """The ledger's bytes as they lie in the object: they are there, in memory, and whole.

        For this turn of the loop. None where one of that cannot be said without a wait.
        """
        if not self._are_whole(place, position, size):
            return None
        path = place.path
        return FileBytes(lambda: self._descriptor(path), HEADER_SIZE + position, size)

    def read(self, place: Place, position: int, size: int) -> bytearray | None:
        """A copy of them, on the same terms."""
        if not self._are_whole(place, position, size):
            return None
        data = bytearray(size)
        try:
            fd = self._descriptor(place.path)
            found = self._disk.pread_cached(fd, data, HEADER_SIZE + position)
        except OSError:
            return None
        return data if found == size else None

    # --- the inside --------------------------------------------------------------------------

    def _descriptor(self, path: str) -> int:
        fd = self._open.pop(path, -1)
        if fd < 0:
            fd = self._disk.open(path, READ_ONLY)
            while len(self._open) >= OPEN_MAX:
                self._disk.close(self._open.pop(next(iter(self._open))))
        self._open[path] = fd
        return fd

    def _are_whole(self, place: Place, position: int, size: int) -> bool:
        """Whether memory holds these bytes and they match their checksums."""
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
            pass  # the other way says what is wrong
        self.forget(place.path)  # perhaps another file is in its place by now
        return False

    def _is_whole(self, fd: int, place: Place, block: int, now_ns: int) -> bool:
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
