"""What one HTTP/2 connection sends: frames, and the windows that the peer opens for DATA.

Invariants: knows streams by what they have to send, not their calls; does no I/O. DATA leaves only
as far as the windows of its stream and of the connection allow (RFC 9113, 5.2); the rest waits in
its stream, and streams that wait for the connection take turns. A response whose body fits is
three frames that are appended at once: the common case.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from headrace.grpc.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FLOW_CONTROL_ERROR,
    HEADER_BYTES,
    HEADERS,
    PAYLOAD_BYTES_MAX,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ConnectionFailed,
    StreamFailed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_FRAME: Final = struct.Struct(">IBI")
"""Of its own, as in `frame_reader`: a constant of the module is found faster."""
_NO_TABLE: Final = b"\x20"
"""A table size update to 0."""


class Exchange(Protocol):
    """The user of a stream: gets what arrives on it."""

    def receive(self, data: bytes, at: int, end: int, *, is_last: bool) -> None:
        """The bytes of `data` from `at` to `end`; nothing follows if `is_last`.

        Raises StreamFailed.
        """
        ...

    def reset(self) -> None:
        """The stream has ended without our doing: reset, or the connection is lost."""
        ...

    def writable(self) -> None:
        """Some of what waited has been sent."""
        ...


class Stream:
    """One stream. The connection and its outflow alone change it."""

    __slots__ = (
        "call_bytes",
        "content_bytes",
        "exchange",
        "id",
        "is_local_closed",
        "is_remote_closed",
        "receive_window",
        "send_window",
        "trailers",
        "unreturned",
        "unsent",
        "unsent_bytes",
    )

    def __init__(self, stream_id: int, send_window: int, receive_window: int) -> None:
        self.id = stream_id
        self.exchange: Exchange | None = None
        self.call_bytes = 0
        """What its call takes with its header list, and with responses that wait until the client
        has read earlier ones (`Call.keep`)."""
        self.send_window = send_window
        self.receive_window = receive_window
        self.unreturned = 0
        """Received bytes for which the peer has not been given new ones."""
        self.content_bytes = -1
        """What `content-length` still promises; -1: nothing."""
        self.is_remote_closed = False
        self.is_local_closed = False
        self.unsent: deque[memoryview] | None = None
        """DATA that waits for a window."""
        self.unsent_bytes = 0
        self.trailers = b""
        """The header block that ends the stream once everything is sent."""


class Outflow:
    """See the module."""

    __slots__ = (
        "_blocked",
        "_closed",
        "_has_begun",
        "_notify",
        "_prefix",
        "initial_window",
        "output",
        "output_bytes",
        "payload_bytes_max",
        "sent_frames",
        "unsent_bytes",
        "window",
    )

    def __init__(self, notify: Callable[[], None], closed: Callable[[Stream], None]) -> None:
        """`notify` is called when there is output after there was none; `closed` when everything
        of a stream has been sent."""
        self.output: list[bytes | memoryview] = []
        """Frames for the socket, and their size without the smallest."""
        self.output_bytes = 0
        self.window = WINDOW_DEFAULT
        self.initial_window = WINDOW_DEFAULT
        self.payload_bytes_max = PAYLOAD_BYTES_MAX
        self.unsent_bytes = 0
        """What waits for windows, of all streams."""
        self.sent_frames = 0
        """DATA frames sent by waiting streams: the peer may answer each."""
        self._notify = notify
        self._closed = closed
        self._blocked: dict[Stream, None] = {}
        """Streams whose own window is open, in the order of their turns."""
        self._prefix = b""
        self._has_begun = False

    def announce_no_table(self) -> None:
        """Begin the next header block with a table of size 0: the peer wants a smaller one, and
        must be told (RFC 7541, 4.2)."""
        self._prefix = _NO_TABLE

    @property
    def has_begun(self) -> bool:
        """Whether anything has been sent."""
        return self._has_begun

    def emit(self, data: bytes) -> None:
        """Send a frame that no window holds back."""
        if not self.output:
            self._has_begun = True
            self._notify()
        self.output.append(data)
        self.output_bytes += len(data)

    def take(self) -> bytes:
        """What is to be sent now."""
        data = b"".join(self.output)
        self.output.clear()
        self.output_bytes = 0
        return data

    def _block(self, block: bytes) -> bytes:
        if self._prefix:
            block = self._prefix + block
            self._prefix = b""
        return block

    def head(self, stream: Stream, block: bytes, *, is_last: bool = False) -> None:
        """Send a header block, shorter than a frame; `is_last`: it ends the stream."""
        assert not stream.is_local_closed
        if is_last:
            stream.trailers = block
            self.finish(stream)
            return
        block = self._block(block)
        self.emit(_FRAME.pack(len(block) << 8 | HEADERS, END_HEADERS, stream.id) + block)

    def body(self, stream: Stream, data: bytes) -> None:
        """Send DATA, or keep it until a window opens."""
        assert not stream.is_local_closed
        size = len(data)
        if (
            not stream.unsent_bytes
            and size <= stream.send_window
            and size <= self.window
            and size <= self.payload_bytes_max
        ):
            stream.send_window -= size
            self.window -= size
            self.emit(_FRAME.pack(size << 8 | DATA, 0, stream.id))
            self.output.append(data)
            self.output_bytes += size
            return
        if stream.unsent is None:
            stream.unsent = deque()
        stream.unsent.append(memoryview(data))
        stream.unsent_bytes += size
        self.unsent_bytes += size
        self._blocked[stream] = None
        self.drain()

    def finish(self, stream: Stream) -> None:
        """End a response without trailers."""
        assert not stream.is_local_closed
        stream.is_local_closed = True
        if not stream.unsent_bytes:
            self._send_end(stream)

    def _send_end(self, stream: Stream) -> None:
        block = stream.trailers
        kind, flags = (HEADERS, END_HEADERS | END_STREAM) if block else (DATA, END_STREAM)
        if block:
            block = self._block(block)
        self.emit(_FRAME.pack(len(block) << 8 | kind, flags, stream.id) + block)
        self._closed(stream)

    def respond(
        self, stream: Stream, head: bytes, prefix: bytes, data: bytes, trailers: bytes
    ) -> None:
        """Send a whole response: header block, DATA of two parts, and the block that ends it."""
        size = len(prefix) + len(data)
        if (
            size > stream.send_window
            or size > self.window
            or size > self.payload_bytes_max
            or self._prefix
        ):
            self.head(stream, head)
            self.body(stream, prefix + data)
            self.head(stream, trailers, is_last=True)
            return
        assert not stream.is_local_closed
        stream.is_local_closed = True
        self.window -= size
        self.output_bytes += size
        stream_id = stream.id
        output = self.output
        if not output:
            self._notify()
        output += (
            _FRAME.pack(len(head) << 8 | HEADERS, END_HEADERS, stream_id),
            head,
            _FRAME.pack(size << 8 | DATA, 0, stream_id),
            prefix,
            data,
            _FRAME.pack(len(trailers) << 8 | HEADERS, END_HEADERS | END_STREAM, stream_id),
            trailers,
        )
        self._closed(stream)

    # --- windows -------------------------------------------------------------------------------

    def open_window(self, size: int) -> None:
        """The peer enlarges the window of the connection. Raises ConnectionFailed."""
        if self.window + size > WINDOW_MAX:
            raise ConnectionFailed(FLOW_CONTROL_ERROR, "a connection window above 2^31 - 1")
        self.window += size
        if self._blocked:
            self.drain()

    def open_stream_window(self, stream: Stream, size: int) -> None:
        """The peer enlarges the window of a stream, which `drain` makes use of. Raises
        StreamFailed."""
        if stream.send_window + size > WINDOW_MAX:
            raise StreamFailed(FLOW_CONTROL_ERROR, "a stream window above 2^31 - 1")
        stream.send_window += size
        if stream.unsent_bytes and stream.send_window > 0:
            self._blocked[stream] = None

    def forget(self, stream: Stream) -> int:
        """Drop what the stream has to send: it was reset. Returns how much it was."""
        size = stream.unsent_bytes
        self.unsent_bytes -= size
        stream.unsent_bytes = 0
        stream.unsent = None
        self._blocked.pop(stream, None)
        return size

    def drain(self) -> None:
        """Send what the windows allow, a frame of each stream in turn."""
        blocked = self._blocked
        while blocked and self.window > 0:
            stream = next(iter(blocked))
            del blocked[stream]
            if self._send_some(stream):
                blocked[stream] = None

    def _send_some(self, stream: Stream) -> bool:
        """Send one frame of a stream; returns whether it could send another."""
        size = min(stream.unsent_bytes, stream.send_window, self.window, self.payload_bytes_max)
        if size <= 0:
            return False
        unsent = stream.unsent
        assert unsent is not None
        stream.send_window -= size
        stream.unsent_bytes -= size
        self.window -= size
        self.unsent_bytes -= size
        self.output_bytes += size
        self.sent_frames += 1
        self.emit(_FRAME.pack(size << 8 | DATA, 0, stream.id))
        while size > 0:
            part = unsent.popleft()
            if len(part) > size:
                unsent.appendleft(part[size:])
                part = part[:size]
            self.output.append(part)
            size -= len(part)
        if stream.unsent_bytes:
            return stream.send_window > 0
        if stream.is_local_closed:
            self._send_end(stream)
        elif stream.exchange is not None:
            stream.exchange.writable()
        return False


assert _FRAME.size == HEADER_BYTES
