"""What a client has sent at once and has large answers is taken in turns with other clients.

Invariants: keeps the order in which it arrived; the socket is not read meanwhile, so that little
waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    class Connection(Protocol):
        """Whose turns they are."""

        is_write_paused: bool

        @property
        def unsent_bytes(self) -> int:
            """Its responses that wait."""

        def take(self, data: bytes) -> None:
            """Process what has arrived."""


TURN_BYTES = 16 * 1024
TURN_UNSENT_BYTES = 1 << 20
"""A connection that has more unsent responses than that waits after each `TURN_BYTES` until others
have had their turn: small questions may have large answers."""


class Turns:
    """Of one connection."""

    __slots__ = ("_connection", "_loop", "_rest", "_transport")

    def __init__(
        self,
        connection: Connection,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._loop = loop
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Process what has arrived, or let it wait for its turn."""
        if self._rest:
            self._rest += data
        elif len(data) <= TURN_BYTES:
            self._connection.take(data)
        else:
            self._go_on(data)

    def _go_on(self, data: bytes) -> None:
        for at in range(0, len(data), TURN_BYTES):
            if self._transport.is_closing():
                return
            if at and self._connection.unsent_bytes > TURN_UNSENT_BYTES:
                self._rest = data[at:]
                self._transport.pause_reading()
                self._loop.call_soon(self._next)
                return
            self._connection.take(data[at : at + TURN_BYTES])

    def _next(self) -> None:
        data, self._rest = self._rest, b""
        self._go_on(data)
        if not (self._rest or self._connection.is_write_paused or self._transport.is_closing()):
            self._transport.resume_reading()
