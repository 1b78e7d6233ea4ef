"""Rate limit for log messages that clients can provoke, so that a client cannot fill the disk.

Invariants: a `logging` filter. Each named logger has its own limit: a burst of `burst` records,
then one per `interval_s`. The next record that passes reports how many were dropped.
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
        """Logger -> (records counted against the burst, when the count was last updated)."""
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
            record.msg = f"{record.getMessage()} (and {self._dropped[name]} similar lines dropped)"
            record.args = None
            self._dropped[name] = 0
        return True
