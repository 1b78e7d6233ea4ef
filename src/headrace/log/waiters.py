"""The waiters for new records of one partition.

Invariants: a waiter is notified in the turn of the loop in which the bound of its isolation level
advances: the high watermark, or the last stable offset. Until then a waiter costs nothing.
"""

from __future__ import annotations

from typing import Protocol

from headrace.log.visibility import READ_UNCOMMITTED


class Waiter(Protocol):
    """An object to notify of new records."""

    def notify(self) -> None:
        """There may be new records. Must not block or raise."""
        ...


class Waiters:
    """The waiters of one partition, in arrival order."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[Waiter, int] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def add(self, waiter: Waiter, isolation: int = READ_UNCOMMITTED) -> None:
        """Notify `waiter` of each change until it is discarded."""
        self._waiters[waiter] = isolation

    def discard(self, waiter: Waiter) -> None:
        """Stop notifying `waiter`."""
        self._waiters.pop(waiter, None)

    def wake(self, *, has_committed: bool = True) -> None:
        """Notify all waiters; unless `has_committed`, only those of uncommitted records."""
        for waiter, isolation in list(self._waiters.items()):
            if has_committed or isolation == READ_UNCOMMITTED:
                waiter.notify()
