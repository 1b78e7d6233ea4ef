"""What kazoo 2.11 does not know of ZooKeeper's protocol, and what it knows but does not tell.

Invariants: the only module that touches kazoo's inside (`_call`, `_connection`); bytes and
threads, no asyncio. Everything here runs in kazoo's threads unless it says otherwise. The server
must be ZooKeeper 3.6 (2020) or newer: persistent recursive watches and reads of many nodes at once
came with it (operations 106 and 22; formats: zookeeper.jute, MultiOperationRecord).
"""

from __future__ import annotations

import logging
import math
import select
import socket
import ssl
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import DELETED_EVENT, PING_XID
from kazoo.protocol.serialization import Connect, Watch
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.runtime.clock import Clock

    Callback = Callable[..., None]

_INT = struct.Struct("!i")
_MULTI_HEADER = struct.Struct("!iBi")
_STAT = struct.Struct("!qqqqiiiqiiq")  # czxid mzxid ctime mtime version ... ephemeralOwner at 7
_GET_DATA, _GET_CHILDREN = 4, 8
_PERSISTENT_RECURSIVE = 1
_CONTAINER_FLAG = 4

RECONNECT_DELAY_MAX_S = 1.0


class NodeState(NamedTuple):
    """A node as it was read."""

    value: bytes
    version: int
    owner: int
    """The session to which an ephemeral node belongs; 0 for one that stays."""
    changed_zxid: int
    """The transaction that last set the value: no two changes have the same."""


def _text(text: str) -> bytes:
    data = text.encode()
    return _INT.pack(len(data)) + data


@dataclass(frozen=True)
class AddWatch:
    """Tell of every change at and below `path`, until the connection breaks."""

    path: str
    type: ClassVar[int] = 106

    def serialize(self) -> bytes:
        """The request's bytes."""
        return _text(self.path) + _INT.pack(_PERSISTENT_RECURSIVE)

    def deserialize(self, _data: bytes, _offset: int) -> bool:
        """The answer's value."""
        return True


class _ReadMany:
    """Read of many nodes in one request, one after another: not as of one moment."""

    type: ClassVar[int] = 22
    kind: ClassVar[int]
    paths: Sequence[str]

    def serialize(self) -> bytes:
        """The request's bytes."""
        header = _MULTI_HEADER.pack(self.kind, 0, -1)
        parts = [header + _text(path) + b"\0" for path in self.paths]
        return b"".join(parts) + _MULTI_HEADER.pack(-1, 1, -1)

    def deserialize(self, data: bytes, offset: int) -> list[Any]:
        """For each path what was read, or the error code."""
        found: list[Any] = []
        while True:
            kind, done, _ = _MULTI_HEADER.unpack_from(data, offset)
            offset += _MULTI_HEADER.size
            if done:
                return found
            if kind == -1:
                found.append(_INT.unpack_from(data, offset)[0])
                offset += _INT.size
            else:
                read, offset = self.read(data, offset)
                found.append(read)

    def read(self, data: bytes, offset: int) -> tuple[Any, int]:
        """One answer, and where the next one begins."""
        raise NotImplementedError


@dataclass(frozen=True)
class ReadNodes(_ReadMany):
    """Values and versions of many nodes."""

    paths: Sequence[str]
    kind: ClassVar[int] = _GET_DATA

    def read(self, data: bytes, offset: int) -> tuple[NodeState, int]:
        """See above."""
        (size,) = _INT.unpack_from(data, offset)
        start = offset + _INT.size
        end = start + max(size, 0)
        stat = _STAT.unpack_from(data, end)
        return NodeState(data[start:end], stat[4], stat[7], stat[1]), end + _STAT.size


@dataclass(frozen=True)
class ReadChildren(_ReadMany):
    """The names below many nodes."""

    paths: Sequence[str]
    kind: ClassVar[int] = _GET_CHILDREN

    def read(self, data: bytes, offset: int) -> tuple[list[str], int]:
        """See above."""
        (count,) = _INT.unpack_from(data, offset)
        offset += _INT.size
        names = []
        for _ in range(count):
            (size,) = _INT.unpack_from(data, offset)
            offset += _INT.size
            names.append(data[offset : offset + size].decode())
            offset += size
        return names, offset


@dataclass(frozen=True)
class CreateContainer:
    """Make a node that ZooKeeper removes, in its own time, after its last child is gone."""

    path: str
    acl: Sequence[Any]
    type: ClassVar[int] = 19

    def serialize(self) -> bytes:
        """The request's bytes."""
        parts = [_text(self.path), _INT.pack(0), _INT.pack(len(self.acl))]
        parts += [
            _INT.pack(acl.perms) + _text(acl.id.scheme) + _text(acl.id.id) for acl in self.acl
        ]
        return b"".join(parts) + _INT.pack(_CONTAINER_FLAG)

    def deserialize(self, _data: bytes, _offset: int) -> bool:
        """The answer's value."""
        return True


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads with less to do per request: half of the CPU time is saved."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(
        self, address: tuple[str, int], hostname: str, timeout: float, **_of_kazoos_own_tls: object
    ) -> socket.socket:
        """Connect to `address`; with TLS, to the server whose certificate names `hostname`.

        kazoo's own TLS believes every authority of the machine, and checks no name.
        """
        made = socket.create_connection(address, timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return made
        try:
            return self._tls.wrap_socket(made, server_hostname=hostname)
        except BaseException:
            made.close()
            raise

    @property
    def running(self) -> bool:
        """False to those who complete a request: they call back at once, not by another thread.

        What is called back here puts something into a queue, and nothing else.
        """
        return False

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: object, timeout_s: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait for sockets by `poll`; kazoo would make and close an epoll for each wait.

        Of several answers in one record of TLS, all but the first are in the socket's own memory,
        where no poll sees them.
        """
        held = [one for one in readers if isinstance(one, ssl.SSLSocket) and one.pending()]
        if held:
            return held, [], []
        poll = select.poll()
        for reader in readers:
            poll.register(reader, select.POLLIN)
        for writer in writers:
            poll.register(writer, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(math.ceil(timeout_s * 1000))}
        return (
            [reader for reader in readers if reader.fileno() in ready],
            [writer for writer in writers if writer.fileno() in ready],
            [],
        )


class _LastWords(logging.Handler):
    """Keeps what kazoo last complained of: the cause that our own errors name."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self.text = record.getMessage()


class KazooParts:
    """A kazoo client and the few wires into its inside."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        credential: str | None,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`credential` is `user:password` for digest authentication, None for none. `tls`: how to
        speak to the servers' secure port; None: in the clear."""
        self._clock = clock
        self._last_words = _LastWords()
        logger = logging.Logger("kazoo")  # noqa: LOG001 - this client's alone, the bridge logs
        logger.setLevel(logging.WARNING)
        logger.addHandler(self._last_words)
        self.acl = CREATOR_ALL_ACL if credential is not None else OPEN_ACL_UNSAFE
        self.client = KazooClient(
            hosts,
            timeout=session_timeout_ms / 1000,
            handler=_Handler(tls),
            auth_data=[("digest", credential)] if credential is not None else [],
            default_acl=self.acl,
            connection_retry=KazooRetry(
                max_tries=-1, delay=0.05, backoff=2, max_jitter=0.4, max_delay=RECONNECT_DELAY_MAX_S
            ),
            logger=logger,
        )
        self.connected_at_ns = 0
        """When the request was sent that last (re)opened the session: it lived after that."""
        self.session_timeout_ms = session_timeout_ms
        """What the server has agreed to."""
        connection = self.client._connection  # noqa: SLF001 - see the invariants
        self._invoke = connection._invoke  # noqa: SLF001
        connection._invoke = self._invoke_and_note  # noqa: SLF001
        self.on_pong: Callable[[int], None] = lambda _sent_ns: None
        """Called when a ping of kazoo's own was answered, with the time at which it was sent."""
        self._pings: deque[int] = deque()  # when those were sent that are not answered yet
        self._send_ping, self._read_header = connection._send_ping, connection._read_header  # noqa: SLF001
        connection._send_ping = self._note_ping  # noqa: SLF001
        connection._read_header = self._read_header_and_note  # noqa: SLF001

    @property
    def last_words(self) -> str:
        """What kazoo last complained of."""
        return self._last_words.text

    def on_event(self, callback: Callable[[str, bool], None]) -> None:
        """Call `callback(path, is_gone)` for each event of a watch, before kazoo does its part."""
        connection = self.client._connection  # noqa: SLF001
        original = connection._read_watch_event  # noqa: SLF001

        def read_watch_event(buffer: bytes, offset: int) -> None:
            event, _ = Watch.deserialize(buffer, offset)
            callback(event.path, event.type == DELETED_EVENT)
            original(buffer, offset)

        connection._read_watch_event = read_watch_event  # noqa: SLF001

    def send(self, request: object) -> Any:
        """Send a request of this module, from any thread; kazoo's AsyncResult."""
        result = self.client.handler.async_result()
        self.client._call(request, result)  # noqa: SLF001
        return result

    def drop_connection(self) -> None:
        """Break the connection, from any thread; kazoo then opens another one.

        kazoo notices a server that is silent only while nothing is asked of it.
        """
        broken = self.client._connection._socket  # noqa: SLF001
        if broken is not None:
            with suppress(OSError):
                broken.shutdown(socket.SHUT_RDWR)

    @property
    def session_id(self) -> int:
        """The session's id; 0 when there is none."""
        return self.client._session_id or 0  # noqa: SLF001

    def _note_ping(self, timeout_s: float) -> None:
        self._pings.append(self._clock.now_ns())
        self._send_ping(timeout_s)

    def _read_header_and_note(self, timeout_s: float) -> Any:
        read = self._read_header(timeout_s)
        if read[0].xid == PING_XID and self._pings:
            self.on_pong(self._pings.popleft())  # the server answers in order
        return read

    def _invoke_and_note(self, timeout: float, request: object, xid: int | None = None) -> Any:
        sent_ns = self._clock.now_ns()
        if isinstance(request, Connect):
            self._pings.clear()
        answer = self._invoke(timeout, request, xid)
        if isinstance(request, Connect) and answer[0].time_out > 0:
            self.session_timeout_ms = answer[0].time_out
            self.connected_at_ns = sent_ns
        return answer
