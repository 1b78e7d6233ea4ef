"""Starts and stops a broker: parts close in reverse order, and a failing part does not keep others
open."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.settings.kinds import ADMIN_LISTENER
from headrace.metadata.endpoints import HTTP, KAFKA, ROCKETMQ
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.metadata.endpoints import Endpoint
    from headrace.server.listener_tls import Certificates

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30
"""Per part; data is safe without a clean stop, which only speeds up the next start."""


class Broker:
    """A running broker."""

    def __init__(
        self,
        close_store: Callable[[], Awaitable[None]],
        certificates: Certificates | None = None,
    ) -> None:
        self.bound: list[Endpoint] = []
        """The bound listeners."""
        self.certificates = certificates
        self._closers: list[Callable[[], Awaitable[None]]] = [close_store]
        self._stop = FairLock()

    def addresses(self, face: str) -> list[tuple[str, int]]:
        """The addresses on which a face listens, first listener first."""
        return [(one.host, one.port) for one in self.bound if one.face == face]

    @property
    def kafka(self) -> tuple[str, int]:
        """The address of the first listener for Kafka clients."""
        return self.addresses(KAFKA)[0]

    @property
    def http(self) -> list[tuple[str, int]]:
        """The addresses of the HTTP API, the first listener's first."""
        found = (one for one in self.bound if one.face == HTTP)
        return [(one.host, one.port) for one in found if one.listener != ADMIN_LISTENER]

    @property
    def admin(self) -> tuple[str, int] | None:
        """The address that serves health and metrics alone, if there is one."""
        found = (one for one in self.bound if one.listener == ADMIN_LISTENER)
        return next(((one.host, one.port) for one in found), None)

    @property
    def rocketmq(self) -> tuple[str, int] | None:
        """The address for RocketMQ's clients, if there is one."""
        return next(iter(self.addresses(ROCKETMQ)), None)

    def on_stop(self, close: Callable[[], Awaitable[None]]) -> None:
        """Call `close` when the broker stops, before everything that was opened earlier."""
        self._closers.append(close)

    async def stop(self) -> None:
        """Close everything. A second caller waits until that is done.

        One part after another: the rest still uses what was opened first.
        """
        async with self._stop:
            while self._closers:
                close = self._closers.pop()
                try:
                    await asyncio.wait_for(close(), STOP_TIMEOUT_S)
                except Exception:
                    log.exception("cannot stop a part of the broker cleanly")
