"""A thread that sends ZooKeeper heartbeats while the event loop is blocked.

Invariants: while the loop runs, the thread only checks a counter, twice a second with the default
session. When the loop has missed its heartbeats, the thread sends them instead and looks for the
answers, so that an owner whose process was not scheduled for some seconds keeps partitions that no
other broker could have taken. Any fault here makes the session appear older, never younger.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.runtime.session import Session
    from headrace.zookeeper.connection import ZooKeeperConnection

_LOOKS_PER_SESSION: Final = 12
_MISSED_LOOKS: Final = 3
"""Checks without a heartbeat from the loop, which sends three in that time: it is blocked."""


class HeartbeatThread:
    """The heartbeat thread of one link."""

    def __init__(self, session: Session) -> None:
        self.connection: ZooKeeperConnection | None = None
        """The connection to send heartbeats on; None without one."""
        self.beats = 0
        """Counts the loop's heartbeats."""
        self._session = session
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="headrace-zookeeper", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask the thread to end; does not wait for it."""
        self.connection = None
        self._is_over.set()

    def _run(self) -> None:
        seen, missed = -1, 0
        while not self._is_over.wait(self._session.timeout_ms / 1000 / _LOOKS_PER_SESSION):
            missed = missed + 1 if self.beats == seen else 0
            seen = self.beats
            connection = self.connection
            if connection is None or missed < _MISSED_LOOKS:
                continue
            confirmed_ns = connection.beat_from_thread()
            if confirmed_ns is not None:
                self._session.confirm(confirmed_ns)
