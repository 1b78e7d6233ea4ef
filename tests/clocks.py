"""Clocks that tests move."""

from __future__ import annotations

import time

from headrace.runtime.clock import SystemClock

NS_PER_MS = 1_000_000


class HandClock:
    """Stands still until a test moves it, or moves by `step_ms` whenever the calendar is read."""

    def __init__(self, ms: int = 0, skew_ms: int = 0, step_ms: int = 0) -> None:
        self.ns = ms * NS_PER_MS
        self._step_ns = step_ms * NS_PER_MS
        self.skew_ms = skew_ms
        """What the calendar is ahead of the time that passes."""

    @property
    def ms(self) -> int:
        return self.ns // NS_PER_MS

    @ms.setter
    def ms(self, value: int) -> None:
        self.ns = value * NS_PER_MS

    def now_ms(self) -> int:
        self.ns += self._step_ns
        return self.ms + self.skew_ms

    def now_ns(self) -> int:
        return self.ns


class AheadClock(SystemClock):
    """The system clock, ahead by as many milliseconds as a test lets pass at once."""

    __slots__ = ("ahead_ms",)

    def __init__(self) -> None:
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return SystemClock.now_ms(self) + self.ahead_ms

    def now_ns(self) -> int:
        return time.monotonic_ns() + self.ahead_ms * NS_PER_MS
