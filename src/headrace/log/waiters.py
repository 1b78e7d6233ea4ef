"""Who waits for new records of one partition.

Invariants: a waiter is notified in the turn of the loop in which the bound of its isolation level
moved: the high watermark, or the last stable offset. A waiter costs nothing until then.
"""

from __future__ import annotations

from typing import Protocol

from headrace.log.visibility import READ_UNCOMMITTED


class Waiter(Protocol):
    """Something that wants to know of new records."""

    def notify(self) -> None:
        """There may be something new. Must not block or raise."""
        ...


class Waiters:
    """The waiters of one partition, in the order in which they came."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[Waiter, int] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def add(self, waiter: Waiter, isolation: int = READ_UNCOMMITTED) -> None:
        """Notify `waiter` at each change until it leaves."""
        self._waiters[waiter] = isolation

    def discard(self, waiter: Waiter) -> None:
        """It wants to know no longer."""
        self._waiters.pop(waiter, None)

    def wake(self, *, has_committed: bool = True) -> None:
        """Notify all; unless `has_committed`, only those that want what is acknowledged."""
        for waiter, isolation in list(self._waiters.items()):
            if has_committed or isolation == READ_UNCOMMITTED:
                waiter.notify()
