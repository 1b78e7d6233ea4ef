"""One connection to a ZooKeeper server: frames, the order of answers, one-shot watches.

Invariants: knows the protocol's order, not deadlines, servers or sessions beyond this connection.
Answers come in the order of the requests, an event before the answers to what was asked behind it.
Everything that waits here ends when the connection does: requests with an error, watches by being
called. Runs in the loop's thread, but for `speak_for_loop`.
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

from headrace.runtime import zookeeper_wire as wire
from headrace.runtime.zookeeper_wire import BrokenAnswer, Event, Opened, Reader, Refused, Request

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
"""Kind of an event -> the watches that it uses up."""


class ConnectionBroken(Exception):
    """The connection ended before the answer came; the request may have been carried out."""


class Watch(NamedTuple):
    """To be set with a read: what is called once. It is not set where there is no node, unless
    `is_for_absent`."""

    kind: str
    """`node` or `children`"""
    path: str
    changed: Callable[[], None]
    is_for_absent: bool = False


class _Waiting(NamedTuple):
    xid: int
    request: Request
    watch: Watch | None
    done: Callable[[Any], None]


class Listener(Protocol):
    """Whoever uses a connection: what it is told, in the loop's thread."""

    def confirm(self, at_ns: int) -> None:
        """The leader has heard a sign of life that was given then, or a later one."""
        ...

    def tell(self, event: Event) -> None:
        """An event of a watch, before one-shot watches are called."""
        ...

    def hold(self, zxid: int) -> None:
        """The server has told of everything up to this transaction that was watched."""
        ...

    def note_end(self, connection: Connection) -> None:
        """The connection has ended, before anything that waits for it is told."""
        ...


class Connection(asyncio.Protocol):
    """See the module. Made by `loop.create_connection`, then `open`."""

    def __init__(self, clock: Clock, listener: Listener) -> None:
        self.cause = ""
        """Why it ended; "" while it has not."""
        self._clock = clock
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._raw: socket.socket | None = None
        """For `speak_for_loop`."""
        self._received = bytearray()
        self._opened: asyncio.Future[Opened] = self._loop.create_future()
        self._authenticated: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._xid = 0
        self._waiting: deque[_Waiting] = deque()
        self._beats: deque[int] = deque()
        """What the answers prove that are still to come: the times of the beats before."""
        self._beat_ns = clock.now_ns()
        """When the newest sign of life was given."""
        self._shots: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self._writing = Lock()
        """Between the loop and `speak_for_loop`."""

    # --- opening and ending ------------------------------------------------------------------

    async def open(
        self, zxid: int, timeout_ms: int, session_id: int, password: bytes, credential: str | None
    ) -> Opened:
        """Open or resume a session, then authenticate. Raises ConnectionBroken, Refused."""
        self._beat_ns = self._clock.now_ns()
        self._write(wire.connect(zxid, timeout_ms, session_id, password))
        opened = await self._opened
        if opened.timeout_ms > 0 and credential is not None:
            self._write(wire.authenticate(credential))
            await self._authenticated
        return opened

    async def wait_ended(self) -> None:
        """Until the connection is no more."""
        await asyncio.shield(self._ended)

    @property
    def is_over(self) -> bool:
        """Whether the connection is no more."""
        return self._ended.done()

    def end(self, cause: str) -> None:
        """Break the connection now; what waits ends in this turn."""
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
                future.exception()  # nobody may be waiting
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            one.done(broken)
        shots, self._shots = self._shots, {}
        for calls in shots.values():
            for call in calls:
                _call(call)

    # --- requests ----------------------------------------------------------------------------

    def send(
        self, request: Request, done: Callable[[Any], None], watch: Watch | None = None
    ) -> None:
        """Send; `done(answer)` is called once, with an exception where there is none."""
        self._xid = xid = self._xid + 1 if self._xid < _XID_MAX else 1
        self._waiting.append(_Waiting(xid, request, watch, done))
        self._write(request.frame(xid))

    def beat(self) -> None:
        """Give a sign of life, and ask for one of the leader's.

        A server tells its leader twice a tick of whom it has heard. An answer that has passed the
        leader proves that it has been told of the beat before, or will be within half a tick; a
        server that is cut off from its leader goes on answering pings and reads for many ticks.
        """
        with self._writing:
            self._write_locked(wire.beat())
            self._note_beat(self._clock.now_ns())

    def _note_beat(self, sent_ns: int) -> None:
        self._beats.append(self._beat_ns)
        self._beat_ns = sent_ns

    def speak_for_loop(self) -> int | None:
        """Beat from another thread while the loop is held up; what the last answer to a beat
        proves, if one can be seen.

        The loop's own reading is left alone: the thread only peeks. It may see fewer answers than
        there are, never more, as it counts from what was unanswered before it looked. Nothing is
        sent while the loop has something half written. Not with TLS, whose state is the loop's.
        """
        transport, raw = self._transport, self._raw
        if transport is None or raw is None or self._received or transport.is_closing():
            return None
        beats = list(self._beats)
        answered = 0
        with suppress(OSError):  # nothing is there to be read
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
            # A copy: uvloop shows a look-alike that neither sends nor receives.
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
                    raise BrokenAnswer(f"an answer of ZooKeeper has a length of {size}")
                end = start + wire.INT.size + size
                if end > len(received):
                    break
                frame = bytes(received[start + wire.INT.size : end])
                start = end
                self._take(Reader(frame))
        except BrokenAnswer as error:
            self.end(str(error))
        del received[:start]

    def _take(self, answer: Reader) -> None:
        if not self._opened.done():
            self._opened.set_result(answer.opened())
            return
        xid, zxid, code = answer.take(wire.HEADER)
        if xid == wire.BEAT_XID:
            if self._beats:
                proven_ns = self._beats.popleft()
                if not code:
                    self._listener.confirm(proven_ns)
        elif xid == wire.EVENT_XID:
            self._fire(answer.event())
        elif xid == wire.AUTH_XID:
            self._take_authentication(code)
        else:
            if zxid > 0:
                self._listener.hold(zxid)
            self._take_answer(xid, code, answer)

    def _take_authentication(self, code: int) -> None:
        if self._authenticated.done():
            return
        if code:
            self._authenticated.set_exception(Refused(code))
        else:
            self._authenticated.set_result(None)

    def _take_answer(self, xid: int, code: int, answer: Reader) -> None:
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

    def _fire(self, event: Event) -> None:
        _call(lambda: self._listener.tell(event))
        for kind in _FIRES.get(event.kind, ()):
            for call in self._shots.pop((kind, event.path), ()):
                _call(call)


def _count_answers(seen: bytes) -> int:
    """How many answers to beats are among the whole frames at the front of what was received."""
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
        log.exception("a callback of a watch in ZooKeeper failed")
