"""What a group has left of its lite topics: how many records, and the first one.

Invariants: has an entry for each lite topic with unfinished records, and none for others; a change
of one costs the logarithm of their number, and both answers cost nothing.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

STALE_MIN: Final = 256
STALE_RATIO: Final = 2
"""Entries of the heap that are out of date, before and per lite topic."""


Left = tuple[int, str, int]
"""The unfinished records of a lite topic: (offset of the first one, its name, how many)."""
FIRST: Final = 0
NAME: Final = 1
COUNT: Final = 2


class LiteBacklog:
    """See the module."""

    __slots__ = ("_heap", "_left", "records")

    def __init__(self) -> None:
        self.records = 0
        """Unfinished records of all lite topics."""
        self._left: dict[str, Left] = {}
        self._heap: list[Left] = []

    def set(self, name: str, count: int, first: int) -> None:
        """The lite topic has so many unfinished records from `first` on, or none."""
        before = self._left.get(name)
        if count:
            self.records += count
            left = self._left[name] = first, name, count
            if before is not None and before[FIRST] == first:
                self.records -= before[COUNT]
                return  # most often: another one has arrived
            heappush(self._heap, left)
        if before is not None:
            self.records -= before[COUNT]
            if not count:
                del self._left[name]
        self._tidy()

    def _tidy(self) -> None:
        """Keep an entry that is up to date at the top, and few others that are not."""
        heap, left = self._heap, self._left
        if len(heap) > STALE_MIN + STALE_RATIO * len(left):
            self._heap = heap = list(left.values())
            heapify(heap)
        while heap:
            now = left.get(heap[0][NAME])
            if now is not None and now[FIRST] == heap[0][FIRST]:
                return
            heappop(heap)

    def first(self) -> int | None:
        """The offset of the first unfinished record of any lite topic; None: there is none."""
        return self._heap[0][FIRST] if self._heap else None

    def first_name(self) -> str:
        """The lite topic of the record at `first()`."""
        return self._heap[0][NAME]
