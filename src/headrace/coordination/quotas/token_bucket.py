"""Rate limiting of one client: a token bucket that may go into debt.

Invariants: pure; the time is a parameter. The cost of a request is often known only after it was
served, so a charge always succeeds, and the client waits until the debt is paid. Over any window of
N seconds at most `rate * N + burst` passes, plus the one charge that led into debt.
"""

from __future__ import annotations

from math import ceil
from typing import Final

NS_PER_S: Final = 1_000_000_000
MS_PER_S: Final = 1_000
WAIT_MS_MAX: Final = 30_000
"""Clients time out after 30 s (`request.timeout.ms`): none is throttled for longer."""


class TokenBucket:
    """See the module."""

    __slots__ = ("_at_ns", "_burst", "_level", "rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, now_ns: int) -> None:
        """Starts full: `burst` may pass at once."""
        assert rate_per_s > 0, "a quota is positive"
        self.rate_per_s = rate_per_s
        self._burst = self._level = burst
        self._at_ns = now_ns

    def _refill(self, now_ns: int) -> None:
        if now_ns > self._at_ns:
            earned = self.rate_per_s * (now_ns - self._at_ns) / NS_PER_S
            self._level = min(self._burst, self._level + earned)
            self._at_ns = now_ns

    def set_rate(self, rate_per_s: float, burst: float, now_ns: int) -> None:
        """From now on; a debt stays."""
        self._refill(now_ns)
        self.rate_per_s, self._burst = rate_per_s, burst
        self._level = min(self._level, burst)

    def charge(self, amount: float, now_ns: int) -> int:
        """Take `amount`; returns for how many milliseconds the client is throttled from now on."""
        self._refill(now_ns)
        self._level -= amount
        return self.wait_ms(now_ns)

    def wait_ms(self, now_ns: int, rate_per_s: float = 0) -> int:
        """How long until the debt is paid, at most WAIT_MS_MAX; 0 without debt.

        `rate_per_s`: what the rate will be soon, if that is more.
        """
        self._refill(now_ns)
        if self._level >= 0:
            return 0
        rate = max(rate_per_s, self.rate_per_s)
        return min(ceil(-self._level / rate * MS_PER_S), WAIT_MS_MAX)

    def is_full(self, now_ns: int) -> bool:
        """Whether it is equivalent to a new bucket."""
        self._refill(now_ns)
        return self._level >= self._burst
