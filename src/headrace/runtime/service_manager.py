"""Tells the service manager (systemd) that the process is ready, stopping, or still alive.

Invariants: without NOTIFY_SOCKET nothing is sent, and nothing that fails here is an error of the
broker. The protocol is one datagram of NAME=VALUE lines (sd_notify(3)). The watchdog is fed by the
event loop itself, so a loop that hangs lets it bark.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
_ALIVE: Final = "WATCHDOG=1"


class ServiceManager:
    """The service manager that started this process, if there is one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._interval_s = _watchdog_s(environment) / 2

    def notify(self, state: str) -> None:
        """Send a state, with a line for `systemctl status` if there is one in it."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # in the abstract namespace
            address = "\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.sendto(state.encode(), address)
        except OSError as error:
            log.warning("the service manager cannot be notified (%s): %s", state, error)

    async def feed_watchdog(self) -> None:
        """Report that the event loop runs, twice in each interval of the watchdog, until cancelled;
        returns at once without one."""
        while self._address and self._interval_s > 0:
            self.notify(_ALIVE)
            await asyncio.sleep(self._interval_s)


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """The interval of the watchdog (WatchdogSec); 0 without one for this process."""
    owner = environment.get("WATCHDOG_PID", "")
    if owner and owner != str(os.getpid()):
        return 0.0
    text = environment.get("WATCHDOG_USEC", "0")
    return int(text) / 1_000_000 if text.isdigit() else 0.0
