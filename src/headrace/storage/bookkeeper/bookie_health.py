"""Tracks failed bookies, and whether they answer again; counts damaged copies.

Invariants: a failed bookie is in quarantine (`ensemble.BookiePool`) until it has answered a small
read; the start, the cause and the end are logged. Decisions about replacements are made elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.storage.bookkeeper.wire import TIMED_OUT, code_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.runtime.clock import Clock
    from headrace.storage.bookkeeper.bookie_connection import Bookies
    from headrace.storage.bookkeeper.ensemble import BookiePool

log = logging.getLogger(__name__)

PROBE_FIRST_S: Final = 0.05
PROBE_MAX_S: Final = 2.0
DAMAGE_LOGGED_MAX: Final = 10
NO_LEDGER_ID: Final = (1 << 63) - 1
"""The ledger id that probes read: any answer will do."""


class _Trial:
    """A bookie in quarantine."""

    __slots__ = ("delay_s", "is_asking", "since_ns", "timer")

    def __init__(self, since_ns: int) -> None:
        self.since_ns = since_ns
        self.delay_s = PROBE_FIRST_S
        self.is_asking = False
        self.timer: asyncio.TimerHandle | None = None


class BookieHealth:
    """See the module; `changed` is called when a bookie may be used again."""

    def __init__(
        self,
        pool: BookiePool,
        bookies: Bookies,
        clock: Clock,
        timeout_ms: int,
        changed: Callable[[], None],
    ) -> None:
        self._pool = pool
        self._bookies = bookies
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._trials: dict[str, _Trial] = {}
        self._is_closed = False
        self.damaged_copies: Counter[str] = Counter()
        """Damaged copies that were read, by bookie."""

    def damaged(self, bookie: str, ledger: int, entry: int) -> None:
        """A bookie returned a damaged copy of an entry: other bookies are read. A bookie's first
        ones are logged."""
        self.damaged_copies[bookie] += 1
        count = self.damaged_copies[bookie]
        if count <= DAMAGE_LOGGED_MAX:
            log.warning(
                "bookie %s returned a damaged copy of entry %d of ledger %d: the others are read;"
                " check the disks of that bookie%s",
                bookie,
                entry,
                ledger,
                " (more are counted and not logged)" if count == DAMAGE_LOGGED_MAX else "",
            )

    def failed(self, bookie: str, code: int) -> None:
        """A request to a bookie failed: it gets no new entries until it answers."""
        if bookie in self._trials or self._is_closed:
            return
        now_ns = self._clock.now_ns()
        self._pool.failed(bookie, now_ns)
        self._pool.await_answer(bookie)
        trial = self._trials[bookie] = _Trial(now_ns)
        log.warning(
            "bookie %s is quarantined because %s: it gets no entries until it answers again",
            bookie,
            self._reason(code),
        )
        self._wait(bookie, trial)

    def _reason(self, code: int) -> str:
        if code == TIMED_OUT:
            return f"it did not answer within {self._timeout_ms / 1000:g} s"
        return f"it {code_text(code)}"

    def registrations_changed(self) -> None:
        """Probe registered bookies in quarantine immediately: they may be back."""
        for bookie, trial in list(self._trials.items()):
            if self._pool.is_registered(bookie) and not trial.is_asking:
                trial.delay_s = PROBE_FIRST_S
                self._bookies[bookie].retry_now()
                self._ask(bookie, trial)

    def close(self) -> None:
        """Stop probing."""
        self._is_closed = True
        for trial in self._trials.values():
            if trial.timer is not None:
                trial.timer.cancel()
        self._trials.clear()

    def _wait(self, bookie: str, trial: _Trial) -> None:
        delay_s = trial.delay_s
        trial.delay_s = min(delay_s * 2, PROBE_MAX_S)
        trial.timer = self._loop.call_later(delay_s, self._ask, bookie, trial)

    def _ask(self, bookie: str, trial: _Trial) -> None:
        if trial.timer is not None:
            trial.timer.cancel()
            trial.timer = None
        trial.is_asking = True
        self._bookies[bookie].read(NO_LEDGER_ID, 0, self._answered, (bookie, trial))

    def _answered(self, code: int, _body: memoryview, asked: tuple[str, _Trial]) -> None:
        bookie, trial = asked
        trial.is_asking = False
        if self._trials.get(bookie) is not trial:
            return
        if code < 0:
            if self._pool.is_registered(bookie):  # otherwise when it registers
                self._wait(bookie, trial)
            return
        left_ns = self._pool.answered(bookie, self._clock.now_ns())
        trial.timer = self._loop.call_later(left_ns / 1e9, self._release, bookie, trial)

    def _release(self, bookie: str, trial: _Trial) -> None:
        del self._trials[bookie]
        log.info(
            "bookie %s answers again, %.1f s after it failed: it gets entries",
            bookie,
            (self._clock.now_ns() - trial.since_ns) / 1e9,
        )
        self._changed()
