"""Waits in tests for a condition that no event announces."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 60
POLL_S = 0.005


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition()` is true. Raises TimeoutError after a minute, which no machine needs
    unless the condition never holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(POLL_S)
