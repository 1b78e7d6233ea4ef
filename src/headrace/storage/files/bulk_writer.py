"""Writes many bytes to a new ledger, bypassing the write-ahead log: directly to its segment.

Invariants: one writer, one piece at a time. Until `finish`, the ledger stays empty for readers,
checkpoints and recovery. `finish` syncs the segment and the folders of its name, and only then adds
one EXTEND with its length to the WAL, whose sync makes all of it readable.
In the WAL these bytes would be written twice, and every small append would wait for a sync that
includes them. Even so, a sync of the WAL waits for earlier writes to the disk, so writeback of each
piece starts as soon as it is written, and the piece after the next one waits for it: no sync has
more than two pieces ahead of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import LedgerSealed, StorageUnavailable
from headrace.runtime.completion import Completion, failed
from headrace.runtime.disk import write_fully
from headrace.storage.files.group import fresh

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from headrace.errors import HeadraceError
    from headrace.runtime.disk import Disk
    from headrace.storage.files.disk_reserve import DiskReserve
    from headrace.storage.files.group import Ledger
    from headrace.storage.files.group_commit import GroupCommit
    from headrace.storage.files.segments import Segments
    from headrace.storage.ledger import Buffer


class FileBulkWriter:
    """See BulkWriter."""

    def __init__(
        self,
        disk: Disk,
        threads: Executor,
        segments: Segments,
        commit: GroupCommit,
        room: DiskReserve,
        ledger: Ledger,
    ) -> None:
        """Raises StorageUnavailable."""
        assert ledger.end == 0, "only an empty ledger is written in bulk"
        self._loop = asyncio.get_running_loop()
        self._disk = disk
        self._threads = threads
        self._segments = segments
        self._commit = commit
        self._room = room
        self._ledger = ledger
        self._position = 0
        self._piece = 0
        """The position of the last piece."""
        self._failure: HeadraceError | None = None
        self._job: Future[None] | None = None
        try:
            self._fd = segments.open_empty(ledger)
        except OSError as error:
            raise self._failed(error) from error
        self._block = ledger.blocked = LedgerSealed(
            f"ledger {ledger.id} is being written in bulk: append when that has ended",
            ledger=ledger.id,
        )

    def write(self, parts: Sequence[Buffer], size: int) -> Completion:
        """See BulkWriter."""
        assert self._job is None, "one piece at a time"
        if self._failure is not None:
            return failed(fresh(self._failure))
        try:
            self._room.take(size)
        except OSError as error:
            return failed(self._failed(error))
        position, before = self._position, self._piece
        self._piece, self._position = position, position + size

        def write() -> None:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            write_fully(self._disk, self._fd, data, position)
            self._disk.write_back(self._fd, before, position + size - before)

        return self._begin(write)

    async def finish(self) -> None:
        """See BulkWriter."""
        assert self._job is None, "the last piece was written"
        if self._failure is not None:
            raise fresh(self._failure)
        ledger = self._ledger
        await self._begin(lambda: self._segments.sync_new(ledger.id, self._fd)).wait()
        if ledger.blocked is not self._block:  # deleted meanwhile
            assert ledger.blocked is not None, "a ledger that is written in bulk is blocked"
            raise fresh(ledger.blocked)
        if self._position:
            await self._commit.extend(ledger, self._position).wait()

    def close(self) -> None:
        """See BulkWriter. If a thread is using the file, that thread closes it."""
        if self._ledger.blocked is self._block:
            self._ledger.unblock()
        if self._job is None:
            self._disk.close(self._fd)
        else:
            self._job.add_done_callback(lambda _: self._disk.close(self._fd))

    def _begin(self, function: Callable[[], None]) -> Completion:
        completion = Completion()
        self._job = job = self._threads.submit(function)
        job.add_done_callback(
            lambda _: self._loop.call_soon_threadsafe(self._ended, job, completion)
        )
        return completion

    def _ended(self, job: Future[None], completion: Completion) -> None:
        self._job = None
        error = job.exception()
        if error is None:
            completion.succeed()
        elif isinstance(error, OSError):
            completion.fail(self._failed(error))
        else:
            completion.fail(error)

    def _failed(self, error: OSError) -> HeadraceError:
        """Distrust everything written: no later sync might report the error."""
        ledger = self._ledger
        self._failure = self._room.failure(error, "writing a segment") or StorageUnavailable(
            f"writing the segment of ledger {ledger.id} failed ({error}): nothing was stored; "
            "free space or repair the disk, then try again",
            ledger=ledger.id,
            cause=str(error),
        )
        return self._failure
