"""A gRPC server: its services, its connections, and what they share.

Invariants: one timer for all connections; an idle one costs a look now and then. Knows nothing of
what the services do.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from headrace.grpc.limits import Limits
from headrace.grpc.protocol import GrpcProtocol
from headrace.grpc.tls import ContextOfListener
from headrace.grpc.turns import Arrivals
from headrace.runtime.clock import SystemClock
from headrace.runtime.free_memory import trim_heap
from headrace.runtime.slow_calls import SlowCalls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Hashable

    from headrace.grpc.protocol import Peer
    from headrace.grpc.service import Services
    from headrace.grpc.tls import TlsTunnel

DEFAULTS: Final = Limits()
SWEEP_S: Final = 1.0
"""Between looks at every connection, for what has no deadline of its own."""
SWEEP_S_MIN: Final = 0.01
KEPT_PARTS: Final = 8
"""Calls are looked at when they have kept such a part of what all may, too."""
BACKLOG: Final = 1024


class GrpcServer:
    """Serves services to clients; `protocol` is the factory for `loop.create_server`."""

    def __init__(
        self,
        services: Services,
        limits: Limits = DEFAULTS,
        *,
        name: str = "grpc",
        tls: ssl.SSLContext | None = None,
        accepts_plain: bool = True,
        open_session: Callable[[Peer], object | None] | None = None,
        now_ns: Callable[[], int] = SystemClock.now_ns,
    ) -> None:
        """To be created on a running event loop.

        `tls`: for clients that begin with a handshake; must be used by no other protocol.
        `accepts_plain`: whether others are served, too. `open_session` is called when a client has
        connected, and its result is `Call.session`; raises AuthenticationFailed to refuse it.
        """
        assert accepts_plain or tls is not None, "nobody could connect"
        self.limits = limits
        self.name = name
        """For log messages."""
        self.methods = {path.encode(): method for path, method in services.items()}
        self.accepts_plain = accepts_plain
        self.held_bytes = 0
        """Incomplete messages of all connections."""
        self.slow_messages: dict[GrpcProtocol, int] = {}
        """Compressed messages that are in the thread, or wait for it, by connection."""
        self.owed_bytes = 0
        """Responses that no client has read yet, of all connections that wait for theirs."""
        self._kept_bytes = 0
        """What calls have kept since all were looked at."""
        self._is_trim_due = False
        """Whether much memory is freed once no client owes anything."""
        self._tls = None if tls is None else ContextOfListener(tls)
        self._open_session = open_session
        self._slow_calls = SlowCalls("headrace-grpc")
        self._loop = asyncio.get_running_loop()
        self.arrivals = Arrivals(self._loop, now_ns)
        self._connections: dict[GrpcProtocol, None] = {}
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at_s = 0.0
        self._emptied: asyncio.Event | None = None

    @property
    def connection_count(self) -> int:
        """Clients that are connected."""
        return len(self._connections)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on an address; returns the one that is bound. Raises OSError."""
        server = await self._loop.create_server(self.protocol, host, port, backlog=BACKLOG)
        self._servers.append(server)
        address = server.sockets[0].getsockname()
        return address[0], address[1]

    def protocol(self) -> asyncio.BaseProtocol:
        """The protocol of a new connection."""
        return GrpcProtocol(self, self._loop)  # type: ignore[return-value] # it has the methods

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop: no new clients or calls. Calls may go on for `grace_s`, and end with UNAVAILABLE
        then."""
        for server in self._servers:
            server.close()
        self._emptied = asyncio.Event()
        for connection in list(self._connections):
            connection.drain()
        if self._connections and grace_s > 0:
            self.wake_by(self._loop.time() + self.limits.goaway_s)
            try:
                await asyncio.wait_for(self._emptied.wait(), grace_s)
            except TimeoutError:
                pass
        for connection in list(self._connections):
            connection.stop()
        if self._connections:
            await self._emptied.wait()
        if self._sweep is not None:
            self._sweep.cancel()
        self._slow_calls.close()

    # --- protocol.Server -----------------------------------------------------------------------

    def opened(self, connection: GrpcProtocol) -> bool:
        """See Server."""
        self._connections[connection] = None
        self.wake_by(self._loop.time() + SWEEP_S)
        return len(self._connections) <= self.limits.connections_max and self._emptied is None

    def closed(self, connection: GrpcProtocol) -> None:
        """See Server."""
        self._connections.pop(connection, None)
        if not self._connections and self._emptied is not None:
            self._emptied.set()

    def address(self, connection: GrpcProtocol) -> Hashable:
        """See Server."""
        return connection.peer

    def tunnel(self) -> TlsTunnel | None:
        """See Server."""
        return None if self._tls is None else self._tls.tunnel()

    def open_session(self, connection: Peer) -> object | None:
        """See Server."""
        return None if self._open_session is None else self._open_session(connection)

    def hold(self, connection: GrpcProtocol, size: int) -> bool:
        """See Server."""
        self.held_bytes += size
        if size <= 0:
            return True
        if self.held_bytes > self.limits.listener_partial_bytes_max:
            most = self._largest(attrgetter("held_bytes"))
            most.end_for_memory()
            if most is connection:
                return False
        return connection.held_bytes <= self.limits.partial_bytes_max

    def run_slowly(
        self, connection: GrpcProtocol, function: Callable[[], bytes | None]
    ) -> asyncio.Future[bytes | None] | None:
        """See Server."""
        limits, slow = self.limits, self.slow_messages
        left = limits.listener_slow_messages_max - sum(slow.values())
        of_address = sum(count for one, count in slow.items() if one.address == connection.address)
        if slow.get(connection, 0) >= limits.slow_messages_max or of_address >= 2 * left:
            return None
        running = self._slow_calls.start(function)
        slow[connection] = slow.get(connection, 0) + 1

        def ran(_running: asyncio.Future[bytes | None]) -> None:
            slow[connection] -= 1
            if not slow[connection]:
                del slow[connection]

        running.add_done_callback(ran)
        return running

    def owe(self, change: int) -> None:
        """See Server."""
        self.owed_bytes += change
        if change > 0 and self.owed_bytes > self.limits.listener_unsent_bytes_max:
            most = self._largest(attrgetter("owed_bytes"))
            most.abort("does not read its responses: listener_unsent_bytes_max")
            self._is_trim_due = True

    def wake_by(self, deadline: float) -> None:
        """See Server."""
        if self._sweep is not None:
            if self._sweep_at_s <= deadline:
                return
            self._sweep.cancel()
        self._sweep_at_s = deadline
        self._sweep = self._loop.call_at(deadline, self._sweep_all)

    def kept(self, size: int) -> None:
        """See Server."""
        self._kept_bytes += max(size, 0)
        if self._kept_bytes > self.limits.listener_calls_bytes_max // KEPT_PARTS:
            self._end_largest()

    def _largest(self, size_of: Callable[[GrpcProtocol], int]) -> GrpcProtocol:
        """The largest connection of the address that has most: whoever divides what it has among
        many does not have others closed. Of 10,000 in 2 ms: each frame may ask while there is too
        much."""
        of_address = self._of_addresses(size_of)
        address = max(of_address, key=of_address.__getitem__)
        return max((one for one in self._connections if one.address == address), key=size_of)

    def _of_addresses(self, size_of: Callable[[GrpcProtocol], int]) -> dict[Hashable, int]:
        found: dict[Hashable, int] = {}
        for one in self._connections:
            found[one.address] = found.get(one.address, 0) + size_of(one)
        return found

    def _end_largest(self) -> None:
        """End the connections with the largest calls while all together have too much."""
        self._kept_bytes = 0
        excess = sum(one.call_bytes for one in self._connections)
        excess -= self.limits.listener_calls_bytes_max
        if excess > 0:
            sizes = {one: one.call_bytes for one in self._connections}
            all_of = self._of_addresses(sizes.__getitem__)
            for one in sorted(sizes, key=lambda one: (-all_of[one.address], -sizes[one])):
                if excess > 0:
                    excess -= sizes[one]
                    one.end_for_memory()
            self._is_trim_due = True

    def _sweep_all(self) -> None:
        now_s = self._loop.time()
        next_s = now_s + SWEEP_S
        self._sweep = None
        for connection in list(self._connections):
            next_s = min(next_s, connection.sweep(now_s))
        self._end_largest()
        if self._is_trim_due and not self.owed_bytes:
            self._is_trim_due = False
            trim_heap()  # responses are small blocks, of which the C library would keep most
        if self._connections or self._is_trim_due:
            self.wake_by(max(next_s, now_s + SWEEP_S_MIN))
