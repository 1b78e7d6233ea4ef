"""Threads for computations that take milliseconds, such as password hashes.

Invariants: `SlowCalls` is one thread at a lower priority, so that however many calls wait, the
event loop keeps a core, and is preferred on a machine that has only one. Callers bound how many
wait.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")
NICENESS: Final = 5
SWITCH_S: Final = 0.000_5
"""How long a thread may go on while the event loop waits for it, in place of Python's 5 ms."""


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


_preferred: Final[list[float]] = []
"""The intervals to return to, one for each computation that runs."""


@contextmanager
def loop_first() -> Iterator[None]:
    """While Python code runs in another thread: the event loop gets Python's lock within SWITCH_S.
    It gives it up in each of its turns, so each would wait for 5 ms for the thread, or for each of
    several. Only for the event loop."""
    _preferred.append(sys.getswitchinterval())
    sys.setswitchinterval(min(SWITCH_S, _preferred[0]))
    try:
        yield
    finally:
        former = _preferred.pop()
        if not _preferred:
            sys.setswitchinterval(former)


def _yield_to_others() -> None:
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        # On Linux a thread has a priority of its own.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
