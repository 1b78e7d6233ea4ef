"""Ends requests that wait, such as a receive, once their client's login has ended or a right of it
was withdrawn: within a second, as streams end.

Invariants: one timer for all requests that wait, and none while none does.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

LOGIN_CHECK_S: Final = 1.0
"""How often what waits is checked again, so that it ends soon after its login."""


class LoginWatch:
    """See the module."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Timeout, Callable[[], None]] = {}
        self._ended: dict[asyncio.Timeout, HeadraceError] = {}
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def watched(self, check: Callable[[], None]) -> AsyncIterator[None]:
        """Cancel what waits within the context once `check` raises, and raise the same."""
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waiting[wait] = check
                self._start()
                try:
                    yield
                finally:
                    del self._waiting[wait]
        except TimeoutError:
            error = self._ended.pop(wait, None)
            if error is None:  # of the request's own
                raise
            raise error from None
        finally:
            self._ended.pop(wait, None)

    def _start(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(LOGIN_CHECK_S, self._check_all)

    def _check_all(self) -> None:
        self._timer = None
        for wait, check in self._waiting.items():
            if wait in self._ended:
                continue
            try:
                check()
            except HeadraceError as error:
                self._ended[wait] = error
                wait.reschedule(asyncio.get_running_loop().time())
        if self._waiting:
            self._start()
