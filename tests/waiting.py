"""Waits in tests for a condition that no event announces."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
WAIT_S = 60
POLL_S = 0.005


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition()` is true. Raises TimeoutError after a minute, which no machine needs
    unless the condition never holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(POLL_S)


def wait_until(condition: Callable[[], T], timeout_s: float = WAIT_S, every_s: float = 0.05) -> T:
    """The first true value that `condition()` gives; `until` for tests without a loop."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {condition}"
        time.sleep(every_s)
    return value
