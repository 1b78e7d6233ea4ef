"""gRPC over HTTP/2 (its `doc/PROTOCOL-HTTP2.md`): message prefixes, time-outs, trailers.

Invariants: bytes in, bytes out. Do not change: sent on the wire.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING, Final

from headrace.grpc.hpack import encode_field
from headrace.grpc.service import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX_BYTES: Final = 5
"""Of each message: a flag that says whether it is compressed, and its length."""
STATUS_TEXT_BYTES_MAX: Final = 1024
"""Longer messages of errors are cut: clients bound the size of trailers."""
IDENTITY, GZIP = b"identity", b"gzip"
ENCODINGS: Final = frozenset([IDENTITY, GZIP])
"""Of requests. Responses are not compressed: what is large is compressed by the application, or was
stored so, and gzip costs 20 us per KiB."""
ACCEPTED_ENCODINGS: Final = (b"grpc-accept-encoding", b"identity,gzip")
_TIMEOUT: Final = re.compile(rb"[0-9]{1,8}[HMSmun]")
_UNITS_S: Final = {0x48: 3600.0, 0x4D: 60.0, 0x53: 1.0, 0x6D: 1e-3, 0x75: 1e-6, 0x6E: 1e-9}
_GZIP_BITS: Final = 31
INLINE_BYTES_MIN: Final = 16 * 1024
INLINE_BYTES_MAX: Final = 256 * 1024
INLINE_RATIO: Final = 16
"""A message that grows more, or to more, is decompressed in a thread: this takes a millisecond at
most. One read of a socket could bring hundreds that grow a thousandfold."""
_CONTENT_TYPE: Final = b"application/grpc"
_OK_200: Final = b"\x88"
"""`:status: 200`, as indexed by the static table."""
HEAD: Final = _OK_200 + encode_field(b"content-type", _CONTENT_TYPE)
"""The header block that begins a response."""
_UNPRINTABLE: Final = re.compile(rb"[^\x20-\x24\x26-\x7e]")


class MessageInvalid(Exception):
    """A message that cannot be read; `status` is what the call ends with."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def is_grpc(content_type: bytes | None) -> bool:
    """Whether a request with this content type is a call."""
    if content_type is None or not content_type.startswith(_CONTENT_TYPE):
        return False
    return content_type[len(_CONTENT_TYPE) : len(_CONTENT_TYPE) + 1] in {b"", b"+", b";"}


def timeout_s(text: bytes) -> float | None:
    """The value of `grpc-timeout` in seconds; None if it is malformed."""
    if _TIMEOUT.fullmatch(text) is None:
        return None
    return int(text[:-1]) * _UNITS_S[text[-1]]


def prefix(size: int) -> bytes:
    """What precedes an uncompressed message of this size."""
    return b"\0" + size.to_bytes(4, "big")


def inline_bytes_max(size: int) -> int:
    """What a compressed message of this size may grow to on the event loop."""
    return min(max(INLINE_BYTES_MIN, INLINE_RATIO * size), INLINE_BYTES_MAX)


def check_compressed(encoding: bytes) -> None:
    """Check that a call of this encoding may have compressed messages. Raises MessageInvalid."""
    if encoding != GZIP:
        raise MessageInvalid(Status.INTERNAL, "a compressed message without grpc-encoding")


def decompressed(body: bytes | memoryview, bytes_max: int) -> bytes | None:
    """A message that is compressed by gzip, decompressed; None if it has more than `bytes_max`
    bytes. Raises MessageInvalid."""
    unpacker = zlib.decompressobj(_GZIP_BITS)
    try:
        plain = unpacker.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise MessageInvalid(Status.INTERNAL, "a message that is not gzip") from error
    if len(plain) > bytes_max:
        return None
    if not unpacker.eof or unpacker.unused_data:
        raise MessageInvalid(Status.INTERNAL, "a message that is not one gzip member")
    return plain


def too_large(bytes_max: int) -> MessageInvalid:
    """The error for a request message that exceeds the limit."""
    return MessageInvalid(
        Status.RESOURCE_EXHAUSTED, f"the message is larger than {bytes_max} bytes: send less"
    )


def trailers(status: int, message: str = "", fields: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """The header block that ends a response."""
    if not message and not fields and 0 <= status < len(_BARE):
        return _BARE[status]
    block = encode_field(b"grpc-status", b"%d" % status)
    if message:
        block += encode_field(b"grpc-message", percent_encoded(message))
    return block + b"".join([encode_field(name, value) for name, value in fields])


def percent_encoded(text: str) -> bytes:
    """As `grpc-message` wants it: percent signs and what is not printable ASCII are encoded."""
    data = text.encode("utf-8", "replace")
    if len(data) > STATUS_TEXT_BYTES_MAX:
        cut = data[: STATUS_TEXT_BYTES_MAX - 3].decode("utf-8", "ignore")
        data = cut.encode() + b"..."
    encoded = _UNPRINTABLE.sub(lambda found: b"%%%02X" % found[0][0], data)
    # HTTP/2 allows no space at either end of a value.
    if encoded.startswith(b" "):
        encoded = b"%20" + encoded[1:]
    if encoded.endswith(b" "):
        encoded = encoded[:-1] + b"%20"
    return encoded


def http_response(status: bytes) -> bytes:
    """The header block of a response to what is no call."""
    return encode_field(b":status", status) + encode_field(b"content-type", b"text/plain")


NO_CALL: Final = b"this port serves gRPC: POST with content-type application/grpc\n"
_BARE: Final = tuple(encode_field(b"grpc-status", b"%d" % status) for status in Status)
OK: Final = _BARE[0]
