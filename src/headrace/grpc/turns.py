"""When what clients have sent is processed: in turns with other clients.

Invariants: keeps the order in which it arrived; the socket is not read meanwhile, so that little
waits. In each turn of the event loop as much is processed as takes `loop_turns.TURN_NS`, and the
rest in the next ones: addresses in turns, and their connections. One whose last piece took long has
its turns among those of its kind, so that others of its address do not wait for all of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.runtime.loop_turns import SLOW_NS, FairQueue, ReadTurn

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable
    from typing import Protocol

    from headrace.runtime.loop_turns import Path

    class Connection(Protocol):
        """Whose turns they are."""

        is_write_paused: bool

        @property
        def unsent_bytes(self) -> int:
            """Its responses that wait."""

        def take(self, data: bytes) -> None:
            """Process what has arrived."""


TURN_BYTES = 16 * 1024
"""Processed at once."""
TURN_UNSENT_BYTES = 1 << 20
"""A connection that has more unsent responses than that waits after each `TURN_BYTES` until others
have had their turn: small questions may have large answers."""


class Arrivals:
    """What has arrived on the connections of a listener."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self._loop = loop
        self._turn = ReadTurn(loop)
        self._waiting = FairQueue()
        self._again: list[tuple[Path, Turns]] = []
        """Those that have had a turn in this one of the loop, and wait again."""
        self._is_serving = self._is_due = False
        """Whether those that wait have their turns now, or in the next turn of the loop."""

    def must_wait(self, now_ns: int) -> bool:
        """Whether a connection lets others have their turn."""
        return bool(self._waiting) or self._turn.is_over(now_ns)

    def wait(self, path: Path, turns: Turns) -> None:
        """Have `take_turn` called when it is this connection's."""
        if self._is_serving:  # it waits until the socket has had its answers
            self._again.append((path, turns))
            return
        self._waiting.add(path, turns)
        self._serve_soon()

    def forget(self, path: Path, turns: Turns) -> None:
        """It does not wait any more."""
        self._waiting.remove(path, turns)
        self._again = [one for one in self._again if one[1] is not turns]

    def _serve_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._is_serving, self._is_due = True, False
        try:
            while self._waiting and not self._turn.is_over(self.now_ns()):
                turns: Turns = self._waiting.pop()
                turns.take_turn()
        finally:
            self._is_serving = False
            again, self._again = self._again, []
            for path, one in again:
                self._waiting.add(path, one)
            if self._waiting:
                self._serve_soon()


class Turns:
    """Of one connection."""

    __slots__ = ("_address", "_arrivals", "_connection", "_is_slow", "_path", "_rest", "_transport")

    def __init__(
        self,
        connection: Connection,
        transport: asyncio.Transport,
        arrivals: Arrivals,
        address: Hashable,
    ) -> None:
        """`address`: of the client, from which it may have several connections."""
        self._connection = connection
        self._transport = transport
        self._arrivals = arrivals
        self._address = address
        self._is_slow = False
        self._path: Path = ()
        """By which it waits."""
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Process what has arrived, or let it wait for its turn."""
        if self._rest:
            self._rest += data
        elif self._arrivals.must_wait(self._arrivals.now_ns()):
            self._wait(data)
        else:
            self._take(data)

    def take_turn(self) -> None:
        """See Arrivals."""
        data, self._rest = self._rest, b""
        self._take(data)
        self.resume()

    def resume(self) -> None:
        """Read the socket again, unless what was read before waits, or responses do."""
        if not (self._rest or self._connection.is_write_paused or self._transport.is_closing()):
            self._transport.resume_reading()

    def close(self) -> None:
        """The connection has ended."""
        self._rest = b""
        self._arrivals.forget(self._path, self)

    def _take(self, data: bytes) -> None:
        arrivals, connection = self._arrivals, self._connection
        now_ns = arrivals.now_ns()
        for at in range(0, len(data), TURN_BYTES):
            begun_ns = now_ns
            connection.take(data[at : at + TURN_BYTES])
            now_ns = arrivals.now_ns()
            self._is_slow = now_ns - begun_ns > SLOW_NS
            rest_at = at + TURN_BYTES
            if rest_at >= len(data) or self._transport.is_closing():
                return
            if connection.unsent_bytes > TURN_UNSENT_BYTES or arrivals.must_wait(now_ns):
                self._wait(data[rest_at:])
                return

    def _wait(self, data: bytes) -> None:
        self._rest = data
        self._transport.pause_reading()
        self._path = self._address, self._is_slow
        self._arrivals.wait(self._path, self)
