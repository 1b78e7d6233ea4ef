"""A session with a service that forgets us when we are silent: what is known of its life.

Invariants: keeps facts and reports changes; the service's client feeds it. Used from
the loop's thread. Time is monotonic, in ns; callers pass it.
"""

from __future__ import annotations

import asyncio
import enum

_ENDLESS_MS = 1 << 50  # 36,000 years


class SessionState(enum.Enum):
    """What is known of a session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection broke; the session may live on, or end any time now."""
    LOST = "lost"
    """The session is over, and with it what was bound to it. Another may follow."""


class Session:
    """The session of one client, and the ones that follow when it is lost."""

    def __init__(self, timeout_ms: int, now_ns: int) -> None:
        self.state = SessionState.LOST
        self.since_ns = now_ns
        """When the state was entered."""
        self.timeout_ms = timeout_ms
        """So long after the last sign of life the service ends the session, as agreed."""
        self.number = 0
        """Counts sessions: another number means that the former session is over."""
        self.changes = 0
        """Counts changes of the state."""
        self.ends_ns = 0
        """Before this moment the service cannot have ended the session; 0 while there is none.

        The one figure that an owner compares with the clock before it answers."""
        self._proven_ns: int | None = None
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def proven_ns(self) -> int | None:
        """When a sign of life was given that the service has heard for certain.

        None while there is no session.
        """
        return self._proven_ns

    def is_safe(self, now_ns: int, margin_ms: int) -> bool:
        """Whether the session cannot have ended yet, with `margin_ms` to spare.

        An owner that acts only while this holds has stopped before another can take over. The
        margin pays for clocks that run unevenly and, with several ZooKeeper servers, for half a
        tick: a server passes on the signs of life of its clients so often. Time during which
        the machine was suspended counts only on a clock that counts it (`BootTimeClock`).
        """
        return now_ns < self.ends_ns - margin_ms * 1_000_000

    async def wait_beyond(self, changes: int) -> None:
        """Wait until the state has changed more often than `changes` times."""
        while self.changes <= changes:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            await future

    # --- for who talks to the service -------------------------------------------------------

    def begin(self, timeout_ms: int, sent_ns: int, now_ns: int) -> None:
        """A new session was opened by a request that was sent at `sent_ns`."""
        self.number += 1
        self._proven_ns, self.ends_ns = None, 0
        self.resume(timeout_ms, sent_ns, now_ns)

    def resume(self, timeout_ms: int, sent_ns: int, now_ns: int) -> None:
        """The same session goes on over another connection."""
        self.timeout_ms = timeout_ms
        self.confirm(sent_ns)
        assert self._proven_ns is not None, "it was proved just now"
        self.ends_ns = self._proven_ns + timeout_ms * 1_000_000
        self._enter(SessionState.CONNECTED, now_ns)

    def confirm(self, at_ns: int) -> None:
        """The service has heard the sign of life that was given at `at_ns`."""
        if self._proven_ns is None or at_ns > self._proven_ns:
            self._proven_ns = at_ns
            if self.state is not SessionState.LOST:
                self.ends_ns = at_ns + self.timeout_ms * 1_000_000

    def suspend(self, now_ns: int) -> None:
        """The connection broke."""
        self._enter(SessionState.SUSPENDED, now_ns)

    def lose(self, now_ns: int) -> None:
        """The session is over."""
        self._proven_ns, self.ends_ns = None, 0
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
    """The session of a store that cannot lose it while the process lives."""
    session = Session(timeout_ms=_ENDLESS_MS, now_ns=0)
    session.begin(_ENDLESS_MS, 0, 0)
    return session
