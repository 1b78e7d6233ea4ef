"""Who waits for new records of one partition.

Rules of the room: a waiter asks to be told once; it is told in the turn of the loop in which the
high watermark moved. Nothing is done for those who wait until then.
"""

from __future__ import annotations

from typing import Protocol


class Waiter(Protocol):
    """Something that wants to know of new records."""

    def notify(self) -> None:
        """There may be something new. Must not block or raise."""
        ...


class Waiters:
    """The waiters of one partition, in the order in which they came."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[Waiter, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def add(self, waiter: Waiter) -> None:
        """Tell `waiter` at the next change."""
        self._waiters[waiter] = None

    def discard(self, waiter: Waiter) -> None:
        """It wants to know no longer."""
        self._waiters.pop(waiter, None)

    def wake(self) -> None:
        """Tell all. They stay until they leave by themselves."""
        for waiter in list(self._waiters):
            waiter.notify()
