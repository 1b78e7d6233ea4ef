"""The memory of responses that wait for their clients, over all connections of a broker.

Invariants: knows sizes, not contents. A connection holds the bytes of its large responses from the
moment they are read until the operating system has taken them. All connections together hold about
`bytes_max`: a response that is about to be read gets at most a quarter of what is left, so that a
few slow clients leave enough for all others; each gets at least `RESPONSE_BYTES_MIN`, so that
nobody waits for them. While more than half of the memory is held, the connections of clients that
read nothing are closed, the one that has read nothing for longest first: their responses can be
read again, and the memory of the others cannot be had otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    import asyncio

RESPONSE_BYTES_MIN: Final = 256 * 1024
"""A response may be this large however much is held."""
SHARE: Final = 4
"""A response gets at most this fraction of what is left."""
COUNTED_BYTES_MIN: Final = 64 * 1024
"""Smaller responses are not counted: a connection's number of them is limited, and the transport
buffers as much without pausing."""
CHECK_S: Final = 0.5
PATIENCE_S: Final = 1.0
"""A client that reads nothing for this long, while memory is short, is disconnected. It loses a
round trip: it reconnects and fetches again."""
PROGRESS_BYTES: Final = 64 * 1024
"""A client that reads less between two checks is taken to read nothing: a byte now and then does
not entitle it to megabytes."""


class Holder(Protocol):
    """A connection."""

    def unsent_bytes(self) -> int:
        """How many bytes of its responses the operating system has not taken yet."""
        ...

    def abort(self, reason: str) -> None:
        """Close the connection and log the reason."""
        ...


class _Held:
    __slots__ = ("size", "stuck_since_s", "unsent")

    def __init__(self, now_s: float) -> None:
        self.size = 0
        self.unsent = 0
        """at the last check at which the client had read something"""
        self.stuck_since_s = now_s


class ResponseMemory:
    """See the module."""

    def __init__(self, bytes_max: int, loop: asyncio.AbstractEventLoop) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        self.closed_count = 0
        """Connections that were closed because their clients read nothing."""
        self._loop = loop
        self._holders: dict[Holder, _Held] = {}
        self._check: asyncio.TimerHandle | None = None

    def grant(self, wanted: int) -> int:
        """How many of the `wanted` bytes a response may have that is read now."""
        left = (self.bytes_max - self.held_bytes) // SHARE
        if wanted <= left:
            return wanted
        return min(wanted, max(left, RESPONSE_BYTES_MIN))

    def hold(self, holder: Holder, size: int) -> None:
        """Count a response that was read."""
        held = self._holders.get(holder)
        if held is None:
            held = self._holders[holder] = _Held(self._loop.time())
        held.size += size
        self.held_bytes += size
        if self._check is None and self.held_bytes > self.bytes_max // 2:
            self._check = self._loop.call_later(CHECK_S, self._close_stuck)

    def release(self, holder: Holder, size: int) -> None:
        """The operating system has taken this much of what the connection held."""
        held = self._holders[holder]
        assert held.size >= size, "a response is released once"
        held.size -= size
        self.held_bytes -= size
        if not held.size:
            del self._holders[holder]

    def forget(self, holder: Holder) -> None:
        """A connection has ended: nothing is left of its responses."""
        held = self._holders.pop(holder, None)
        if held is not None:
            self.held_bytes -= held.size

    def _close_stuck(self) -> None:
        self._check = None
        if self.held_bytes <= self.bytes_max // 2:
            return
        now_s = self._loop.time()
        stuck: list[tuple[float, int, Holder]] = []
        for order, (holder, held) in enumerate(self._holders.items()):
            unsent = holder.unsent_bytes()
            if not unsent or abs(held.unsent - unsent) >= PROGRESS_BYTES:
                held.unsent, held.stuck_since_s = unsent, now_s
            elif now_s - held.stuck_since_s >= PATIENCE_S:
                stuck.append((held.stuck_since_s, order, holder))
        for since_s, _, holder in sorted(stuck, key=lambda each: each[:2]):
            if self.held_bytes <= self.bytes_max // 2:
                break
            self.closed_count += 1
            holder.abort(
                f"has read nothing for {now_s - since_s:.1f} s, while responses that wait for "
                f"their clients hold {self.held_bytes >> 20} of {self.bytes_max >> 20} MiB "
                "(queued.max.response.bytes)"
            )
            self.forget(holder)
        if self._holders:
            self._check = self._loop.call_later(CHECK_S, self._close_stuck)
