"""Whether this broker may act and answer as an owner, asked at the moment when it does.

Responsibilities: compares the session with the clock, and reports each change to its owner, for
whom it is to say what stepping down means. It knows nothing of partitions. Storage fences a former
owner's writes in any case; but its reads reach no storage, and bookies forget a fence together with
its ledger (docs/BOOKKEEPER.md, I7).

How it works: a *term* begins each time this broker steps down. What was read as an owner may be
answered only in the term in which the request was taken. `term_at` is called where requests come in
and where answers leave: one comparison with the end of the session, which its heartbeats move on.
Where the session is not safe any more, or is another one, it steps down there and then. So it does
not matter when the loop gets its turn after a process was frozen. A background task does the same
now and then, for a broker that no client asks.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.metadata.store import StoreSession
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

MARGIN = 5
"""This part of the session's time is kept as a margin; half of it passes between two looks."""
LOOK_S_MAX = 1.0
_MARGIN_NS_PER_MS = 1_000_000 // MARGIN


class SessionGuard:
    """Steps down before the session can end, and up again when there is one that lives."""

    def __init__(
        self,
        session: StoreSession,
        clock: Clock,
        step_down: Callable[[], None],
        step_up: Callable[[], None],
    ) -> None:
        """`step_down` and `step_up` are called in turn, the former within `term_at`."""
        self.term = 0
        """How often this broker has stepped down."""
        self.is_up = True
        """Whether no other broker could presume this one dead when that was looked at last."""
        self._session = session
        self._number = session.number
        self._clock = clock
        self._step_down = step_down
        self._step_up = step_up

    def term_at(self, now_ns: int) -> int:
        """The term now, which begins here if the session is not safe at `now_ns`."""
        session = self._session
        if self.is_up and (
            now_ns >= session.ends_ns - session.timeout_ms * _MARGIN_NS_PER_MS
            or session.number != self._number
        ):
            self._end_term()
        return self.term

    def term_now(self) -> int:
        """As `term_at`, by the clock."""
        return self.term_at(self._clock.now_ns())

    def _end_term(self) -> None:
        self.is_up = False
        self.term += 1
        log.warning(
            "the session with the metadata store is not safe any more (%s): this broker serves"
            " nothing until there is one",
            self._session.state.value,
        )
        self._step_down()

    def look(self) -> None:
        """Step down or up, whichever is due."""
        now_ns = self._clock.now_ns()
        self.term_at(now_ns)
        session = self._session
        if not self.is_up and now_ns < session.ends_ns - session.timeout_ms * _MARGIN_NS_PER_MS:
            self.is_up, self._number = True, session.number
            log.info("the metadata store answers again: this broker serves what it owns")
            self._step_up()

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            self.look()
            margin_ms = self._session.timeout_ms // MARGIN
            await asyncio.sleep(min(margin_ms / 2000, LOOK_S_MAX))
