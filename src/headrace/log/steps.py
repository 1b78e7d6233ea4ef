"""The slow steps of one partition's log, one after the other.

Rules of the room: knows how a step is run and how those who wait for `ready` hear of its end; what
the steps do is in `upkeep`. A step that fails tells them, and the next request tries again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import ChainMissing, DataCorrupt, HeadraceError, NotOwner, StorageUnavailable
from headrace.runtime.completion import Completion

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)


class Steps:
    """Runs the steps of one PartitionLog."""

    __slots__ = ("_is_ending", "_log", "_task", "_tasks")

    def __init__(self, log: PartitionLog, tasks: Tasks) -> None:
        self._log = log
        self._tasks = tasks
        self._task: asyncio.Task[None] | None = None
        self._is_ending = False
        """Whether the log is being handed over: then appends wait until it is abandoned."""

    def _begin(self, step: Coroutine[None, None, None], what: str) -> asyncio.Task[None]:
        """Run one step behind whatever step is under way."""
        previous = self._task

        async def run() -> None:
            if previous is not None and not previous.done():
                await asyncio.wait([previous])
            try:
                await step
            except HeadraceError as error:
                log.warning("%s: %s failed: %s", self._log.name, what, error)
                self._fail(error)
            except asyncio.CancelledError:
                self._fail(StorageUnavailable(f"{what} was cancelled: try again"))
                raise
            except Exception:
                # Whatever it was, those who wait must hear of it, or they wait for ever.
                log.exception("%s: %s met a fault of the broker", self._log.name, what)
                self._fail(StorageUnavailable(f"{what} failed: see the broker's log"))

        self._task = self._tasks.start(run(), f"{self._log.name} {what}")
        self._task.add_done_callback(lambda _: step.close())  # if it was cancelled before it began
        return self._task

    async def do(self, step: Coroutine[None, None, None], what: str) -> None:
        """Run one step in its turn, and raise what it raises: for those who wait for just this."""
        failed: list[HeadraceError] = []

        async def run() -> None:
            try:
                await step
            except HeadraceError as error:
                failed.append(error)
                if isinstance(error, NotOwner):
                    raise  # the log has ended, for everybody

        task = self._begin(run(), what)
        task.add_done_callback(lambda _: step.close())  # if it was cancelled before it began
        await asyncio.wait([task])
        if failed:
            raise failed[0]

    def _fail(self, error: HeadraceError) -> None:
        """Tell those who wait; damage and a lost partition stay."""
        if isinstance(error, DataCorrupt | NotOwner):
            self._log.failure = error
            if isinstance(error, ChainMissing):
                # An append would be acknowledged into a ledger that nothing names.
                self._log.active, self._log.is_loaded = None, False
                self._shut()
                self._log.waiters.wake()
            if isinstance(error, ChainMissing | NotOwner) and self._log.on_lost is not None:
                self._log.on_lost()
        ready = self._log.ready
        if ready is not None:
            self._log.ready, self._log.retries.are_due = Completion(), True
            ready.fail(error)

    def _open(self) -> None:
        """Let appends go ahead, unless the log has ended meanwhile."""
        if self._log.failure is not None:
            self._fail(self._log.failure)
            return
        if self._is_ending:
            return
        self._log.reopened()
        ready, self._log.ready = self._log.ready, None
        if ready is not None:
            ready.succeed()

    def _shut(self) -> None:
        """Let appends wait for `ready`."""
        if self._log.ready is None:
            self._log.ready = Completion()

    async def _idle(self) -> None:
        """Wait for the last step that was begun."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
