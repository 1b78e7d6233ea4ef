"""Checkpoints: record what the segments durably contain, so that older WAL files can be recycled.

Invariants: a snapshot is taken in the loop's thread (without waiting), written in another, and
completed in the loop's thread. The order matters: segments, footers and their folders first; then
the checkpoint file (temporary name, sync, rename, sync of the folder); only then are WAL files
recycled. A segment or footer whose sync failed is rewritten from the WAL before it is synced again:
after a failed sync the page cache may have lost data.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import DataCorrupt
from headrace.runtime.disk import (
    CREATE_EMPTY,
    READ_ONLY,
    READ_WRITE,
    Disk,
    read_fully,
    write_fully,
)
from headrace.storage.files.format import (
    APPEND,
    SEAL,
    Checkpoint,
    LedgerRow,
    decode_checkpoint,
    encode_checkpoint,
    encode_footer,
)
from headrace.storage.files.group import CLEAN, Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.storage.files.group import Catalog
    from headrace.storage.files.segments import Segments
    from headrace.storage.files.wal_reader import WalReader


SYNCED_TOGETHER = 64
"""Segments under writeback at once; each uses a descriptor."""
WRITTEN_TOGETHER = 8 * 1024 * 1024
"""Bytes under writeback at once. A sync of the WAL, and with it a producer, waits for all earlier
writes to the disk."""


class _Part(NamedTuple):
    """The bytes of a segment that were written since the last checkpoint."""

    ledger: Ledger
    start: int
    end: int


class Snapshot:
    """The state that one checkpoint covers."""

    __slots__ = (
        "dirty",
        "dirty_from",
        "folders",
        "footers",
        "next_ledger",
        "rows",
        "sequence",
        "wal_number",
    )

    def __init__(
        self,
        segments: Segments,
        catalog: Catalog,
        sequence: int,
        wal_number: int,
    ) -> None:
        self.sequence = sequence
        self.wal_number = wal_number
        self.next_ledger = catalog.next_ledger
        # Tuples, to be sorted and packed in the thread: 1.5 ms for 10,000 ledgers.
        self.rows = [
            (ledger.id, ledger.readable, ledger.is_sealed) for ledger in catalog.ledgers.values()
        ]
        self.dirty = segments.dirty
        self.dirty_from = {ledger.id: ledger.dirty_from for ledger in self.dirty.values()}
        self.folders = segments.unsynced_folders
        self.footers = segments.unsynced_footers
        segments.dirty = {}
        segments.unsynced_folders = {}
        segments.unsynced_footers = {}
        for ledger in self.dirty.values():
            ledger.dirty_from = CLEAN

    def mark_unsynced(self, segments: Segments) -> None:
        """The checkpoint failed: mark what it should have synced as unsynced again."""
        for ledger in self.dirty.values():
            ledger.dirty_from = self.dirty_from[ledger.id]
        segments.dirty = {**self.dirty, **segments.dirty}
        for forgotten in segments.forgotten:
            segments.dirty.pop(forgotten, None)
        segments.unsynced_folders = {**self.folders, **segments.unsynced_folders}
        segments.unsynced_footers = {**self.footers, **segments.unsynced_footers}


class CheckpointWriter:
    """Writes the `checkpoint` file of a folder. Not thread-safe."""

    def __init__(self, disk: Disk, folder: str, segments: Segments, reader: WalReader) -> None:
        self._disk = disk
        self._folder = folder
        self._segments = segments
        self._reader = reader
        self._doubtful_footers: dict[int, None] = {}
        """Ledgers with a footer whose last sync failed."""

    def write(self, snapshot: Snapshot) -> None:
        """Make everything in `snapshot` durable, then the checkpoint itself.

        Raises OSError: then the previous checkpoint is still valid, and failed syncs are marked.
        """
        segments = self._segments
        lengths = {ledger: length for ledger, length, _ in snapshot.rows}
        self._rewrite(
            [ledger for ledger in snapshot.dirty.values() if ledger.must_rewrite], lengths
        )
        self._rewrite_footers(set(self._doubtful_footers) & set(snapshot.footers))
        for together in _parts(snapshot, lengths):
            self._sync_segments(together)
        for number in snapshot.footers:
            self._doubtful_footers[number] = None
            segments.sync(segments.footer_path(number))
            del self._doubtful_footers[number]
        for folder in snapshot.folders:
            self._disk.sync_folder(folder)
        rows = tuple(LedgerRow(*row) for row in sorted(snapshot.rows))
        write_checkpoint(
            self._disk,
            self._folder,
            Checkpoint(snapshot.wal_number, snapshot.sequence, snapshot.next_ledger, rows),
        )

    def _sync_segments(self, parts: Sequence[_Part]) -> None:
        """Sync some segments: writeback starts for all of them before the first fdatasync."""
        disk = self._disk
        opened: list[tuple[Ledger, int | None]] = []
        try:
            for ledger, start, end in parts:
                with _doubt(ledger):
                    fd = self._segments.open_written(ledger.id)
                opened.append((ledger, fd))
                if fd is not None:
                    with _doubt(ledger):
                        self._write_back(fd, start, end)
            for ledger, fd in opened:
                with _doubt(ledger):
                    if fd is not None:
                        disk.fdatasync(fd)
                ledger.must_rewrite = False
        finally:
            for _, fd in opened:
                if fd is not None:
                    disk.close(fd)

    def _write_back(self, fd: int, start: int, end: int) -> None:
        """Start writeback of a segment; at most WRITTEN_TOGETHER bytes are under way at once."""
        piece = WRITTEN_TOGETHER // 2
        former = start
        while end - start > piece:
            self._disk.write_back(fd, former, start + piece - former)
            former, start = start, start + piece
        self._disk.begin_sync(fd)

    def _rewrite_footers(self, wanted: set[int]) -> None:
        """Rewrite footers from the WAL, which is retained until they are durable."""
        if not wanted:
            return
        former = read_checkpoint(self._disk, self._folder)
        for frame in self._reader.frames(former.wal_number, former.sequence):
            for entry in frame.entries():
                if entry.kind != SEAL or entry.ledger not in wanted:
                    continue
                try:
                    fd = self._disk.open(self._segments.footer_path(entry.ledger), READ_WRITE)
                except FileNotFoundError:
                    continue  # deleted since
                try:
                    footer = encode_footer(entry.ledger, entry.position, entry.payload)
                    write_fully(self._disk, fd, footer, 0)
                finally:
                    self._disk.close(fd)

    def _rewrite(self, ledgers: list[Ledger], lengths: dict[int, int]) -> None:
        """Rewrite, from the WAL, what failed syncs may have lost from the segments.

        What the previous checkpoint covers was synced then and is left alone: no recovery could
        write it again.
        """
        if not ledgers:
            return
        wanted = {ledger.id for ledger in ledgers}
        former = read_checkpoint(self._disk, self._folder)
        vouched = {row.ledger: row.length for row in former.ledgers if row.ledger in wanted}
        fds = {
            ledger: self._disk.open(self._segments.path(ledger), READ_WRITE) for ledger in wanted
        }
        try:
            for frame in self._reader.frames(former.wal_number, former.sequence):
                for entry in frame.entries():
                    if entry.kind != APPEND or entry.ledger not in wanted:
                        continue
                    skipped = max(0, vouched.get(entry.ledger, 0) - entry.position)
                    part = entry.payload[skipped : max(0, lengths[entry.ledger] - entry.position)]
                    if len(part):
                        position = entry.position + skipped
                        write_fully(self._disk, fds[entry.ledger], part, position)
        finally:
            for fd in fds.values():
                self._disk.close(fd)


def _parts(snapshot: Snapshot, lengths: Mapping[int, int]) -> Iterator[list[_Part]]:
    """Divide the dirty segments into lists that are synced together."""
    together: list[_Part] = []
    total = 0
    for ledger in snapshot.dirty.values():
        start = snapshot.dirty_from[ledger.id]
        end = lengths.get(ledger.id, start)  # a deleted ledger has no length
        size = max(0, end - start)
        if together and (len(together) == SYNCED_TOGETHER or total + size > WRITTEN_TOGETHER):
            yield together
            together, total = [], 0
        together.append(_Part(ledger, start, end))
        total += size
    if together:
        yield together


@contextmanager
def _doubt(ledger: Ledger) -> Iterator[None]:
    """Mark a segment whose sync fails: the page cache may have lost data."""
    try:
        yield
    except OSError:
        ledger.must_rewrite = True
        raise


def write_checkpoint(disk: Disk, folder: str, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint file; it is durable on return. Raises OSError."""
    write_durable_file(disk, folder, "checkpoint", encode_checkpoint(checkpoint))


def write_durable_file(disk: Disk, folder: str, name: str, data: bytes) -> None:
    """Replace a file of `folder` atomically; it is durable on return. Raises OSError."""
    temporary = f"{folder}/{name}.tmp"
    fd = disk.open(temporary, CREATE_EMPTY)
    try:
        write_fully(disk, fd, data, 0)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, f"{folder}/{name}")
    disk.sync_folder(folder)


def read_checkpoint(disk: Disk, folder: str) -> Checkpoint:
    """Decode the checkpoint file. Raises DataCorrupt if it is missing or corrupt."""
    path = f"{folder}/checkpoint"
    try:
        fd = disk.open(path, READ_ONLY)
    except FileNotFoundError:
        raise DataCorrupt(
            f"{path} is missing, so the ledgers' lengths are unknown; restore the folder "
            "from a backup",
            path=path,
        ) from None
    try:
        return decode_checkpoint(read_fully(disk, fd, disk.size(fd), 0), path)
    finally:
        disk.close(fd)
