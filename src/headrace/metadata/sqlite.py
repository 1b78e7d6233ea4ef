"""The metadata store of one machine: a SQLite file that several broker processes may share.

Invariants: only one thread uses SQLite, so the event loop never waits for a disk; results return
through `call_soon_threadsafe`. The schema and its access are in `sqlite_file`. While there are
watches, the thread checks four times a second for writes by other processes; without any, an idle
store does nothing.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from headrace.errors import DataCorrupt, HeadraceError, MetadataUnavailable, VersionConflict
from headrace.metadata.sqlite_file import SqliteFile
from headrace.metadata.store import MetadataEntry, MultiOperation
from headrace.metadata.watches import Watches
from headrace.runtime.session import endless_session
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)
T = TypeVar("T")
_Result: TypeAlias = "tuple[Any, BaseException | None]"
"""The result or the exception of a job."""

POLL_MS = 250
IDLE_MS = 50
"""The WAL is checkpointed this long after the last change."""
BUSY_TIMEOUT_MS = 5_000
CHANGES_MAX: Final = 256
"""Limit of changes per transaction: those queued while an earlier one is synced."""
_CORRUPT_CODES = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def _translate(error: sqlite3.Error | OSError | UnicodeDecodeError, path: Path) -> HeadraceError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _CORRUPT_CODES or isinstance(error, UnicodeDecodeError):
        return DataCorrupt(
            f"the metadata in {path} is corrupt ({error}): the broker cannot read its topics;"
            f" restore {path.name} from a backup",
            path=str(path),
        )
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) == errno.ENOSPC:
        cause, step = "the disk is full", "free some space"
    elif code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        cause, step = "another process holds its lock", "retry"
    else:
        cause, step = str(error), "check the disk and the folder's permissions"
    return MetadataUnavailable(
        f"the metadata in {path} cannot be used ({cause}): nothing was changed; {step}",
        path=str(path),
    )


class _Job(NamedTuple):
    call: Callable[[], Any]
    future: asyncio.Future[Any]


class _Change(NamedTuple):
    operations: Sequence[MultiOperation]
    future: asyncio.Future[Sequence[int]]


class SqliteMetadataStore:
    """See MetadataStore. One session; used from one event loop."""

    def __init__(self, path: Path, poll_ms: int) -> None:
        """Use `open`."""
        self._path = path
        self._poll_ms = poll_ms
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | _Change | None] = SimpleQueue()
        self._watches = Watches()
        self._tasks = Tasks()
        self._polling: asyncio.Task[None] | None = None
        self._is_closed = False
        self.session = endless_session()
        """Ends with the process, never earlier: SQLite sessions are file locks."""
        self._file: SqliteFile | None = None

    @classmethod
    async def open(
        cls,
        path: Path | str,
        clock: Clock,
        *,
        poll_ms: int = POLL_MS,
        busy_timeout_ms: int = BUSY_TIMEOUT_MS,
    ) -> SqliteMetadataStore:
        """Open the file, creating it if it does not exist.

        Raises MetadataUnavailable, DataCorrupt (not SQLite, or corrupt), FormatUnsupported.
        """
        store = cls(Path(path), poll_ms)
        Thread(target=store._work, name="headrace-metadata", daemon=True).start()
        try:
            store._file = await store._run(lambda: SqliteFile(store._path, clock, busy_timeout_ms))
        except BaseException:
            store._jobs.put(None)
            raise
        return store

    async def get(self, key: str) -> MetadataEntry | None:
        """See MetadataStore."""
        file = self._opened()
        return await self._run(lambda: file.get(key))

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """See MetadataStore."""
        file = self._opened()
        return await self._run(lambda: file.list(prefix))

    async def put(
        self, key: str, value: bytes, expected_version: int, *, ephemeral: bool = False
    ) -> int:
        """See MetadataStore. If the caller is cancelled, the put may still be applied."""
        operations = [MultiOperation(key, bytes(value), expected_version)]
        if ephemeral:
            file = self._opened()
            outcome = await self._run(lambda: file.write_ephemeral(operations))
            if isinstance(outcome, VersionConflict):
                raise outcome
            return outcome[0]
        (version,) = await self.multi(operations)
        return version

    async def delete(self, key: str, expected_version: int) -> None:
        """See MetadataStore."""
        await self.multi([MultiOperation(key, None, expected_version)])

    async def multi(self, operations: Sequence[MultiOperation]) -> Sequence[int]:
        """See MetadataStore."""
        self._opened()
        change = _Change(operations, self._loop.create_future())
        self._jobs.put(change)
        return await change.future

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """See MetadataStore. The first watch may also report changes made since `open`."""
        self._opened()
        watch = self._watches.add(prefix)
        if self._polling is None:
            self._polling = self._tasks.start(self._poll(), "metadata watch")
        return watch

    async def close(self) -> None:
        """See MetadataStore."""
        if self._is_closed:
            return
        self._is_closed = True
        self.session.lose(self.session.since_ns)
        await self._tasks.close()
        self._watches.close()
        assert self._file is not None
        try:
            await self._run(self._file.close)
        finally:
            self._jobs.put(None)

    def _opened(self) -> SqliteFile:
        if self._is_closed:
            raise MetadataUnavailable("the metadata store is closed: open a new one")
        assert self._file is not None
        return self._file

    async def _poll(self) -> None:
        """Look for changes by other processes while there are watches."""
        file = self._opened()
        try:
            while self._watches.has_any():
                try:
                    await self._run(file.poll)
                except MetadataUnavailable as error:
                    log.warning("%s; changes will be reported later", error)
                await asyncio.sleep(self._poll_ms / 1000)
        except HeadraceError as error:
            self._watches.close(error)
        finally:
            self._polling = None

    def _run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run `job` in the thread."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(job, future))
        return future

    def _next_job(self) -> _Job | _Change | None:
        """Wait for the next job; after a burst of changes, checkpoint the WAL."""
        if self._file is not None and self._file.has_journal:
            try:
                return self._jobs.get(timeout=IDLE_MS / 1000)
            except Empty:
                self._file.empty_journal()
        return self._jobs.get()

    def _work(self) -> None:
        """The thread: runs one job after another; queued changes share a transaction."""
        done: Sequence[tuple[asyncio.Future[Any], _Result]]
        after: _Job | None
        item = self._next_job()
        while item is not None:
            if isinstance(item, _Job):
                after = None
                done = [(item.future, self._result(item.call))]
            else:
                changes, after = self._waiting_changes(item)
                done = self._write(changes)
            changed: list[str] = []
            if self._file is not None and self._file.changed:
                changed, self._file.changed = self._file.changed, []
            try:
                self._loop.call_soon_threadsafe(self._finish, done, changed)
            except RuntimeError:
                return  # the loop is closed, so there are no callers left
            del item, done
            item = after or self._next_job()

    def _waiting_changes(self, first: _Change) -> tuple[Sequence[_Change], _Job | None]:
        """It and the changes queued right after it; and the job queued after those."""
        changes = [first]
        while len(changes) < CHANGES_MAX:
            try:
                item = self._jobs.get_nowait()
            except Empty:
                break
            if not isinstance(item, _Change):
                if item is None:
                    self._jobs.put(None)
                return changes, item
            changes.append(item)
        return changes, None

    def _write(self, changes: Sequence[_Change]) -> Sequence[tuple[asyncio.Future[Any], _Result]]:
        assert self._file is not None
        file = self._file
        outcomes, error = self._result(lambda: file.write([one.operations for one in changes]))
        if error is not None:
            return [(one.future, (None, error)) for one in changes]
        return [
            (one.future, (None, outcome) if isinstance(outcome, Exception) else (outcome, None))
            for one, outcome in zip(changes, outcomes, strict=True)
        ]

    def _result(self, call: Callable[[], Any]) -> _Result:
        """Run `call`; its result or exception."""
        try:
            return call(), None
        except (sqlite3.Error, OSError, UnicodeDecodeError) as cause:
            error = _translate(cause, self._path)
            error.__cause__ = cause
            return None, error
        except BaseException as cause:  # noqa: BLE001 -- the thread's edge: passed to the caller
            return None, cause

    def _finish(
        self, done: Sequence[tuple[asyncio.Future[Any], _Result]], changed: Sequence[str]
    ) -> None:
        self._watches.notify(changed)
        for future, (result, error) in done:
            if future.done():
                continue  # its caller was cancelled
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)
