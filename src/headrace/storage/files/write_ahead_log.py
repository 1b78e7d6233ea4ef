"""The write-ahead log: numbered files of frames.

Invariants: knows files and offsets, not the meaning of frames. A file's number is the generation
of its frames, so old frames in a recycled file are never taken for data.
Blocks that were written before make fdatasync cheap (82 us instead of 240 us, as no extent has to
be converted), so a thread fills files with zeros in advance, and files are recycled by renaming.
The first frame after a sync begins at the next sector, so that a torn write never damages what was
durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.runtime.disk import CREATE, CREATE_EMPTY, Buffer, Disk, write_fully
from headrace.storage.files.format import SECTOR_BYTES

if TYPE_CHECKING:
    from headrace.storage.files.disk_reserve import DiskReserve

_ZEROS: Final = bytes(1 << 20)
SMALL_FILE_BYTES: Final = 4 << 20
"""Files up to this size may use the reserve, so that the store opens on a full disk."""


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
        """The sequence of its last frame; 0 while there is none."""


class WriteAheadLog:
    """The current file, the full ones before it, and the spares for later."""

    def __init__(self, disk: Disk, folder: str, file_bytes: int, room: DiskReserve) -> None:
        self._disk = disk
        self._room = room
        self._folder = folder
        self.file_bytes = file_bytes
        self.current: WalFile | None = None
        self.offset = 0
        self.next_number = 1
        self.finished: list[WalFile] = []
        """Full files with frames not covered by a checkpoint yet, oldest first."""
        self.spares: list[WalFile] = []
        self.unsynced: dict[int, WalFile] = {}
        """Files with unsynced frames, by number."""
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
        """Continue in the spare, or in a new file if no spare is large enough for `size` bytes.

        Raises OSError; nothing has changed then.
        """
        if self.spares and self.spares[0].size >= size:
            following = self.spares.pop(0)
        else:
            # The file of a large frame gets a higher number than the spares, which become useless.
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
        """Continue in `fresh`: a checkpoint has made all other files obsolete."""
        self.finished = []
        self.spares = []
        self.unsynced.clear()
        self.current = fresh
        self.offset = 0
        self.has_sync_begun = False

    def write(self, head: bytes, body: list[Buffer], size: int, sequence: int) -> int:
        """Write a frame of `size` bytes; returns its position.

        Raises OSError; part or all of the frame may have been written.
        """
        current = self.current
        assert current is not None, "an open WAL has a current file"
        start = self.next_start()
        assert start + size <= current.size, "the caller checked that it fits"
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
        """Overwrite the start of the frame at `start`, as far as a failing disk allows.

        A process that dies before the next checkpoint then leaves no frame that was reported as
        failed. (After a power loss, the result is undefined.)
        """
        current = self.current
        assert current is not None, "an open WAL has a current file"
        try:
            self._disk.pwrite(current.fd, bytes(SECTOR_BYTES // 64), start)
        except OSError:
            pass  # recovery may replay the frame, although it was never acknowledged

    def next_start(self) -> int:
        """The position of the next frame in the current file."""
        if self.has_sync_begun:
            return -(-self.offset // SECTOR_BYTES) * SECTOR_BYTES
        return self.offset

    def begin_sync(self) -> list[WalFile]:
        """The files to sync to make all frames written so far durable, oldest first."""
        files = list(self.unsynced.values())
        self.unsynced.clear()
        self.has_sync_begun = True
        return files

    def spares_max(self, bytes_max: int) -> int:
        """The number of files to keep for reuse: `bytes_max`, or less on a small disk."""
        return max(1, min(bytes_max, self._room.share()) // self.file_bytes)

    def make_file(self, size: int, *, is_zeroed: bool) -> WalFile:
        """Create the next file, with durable name and size. Raises OSError."""
        number = self.take_number()
        return self.make_numbered_file(number, size, is_zeroed=is_zeroed)

    def take_number(self) -> int:
        """A number that was never used for a file."""
        number = self.next_number
        self.next_number += 1
        return number

    def make_numbered_file(self, number: int, size: int, *, is_zeroed: bool) -> WalFile:
        """Like make_file; for any thread. On failure the file is removed again."""
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
        """Rename a file that recovery does not need; for any thread. Raises OSError."""
        path = wal_path(self._folder, number)
        self._disk.rename(old.path, path)
        old.path = path  # before the sync: the name is valid even if the sync fails
        self._disk.sync_folder(f"{self._folder}/wal")
        return WalFile(number, path, old.fd, old.size)

    def remove(self, old: WalFile) -> None:
        """Delete and close a file that recovery does not need; for any thread. Raises OSError."""
        try:
            self._disk.unlink(old.path)
        finally:
            self._disk.close(old.fd)

    def open_old(self, number: int) -> WalFile:
        """Open a file found by recovery."""
        path = wal_path(self._folder, number)
        fd = self._disk.open(path, CREATE)
        return WalFile(number, path, fd, self._disk.size(fd))

    def close(self) -> None:
        """Close all files."""
        for file in (*self.finished, *self.spares, self.current):
            if file is not None:
                self._disk.close(file.fd)
        self.finished.clear()
        self.spares.clear()
        self.current = None


JOIN_BYTES_MAX: Final = 32 << 10
"""Below this, joining a frame and one pwrite are cheaper than a pwritev of its parts."""
PARTS_MAX: Final = 1_000
"""Linux accepts at most 1,024 parts."""
