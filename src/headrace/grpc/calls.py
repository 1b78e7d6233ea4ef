"""One gRPC call on its HTTP/2 stream: messages out of DATA, a response out of messages.

Invariants: the only implementation of `service.Call`. A handler is called when its whole request is
there (or, if the method streams requests, its header list), so a stream that is reset before costs
no handler. After the end of a call nothing of it reaches the handler but `on_cancel`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol, cast

from headrace.grpc import messages
from headrace.grpc.messages import IDENTITY, PREFIX_BYTES, MessageInvalid
from headrace.grpc.service import CallRefused, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.grpc.limits import Limits
    from headrace.grpc.outflow import Outflow, Stream
    from headrace.grpc.requests import Request
    from headrace.grpc.service import Method, Requests, StreamHandler, UnaryHandler

log = logging.getLogger(__name__)

FLUSH_BYTES = 512 * 1024
"""A handler that sends more within one turn of the loop has it passed to the socket meanwhile."""
_INTERNAL = "internal error: the server's log says more"


class CallConnection(Protocol):
    """The connection that a call came by."""

    peer: str
    is_secure: bool
    session: object | None
    outflow: Outflow
    limits: Limits
    is_write_paused: bool
    is_slow: bool

    def hold(self, size: int) -> bool:
        """Count bytes of incomplete messages, or fewer; returns whether they may be kept."""
        ...

    def kept(self, size: int) -> None:
        """A call keeps so much more, or less, until the client has read."""
        ...

    def flush(self) -> None:
        """Pass what is to be sent to the socket."""
        ...

    def run_slowly(
        self, function: Callable[[], bytes | None]
    ) -> asyncio.Future[bytes | None] | None:
        """Run a function in a thread, after those that wait for it; None: too many do."""
        ...


class ServerCall:
    """See the module."""

    __slots__ = (
        "_bytes_max",
        "_callbacks",
        "_encoding",
        "_has_head",
        "_headers",
        "_is_cancelled",
        "_method",
        "_on_end",
        "_partial",
        "_request",
        "_sink",
        "_stream",
        "_waiters",
        "connection",
        "deadline",
        "has_request",
        "is_finished",
        "path",
        "received_bytes",
        "swept_bytes",
        "swept_s",
    )

    def __init__(
        self,
        connection: CallConnection,
        stream: Stream,
        request: Request,
        method: Method,
        deadline: float | None,
    ) -> None:
        self.connection = connection
        self._stream = stream
        self._request = request
        self._method = method
        self._bytes_max = connection.limits.message_bytes_max
        if method.request_bytes_max is not None:
            self._bytes_max = min(self._bytes_max, method.request_bytes_max)
        self.path = method.path
        self.deadline = deadline
        self.is_finished = False
        self.has_request = False
        """Whether the client has ended its request."""
        self._encoding = request.known.get(b"grpc-encoding", IDENTITY)
        self._headers: dict[bytes, bytes] | None = None
        self._is_cancelled = False
        self._has_head = False
        self._partial: bytearray | None = None
        """Incomplete messages."""
        self._sink: Requests | None = None
        self._callbacks: list[Callable[[], None]] | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self._on_end: Callable[[], None] | None = None
        self.received_bytes = 0
        """Of incomplete messages; what it was at the last sweep, and since when it is that."""
        self.swept_bytes = 0
        self.swept_s = -1.0

    # --- service.Call --------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        """See Call."""
        return self.connection.peer

    @property
    def secure(self) -> bool:
        """See Call."""
        return self.connection.is_secure

    @property
    def session(self) -> object | None:
        """See Call."""
        return self.connection.session

    @property
    def authority(self) -> str:
        """See Call."""
        known = self._request.known
        return (known.get(b":authority") or known.get(b"host") or b"").decode("latin-1")

    def header(self, name: bytes) -> bytes | None:
        """See Call."""
        headers = self._headers
        if headers is None:
            headers = self._headers = {}
            for key, value, _kind, _size in self._request.fields:
                headers[key] = headers[key] + b"," + value if key in headers else value
        return headers.get(name)

    def respond(self, message: bytes) -> None:
        """See Call."""
        if self.is_finished:
            return
        outflow = self.connection.outflow
        if self._has_head:
            self.send(message)
            self.finish()
            return
        self._end()
        outflow.respond(
            self._stream, messages.HEAD, messages.prefix(len(message)), message, messages.OK
        )
        if outflow.output_bytes > FLUSH_BYTES:
            self.connection.flush()

    def send(self, message: bytes) -> None:
        """See Call."""
        if self.is_finished:
            return
        outflow = self.connection.outflow
        if not self._has_head:
            self._has_head = True
            outflow.head(self._stream, messages.HEAD)
        outflow.body(self._stream, messages.prefix(len(message)) + message)
        if outflow.output_bytes > FLUSH_BYTES:
            self.connection.flush()

    def finish(
        self,
        status: int = 0,
        message: str = "",
        trailers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """See Call."""
        if self.is_finished:
            return
        self._end()
        block = messages.trailers(status, message, trailers)
        if not self._has_head:  # a response of trailers only
            block = messages.HEAD + block
        self.connection.outflow.head(self._stream, block, is_last=True)

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """See Call."""
        if self._is_cancelled:
            callback()
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def on_end(self, callback: Callable[[], None]) -> None:
        """See Call."""
        self._on_end = callback

    def keep(self, size: int) -> None:
        """See Call."""
        self._stream.call_bytes += size
        self.connection.kept(size)

    async def drained(self, unsent_bytes_max: int | None = None) -> None:
        """See Call."""
        connection = self.connection
        if unsent_bytes_max is None:
            unsent_bytes_max = connection.limits.stream_unsent_bytes
        if connection.outflow.output_bytes > unsent_bytes_max:  # it may be of this call
            connection.flush()
        while not self.is_finished and (
            connection.is_write_paused or self._stream.unsent_bytes > unsent_bytes_max
        ):
            waiter = asyncio.get_running_loop().create_future()
            self._waiters = [*(self._waiters or ()), waiter]
            await waiter

    # --- outflow.Exchange ----------------------------------------------------------------------

    def receive(self, data: bytes, at: int, end: int, *, is_last: bool) -> None:
        """See Exchange."""
        if self.is_finished:
            return
        try:
            if (
                is_last
                and self._partial is None
                and self._sink is None
                and end - at >= PREFIX_BYTES
                and data[at] == 0
                and int.from_bytes(data[at + 1 : at + PREFIX_BYTES], "big")
                == end - at - PREFIX_BYTES
                <= self._bytes_max
            ):  # one DATA frame with one message, as nearly always
                self.has_request = True
                self._dispatch(data[at + PREFIX_BYTES : end])
            elif self._sink is None:
                self._take_unary(data, at, end, is_last=is_last)
            else:
                self._take_stream(self._sink, data, at, end, is_last=is_last)
        except Exception as error:  # noqa: BLE001 - the edge of a call
            self._fail(error)

    def reset(self) -> None:
        """See Exchange."""
        if not self.is_finished:
            self._end()
            self._cancelled()

    def writable(self) -> None:
        """See Exchange."""
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    # --- request -------------------------------------------------------------------------------

    def start(self) -> None:
        """Hand the call to the handler of a method that streams requests."""
        try:
            self._sink = cast("StreamHandler", self._method.handler)(self)
        except Exception as error:  # noqa: BLE001 - the edge of a call
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the call by what was raised."""
        if isinstance(error, MessageInvalid):
            self.cancel(error.status, str(error))
        elif isinstance(error, CallRefused):
            self.finish(error.status, str(error))
        else:
            log.error("internal error in %s", self.path, exc_info=error)
            self.cancel(Status.INTERNAL, _INTERNAL)

    def _dispatch(self, body: bytes) -> None:
        cast("UnaryHandler", self._method.handler)(self, body)

    def _hold(self, data: bytes, at: int, end: int) -> bytearray:
        """Keep bytes of incomplete messages. Raises MessageInvalid."""
        partial = self._partial
        if partial is None:
            partial = self._partial = bytearray()
        partial += memoryview(data)[at:end]
        self.received_bytes += end - at
        if not self.connection.hold(end - at):
            raise MessageInvalid(
                Status.RESOURCE_EXHAUSTED,
                "the connection holds too many incomplete messages: send fewer at once",
            )
        return partial

    def _message_size(self, partial: bytearray, at: int) -> int:
        """The size of the message whose prefix is at this place. Raises MessageInvalid."""
        if partial[at] > 1:
            raise MessageInvalid(Status.INTERNAL, "a message with an unknown flag")
        size = int.from_bytes(partial[at + 1 : at + PREFIX_BYTES], "big")
        if size > self._bytes_max:
            raise messages.too_large(self._bytes_max)
        return size

    def _plain(self, partial: bytearray, at: int, end: int) -> bytes | None:
        """The message whose bytes, with its prefix, are these; None: to decompress it would keep
        others waiting. Raises MessageInvalid."""
        with memoryview(partial) as view, view[at + PREFIX_BYTES : end] as body:
            if partial[at] == 0:
                return bytes(body)
            messages.check_compressed(self._encoding)
            if len(body) > messages.INLINE_BYTES_MAX:
                return None  # zlib would copy what it has not read: 5-16 ms
            inline_bytes_max = messages.inline_bytes_max(len(body))
            plain = messages.decompressed(body, min(self._bytes_max, inline_bytes_max))
        if plain is None and self._bytes_max <= inline_bytes_max:
            raise messages.too_large(self._bytes_max)
        return plain

    def _take_unary(self, data: bytes, at: int, end: int, *, is_last: bool) -> None:
        """Collect the only message. Raises MessageInvalid."""
        partial = self._hold(data, at, end)
        if len(partial) >= PREFIX_BYTES:
            size = PREFIX_BYTES + self._message_size(partial, 0)
            if len(partial) > size:
                raise MessageInvalid(Status.UNIMPLEMENTED, "more than one message: send one")
            if is_last and len(partial) == size:
                self.has_request = True
                body = self._plain(partial, 0, size)
                if body is None:
                    self._decompress_slowly()
                    return
                self._release()
                self._dispatch(body)
                return
        if is_last and partial:
            raise MessageInvalid(Status.INTERNAL, "a message that is not complete")
        if is_last:
            raise MessageInvalid(Status.UNIMPLEMENTED, "no message: send one")

    def _decompress_slowly(self) -> None:
        """Raises MessageInvalid."""
        decompressing = self.connection.run_slowly(self._decompress)
        if decompressing is None:
            raise MessageInvalid(
                Status.RESOURCE_EXHAUSTED,
                "too many compressed messages wait to be decompressed: send fewer at once, or"
                " without compression",
            )
        decompressing.add_done_callback(self._unpacked)

    def _decompress(self) -> bytes | None:
        """In a thread: the only message, which is kept until the call ends. Raises
        MessageInvalid."""
        partial = self._partial
        if partial is None:
            return None  # no client waits for it
        with memoryview(partial) as view, view[PREFIX_BYTES:] as body:
            return messages.decompressed(body, self._bytes_max)

    def _unpacked(self, decompressing: asyncio.Future[bytes | None]) -> None:
        if decompressing.cancelled():
            return
        decompressing.exception()  # asyncio logs those that nobody asks for
        if self.is_finished:
            return
        self._release()
        try:
            body = decompressing.result()
            if body is None:
                raise messages.too_large(self._bytes_max)
            self._dispatch(body)
        except Exception as error:  # noqa: BLE001 - the edge of a call
            self._fail(error)

    def _take_stream(
        self, sink: Requests, data: bytes, at: int, end: int, *, is_last: bool
    ) -> None:
        """Pass complete messages on. Raises MessageInvalid, and what the handler raises."""
        partial = self._hold(data, at, end)
        done = 0
        while len(partial) - done >= PREFIX_BYTES:
            next_done = done + PREFIX_BYTES + self._message_size(partial, done)
            if next_done > len(partial):
                break
            body = self._plain(partial, done, next_done)
            if body is None:
                raise MessageInvalid(
                    Status.RESOURCE_EXHAUSTED,
                    "a message of a stream that grows too much: send it without compression",
                )
            done = next_done
            sink.message(body)
            if self.is_finished:
                return
        del partial[:done]
        self.connection.hold(-done)
        if is_last:
            self.has_request = True
            if partial:
                raise MessageInvalid(Status.INTERNAL, "a message that is not complete")
            sink.ended()

    # --- end -----------------------------------------------------------------------------------

    @property
    def is_incomplete(self) -> bool:
        """Whether the client has begun a request or message that it has not ended."""
        return not self.has_request and (self._sink is None or bool(self._partial))

    def is_stalled(self, now_s: float, patience_s: float) -> bool:
        """Whether a request that the client has begun has not grown for that long.

        To be called now and then: what has arrived is compared with what had by the last call.
        """
        if not self.is_incomplete:
            self.swept_s = -1.0
            return False
        if self.swept_s < 0 or self.swept_bytes != self.received_bytes:
            self.swept_s, self.swept_bytes = now_s, self.received_bytes
            return False
        return now_s - self.swept_s >= patience_s

    def cancel(self, status: int, message: str) -> None:
        """End the call with an error that is not the handler's."""
        if not self.is_finished:
            self.finish(status, message)
            self._cancelled()

    def _end(self) -> None:
        self.is_finished = True
        if self._partial is not None:
            self._release()
        if self._waiters is not None:
            self.writable()
        if self._on_end is not None:
            self._on_end()

    def _release(self) -> None:
        partial, self._partial = self._partial, None
        assert partial is not None
        self.connection.hold(-len(partial))

    def _cancelled(self) -> None:
        self._is_cancelled = True
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback()
            except Exception:
                log.exception("internal error after the end of %s", self.path)


class NoCall:
    """A request that is no call of gRPC: answered in HTTP's words once it has ended."""

    __slots__ = ("_outflow", "_status", "_stream")

    def __init__(self, outflow: Outflow, stream: Stream, status: bytes) -> None:
        self._outflow = outflow
        self._stream = stream
        self._status = status

    def receive(self, data: bytes, at: int, end: int, *, is_last: bool) -> None:
        """See Exchange."""
        if is_last:
            self._outflow.head(self._stream, messages.http_response(self._status))
            self._outflow.body(self._stream, messages.NO_CALL)
            self._outflow.finish(self._stream)

    def reset(self) -> None:
        """See Exchange."""

    def writable(self) -> None:
        """See Exchange."""
