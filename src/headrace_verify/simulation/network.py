"""The simulated network: connections that preserve order, and links that fail.

Invariants: transports bytes between hosts and ignores their content. A connection is two pipes;
what is sent on one arrives in order, each piece after its own random delay. A blocked link holds
everything back, as TCP does, and delivers it when it heals. A host's connections end with it: the
peer is notified immediately (the process died) or when it next sends (the machine lost power).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace_verify.simulation.loop import HOST, Host, SimulatedLoop, context_of
from headrace_verify.simulation.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random  # noqa: TID251 - a type

DELAY_MIN_S, DELAY_MAX_S = 0.000_05, 0.000_6
SLOW_PROBABILITY, SLOW_MAX_S = 0.01, 0.02
"""Occasionally, a message takes much longer than others."""


class Transport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, network: Network, host: Host | None, pipe: Pipe, peer: tuple[str, int]
    ) -> None:
        super().__init__({"peername": peer})
        self._network = network
        self.host = host
        self.pipe = pipe
        self.protocol: Any = None
        self.other: Transport | None = None
        self._is_closing = False
        self._is_lost = False
        self._is_reading_paused = False
        self._is_read = False
        """Whether input is delivered; before, it is buffered as in a socket that is not read."""
        self._received: list[bytes | None] = []
        self.has_vanished = False

    # --- asyncio.Transport -------------------------------------------------------------------

    def write(self, data: Any) -> None:
        """See asyncio."""
        if self._is_closing or self._is_lost or not data:
            return
        assert self.other is not None
        self._network.bytes += len(data)
        if self.other.has_vanished:
            self.pipe.send(None, self._refuse)
            return
        data, fault_points = bytes(data), self._network.loop.fault_points
        if len(data) > 1 and fault_points.does("bytes in pieces"):
            cut = 1 + int(fault_points.strength("bytes in pieces") * (len(data) - 1))
            self.pipe.send(self.other.host, self.other.deliver, data[:cut])
            data = data[cut:]
        self.pipe.send(self.other.host, self.other.deliver, data)

    def writelines(self, parts: Any) -> None:
        """See asyncio."""
        self.write(b"".join(parts))

    def write_eof(self) -> None:
        """See asyncio."""
        assert self.other is not None
        self.pipe.send(self.other.host, self.other.deliver, None)

    def can_write_eof(self) -> bool:
        """See asyncio."""
        return True

    def get_write_buffer_size(self) -> int:
        """See asyncio."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See asyncio; accepts everything."""

    def is_closing(self) -> bool:
        """See asyncio."""
        return self._is_closing or self._is_lost or self._network.is_over

    def pause_reading(self) -> None:
        """See asyncio."""
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        """See asyncio."""
        self._is_reading_paused = False
        self._hand_on()

    def is_reading(self) -> bool:
        """See asyncio."""
        return not self._is_reading_paused and not self._is_lost

    def set_protocol(self, protocol: Any) -> None:
        """See asyncio."""
        self.protocol = protocol

    def get_protocol(self) -> Any:
        """See asyncio."""
        return self.protocol

    def close(self) -> None:
        """See asyncio: what was written still arrives."""
        if not self._is_closing and not self._is_lost:
            self._is_closing = True
            self.write_eof()
            self._lose_soon(None)

    def abort(self) -> None:
        """See asyncio: the peer sees a connection reset."""
        if not self._is_lost:
            self._is_closing = True
            self._notify_reset()
            self._lose_soon(None)

    # --- network side ------------------------------------------------------------------------

    def _notify_reset(self) -> None:
        assert self.other is not None
        self.pipe.send(self.other.host, self.other.lose, ConnectionResetError("reset by the peer"))

    def _lose_soon(self, error: Exception | None) -> None:
        self._network.loop.call_soon(self.lose, error, context=context_of(self.host))

    def abort_unborn(self) -> None:
        """The caller has given up on this connection meanwhile."""
        self._is_lost = self._is_closing = True
        self._notify_reset()

    def begin(self, protocol: Any) -> None:
        """Notify the protocol of the connection; buffered input follows."""
        self.protocol = protocol
        protocol.connection_made(self)
        # An iteration later, as asyncio does; without buffered input there is nothing to delay.
        if self._received:
            self._network.loop.call_soon(self._begin_reading, context=context_of(self.host))
        else:
            self._is_read = True

    def _begin_reading(self) -> None:
        self._is_read = True
        if not self._is_reading_paused:
            self._hand_on()

    def _hand_on(self) -> None:
        received, self._received = self._received, []
        for data in received:
            self.deliver(data)

    def deliver(self, data: bytes | None) -> None:
        """Receive bytes; None: the peer sends no more."""
        if self._is_lost:
            return
        if self._is_reading_paused or not self._is_read:
            self._received.append(data)
        elif data is not None:
            if not self._is_closing:
                self.protocol.data_received(data)
        elif not self._is_closing and not self.protocol.eof_received():
            self.close()

    def lose(self, error: Exception | None) -> None:
        """End the connection on this side."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._network.forget(self)
        if self.protocol is not None:  # else: reset before the caller was notified
            self.protocol.connection_lost(error)

    def vanish(self, *, is_notified: bool) -> None:
        """The host of this end has died."""
        self._is_lost = self._is_closing = self.has_vanished = True
        self._network.forget(self)
        if is_notified:
            self._notify_reset()

    def _refuse(self) -> None:
        """The peer's machine is back, and does not know this connection."""
        assert self.other is not None
        self.other.pipe.send(self.host, self.lose, ConnectionResetError("unknown to the peer"))

    def reset(self) -> None:
        """The connection was cut on the way: both sides are notified."""
        self._notify_reset()
        self._lose_soon(ConnectionResetError("reset on the way"))


class Server:
    """The result of `create_server`."""

    def __init__(
        self, network: Network, factory: Any, host: Host | None, address: tuple[str, int]
    ) -> None:
        self._network = network
        self.factory = factory
        self.host = host
        self.address = address
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        """As a socket's."""
        return self.address

    async def start_serving(self) -> None:
        """Already serving."""

    def close(self) -> None:
        """Stop accepting connections."""
        self._network.servers.pop(self.address, None)

    async def wait_closed(self) -> None:
        """Returns immediately."""


class Network:
    """All links. A place is the name of a host, regardless of its life."""

    def __init__(self, loop: SimulatedLoop, random: Random) -> None:
        self.loop = loop
        self._random = random
        self.servers: dict[tuple[str, int], Server] = {}
        self.holding: list[Pipe] = []
        self.blocked: dict[tuple[str, str], int] = {}
        self.slow: dict[tuple[str, str], float] = {}
        self.dark: set[str] = set()
        """Machines without power: connections to them time out instead of being refused."""
        self.refused: dict[tuple[str, str], int] = {}
        """Whose connections to whom are refused on the way, as by a firewall."""
        self._transports: dict[Transport, None] = {}
        self.is_over = False
        self.messages = 0
        self.bytes = 0

    # --- links -------------------------------------------------------------------------------

    def is_blocked(self, link: tuple[str, str]) -> bool:
        """Whether the link is blocked."""
        return link in self.blocked or (bool(self.dark) and not self.dark.isdisjoint(link))

    def delay_s(self, link: tuple[str, str]) -> float:
        """Draw the delay of one message."""
        random = self._random.random
        delay_s = DELAY_MIN_S + random() * DELAY_MAX_S
        if random() < SLOW_PROBABILITY:
            delay_s += random() * SLOW_MAX_S
        return delay_s + self.slow.get(link, 0.0) * random()

    def block(self, links: Sequence[tuple[str, str]]) -> None:
        """Block these links; may be nested."""
        _add(self.blocked, links)

    def unblock(self, links: Sequence[tuple[str, str]]) -> None:
        """Remove one block."""
        _remove(self.blocked, links)
        self._release()

    def refuse(self, links: Sequence[tuple[str, str]]) -> None:
        """Reset the connections between these places, and refuse those from the first to the
        second; may be nested."""
        _add(self.refused, links)
        for link in links:
            self.reset(*link)

    def accept(self, links: Sequence[tuple[str, str]]) -> None:
        """Remove one refusal."""
        _remove(self.refused, links)

    def power_off(self, name: str) -> None:
        """Connections to this machine are not even refused from now on."""
        self.dark.add(name)

    def power_on(self, name: str) -> None:
        """The machine is back: connections of its previous life are reset."""
        self.dark.discard(name)
        self._release()

    def _release(self) -> None:
        holding, self.holding = self.holding, []
        for pipe in holding:
            if self.is_blocked(pipe.link):
                self.holding.append(pipe)
            else:
                pipe.release()

    def reset(self, one: str, other: str) -> int:
        """Cut the connections between two places; returns their number."""
        found = [
            transport
            for transport in self._transports
            if transport.pipe.link == (one, other) or transport.pipe.link == (other, one)
        ]
        for transport in found:
            transport.reset()
        return len(found)

    def end(self, host: Host, *, is_notified: bool) -> None:
        """Remove everything that belonged to a host."""
        for address in [key for key, server in self.servers.items() if server.host is host]:
            del self.servers[address]
        for transport in [one for one in self._transports if one.host is host]:
            transport.vanish(is_notified=is_notified)

    def forget(self, transport: Transport) -> None:
        """Remove a connection that has ended on one side."""
        self._transports.pop(transport, None)

    # --- connections -------------------------------------------------------------------------

    def listen(self, factory: Any, name: str, port: int) -> Server:
        """Listen at a place. Raises OSError if it is in use."""
        address = (name, port)
        if address in self.servers:
            raise OSError(f"{address} is in use")
        server = self.servers[address] = Server(self, factory, HOST.get(), address)
        return server

    async def connect(self, factory: Any, name: str, port: int) -> tuple[Transport, Any]:
        """Connect from the calling host. Raises ConnectionRefusedError."""
        host = HOST.get()
        source = "world" if host is None else host.name
        there, back = Pipe(self, source, name), Pipe(self, name, source)
        answer: asyncio.Future[bool] = self.loop.create_future()
        mine = Transport(self, host, there, (name, port))

        def reply(is_taken: bool) -> None:
            if not answer.done():
                answer.set_result(is_taken)
            elif is_taken:
                mine.abort_unborn()

        def arrive() -> None:
            server = self.servers.get((name, port))
            if (source, name) in self.refused:
                server = None
            if server is None or self.loop.fault_points.does("connection refused"):
                back.send(host, reply, False)
                return
            theirs = Transport(self, server.host, back, (source, 40_000))
            mine.other, theirs.other = theirs, mine
            self._transports[theirs] = None
            theirs.protocol = server.factory()
            # The kernel accepts it, even if the process is stopped.
            self.loop.call_soon(theirs.begin, theirs.protocol, context=context_of(server.host))
            back.send(host, reply, True)

        there.send(None, arrive)
        if not await answer:
            raise ConnectionRefusedError(f"no server listens at {name}:{port}")
        if mine.is_closing():
            raise ConnectionResetError(f"{name}:{port} reset the connection immediately")
        protocol = factory()
        self._transports[mine] = None
        mine.begin(protocol)
        return mine, protocol


def _add(counts: dict[tuple[str, str], int], links: Sequence[tuple[str, str]]) -> None:
    for link in links:
        counts[link] = counts.get(link, 0) + 1


def _remove(counts: dict[tuple[str, str], int], links: Sequence[tuple[str, str]]) -> None:
    for link in links:
        count = counts.pop(link) - 1
        if count:
            counts[link] = count
