"""Background maintenance of the store: checkpoints, spare WAL files, recovery from an outage.

Invariants: one task; everything that blocks runs in a dedicated thread while appends continue. A
step is never interrupted: nothing else would know what its checkpoint should have made durable,
and the next checkpoint would wrongly include it.
An outage ends only when a checkpoint that excludes everything unacknowledged is durable and the
WAL continues in a file without failed frames: until then no position is reused, so stale bytes in
the old files are never replayed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from headrace.errors import DataCorrupt, DiskFull, StorageUnavailable
from headrace.storage.files.checkpoint import CheckpointWriter, Snapshot
from headrace.storage.files.disk_reserve import FULL_ERRORS
from headrace.storage.files.write_ahead_log import SMALL_FILE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.runtime.disk import Disk
    from headrace.storage.files.group import Catalog
    from headrace.storage.files.group_commit import GroupCommit
    from headrace.storage.files.segments import Segments
    from headrace.storage.files.write_ahead_log import WalFile, WriteAheadLog

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_FILE_BYTES = SMALL_FILE_BYTES
"""The first WAL file of a run is created while the opener waits, so it is small."""


class Maintenance:
    """The maintenance task of one folder."""

    def __init__(
        self,
        disk: Disk,
        commit: GroupCommit,
        wal: WriteAheadLog,
        segments: Segments,
        catalog: Catalog,
        writer: CheckpointWriter,
        retry_ms: int,
    ) -> None:
        self._commit = commit
        self._wal = wal
        self._segments = segments
        self._catalog = catalog
        self._writer = writer
        self._retry_ms = retry_ms
        self._thread = disk.threads("headrace-checkpoint", 1)
        self._ending = asyncio.Event()

    async def start(self, sequence: int, old_numbers: list[int]) -> None:
        """Checkpoint what recovery found, and start the WAL. Raises OSError.

        A full disk is an outage like any other: reads work, appends wait for space.
        """
        commit, wal = self._commit, self._wal
        commit.next_sequence = sequence + 1
        wal.finished = await self._run(lambda: [wal.open_old(number) for number in old_numbers])
        try:
            await self._start_afresh(min(FIRST_FILE_BYTES, wal.file_bytes))
        except OSError as error:
            if error.errno not in FULL_ERRORS:
                raise
            commit.fail(error, "creating a WAL file")

    async def run(self) -> None:
        """Run until `end`; the current step is completed first."""
        commit = self._commit
        commit.attention.set()  # to create the first spare
        while True:
            await commit.attention.wait()
            commit.attention.clear()
            if self._ending.is_set():
                return
            try:
                await self._step()
            except OSError as error:
                commit.counters.errors += 1
                if not isinstance(commit.outage, DiskFull):  # DiskReserve has logged that once
                    log.warning("storage maintenance failed, retrying: %s", error)
                await self._pause()
            except DataCorrupt as error:
                # A segment's sync failed, and the WAL with its bytes is corrupt as well. New
                # appends could not be recovered: only reads continue.
                commit.counters.errors += 1
                log.error("%s", error)  # noqa: TRY400 - the message suffices without a traceback
                if commit.outage is None:
                    commit.fail(OSError(errno.EIO, str(error)), "rereading the WAL")
                await self._pause()

    def end(self) -> None:
        """Start no further step: `run` returns after the current one."""
        self._ending.set()
        self._commit.attention.set()

    async def _step(self) -> None:
        commit = self._commit
        if commit.outage is not None:
            await self._end_outage()
        elif self._is_checkpoint_due():
            await self.checkpoint()
        is_wanted = not self._wal.spares and commit.outage is None
        if is_wanted and not self._ending.is_set():
            await self._make_spare()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(self._retry_ms / 1000):
                await self._ending.wait()
        except TimeoutError:
            pass
        self._commit.attention.set()

    async def checkpoint(self) -> None:
        """Sync the segments up to the WAL's state, and recycle WAL files. Raises OSError."""
        commit, wal = self._commit, self._wal
        try:
            # Only synced files can be recycled; with unsynced topics there might be none.
            await commit.barrier().wait()
        except StorageUnavailable:
            return  # an outage, which ends with a checkpoint
        covered = [file for file in wal.finished if file.last_sequence <= commit.synced_sequence]
        rest = wal.finished[len(covered) :]
        first = rest[0].number if rest else wal.number
        await self._write_checkpoint(first)
        wal.finished = [file for file in wal.finished if file not in covered]
        await self._recycle(covered)

    async def _write_checkpoint(self, first_number: int) -> None:
        commit, segments = self._commit, self._segments
        segments.flush_all()
        snapshot = Snapshot(segments, self._catalog, commit.synced_sequence, first_number)
        covered_bytes, commit.bytes_since_checkpoint = commit.bytes_since_checkpoint, 0
        try:
            await self._run(lambda: self._writer.write(snapshot))
        except BaseException:  # for any reason: what is durable is unknown
            snapshot.mark_unsynced(segments)
            commit.bytes_since_checkpoint += covered_bytes
            raise
        commit.counters.checkpoints += 1

    async def close(self) -> None:
        """Checkpoint what was acknowledged, so that the next open has nothing to replay.

        Call it only after `run` has ended: their checkpoints would not know of each other.
        """
        try:
            if self._commit.outage is None:
                # No frame follows, so recovery needs none of the existing files.
                await self._write_checkpoint(self._wal.next_number)
            else:
                await self._start_afresh(self._wal.file_bytes)
        except (OSError, DataCorrupt) as error:
            log.warning("no checkpoint on close (%s): the next start replays the WAL", error)
        self.abandon()

    def abandon(self) -> None:
        """Release all resources without a checkpoint."""
        self._thread.shutdown(wait=True)
        self._commit.abandon()
        self._wal.close()
        self._segments.close_all()

    def _is_checkpoint_due(self) -> bool:
        commit = self._commit
        return commit.bytes_since_checkpoint > commit.checkpoint_bytes

    async def _end_outage(self) -> None:
        commit = self._commit
        if commit.is_syncing:
            return  # the end of the sync sets `attention`: only then can the old files be closed
        is_full = isinstance(commit.outage, DiskFull)
        await self._start_afresh(self._wal.file_bytes)
        if not is_full:  # otherwise DiskReserve logs when appends are accepted again
            log.warning("storage has recovered")

    async def _start_afresh(self, file_bytes: int) -> None:
        """Checkpoint everything acknowledged and continue in a new WAL file. Raises OSError."""
        commit, wal, segments = self._commit, self._wal, self._segments
        old = [*wal.finished, *wal.spares]
        if wal.current is not None:
            old.append(wal.current)
        number = wal.take_number()
        segments.flush_all()
        snapshot = Snapshot(segments, self._catalog, commit.next_sequence - 1, number)

        def write() -> WalFile:
            self._writer.write(snapshot)
            return self._new_file(number, file_bytes, old)

        try:
            fresh = await self._run(write)
        except BaseException:  # as in `_write_checkpoint`
            snapshot.mark_unsynced(segments)
            raise
        commit.counters.checkpoints += 1
        wal.start_afresh(fresh)
        commit.bytes_since_checkpoint = 0
        commit.resume()
        await self._recycle([file for file in old if file.fd != fresh.fd])

    def _new_file(self, number: int, size: int, old: list[WalFile]) -> WalFile:
        """Recycle an old file of full size if there is one: its blocks are already written."""
        wal = self._wal
        for file in old:
            if file.size == wal.file_bytes:
                return wal.recycle(file, number)
        try:
            return wal.make_numbered_file(number, size, is_zeroed=True)
        except OSError as error:
            if error.errno in FULL_ERRORS and old:
                return wal.recycle(max(old, key=lambda file: file.size), number)
            raise

    async def _make_spare(self) -> None:
        wal = self._wal
        number = wal.take_number()
        try:
            spare = await self._run(
                lambda: wal.make_numbered_file(number, wal.file_bytes, is_zeroed=True)
            )
        except OSError as error:
            # Not an outage: the current file may suffice until there is space.
            level = logging.INFO if error.errno in FULL_ERRORS else logging.WARNING
            log.log(level, "no spare WAL file: %s", error)
            return
        await self._keep_spare(spare)

    async def _recycle(self, files: list[WalFile]) -> None:
        wal = self._wal
        if not files:
            return
        bytes_max = SPARES_SHARE * self._commit.checkpoint_bytes
        spares_max = await self._run(partial(wal.spares_max, bytes_max))
        for file in files:
            if file.size == wal.file_bytes and len(wal.spares) < spares_max:
                await self._keep_spare(await self._renumber(file))
            else:
                await self._remove(file)

    async def _keep_spare(self, spare: WalFile | None) -> None:
        """Add it to the spares, renumbered if the log has passed its number meanwhile."""
        wal = self._wal
        while spare is not None and spare.number < wal.number:
            spare = await self._renumber(spare)
        if spare is not None:
            wal.spares.append(spare)

    async def _renumber(self, file: WalFile) -> WalFile | None:
        """Rename the file to a new number; None if that failed, and the file was removed.

        Failing the other files with it could keep space occupied that is needed.
        """
        number = self._wal.take_number()
        try:
            return await self._run(partial(self._wal.recycle, file, number))
        except OSError as error:
            log.warning("cannot recycle a WAL file, removing it: %s", error)
            self._commit.counters.errors += 1
        await self._remove(file)
        return None

    async def _remove(self, file: WalFile) -> None:
        try:
            await self._run(partial(self._wal.remove, file))
        except OSError as error:
            log.warning("cannot remove a WAL file before the next start: %s", error)
            self._commit.counters.errors += 1

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


SPARES_SHARE = 2
"""WAL kept for reuse, in checkpoints: what one frees, and what is written while it runs. Writing
a newly created file costs up to ten times as much as one that is still in the page cache."""
