"""Work that is repeated at an interval, which may change.

Invariants: the first round comes one interval after the start. A changed interval applies to the
pause that has begun. An error in a round is logged, and does not prevent the next one.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class Rounds:
    """See the module."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def intervals_changed(self) -> None:
        """Any interval may have changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def run(
        self, name: str, interval_ms: Callable[[], int], work: Callable[[], Awaitable[object]]
    ) -> None:
        """Repeat `work` until cancelled; `interval_ms` is asked again when intervals change."""
        while True:
            await self._pause(interval_ms)
            try:
                await work()
            except Exception:
                log.exception("internal error in %s", name)

    async def _pause(self, interval_ms: Callable[[], int]) -> None:
        now_s = asyncio.get_running_loop().time
        begun_s = now_s()
        while (end_s := begun_s + interval_ms() / 1_000) > now_s():
            with suppress(TimeoutError):
                async with asyncio.timeout_at(end_s):
                    await self._changed.wait()
