"""A shard's time, and its one timer.

Invariants: time is the monotonic clock, aligned with the wall clock by `align` alone, so that
setting the wall clock does not expire a thousand sessions. It stands still from `stand_still` to
`go_on`, and is late by that until the next `align`. The timer fires no earlier than asked for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.runtime.clock import Clock


class ShardTime:
    """See the module."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._zero_ms = 0
        self._stood_at_ms = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def align(self) -> None:
        """Take over the wall clock's time."""
        self._zero_ms = self._clock.now_ms() - self._clock.now_ns() // 1_000_000

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return self._clock.now_ns() // 1_000_000 + self._zero_ms

    def wake_at(self, at_ms: int) -> None:
        """Wake at this time, or earlier if that has been asked for."""
        if self._timer is not None:
            if self._timer_ms <= at_ms:
                return
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        wait_ms = max(at_ms - self.now_ms(), 1)
        self._timer_ms = at_ms
        self._timer = loop.call_at(loop.time() + wait_ms / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._wake()

    def cancel(self) -> None:
        """Do not wake."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stand_still(self) -> None:
        """Let no time pass, and do not wake."""
        self.cancel()
        self._stood_at_ms = self.now_ms()

    def go_on(self) -> None:
        """Let time pass again."""
        self._zero_ms -= self.now_ms() - self._stood_at_ms
