"""Deadlines by key: one live entry per key, however often its deadline moves.

Invariants: `due` and `first_ms` change nothing, so a decision may look; only `arm` and `pass_until`
change anything. A deadline that moves further away leaves its entry where it is: the entry is found
early, looked at once, and armed again by the owner. Entries that count no more are dropped when
they outnumber those that do.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", str, int)

STALE_MIN: Final = 256
STALE_RATIO: Final = 4


class Deadlines(Generic[Key]):
    """See the module."""

    __slots__ = ("_armed_ms", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Key]] = []
        self._armed_ms: dict[Key, int] = {}

    def __len__(self) -> int:
        """Entries that are kept, with those that count no more."""
        return len(self._heap)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Deadlines)
            and self._armed_ms == other._armed_ms
            and sorted(self._heap) == sorted(other._heap)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def first_ms(self) -> int | None:
        """No deadline comes before this; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def arm(self, key: Key, deadline_ms: int) -> None:
        """Make sure that `key` is due no later than `deadline_ms`."""
        armed_ms = self._armed_ms.get(key)
        if armed_ms is None or deadline_ms < armed_ms:
            self._armed_ms[key] = deadline_ms
            heappush(self._heap, (deadline_ms, key))
            if len(self._heap) > STALE_MIN + STALE_RATIO * len(self._armed_ms):
                self._heap = [(at_ms, other) for other, at_ms in self._armed_ms.items()]
                heapify(self._heap)

    def disarm(self, key: Key) -> None:
        """`key` waits for nothing any more."""
        self._armed_ms.pop(key, None)

    def due(self, now_ms: int) -> list[Key]:
        """The keys whose entries have come, sorted."""
        heap, found, places = self._heap, set[Key](), [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now_ms:
                at_ms, key = heap[place]
                if self._armed_ms.get(key) == at_ms:
                    found.add(key)
                places += (2 * place + 1, 2 * place + 2)
        return sorted(found)

    def pass_until(self, now_ms: int) -> list[Key]:
        """Take out the entries up to `now_ms`; the keys to be armed again if they still wait."""
        passed: dict[Key, None] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, key = heappop(self._heap)
            if self._armed_ms.get(key) == at_ms:
                del self._armed_ms[key]
                passed[key] = None
        return list(passed)
