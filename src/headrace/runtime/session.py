"""The client's view of a session with a service that expires idle clients.

Invariants: keeps state and reports changes; the service's client updates it. Used from the event
loop's thread. Time is monotonic, in ns, and passed in by callers.
"""

from __future__ import annotations

import asyncio
import enum

_ENDLESS_MS = 1 << 50  # 36,000 years


class SessionState(enum.Enum):
    """The state of a session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection broke; the session may survive or expire at any time."""
    LOST = "lost"
    """The session has ended, and its ephemeral state with it. Another may follow."""


class Session:
    """A client's current session, and its successors after a loss."""

    def __init__(self, timeout_ms: int, now_ns: int) -> None:
        self.state = SessionState.LOST
        self.since_ns = now_ns
        """When the state was entered."""
        self.timeout_ms = timeout_ms
        """The negotiated timeout: the service expires the session this long after the last
        heartbeat."""
        self.number = 0
        """Counts sessions: a different number means that the former session has ended."""
        self.changes = 0
        """Counts state changes."""
        self.ends_ns = 0
        """The service cannot expire the session before this time; 0 without a session.

        An owner compares it with the clock before it answers."""
        self._confirmed_ns: int | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def confirmed_ns(self) -> int | None:
        """When the latest heartbeat was sent that the service is known to have received.

        None without a session.
        """
        return self._confirmed_ns

    def is_safe(self, now_ns: int, margin_ms: int) -> bool:
        """Whether the session cannot have expired yet, with `margin_ms` to spare.

        An owner that acts only while this is true stops before another broker can take over. The
        margin covers clock drift and, with several ZooKeeper servers, half a tick: the interval at
        which a server forwards its clients' heartbeats. Time during which the machine was
        suspended counts only with a clock that includes it (`BootTimeClock`).
        """
        return now_ns < self.ends_ns - margin_ms * 1_000_000

    async def wait_change_after(self, changes: int) -> None:
        """Wait until the state has changed more than `changes` times."""
        while self.changes <= changes:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            try:
                await future
            finally:
                if future in self._waiters:  # the caller has stopped waiting
                    self._waiters.remove(future)

    # --- for the service's client -----------------------------------------------------------

    def begin(self, timeout_ms: int, sent_ns: int, now_ns: int) -> None:
        """A new session was opened by a request sent at `sent_ns`."""
        self.number += 1
        self._confirmed_ns, self.ends_ns = None, 0
        self.resume(timeout_ms, sent_ns, now_ns)

    def resume(self, timeout_ms: int, sent_ns: int, now_ns: int) -> None:
        """The session was resumed over another connection."""
        self.timeout_ms = timeout_ms
        self.confirm(sent_ns)
        assert self._confirmed_ns is not None, "set by confirm"
        self.ends_ns = self._confirmed_ns + timeout_ms * 1_000_000
        self._enter(SessionState.CONNECTED, now_ns)

    def confirm(self, at_ns: int) -> None:
        """The service has received the heartbeat sent at `at_ns`."""
        if self._confirmed_ns is None or at_ns > self._confirmed_ns:
            self._confirmed_ns = at_ns
            if self.state is not SessionState.LOST:
                self.ends_ns = at_ns + self.timeout_ms * 1_000_000

    def suspend(self, now_ns: int) -> None:
        """The connection broke."""
        self._enter(SessionState.SUSPENDED, now_ns)

    def lose(self, now_ns: int) -> None:
        """The session has ended."""
        self._confirmed_ns, self.ends_ns = None, 0
        self._enter(SessionState.LOST, now_ns)

    def _enter(self, state: SessionState, now_ns: int) -> None:
        self.state = state
        self.since_ns = now_ns
        self.changes += 1
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def endless_session() -> Session:
    """The session of a store that cannot lose it while the process runs."""
    session = Session(timeout_ms=_ENDLESS_MS, now_ns=0)
    session.begin(_ENDLESS_MS, 0, 0)
    return session
