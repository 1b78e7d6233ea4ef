"""What anybody outside can make a broker log, bounded: a client must not fill the disk.

Invariants: a filter of the logging module. It limits the loggers that it is told of, each on
its own: `burst` records at once, then one every `interval_s`. The next that passes says how many
did not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.runtime.clock import Clock

BURST = 40
INTERVAL_S = 5


class LogLimit(logging.Filter):
    """See the module."""

    def __init__(
        self,
        names: Collection[str],
        clock: Clock,
        burst: int = BURST,
        interval_s: int = INTERVAL_S,
    ) -> None:
        super().__init__()
        self._clock = clock
        self._burst = burst
        self._interval_ns = interval_s * 1_000_000_000
        self._taken = dict.fromkeys(names, (0, 0))
        """Records that count still, and when they were counted last."""
        self._dropped = dict.fromkeys(names, 0)

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        name = record.name
        if name not in self._taken:
            return True
        now_ns = self._clock.now_ns()
        count, counted_ns = self._taken[name]
        over = min(count, (now_ns - counted_ns) // self._interval_ns)
        count -= over
        counted_ns = counted_ns + over * self._interval_ns if count else now_ns
        if count >= self._burst:
            self._taken[name] = (count, counted_ns)
            self._dropped[name] += 1
            return False
        self._taken[name] = (count + 1, counted_ns)
        if self._dropped[name]:
            record.msg = f"{record.getMessage()} (and {self._dropped[name]} such lines before it)"
            record.args = None
            self._dropped[name] = 0
        return True
