"""Objects in a folder of this machine, read as the files that they are.

Rules of the room: the loop's thread waits for no disk; threads do. Bytes whose block does not match
its checksum are for the other way, `read_ahead`: it reads them again, and reports them.
How it works: what the page cache holds is checked in the loop. A block is read into one buffer that
is used again and again, so its bytes are in the processor's cache when their checksum is made; then
the file's own pages go to the reader. What it does not hold is read and checked in a thread, and
the kernel is asked for what follows, so that who reads in order finds the rest in memory.
"""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING

from headrace.runtime.disk import READ_ONLY, read_fully
from headrace.runtime.file_bytes import FileBytes
from headrace.storage.objects.object_format import HEADER_SIZE, block_crc

if TYPE_CHECKING:
    from array import array
    from concurrent.futures import Executor

    from headrace.runtime.clock import Clock
    from headrace.runtime.disk import Disk
    from headrace.storage.objects.object_format import Layout

OPEN_MAX = 64
"""Files that are kept open, all ledgers together."""
CHECKED_BYTES_MAX = 4 << 20
"""Checked in one turn of the loop: 0.6 ms. More is read in a thread."""
CHECKED_KEPT_NS = 1_000_000_000
CHECKED_KEPT = 64
"""Blocks that were checked lately need not be again: neighbouring reads share one, and consumers
of one partition are often close to each other."""
AHEAD_BYTES = 8 << 20
"""What the kernel is asked to read beyond what a reader wants that it did not hold."""
THREADS = 4
DISK_TIMEOUT_S = 30.0


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
        """Path -> descriptor, from the one that nobody has wanted for longest."""
        self._checked: dict[tuple[str, int], int] = {}
        """(path, block) -> when it was found whole, oldest first."""
        self._block = bytearray()
        self._ahead: dict[str, int] = {}
        """Path -> how far the kernel was asked for it, where memory did not hold all."""
        self._threads: Executor | None = None

    def close(self) -> None:
        """Give all descriptors back."""
        for path in list(self._open):
            self.forget(path)
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def forget(self, path: str) -> None:
        """The file has gone, or is another by now."""
        fd = self._open.pop(path, None)
        if fd is not None:
            self._disk.close(fd)
        self._ahead.pop(path, None)
        for key in [key for key in self._checked if key[0] == path]:
            del self._checked[key]

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

    async def read_from_disk(self, place: Place, position: int, size: int) -> memoryview | None:
        """A copy of them, waiting for the disk; None where they are not whole, or not there."""
        layout = place.layout
        step = layout.block_bytes
        start = position // step * step
        end = min(-(-(position + size) // step) * step, layout.size)
        if end <= start or position + size > layout.size:
            return None
        if self._threads is None:
            self._threads = self._disk.threads("objects", THREADS)
        read = partial(self._read_blocks, place, start, end)
        try:
            async with asyncio.timeout(DISK_TIMEOUT_S):
                data = await asyncio.get_running_loop().run_in_executor(self._threads, read)
        except OSError:  # a time-out, too
            return None
        if data is None:
            return None
        if len(self._ahead) >= OPEN_MAX:
            del self._ahead[next(iter(self._ahead))]
        self._ahead[place.path] = end + AHEAD_BYTES
        return memoryview(data)[position - start : position - start + size]

    # --- the inside --------------------------------------------------------------------------

    def _read_blocks(self, place: Place, start: int, end: int) -> bytes | None:
        """Whole blocks, checked. For any thread, so it opens the file anew. Raises OSError."""
        layout = place.layout
        step = layout.block_bytes
        fd = self._disk.open(place.path, READ_ONLY)
        try:
            self._ask(fd, layout, start, end - start + AHEAD_BYTES)
            data = read_fully(self._disk, fd, end - start, HEADER_SIZE + start)
        finally:
            self._disk.close(fd)
        if len(data) != end - start:
            return None
        view = memoryview(data)
        for at in range(0, end - start, step):
            block = (start + at) // step
            if block_crc(layout.ledger, block, view[at : at + step]) != place.crcs[block]:
                return None
        return data

    def _ask_on(self, place: Place, reached: int) -> None:
        """A reader has come to `reached`: keep the kernel ahead where it reads from the disk."""
        path = place.path
        asked = self._ahead.get(path)
        if asked is None or asked - reached > AHEAD_BYTES // 2 or self._threads is None:
            return
        if asked >= place.layout.size or asked < reached:
            del self._ahead[path]
            return
        self._ahead[path] = asked + AHEAD_BYTES
        self._threads.submit(self._ask_anew, place, asked)

    def _ask_anew(self, place: Place, position: int) -> None:
        """In a thread, for asking may wait, too."""
        try:
            fd = self._disk.open(place.path, READ_ONLY)
        except OSError:
            return
        try:
            self._ask(fd, place.layout, position, AHEAD_BYTES)
        finally:
            self._disk.close(fd)

    @staticmethod
    def _ask(fd: int, layout: Layout, position: int, size: int) -> None:
        size = min(size, layout.size - position)
        os.posix_fadvise(fd, HEADER_SIZE + position, size, os.POSIX_FADV_WILLNEED)

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
                    self._ask_on(place, position + size)
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
