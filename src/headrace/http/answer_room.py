"""The memory of answers over HTTP.

Invariants: a large answer counts from the moment at which it is read until the operating system has
taken it (`connection_memory`). Records are read while there is room; other requests for records
wait for it, tenants, users and connections in turns, for WAIT_S at most: then they get little, so
that clients that read slowly keep nobody waiting. Those that read nothing are disconnected.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.connection_memory import COUNTED_BYTES_MIN, ResponseMemory
from headrace.broker.services.reads import READ_BYTES_MAX
from headrace.http.connection import HttpConnection
from headrace.runtime.loop_turns import SLOW_NS, FairQueue, admit, wait_in

if TYPE_CHECKING:
    from headrace.broker.services.connection_memory import Holder
    from headrace.runtime.loop_turns import Path

FULL: Final = 4
"""Memory is full while less than this fraction is left: what is read grows as JSON."""
WAIT_S: Final = 1.0
"""For room. Clients that have stood still for about as long are disconnected meanwhile."""


class AnswerMemory:
    """See the module. That of all HTTP connections of a broker."""

    def __init__(self, bytes_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self._memory = ResponseMemory(bytes_max, loop)  # compiled: it has no subclass here
        self._loop = loop
        self._waiting = FairQueue()

    @property
    def held_bytes(self) -> int:
        """What all answers hold."""
        return self._memory.held_bytes

    @property
    def is_full(self) -> bool:
        """Whether requests for records wait."""
        bytes_max = self._memory.bytes_max
        return self._memory.held_bytes > bytes_max - bytes_max // FULL

    def grant(self, wanted: int) -> int:
        """See ResponseMemory."""
        return self._memory.grant(wanted)

    def hold(self, holder: Holder, size: int) -> None:
        """See ConnectionMemory."""
        self._memory.hold(holder, size)

    async def wait_for_room(self, path: Path) -> None:
        """Wait while it is full. The caller holds what it takes at once."""
        if not self.is_full and not self._waiting:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await wait_in(self._waiting, path)
                while self.is_full:  # others may have been resumed at the same time
                    await wait_in(self._waiting, path)

    def release(self, holder: Holder, size: int) -> None:
        """See ConnectionMemory."""
        self._memory.release(holder, size)
        self._serve()

    def forget(self, holder: Holder) -> None:
        """See ConnectionMemory."""
        self._memory.forget(holder)
        self._serve()

    def _serve(self) -> None:
        # One: it takes what it holds, or leaves its place to the next, when it is resumed.
        while self._waiting and not self.is_full:
            if admit(self._waiting.pop()):
                self._loop.call_soon(self._loop.call_soon, self._serve)
                return


class AnswerRoom:
    """That of one request's answer. Implements `reads.Room`."""

    __slots__ = ("_connection", "_memory", "held_bytes", "path")

    def __init__(self, memory: AnswerMemory, connection: object) -> None:
        """`connection`: of another server, or None: it is not counted."""
        self._memory = memory
        self._connection = connection if isinstance(connection, HttpConnection) else None
        self.path: Path = ()
        """Whose it is."""
        self.held_bytes = 0
        """What is counted."""

    @property
    def is_slow(self) -> bool:
        """See loop_turns.SLOW_NS."""
        return self._connection is not None and self._connection.is_slow

    @property
    def is_of_no_use(self) -> bool:
        """Whether the client has left."""
        return self._connection is not None and self._connection.is_over

    async def grant(self) -> int:
        """See Room."""
        self.rest()
        await self._memory.wait_for_room(self.path)
        size = self._memory.grant(READ_BYTES_MAX)
        self._hold(size)
        return size

    def rest(self) -> None:
        """See Room."""
        self._hold(0)

    def answered(self, response: Any, spent_ns: int) -> None:
        """What is to be sent is known, after so much of the loop's time."""
        if self._connection is not None:
            self._connection.is_slow = spent_ns > SLOW_NS
        size = len(getattr(response, "body", b""))
        if size >= COUNTED_BYTES_MIN or self.held_bytes:
            self._hold(size if size >= COUNTED_BYTES_MIN else 0)

    def sent(self) -> None:
        """It was passed to the connection."""
        if self._connection is not None:
            self._connection.owes(self.held_bytes)
            self.held_bytes = 0

    def _hold(self, size: int) -> None:
        connection, change = self._connection, size - self.held_bytes
        if change and connection is not None and connection.hold(self._memory, change):
            self.held_bytes = size
