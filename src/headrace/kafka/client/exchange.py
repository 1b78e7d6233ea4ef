"""What one connection of a client asks and is answered: frames, correlation ids, bounded lengths.

Invariants: knows sizes and headers, not bodies, sockets or time. A broker answers in the order of
the requests, so each answer must carry the id of the oldest request that has none. After
AnswerInvalid, what the connection delivers has no meaning any more.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import Final, NamedTuple

# do not change: protocol.
API_VERSIONS: Final = 18
_SIZE: Final = Struct(">i")
SIZE_BYTES: Final = _SIZE.size
_REQUEST_HEADER: Final = Struct(">hhih")
"""API, version, correlation id, length of the client's name, which follows."""
_CORRELATION_ID: Final = Struct(">i")
_CORRELATION_ID_MAX: Final = 2**31 - 1
_NO_TAGS: Final = b"\x00"

ANSWER_BYTES_MAX: Final = 1 << 30
"""No client asks for so much; a size beyond it is that of another protocol, or a lie."""


class AnswerInvalid(ConnectionError):
    """What arrived does not answer what was asked: the connection must be closed."""


def framed(data: bytes) -> bytes:
    """With its size in front."""
    return _SIZE.pack(len(data)) + data


def request_header(
    client_id: bytes, api_key: int, version: int, correlation_id: int, *, is_flexible: bool
) -> bytes:
    """What comes before a request's body. Flexible headers end in tagged fields: none."""
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
    """A request as it goes over the wire."""
    header = request_header(client_id, api_key, version, correlation_id, is_flexible=is_flexible)
    return framed(header + body)


def answer_size(head: bytes | bytearray | memoryview, bytes_max: int = ANSWER_BYTES_MAX) -> int:
    """The size after `head`'s first 4 bytes, which say it. Raises AnswerInvalid."""
    size: int
    (size,) = _SIZE.unpack_from(head)
    if not _CORRELATION_ID.size <= size <= bytes_max:
        raise AnswerInvalid(f"an answer of {size} bytes")
    return size


def answer_body(frame: bytes, api_key: int, correlation_id: int, *, is_flexible: bool) -> bytes:
    """The body in an answer without its size. Raises AnswerInvalid."""
    (found,) = _CORRELATION_ID.unpack_from(frame)
    if found != correlation_id:
        raise AnswerInvalid(f"answer {found} to request {correlation_id}")
    at = _CORRELATION_ID.size
    # Clients read ApiVersions before they know what the broker speaks: its header has no tags.
    if is_flexible and api_key != API_VERSIONS:
        if frame[at : at + 1] != _NO_TAGS:
            raise AnswerInvalid("the answer's header has tagged fields, or none where they belong")
        at += 1
    return frame[at:]


class _Asked(NamedTuple):
    api_key: int
    correlation_id: int
    is_flexible: bool


class Exchange:
    """The requests of one connection, and the answers as their bytes arrive."""

    __slots__ = ("_answer_bytes_max", "_asked", "_client_id", "_correlation_id", "_received")

    def __init__(self, client_id: bytes, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._client_id = client_id
        self._answer_bytes_max = answer_bytes_max
        self._correlation_id = 0
        self._asked: deque[_Asked] = deque()
        self._received = bytearray()

    def ask(self, api_key: int, version: int, body: bytes, *, is_flexible: bool) -> bytes:
        """The bytes to send for a request."""
        self._correlation_id = number = self._correlation_id % _CORRELATION_ID_MAX + 1
        self._asked.append(_Asked(api_key, number, is_flexible))
        return request_frame(
            self._client_id, api_key, version, number, body, is_flexible=is_flexible
        )

    def is_waiting(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._asked)

    def receive(self, data: bytes) -> None:
        """Bytes have arrived."""
        self._received += data

    def missing_bytes(self) -> int:
        """How many bytes are needed for sure until an answer is whole. Raises AnswerInvalid."""
        received = self._received
        if len(received) < SIZE_BYTES:
            return SIZE_BYTES - len(received)
        size = answer_size(received, self._answer_bytes_max)
        return max(SIZE_BYTES + size - len(received), 0)

    def next_frame(self) -> bytes | None:
        """The next whole answer without its size, whatever it answers. Raises AnswerInvalid."""
        if self.missing_bytes():
            return None
        end = SIZE_BYTES + answer_size(self._received, self._answer_bytes_max)
        frame = bytes(self._received[SIZE_BYTES:end])
        del self._received[:end]
        return frame

    def next_answer(self) -> bytes | None:
        """The body of the answer to the oldest request without one, if it is whole.

        Raises AnswerInvalid.
        """
        frame = self.next_frame()
        if frame is None:
            return None
        if not self._asked:
            raise AnswerInvalid("an answer to no request")
        api_key, correlation_id, is_flexible = self._asked.popleft()
        return answer_body(frame, api_key, correlation_id, is_flexible=is_flexible)
