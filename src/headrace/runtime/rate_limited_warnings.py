"""Rate-limited warnings: each key at most once a minute, with a count of those suppressed.

Invariants: a fault that affects every request must neither fill the disk with log lines nor
go unreported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

    from headrace.runtime.clock import Clock

INTERVAL_NS = 60 * 1_000_000_000
KEYS_MAX = 1_000
"""Keys that are remembered. If there are more, all are dropped and may be logged again."""


class RateLimitedWarnings:
    """Logs each key at most once a minute."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged: dict[str, tuple[int, int]] = {}
        """Key -> (when it was last logged, occurrences since)."""

    def warn(self, key: str, message: str) -> None:
        """Log `message`, unless `key` was logged within the last minute."""
        now_ns = self._clock.now_ns()
        logged_ns, count = self._logged.get(key, (now_ns - INTERVAL_NS, 0))
        if now_ns - logged_ns < INTERVAL_NS:
            self._logged[key] = (logged_ns, count + 1)
            return
        if len(self._logged) >= KEYS_MAX:
            self._logged.clear()
        self._logged[key] = (now_ns, 0)
        since = f" (and {count} times more since the last warning)" if count else ""
        self._log.warning("%s%s", message, since)
