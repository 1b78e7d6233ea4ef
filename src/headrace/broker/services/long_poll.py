"""A single wait for any of several partitions: the basis of every face's long polls.

Invariants: a wait costs nothing until a source changes, and never a task; however many sources
change in one turn of the loop, the waiter looks once, at the end of that turn. A wait ends by
itself when its time is over, and unregisters from its sources.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.shares.hosted_shares import Pause
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.topics.topic import Topic
    from headrace.log.waiters import Waiters

WAKE_LATE_MS: Final = 2
"""The shard's timer handles an expired lock shortly after its deadline."""


class LongPoll:
    """A wait on any number of sources. Calls `look(is_over)` until it is ended.

    `is_over`: the time is over, and the wait has ended by itself.
    """

    __slots__ = ("_is_scheduled", "_look", "_loop", "_sources", "_timer", "has_ended")

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[bool], None]) -> None:
        self._loop = loop
        self._look = look
        self._sources: list[Waiters] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_scheduled = False
        self.has_ended = False

    def watch(self, source: Waiters, isolation: int) -> None:
        """Look whenever `source` changes for readers of this isolation level."""
        source.add(self, isolation)
        self._sources.append(source)

    def begin(self, timeout_s: float) -> None:
        """Look once more when the time is over."""
        self._timer = self._loop.call_later(timeout_s, self.expire)

    def notify(self) -> None:
        """See Waiter: look at the end of this turn."""
        if not self._is_scheduled and not self.has_ended:
            self._is_scheduled = True
            self._loop.call_soon(self._look_once)

    def end(self) -> None:
        """Stop looking. May be called again."""
        if self.has_ended:
            return
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        for source in self._sources:
            source.discard(self)

    def expire(self) -> None:
        """End the wait, and look for the last time. Called when the time is over, or earlier."""
        if not self.has_ended:
            self.end()
            self._look(True)

    def _look_once(self) -> None:
        self._is_scheduled = False
        if not self.has_ended:
            self._look(False)


async def wait_for_records(
    shares: SharePartitions,
    waiting: Sequence[tuple[Topic, int, Pause]],
    timeout_s: float,
    session: Waiters | None = None,
) -> None:
    """Return when one of the partitions may have more than a receive saw, or after `timeout_s`.

    Also when one of them cannot be watched, for example after a change of its owner: the next
    receive returns the error. `session`: notifies when the waiting session has ended.
    """
    try:
        watched = [
            (await shares.watched(topic, number, pause), pause) for topic, number, pause in waiting
        ]
    except HeadraceError:
        return
    sources = [one for partition, pause in watched for one in partition.sources(pause)]
    if session is not None:
        sources.append((session, 0))
    for _partition, pause in watched:
        if pause.wait_ms >= 0:
            timeout_s = min(timeout_s, (pause.wait_ms + WAKE_LATE_MS) / 1000)
    await wait_for_change(
        sources, lambda: any(one.has_changed(pause) for one, pause in watched), timeout_s
    )


async def wait_for_change(
    sources: Sequence[tuple[Waiters, int]], has_changed: Callable[[], bool], timeout_s: float
) -> None:
    """Return at once if `has_changed()`, when a source notifies, or after `timeout_s`.

    `sources`: each with the isolation level to wait at.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def look(_is_over: bool) -> None:  # a callback
        if not done.done():
            done.set_result(None)

    poll = LongPoll(loop, look)
    try:
        # No await between here and the wait, so that nothing is missed.
        if has_changed():
            return
        for source, isolation in sources:
            poll.watch(source, isolation)
        poll.begin(timeout_s)
        await done
    finally:
        poll.end()
