"""Time, as the rest of Headrace sees it.

Invariants: wall time is `now_ms` (int, since the epoch), monotonic time is `now_ns`.
No other module imports `time`; a simulation brings its own Clock.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final, Protocol

_BOOT_TIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux's. Elsewhere the monotonic clock has to do."""


class Clock(Protocol):
    """Two readings: what the calendar says, and what only ever goes forward."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; may jump when the machine's clock is set."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds since some fixed point; never goes back."""
        ...


def process_cpu_ns() -> int:
    """CPU time that this process has used so far, in nanoseconds."""
    return time.process_time_ns()


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000

    now_ns = staticmethod(time.monotonic_ns)


class BootTimeClock:
    """The machine's clock, whose monotonic time goes on while the machine is suspended.

    What compares it with a session of another machine's must know that time has passed. It costs
    0.1 us more to read than SystemClock, so a broker without such a session uses that one.
    """

    __slots__ = ()

    def now_ms(self) -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000

    now_ns = staticmethod(partial(time.clock_gettime_ns, _BOOT_TIME))
