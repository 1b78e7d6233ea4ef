"""A connection to a ZooKeeper server: frames, the order of answers, one-shot watches.

Invariants: knows the message order, but no deadlines, other servers or later sessions. Answers
arrive in request order, an event before the answers to later requests. When the connection ends,
so does everything pending on it: requests fail, watches fire. Runs in the event loop's thread,
except for `beat_from_thread`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections import deque
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from headrace.zookeeper import wire
from headrace.zookeeper.wire import (
    BrokenAnswer,
    ConnectResponse,
    FrameReader,
    Refused,
    Request,
    WatchEvent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

_XID_MAX: Final = (1 << 31) - 1
_PEEK_BYTES: Final = 64 * 1024
_ANSWER: Final = struct.Struct("!iiqi")
"""Size, xid, zxid and code of an answer."""
_FIRES: Final = {
    wire.CREATED: ("node",),
    wire.CHANGED: ("node",),
    wire.DELETED: ("node", "children"),
    wire.CHILDREN_CHANGED: ("children",),
}
"""Kind of an event -> the kinds of watches that it consumes."""


class ConnectionBroken(Exception):
    """The connection ended before the answer; the request may have been carried out."""


class WatchRequest(NamedTuple):
    """A one-shot watch to set with a read. It is not set if the node does not exist, unless
    `is_for_absent`."""

    kind: str
    """`node` or `children`"""
    path: str
    changed: Callable[[], None]
    is_for_absent: bool = False


class _Waiting(NamedTuple):
    xid: int
    request: Request
    watch: WatchRequest | None
    done: Callable[[Any], None]


class ConnectionListener(Protocol):
    """The user of a connection; its methods are called in the event loop's thread."""

    def confirm(self, at_ns: int) -> None:
        """The leader has received the heartbeat sent at this time, or a later one."""
        ...

    def notify(self, event: WatchEvent) -> None:
        """Handle a watch event; called before one-shot watches fire."""
        ...

    def note_zxid(self, zxid: int) -> None:
        """The server has sent all watch events up to this transaction."""
        ...

    def note_end(self, connection: ZooKeeperConnection) -> None:
        """The connection has ended; called before pending requests and watches are notified."""
        ...


class ZooKeeperConnection(asyncio.Protocol):
    """See the module. Created by `loop.create_connection`, then `open`."""

    def __init__(self, clock: Clock, listener: ConnectionListener) -> None:
        self.cause = ""
        """Why it ended; "" while it is open."""
        self._clock = clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._raw: socket.socket | None = None
        """For `beat_from_thread`."""
        self._received = bytearray()
        self._opened: asyncio.Future[ConnectResponse] = self._loop.create_future()
        self._authenticated: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._xid = 0
        self._waiting: deque[_Waiting] = deque()
        self._beats: deque[int] = deque()
        """For each heartbeat to be answered, the send time of the one before, which the answer
        confirms."""
        self._beat_ns = clock.now_ns()
        """When the latest heartbeat was sent."""
        self._shots: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._writing = Lock()
        """Guards writes by the loop and by `beat_from_thread`."""

    # --- open and close ----------------------------------------------------------------------

    async def open(
        self, zxid: int, timeout_ms: int, session_id: int, password: bytes, credential: str | None
    ) -> ConnectResponse:
        """Open or resume a session, then authenticate. Raises ConnectionBroken, Refused."""
        self._beat_ns = self._clock.now_ns()
        self._write(wire.connect(zxid, timeout_ms, session_id, password))
        opened = await self._opened
        if opened.timeout_ms > 0 and credential is not None:
            self._write(wire.authenticate(credential))
            await self._authenticated
        return opened

    async def wait_ended(self) -> None:
        """Wait until the connection has ended."""
        await asyncio.shield(self._ended)

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended."""
        return self._ended.done()

    def end(self, cause: str) -> None:
        """Abort the connection; pending requests and watches end in this turn."""
        transport = self._transport
        if transport is not None:
            transport.abort()
        self._finish(cause)

    def _finish(self, cause: str) -> None:
        if self._ended.done():
            return
        self.cause = cause
        self._ended.set_result(None)
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()
        self._listener.note_end(self)
        broken = ConnectionBroken(cause)
        for future in (self._opened, self._authenticated):
            if not future.done():
                future.set_exception(broken)
                future.exception()  # there may be no waiter
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.done(broken)
        shots, self._shots = self._shots, {}
        for calls in shots.values():
            for call in calls:
                _call(call)

    # --- requests ----------------------------------------------------------------------------

    def send(
        self, request: Request, done: Callable[[Any], None], watch: WatchRequest | None = None
    ) -> None:
        """Send; `done(answer)` is called once, with an exception if there is no answer."""
        self._xid = xid = self._xid + 1 if self._xid < _XID_MAX else 1
        self._waiting.append(_Waiting(xid, request, watch, done))
        self._write(request.frame(xid))

    def beat(self) -> None:
        """Send a heartbeat whose answer confirms the one before.

        A server reports its live sessions to the leader twice a tick. An answer that has passed
        the leader confirms that the previous heartbeat was reported, or will be within half a
        tick; a server cut off from its leader answers pings and reads for many ticks.
        """
        with self._writing:
            self._write_locked(wire.beat())
            self._note_beat(self._clock.now_ns())

    def _note_beat(self, sent_ns: int) -> None:
        self._beats.append(self._beat_ns)
        self._beat_ns = sent_ns

    def beat_from_thread(self) -> int | None:
        """Send a heartbeat from another thread while the loop is blocked; returns the send time
        confirmed by the last answer received, or None.

        The thread only peeks at the socket, so the loop still reads everything. It may see fewer
        answers than there are, never more, as it counts from the heartbeats unanswered before it
        looked. It sends nothing while the loop has a partial write pending. Not available with
        TLS, whose state belongs to the loop.
        """
        transport, raw = self._transport, self._raw
        if transport is None or raw is None or self._received or transport.is_closing():
            return None
        beats = list(self._beats)
        answered = 0
        with suppress(OSError):  # nothing to read
            answered = _count_answers(raw.recv(_PEEK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        with self._writing, suppress(OSError):
            if not transport.get_write_buffer_size():
                sent_ns, frame = self._clock.now_ns(), wire.beat()
                if raw.send(frame, socket.MSG_DONTWAIT) == len(frame):
                    self._note_beat(sent_ns)
        answered = min(answered, len(beats))
        return beats[answered - 1] if answered else None

    def _write(self, frame: bytes) -> None:
        with self._writing:
            self._write_locked(frame)

    def _write_locked(self, frame: bytes) -> None:
        if self._transport is not None and not self._ended.done():
            self._transport.write(frame)

    # --- answers: asyncio.Protocol -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        found = transport.get_extra_info("socket")
        if found is not None and transport.get_extra_info("ssl_object") is None:
            # A duplicate: uvloop's socket object can neither send nor receive.
            self._raw = socket.socket(fileno=os.dup(found.fileno()))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._finish(str(exc) if exc else "the server closed the connection")

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        received = self._received
        received += data
        start = 0
        try:
            while len(received) - start >= wire.INT.size and not self._ended.done():
                (size,) = wire.INT.unpack_from(received, start)
                if not 0 <= size <= wire.FRAME_BYTES_MAX:
                    raise BrokenAnswer(f"an answer from ZooKeeper has a length of {size}")
                end = start + wire.INT.size + size
                if end > len(received):
                    break
                frame = bytes(received[start + wire.INT.size : end])
                start = end
                self._take(FrameReader(frame))
        except BrokenAnswer as error:
            self.end(str(error))
        del received[:start]

    def _take(self, answer: FrameReader) -> None:
        if not self._opened.done():
            self._opened.set_result(answer.opened())
            return
        xid, zxid, code = answer.take(wire.HEADER)
        if xid == wire.BEAT_XID:
            if self._beats:
                confirmed_ns = self._beats.popleft()
                if not code:
                    self._listener.confirm(confirmed_ns)
        elif xid == wire.EVENT_XID:
            self._fire(answer.event())
        elif xid == wire.AUTH_XID:
            self._take_authentication(code)
        else:
            if zxid > 0:
                self._listener.note_zxid(zxid)
            self._take_answer(xid, code, answer)

    def _take_authentication(self, code: int) -> None:
        if self._authenticated.done():
            return
        if code:
            self._authenticated.set_exception(Refused(code))
        else:
            self._authenticated.set_result(None)

    def _take_answer(self, xid: int, code: int, answer: FrameReader) -> None:
        if not self._waiting or self._waiting[0].xid != xid:
            raise BrokenAnswer(f"ZooKeeper answered request {xid} out of order")
        waiting = self._waiting.popleft()
        result: Any
        try:
            result = Refused(code) if code else waiting.request.read(answer)
        except BrokenAnswer as error:
            waiting.done(ConnectionBroken(str(error)))
            raise
        watch = waiting.watch
        if watch is not None and (not code or (watch.is_for_absent and code == wire.NO_NODE)):
            self._shots.setdefault((watch.kind, watch.path), []).append(watch.changed)
        waiting.done(result)

    def _fire(self, event: WatchEvent) -> None:
        _call(lambda: self._listener.notify(event))
        for kind in _FIRES.get(event.kind, ()):
            for call in self._shots.pop((kind, event.path), ()):
                _call(call)


def _count_answers(seen: bytes) -> int:
    """The number of heartbeat answers among the complete frames at the start of `seen`."""
    count = at = 0
    while at + _ANSWER.size <= len(seen):
        size, xid, _, code = _ANSWER.unpack_from(seen, at)
        at += wire.INT.size + max(size, 0)
        count += at <= len(seen) and xid == wire.BEAT_XID and code == 0
    return count


def _call(call: Callable[[], None]) -> None:
    try:
        call()
    except Exception:
        log.exception("a ZooKeeper watch callback failed")
