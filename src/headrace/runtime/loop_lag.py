"""How late the event loop runs its timers: what every request waits at least.

Invariants: one timer for the whole process, four times a second; knows the loop and the clock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.runtime.figures import Figures, figure
from headrace.runtime.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.runtime.clock import Clock

INTERVAL_S: Final = 0.25
_INTERVAL_NS: Final = int(INTERVAL_S * 1e9)


class LoopLag:
    """The lag of one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.histogram = Histogram()
        self.last_ns = 0
        """The lag measured last."""

    def figures(self) -> Sequence[Figures]:
        """See `runtime.figures`."""
        return [figure("headrace_loop_lag_seconds", self.histogram)]

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            begun_ns = self._clock.now_ns()
            await asyncio.sleep(INTERVAL_S)
            self.last_ns = max(self._clock.now_ns() - begun_ns - _INTERVAL_NS, 0)
            self.histogram.add(self.last_ns)
