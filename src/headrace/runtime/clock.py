"""The clock interface of Headrace.

Invariants: wall time is `now_ms` (int, since the epoch), monotonic time is `now_ns`.
No other module imports `time`; the simulation brings its own Clock.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final, Protocol

_BOOT_TIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux only; other systems fall back to the monotonic clock."""


class Clock(Protocol):
    """Wall time and monotonic time."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch; jumps when the system clock is set."""
        ...

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary fixed point; never goes back."""
        ...


def process_cpu_ns() -> int:
    """CPU time used by this process so far, in nanoseconds."""
    return time.process_time_ns()


class SystemClock:
    """The system clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000

    now_ns = staticmethod(time.monotonic_ns)


class BootTimeClock:
    """The system clock, with monotonic time that also advances while the machine is suspended.

    Required for comparisons with a session kept by another machine. A read costs 0.1 us more than
    with SystemClock, so brokers without such a session use that one.
    """

    __slots__ = ()

    def now_ms(self) -> int:
        """See Clock."""
        return time.time_ns() // 1_000_000

    now_ns = staticmethod(partial(time.clock_gettime_ns, _BOOT_TIME))
