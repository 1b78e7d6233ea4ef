"""Runs the background steps of a partition's log, one after another.

Invariants: runs steps, and reports their failures as events of the log's lifecycle; the steps
themselves and the reactions to events are in `lifecycle_host`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import ChainMissing, HeadraceError, NotOwner, StorageUnavailable
from headrace.log.lifecycle import Event
from headrace.metadata.titles import log_title

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

_ESSENTIAL = {Event.LOAD_FAILED, Event.LEDGER_FAILED, Event.RESUME_FAILED}


class StepQueue:
    """The queue of background steps of one log."""

    __slots__ = ("_failed", "_name", "_task", "_tasks", "trouble")

    def __init__(
        self, name: str, tasks: Tasks, failed: Callable[[HeadraceError, Event], None]
    ) -> None:
        """`failed` is called with the error and the event when a step fails."""
        self._name = log_title(name)
        self._tasks = tasks
        self._failed = failed
        self._task: asyncio.Task[None] | None = None
        self.trouble: HeadraceError | None = None
        """Why the last step failed without which nothing is served; None once a step succeeds."""

    @property
    def is_idle(self) -> bool:
        """Whether no step is running or queued."""
        return self._task is None or self._task.done()

    def begin(
        self,
        step: Coroutine[None, None, None],
        what: str,
        failed: Event = Event.STEP_FAILED,
    ) -> asyncio.Task[None]:
        """Queue a step after those begun before; `failed` is its event if it fails."""
        previous = self._task

        async def run() -> None:
            if previous is not None and not previous.done():
                await asyncio.wait([previous])
            try:
                await step
                self.trouble = None
            except HeadraceError as error:
                log.warning("%s: %s failed: %s", self._name, what, error)
                self.trouble = error if failed in _ESSENTIAL else self.trouble
                self._failed(error, failed)
            except asyncio.CancelledError:
                self._failed(StorageUnavailable(f"{what} was cancelled: try again"), failed)
                raise
            except Exception:
                # Whatever the error, waiting requests must fail, or they would wait forever.
                log.exception("%s: %s failed with an internal error", self._name, what)
                unknown = StorageUnavailable(f"{what} failed: see the broker's log")
                self._failed(unknown, failed)

        self._task = self._tasks.start(run(), f"{self._name} {what}")
        self._task.add_done_callback(lambda _: step.close())  # if cancelled before it began
        return self._task

    async def do(self, step: Coroutine[None, None, None], what: str) -> None:
        """Run one step in its turn and raise its error, for a caller that waits for it."""
        failed: list[HeadraceError] = []

        async def run() -> None:
            try:
                await step
            except HeadraceError as error:
                failed.append(error)
                if isinstance(error, ChainMissing | NotOwner):
                    raise  # the log is no longer served

        task = self.begin(run(), what)
        task.add_done_callback(lambda _: step.close())  # if cancelled before it began
        await asyncio.wait([task])
        if failed:
            raise failed[0]

    async def idle(self) -> None:
        """Wait for the last step begun so far."""
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
