"""A thread for computations that take milliseconds, such as password hashes.

Invariants: one thread at a lower priority, so that however many calls wait, the event loop keeps a
core, and is preferred on a machine that has only one. Callers bound how many wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
NICENESS: Final = 5


class SlowCalls:
    """See the module. The thread starts with the first call."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(1, name, initializer=_yield_to_others)

    def start(self, function: Callable[[], _T]) -> asyncio.Future[_T]:
        """Run `function` in the thread, after those that wait for it."""
        return asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def run(self, function: Callable[[], _T]) -> _T:
        """As `start`; returns its result, or raises what it raises."""
        return await self.start(function)

    def close(self) -> None:
        """Drop the calls that have not begun."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _yield_to_others() -> None:
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        # On Linux a thread has a priority of its own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
