"""The segments: one file of raw bytes per ledger, written through the page cache.

Invariants: knows files and positions, not groups or the WAL. A segment is never trusted beyond the
length that a checkpoint or the WAL records. Small appends wait in the write buffer; a checkpoint
calls `flush_all` first. At most `open_max` files are open; the second-chance algorithm chooses the
one to close, so that a hit costs one attribute write.
"""

from __future__ import annotations

import re
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.errors import DataCorrupt
from headrace.runtime.disk import (
    CREATE,
    CREATE_EMPTY,
    READ_ONLY,
    READ_WRITE,
    Disk,
    SystemDisk,
    read_fully,
    write_fully,
)
from headrace.runtime.file_bytes import FileBytes
from headrace.storage.files import segment_write_buffer
from headrace.storage.files.format import FOOTER_HEAD, decode_footer, encode_footer
from headrace.storage.files.segment_write_buffer import SegmentWriteBuffer
from headrace.storage.ledger import FOOTER_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.storage.files.group import Ledger
    from headrace.storage.ledger import Buffer

_LEDGER_FOLDER: Final = re.compile(r"[0-9a-f]{2}")
_LEDGER_FILE: Final = re.compile(r"[0-9a-f]{16}\.")


class Segments:
    """The files under `ledgers/`."""

    def __init__(self, disk: Disk, folder: str, open_max: int) -> None:
        self._disk = disk
        self._folder = f"{folder}/ledgers"
        self._open_max = open_max
        self._open: deque[Ledger] = deque()
        self._write_buffer = SegmentWriteBuffer()
        self.dirty: dict[int, Ledger] = {}
        """Written since the last checkpoint began."""
        self.unsynced_folders: dict[str, None] = {self._folder: None}
        """Folders with new names since the last checkpoint began; initially the root, because files
        created by a killed process exist there, but may not be durable."""
        self.unsynced_footers: dict[int, None] = {}
        self.forgotten: list[int] = []
        """Deleted ledgers whose files still exist."""

    def path(self, ledger: int) -> str:
        """The path of the ledger's segment."""
        return f"{self._folder}/{ledger & 0xFF:02x}/{ledger:016x}.ledger"

    def footer_path(self, ledger: int) -> str:
        """The path of the ledger's footer, once it is sealed."""
        return f"{self._folder}/{ledger & 0xFF:02x}/{ledger:016x}.footer"

    def write(self, ledger: Ledger, data: Buffer, position: int) -> None:
        """Write `data`, or buffer it if it is small. Raises OSError; part may be written."""
        if len(data) < segment_write_buffer.SMALL_BYTES:
            self._write_buffer.add(ledger, bytes(data), position)
            run = ledger.buffered
            if run is not None and run.size >= segment_write_buffer.RUN_BYTES_MAX:
                self.flush(ledger)
            while (due := self._write_buffer.due()) is not None:
                self.flush(due)
            return
        self.flush(ledger)
        self._write(ledger, data, position)

    def flush(self, ledger: Ledger) -> None:
        """Write the ledger's buffered bytes. Raises OSError; then they stay buffered."""
        run = ledger.buffered
        if run is not None:
            self._write(ledger, run.joined(), run.start)
            self._write_buffer.drop(ledger)

    def flush_all(self) -> None:
        """Write all buffered bytes. Raises OSError."""
        for ledger in self._write_buffer.all():
            self.flush(ledger)

    def discard_failed(self, ledger: Ledger) -> None:
        """Discard buffered bytes after the ledger's end, whose append has failed."""
        self._write_buffer.discard_after(ledger, ledger.end)

    def _write(self, ledger: Ledger, data: Buffer, position: int) -> None:
        fd = ledger.fd
        if fd < 0:
            fd = self._open_segment(ledger)
        ledger.is_recent = True
        if ledger.dirty_from < 0:
            self._mark_dirty(ledger, position)
        if self._disk.pwrite(fd, data, position) != len(data):
            write_fully(self._disk, fd, data, position)

    def write_parts(
        self, ledger: Ledger, parts: Sequence[Buffer], position: int, size: int
    ) -> None:
        """Like write, for many contiguous parts: saves joining them."""
        self.flush(ledger)
        fd = ledger.fd
        if fd < 0:
            fd = self._open_segment(ledger)
        ledger.is_recent = True
        if ledger.dirty_from < 0:
            self._mark_dirty(ledger, position)
        if self._disk.pwritev(fd, parts, position) != size:
            write_fully(self._disk, fd, b"".join(parts), position)

    def read_cached(self, ledger: Ledger, position: int, size: int) -> Buffer | None:
        """Exactly `size` bytes if they are cached. Raises OSError."""
        kept = self.buffered(ledger, position, size)
        size -= len(kept)
        if not size:
            return kept
        buffer = bytearray(size)
        if self._disk.pread_cached(self._descriptor(ledger), buffer, position) != size:
            return None
        return buffer + kept if kept else buffer

    def buffered(self, ledger: Ledger, position: int, size: int) -> bytes:
        """The part of these bytes that is still buffered: the last of them, or none."""
        run = ledger.buffered
        if run is None or position + size <= run.start:
            return b""
        return run.joined()[max(0, position - run.start) : position + size - run.start]

    def locate_cached(self, ledger: Ledger, position: int, size: int) -> FileBytes | None:
        """Exactly `size` bytes as a file range, if they are cached. Raises OSError."""
        run = ledger.buffered
        if run is not None and position + size > run.start:
            return None
        if not self._disk.is_cached(self._descriptor(ledger), size, position):
            return None
        return FileBytes(partial(self._descriptor, ledger), position, size)

    def whole_file(self, ledger: Ledger) -> str | None:
        """The path at which another process finds all bytes; None while some are buffered."""
        if ledger.buffered is not None or not isinstance(self._disk, SystemDisk):
            return None
        return self.path(ledger.id)

    def _descriptor(self, ledger: Ledger) -> int:
        ledger.is_recent = True
        return ledger.fd if ledger.fd >= 0 else self._open_segment(ledger)

    def read(self, ledger: int, position: int, size: int) -> bytes:
        """Like read_cached, from the disk; opens the file again, so it works in any thread."""
        fd = self._disk.open(self.path(ledger), READ_ONLY)
        try:
            return read_fully(self._disk, fd, size, position)
        finally:
            self._disk.close(fd)

    def size(self, ledger: int) -> int:
        """The size of the file, 0 if there is none."""
        try:
            fd = self._disk.open(self.path(ledger), READ_ONLY)
        except FileNotFoundError:
            return 0
        try:
            return self._disk.size(fd)
        finally:
            self._disk.close(fd)

    def cut(self, ledger: Ledger) -> None:
        """Truncate the segment at the ledger's end."""
        fd = ledger.fd if ledger.fd >= 0 else self._open_segment(ledger)
        self._disk.truncate(fd, ledger.end)
        if ledger.dirty_from < 0:
            self._mark_dirty(ledger, ledger.end)

    def open_written(self, ledger: int) -> int | None:
        """Open a segment to sync it; None if it was deleted. For any thread. Raises OSError."""
        try:
            return self._disk.open(self.path(ledger), READ_WRITE)
        except FileNotFoundError:
            return None

    def sync(self, path: str) -> None:
        """Sync a file, unless it was deleted. For any thread. Raises OSError."""
        try:
            fd = self._disk.open(path, READ_WRITE)
        except FileNotFoundError:
            return
        try:
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)

    def open_empty(self, ledger: Ledger) -> int:
        """Open the segment of an empty ledger, for a writer that syncs it itself with `sync_new`.
        Raises OSError."""
        fd = self._open_new(self.path(ledger.id), CREATE_EMPTY)
        ledger.has_file = True
        return fd

    def sync_new(self, ledger: int, fd: int) -> None:
        """Make a new segment and its name durable. For any thread. Raises OSError."""
        self._disk.fdatasync(fd)
        self._disk.sync_folder(self.path(ledger).rpartition("/")[0])
        self._disk.sync_folder(self._folder)

    def write_footer(self, ledger: int, end: int, footer: Buffer) -> None:
        """Write the footer beside the segment, without a sync. Raises OSError."""
        fd = self._open_new(self.footer_path(ledger), CREATE_EMPTY)
        try:
            write_fully(self._disk, fd, encode_footer(ledger, end, footer), 0)
        finally:
            self._disk.close(fd)
        self.unsynced_footers[ledger] = None

    def read_footer(self, ledger: int, end: int) -> bytes:
        """The footer passed to `seal`. Raises DataCorrupt."""
        path = self.footer_path(ledger)
        try:
            fd = self._disk.open(path, READ_ONLY)
        except FileNotFoundError:
            raise DataCorrupt(
                f"{path} is missing: restore it from a backup", path=path, ledger=ledger
            ) from None
        try:
            size = FOOTER_HEAD.size + FOOTER_BYTES_MAX + 1
            data = read_fully(self._disk, fd, min(size, self._disk.size(fd)), 0)
        finally:
            self._disk.close(fd)
        return decode_footer(data, ledger, end, path)

    def forget(self, ledger: Ledger) -> None:
        """The ledger was deleted: `unlink_forgotten` deletes its files."""
        self.drop_written(ledger)
        self.unsynced_footers.pop(ledger.id, None)
        self.forgotten.append(ledger.id)

    def drop_written(self, ledger: Ledger) -> None:
        """Discard the ledger's buffered and unsynced bytes."""
        self.close(ledger)
        self._write_buffer.drop(ledger)
        self.dirty.pop(ledger.id, None)

    def unlink_forgotten(self) -> None:
        """Delete the files of deleted ledgers; for any thread. Otherwise recovery does it."""
        while self.forgotten:
            ledger = self.forgotten.pop()
            for path in (self.path(ledger), self.footer_path(ledger)):
                try:
                    self._disk.unlink(path)
                except OSError:  # already deleted, or left to recovery, which removes such files
                    continue

    def remove_unknown(self, known: dict[int, Ledger]) -> int:
        """Remove the files of ledgers that are not `known` and say how many there were.

        Files with other names than those of ledgers are not ours, and stay.
        """
        count = 0
        for folder in self._disk.list(self._folder):
            if _LEDGER_FOLDER.fullmatch(folder) is None:
                continue
            for name in self._disk.list(f"{self._folder}/{folder}"):
                if _LEDGER_FILE.match(name) is None:
                    continue
                ledger = known.get(int(name[:16], 16))
                if ledger is None or (name.endswith(".footer") and not ledger.is_sealed):
                    self._disk.unlink(f"{self._folder}/{folder}/{name}")
                    count += 1
        return count

    def close(self, ledger: Ledger) -> None:
        """Close its descriptor, if it has one."""
        if ledger.fd >= 0:
            self._disk.close(ledger.fd)
            ledger.fd = -1
            self._open.remove(ledger)

    def close_all(self) -> None:
        """Close all descriptors."""
        for ledger in self._open:
            self._disk.close(ledger.fd)
            ledger.fd = -1
        self._open.clear()

    def _mark_dirty(self, ledger: Ledger, position: int) -> None:
        ledger.dirty_from = position
        self.dirty[ledger.id] = ledger

    def _open_segment(self, ledger: Ledger) -> int:
        while len(self._open) >= self._open_max:
            oldest = self._open.popleft()
            if oldest.is_recent:
                oldest.is_recent = False
                self._open.append(oldest)
            else:
                self._disk.close(oldest.fd)
                oldest.fd = -1
        path = self.path(ledger.id)
        ledger.fd = (
            self._disk.open(path, CREATE) if ledger.has_file else self._open_new(path, CREATE)
        )
        ledger.has_file = True
        self._open.append(ledger)
        return ledger.fd

    def _open_new(self, path: str, flags: int) -> int:
        parent = path.rpartition("/")[0]
        try:
            fd = self._disk.open(path, flags)
        except FileNotFoundError:
            if self._disk.make_folder(parent):
                self.unsynced_folders[self._folder] = None
            fd = self._disk.open(path, flags)
        self.unsynced_folders[parent] = None
        return fd
