"""Frames of HTTP/2 (RFC 9113, 4 and 6): numbers, and the frames that a server sends.

Invariants: constants and bytes, no state. Do not change: sent on the wire.
"""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client sends first."""
HEADER_BYTES: Final = 9
PAYLOAD_BYTES_MAX: Final = 16_384
"""SETTINGS_MAX_FRAME_SIZE of this server: the least that is allowed. A larger one would let a
client occupy the loop for longer with one frame."""
WINDOW_MAX: Final = 2**31 - 1
WINDOW_DEFAULT: Final = 65_535
STREAM_ID_MAX: Final = 2**31 - 1
ID_MASK: Final = 2**31 - 1
"""The first bit of ids and window sizes is reserved, and ignored."""

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
HAS_PRIORITY: Final = 0x20

HEADER_TABLE_SIZE: Final = 1
ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6
"""Settings."""

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
ENHANCE_YOUR_CALM: Final = 0xB
"""Error codes (RFC 9113, 7)."""

FRAME_HEADER: Final = struct.Struct(">IBI")
"""Length and type in one number, flags, stream."""
_SETTING: Final = struct.Struct(">HI")


class ConnectionFailed(Exception):
    """A connection error (RFC 9113, 5.4.1): GOAWAY, and the connection is closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        """For the log and the peer; holds nothing that the peer sent but numbers."""


class StreamFailed(Exception):
    """A stream error (RFC 9113, 5.4.2): RST_STREAM, and the other streams go on."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return FRAME_HEADER.pack(len(payload) << 8 | kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The settings of a payload, in their order. Raises ConnectionFailed."""
    if len(payload) % _SETTING.size:
        raise ConnectionFailed(FRAME_SIZE_ERROR, "a SETTINGS frame that ends within a setting")
    return [(name, value) for name, value in _SETTING.iter_unpack(payload)]


def window_update(stream_id: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream_id, size.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: int, reason: str = "") -> bytes:
    """A GOAWAY frame with a reason for people."""
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big")
    return frame(GOAWAY, 0, 0, payload + reason.encode("ascii", "replace")[:200])
