"""Background tasks with an owner.

Invariants: every task belongs to a Tasks object. Closing it cancels and awaits all of them,
including tasks started during shutdown, so no task outlives its owner. A failed task is always
logged with its name.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine

log = logging.getLogger(__name__)


class Tasks:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # ordered, so that runs are reproducible
        self._is_closed = False

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `coroutine` until it ends or the owner closes; not started after `close`."""
        task = asyncio.create_task(coroutine, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        if self._is_closed:
            task.cancel()
        return task

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        """Like `start`, for work whose result is not awaited."""
        if self._is_closed:  # no task: it would need another turn of the loop to end
            coroutine.close()
            return
        _ = self.start(coroutine, name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("task %s failed", task.get_name(), exc_info=task.exception())

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended.

        A task of this owner that calls it is cancelled, too.
        """
        self._is_closed = True
        while self._tasks:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # From Python 3.12 on, `gather` returns before `_ended` ran if all tasks have ended.
            for task in tasks:
                self._tasks.pop(task, None)
