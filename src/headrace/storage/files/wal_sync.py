"""Syncs the WAL, either inline in the loop's thread or in a dedicated thread.

Invariants: one sync at a time; `ended` is called in the loop's thread. A sync covers what was
written before `begin` was called.
On a disk that syncs in less than INLINE_SYNC_NS the loop does it inline, as switching to a thread
costs more (25 instead of 40 us CPU per request). On a slower disk a thread does it. The moving
average decides, so this follows changes in the disk's load. A sync that no append waits for is
always done by the thread, since it would block the loop for nothing but a timer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.runtime.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from headrace.runtime.clock import Clock
    from headrace.runtime.disk import Disk
    from headrace.storage.files.write_ahead_log import WalFile

INLINE_SYNC_NS = 200_000
"""Up to this average the loop syncs inline; above it, the thread does."""
INLINE_SYNC_BYTES: Final = 512 << 10
"""Larger syncs are never done inline, however fast the last ones were."""


class Counters:
    """Activity since the store was opened, for metrics."""

    def __init__(self) -> None:
        self.appends = 0
        self.append_bytes = 0
        self.groups = 0
        self.wal_bytes = 0
        self.syncs = 0
        self.syncs_inline = 0
        self.sync_ns_total = 0
        self.sync_durations = Histogram()
        self.sync_ns_last = 0
        self.checkpoints = 0
        self.errors = 0


class WalSync:
    """Calls fdatasync on the WAL's files."""

    def __init__(self, disk: Disk, clock: Clock, counters: Counters) -> None:
        self._loop = asyncio.get_running_loop()
        self._disk = disk
        self._clock = clock
        self._counters = counters
        self._sync_thread = disk.threads("headrace-sync", 1)
        self._average_ns = 0
        self.is_running = False
        """Whether the thread is syncing."""

    def begin(
        self,
        files: Sequence[WalFile],
        size: int,
        ended: Callable[[OSError | None, int], None],
        context: int,
    ) -> None:
        """Sync `files` (`size` bytes since the last sync), then call `ended(error, context)`."""
        assert not self.is_running, "one sync at a time"
        if self._average_ns < INLINE_SYNC_NS and size < INLINE_SYNC_BYTES:
            error: OSError | None = None
            try:
                took_ns = self._sync(files)
            except OSError as failure:
                error = failure
            else:
                self._counters.syncs_inline += 1
                self._count(took_ns)
            ended(error, context)
        else:
            self.begin_in_thread(files, size, ended, context)

    def begin_in_thread(
        self,
        files: Sequence[WalFile],
        _size: int,
        ended: Callable[[OSError | None, int], None],
        context: int,
    ) -> None:
        """Like `begin`, but never inline."""
        assert not self.is_running, "one sync at a time"
        self.is_running = True

        def hand_back(future: Future[int]) -> None:
            self._loop.call_soon_threadsafe(self._ended, future, ended, context)

        self._sync_thread.submit(self._sync, files).add_done_callback(hand_back)

    def close(self) -> None:
        """Wait for the sync in progress, and stop the thread."""
        self._sync_thread.shutdown(wait=True)

    def _sync(self, files: Sequence[WalFile]) -> int:
        started_ns = self._clock.now_ns()
        for file in files:
            self._disk.fdatasync(file.fd)
        return self._clock.now_ns() - started_ns

    def _ended(
        self, future: Future[int], ended: Callable[[OSError | None, int], None], context: int
    ) -> None:
        self.is_running = False
        error = future.exception()
        if error is None:
            self._count(future.result())
        elif not isinstance(error, OSError):
            raise error
        ended(error, context)

    def _count(self, took_ns: int) -> None:
        counters = self._counters
        counters.syncs += 1
        counters.sync_ns_total += took_ns
        counters.sync_ns_last = took_ns
        counters.sync_durations.add(took_ns)
        self._average_ns += (took_ns - self._average_ns) // 8
