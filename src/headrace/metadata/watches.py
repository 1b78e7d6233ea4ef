"""Shared parts of the metadata stores: the versioning rule, and watches.

Invariants: independent of any store. Used by the event loop's thread only. A slow watcher costs
memory once per key and does not delay others: changes of one key are coalesced.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from headrace.errors import VersionConflict
from headrace.metadata.store import ABSENT, ANY

if TYPE_CHECKING:
    from collections.abc import Iterable


def next_version(key: str, found: int, expected: int) -> int:
    """The version of `key` after a put, given its version (or ABSENT) before.

    Raises VersionConflict if that is not the expected one.
    """
    if expected not in {ANY, found}:
        raise VersionConflict(
            f"{key} has version {found}, not {expected}: read it again, then decide again",
            key=key,
            expected=expected,
            actual=found,
        )
    return 0 if found == ABSENT else found + 1


class Watch:
    """An iterator over the changed keys under one prefix. Only one task at a time may wait.

    It ends when its store closes, and counts as closed once it is unreferenced.
    """

    __slots__ = ("__weakref__", "_changed", "_error", "_is_closed", "_wakeup", "prefix")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._changed: dict[str, None] = {}  # a dict preserves the order of changes
        self._wakeup: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._is_closed = False

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> str:
        """The next changed key. Raises the error with which the store stopped watching."""
        while not self._changed:
            if self._error is not None:
                raise self._error
            if self._is_closed:
                raise StopAsyncIteration
            assert self._wakeup is None or self._wakeup.done(), "two tasks wait on one watch"
            self._wakeup = asyncio.get_running_loop().create_future()
            await self._wakeup
        key = next(iter(self._changed))
        del self._changed[key]
        return key

    async def aclose(self) -> None:
        """Stop watching; a pending iteration ends."""
        self.close()

    def notify(self, key: str) -> None:
        """Report that `key` changed."""
        if not self._is_closed:
            self._changed[key] = None
            self._wake()

    def close(self, error: BaseException | None = None) -> None:
        """End the iteration after the keys already reported, with `error` if given."""
        self._is_closed = True
        self._error = error
        self._wake()

    @property
    def is_closed(self) -> bool:
        """Whether it receives no further keys."""
        return self._is_closed

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)


class Watches:
    """All watches of one store."""

    def __init__(self) -> None:
        self._watches: list[weakref.ref[Watch]] = []

    def add(self, prefix: str) -> Watch:
        """Add a watch of the keys that start with `prefix`."""
        watch = Watch(prefix)
        self._watches.append(weakref.ref(watch))
        return watch

    def has_any(self) -> bool:
        """Whether there are any watches."""
        return bool(self._alive())

    def notify(self, keys: Iterable[str]) -> None:
        """Report that these keys changed, in this order."""
        alive = self._alive()
        for key in keys:
            for watch in alive:
                if key.startswith(watch.prefix):
                    watch.notify(key)

    def close(self, error: BaseException | None = None) -> None:
        """End all iterations."""
        for watch in self._alive():
            watch.close(error)
        self._watches.clear()

    def _alive(self) -> list[Watch]:
        alive = [watch for ref in self._watches if (watch := ref()) and not watch.is_closed]
        if len(alive) < len(self._watches):
            self._watches = [weakref.ref(watch) for watch in alive]
        return alive
