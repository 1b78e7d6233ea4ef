"""Cuts what an HTTP/2 peer sends into frames, and joins header blocks.

Invariants: checks what a frame must be by itself (RFC 9113, 4 to 4.3), not what it means for its
stream. At most one incomplete frame and one incomplete header block are held.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Protocol

from headrace.grpc.frames import (
    COMPRESSION_ERROR,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FRAME_SIZE_ERROR,
    HAS_PRIORITY,
    HEADER_BYTES,
    HEADERS,
    ID_MASK,
    PADDED,
    PAYLOAD_BYTES_MAX,
    PREFACE,
    PROTOCOL_ERROR,
    SETTINGS,
    ConnectionFailed,
    StreamFailed,
)
from headrace.grpc.hpack import CompressionInvalid, HeaderDecoder, HeaderListTooLarge

if TYPE_CHECKING:
    from headrace.grpc.hpack import Field
    from headrace.grpc.limits import Limits

_FRAME: Final = struct.Struct(">IBI")


class FrameTaker(Protocol):
    """Takes frames. All methods may raise ConnectionFailed or StreamFailed."""

    has_begun: bool

    def take_data(
        self, stream_id: int, data: bytes, at: int, end: int, size: int, *, is_last: bool
    ) -> None:
        """See Http2Connection."""
        ...

    def take_fields(self, stream_id: int, fields: list[Field], *, is_last: bool) -> None:
        """See Http2Connection."""
        ...

    def take_other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """See Http2Connection."""
        ...

    def stream_failed(self, stream_id: int, code: int) -> None:
        """See Http2Connection."""
        ...

    def spend_idle(self, count: int = 1) -> None:
        """See Http2Connection."""
        ...


class FrameReader:
    """See the module."""

    __slots__ = (
        "_block",
        "_block_frames",
        "_block_is_last",
        "_block_stream",
        "_has_preface",
        "_limits",
        "_need",
        "_rest",
        "_taker",
        "decoder",
    )

    def __init__(self, taker: FrameTaker, limits: Limits) -> None:
        self._taker = taker
        self._limits = limits
        self.decoder = HeaderDecoder()
        self._rest = bytearray()
        """An incomplete frame, which needs `_need` bytes at least."""
        self._need = len(PREFACE)
        self._has_preface = False
        self._block: bytearray | None = None
        """An incomplete header block, with its stream, end, and number of CONTINUATION frames."""
        self._block_stream = 0
        self._block_is_last = False
        self._block_frames = 0

    @property
    def held_bytes(self) -> int:
        """Received bytes that wait for the rest of a frame or header block."""
        return len(self._rest) + (0 if self._block is None else len(self._block))

    def clear(self) -> None:
        """Drop what is held."""
        self._rest.clear()
        self._block = None

    def read(self, data: bytes) -> None:
        """Take what the peer has sent. Raises ConnectionFailed."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._need:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = 0
        if not self._has_preface:
            if len(data) < len(PREFACE) and PREFACE.startswith(data):
                self._rest += data
                return
            if not data.startswith(PREFACE):
                raise ConnectionFailed(PROTOCOL_ERROR, "the client does not speak HTTP/2")
            self._has_preface = True
            at = len(PREFACE)
        self._cut(data, at)

    def _cut(self, data: bytes, at: int) -> None:
        size = len(data)
        taker = self._taker
        need = HEADER_BYTES
        while size - at >= HEADER_BYTES:
            word, flags, stream_id = _FRAME.unpack_from(data, at)
            length, kind = word >> 8, word & 0xFF
            stream_id &= ID_MASK
            self._check(kind, length, stream_id)
            end = at + HEADER_BYTES + length
            if end > size:
                need = end - at
                break
            at += HEADER_BYTES
            try:
                if kind == DATA:
                    first, last = at, end
                    if flags & PADDED:
                        first, last = _without_padding(data, at, end)
                    is_last = flags & END_STREAM != 0
                    taker.take_data(stream_id, data, first, last, length, is_last=is_last)
                elif kind == HEADERS:
                    self._take_headers(data, at, end, flags, stream_id)
                elif kind == CONTINUATION:
                    self._take_continuation(flags, data[at:end])
                else:
                    taker.take_other(kind, flags, stream_id, data[at:end])
            except StreamFailed as error:
                taker.stream_failed(stream_id, error.code)
            at = end
        self._need = need
        if at < size:
            self._rest += memoryview(data)[at:]

    def _check(self, kind: int, length: int, stream_id: int) -> None:
        if length > PAYLOAD_BYTES_MAX:
            raise ConnectionFailed(FRAME_SIZE_ERROR, f"a frame of {length} bytes")
        if self._block is None:
            if kind != SETTINGS and not self._taker.has_begun:
                raise ConnectionFailed(PROTOCOL_ERROR, "a preface without SETTINGS")
        elif kind != CONTINUATION or stream_id != self._block_stream:
            raise ConnectionFailed(PROTOCOL_ERROR, "a frame within a header block")

    def _take_headers(self, data: bytes, at: int, end: int, flags: int, stream_id: int) -> None:
        if stream_id % 2 == 0:
            raise ConnectionFailed(PROTOCOL_ERROR, "HEADERS without a stream of a client")
        if flags & PADDED:
            at, end = _without_padding(data, at, end)
        if flags & HAS_PRIORITY:
            if end - at < 5:
                raise ConnectionFailed(FRAME_SIZE_ERROR, "HEADERS too short for their priority")
            if dependency(data, at) == stream_id:
                raise ConnectionFailed(PROTOCOL_ERROR, "a stream that depends on itself")
            at += 5
        is_last = flags & END_STREAM != 0
        if flags & END_HEADERS:
            self._take_block(stream_id, data[at:end], is_last=is_last)
        else:
            self._block = bytearray(data[at:end])
            self._block_stream, self._block_is_last, self._block_frames = stream_id, is_last, 0

    def _take_continuation(self, flags: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise ConnectionFailed(PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        self._taker.spend_idle()
        self._block_frames += 1
        block += payload
        if (
            len(block) > self._limits.header_block_bytes_max
            or self._block_frames > self._limits.continuations_max
        ):
            raise ConnectionFailed(ENHANCE_YOUR_CALM, "a header block that is too large")
        if flags & END_HEADERS:
            self._block = None
            self._take_block(self._block_stream, bytes(block), is_last=self._block_is_last)

    def _take_block(self, stream_id: int, block: bytes, *, is_last: bool) -> None:
        try:
            fields = self.decoder.decode(block)
        except CompressionInvalid as error:
            raise ConnectionFailed(COMPRESSION_ERROR, str(error)) from error
        except HeaderListTooLarge as too_large:  # mypyc gives a name one type
            raise ConnectionFailed(ENHANCE_YOUR_CALM, str(too_large)) from too_large
        self._taker.take_fields(stream_id, fields, is_last=is_last)


def dependency(data: bytes, at: int) -> int:
    """The stream that a priority at this place depends on."""
    return int.from_bytes(data[at : at + 4], "big") & ID_MASK


def _without_padding(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Where the content of a padded payload begins and ends. Raises ConnectionFailed."""
    if at == end:
        raise ConnectionFailed(FRAME_SIZE_ERROR, "a padded frame without its length of padding")
    end -= data[at]
    at += 1
    if end < at:
        raise ConnectionFailed(PROTOCOL_ERROR, "more padding than the frame has bytes")
    return at, end
