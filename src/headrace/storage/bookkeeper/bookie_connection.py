"""Connections to bookies: requests are pipelined over one socket each and matched to answers.

Invariants: knows frames and sockets, not the ledger protocol. Every request is answered exactly
once, by the bookie or with a code of ours: TIMED_OUT, DISCONNECTED, OVERLOADED. An idle connection
costs only a socket: its single timer runs while requests are pending.

Answers are matched by operation, ledger and entry, so the second of two equal requests waits for
the first. A request that timed out stays pending until its answer arrives, so that this is not
taken for the answer to the next one: for a fencing read, that would be wrong. A bookie that sends
nothing for a whole time-out while requests are pending is disconnected, which fails them all.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.storage.bookkeeper.secure_channel import LoginRefused, open_channel
from headrace.storage.bookkeeper.wire import (
    ADD,
    ADD_RESPONSE_SIZE,
    BATCH_READ,
    DISCONNECTED,
    FRAME_BYTES_MAX,
    OVERLOADED,
    READ,
    TIMED_OUT,
    MalformedFrame,
    add_response,
    batch_read_frame,
    batch_request_id,
    decode_response,
    fencing_read_frame,
    is_add_response,
    read_frame,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.runtime.tasks import Tasks
    from headrace.storage.bookkeeper.ledger_metadata import BookieAddress
    from headrace.storage.ledger import Buffer

    Answered = Callable[[int, memoryview, Any], None]
    """Called with (code, body, context), never before the request's own call has returned."""
    Key = tuple[int, int, int]

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0
_NOTHING: Final = memoryview(b"")


class _Request:
    __slots__ = ("answered", "context", "frame", "is_heard", "key", "next", "sent_at", "size")

    def __init__(self, key: Key, frame: Buffer, answered: Answered, context: Any) -> None:
        self.key = key
        self.frame: Buffer = frame
        self.size = len(frame)
        self.answered = answered
        self.context = context
        self.is_heard = False
        """Timed out: the caller no longer waits for an answer."""
        self.sent_at = 0.0
        self.next: _Request | None = None


class BookieConnection:
    """The connection to one bookie, opened when there is something to send.

    An asyncio.Protocol by its methods only: inheritance would slow down the compiled class.
    """

    def __init__(
        self,
        bookie: str,
        resolve: Callable[[str], Awaitable[BookieAddress]],
        tasks: Tasks,
        *,
        timeout_ms: int,
        bytes_max: int,
        tls: ssl.SSLContext | None = None,
        credential: str | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> None:
        """`lost` is called when an open connection breaks."""
        self.bookie = bookie
        self._lost = lost
        self.in_flight_bytes = 0
        """Bytes of pending requests."""
        self._resolve = resolve
        self._tasks = tasks
        self._timeout_s = timeout_ms / 1000
        self._bytes_max = bytes_max
        self._open = partial(open_channel, tls=tls, credential=credential)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_connecting = False
        self._retry_at = 0.0
        self._backoff_s = BACKOFF_FIRST_S
        self._pending: dict[Key, _Request] = {}
        self._unsent: deque[_Request] = deque()
        """Requests waiting for the connection."""
        self._outgoing: list[Buffer] = []
        """Frames to write at the end of this turn."""
        self._timer: asyncio.TimerHandle | None = None
        self._heard_at = 0.0
        self._last_request_id = 0
        self._chunks: list[bytes] = []
        self._chunk_bytes = 0
        self._wanted = 4
        self._is_closed = False

    # --- requests ----------------------------------------------------------------------------

    def prepare(self) -> None:
        """Connect, if not connected: requests are expected soon."""
        is_due = self._transport is None and not self._is_connecting and not self._is_closed
        if is_due and self._loop.time() >= self._retry_at:
            self._begin_to_connect()

    def retry_now(self) -> None:
        """Reconnect without waiting for the back-off: the bookie may be back."""
        self._retry_at, self._backoff_s = 0.0, BACKOFF_FIRST_S

    def add(self, ledger: int, entry: int, frame: Buffer, answered: Answered, context: Any) -> None:
        """Send an add; the frame must not change until the answer."""
        self._request(_Request((ADD, ledger, entry), frame, answered, context))

    def read(self, ledger: int, entry: int, answered: Answered, context: Any) -> None:
        """Read one entry."""
        key = (READ, ledger, entry)
        self._request(_Request(key, read_frame(ledger, entry), answered, context))

    def fencing_read(
        self, ledger: int, entry: int, master_key: bytes, answered: Answered, context: Any
    ) -> None:
        """Read one entry and fence the ledger."""
        frame = fencing_read_frame(ledger, entry, master_key)
        self._request(_Request((READ, ledger, entry), frame, answered, context))

    def batch_read(
        self, ledger: int, first: int, count: int, size: int, answered: Answered, context: Any
    ) -> None:
        """Read up to `count` entries and about `size` bytes from `first` on."""
        self._last_request_id += 1
        request_id = self._last_request_id
        frame = batch_read_frame(ledger, first, request_id, count, size)
        self._request(_Request((BATCH_READ, ledger, request_id), frame, answered, context))

    def _request(self, request: _Request) -> None:
        if self._is_closed:
            self._answer_soon(request, DISCONNECTED)
            return
        if self.in_flight_bytes + request.size > self._bytes_max and self.in_flight_bytes:
            self._answer_soon(request, OVERLOADED)
            return
        self.in_flight_bytes += request.size
        if self._transport is not None:
            self._send(request)
        elif self._is_connecting:
            self._unsent.append(request)
        elif self._loop.time() < self._retry_at:
            self.in_flight_bytes -= request.size
            self._answer_soon(request, DISCONNECTED)
        else:
            self._unsent.append(request)
            self._begin_to_connect()

    def _answer_soon(self, request: _Request, code: int) -> None:
        self._loop.call_soon(request.answered, code, _NOTHING, request.context)

    def _send(self, request: _Request) -> None:
        before = self._pending.get(request.key)
        request.sent_at = self._loop.time()
        if before is not None:
            while before.next is not None:
                before = before.next
            before.next = request
            return
        self._pending[request.key] = request
        if self._timer is None:
            self._heard_at = request.sent_at
            self._timer = self._loop.call_later(self._timeout_s / 4, self._check_time)
        self._write(request)

    def _write(self, request: _Request) -> None:
        """Write at the end of this turn, in one system call for all frames: writes are costly."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(request.frame)
        request.frame = b""

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, []
        if self._transport is not None and outgoing:
            self._transport.writelines(outgoing)

    # --- the connection ----------------------------------------------------------------------

    def _begin_to_connect(self) -> None:
        self._is_connecting = True
        self._tasks.spawn(self._connect(), f"connect to bookie {self.bookie}")

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                address = await self._resolve(self.bookie)
                protocol = cast("asyncio.Protocol", self)
                await self._open(protocol, address.host, address.port)
        except (OSError, TimeoutError) as error:
            is_refused = isinstance(error, ssl.SSLError | LoginRefused)
            level = logging.WARNING if is_refused else logging.DEBUG
            log.log(level, "cannot connect to bookie %s: %s", self.bookie, repr(error))
            self._connect_failed()
        except BaseException:
            self._connect_failed()
            raise

    def _connect_failed(self) -> None:
        """Clean up. If the time-out coincided with the connection, the loop closes the transport
        without calling us: if it were kept, it would count as open forever."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self._is_connecting, self._outgoing = False, []
        self._back_off()
        self._fail_all()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the requests that were waiting."""
        self._is_connecting = False
        self._transport = cast("asyncio.Transport", transport)
        self._chunks, self._chunk_bytes, self._wanted = [], 0, 4
        if self._is_closed:
            self._transport.abort()
            return
        unsent, self._unsent = self._unsent, deque()
        for request in unsent:
            self._send(request)

    def connection_lost(self, exc: Exception | None) -> None:
        """Answer all pending requests with DISCONNECTED."""
        self._transport = None
        self._outgoing = []
        self._back_off()
        self._fail_all()
        if self._lost is not None and not self._is_closed:
            self._lost(self.bookie)

    def eof_received(self) -> None:
        """The bookie has closed its side: the transport closes itself."""

    def pause_writing(self) -> None:
        """Not needed: `bytes_max` bounds the pending requests, and so the transport's buffer."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def _back_off(self) -> None:
        self._retry_at = self._loop.time() + self._backoff_s
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)

    def _fail_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        failed, self._unsent = list(self._unsent), deque()
        for request in self._pending.values():
            chained: _Request | None = request
            while chained is not None:
                failed.append(chained)
                chained = chained.next
        self._pending = {}
        self.in_flight_bytes = 0
        for request in failed:
            if not request.is_heard:
                request.answered(DISCONNECTED, _NOTHING, request.context)

    def close(self) -> None:
        """End the connection; pending requests are answered with DISCONNECTED."""
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()
        elif not self._is_connecting:
            self._fail_all()

    def _check_time(self) -> None:
        self._timer = None
        if not self._pending:
            return
        now = self._loop.time()
        late = now - self._timeout_s
        for first in list(self._pending.values()):
            if first.sent_at > late:
                break  # later requests are newer
            request: _Request | None = first
            while request is not None:
                if request.sent_at <= late and not request.is_heard:
                    request.is_heard = True
                    request.answered(TIMED_OUT, _NOTHING, request.context)
                request = request.next
        if self._heard_at <= late and self._transport is not None:
            log.info("no answer from bookie %s for %s s", self.bookie, self._timeout_s)
            self._transport.abort()
        self._timer = self._loop.call_later(self._timeout_s / 4, self._check_time)

    # --- answers -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Split the stream into frames."""
        self._heard_at = self._loop.time()
        if self._chunks:
            self._chunks.append(data)
            self._chunk_bytes += len(data)
            if self._chunk_bytes < self._wanted:
                return
            data = b"".join(self._chunks)
            self._chunks, self._chunk_bytes = [], 0
        view = memoryview(data)
        at, end = 0, len(data)
        self._wanted = 4
        try:
            while end - at >= 4:
                if is_add_response(data, at):
                    code, ledger, entry = add_response(data, at)
                    at += ADD_RESPONSE_SIZE
                    self._answered((ADD, ledger, entry), code, _NOTHING)
                    continue
                size = int.from_bytes(view[at : at + 4], "big")
                if size > FRAME_BYTES_MAX:
                    raise MalformedFrame(f"a response of {size} bytes")
                if end - at < size + 4:
                    self._wanted = size + 4
                    break
                self._answer(view[at + 4 : at + 4 + size])
                at += 4 + size
        except MalformedFrame as error:
            log.warning("protocol error from bookie %s: %s", self.bookie, error)
            if self._transport is not None:
                self._transport.abort()
            return
        if at < end:
            self._chunks, self._chunk_bytes = [data[at:] if at else data], end - at

    def _answer(self, frame: memoryview) -> None:
        operation, code, ledger, entry, body = decode_response(frame)
        if operation == BATCH_READ:
            entry = batch_request_id(body)
        self._answered((operation, ledger, entry), code, body)

    def _answered(self, key: Key, code: int, body: memoryview) -> None:
        request = self._pending.pop(key, None)
        if request is None:
            raise MalformedFrame("an unexpected answer: operation {}, {}, {}".format(*key))
        self.in_flight_bytes -= request.size
        self._backoff_s = BACKOFF_FIRST_S
        if request.next is not None:
            chained = request.next
            chained.sent_at = self._heard_at
            self._pending[chained.key] = chained
            self._write(chained)
        if not request.is_heard:
            request.answered(code, body, request.context)


class Bookies:
    """One connection per bookie, created on first use."""

    def __init__(
        self,
        resolve: Callable[[str], Awaitable[BookieAddress]],
        tasks: Tasks,
        *,
        timeout_ms: int,
        bytes_max: int,
        tls: ssl.SSLContext | None = None,
        credential: str | None = None,
        lost: Callable[[str], None] | None = None,
    ) -> None:
        self._make = partial(
            BookieConnection,
            resolve=resolve,
            tasks=tasks,
            timeout_ms=timeout_ms,
            bytes_max=bytes_max,
            tls=tls,
            credential=credential,
            lost=lost,
        )
        self._connections: dict[str, BookieConnection] = {}
        self._is_closed = False

    def __getitem__(self, bookie: str) -> BookieConnection:
        connection = self._connections.get(bookie)
        if connection is None:
            connection = self._connections[bookie] = self._make(bookie)
            if self._is_closed:
                connection.close()
        return connection

    def close(self) -> None:
        """Close all connections, and open no more."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close()
