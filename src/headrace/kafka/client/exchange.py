"""The requests and responses of one client connection: frames, correlation ids, bounded lengths.

Invariants: knows sizes and headers, not bodies, sockets or time. A broker answers in request order,
so each response must carry the correlation id of the oldest unanswered request. After
AnswerInvalid, further bytes of the connection are meaningless.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final, NamedTuple

# Do not change: protocol.
API_VERSIONS: Final = 18
_SIZE: Final = Struct(">i")
SIZE_BYTES: Final = _SIZE.size
_REQUEST_HEADER: Final = Struct(">hhih")
"""API, version, correlation id, length of the client id, which follows."""
_CORRELATION_ID: Final = Struct(">i")
_CORRELATION_ID_MAX: Final = 2**31 - 1
_NO_TAGS: Final = b"\x00"

ANSWER_BYTES_MAX: Final = 1 << 30
"""Larger than any client requests; a larger size belongs to another protocol or is malformed."""


class AnswerInvalid(ConnectionError):
    """The bytes received are not a valid response: the connection must be closed."""


def framed(data: bytes) -> bytes:
    """Prefix `data` with its size."""
    return _SIZE.pack(len(data)) + data


def request_header(
    client_id: bytes, api_key: int, version: int, correlation_id: int, *, is_flexible: bool
) -> bytes:
    """The header before a request's body. Flexible headers end in tagged fields: none."""
    fixed = _REQUEST_HEADER.pack(api_key, version, correlation_id, len(client_id))
    return fixed + client_id + (_NO_TAGS if is_flexible else b"")


def request_frame(
    client_id: bytes,
    api_key: int,
    version: int,
    correlation_id: int,
    body: bytes,
    *,
    is_flexible: bool,
) -> bytes:
    """A request as sent on the wire."""
    header = request_header(client_id, api_key, version, correlation_id, is_flexible=is_flexible)
    return framed(header + body)


def answer_size(head: bytes | bytearray | memoryview, bytes_max: int = ANSWER_BYTES_MAX) -> int:
    """The size given by the first 4 bytes of `head`. Raises AnswerInvalid."""
    size: int
    (size,) = _SIZE.unpack_from(head)
    if not _CORRELATION_ID.size <= size <= bytes_max:
        raise AnswerInvalid(f"an answer of {size} bytes")
    return size


def answer_body(frame: bytes, api_key: int, correlation_id: int, *, is_flexible: bool) -> bytes:
    """The body of a response without its size. Raises AnswerInvalid."""
    (found,) = _CORRELATION_ID.unpack_from(frame)
    if found != correlation_id:
        raise AnswerInvalid(f"response {found} to request {correlation_id}")
    at = _CORRELATION_ID.size
    # Clients read ApiVersions before they know the broker's versions: its header has no tags.
    if is_flexible and api_key != API_VERSIONS:
        if frame[at : at + 1] != _NO_TAGS:
            raise AnswerInvalid("the response header has unexpected or missing tagged fields")
        at += 1
    return frame[at:]


class _Asked(NamedTuple):
    api_key: int
    correlation_id: int
    is_flexible: bool


class Exchange:
    """The requests of one connection, and the responses as their bytes arrive."""

    __slots__ = ("_answer_bytes_max", "_asked", "_client_id", "_correlation_id", "_received")

    def __init__(self, client_id: bytes, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._client_id = client_id
        self._answer_bytes_max = answer_bytes_max
        self._correlation_id = 0
        self._asked: deque[_Asked] = deque()
        self._received = bytearray()

    def ask(self, api_key: int, version: int, body: bytes, *, is_flexible: bool) -> bytes:
        """Register a request; returns the bytes to send."""
        self._correlation_id = number = self._correlation_id % _CORRELATION_ID_MAX + 1
        self._asked.append(_Asked(api_key, number, is_flexible))
        return request_frame(
            self._client_id, api_key, version, number, body, is_flexible=is_flexible
        )

    def is_waiting(self) -> bool:
        """Whether any request is unanswered."""
        return bool(self._asked)

    def receive(self, data: bytes) -> None:
        """Add received bytes."""
        self._received += data

    def missing_bytes(self) -> int:
        """A lower bound of the bytes missing for the next complete response. Raises
        AnswerInvalid."""
        received = self._received
        if len(received) < SIZE_BYTES:
            return SIZE_BYTES - len(received)
        size = answer_size(received, self._answer_bytes_max)
        return max(SIZE_BYTES + size - len(received), 0)

    def next_frame(self) -> bytes | None:
        """The next complete response without its size, to any request. Raises AnswerInvalid."""
        if self.missing_bytes():
            return None
        end = SIZE_BYTES + answer_size(self._received, self._answer_bytes_max)
        frame = bytes(self._received[SIZE_BYTES:end])
        del self._received[:end]
        return frame

    def next_answer(self) -> bytes | None:
        """The body of the response to the oldest unanswered request, if it is complete.

        Raises AnswerInvalid.
        """
        frame = self.next_frame()
        if frame is None:
            return None
        if not self._asked:
            raise AnswerInvalid("a response without a request")
        api_key, correlation_id, is_flexible = self._asked.popleft()
        return answer_body(frame, api_key, correlation_id, is_flexible=is_flexible)
