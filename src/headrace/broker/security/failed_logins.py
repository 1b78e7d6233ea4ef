"""Slows down who tries passwords.

Invariants: a refusal comes after a delay, the same for everybody (Kafka's
`connection.failed.authentication.delay.ms`). Refusals that wait are bounded.
"""

from __future__ import annotations

import asyncio
from typing import Final

DELAY_S: Final = 0.1
WAITING_MAX: Final = 1_000
"""Refusals that wait at the same time; others are sent at once."""


class FailedLogins:
    """See the module."""

    def __init__(self) -> None:
        self._waiting = 0

    async def delay(self) -> None:
        """Wait before a refusal is sent."""
        if self._waiting >= WAITING_MAX:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(DELAY_S)
        finally:
            self._waiting -= 1
