"""Warnings about things that happen again and again: once a minute each, with how often.

Invariants: a fault that every request meets must not fill a disk with its log, and must
not be silent either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

    from headrace.runtime.clock import Clock

INTERVAL_NS = 60 * 1_000_000_000
KEYS_MAX = 1_000
"""Things that are remembered; with more, all are forgotten and may be told of again."""


class SparseWarnings:
    """Logs each thing (`key`) at most once a minute."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._told: dict[str, tuple[int, int]] = {}
        """Key -> (when it was told of, how often it has come since)."""

    def warn(self, key: str, message: str) -> None:
        """Log `message`, unless the same key was told of within the last minute."""
        now_ns = self._clock.now_ns()
        told_ns, count = self._told.get(key, (now_ns - INTERVAL_NS, 0))
        if now_ns - told_ns < INTERVAL_NS:
            self._told[key] = (told_ns, count + 1)
            return
        if len(self._told) >= KEYS_MAX:
            self._told.clear()
        self._told[key] = (now_ns, 0)
        since = f" (and {count} times more since the last warning)" if count else ""
        self._log.warning("%s%s", message, since)
