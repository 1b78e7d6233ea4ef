"""Slows down who tries passwords.

Invariants: a refusal comes after a delay (Kafka's `connection.failed.authentication.delay.ms`). An
address that keeps failing waits longer, and waits before its next password is looked at, so that
parallel attempts gain nothing. Nobody is locked out: after WAIT_MS_MAX every password is checked.
Addresses and waiting clients are bounded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.broker.security.client_addresses import client_address
from headrace.coordination.quotas.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

DELAY_MS: Final = 100
WAIT_MS_MAX: Final = 5_000
FREE_FAILURES: Final = 20
"""Of an address, before it waits longer: people, and programs that are configured wrongly."""
FAILURES_PER_S: Final = 1
"""At which an address earns its free failures again."""
ADDRESSES_MAX: Final = 10_000
"""The one that failed first starts over."""
WAITING_MAX: Final = 1_000
"""Clients that wait at the same time; others are answered at once."""


class FailedLogins:
    """See the module."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._waiting = 0
        self._addresses: dict[str, TokenBucket] = {}

    async def wait(self, host: str) -> None:
        """Before a login from this address: wait if it has failed often."""
        host = client_address(host)
        bucket = self._addresses.get(host)
        if bucket is None:
            return
        wait_ms = bucket.wait_ms(self._now_ns())
        if wait_ms:
            await self._sleep(wait_ms)
        elif bucket.is_full(self._now_ns()):
            self._addresses.pop(host, None)

    async def delay(self, host: str) -> None:
        """A login from this address has failed: wait before that is said."""
        host = client_address(host)
        bucket = self._addresses.get(host)
        now_ns = self._now_ns()
        if bucket is None:
            while len(self._addresses) >= ADDRESSES_MAX:
                del self._addresses[next(iter(self._addresses))]
            bucket = self._addresses[host] = TokenBucket(FAILURES_PER_S, FREE_FAILURES, now_ns)
        await self._sleep(max(DELAY_MS, bucket.charge(1, now_ns)))

    async def _sleep(self, wait_ms: int) -> None:
        if self._waiting >= WAITING_MAX:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(min(wait_ms, WAIT_MS_MAX) / 1_000)
        finally:
            self._waiting -= 1
