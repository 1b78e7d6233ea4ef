"""Rules for the header lists of requests (RFC 9113, 8.1 to 8.3).

Invariants: fields in, verdict out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.grpc.frames import PROTOCOL_ERROR, StreamFailed
from headrace.grpc.hpack import INVALID, PSEUDO, REGULAR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.grpc.hpack import Field

_METHOD, _PATH, _SCHEME, _AUTHORITY = b":method", b":path", b":scheme", b":authority"
_PSEUDO: Final = frozenset([_METHOD, _PATH, _SCHEME, _AUTHORITY])
_LENGTH, _HOST = b"content-length", b"host"
_LENGTH_DIGITS_MAX: Final = 18
CALL_BYTES: Final = 8 * 1024
"""What a call takes with its task, its request and an ordinary head, while it runs or waits:
measured, 8 to 11 KiB, of 10,000 receives and look-ups at once."""
FIELD_BYTES: Final = 160
"""What the objects of a field take: measured."""


class Request:
    """The header list of a valid request."""

    __slots__ = ("fields", "known", "size_bytes")

    def __init__(self, fields: Sequence[Field], known: dict[bytes, bytes], size_bytes: int) -> None:
        self.fields = fields
        self.known = known
        """Pseudo-header fields, and the fields that concern the server: the last value of each."""
        self.size_bytes = size_bytes

    @property
    def held_bytes(self) -> int:
        """What it takes while its call lasts."""
        return CALL_BYTES + self.size_bytes + FIELD_BYTES * len(self.fields)


def read_request(fields: Sequence[Field]) -> Request:
    """The request that begins with these fields. Raises StreamFailed if it is malformed."""
    known: dict[bytes, bytes] = {}
    has_regular = False
    size_bytes = 0
    for name, value, kind, size in fields:
        size_bytes += size
        if kind == REGULAR:
            has_regular = True
        elif kind == PSEUDO:
            if has_regular or name in known or name not in _PSEUDO:
                raise StreamFailed(PROTOCOL_ERROR, "a misplaced or unknown pseudo-header field")
            known[name] = value
        elif kind == INVALID:
            raise StreamFailed(PROTOCOL_ERROR, "a header field that is not allowed")
        else:
            has_regular = True
            if name in (_LENGTH, _HOST) and known.get(name, value) != value:
                raise StreamFailed(PROTOCOL_ERROR, "contradictory header fields")
            known[name] = value
    if known.get(_METHOD) == b"CONNECT":
        is_complete = _AUTHORITY in known and _PATH not in known and _SCHEME not in known
    else:
        is_complete = _METHOD in known and _SCHEME in known and bool(known.get(_PATH))
    if not is_complete:
        raise StreamFailed(PROTOCOL_ERROR, "a request without all pseudo-header fields")
    host = known.get(_HOST)
    if host is not None and known.get(_AUTHORITY, host) != host:
        raise StreamFailed(PROTOCOL_ERROR, "two authorities")
    return Request(fields, known, size_bytes)


def content_bytes(request: Request) -> int:
    """What `content-length` says; -1 without one. Raises StreamFailed."""
    text = request.known.get(_LENGTH)
    if text is None:
        return -1
    if not text.isdigit() or len(text) > _LENGTH_DIGITS_MAX:
        raise StreamFailed(PROTOCOL_ERROR, "a content-length that is not a number")
    return int(text)


def check_trailers(fields: Sequence[Field]) -> None:
    """Raises StreamFailed if these fields may not follow a request's DATA."""
    for _name, _value, kind, _size in fields:
        if kind in {PSEUDO, INVALID}:
            raise StreamFailed(PROTOCOL_ERROR, "trailers with a field that is not allowed")
