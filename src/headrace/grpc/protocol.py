"""One connection of a gRPC client: sockets on one side, the HTTP/2 machine and calls on the other.

Invariants: has the methods of an asyncio.Protocol. What arrives together is answered in one write,
or in one for each turn if it is much; what handlers answer later leaves at the end of the loop's
turn. A client that does not read is not read from, and is disconnected when it owes more than the
limit allows.
"""

from __future__ import annotations

import logging
import ssl
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

from headrace.errors import AuthenticationFailed
from headrace.grpc import messages
from headrace.grpc.calls import NoCall, ServerCall
from headrace.grpc.connection import Http2Connection
from headrace.grpc.frames import CANCEL, ENHANCE_YOUR_CALM
from headrace.grpc.service import Status
from headrace.grpc.tls import HANDSHAKE_BYTE, TlsTunnel
from headrace.grpc.turns import Turns

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Hashable
    from typing import Protocol

    from headrace.grpc.limits import Limits
    from headrace.grpc.outflow import Stream
    from headrace.grpc.requests import Request
    from headrace.grpc.service import Method
    from headrace.grpc.turns import Arrivals

    class Server(Protocol):
        """What a connection needs of its server."""

        limits: Limits
        methods: dict[bytes, Method]
        accepts_plain: bool
        name: str
        arrivals: Arrivals

        def address(self, connection: GrpcProtocol) -> Hashable:
            """Whose connections take turns, and have bounds, as one."""
            ...

        def opened(self, connection: GrpcProtocol) -> bool:
            """A client has connected; returns whether it may stay."""
            ...

        def closed(self, connection: GrpcProtocol) -> None:
            """A client has disconnected."""
            ...

        def tunnel(self) -> TlsTunnel | None:
            """TLS for a new connection; None: the listener has no certificate."""
            ...

        def open_session(self, connection: Peer) -> object | None:
            """The session of a new connection. Raises AuthenticationFailed."""
            ...

        def hold(self, connection: GrpcProtocol, size: int) -> bool:
            """Count bytes of incomplete messages; returns whether they may be kept."""
            ...

        def run_slowly(
            self, connection: GrpcProtocol, function: Callable[[], bytes | None]
        ) -> asyncio.Future[bytes | None] | None:
            """Run a function in a thread, after those that wait for it; None: too many do."""
            ...

        def owe(self, change: int) -> None:
            """Count responses that are not read; may abort the connection that owes most."""
            ...

        def kept(self, size: int) -> None:
            """Calls keep so much more (`Call.keep`)."""
            ...

        def wake_by(self, deadline: float) -> None:
            """Have `sweep` called by then."""
            ...


log = logging.getLogger(__name__)

NEVER = float("inf")


class Peer(NamedTuple):
    """What is known of a client when it connects."""

    address: str
    is_secure: bool
    """Whether the connection is encrypted."""
    certificate: bytes | None
    """Its certificate (DER), verified by the handshake."""


class GrpcProtocol:
    """See the module."""

    __slots__ = (
        "_close_at_s", "_heard_s", "_http2", "_is_draining", "_is_heard", "_is_lingering",
        "_is_probed", "_is_receiving", "_loop", "_next_deadline", "_opened_s", "_refuse_at_s",
        "_server", "_transport", "_tunnel", "_turns", "address", "held_bytes", "is_secure",
        "is_slow", "is_write_paused", "kept", "limits", "outflow", "owed_bytes", "peer",
        "run_slowly", "session",
    )  # fmt: skip

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self.limits = server.limits
        self.run_slowly = partial(server.run_slowly, self)
        self.kept = server.kept
        self._http2 = Http2Connection(self, server.limits, loop.time)
        self.outflow = self._http2.outflow
        self._transport: asyncio.Transport | None = None
        self._tunnel: TlsTunnel | None = None
        self.peer = ""
        self.address: Hashable = ""
        """See Server.address."""
        self.is_secure = False
        self.session: object | None = None
        self.held_bytes = 0
        """Incomplete messages of its calls."""
        self.owed_bytes = 0
        """Responses that the socket, or the client's windows, have not taken."""
        self.is_write_paused = False
        self.is_slow = False
        """See service.Connection."""
        self._is_receiving = False
        self._turns: Turns | None = None
        self._opened_s = self._heard_s = loop.time()
        self._is_heard = False
        """Whether something has arrived since the last sweep."""
        self._is_probed = False
        """Whether a PING waits for its answer."""
        self._is_draining = False
        self._is_lingering = False
        """Whether everything is said, and the client is given time to read it."""
        self._close_at_s = NEVER
        self._refuse_at_s = NEVER
        """When a stopping server accepts no further calls, even if the client has not answered."""
        self._next_deadline = NEVER

    # --- asyncio.Protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        # What the socket does not take at once is counted (`pause_writing`): with the usual 64 KiB
        # of each, 10,000 clients that do not read would have 600 MiB.
        self._transport.set_write_buffer_limits(0)
        address = transport.get_extra_info("peername")
        if address:
            self.peer = str(address[0])
        server = self._server
        self.address = server.address(self)
        self._turns = Turns(self, self._transport, server.arrivals, self.address)
        if not self._server.opened(self):
            self.abort("is one too many: connections_max")

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._transport = None
        self._tunnel = None
        if self._turns is not None:
            self._turns.close()
            self._turns = None
        self._http2.lost()
        self.outflow.output.clear()
        self._owe(0)
        self._server.closed(self)

    def eof_received(self) -> bool:
        """See asyncio.Protocol."""
        return False

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_write_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_write_paused = False
        self._owe(self.outflow.unsent_bytes)
        if self._turns is not None:
            self._turns.resume()
        for stream in list(self._http2.streams.values()):
            if stream.exchange is not None:
                stream.exchange.writable()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._turns is not None:
            self._turns.add(data)

    def take(self, data: bytes) -> None:
        """See turns.Connection."""
        if self._transport is None or self._is_lingering:
            return
        self._is_heard = True
        self._is_receiving = True
        try:
            if self._tunnel is not None:
                data = self._decrypt(self._tunnel, data)
            elif not self.outflow.has_begun:
                data = self._begin(data)
            if data:
                self._http2.receive(data)
        finally:
            self._is_receiving = False
        if self.outflow.output:
            self.flush()
        if self._tunnel is not None and self._tunnel.has_ended:
            self._close()

    # --- begin ---------------------------------------------------------------------------------

    def _begin(self, data: bytes) -> bytes:
        """The client's first bytes: encrypted or not? Returns those of HTTP/2."""
        if data[0] != HANDSHAKE_BYTE:
            if self._server.accepts_plain:
                self._start_http2()
                return b"" if self._is_lingering else data
            self.abort("sent no TLS, which this listener requires")
            return b""
        tunnel = self._server.tunnel()
        if tunnel is None:
            self.abort("began a TLS handshake, and the listener has no certificate")
            return b""
        self._tunnel = tunnel
        self.is_secure = True
        return self._decrypt(tunnel, data)

    def _decrypt(self, tunnel: TlsTunnel, data: bytes) -> bytes:
        was_open = tunnel.is_open
        plain = b""
        try:
            plain = tunnel.receive(data)
        except ssl.SSLError as error:
            if was_open:  # the handshake reports its own failures
                log.warning("client %s sent broken TLS records (%s)", self.peer, error.reason)
            self._is_lingering = True
        rest = tunnel.outgoing()
        if rest and self._transport is not None:
            self._transport.write(rest)
        if self._is_lingering:
            self._close()
        elif tunnel.is_open and not was_open:
            self._start_http2()
        return plain if self._transport is not None and not self._is_lingering else b""

    def _start_http2(self) -> None:
        certificate = None if self._tunnel is None else self._tunnel.certificate
        try:
            self.session = self._server.open_session(Peer(self.peer, self.is_secure, certificate))
        except AuthenticationFailed as error:
            self.abort(f"is refused: {error}")
            return
        self._http2.begin()

    # --- connection.Requests -------------------------------------------------------------------

    def opened(self, stream: Stream, request: Request) -> None:
        """See Requests."""
        known = request.known
        if not messages.is_grpc(known.get(b"content-type")):
            stream.exchange = NoCall(self.outflow, stream, b"415")
            return
        if known[b":method"] != b"POST":
            stream.exchange = NoCall(self.outflow, stream, b"405")
            return
        method = self._server.methods.get(known[b":path"])
        deadline = None
        timeout = known.get(b"grpc-timeout")
        if timeout is not None:
            seconds = messages.timeout_s(timeout)
            if seconds is None:
                self._refuse(stream, Status.INTERNAL, "grpc-timeout is malformed")
                return
            deadline = self._loop.time() + seconds
            if deadline < self._next_deadline:
                self._next_deadline = deadline
                self._server.wake_by(deadline)
        if method is None:
            path = known[b":path"][:200].decode("latin-1")
            self._refuse(stream, Status.UNIMPLEMENTED, f"this server has no method {path}")
            return
        encoding = known.get(b"grpc-encoding")
        if encoding is not None and encoding not in messages.ENCODINGS:
            self._refuse(stream, Status.UNIMPLEMENTED, "grpc-encoding is not identity or gzip")
            return
        if request.size_bytes > self.limits.header_list_bytes_max:
            limit = self.limits.header_list_bytes_max
            self._refuse(stream, Status.RESOURCE_EXHAUSTED, f"more than {limit} bytes of metadata")
            return
        call = ServerCall(self, stream, request, method, deadline)
        stream.exchange = call
        if method.streams_requests:
            call.start()

    def _refuse(self, stream: Stream, status: Status, message: str) -> None:
        fields = (messages.ACCEPTED_ENCODINGS,) if status == Status.UNIMPLEMENTED else ()
        block = messages.HEAD + messages.trailers(status, message, fields)
        self.outflow.head(stream, block, is_last=True)

    def has_output(self) -> None:
        """See Requests."""
        if not self._is_receiving:
            self._loop.call_soon(self.flush)

    def dropped_output(self) -> None:
        """See Requests."""
        if self.owed_bytes > self.unsent_bytes:
            self._owe(self.unsent_bytes)

    def ponged(self) -> None:
        """See Requests."""
        self._is_probed = False
        if self._is_draining:
            self._http2.refuse_streams()

    # --- calls.CallConnection ------------------------------------------------------------------

    def hold(self, size: int) -> bool:
        """See CallConnection."""
        self.held_bytes += size
        return self._server.hold(self, size)

    def flush(self) -> None:
        """See CallConnection."""
        outflow = self.outflow
        transport = self._transport
        if transport is None or self._is_lingering:  # calls may end whose client is told nothing
            outflow.take()
            self._owe(0)
            return
        if outflow.output:
            data = outflow.take()
            if self._tunnel is not None:
                try:
                    data = self._tunnel.encrypt(data)
                except ssl.SSLError as error:
                    self.abort(f"cannot be sent anything ({error.reason})")
                    return
            transport.write(data)
        if self.is_write_paused or outflow.unsent_bytes:
            self._owe(self.unsent_bytes)
            if self.owed_bytes > self.limits.unsent_bytes_max:
                self.abort("does not read its responses: unsent_bytes_max")
                return
        elif self.owed_bytes:
            self._owe(0)
        http2 = self._http2
        if http2.failure is not None:
            self._fail()
        elif http2.is_closing and not http2.streams:
            self._linger()

    def _owe(self, size: int) -> None:
        change, self.owed_bytes = size - self.owed_bytes, size
        self._server.owe(change)

    @property
    def call_bytes(self) -> int:
        """What calls take: see Stream."""
        return sum(stream.call_bytes for stream in self._http2.streams.values())

    @property
    def unsent_bytes(self) -> int:
        """What the client has not read of its responses."""
        buffered = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return buffered + self.outflow.unsent_bytes

    # --- end -----------------------------------------------------------------------------------

    def _fail(self) -> None:
        failure = self._http2.failure
        assert failure is not None
        if not self._is_lingering:
            log.warning(
                "client %s of listener %s: %s: closing the connection",
                self.peer,
                self._server.name,
                failure.reason,
            )
        self._linger()

    def _linger(self) -> None:
        """Everything is said: close when the client has read it, or soon.

        Closing at once could destroy what the client has not read yet: TCP resets a connection that
        is closed before everything that arrived on it is read.
        """
        if self._is_lingering:
            return
        self._is_lingering = True
        transport = self._transport
        assert transport is not None
        if self._tunnel is not None:
            transport.write(self._tunnel.end())
        if transport.can_write_eof():
            transport.write_eof()
        self._close_at_s = self._loop.time() + self.limits.goaway_s
        self._server.wake_by(self._close_at_s)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close the connection at once and log the reason."""
        transport = self._transport
        if transport is not None:
            log.warning("client %s of listener %s %s", self.peer, self._server.name, reason)
            self._is_lingering = True
            self._owe(0)  # it is freed in this turn
            transport.abort()

    def end_for_memory(self) -> None:
        """Close it: it holds more than any other, and memory is short."""
        # Not at once: it may be in the midst of a frame.
        self._loop.call_soon(self._http2.fail, ENHANCE_YOUR_CALM, "holds more than any other")

    def drain(self) -> None:
        """Serve the calls that there are, and no others; then close."""
        if self._transport is None or self._is_lingering:
            return
        if self._http2.has_begun:
            self._is_draining = True
            self._refuse_at_s = self._loop.time() + self.limits.goaway_s
            self._http2.announce_close()
        else:
            self._transport.abort()  # it has no calls

    def stop(self) -> None:
        """End the calls that there are."""
        for stream in list(self._http2.streams.values()):
            if isinstance(stream.exchange, ServerCall):
                stream.exchange.cancel(Status.UNAVAILABLE, "the server is stopping")
        self._http2.refuse_streams()
        self.flush()
        if not self._is_lingering and self._transport is not None:
            self.abort("has not read its last responses when the server stopped")

    # --- time ----------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> float:
        """Do what is due; returns when the next is. Called now and then, and by `wake_by`."""
        if self._transport is None:
            return NEVER
        limits = self.limits
        if now_s >= self._close_at_s:
            self._close_at_s = NEVER
            self._transport.abort()
            return NEVER
        if not self._http2.has_begun and now_s - self._opened_s >= limits.begin_s:
            self.abort("has not begun HTTP/2 in time: begin_s")
            return NEVER
        if now_s >= self._refuse_at_s:
            self._refuse_at_s = NEVER
            self._http2.refuse_streams()
        if self._http2.is_closing:
            self.flush()  # the client may have reset its last calls
        self._probe(now_s)
        if self._http2.streams:
            silent_s = now_s - self._heard_s
            self._next_deadline = _end_overdue(self._http2, silent_s, now_s, limits)
        return min(self._next_deadline, self._close_at_s, self._refuse_at_s)

    def _probe(self, now_s: float) -> None:
        """Whether the client is still there."""
        if self._is_heard:
            self._is_heard = self._is_probed = False
            self._heard_s = now_s
            return
        silent_s = now_s - self._heard_s
        if silent_s < self.limits.keepalive_s or not self._http2.has_begun:
            return
        if not self._is_probed:
            self._is_probed = True
            self._heard_s = now_s - self.limits.keepalive_s
            self._http2.ping()
        elif silent_s >= self.limits.keepalive_s + self.limits.keepalive_timeout_s:
            self.abort("does not answer: keepalive_timeout_s")


def _end_overdue(http2: Http2Connection, silent_s: float, now_s: float, limits: Limits) -> float:
    """End the calls whose time is over; the next deadline. `silent_s`: the client's silence."""
    next_deadline = NEVER
    for stream in list(http2.streams.values()):
        call = stream.exchange
        if not isinstance(call, ServerCall):
            if silent_s > limits.request_s and not stream.is_remote_closed:
                http2.abandon(stream, CANCEL)
            continue
        if call.is_finished:
            continue
        if call.deadline is not None:
            if call.deadline <= now_s:
                call.cancel(Status.DEADLINE_EXCEEDED, "the deadline has passed")
                continue
            next_deadline = min(next_deadline, call.deadline)
        if call.is_stalled(now_s, limits.request_s):
            call.cancel(Status.CANCELLED, "the request has not been completed: request_s")
    return next_deadline
