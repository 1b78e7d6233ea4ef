"""Cuts what one client sends into requests.

Invariants: does no I/O and knows neither connection nor memory: the caller asks for one request
after the other, and may stop in between for as long as it likes. A request is a memoryview of the
received bytes; only one that arrives in several pieces is copied. Sizes are checked before anything
is gathered, against the bounds that hold when the request's turn has come. A large request is not
gathered before the caller has memory for it; its bytes wait as they were received.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.services.connection_memory import COUNTED_BYTES_MIN
from headrace.kafka.wire.primitives import FrameInvalid

FRAME_BYTES_MIN: Final = 8
SIZE_BYTES: Final = 4
TLS_HELLOS: Final = frozenset({0x160300, 0x160301, 0x160302, 0x160303, 0x160304})
"""The first bytes of a TLS handshake record: its content type and version."""

_NOTHING: Final = memoryview(b"")


class RequestFrames:
    """See the module."""

    __slots__ = (
        "_at",
        "_limit",
        "_listener_name",
        "_need",
        "_partial",
        "_view",
        "bytes_max",
        "bytes_min",
        "data",
        "wanted_bytes",
    )

    def __init__(self, bytes_max: int, listener_name: str) -> None:
        self.bytes_min = FRAME_BYTES_MIN
        self.bytes_max = self._limit = bytes_max
        """Bounds of the next request's size, which depend on whether the client is known."""
        self._listener_name = listener_name
        self.data = b""
        """Received, and handed out up to `_at`; empty if `next` has seen all of it."""
        self._view = _NOTHING
        self._at = 0
        self._partial = bytearray()
        """A request that has begun to arrive; `_need` bytes long, 0 if its size is not known."""
        self._need = 0
        self.wanted_bytes = 0
        """After `next` has returned None: the size of the request for which memory is needed, 0 if
        more of it has to arrive."""

    def add(self, data: bytes) -> None:
        """The client has sent more."""
        if self.data:
            data = self.data[self._at :] + data
        self.data, self._view, self._at = data, memoryview(data), 0

    def next(self, admitted_bytes: int) -> memoryview | None:
        """The next request, without its size; None if `wanted_bytes` says why. `admitted_bytes`:
        for a large request of this size there is memory. Raises FrameInvalid."""
        if self._partial:
            return self._next_gathered(admitted_bytes)
        data, at = self.data, self._at
        start = at + SIZE_BYTES
        if start > len(data):
            self._gather(0)
            return None
        size = int.from_bytes(data[at:start])
        if not self.bytes_min <= size <= self.bytes_max:
            size = self._checked_size(data[at:start])
        end = start + size
        if size >= COUNTED_BYTES_MIN - SIZE_BYTES and end - at > admitted_bytes:
            self.wanted_bytes = end - at
            return None
        if end < len(data):
            self._at = end
        elif end == len(data):
            frame = self._view[start:end]
            self.data, self._view = b"", _NOTHING  # as `_drop`
            return frame
        else:
            self._gather(end - at)
            return None
        return self._view[start:end]

    def _gather(self, need: int) -> None:
        """Keep the beginning of a request until more of it arrives."""
        if self.data:
            self._partial += self._view[self._at :]
            self._drop()
        self._need = need
        self.wanted_bytes = 0

    def _next_gathered(self, admitted_bytes: int) -> memoryview | None:
        """As `next`, for a request that arrives in several pieces: only its bytes are copied."""
        partial = self._partial
        if not self._need:
            self._move(SIZE_BYTES)
            if len(partial) < SIZE_BYTES:
                self.wanted_bytes = 0
                return None
            self._need = SIZE_BYTES + self._checked_size(partial)
        if self._need >= COUNTED_BYTES_MIN and self._need > admitted_bytes:
            self.wanted_bytes = self._need
            return None
        self._move(self._need)
        if len(partial) < self._need:
            self.wanted_bytes = 0
            return None
        self._partial, self._need = bytearray(), 0
        return memoryview(partial)[SIZE_BYTES:]

    def _move(self, size: int) -> None:
        """Move received bytes to the request that has begun, until it has this size."""
        end = self._at + size - len(self._partial)
        if self.data:
            self._partial += self._view[self._at : end]
            if end >= len(self.data):
                self._drop()
            else:
                self._at = end

    def _drop(self) -> None:
        """Keep nothing of what was received: an idle client costs no memory."""
        self.data, self._view = b"", _NOTHING

    @property
    def missing_bytes(self) -> int:
        """How many bytes of the request that has begun the client has not sent yet."""
        return self._need - len(self._partial) if self._need else 0

    def clear(self) -> None:
        """The client's requests are of no use any more."""
        self._drop()
        self._partial, self._need = bytearray(), 0

    def _checked_size(self, data: bytes | bytearray) -> int:
        size = int.from_bytes(data, "big", signed=True)
        if self.bytes_min <= size <= self.bytes_max:
            return size
        if size >> 8 in TLS_HELLOS:
            raise FrameInvalid(
                f"it is the start of a TLS handshake, and listener {self._listener_name} is not"
                " encrypted: set security.protocol=PLAINTEXT in the client"
            )
        bound = f"socket.request.max.bytes={self.bytes_max}"
        if self.bytes_max < self._limit:
            bound = f"{self.bytes_max}, the limit before authentication"
        raise FrameInvalid(f"a request of {size} bytes exceeds {bound}")
