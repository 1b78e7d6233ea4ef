"""Ends the ZooKeeper session of a broker whose process has died: a small process beside the broker.

Invariants: it acts on one fact, which its own kernel vouches for: its standard input has ended. The
broker alone holds the other end of that pipe and never closes it while it serves, so the kernel
has closed it, and does that only after the last thread of the process has ended. A broker that is
stopped (SIGSTOP), starved, swapped out or cut off from anybody keeps the pipe open; what other
machines see of it, such as refused or reset connections, plays no part. Ending the session is
harmless at any later time, too: its id is never used again.

Fewer imports than elsewhere: it is idle as long as its broker lives, and must act within
milliseconds afterwards.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.zookeeper import wire
from headrace.zookeeper.wire import BrokenAnswer, FrameReader

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Sequence

READ_BYTES: Final = 65_536
PAUSE_S: Final = 0.1
"""Between two rounds over all servers."""
ROUND_PARTS: Final = 3
"""A server has a third of the session timeout to answer, as in `link`."""
TRIES_FOR: Final = 2
"""Session timeouts: after one of them ZooKeeper ends the session by itself."""


class OpenSession(NamedTuple):
    """A session, and how to reach it."""

    session_id: int
    password: bytes
    timeout_ms: int
    servers: Sequence[tuple[str, int]]
    """The one that the broker was connected to comes first."""
    credential: str | None = None
    """For ZooKeeper's digest scheme."""

    def encode(self) -> bytes:
        """As one line."""
        fields = [self.session_id, self.password.hex(), *self[2:]]
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> OpenSession:
        """Raises ValueError, TypeError."""
        session_id, password, timeout_ms, servers, credential = json.loads(line)
        pairs = [(host, port) for host, port in servers]
        return cls(session_id, bytes.fromhex(password), timeout_ms, pairs, credential)


NO_SESSION: Final = b"null\n"
"""Instead of a session: there is none to end."""


def end_session(session: OpenSession) -> Generator[bytes, bytes, bool]:
    """The dialogue with one server: yields what to send, takes the answer to it (a frame without
    its length), and returns whether the session has ended. Raises BrokenAnswer.

    The session is moved to this connection, then closed, which deletes its ephemeral nodes.
    """
    asked = wire.connect(0, session.timeout_ms, session.session_id, session.password)
    opened = FrameReader((yield asked)).opened()
    if opened.timeout_ms <= 0:
        return True  # it has ended before
    if opened.session_id != session.session_id:
        return False
    if session.credential is not None:
        yield wire.authenticate(session.credential)
    _xid, _zxid, code = FrameReader((yield wire.close_session().frame(1))).take(wire.HEADER)
    return code in {0, wire.SESSION_EXPIRED}


def main() -> None:
    """Wait for the broker's end, then end its last session."""
    context_of = _context_of(json.loads(_read_line()))
    session: OpenSession | None = None
    while line := _read_line():
        session = None if line == NO_SESSION else OpenSession.decode(line)
    if session is None:
        return
    ends_s = time.monotonic() + session.timeout_ms * TRIES_FOR / 1000
    while time.monotonic() < ends_s:
        for host, port in session.servers:
            try:
                if _ask(host, port, session, context_of):
                    return
            except (OSError, BrokenAnswer):
                continue  # another server, or the same one later
        time.sleep(PAUSE_S)


_received = b""


def _read_line() -> bytes:
    """The next line of standard input; b"" at its end."""
    global _received  # noqa: PLW0603 - a process of its own
    while b"\n" not in _received:
        data = os.read(0, READ_BYTES)
        if not data:
            return b""
        _received += data
    line, _, _received = _received.partition(b"\n")
    return line + b"\n"


def _context_of(tls: Sequence[str | None] | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    from pathlib import Path

    from headrace.runtime.tls import TlsFiles, client_context

    authority, certificate, key = (None if part is None else Path(part) for part in tls)
    assert authority is not None, "TLS needs an authority"
    return client_context(TlsFiles(authority, certificate, key))


def _ask(host: str, port: int, session: OpenSession, tls: ssl.SSLContext | None) -> bool:
    """Hold the dialogue with one server. Raises OSError, BrokenAnswer."""
    timeout_s = session.timeout_ms / 1000 / ROUND_PARTS
    with socket.create_connection((host, port), timeout_s) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            return _converse(end_session(session), connection)
        with tls.wrap_socket(connection, server_hostname=host) as secured:
            return _converse(end_session(session), secured)


def _converse(dialogue: Generator[bytes, bytes, bool], connection: socket.socket) -> bool:
    def take(size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = connection.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the server closed the connection")
            data += more
        return data

    frame = next(dialogue)
    while True:
        connection.sendall(frame)
        try:
            frame = dialogue.send(take(*wire.INT.unpack(take(wire.INT.size))))
        except StopIteration as end:
            return bool(end.value)


if __name__ == "__main__":
    main()
