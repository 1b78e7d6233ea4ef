"""What a peer may make grow, and for how long it may stand still.

Invariants: numbers with their reasons. Everything that a peer can make a connection hold or do has
its bound here or in `hpack` and `frames`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


class Limits(NamedTuple):
    """The limits of one listener."""

    connections_max: int = 10_000
    """An idle connection takes about 10 KiB."""
    streams_max: int = 1000
    """Concurrent calls of one connection. Clients queue further ones; the default of Java's, and
    more than any official client of a message queue keeps open."""
    message_bytes_max: int = 4 * MIB
    """One request message, after decompression. The default of every gRPC implementation."""
    header_list_bytes_max: int = 16 * 1024
    """A call with more is refused; more than `hpack.LIST_BYTES_MAX` ends the connection."""
    header_block_bytes_max: int = 32 * 1024
    """An encoded block with its CONTINUATION frames; more ends the connection."""
    continuations_max: int = 16
    """Of one block: empty CONTINUATION frames would never reach the size (CVE-2024-27316)."""
    stream_window_bytes: int = 256 * 1024
    connection_window_bytes: int = 1 * MIB
    """What a peer may send ahead. Windows are refilled as bytes arrive, half at a time: what bounds
    memory is `partial_bytes_max`."""
    partial_bytes_max: int = 32 * MIB
    """Incomplete request messages of one connection. A call that exceeds it is refused."""
    listener_partial_bytes_max: int = 256 * MIB
    """Of all connections of the listener: the one that holds most is closed."""
    listener_calls_bytes_max: int = 512 * MIB
    """Calls in progress with their header lists, and with responses that they keep until the client
    reads earlier ones, of all connections of the listener: the connection that has most is closed.
    An ordinary call of RocketMQ's clients takes 10 KiB, and one with a list of
    `header_list_bytes_max` 100: 1,000 of them on each of 30 connections took 1.7 GiB."""
    slow_messages_max: int = 8
    """Compressed messages of one connection that wait for the thread, or are in it. One that grows
    to 16 MiB takes 26 ms, and one of 16 kB can. A call beyond is refused."""
    listener_slow_messages_max: int = 32
    """Of all connections of the listener: the last one waits for less than a second. Clients are
    not known yet, since their signatures are checked with the message: an address has at most
    twice as many as are left for others."""
    unsent_bytes_max: int = 32 * MIB
    """Responses of one connection that its client has not read; then it is closed."""
    listener_unsent_bytes_max: int = 64 * MIB
    """Of all connections of the listener: the one that owes most is closed. Twice the limit of
    one."""
    stream_unsent_bytes: int = 256 * 1024
    """`Call.drained` waits while a stream has more than that to send."""
    resets_burst: int = 1000
    resets_per_s: int = 100
    """Streams that end before their response, reset by the peer (CVE-2023-44487) or because of its
    faults (CVE-2025-8671). Clients cancel what they no longer wait for: at most all concurrent
    calls at once, and then as many as time out. The burst is that of nghttp2."""
    idle_frames_burst: int = 10_000
    idle_frames_per_s: int = 1000
    """Frames that bring no call forward: PING, SETTINGS, PRIORITY, WINDOW_UPDATE, empty or tiny
    DATA, unknown types (CVE-2019-9512 to 9518). One costs 1-2 us. Each message and each frame of
    DATA that is sent earns some, so that a busy connection may probe its bandwidth."""
    begin_s: float = 10.0
    """For the TLS handshake and the preface. A client that connects sends them at once."""
    request_s: float = 30.0
    """A call whose request, or one message of it, stays incomplete without progress is reset."""
    keepalive_s: float = 60.0
    """A connection on which nothing arrived for this long gets a PING."""
    keepalive_timeout_s: float = 20.0
    """A client that does not answer the PING by then is disconnected; gRPC's default."""
    goaway_s: float = 1.0
    """A connection that ended in an error is closed after this, even if the client has not read
    why."""


class Budget:
    """A token bucket: `burst` at once, then `per_s`."""

    __slots__ = ("_burst", "_clock", "_filled_s", "_left", "_per_s")

    def __init__(self, burst: int, per_s: int, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._burst = float(burst)
        self._per_s = float(per_s)
        self._left = float(burst)
        self._clock = clock
        self._filled_s = clock()

    def spend(self, count: int) -> bool:
        """Whether as many are left. Reads the clock only when nothing is."""
        self._left -= count
        if self._left >= 0:
            return True
        now_s = self._clock()
        earned = (now_s - self._filled_s) * self._per_s
        self._filled_s = now_s
        self._left = min(self._burst, self._left + earned)
        return self._left >= 0

    def earn(self, count: int) -> None:
        """Allow as many more, up to the burst."""
        self._left = min(self._burst, self._left + count)
