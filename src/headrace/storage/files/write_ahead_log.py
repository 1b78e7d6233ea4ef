"""The write-ahead log: numbered files of frames, one after the other.

Invariants: knows files and offsets, not what a frame means. A file's number is the
generation of its frames, so what an earlier life left in a recycled file is never taken for data.
How it works: blocks that were written once make a later fdatasync cheap (82 us against 240 us
here: no extent has to be converted), so files are filled with zeros by a thread ahead of time and
recycled by renaming. A frame that follows a sync begins at the next sector, so that a torn write
never touches what was durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.runtime.disk import CREATE, CREATE_EMPTY, Buffer, Disk, write_fully
from headrace.storage.files.format import SECTOR_BYTES

if TYPE_CHECKING:
    from headrace.storage.files.disk_reserve import DiskReserve

_ZEROS: Final = bytes(1 << 20)
SMALL_FILE_BYTES: Final = 4 << 20
"""A file of this size may come out of the reserve: with it the store opens on a full disk."""


def wal_path(folder: str, number: int) -> str:
    """The path of WAL file `number`."""
    return f"{folder}/wal/{number:016x}.wal"


class WalFile:
    """One file of the WAL."""

    __slots__ = ("fd", "last_sequence", "number", "path", "size")

    def __init__(self, number: int, path: str, fd: int, size: int) -> None:
        self.number = number
        self.path = path
        self.fd = fd
        self.size = size
        self.last_sequence = 0
        """Of the frames in it; 0 while there are none."""


class WriteAheadLog:
    """The file that is written, the ones before it, and the spare that comes next."""

    def __init__(self, disk: Disk, folder: str, file_bytes: int, room: DiskReserve) -> None:
        self._disk = disk
        self._room = room
        self._folder = folder
        self.file_bytes = file_bytes
        self.current: WalFile | None = None
        self.offset = 0
        self.next_number = 1
        self.finished: list[WalFile] = []
        """Full files whose frames no checkpoint covers yet, oldest first."""
        self.spares: list[WalFile] = []
        self.unsynced: dict[int, WalFile] = {}
        """Files with frames that no sync has covered, by number."""
        self.has_sync_begun = False
        self.rolls = 0
        self.rolled_at = 0
        """The sequence of the first frame in the current file."""

    @property
    def number(self) -> int:
        """The current file's number: the generation of its frames."""
        assert self.current is not None, "an open WAL has a current file"
        return self.current.number

    def has_room(self, size: int) -> bool:
        """Whether a frame of `size` bytes fits into the current file."""
        current = self.current
        return current is not None and self.next_start() + size <= current.size

    def roll(self, size: int) -> None:
        """Go on in the spare, or in a new file if there is none that takes `size` bytes.

        Raises OSError; then nothing has changed.
        """
        if self.spares and self.spares[0].size >= size:
            following = self.spares.pop(0)
        else:
            # A large frame's file has a higher number than the spares: they are used no more.
            for spare in self.spares:
                self.remove(spare)
            self.spares.clear()
            following = self.make_file(max(size, self.file_bytes), is_zeroed=False)
        if self.current is not None:
            self.finished.append(self.current)
        self.current = following
        self.offset = 0
        self.has_sync_begun = False
        self.rolls += 1

    def start_afresh(self, fresh: WalFile) -> None:
        """Go on in `fresh`: a checkpoint has made all other files needless."""
        self.finished = []
        self.spares = []
        self.unsynced.clear()
        self.current = fresh
        self.offset = 0
        self.has_sync_begun = False

    def write(self, head: bytes, body: list[Buffer], size: int, sequence: int) -> int:
        """Write a frame (`size` bytes in all) and say where it begins.

        Raises OSError: then a part of it, or all, may be there.
        """
        current = self.current
        assert current is not None, "an open WAL has a current file"
        start = self.next_start()
        assert start + size <= current.size, "the caller has made room"
        disk = self._disk
        if size < JOIN_BYTES_MAX or len(body) >= PARTS_MAX:
            frame = head + body[0] if len(body) == 1 else b"".join((head, *body))
            written = disk.pwrite(current.fd, frame, start)
        else:
            written = disk.pwritev(current.fd, [head, *body], start)
        if written != size:
            write_fully(disk, current.fd, b"".join((head, *body)), start)
        self.offset = start + size
        self.has_sync_begun = False
        if current.last_sequence == 0:
            self.rolled_at = sequence
        current.last_sequence = sequence
        self.unsynced[current.number] = current
        return start

    def spoil(self, start: int) -> None:
        """Make the frame that begins there invalid in memory, as well as a failing disk allows.

        A process that dies before the next checkpoint then leaves no frame of which no
        caller knows. (What a loss of power leaves of it is undefined.)
        """
        current = self.current
        assert current is not None, "an open WAL has a current file"
        try:
            self._disk.pwrite(current.fd, bytes(SECTOR_BYTES // 64), start)
        except OSError:
            pass  # recovery may bring the frame back: it was never acknowledged

    def next_start(self) -> int:
        """Where the next frame begins in the current file."""
        if self.has_sync_begun:
            return -(-self.offset // SECTOR_BYTES) * SECTOR_BYTES
        return self.offset

    def begin_sync(self) -> list[WalFile]:
        """The files to sync so that all frames written so far are durable, oldest first."""
        files = list(self.unsynced.values())
        self.unsynced.clear()
        self.has_sync_begun = True
        return files

    def spares_max(self, bytes_max: int) -> int:
        """How many files to keep for reuse: `bytes_max` on a disk that is large enough."""
        return max(1, min(bytes_max, self._room.share()) // self.file_bytes)

    def make_file(self, size: int, *, is_zeroed: bool) -> WalFile:
        """Make the next file, its name and its size durable. Raises OSError."""
        number = self.take_number()
        return self.make_numbered_file(number, size, is_zeroed=is_zeroed)

    def take_number(self) -> int:
        """A number that no file has had."""
        number = self.next_number
        self.next_number += 1
        return number

    def make_numbered_file(self, number: int, size: int, *, is_zeroed: bool) -> WalFile:
        """Like make_file; for any thread. A file that could not be made is removed again."""
        disk = self._disk
        if size > SMALL_FILE_BYTES:
            self._room.require(size)
        path = wal_path(self._folder, number)
        fd = disk.open(path, CREATE_EMPTY)
        try:
            disk.allocate(fd, size)
            if is_zeroed:
                for position in range(0, size, len(_ZEROS)):
                    zeros = memoryview(_ZEROS)[: size - position]
                    write_fully(disk, fd, zeros, position)
            disk.fdatasync(fd)
            disk.sync_folder(f"{self._folder}/wal")
        except OSError:
            disk.close(fd)
            disk.unlink(path)
            raise
        return WalFile(number, path, fd, size)

    def recycle(self, old: WalFile, number: int) -> WalFile:
        """Give a file that no recovery needs its new number; for any thread. Raises OSError."""
        path = wal_path(self._folder, number)
        self._disk.rename(old.path, path)
        old.path = path  # at once: where the sync fails, this is the name that it has
        self._disk.sync_folder(f"{self._folder}/wal")
        return WalFile(number, path, old.fd, old.size)

    def remove(self, old: WalFile) -> None:
        """Remove and close a file that no recovery needs; for any thread. Raises OSError."""
        try:
            self._disk.unlink(old.path)
        finally:
            self._disk.close(old.fd)

    def open_old(self, number: int) -> WalFile:
        """A file that recovery found."""
        path = wal_path(self._folder, number)
        fd = self._disk.open(path, CREATE)
        return WalFile(number, path, fd, self._disk.size(fd))

    def close(self) -> None:
        """Give all descriptors back."""
        for file in (*self.finished, *self.spares, self.current):
            if file is not None:
                self._disk.close(file.fd)
        self.finished.clear()
        self.spares.clear()
        self.current = None


JOIN_BYTES_MAX: Final = 32 << 10
"""Below this, joining a frame and one pwrite are cheaper than a pwritev of its parts."""
PARTS_MAX: Final = 1_000
"""Linux takes at most 1,024 parts."""
