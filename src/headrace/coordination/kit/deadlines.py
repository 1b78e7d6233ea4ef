"""Deadlines by key: one live entry per key, however often its deadline moves.

Invariants: `due` and `first_ms` are read-only, so a decision may call them; only `arm`, `disarm`
and `pass_until` change state. A deadline that moves later leaves its entry in place: the entry
comes up early, is checked, and the owner arms it again. Stale entries are dropped once they
outnumber the live ones.
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
        """Entries, including stale ones."""
        return len(self._heap)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Deadlines)
            and self._armed_ms == other._armed_ms
            and sorted(self._heap) == sorted(other._heap)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def first_ms(self) -> int | None:
        """A lower bound of all deadlines; None: there are none."""
        return self._heap[0][0] if self._heap else None

    def arm(self, key: Key, deadline_ms: int) -> None:
        """Ensure that `key` is due no later than `deadline_ms`."""
        armed_ms = self._armed_ms.get(key)
        if armed_ms is None or deadline_ms < armed_ms:
            self._armed_ms[key] = deadline_ms
            heappush(self._heap, (deadline_ms, key))
            if len(self._heap) > STALE_MIN + STALE_RATIO * len(self._armed_ms):
                self._heap = [(at_ms, other) for other, at_ms in self._armed_ms.items()]
                heapify(self._heap)

    def disarm(self, key: Key) -> None:
        """Remove the deadline of `key`."""
        self._armed_ms.pop(key, None)

    def due(self, now_ms: int) -> list[Key]:
        """The keys whose entries are due, sorted."""
        heap, found, places = self._heap, set[Key](), [0]
        while places:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= now_ms:
                at_ms, key = heap[place]
                if self._armed_ms.get(key) == at_ms:
                    found.add(key)
                places += (2 * place + 1, 2 * place + 2)
        return sorted(found)

    def limit_ms(self, now_ms: int, most: int) -> int:
        """The time, `now_ms` at the latest, up to which at least `most` entries are due: more only
        where they are due at the same time. Looks at that many."""
        heap = self._heap
        ahead = [(heap[0][0], 0)] if heap else []
        while ahead:
            at_ms, place = heappop(ahead)
            most -= 1
            if at_ms >= now_ms:
                break
            if not most:
                return at_ms
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heappush(ahead, (heap[child][0], child))
        return now_ms

    def pass_until(self, now_ms: int) -> list[Key]:
        """Remove the entries up to `now_ms`; returns the keys to arm again if they still wait."""
        passed: dict[Key, None] = {}
        while self._heap and self._heap[0][0] <= now_ms:
            at_ms, key = heappop(self._heap)
            if self._armed_ms.get(key) == at_ms:
                del self._armed_ms[key]
                passed[key] = None
        return list(passed)
