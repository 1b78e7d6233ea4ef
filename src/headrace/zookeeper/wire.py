"""ZooKeeper's protocol: the encoding of requests, answers and events.

Invariants: pure; no connections, no ordering. Everything received is validated: lengths against
the bytes present, text as UTF-8. Formats: zookeeper.jute and MultiOperationRecord of ZooKeeper 3.6
(2020), which introduced persistent recursive watches and multi-reads; older servers reject both.

A frame is a length (int32) and that many bytes. A request starts with an id and an operation, an
answer with the id, the server's last transaction (zxid) and an error code, 0 for none. Numbers are
big-endian; text and values are a length, -1 for null, and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

INT: Final = Struct("!i")
LONG: Final = Struct("!q")
HEADER: Final = Struct("!iqi")
"""Header of an answer: id, zxid, error code."""
_REQUEST: Final = Struct("!ii")
_FLAG: Final = Struct("!?")
_MULTI: Final = Struct("!iBi")
_CONNECT: Final = Struct("!iqiq")
_STAT: Final = Struct("!qqqqiiiqiiq")
END_OF_MULTI: Final = _MULTI.pack(-1, 1, -1)

FRAME_BYTES_MAX: Final = 64 << 20
"""Size limit of an answer. A list of child names has no limit of its own; a corrupt length must
not exhaust memory."""

EVENT_XID, AUTH_XID, BEAT_XID = -1, -4, -16
CREATED, DELETED, CHANGED, CHILDREN_CHANGED = 1, 2, 3, 4
"""Kinds of events."""

EPHEMERAL, SEQUENTIAL, CONTAINER = 1, 2, 4
"""Flags for creating a node."""
_ALL_RIGHTS: Final = 31
_PERSISTENT_RECURSIVE: Final = 1

CREATE, DELETE, EXISTS, GET, SET = 1, 2, 3, 4, 5
CHILDREN, SYNC, MULTI, CREATE_CONTAINER, READ_MANY = 8, 9, 14, 19, 22
AUTH, ADD_WATCH, CLOSE = 100, 106, -11
"""Operations."""

NO_NODE, NO_AUTH, BAD_VERSION, EPHEMERAL_PARENT = -101, -102, -103, -108
NODE_EXISTS, NOT_EMPTY, SESSION_EXPIRED, AUTH_FAILED = -110, -111, -112, -115
SESSION_MOVED, CONNECTION_LOSS = -118, -4
"""Error codes that are handled individually."""
ROLLED_BACK: Final = frozenset({0, -2})
"""Codes of the parts of a multi that were rolled back: before and after the part that failed."""
ERROR_NAMES: Final = {
    -1: "system error",
    -2: "runtime inconsistency",
    -3: "data inconsistency",
    CONNECTION_LOSS: "connection lost",
    -5: "marshalling error",
    -6: "unimplemented: requires ZooKeeper 3.6 or newer",
    -7: "operation timed out",
    -8: "bad arguments",
    NO_NODE: "no node",
    NO_AUTH: "not authenticated",
    BAD_VERSION: "bad version",
    EPHEMERAL_PARENT: "no children for ephemerals",
    NODE_EXISTS: "node exists",
    NOT_EMPTY: "not empty",
    SESSION_EXPIRED: "session expired",
    -113: "invalid callback",
    -114: "invalid ACL",
    AUTH_FAILED: "authentication failed",
    SESSION_MOVED: "session moved to another server",
    -119: "this server is read-only",
    -125: "quota exceeded",
    -127: "throttled: too many requests",
}


class BrokenAnswer(Exception):
    """A server sent a malformed answer: the connection must be closed."""


class Refused(Exception):
    """A server answered a request with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(ERROR_NAMES.get(code, f"error {code}"))
        self.code = code


class NodeState(NamedTuple):
    """The state of a node when it was read."""

    value: bytes
    version: int
    owner: int
    """The session that owns an ephemeral node; 0 for a persistent one."""
    changed_zxid: int
    """The transaction that last set the value: unique to that change."""


class Stat(NamedTuple):
    """A node's metadata."""

    created_zxid: int
    changed_zxid: int
    created_ms: int
    changed_ms: int
    version: int
    children_version: int
    acl_version: int
    owner: int
    value_bytes: int
    child_count: int
    children_zxid: int


class ConnectResponse(NamedTuple):
    """A server's answer to the first frame of a connection."""

    timeout_ms: int
    """0 or less: the requested session has expired."""
    session_id: int
    password: bytes


class WatchEvent(NamedTuple):
    """A watch event."""

    kind: int
    path: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request and the parser of its answer."""

    kind: int
    body: bytes
    read: Callable[[FrameReader], Any]

    def frame(self, xid: int) -> bytes:
        """The request's frame with an id."""
        size = _REQUEST.size + len(self.body)
        return b"".join((INT.pack(size), _REQUEST.pack(xid, self.kind), self.body))


class FrameReader:
    """Parses one frame from start to end. Everything raises BrokenAnswer if it ends too early."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, form: Struct) -> tuple[Any, ...]:
        """The next fields."""
        start, self._at = self._at, self._at + form.size
        if self._at > len(self._data):
            raise BrokenAnswer("an answer from ZooKeeper ends too early")
        return form.unpack_from(self._data, start)

    def number(self) -> int:
        """An int32."""
        return int(self.take(INT)[0])

    def flag(self) -> bool:
        """One byte."""
        return bool(self.take(_FLAG)[0])

    def multi(self) -> Iterator[int]:
        """The operations of a multi, each to be parsed before the next one; -1 for an error."""
        while True:
            kind, is_end, _ = self.take(_MULTI)
            if is_end:
                return
            yield kind

    def value(self) -> bytes:
        """Bytes; null is b""."""
        size = max(self.number(), 0)
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise BrokenAnswer(f"an answer from ZooKeeper lacks {size} bytes that it announces")
        return self._data[start : self._at]

    def text(self) -> str:
        """A UTF-8 string."""
        try:
            return self.value().decode()
        except UnicodeDecodeError as error:
            raise BrokenAnswer(f"a name in ZooKeeper is not UTF-8: {error}") from error

    def names(self) -> list[str]:
        """A list of strings."""
        return [self.text() for _ in range(self.number())]

    def stat(self) -> Stat:
        """A node's metadata."""
        return Stat(*self.take(_STAT))

    def state(self) -> NodeState:
        """A value and the relevant metadata."""
        value = self.value()
        _, changed_zxid, _, _, version, _, _, owner, _, _, _ = self.take(_STAT)
        return NodeState(value, version, owner, changed_zxid)

    def event(self) -> WatchEvent:
        """A watch event."""
        kind, _state = self.number(), self.number()
        return WatchEvent(kind, self.text())

    def opened(self) -> ConnectResponse:
        """The answer to `connect`. Newer servers append a byte, which is ignored."""
        _version, timeout_ms, session_id = self.take(Struct("!iiq"))
        return ConnectResponse(timeout_ms, session_id, self.value())


def text(value: str) -> bytes:
    """The encoding of a string."""
    data = value.encode()
    return INT.pack(len(data)) + data


def data(value: bytes) -> bytes:
    """The encoding of a value."""
    return INT.pack(len(value)) + value


def connect(zxid: int, timeout_ms: int, session_id: int, password: bytes) -> bytes:
    """The first frame of a connection: a session (0: a new one), the last transaction seen.

    A server that has not reached this transaction closes the connection.
    """
    body = _CONNECT.pack(0, zxid, timeout_ms, session_id) + data(password or bytes(16)) + b"\0"
    return INT.pack(len(body)) + body


def acl(is_closed: bool) -> bytes:
    """All rights on a node: for its creator only, or for everyone."""
    scheme, who = ("auth", "") if is_closed else ("world", "anyone")
    return INT.pack(1) + INT.pack(_ALL_RIGHTS) + text(scheme) + text(who)


def _nothing(_answer: FrameReader) -> None:
    """The answer has no relevant body."""


def beat() -> bytes:
    """A heartbeat that passes the leader; it has a reserved id, and answers arrive in order."""
    return sync("/").frame(BEAT_XID)


def authenticate(credential: str) -> bytes:
    """Authenticate (`user:password`) with ZooKeeper's digest scheme."""
    body = INT.pack(0) + text("digest") + text(credential)
    return Request(AUTH, body, _nothing).frame(AUTH_XID)


def close_session() -> Request:
    """Close the session and delete its ephemeral nodes."""
    return Request(CLOSE, b"", _nothing)


def get(path: str, *, is_watched: bool = False) -> Request:
    """A node's value and state."""
    return Request(GET, text(path) + bytes([is_watched]), FrameReader.state)


def exists(path: str, *, is_watched: bool = False) -> Request:
    """A node's metadata."""
    return Request(EXISTS, text(path) + bytes([is_watched]), FrameReader.stat)


def children(path: str, *, is_watched: bool = False) -> Request:
    """The names of a node's children."""
    return Request(CHILDREN, text(path) + bytes([is_watched]), FrameReader.names)


def _new(path: str, value: bytes, rights: bytes, flags: int) -> bytes:
    return b"".join((text(path), data(value), rights, INT.pack(flags)))


def create(path: str, value: bytes, rights: bytes, flags: int = 0) -> Request:
    """Create a node; the answer is its path."""
    kind = CREATE_CONTAINER if flags & CONTAINER else CREATE
    return Request(kind, _new(path, value, rights, flags), FrameReader.text)


def put(path: str, value: bytes, version: int) -> Request:
    """Set a node's value; the answer is its metadata."""
    return Request(SET, b"".join((text(path), data(value), INT.pack(version))), FrameReader.stat)


def delete(path: str, version: int) -> Request:
    """Delete a node."""
    return Request(DELETE, text(path) + INT.pack(version), _nothing)


def sync(path: str) -> Request:
    """Make the server catch up with its leader."""
    return Request(SYNC, text(path), _nothing)


def add_watch(path: str) -> Request:
    """Send events for every change at and below `path`, until the connection breaks."""
    return Request(ADD_WATCH, text(path) + INT.pack(_PERSISTENT_RECURSIVE), _nothing)


def read_many(kind: int, paths: Sequence[str]) -> Request:
    """Read many nodes (`GET`) or their children (`CHILDREN`), one after another.

    Not a snapshot. For each path the answer holds the result or the error code.
    """
    parts = [part(kind) + text(path) + b"\0" for path in paths]
    read = {GET: FrameReader.state, CHILDREN: FrameReader.names}[kind]
    return Request(
        READ_MANY, b"".join((*parts, END_OF_MULTI)), lambda answer: _results(answer, {kind: read})
    )


def multi(parts: Sequence[Request]) -> Request:
    """Apply all these changes or none; the answer holds a result or an error code for each."""
    body = b"".join(part(one.kind) + one.body for one in parts)
    read = {CREATE: FrameReader.text, SET: FrameReader.stat, DELETE: _nothing}
    return Request(MULTI, body + END_OF_MULTI, lambda answer: _results(answer, read))


def part(kind: int) -> bytes:
    """The header of each part of a multi; -1 for an error."""
    return _MULTI.pack(kind, 0, -1)


def stat(figures: Stat) -> bytes:
    """The encoding of a node's metadata, as a server sends it."""
    return _STAT.pack(*figures)


def _results(answer: FrameReader, readers: dict[int, Callable[[FrameReader], Any]]) -> list[Any]:
    found: list[Any] = []
    for kind in answer.multi():
        if kind == -1:
            found.append(Refused(answer.number()))
        elif kind in readers:
            found.append(readers[kind](answer))
        else:
            raise BrokenAnswer(f"ZooKeeper answered with operation {kind}, which was not requested")
    return found
