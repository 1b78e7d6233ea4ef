"""Where the records of each lite topic lie in a partition.

Invariants: eight bytes for each record that the log still has, and one small object for each lite
topic; nothing is done for one that gets no records. Lite topics are in the order of their last
record, so the next one to expire, or to be without records, is the first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import takewhile
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator

TRIM_MIN: Final = 64
"""Offsets before the start of the log that a lite topic keeps at most."""


class LiteIndex:
    """See the module."""

    def __init__(self) -> None:
        self.end = 0
        """The offset up to which records are known."""
        self.start = 0
        """The start of the log."""
        self._offsets: dict[str, array[int]] = {}
        self._last_ms: dict[str, int] = {}
        self.orphans: dict[str, None] = {}
        """Lite topics without records in which a group has progress, or had."""

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, name: str) -> bool:
        return name in self._offsets

    def add(self, name: str, offset: int, timestamp_ms: int) -> None:
        """A record that follows all others."""
        offsets = self._offsets.pop(name, None)
        if offsets is None:
            offsets = array("q")
            self.orphans.pop(name, None)
        elif len(offsets) > TRIM_MIN and offsets[TRIM_MIN] < self.start:
            del offsets[: bisect_left(offsets, self.start)]
        offsets.append(offset)
        self._offsets[name] = offsets  # as the last one
        self._last_ms[name] = max(timestamp_ms, self._last_ms.get(name, 0))

    def keep(self, name: str, now_ms: int) -> None:
        """As if a record had come now."""
        if name in self._offsets:
            self._offsets[name] = self._offsets.pop(name)
            self._last_ms[name] = now_ms

    def drop(self, name: str) -> None:
        """The lite topic has no records any more. It is an orphan once a group says so."""
        self._offsets.pop(name, None)
        self.orphans.pop(name, None)
        self._last_ms.pop(name, None)

    def remove(self, name: str, first: int, last: int) -> None:
        """Its records from `first` to `last` are not there any more."""
        offsets = self._offsets.get(name)
        if offsets is not None:
            del offsets[bisect_left(offsets, first) : bisect_left(offsets, last + 1)]
            if not offsets:
                self.drop(name)

    def last(self, name: str) -> int:
        """The offset of its last record; -1: it has none."""
        offsets = self._offsets.get(name)
        return offsets[-1] if offsets else -1

    def last_ms(self, name: str) -> int:
        """The time of its last record."""
        return self._last_ms[name]

    def oldest(self) -> Iterator[str]:
        """The lite topics, in the order of their last records."""
        return iter(self._offsets)

    def before(self, offset: int) -> Iterator[str]:
        """Those whose records are all before `offset`."""
        return takewhile(lambda name: self.last(name) < offset, self.oldest())

    def left(self, name: str, position: int, without: Collection[int]) -> tuple[int, int]:
        """(how many offsets from `position` on, except some, which are after it; the first one)."""
        offsets = self._offsets.get(name)
        if offsets is None:
            return 0, -1
        at = bisect_left(offsets, max(position, self.start))
        count = len(offsets) - at
        if not without or not count:
            return count, offsets[at] if count else -1
        there = sum(1 for one in without if self._has(offsets, one) and one >= offsets[at])
        if there == count:
            return 0, -1
        return count - there, next(self.after(name, position, without))

    @staticmethod
    def _has(offsets: array[int], offset: int) -> bool:
        at = bisect_left(offsets, offset)
        return at < len(offsets) and offsets[at] == offset

    def after(self, name: str, position: int, without: Container[int]) -> Iterator[int]:
        """The offsets from `position` on, ascending, except some."""
        offsets = self._offsets.get(name)
        if offsets is None:
            return iter(())
        at = bisect_left(offsets, max(position, self.start))
        all_of_it = (offsets[place] for place in range(at, len(offsets)))
        return (offset for offset in all_of_it if offset not in without)
