"""Locks, and places for long work, that requests hold across awaits.

Invariants: knows who asks (`loop_turns.Path`), not for what. Those that wait have it in turns:
tenants, users and connections, so nobody waits for more than one request of another. Who holds what
others wait for does not wait for the turns of its client's other requests, or a flood of one client
would stop all: the holder of a lock (`Hold.SHORT`) goes on at once, from when it begins to wait on,
and work that takes long (`Hold.LONG`) has its user's next turn. `asyncio.Lock` knows neither, so it
is for tasks of the broker only (`banned-api` of pyproject.toml).
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Final

from headrace.runtime.loop_turns import FairQueue, admit, paced_here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.runtime.loop_turns import Path


TASK: Final[Path] = ("a task of the broker",)
"""The path of what is not paced."""


class Hold(Enum):
    """What is done with it."""

    SHORT = "short"
    LONG = "long"


@contextmanager
def unpaced() -> Iterator[None]:
    """The request that runs takes no turns meanwhile: others wait for what it does."""
    paced = paced_here()
    if paced is None:
        yield
        return
    paced.unpaced_count += 1
    try:
        yield
    finally:
        paced.unpaced_count -= 1


class FairLock:
    """See the module. `async with` it, or `acquire` and `release`, in one task."""

    __slots__ = ("_free_count", "_hold", "_waiting")

    def __init__(self, count: int = 1, hold: Hold = Hold.SHORT) -> None:
        """`count`: how many may hold it at once."""
        self._free_count = count
        self._hold = hold
        self._waiting = FairQueue()

    def locked(self) -> bool:
        """Whether the next one has to wait."""
        return not self._free_count

    async def acquire(self) -> None:
        """Hold it, as soon as it is this one's turn."""
        paced = paced_here()
        self._mark(1)
        try:
            await self._take(TASK if paced is None else paced.path)
        except BaseException:
            self._mark(-1)
            raise

    async def _take(self, path: Path) -> None:
        if self._free_count:
            self._free_count -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(path, turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._waiting.remove(path, turn)
            if not turn.cancelled():  # it was its turn
                self._pass_on()
            raise

    def release(self) -> None:
        """The next one holds it."""
        self._mark(-1)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            if admit(self._waiting.pop()):
                return
        self._free_count += 1

    def _mark(self, change: int) -> None:
        """Count what the request that runs holds."""
        paced = paced_here()
        if paced is None:
            return
        if self._hold is Hold.SHORT:
            paced.unpaced_count += change
        else:
            paced.first_count += change

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()
