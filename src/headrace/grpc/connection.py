"""One HTTP/2 connection as a server sees it (RFC 9113): bytes in, requests and frames out.

Invariants: no I/O, no clock but the one that budgets get; knows nothing of gRPC. Whatever arrives,
`receive` raises nothing and holds at most the limits: a connection error (`failure`) ends in
GOAWAY, and nothing is read after it. A peer cannot make the connection do more than it pays for:
frames that bring no request forward, and streams that end early, whoever resets them, have budgets.
What arrives is cut into frames by `frame_reader`, what leaves waits for its windows in `outflow`.

Streams exist while they are open; an id that is not larger than the last one is a closed stream.
What may still arrive for streams that this end has reset is ignored (RFC 9113, 5.1).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from headrace.grpc import frames
from headrace.grpc.frame_reader import FrameReader, dependency
from headrace.grpc.frames import (
    ACK,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    ID_MASK,
    PAYLOAD_BYTES_MAX,
    PING,
    PRIORITY,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    WINDOW_MAX,
    WINDOW_UPDATE,
    ConnectionFailed,
    StreamFailed,
)
from headrace.grpc.limits import Budget
from headrace.grpc.outflow import Outflow, Stream
from headrace.grpc.requests import check_trailers, content_bytes, read_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.grpc.hpack import Field
    from headrace.grpc.limits import Limits
    from headrace.grpc.outflow import Exchange
    from headrace.grpc.requests import Request

EARNED_PER_FRAME: Final = 4
"""Idle frames that a call, or a DATA frame to the peer, may cause: window updates and a bandwidth
probe."""
FORGOTTEN_MAX: Final = 1024
"""Reset streams of which late frames are ignored. More are in flight only after a mass reset."""
SKIPPED_MAX: Final = 16
STREAMS_PER_IDLE_FRAME: Final = 16
"""A change of the initial window visits every stream."""


class Requests(Protocol):
    """Takes the requests of a connection."""

    def opened(self, stream: Stream, request: Request) -> None:
        """A request has arrived, perhaps without its body: sets `stream.exchange`."""
        ...

    def has_output(self) -> None:
        """There are frames to be sent after there were none."""
        ...

    def dropped_output(self) -> None:
        """What waited for windows was dropped with its stream."""
        ...

    def ponged(self) -> None:
        """The peer has answered a PING."""
        ...


class Http2Connection:
    """See the module."""

    __slots__ = (
        "_forgotten",
        "_idle",
        "_initial_window",
        "_is_acknowledged",
        "_limits",
        "_opened_count",
        "_reader",
        "_requests",
        "_resets",
        "_skipped",
        "_unreturned",
        "_window",
        "failure",
        "has_begun",
        "is_closing",
        "last_stream_id",
        "outflow",
        "streams",
    )

    def __init__(self, requests: Requests, limits: Limits, clock: Callable[[], float]) -> None:
        self._requests = requests
        self._limits = limits
        self.outflow = Outflow(requests.has_output, self._sent_all)
        self.streams: dict[int, Stream] = {}
        self.last_stream_id = 0
        self.failure: ConnectionFailed | None = None
        """The connection error that has ended it."""
        self.is_closing = False
        """Whether the peer knows that no further streams are accepted."""
        self.has_begun = False
        """Whether the peer's preface and first SETTINGS have arrived."""
        self._reader = FrameReader(self, limits)
        self._idle = Budget(limits.idle_frames_burst, limits.idle_frames_per_s, clock)
        self._resets = Budget(limits.resets_burst, limits.resets_per_s, clock)
        self._opened_count = 0
        """Calls since idle frames were last counted."""
        self._is_acknowledged = False
        self._window = limits.connection_window_bytes
        """What the peer may still send."""
        self._initial_window = limits.stream_window_bytes
        self._unreturned = 0
        self._forgotten: dict[int, None] = {}
        """Streams that this end has reset: late frames of these are ignored."""
        self._skipped: deque[tuple[int, int]] = deque(maxlen=SKIPPED_MAX)
        """Ranges of ids that the peer has not used, first and end."""

    @property
    def held_bytes(self) -> int:
        """Received bytes that wait for the rest of a frame or header block."""
        return self._reader.held_bytes

    def begin(self) -> None:
        """Send the server's preface."""
        limits = self._limits
        self.outflow.emit(
            frames.settings(
                {
                    frames.HEADER_TABLE_SIZE: 0,
                    frames.MAX_CONCURRENT_STREAMS: limits.streams_max,
                    frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
                    frames.MAX_HEADER_LIST_SIZE: limits.header_list_bytes_max,
                }
            )
            + frames.window_update(0, limits.connection_window_bytes - frames.WINDOW_DEFAULT)
        )

    def receive(self, data: bytes) -> None:
        """Take what the peer has sent. Raises nothing: see `failure`."""
        if self.failure is not None:
            return
        try:
            self._reader.read(data)
        except ConnectionFailed as error:
            self.fail(error.code, error.reason)

    def fail(self, code: int, reason: str) -> None:
        """End the connection by GOAWAY: nothing more is read."""
        if self.failure is not None:
            return
        self.failure = ConnectionFailed(code, reason)
        self._reader.clear()
        self.outflow.emit(frames.goaway(self.last_stream_id, code, reason))
        self.lost()

    def lost(self) -> None:
        """Every stream ends: the connection is lost."""
        streams = list(self.streams.values())
        self.streams.clear()
        for stream in streams:
            _reset(self._end(stream))

    def ping(self) -> None:
        """Ask whether the peer is there; see `Requests.ponged`."""
        self.outflow.emit(frames.frame(PING, 0, 0, b"headrace"))

    def announce_close(self) -> None:
        """Tell the peer to open no further streams here; those on their way are still served, until
        `refuse_streams` (RFC 9113, 6.8)."""
        self.outflow.emit(frames.goaway(frames.STREAM_ID_MAX, frames.NO_ERROR, "stopping"))
        self.ping()

    def refuse_streams(self) -> None:
        """Serve the streams that there are, and no others."""
        if not self.is_closing:
            self.is_closing = True
            self.outflow.emit(frames.goaway(self.last_stream_id, frames.NO_ERROR, "stopping"))

    def abandon(self, stream: Stream, code: int) -> None:
        """Reset a stream."""
        if self.streams.pop(stream.id, None) is None:
            return
        self._end(stream)
        self._forget(stream.id)
        self.outflow.emit(frames.rst_stream(stream.id, code))

    # --- ends of streams -----------------------------------------------------------------------

    def _sent_all(self, stream: Stream) -> None:
        """Everything of a stream has been sent, including its end."""
        if stream.is_remote_closed:
            stream.exchange = None  # a cycle would be left to the garbage collector
            self.streams.pop(stream.id, None)
        else:
            # The peer need not send the rest (RFC 9113, 8.1).
            self.abandon(stream, frames.NO_ERROR)

    def _end(self, stream: Stream) -> Exchange | None:
        """The end of a stream, which needs its exchange no more; returns that."""
        stream.is_local_closed = stream.is_remote_closed = True
        if self.outflow.forget(stream):
            self._requests.dropped_output()
        exchange, stream.exchange = stream.exchange, None
        return exchange

    def _forget(self, stream_id: int) -> None:
        forgotten = self._forgotten
        if len(forgotten) >= FORGOTTEN_MAX:
            del forgotten[next(iter(forgotten))]
        forgotten[stream_id] = None

    def _spend_reset(self) -> None:
        if not self._resets.spend(1):
            raise ConnectionFailed(ENHANCE_YOUR_CALM, "too many streams end before their response")

    def spend_idle(self, count: int = 1) -> None:
        """Pay for frames that bring no request forward. Raises ConnectionFailed."""
        outflow = self.outflow
        earned = outflow.sent_frames + self._opened_count
        if earned:
            self._idle.earn(earned * EARNED_PER_FRAME)
            outflow.sent_frames = self._opened_count = 0
        if not self._idle.spend(count):
            raise ConnectionFailed(ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    # --- frames --------------------------------------------------------------------------------

    def stream_failed(self, stream_id: int, code: int) -> None:
        """Reset a stream because of a fault of the peer. Raises ConnectionFailed."""
        self._spend_reset()
        stream = self.streams.get(stream_id)
        if stream is None:
            self._forget(stream_id)
            self.outflow.emit(frames.rst_stream(stream_id, code))
            return
        exchange = stream.exchange
        self.abandon(stream, code)
        _reset(exchange)

    def take_data(
        self, stream_id: int, data: bytes, at: int, end: int, size: int, *, is_last: bool
    ) -> None:
        """DATA: the bytes of `data` from `at` to `end`, in a frame with a payload of `size`."""
        self._window -= size
        if self._window < 0:
            raise ConnectionFailed(FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        self._unreturned += size
        if self._unreturned * 2 >= self._limits.connection_window_bytes:
            self.outflow.emit(frames.window_update(0, self._unreturned))
            self._window += self._unreturned
            self._unreturned = 0
        if at == end and not is_last:
            self.spend_idle()
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_remote_closed:
            self._take_late(stream_id, stream, "DATA")
            return
        stream.receive_window -= size
        if stream.receive_window < 0:
            raise StreamFailed(FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        if stream.content_bytes >= 0:
            stream.content_bytes -= end - at
            if stream.content_bytes < 0:
                raise StreamFailed(PROTOCOL_ERROR, "more DATA than content-length")
        self._deliver(stream, data, at, end, is_last=is_last)
        if not is_last:
            stream.unreturned += size
            if stream.unreturned * 2 >= self._initial_window and stream_id in self.streams:
                self.outflow.emit(frames.window_update(stream_id, stream.unreturned))
                stream.receive_window += stream.unreturned
                stream.unreturned = 0

    def _deliver(self, stream: Stream, data: bytes, at: int, end: int, *, is_last: bool) -> None:
        if is_last:
            if stream.content_bytes > 0:
                raise StreamFailed(PROTOCOL_ERROR, "less DATA than content-length")
            stream.is_remote_closed = True
        exchange = stream.exchange
        assert exchange is not None
        exchange.receive(data, at, end, is_last=is_last)

    def _take_late(self, stream_id: int, stream: Stream | None, kind: str) -> None:
        """A frame on a stream on which the peer may not send it (RFC 9113, 5.1)."""
        if stream is not None:  # half-closed by the peer
            raise StreamFailed(STREAM_CLOSED, f"{kind} after the end of the stream")
        if self._is_ignored(stream_id):
            self.spend_idle()
            return
        self._check_not_idle(stream_id, kind)
        raise ConnectionFailed(STREAM_CLOSED, f"{kind} on a closed stream")

    def _is_ignored(self, stream_id: int) -> bool:
        """Whether frames of this stream may arrive, and mean nothing."""
        return stream_id in self._forgotten or (self.is_closing and stream_id > self.last_stream_id)

    def _check_not_idle(self, stream_id: int, kind: str) -> None:
        """Raises ConnectionFailed if the stream has never been open."""
        if stream_id == 0:
            raise ConnectionFailed(PROTOCOL_ERROR, f"{kind} without a stream")
        if (
            stream_id > self.last_stream_id
            or stream_id % 2 == 0
            or any(first <= stream_id < end for first, end in self._skipped)
        ):
            raise ConnectionFailed(PROTOCOL_ERROR, f"{kind} on a stream that was never open")

    # --- header blocks -------------------------------------------------------------------------

    def take_fields(self, stream_id: int, fields: list[Field], *, is_last: bool) -> None:
        """A whole header block."""
        if stream_id > self.last_stream_id:
            self._open(stream_id, fields, is_last=is_last)
            return
        stream = self.streams.get(stream_id)
        if stream is None or stream.is_remote_closed:
            self._take_late(stream_id, stream, "HEADERS")
            return
        if not is_last:
            raise StreamFailed(PROTOCOL_ERROR, "trailers that do not end the stream")
        check_trailers(fields)
        self._deliver(stream, b"", 0, 0, is_last=True)

    def _open(self, stream_id: int, fields: list[Field], *, is_last: bool) -> None:
        if self.is_closing:
            return  # opened before the peer knew, which will send it elsewhere
        if stream_id > self.last_stream_id + 2:
            self._skipped.append((self.last_stream_id + 1, stream_id))
        self.last_stream_id = stream_id
        if len(self.streams) >= self._limits.streams_max:
            raise StreamFailed(REFUSED_STREAM, "too many concurrent streams")
        request = read_request(fields)
        stream = Stream(stream_id, self.outflow.initial_window, self._initial_window)
        stream.content_bytes = content_bytes(request)
        stream.call_bytes = request.held_bytes
        if is_last and stream.content_bytes > 0:
            raise StreamFailed(PROTOCOL_ERROR, "less DATA than content-length")
        self.streams[stream_id] = stream
        self._opened_count += 1
        stream.is_remote_closed = is_last
        self._requests.opened(stream, request)
        exchange = stream.exchange
        if is_last and exchange is not None:
            exchange.receive(b"", 0, 0, is_last=True)

    # --- other frames --------------------------------------------------------------------------

    def take_other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A frame that is neither DATA nor part of a header block."""
        if kind == WINDOW_UPDATE:
            self._take_window_update(stream_id, payload)
        elif kind == PING:
            self._take_ping(flags, stream_id, payload)
        elif kind == RST_STREAM:
            self._take_reset(stream_id, payload)
        elif kind == SETTINGS:
            self._take_settings(flags, stream_id, payload)
        elif kind == PRIORITY:
            self._take_priority(stream_id, payload)
        elif kind == GOAWAY:
            self.spend_idle()
            _check_frame(stream_id == 0, len(payload) >= 8, "GOAWAY")
        elif kind == frames.PUSH_PROMISE:
            raise ConnectionFailed(PROTOCOL_ERROR, "PUSH_PROMISE from a client")
        else:
            self.spend_idle()  # unknown types are ignored (RFC 9113, 5.5)

    def _take_window_update(self, stream_id: int, payload: bytes) -> None:
        self.spend_idle()
        _check_frame(True, len(payload) == 4, "WINDOW_UPDATE")
        size = int.from_bytes(payload, "big") & ID_MASK
        if stream_id == 0:
            if size == 0:
                raise ConnectionFailed(PROTOCOL_ERROR, "a window update of 0")
            self.outflow.open_window(size)
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            if not self._is_ignored(stream_id):
                self._check_not_idle(stream_id, "WINDOW_UPDATE")
            return  # it may have been sent before the peer knew that the stream is closed
        if size == 0:
            raise StreamFailed(PROTOCOL_ERROR, "a window update of 0")
        self.outflow.open_stream_window(stream, size)
        self.outflow.drain()

    def _take_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.spend_idle()
        _check_frame(stream_id == 0, len(payload) == 8, "PING")
        if flags & ACK:
            self._requests.ponged()
        else:
            self.outflow.emit(frames.frame(PING, ACK, 0, payload))

    def _take_reset(self, stream_id: int, payload: bytes) -> None:
        _check_frame(stream_id != 0, len(payload) == 4, "RST_STREAM")
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            self.spend_idle()
            if not self._is_ignored(stream_id):
                self._check_not_idle(stream_id, "RST_STREAM")
            return
        self._spend_reset()
        _reset(self._end(stream))

    def _take_priority(self, stream_id: int, payload: bytes) -> None:
        """Priorities are ignored (RFC 9113, 5.3.2), but not their form."""
        self.spend_idle()
        _check_frame(stream_id != 0, True, "PRIORITY")
        if len(payload) != 5:
            raise StreamFailed(FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if dependency(payload, 0) == stream_id:
            raise ConnectionFailed(PROTOCOL_ERROR, "a stream that depends on itself")

    def _take_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self.spend_idle(1 + len(payload) // 6)
        _check_frame(stream_id == 0, True, "SETTINGS")
        if flags & ACK:
            _check_frame(self.has_begun, not payload, "an acknowledgement of SETTINGS")
            if not self._is_acknowledged:
                self._is_acknowledged = True
                self._reader.decoder.limit_table(0)
            return
        for name, value in frames.read_settings(payload):
            self._apply(name, value)
        self.has_begun = True
        self.outflow.emit(frames.frame(SETTINGS, ACK, 0))
        self.outflow.drain()

    def _apply(self, name: int, value: int) -> None:
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > WINDOW_MAX:
                raise ConnectionFailed(FLOW_CONTROL_ERROR, f"an initial window of {value}")
            self.spend_idle(len(self.streams) // STREAMS_PER_IDLE_FRAME)
            change = value - self.outflow.initial_window
            self.outflow.initial_window = value
            for stream in list(self.streams.values()):
                try:
                    self.outflow.open_stream_window(stream, change)
                except StreamFailed as error:
                    raise ConnectionFailed(error.code, str(error)) from error
        elif name == frames.MAX_FRAME_SIZE:
            if not PAYLOAD_BYTES_MAX <= value < 1 << 24:
                raise ConnectionFailed(PROTOCOL_ERROR, f"frames of {value} bytes")
        elif name == frames.ENABLE_PUSH:
            if value > 1:
                raise ConnectionFailed(PROTOCOL_ERROR, f"ENABLE_PUSH of {value}")
        elif name == frames.HEADER_TABLE_SIZE and value < 4096:
            self.outflow.announce_no_table()


def _check_frame(has_stream: bool, has_size: bool, name: str) -> None:
    """Raises ConnectionFailed unless the frame has a fitting stream and size."""
    if not has_stream:
        raise ConnectionFailed(PROTOCOL_ERROR, f"{name} on a wrong stream")
    if not has_size:
        raise ConnectionFailed(FRAME_SIZE_ERROR, f"{name} of a wrong size")


def _reset(exchange: Exchange | None) -> None:
    if exchange is not None:
        exchange.reset()
