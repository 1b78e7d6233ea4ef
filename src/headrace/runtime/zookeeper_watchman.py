"""A thread that gives ZooKeeper signs of life while the event loop is held up.

Invariants: a loop that gets its turns does all itself: the thread then only looks at a counter,
twice a second with the usual session. Where the loop has missed its heartbeats, the thread beats
in its stead and looks for the answers, so that an owner whose processor was taken from it for some
seconds need not give up what nobody could have taken. Whatever goes wrong here, the session seems
older than it is, never younger.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headrace.runtime.session import Session
    from headrace.runtime.zookeeper_connection import Connection

_LOOKS_PER_SESSION: Final = 12
_MISSED_LOOKS: Final = 3
"""So many looks without a heartbeat of the loop's, which has three in that time: it is held up."""


class Watchman:
    """Of one link."""

    def __init__(self, session: Session) -> None:
        self.connection: Connection | None = None
        """What to beat over; None while there is none."""
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
        """Tell the thread to end; it does so in its own time."""
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
            proven_ns = connection.speak_for_loop()
            if proven_ns is not None:
                self._session.confirm(proven_ns)
