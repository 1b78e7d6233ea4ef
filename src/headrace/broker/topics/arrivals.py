"""Waits for topics that another broker knew before this one.

Invariants: a wait ends with the turn in which the topic becomes known here, or after its time; it
looks at nothing meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from uuid import UUID


class TopicArrivals:
    """The waits of one broker."""

    def __init__(self, known: Container[UUID]) -> None:
        """`known`: the ids of the topics that this broker knows."""
        self._known = known
        self._awaited: dict[UUID, list[asyncio.Future[None]]] = {}

    def came(self, topic_id: UUID) -> None:
        """The topic is known from here on."""
        for waiting in self._awaited.pop(topic_id, ()):
            if not waiting.done():
                waiting.set_result(None)

    def look_again(self, find: Callable[[UUID], object]) -> None:
        """Other topics than before may be known."""
        for topic_id in [one for one in self._awaited if find(one) is not None]:
            self.came(topic_id)

    async def wait(self, topic_id: UUID, timeout_s: float) -> None:
        """Return when the topic is known, or after `timeout_s`."""
        if topic_id in self._known:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(topic_id, []).append(waiting)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await waiting
        finally:
            left = self._awaited.get(topic_id)
            if left is not None:
                left.remove(waiting)
                if not left:
                    del self._awaited[topic_id]
