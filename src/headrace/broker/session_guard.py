"""Decides whether this broker may act and answer as an owner, at the moment it does so.

Responsibilities: compares the session with the clock and reports each change to its owner, which
implements stepping down. It knows nothing of partitions. Storage fences a former owner's writes in
any case, but its reads reach no storage, and bookies forget a fence together with its ledger
(docs/BOOKKEEPER.md, I7).

Why it is enough: a partition is claimed only after its owner's registration has ended, and that
ends with the session: when ZooKeeper expires it, not earlier than the negotiated timeout after the
last heartbeat that its leader has seen, or when the owner's machine reports that the process has
ended (`zookeeper/session_ender`), after which nothing answers. No other broker ends it, whatever it
sees of this one. The clock here starts when a heartbeat is sent, before the server's clock, and
counts suspended time (`BootTimeClock`); the margin covers what is left. A response that was read in
a term may leave at any later time: its request was sent before another owner could exist, so a
freeze between the check and the write needs no bound.

How it works: a new *term* begins each time this broker steps down. Data read as an owner may be
returned only in the term in which the request was taken. `term_at` is called where requests arrive
and where responses leave: one comparison with the session deadline, which heartbeats move forward.
If the session is no longer safe, or is a new one, the broker steps down on the spot, so it does not
matter when the loop runs after a process was frozen. A background task checks periodically for a
broker that receives no requests.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.metadata.store import StoreSession
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

MARGIN = 5
"""This fraction of the session timeout is kept as a margin; half of it passes between two
checks."""
LOOK_S_MAX = 1.0
NO_SESSION = -1
_MARGIN_NS_PER_MS = 1_000_000 // MARGIN


class SessionGuard:
    """Steps down before the session can end, and up again once there is a live one."""

    def __init__(
        self,
        session: StoreSession,
        clock: Clock,
        step_down: Callable[[], None],
        step_up: Callable[[bool], None],
    ) -> None:
        """`step_down` and `step_up` alternate; `step_down` is called within `term_at`.
        `step_up(has_survived)`: whether the session in which this broker stepped down is the
        present one, so that its ephemeral entries have existed all the time."""
        self.term = 0
        """How often this broker has stepped down."""
        self.is_up = True
        """Whether, at the last check, no other broker could presume this one dead."""
        self._session = session
        self._number = session.number
        self._clock = clock
        self._step_down = step_down
        self._step_up = step_up

    def term_at(self, now_ns: int) -> int:
        """The current term; a new one begins here if the session is not safe at `now_ns`."""
        session = self._session
        if self.is_up and (
            now_ns >= session.ends_ns - session.timeout_ms * _MARGIN_NS_PER_MS
            or session.number != self._number
        ):
            self._end_term()
        return self.term

    def term_now(self) -> int:
        """As `term_at`, reading the clock."""
        return self.term_at(self._clock.now_ns())

    def _end_term(self) -> None:
        self.is_up = False
        self.term += 1
        log.warning(
            "the session with the metadata store is no longer safe (%s): this broker "
            "serves no partitions until it has a live session and is registered in it",
            self._session.state.value,
        )
        self._step_down()

    def renounce(self) -> None:
        """Step down because this broker's registration was removed by others while its session
        lives; at the next check it steps up as in a new session."""
        self._number = NO_SESSION
        self.term_now()

    def check(self) -> None:
        """Step down or up, whichever is due."""
        now_ns = self._clock.now_ns()
        self.term_at(now_ns)
        session = self._session
        if not self.is_up and now_ns < session.ends_ns - session.timeout_ms * _MARGIN_NS_PER_MS:
            has_survived = session.number == self._number
            self.is_up, self._number = True, session.number
            log.info("the metadata store answers again: this broker serves its partitions")
            self._step_up(has_survived)

    async def run(self) -> None:
        """Check whenever the session changes, and periodically, until cancelled."""
        session = self._session
        while True:
            changes = session.changes
            self.check()
            margin_ms = session.timeout_ms // MARGIN
            with suppress(TimeoutError):
                async with asyncio.timeout(min(margin_ms / 2000, LOOK_S_MAX)):
                    await session.wait_change_after(changes)
