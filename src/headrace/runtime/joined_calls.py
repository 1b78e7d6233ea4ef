"""Joins the calls that arrive in one turn of the event loop.

Invariants: each call gets its own result, or why none is known, and never before `call` returns.
Calls of one batch are carried out in the order in which they arrived; batches run side by side. A
batch is a task, a call is none: a task and a future for each cost a quarter of a small call.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence

    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)
_K = TypeVar("_K", bound="Hashable")
_C = TypeVar("_C")
_R = TypeVar("_R")


class JoinedCalls(Generic[_K, _C, _R]):
    """See the module."""

    def __init__(
        self,
        tasks: Tasks,
        what: str,
        run: Callable[[_K, Sequence[_C]], Awaitable[Sequence[_R]]],
        cut: Callable[[Sequence[_C]], Iterable[Sequence[_C]]],
    ) -> None:
        """`run`: carries out calls with the same key; their results. `cut`: cuts calls to batches,
        in order."""
        self._tasks = tasks
        self._what = what
        self._run = run
        self._cut = cut
        self._arrived: dict[_K, list[tuple[_C, Callable[[_R | Exception], None]]]] = {}

    def call(self, key: _K, call: _C, done: Callable[[_R | Exception], None]) -> None:
        """Carry out a call, together with others of this key; `done` gets its result."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._begin)
        self._arrived.setdefault(key, []).append((call, done))

    def _begin(self) -> None:
        arrived, self._arrived = self._arrived, {}
        for key, calls in arrived.items():
            waiting = iter([done for _call, done in calls])
            for batch in self._cut([call for call, _done in calls]):
                of_batch = [next(waiting) for _call in batch]
                self._tasks.spawn(self._carry_out(key, batch, of_batch), self._what)

    async def _carry_out(
        self, key: _K, batch: Sequence[_C], waiting: Sequence[Callable[[_R | Exception], None]]
    ) -> None:
        try:
            found: Sequence[_R | Exception] = await self._run(key, batch)
        except Exception as error:  # noqa: BLE001 - each caller gets it
            found = [error] * len(waiting)
        for done, result in zip(waiting, found, strict=True):
            try:
                done(result)
            except Exception:  # of one call: the others of its batch get theirs
                log.exception("internal error while one of several %s was answered", self._what)
