"""The ledger store on one machine's disk.

Invariants: this class implements LedgerStore's contract on top of the folder. Appends go to
`group_commit`, reads to `segments`; checkpoints and recovery from outages run in the task of
`maintenance`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.errors import (
    DataCorrupt,
    FormatUnsupported,
    LedgerSealed,
    LedgerUnknown,
    Rejected,
    StorageUnavailable,
)
from headrace.runtime.disk import Disk, SystemDisk, open_files_limit
from headrace.runtime.randomness import Randomness, SystemRandomness
from headrace.runtime.tasks import Tasks
from headrace.storage.files.bulk_writer import FileBulkWriter
from headrace.storage.files.checkpoint import CheckpointWriter
from headrace.storage.files.disk_reserve import DiskReserve
from headrace.storage.files.folder_lock import LOCK, lock_folder
from headrace.storage.files.format import CREATE, DELETE, SEAL
from headrace.storage.files.group import Catalog, Ledger, fresh, ledger_sealed
from headrace.storage.files.group_commit import GroupCommit
from headrace.storage.files.maintenance import Maintenance
from headrace.storage.files.recovery import RecoveredFolder, prepare_folder, recover
from headrace.storage.files.segments import Segments
from headrace.storage.files.wal_reader import WalReader
from headrace.storage.files.write_ahead_log import WriteAheadLog
from headrace.storage.ledger import (
    FOOTER_BYTES_MAX,
    Buffer,
    Copies,
    LedgerId,
    LedgerInfo,
    ReportsSpace,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from headrace.runtime.clock import Clock
    from headrace.runtime.completion import Completion
    from headrace.runtime.file_bytes import FileBytes
    from headrace.storage.ledger import BulkWriter

log = logging.getLogger(__name__)

T = TypeVar("T")

READ_THREADS: Final = 4
_NOT_OURS: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR})
"""Errors of a folder that is at the wrong place or belongs to another user, on a sound disk."""


class FileLedgerStore:
    """See LedgerStore. Created by `open`, ended by `close`."""

    def __init__(
        self,
        segments: Segments,
        commit: GroupCommit,
        catalog: Catalog,
        maintenance: Maintenance,
        threads: Executor,
        release: Callable[[], None],
        room: DiskReserve,
        disk: Disk,
    ) -> None:
        self._disk = disk
        self._segments = segments
        self._commit = commit
        self._catalog = catalog
        self._ledgers = catalog.ledgers
        self._maintenance = maintenance
        self._threads = threads
        self._release = release
        self._tasks = Tasks()
        self._maintenance_task = self._tasks.start(maintenance.run(), "storage maintenance")
        self._watch = self._tasks.start(room.watch(), "disk space")
        self._room = room
        self.room: ReportsSpace = room
        self._closed: LedgerUnknown | None = None
        self.counters = commit.counters
        """Activity since the store was opened, for metrics."""

    @classmethod
    async def open(
        cls,
        folder: Path,
        clock: Clock,
        *,
        wal_file_bytes: int = 32 << 20,
        checkpoint_bytes: int = 128 << 20,
        open_files_max: int = 512,
        retry_ms: int = 1_000,
        disk: Disk | None = None,
        randomness: Randomness | None = None,
    ) -> FileLedgerStore:
        """Open the folder, creating it if it is missing, and recover its state.

        A checkpoint is due every `checkpoint_bytes` of WAL; `retry_ms` is the interval between
        attempts to end an outage. At most `open_files_max` segments are open at once, and never
        more than a quarter of the process's limit. Raises FolderInUse, FormatUnsupported,
        DataCorrupt; StorageUnavailable on a disk error.
        """
        disk = disk or SystemDisk()
        salt = (randomness or SystemRandomness()).below(1 << 32)
        threads = disk.threads("headrace-read", READ_THREADS)
        path = str(folder)
        descriptors: list[int] = []
        maintenance: Maintenance | None = None

        def release() -> None:
            threads.shutdown(wait=True)
            for fd in descriptors:
                disk.close(fd)

        def take() -> tuple[int, Segments, WalReader, RecoveredFolder]:
            _make_folders(disk, path)
            was_locked_before = LOCK in disk.list(path)
            descriptors.append(lock_folder(disk, path))
            try:
                found_salt = prepare_folder(disk, path, salt)
            except (FormatUnsupported, DataCorrupt):
                if not was_locked_before:  # leave a rejected folder unchanged
                    disk.unlink(f"{path}/{LOCK}")
                raise
            segments = Segments(disk, path, min(open_files_max, open_files_limit() // 4))
            reader = WalReader(disk, path, found_salt)
            return found_salt, segments, reader, recover(disk, path, segments, reader)

        try:
            found_salt, segments, reader, found = await _run(threads, take)
            room = DiskReserve(disk, path)
            wal = WriteAheadLog(disk, path, wal_file_bytes, room)
            wal.next_number = found.next_wal_number
            commit = GroupCommit(disk, clock, wal, segments, found.catalog, found_salt, room)
            commit.checkpoint_bytes = checkpoint_bytes
            writer = CheckpointWriter(disk, path, segments, reader)
            maintenance = Maintenance(disk, commit, wal, segments, found.catalog, writer, retry_ms)
            await maintenance.start(found.sequence, found.old_wal_numbers)
        except BaseException as error:
            if maintenance is not None:
                maintenance.abandon()
            release()
            if isinstance(error, OSError):
                step = "repair the disk or free space"
                if error.errno in _NOT_OURS:
                    step = "choose a folder that the user of this process can write to"
                raise StorageUnavailable(
                    f"opening {path} failed ({error}): {step}, then start again",
                    path=path,
                    cause=str(error),
                ) from error
            raise
        return cls(segments, commit, found.catalog, maintenance, threads, release, room, disk)

    async def close(self) -> None:
        """Sync and checkpoint what was appended, and release the folder."""
        if self._closed is not None:
            return
        self._closed = LedgerUnknown("the ledger store is closed: open it again")
        self._watch.cancel()
        self._maintenance.end()
        await self._commit.close()
        await asyncio.wait([self._maintenance_task])
        await self._maintenance.close()
        self._release()

    async def create(
        self, labels: Mapping[str, bytes] | None = None, copies: Copies | None = None
    ) -> LedgerId:
        """See LedgerStore."""
        self._check_open()
        ledger = Ledger(self._catalog.next_ledger)
        self._catalog.next_ledger += 1
        await self._commit.change(CREATE, ledger).wait()
        return LedgerId(ledger.id)

    def append(
        self, ledger: LedgerId, parts: Sequence[Buffer], size: int, flush_ms: int | None
    ) -> tuple[int, Completion]:
        """See LedgerStore."""
        found = self._ledgers.get(ledger)
        if found is None or self._closed is not None:
            raise self._unknown(ledger)
        if found.blocked is not None:
            raise fresh(found.blocked)
        self.counters.appends += 1
        return self._commit.append(found, parts, size, flush_ms)

    def bulk_writer(self, ledger: LedgerId) -> BulkWriter:
        """See WritesInBulk."""
        found = self._find(ledger)
        if found.blocked is not None:
            raise fresh(found.blocked)
        return FileBulkWriter(
            self._disk, self._threads, self._segments, self._commit, self._room, found
        )

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """See LedgerStore."""
        found = self._find(ledger)
        size = min(size, found.readable - position)
        if size <= 0:
            return b""
        try:
            return self._segments.read_cached(found, position, size)
        except OSError:
            return None  # `read` reports the error

    def locate_cached(self, ledger: LedgerId, position: int, size: int) -> FileBytes | None:
        """See LocatesBytes."""
        found = self._find(ledger)
        if position + size > found.readable:
            return None
        try:
            return self._segments.locate_cached(found, position, size)
        except OSError:
            return None  # `read` reports the error

    def file_of(self, ledger: LedgerId) -> str | None:
        """See NamesFiles."""
        found = self._find(ledger)
        is_whole = found.is_sealed and found.readable == found.end
        return self._segments.whole_file(found) if is_whole else None

    async def read(self, ledger: LedgerId, position: int, size: int) -> Buffer:
        """See LedgerStore."""
        found = self._find(ledger)
        size = min(size, found.readable - position)
        if size <= 0:
            return b""
        kept = self._segments.buffered(found, position, size)
        left = size - len(kept)
        if not left:
            return kept
        try:
            data = await _run(self._threads, lambda: self._segments.read(found.id, position, left))
        except FileNotFoundError:
            self._find(ledger)  # deleted meanwhile: LedgerUnknown
            raise self._missing_bytes(found.id, position, "its file is missing") from None
        except OSError as error:
            raise StorageUnavailable(
                f"reading ledger {ledger} at {position} failed ({error}): repair the disk, then "
                "try again",
                ledger=ledger,
                position=position,
                cause=str(error),
            ) from error
        if len(data) != left:
            raise self._missing_bytes(found.id, position, "its file is too short")
        return data + kept

    def _missing_bytes(self, ledger: int, position: int, problem: str) -> DataCorrupt:
        return DataCorrupt(
            f"ledger {ledger} holds fewer bytes than were acknowledged ({problem}): restore "
            f"{self._segments.path(ledger)} from a backup",
            ledger=ledger,
            position=position,
        )

    async def seal(self, ledger: LedgerId, footer: bytes) -> None:
        """See LedgerStore. Sealing again with the same footer changes nothing."""
        found = self._find(ledger)
        if len(footer) > FOOTER_BYTES_MAX:
            raise Rejected(
                f"a footer of {len(footer)} bytes: the limit is {FOOTER_BYTES_MAX}",
                limit=FOOTER_BYTES_MAX,
                actual=len(footer),
            )
        if found.is_sealed and self._segments.read_footer(found.id, found.end) == footer:
            return
        if found.blocked is not None:
            raise fresh(found.blocked)
        found.blocked = ledger_sealed(found.id)
        sealed = self._commit.change(SEAL, found, bytes(footer))
        if sealed.done:  # refused during an outage
            found.unblock()
        await sealed.wait()

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        """See LedgerStore. The folder lock already excludes other processes."""
        found = self._find(ledger)
        if found.end != found.readable:
            await self._commit.barrier().wait()
            found = self._find(ledger)
        return LedgerInfo(ledger, found.readable, found.is_sealed, self._footer(found))

    async def delete(self, ledger: LedgerId) -> None:
        """See LedgerStore."""
        self._check_open()
        found = self._ledgers.get(ledger)
        if found is None or isinstance(found.blocked, LedgerUnknown):
            raise self._unknown(ledger)
        found.blocked = self._unknown(ledger)
        deleted = self._commit.change(DELETE, found)
        if deleted.done:  # refused during an outage
            found.unblock()
        await deleted.wait()
        await _run(self._threads, self._segments.unlink_forgotten)

    def list(self) -> Sequence[LedgerInfo]:
        """See LedgerStore. Footers are read from their files, not kept in memory.

        A footer with a checksum mismatch is None here; `recover` raises DataCorrupt.
        """
        self._check_open()
        infos = []
        for number, found in sorted(self._ledgers.items()):
            try:
                footer = self._footer(found)
            except (DataCorrupt, OSError) as error:
                log.warning("ledger %d: %s", number, error)
                footer = None
            infos.append(LedgerInfo(LedgerId(number), found.readable, found.is_sealed, footer))
        return infos

    def _footer(self, found: Ledger) -> bytes | None:
        return self._segments.read_footer(found.id, found.end) if found.is_sealed else None

    def _find(self, ledger: int) -> Ledger:
        self._check_open()
        found = self._ledgers.get(ledger)
        if found is None:
            raise self._unknown(ledger)
        blocked = found.blocked
        if blocked is not None and not isinstance(blocked, LedgerSealed):
            raise fresh(blocked)
        return found

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _unknown(self, ledger: int) -> LedgerUnknown:
        return self._closed or LedgerUnknown(
            f"ledger {ledger} does not exist: it was deleted or never created", ledger=ledger
        )


def _make_folders(disk: Disk, path: str) -> None:
    """Create `path` and its missing parents, durably."""
    parent = path.rpartition("/")[0] or ("/" if path.startswith("/") else ".")
    try:
        is_new = disk.make_folder(path)
    except FileNotFoundError:
        _make_folders(disk, parent)
        is_new = disk.make_folder(path)
    if is_new:
        disk.sync_folder(parent)


async def _run(threads: Executor, function: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, function)
