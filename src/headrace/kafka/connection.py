"""One client's connection: cuts frames out of the stream, sends answers in the order of requests.

Invariants: knows frames, not what is in them. A frame is a memoryview of what was received.
Requests are handed on as they arrive, so a client may have many under way; each gets its place in
the queue of replies first, and leaves in that order. What is ready at the end of a turn of the
loop goes out in one write. An answer that depends on what this broker owns leaves only in the term
(`Gate`) in which that was read; later the connection is closed instead, so that the client asks
again, and asks the owner. A client that does not read its answers, or asks for more than
`REPLIES_MAX` answers or `OWED_BYTES_MAX` bytes at a time, is not read from until it does, and what
it has sent already waits uncut.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol, cast

from headrace.broker.sessions import Session
from headrace.kafka.wire.primitives import STRUCT_ERROR, FrameInvalid
from headrace.metadata.endpoints import PLAINTEXT
from headrace.runtime.file_bytes import FileBytes, in_memory, send_now

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from headrace.records.batch import Buffer
    from headrace.runtime.file_bytes import Sendable

log = logging.getLogger(__name__)

REPLIES_MAX: Final = 256
"""Requests of one connection under way at once; the next ones wait in the socket."""
OWED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes that one connection's answers under way may come to before the next request is looked at:
a client that asks for 50 MiB a thousand times and reads nothing costs two such answers."""
JOIN_BYTES_MAX: Final = 64 * 1024
"""Up to here it is cheaper to copy small buffers together than to send them one by one."""
FRAME_BYTES_MIN: Final = 8
ANY_TERM: Final = -1
"""Of an answer that may leave at any time."""
SIZE_BYTES: Final = 4
_NOT_OPEN: Final = Session(PLAINTEXT, "")


class Reply:
    """The place of one answer in its connection's queue."""

    __slots__ = ("buffers", "bytes_max", "connection", "term", "throttle_ms")

    def __init__(self, connection: Connection, bytes_max: int) -> None:
        self.connection = connection
        self.bytes_max = bytes_max
        self.throttle_ms = connection.throttle_ms
        """What the answer says, and how long the connection is muted once it is sent."""
        self.term = ANY_TERM
        """In which the answer may leave: that of the gate when what it tells was read."""
        self.buffers: Sequence[Sendable] | None = None

    @property
    def is_next(self) -> bool:
        """Whether an answer given now goes out in this turn."""
        return self.connection.is_next(self)

    def send(self, buffers: Sequence[Sendable]) -> None:
        """The whole answer, its size in front. An empty one keeps the place and sends nothing."""
        assert self.buffers is None, "a request is answered once"
        self.buffers = buffers
        self.connection.reply_is_ready(self)


class Gate(Protocol):
    """Knows how long this broker may answer as an owner. See `broker.session_guard`."""

    term: int

    def term_at(self, now_ns: int) -> int:
        """The term at this monotonic time."""
        ...

    def term_now(self) -> int:
        """The term now."""
        ...


class Dispatcher(Protocol):
    """What takes the requests of all connections."""

    request_bytes_max: int
    gate: Gate | None
    """None: this broker owns everything for ever."""

    def opened(self, connection: Connection) -> None:
        """A client has connected."""
        ...

    def closed(self, connection: Connection) -> None:
        """A client is gone."""
        ...

    def dispatch(self, connection: Connection, frame: memoryview) -> None:
        """Take one request. Raises FrameInvalid, struct.error or IndexError on a bad one."""
        ...


class Connection:
    """See the module. An asyncio.Protocol by its methods: inheriting would slow a compiled one."""

    __slots__ = (
        "_dispatcher",
        "_is_flushing",
        "_is_half_closed",
        "_is_paused",
        "_is_write_paused",
        "_loop",
        "_muted",
        "_need",
        "_owed_bytes",
        "_partial",
        "_replies",
        "_socket",
        "_uncut",
        "last_request_ns",
        "listener",
        "must_be_admitted",
        "peer",
        "session",
        "state",
        "throttle_ms",
        "transport",
    )

    def __init__(
        self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop, listener: str = PLAINTEXT
    ) -> None:
        """`listener`: the name of the one that the client came through."""
        self._dispatcher = dispatcher
        self.listener = listener
        self.session = _NOT_OPEN
        """The dispatcher opens one when the client is connected."""
        self.must_be_admitted = True
        """Whether the dispatcher has to ask before it takes a request."""
        self.throttle_ms = 0
        """Of the request that is being taken."""
        self._muted: asyncio.TimerHandle | None = None
        self._loop = loop
        self._replies: deque[Reply] = deque()
        self._partial = bytearray()
        """A frame that has not arrived in whole; `_need` bytes, once its size is known."""
        self._need = 0
        self._uncut = b""
        """Whole requests, perhaps, that came before the client was no longer read from."""
        self._owed_bytes = 0
        self._is_half_closed = False
        self._is_flushing = False
        self._is_paused = False
        self._is_write_paused = False
        self.last_request_ns = 0
        self.transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        """The transport's, once something was sent past it."""
        self.peer = ""
        self.state: object = None
        """Whatever the handlers keep about this client."""

    # --- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else ""
        self._dispatcher.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.transport = None
        if self._socket is not None:
            self._socket.detach()  # the transport closes it
            self._socket = None
        self._partial = bytearray()
        self._uncut = b""
        if self._muted is not None:
            self._muted.cancel()
        self._dispatcher.closed(self)

    def eof_received(self) -> bool:
        """See asyncio.Protocol: a half-closed client still gets what it has asked for."""
        if not self._replies:
            return False
        self._is_half_closed = True
        return True

    def pause_writing(self) -> None:
        """See asyncio.Protocol."""
        self._is_write_paused = True
        self._pause()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._is_write_paused = False
        self._resume()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.transport is None:
            return  # what still comes in behind an abort is of no interest
        if self._uncut:
            self._uncut += data
            return
        self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            at = self._complete(data) if self._partial else 0
            if at < len(data):
                self._cut(data, at)
        except (FrameInvalid, STRUCT_ERROR, IndexError) as error:
            self.abort(f"sent a malformed request ({error})")
        except Exception:
            log.exception("a request from %s failed in an unforeseen way: closing it", self.peer)
            self.abort("cannot be answered")

    def _complete(self, data: bytes) -> int:
        """Add to the frame that is not whole yet; where in `data` the next one begins.

        Only that frame's bytes are copied: what follows it is read in place.
        """
        partial = self._partial
        at = 0
        if len(partial) < SIZE_BYTES:
            at = SIZE_BYTES - len(partial)
            partial += data[:at]
            if len(partial) < SIZE_BYTES:
                return at
            self._need = SIZE_BYTES + self._checked_length(partial, 0)
        end = at + self._need - len(partial)
        with memoryview(data) as view:
            partial += view[at:end]
        if end <= len(data):
            self._partial = bytearray()
            self._dispatcher.dispatch(self, memoryview(partial)[SIZE_BYTES:])
        return end

    def _checked_length(self, data: bytes | bytearray, at: int) -> int:
        length = int.from_bytes(data[at : at + SIZE_BYTES], "big", signed=True)
        if not FRAME_BYTES_MIN <= length <= self._dispatcher.request_bytes_max:
            raise FrameInvalid(
                f"a request of {length} bytes: socket.request.max.bytes is"
                f" {self._dispatcher.request_bytes_max}"
            )
        return length

    def _cut(self, data: bytes, at: int) -> None:
        view = memoryview(data)
        size = len(data)
        dispatch = self._dispatcher.dispatch
        length_max = self._dispatcher.request_bytes_max
        while size - at >= SIZE_BYTES and self.transport is not None and not self._is_paused:
            start = at + SIZE_BYTES
            end = start + int.from_bytes(data[at:start])
            if not FRAME_BYTES_MIN <= end - start <= length_max:
                self._checked_length(data, at)  # says what is wrong with it
            if end > size:
                self._need = end - at
                break
            dispatch(self, view[start:end])
            at = end
        if at < size and self.transport is not None:
            if self._is_paused:
                self._uncut = data[at:]
            else:
                self._partial += view[at:]

    # --- for the dispatcher ------------------------------------------------------------------

    def expect(self, bytes_max: int = 0) -> Reply:
        """A place for the answer of the request just taken, which may be `bytes_max` large."""
        reply = Reply(self, bytes_max)
        self._replies.append(reply)
        self._owed_bytes += bytes_max
        if len(self._replies) >= REPLIES_MAX or self._owed_bytes >= OWED_BYTES_MAX:
            self._pause()
        return reply

    def reply_is_ready(self, reply: Reply) -> None:
        """`reply` has its answer: send it, with others, at the end of this turn."""
        if not self._is_flushing and self._replies and self._replies[0] is reply:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def is_next(self, reply: Reply) -> bool:
        """See Reply."""
        return bool(self._replies) and self._replies[0] is reply and not self._is_write_paused

    def abort(self, reason: str) -> None:
        """Close the connection and say why, in one line of the log."""
        if self.transport is not None:
            log.warning("client %s %s: closing its connection", self.peer, reason[:500])
            if self._is_write_paused:
                self.transport.abort()  # it reads nothing: what it is owed would stay for ever
            else:
                self.transport.close()
            self.transport = None

    def _flush(self) -> None:
        self._is_flushing = False
        out: list[Sendable] = []
        replies = self._replies
        is_withheld = False
        mute_ms = 0
        while replies and (buffers := replies[0].buffers) is not None:
            reply = replies.popleft()
            if reply.term != ANY_TERM and not self._may_leave(reply):
                is_withheld = True
                break
            out.extend(buffers)
            self._owed_bytes -= reply.bytes_max
            if reply.throttle_ms > mute_ms:
                mute_ms = reply.throttle_ms
        transport = self.transport
        if transport is None:
            return
        if mute_ms:
            self.mute(mute_ms)
        if out:
            self._write(transport, out)
        if is_withheld:
            self._withhold()
        elif out and self._is_half_closed and not replies and not self._uncut:
            transport.close()

    def mute(self, mute_ms: int) -> None:
        """Read no further request for so long, as Kafka does: a client that ignores the throttle
        time of its answers is held to it (KIP-219)."""
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

    def _may_leave(self, reply: Reply) -> bool:
        gate = self._dispatcher.gate
        return gate is None or gate.term_now() == reply.term

    def _withhold(self) -> None:
        """End the connection: what comes next was read when this broker was an owner, and another
        may be by now. The client connects again and asks for the owner."""
        transport, self.transport = self.transport, None
        self._uncut = b""
        if transport is not None:
            log.debug("closing the connection of %s: this broker has stepped down", self.peer)
            (transport.abort if self._is_write_paused else transport.close)()

    def _write(self, transport: asyncio.Transport, out: Sequence[Sendable]) -> None:
        size = sum(map(len, out))
        if size > JOIN_BYTES_MAX:
            self._write_large(transport, out)
        else:
            # What lies in a file is larger than this.
            small = cast("list[Buffer]", out)
            transport.write(small[0] if len(small) == 1 else b"".join(small))
        if self._is_paused:
            self._resume()

    def _write_large(self, transport: asyncio.Transport, out: Sequence[Sendable]) -> None:
        """Write more than is worth joining; what lies in files goes out without a copy."""
        if any(isinstance(part, FileBytes) for part in out):
            target = self._socket or self._own_socket(transport)
            if target is not None and transport.get_write_buffer_size() == 0:
                out = send_now(target, out)
        try:
            if out:
                transport.writelines(in_memory(out))
        except OSError as error:
            self.abort(f"cannot be answered from a ledger's file ({error})")

    def _own_socket(self, transport: asyncio.Transport) -> socket.socket | None:
        """The transport's socket, if what is sent on it goes out as it is (not so with TLS)."""
        found = transport.get_extra_info("socket")
        if found is None or transport.get_extra_info("sslcontext") is not None:
            return None
        self._socket = socket.socket(found.family, found.type, found.proto, found.fileno())
        self._socket.setblocking(False)
        return self._socket

    def _pause(self) -> None:
        if not self._is_paused and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _resume(self) -> None:
        if (
            self._is_paused
            and self._muted is None
            and not self._is_write_paused
            and len(self._replies) < REPLIES_MAX // 2
            and self._owed_bytes < OWED_BYTES_MAX
            and self.transport is not None
        ):
            self._is_paused = False
            if self._uncut:
                data, self._uncut = self._uncut, b""
                self._take(data)
            if not self._is_paused and self.transport is not None:
                self.transport.resume_reading()
