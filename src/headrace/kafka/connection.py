"""One client's connection: has requests handled, and sends responses in request order.

Invariants: knows frames (`request_frames`), not their contents. Requests are dispatched as they
arrive, so a client may have many in flight; each first gets its place in the queue of replies, and
replies leave in that order. Replies that are ready at the end of a loop turn go out in one write. A
response that depends on partition ownership leaves only in the term (`Gate`) in which its data was
read; later the connection is closed instead, so that the client retries at the owner. A client that
does not read its responses, or has more than `REPLIES_MAX` responses or `OWED_BYTES_MAX` bytes
outstanding, is not read from until it catches up, and bytes already received wait unparsed. A
request for which there is no room in the share of its client's tenant (`fair_shares`) waits, and
the requests after it.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

from headrace.broker.security.listener import OPEN
from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services.connection_memory import COUNTED_BYTES_MIN
from headrace.errors import AuthenticationFailed
from headrace.kafka.request_frames import RequestFrames
from headrace.kafka.tenant_line import TenantLine
from headrace.kafka.wire.primitives import STRUCT_ERROR, FrameInvalid
from headrace.runtime.file_bytes import FileBytes, in_memory, send_now
from headrace.runtime.security_protocols import PLAINTEXT
from headrace.runtime.tls import certificate_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from headrace.broker.security.listener import ListenerSecurity
    from headrace.broker.services.connection_memory import RequestMemory, ResponseMemory
    from headrace.broker.services.fair_shares import TenantShare
    from headrace.kafka.request_figures import RequestFigures
    from headrace.kafka.request_turns import RequestTurns
    from headrace.records.batch import Buffer
    from headrace.runtime.file_bytes import Sendable

log = logging.getLogger(__name__)

REPLIES_MAX: Final = 256
"""Requests of one connection in flight; further ones wait in the socket."""
OWED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bound on the bytes of one connection's outstanding responses before the next request is
dispatched: a client that requests 50 MiB a thousand times and reads nothing costs two such
responses."""
JOIN_BYTES_MAX: Final = 64 * 1024
"""Up to this size, copying small buffers together is cheaper than sending them one by one."""
ANY_TERM: Final = -1
"""For a response that may leave at any time."""
_NOT_OPEN: Final = ClientSession(PLAINTEXT, "")


class Reply:
    """The place of one response in its connection's queue."""

    __slots__ = (
        "api_key",
        "buffers",
        "bytes_max",
        "charge",
        "connection",
        "held_bytes",
        "request_bytes",
        "started_ns",
        "term",
        "throttle_ms",
        "waited_ns",
    )

    def __init__(self, connection: KafkaConnection, bytes_max: int) -> None:
        self.connection = connection
        self.api_key = connection.api_key
        self.started_ns = connection.last_request_ns
        self.waited_ns = 0
        """How long it waited because its client asked for that."""
        self.bytes_max = bytes_max
        self.throttle_ms = connection.throttle_ms
        """reported in the response; the connection is muted for this long once it is sent"""
        self.term = ANY_TERM
        """The term in which the response may leave: the gate's term when its data was read."""
        self.buffers: Sequence[Sendable] | None = None
        self.held_bytes = 0
        """What is counted for it in the broker's `ResponseMemory`."""
        self.request_bytes = connection.reserved_bytes
        """What is counted for its request in the broker's `RequestMemory`."""
        connection.reserved_bytes = 0
        line = connection.line
        self.charge = None if line is None else line.keep()
        """What its request holds of its tenant's share."""

    @property
    def is_next(self) -> bool:
        """Whether a response sent now goes out in this turn."""
        return self.connection.is_next(self)

    def hold(self, size: int) -> None:
        """Count this many bytes of memory for the response, instead of what was counted before."""
        self.connection.hold(self, size)

    def send(self, buffers: Sequence[Sendable], size: int = 0) -> None:
        """Set the whole response, starting with its size. An empty one keeps its place and sends
        nothing. `size`: the bytes of a response that may be large."""
        assert self.buffers is None, "a request is answered once"
        self.buffers = buffers
        if size >= COUNTED_BYTES_MIN or self.held_bytes:
            self.connection.hold(self, size)
        if self.request_bytes:
            self.connection.release_request(self.request_bytes)
        if self.charge is not None:
            self.charge.release()
        line = self.connection.line
        if size and line is not None and line.share is not None:
            line.share.pass_turn(size)
        self.connection.reply_is_ready(self)


class Gate(Protocol):
    """Tells how long this broker may answer as an owner. See `broker.session_guard`."""

    term: int

    def term_at(self, now_ns: int) -> int:
        """The term at this monotonic time."""
        ...

    def term_now(self) -> int:
        """The current term."""
        ...


class Dispatcher(Protocol):
    """Handles the requests of all connections."""

    request_bytes_max: int
    gate: Gate | None
    """None: this broker owns everything permanently."""
    responses: ResponseMemory
    requests: RequestMemory
    figures: RequestFigures
    turns: RequestTurns
    now_ns: Callable[[], int]

    def opened(self, connection: KafkaConnection) -> None:
        """A client has connected."""
        ...

    def closed(self, connection: KafkaConnection) -> None:
        """A client has disconnected."""
        ...

    def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
        """Handle one request. Raises FrameInvalid, struct.error or IndexError on a malformed
        one."""
        ...


class KafkaConnection:
    """See the module. Has the methods of an asyncio.Protocol; inheriting from it would slow down
    the compiled class."""

    __slots__ = (
        "_dispatcher",
        "_holds",
        "_is_cutting",
        "_is_flushing",
        "_is_half_closed",
        "_is_paused",
        "_is_starved",
        "_loop",
        "_muted",
        "_owed_bytes",
        "_replies",
        "_socket",
        "_unsent_bytes",
        "api_key",
        "certified",
        "frames",
        "is_slow",
        "is_write_paused",
        "last_request_ns",
        "line",
        "listener",
        "must_be_admitted",
        "on_room",
        "peer",
        "peer_port",
        "reserved_bytes",
        "session",
        "settles_ns",
        "state",
        "throttle_ms",
        "transport",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        loop: asyncio.AbstractEventLoop,
        listener: ListenerSecurity = OPEN,
    ) -> None:
        """`listener`: the listener that accepted the client."""
        self._dispatcher = dispatcher
        self.listener = listener
        self.certified = ANONYMOUS
        """The principal of the client's certificate, if it has shown one."""
        self.session = _NOT_OPEN
        """The dispatcher opens a session when the client has connected."""
        self.frames = RequestFrames(dispatcher.request_bytes_max, listener.name)
        self._is_cutting = False
        """Whether requests are being handled further up the stack."""
        self.must_be_admitted = True
        """Whether the dispatcher must check admission before it handles a request."""
        self.throttle_ms = 0
        """Of the request that is being handled."""
        self._muted: asyncio.TimerHandle | None = None
        self._loop = loop
        self._replies: deque[Reply] = deque()
        self._owed_bytes = 0
        self._unsent_bytes = 0
        """Counted for responses that were passed to the transport, and that the operating system
        has not taken yet."""
        self._is_half_closed = False
        self._holds = 0
        """See hold_input. While there are any, no further request is handled."""
        self._is_flushing = self._is_paused = False
        self._is_starved = False
        """Whether a large request waits for memory."""
        self.on_room: Callable[[], None] | None = None
        """See request_turns.Asker."""
        self.reserved_bytes = 0
        """Counted for the large request that is being received."""
        self.line: TenantLine | None = None
        """Among the connections of the client's tenant."""
        self.is_write_paused = self.is_slow = False
        self.last_request_ns = 0
        self.api_key = 0
        self.settles_ns = 0
        """Until then, fetches wait only briefly."""
        self.transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        """The transport's socket, once something was sent past the transport."""
        self.peer = ""
        self.peer_port = 0
        self.state: object = None
        """State that handlers keep for this client."""

    # --- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if address:
            self.peer, self.peer_port = str(address[0]), int(address[1])
        if self.listener.tls is not None:
            try:
                self.certified = self.listener.principal_of(certificate_of(transport))
            except AuthenticationFailed as error:
                self.abort(f"is refused by listener {self.listener.name}: {error}")
        self._dispatcher.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.transport = None
        if self._socket is not None:
            self._socket.detach()  # the transport closes it
            self._socket = None
        self.frames.clear()
        if self.line is not None:
            self.line.close()
        if self._muted is not None:
            self._muted.cancel()
        self.is_write_paused = False
        self._dispatcher.responses.forget(self)
        self._dispatcher.requests.forget(self)
        self._dispatcher.closed(self)

    def eof_received(self) -> bool:
        """See asyncio.Protocol: without TLS a half-closed client still gets its responses."""
        if not self._replies or self.listener.tls is not None:
            return False
        self._is_half_closed = True
        return True

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_write_paused = True
        self._pause()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.is_write_paused = False
        if self._unsent_bytes and self.transport is not None:
            self._dispatcher.responses.release(self, self._unsent_bytes)
            self._unsent_bytes = 0
        self._resume()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.transport is None:
            return  # data that arrives after an abort is ignored
        self.frames.add(data)
        self._handle_requests()

    def _handle_requests(self) -> None:
        """Handle the requests that have arrived, until the client must not be read from."""
        if self._is_cutting:
            return  # resumed while a request is handled: the next one follows it
        self._is_cutting = True
        frames, dispatch = self.frames, self._dispatcher.dispatch
        try:
            while self.transport is not None and not self._is_paused:
                line = self.line
                if line is None or line.parked is None:
                    frame = frames.next(self.reserved_bytes)
                else:
                    frame = line.parked
                if frame is not None:
                    if line is not None and not line.admits(frame):
                        self._pause()
                        break
                    dispatch(self, frame)
                    if line is not None:
                        line.end()
                    if self.reserved_bytes:  # nothing is left to be done for it
                        size, self.reserved_bytes = self.reserved_bytes, 0
                        self.release_request(size)
                    if not frames.data:
                        break
                    if self._dispatcher.turns.is_over(self.last_request_ns):
                        self._pause()
                        self._loop.call_soon(self._resume)
                        break
                elif not frames.wanted_bytes or not self._may_take(frames.wanted_bytes):
                    break
        except (FrameInvalid, STRUCT_ERROR, IndexError) as error:
            self.abort(f"sent a malformed request ({error})")
        except Exception:
            log.exception("internal error in a request from %s: closing the connection", self.peer)
            self.abort("cannot be answered")
        finally:
            self._is_cutting = False

    def _may_take(self, need: int) -> bool:
        """Whether there is memory for a large request; if not, it waits."""
        tenant = None if self.line is None else self.line.share
        if self._is_starved or not self._dispatcher.requests.reserve(self, need, tenant):
            self._is_starved = True
            self._pause()
            return False
        self.reserved_bytes = need
        return True

    # --- dispatcher interface ----------------------------------------------------------------

    def expect(self, bytes_max: int = 0) -> Reply:
        """Reserve the place of the current request's response, which may be `bytes_max` large."""
        reply = Reply(self, bytes_max)
        self._replies.append(reply)
        self._owed_bytes += bytes_max
        if len(self._replies) >= REPLIES_MAX or self._owed_bytes >= OWED_BYTES_MAX:
            self._pause()
        return reply

    def reply_is_ready(self, reply: Reply) -> None:
        """`reply` has its response: send it, with others, at the end of this turn."""
        if not self._is_flushing and self._replies and self._replies[0] is reply:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def is_next(self, reply: Reply) -> bool:
        """See Reply."""
        return bool(self._replies) and self._replies[0] is reply and not self.is_write_paused

    def hold(self, reply: Reply, size: int) -> None:
        """See Reply."""
        if self.transport is None:
            return
        change = size - reply.held_bytes
        reply.held_bytes = size
        if change > 0:
            self._dispatcher.responses.hold(self, change)
        elif change < 0:
            self._dispatcher.responses.release(self, -change)

    def release_request(self, size: int) -> None:
        """A request of this size takes no memory any more."""
        if self.transport is not None:
            self._dispatcher.requests.release(self, size)

    def missing_bytes(self) -> int:
        """See connection_memory.Holder: none while the client is not read from."""
        return 0 if self._is_paused else self.frames.missing_bytes

    def granted(self, size: int) -> None:
        """See connection_memory.Holder."""
        if self.transport is not None:
            self._is_starved = False
            self.reserved_bytes = size
            self._resume()

    def unsent_bytes(self) -> int:
        """See connection_memory.Holder: also what waits for an earlier response that is unknown."""
        buffered = 0 if self.transport is None else self.transport.get_write_buffer_size()
        return buffered + _waiting_bytes(self._replies)

    def abort(self, reason: str) -> None:
        """Close the connection and log the reason, on one line."""
        if self.line is not None:
            self.line.fail()
        if self.transport is not None:
            log.warning("client %s %s: closing its connection", self.peer, reason[:500])
            self.close()

    def close(self) -> None:
        """Close the connection, after the responses that were sent if the client reads them."""
        transport, self.transport = self.transport, None
        self.frames.clear()
        if self.line is not None:
            self.line.close()
        if transport is None:
            return
        if self.is_write_paused:
            # the client reads nothing, so queued responses would stay for ever
            transport.abort()
        else:
            transport.close()

    def set_share(self, share: TenantShare | None) -> None:
        """The client is of this tenant now."""
        if self.line is not None:
            self.line.move(share)
        elif share is not None:
            self.line = TenantLine(self._resume, share)

    def hold_input(self) -> None:
        """Handle no further request until as many `release_input`: logins hold it, and turns."""
        self._holds += 1
        self._pause()

    def release_input(self) -> None:
        """Handle further requests again, unless they are held for another reason."""
        self._holds = max(0, self._holds - 1)
        self._resume()

    def _flush(self) -> None:
        self._is_flushing = False
        out: list[Sendable] = []
        replies = self._replies
        is_withheld = False
        mute_ms = held_bytes = now_ns = 0
        figures, gate = self._dispatcher.figures, self._dispatcher.gate
        while replies and (buffers := replies[0].buffers) is not None:
            reply = replies.popleft()
            if not now_ns:  # before the gate is asked: nothing may come between it and the write
                now_ns = self._dispatcher.now_ns()
            if reply.term != ANY_TERM and gate is not None and gate.term_now() != reply.term:
                is_withheld = True
                break
            figures.answered(reply, now_ns)
            out.extend(buffers)
            self._owed_bytes -= reply.bytes_max
            held_bytes += reply.held_bytes
            if reply.throttle_ms > mute_ms:
                mute_ms = reply.throttle_ms
        transport = self.transport
        if transport is None:
            return
        if mute_ms:
            self.mute(mute_ms)
        if out:
            self._write(transport, out, held_bytes)
        if is_withheld:
            self._withhold()
        elif out and self._is_half_closed and not replies and not self._has_input():
            transport.close()

    def _has_input(self) -> bool:
        return bool(self.frames.data) or (self.line is not None and self.line.parked is not None)

    def mute(self, mute_ms: int) -> None:
        """Stop reading requests for this long, as Kafka does: this enforces the throttle time
        against clients that ignore it (KIP-219)."""
        until_s = self._loop.time() + mute_ms / 1000
        if self._muted is not None:
            if self._muted.when() >= until_s:
                return  # a shorter throttle does not end a longer one
            self._muted.cancel()
        self._muted = self._loop.call_at(until_s, self._unmute)
        self._pause()

    def _unmute(self) -> None:
        self._muted = None
        self._resume()

    def _withhold(self) -> None:
        """Close the connection: the next response was read while this broker was an owner, and the
        owner may have changed. The client reconnects and looks up the owner."""
        if self.transport is not None:
            log.debug("closing the connection of %s: this broker has stepped down", self.peer)
            self.close()

    def _write(
        self, transport: asyncio.Transport, out: Sequence[Sendable], held_bytes: int
    ) -> None:
        size = sum(map(len, out))
        if size > JOIN_BYTES_MAX:
            self._write_large(transport, out)
        else:
            # File-backed data is larger than this.
            small = cast("list[Buffer]", out)
            transport.write(small[0] if len(small) == 1 else b"".join(small))
        if held_bytes and self.transport is not None:
            if self.is_write_paused:
                self._unsent_bytes += held_bytes
            else:
                self._dispatcher.responses.release(self, held_bytes)
        if self._is_paused:
            self._resume()

    def _write_large(self, transport: asyncio.Transport, out: Sequence[Sendable]) -> None:
        """Write buffers that are too large to join; file-backed ones go out without a copy."""
        if any(isinstance(part, FileBytes) for part in out):
            target = self._socket = self._socket or _own_socket(transport)
            if target is not None and transport.get_write_buffer_size() == 0:
                out = send_now(target, out)
        try:
            if out:
                transport.writelines(in_memory(out))
        except OSError as error:
            self.abort(f"cannot be sent data of a ledger's file ({error})")

    def _pause(self) -> None:
        if not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self.on_room is not None:
            on_room, self.on_room = self.on_room, None
            on_room()
        if (
            self._is_paused
            and not self._holds
            and not self._is_starved
            and (self.line is None or not self.line.is_waiting)
            and self._muted is None
            and not self.is_write_paused
            and len(self._replies) < REPLIES_MAX // 2
            and self._owed_bytes < OWED_BYTES_MAX
            and self.transport is not None
        ):
            self._is_paused = False
            self._handle_requests()
            if not self._is_paused and self.transport is not None:
                self.transport.resume_reading()


def _waiting_bytes(replies: deque[Reply]) -> int:
    """The size of the responses that wait for an earlier one, unless that is being read now."""
    return 0 if not replies or replies[0].held_bytes else sum(one.held_bytes for one in replies)


def _own_socket(transport: asyncio.Transport) -> socket.socket | None:
    """The transport's socket, if it can be written to directly (not with TLS)."""
    found = transport.get_extra_info("socket")
    if found is None or transport.get_extra_info("sslcontext") is not None:
        return None
    own = socket.socket(found.family, found.type, found.proto, found.fileno())
    own.setblocking(False)
    return own
