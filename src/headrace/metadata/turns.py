"""Of each key one read, or one change, at a time, so that an older entry never follows a newer one.

Invariants: knows keys only. Two accesses to a key that do not overlap see the store in the order in
which they are made, as a store never goes back behind what it has answered. Versions need not be
compared, and could not be: that of a key that was deleted and created again begins anew.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from headrace.runtime.fair_locks import unpaced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator


class Turns:
    """The keys under one prefix that are being read or changed."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._freed = asyncio.Event()
        self._overlapping: list[set[str]] = []
        """Of each list under way, the keys that were taken at any time since it began."""
        self.on_free: Callable[[], None] = lambda: None

    def is_free(self, key: str) -> bool:
        """Whether the key is neither read nor changed."""
        return key not in self._taken

    def take(self, keys: Iterable[str]) -> None:
        """Begin to read or change these keys, which are free."""
        for key in keys:
            assert key not in self._taken, key
            self._taken.add(key)
            for taken in self._overlapping:
                taken.add(key)

    def free(self, keys: Iterable[str]) -> None:
        """What was read or stored has been applied."""
        self._taken.difference_update(keys)
        self._freed.set()
        self._freed = asyncio.Event()
        self.on_free()

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Wait until the key is free, and take it."""
        with unpaced():
            while key in self._taken:
                await self._freed.wait()
            self.take([key])
            try:
                yield
            finally:
                self.free([key])

    @contextmanager
    def overlapping(self) -> Iterator[set[str]]:
        """While all keys are read: those whose listed entry may be older than what is known."""
        taken = set(self._taken)
        self._overlapping.append(taken)
        try:
            yield taken
        finally:
            self._overlapping.remove(taken)
