"""Logs requests that took long, with what they waited for; or every request, if asked to.

Invariants: costs one comparison for each request that is fast enough. Times that a client asked for
(long polls) do not count. What is logged of a request is its kind and client, never its content.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

OFF_NS: Final = 1 << 62
_MS_NS: Final = 1_000_000
_SHARE: Final = 10
"""A cause is named if it took a tenth of the time, or more."""


class SlowRequests:
    """The log of slow requests of one broker."""

    def __init__(self) -> None:
        self.threshold_ns = OFF_NS
        self.causes: list[tuple[str, Callable[[], int]]] = []
        """What may have taken the time, and how long it took last, in nanoseconds."""

    def set_threshold(self, threshold_ms: int) -> None:
        """Log requests from this duration on; 0: all; negative: none."""
        self.threshold_ns = OFF_NS if threshold_ms < 0 else threshold_ms * _MS_NS

    def note(self, what: str, client: str, took_ns: int, throttle_ms: int = 0) -> None:
        """A request took `took_ns`, which is at least the threshold."""
        reasons = [
            f"{cause} for {last_ns / _MS_NS:.1f} ms"
            for cause, last in self.causes
            if (last_ns := last()) * _SHARE >= took_ns > 0
        ]
        if throttle_ms:
            reasons.append(f"a quota throttles the client for {throttle_ms} ms")
        why = f" ({'; '.join(reasons)})" if reasons else ""
        log.info("%s from %s took %.1f ms%s", what, client, took_ns / _MS_NS, why)
