"""When the handlers of requests begin, beside those of Produce and Fetch.

Invariants: knows connections and how much of their answers waits, not requests. They begin in turns
with those of other connections, users and tenants (`runtime/loop_turns.py`), so that no number of
requests keeps others waiting. No answer is made that would only add to what its client does not
read, or that would wait for an earlier one with many others. A request that may not begin waits,
and its connection is not read meanwhile; the one whose answer is the next to be sent waits for no
earlier one. Requests of Produce and Fetch are handled as they arrive, those that a client has sent
at once also for TURN_NS only. A request with an effect is handled although its client has left;
so many of these wait that their users have places for.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.broker.security.tenant_shares import Holder, SharedPlaces
from headrace.broker.services.fair_shares import path_of, user_of
from headrace.errors import StorageUnavailable
from headrace.runtime.loop_turns import SLOW_NS, ReadTurn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.fair_shares import Charge
    from headrace.kafka.tenant_line import TenantLine
    from headrace.runtime.loop_turns import LoopTurns, Path

WAITING_BYTES_MAX: Final = 1024 * 1024
"""Of answers that wait to be sent on a connection."""
WAITING_BYTES_MIN: Final = 1024
"""Smaller answers are not counted."""
UNANSWERED_MIN: Final = 2
UNANSWERED_MAX: Final = 32
"""Requests of one connection that have begun: twice as many after each small answer, one after a
large one. Kafka's brokers handle one at a time."""
LARGE_BYTES: Final = 64 * 1024
DEPARTED_MAX: Final = 500
"""Requests that wait while their clients have left: as many as Kafka's brokers queue by default."""


class Asker(Protocol):
    """A connection."""

    is_write_paused: bool
    """Whether its client reads nothing at the moment."""
    on_room: Callable[[], None] | None
    """To be called when less of its answers may wait."""

    is_slow: bool
    """See loop_turns.SLOW_NS."""
    session: ClientSession
    line: TenantLine | None
    """Among the connections of the client's tenant."""

    def hold_input(self) -> None:
        """Handle no further request until `release_input`."""
        ...

    def release_input(self) -> None:
        """Handle further requests again."""
        ...


class Answers(Protocol):
    """The memory of answers."""

    def held_by(self, holder: Any) -> int:
        """How much of a connection's waits to be sent."""
        ...

    def is_short(self) -> bool:
        """Whether each connection gets one answer only."""
        ...


class Place(Protocol):
    """That of a request's answer."""

    api_key: int
    charge: Charge | None

    @property
    def is_next(self) -> bool:
        """Whether it is the next to be sent on its connection."""
        ...


class _Line:
    """What one connection has here. Implements `loop_turns.Waiter`."""

    __slots__ = (
        "_asker",
        "_turns",
        "departed",
        "path",
        "unanswered_count",
        "unanswered_max",
        "waiting",
    )

    def __init__(self, turns: RequestTurns, asker: Asker) -> None:
        self._turns = turns
        self._asker = asker
        self.unanswered_count = 0
        self.unanswered_max = UNANSWERED_MIN
        self.waiting: tuple[Place, Callable[[], None]] | None = None
        self.departed: Callable[[], None] | None = None
        """Gives back the place of a request whose client has left."""
        self.path: Path = ()
        """Of all its requests that wait or are not answered: they keep their order."""

    def take_turn(self) -> None:
        """See Waiter."""
        self._turns.take_turn(self._asker, self)


class RequestTurns:
    """See the module."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answers: Answers, turns: LoopTurns) -> None:
        """`turns`: of all protocols."""
        self._answers = answers
        self._turns = turns
        self._lines: dict[Asker, _Line] = {}
        """Of connections with a request that waits or is not answered."""
        self.is_over = ReadTurn(loop).is_over
        self._departed = SharedPlaces("requests of clients that have left", DEPARTED_MAX)

    def begin(self, asker: Asker, place: Place, begin: Callable[[], None]) -> None:
        """Have a request handled, now or when it is its turn. `begin` starts a task, which ends
        with `answered`."""
        line = self._lines.get(asker)
        if line is None:
            line = self._lines[asker] = _Line(self, asker)
        assert line.waiting is None, "a connection is not read while its request waits"
        self._choose_path(asker, line)
        if self._turns.may_begin and self._may_begin(asker, line, place):
            self._begin(line, begin)
            return
        line.waiting = place, begin
        asker.hold_input()
        self._queue(line)

    def _begin(self, line: _Line, begin: Callable[[], None]) -> None:
        line.unanswered_count += 1
        if line.departed is not None:
            line.departed()
            line.departed = None
        self._turns.begun()
        begin()

    def answered(self, asker: Asker, size: int, spent_ns: int) -> None:
        """A request that has begun has an answer of this size, or failed: it took the loop for this
        long."""
        line = self._lines[asker]
        asker.is_slow = spent_ns > SLOW_NS
        is_large = size >= LARGE_BYTES
        line.unanswered_max = 1 if is_large else min(2 * line.unanswered_max, UNANSWERED_MAX)
        line.unanswered_count -= 1
        if line.waiting is not None:
            self._choose_path(asker, line)
            self._queue(line)
        elif not line.unanswered_count:
            del self._lines[asker]

    def path(self, asker: Asker) -> Path:
        """To whom its requests that have begun belong."""
        return self._lines[asker].path

    def _choose_path(self, asker: Asker, line: _Line) -> None:
        if not line.unanswered_count:
            share = None if asker.line is None else asker.line.share
            path = *path_of(asker.session, share), asker.is_slow
            if path != line.path:
                self._turns.forget(line.path, line)
                line.path = path

    def drop(self, asker: Asker, api_keys: Container[int]) -> None:
        """A connection has ended: if its request that waits is of these APIs, or too many others
        of its user wait so, it is not handled."""
        line = self._lines.get(asker)
        if line is None or line.waiting is None:
            return
        place, _ = line.waiting
        if place.api_key not in api_keys:
            with suppress(StorageUnavailable):
                line.departed = self._departed.take(Holder(user=user_of(asker.session)))
                self._queue(line)
                return
        line.waiting = None
        if place.charge is not None:
            place.charge.release()
        self._turns.forget(line.path, line)
        if not line.unanswered_count:
            del self._lines[asker]

    def _queue(self, line: _Line) -> None:
        if line.waiting is not None:
            self._turns.wait(line.path, line)

    def take_turn(self, asker: Asker, line: _Line) -> None:
        """It is the turn of a connection's request, which waits for its client otherwise."""
        assert line.waiting is not None
        place, begin = line.waiting
        if self._may_begin(asker, line, place):
            line.waiting = None
            self._begin(line, begin)
            asker.release_input()
        else:
            asker.on_room = partial(self._queue, line)

    def _may_begin(self, asker: Asker, line: _Line, place: Place) -> bool:
        if line.unanswered_count and asker.is_slow != line.path[-1]:
            return False  # it could overtake those before it elsewhere
        if asker.is_write_paused or place.is_next:
            return not asker.is_write_paused
        waiting_bytes = self._answers.held_by(asker)
        if self._answers.is_short():
            return not waiting_bytes and not line.unanswered_count
        return waiting_bytes < WAITING_BYTES_MAX and line.unanswered_count < line.unanswered_max
