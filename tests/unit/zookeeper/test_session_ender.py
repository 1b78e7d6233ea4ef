"""The process beside a broker ends its session when that has died, and only then."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.waiting import wait_until

from headrace.zookeeper import wire
from headrace.zookeeper.session_ender import OpenSession, end_session
from headrace.zookeeper.wire import BrokenAnswer, FrameReader

if TYPE_CHECKING:
    from collections.abc import Iterator

SESSION, PASSWORD = 0x1_0000_0001, bytes(range(16))
BROKER = """
import asyncio, sys
from headrace.zookeeper.session_ender import OpenSession
from headrace.zookeeper.session_ender_process import SessionEnder

session, port, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

async def main():
    ender = SessionEnder(None)
    servers = [("127.0.0.1", 1), ("127.0.0.1", port)]  # the first one refuses
    ender.note(OpenSession(7, bytes(16), 3_000, servers))
    ender.note(OpenSession(session, bytes(range(16)), 3_000, servers, "u:p"))
    if how == "stopped":
        ender.note(None)
        await ender.close()
    print(ender.pid, flush=True)
    if how == "serves":
        await asyncio.sleep(60)

asyncio.run(main())
"""


class Server:
    """A ZooKeeper server that takes one connection at a time."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    def is_asked(self, within_s: float) -> bool:
        return bool(select.select([self.socket], [], [], within_s)[0])

    def accept(self) -> socket.socket:
        assert self.is_asked(30), "nobody ends the session"
        return self.socket.accept()[0]


@contextmanager
def broker(server: Server, how: str = "serves") -> Iterator[tuple[subprocess.Popen, int]]:
    """A process, leader of a group, with the process beside it, whose id comes second."""
    command = [sys.executable, "-c", BROKER, str(SESSION), str(server.port), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


def frame_of(connection: socket.socket) -> bytes:
    (size,) = wire.INT.unpack(connection.recv(4, socket.MSG_WAITALL))
    return connection.recv(size, socket.MSG_WAITALL)


def opened(session: int = SESSION, timeout_ms: int = 3_000) -> bytes:
    head = wire.INT.pack(0) + wire.INT.pack(timeout_ms) + wire.LONG.pack(session)
    return head + wire.data(PASSWORD) + b"\0"


def answer(connection: socket.socket, body: bytes) -> None:
    connection.sendall(wire.INT.pack(len(body)) + body)


def see_it_end(server: Server) -> None:
    """The session is resumed, authenticated and closed."""
    with closing(server.accept()) as connection:
        asked = FrameReader(frame_of(connection))
        _version, _zxid, _timeout_ms, session = asked.take(wire._CONNECT)
        assert (session, asked.value()) == (SESSION, PASSWORD)
        answer(connection, opened())
        assert frame_of(connection)[:8] == wire.INT.pack(wire.AUTH_XID) + wire.INT.pack(wire.AUTH)
        answer(connection, wire.HEADER.pack(wire.AUTH_XID, 0, 0))
        xid, kind = wire._REQUEST.unpack(frame_of(connection))
        assert kind == wire.CLOSE
        answer(connection, wire.HEADER.pack(xid, 9, 0))


def has_ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with made.socket:
        yield made


@pytest.mark.parametrize("is_group", [False, True])
def test_the_session_of_a_killed_process_is_ended(server, is_group):
    with broker(server) as (process, pid):
        (os.killpg if is_group else os.kill)(process.pid, signal.SIGKILL)
        see_it_end(server)
        wait_until(lambda: has_ended(pid))


def test_a_stopped_process_keeps_its_session_and_signals_to_the_one_beside_it_change_nothing(
    server,
):
    with broker(server) as (process, pid):
        process.send_signal(signal.SIGSTOP)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        assert not server.is_asked(1.0)
        process.send_signal(signal.SIGCONT)
        assert not server.is_asked(0.2)
        process.kill()
        see_it_end(server)
        wait_until(lambda: has_ended(pid))


def test_a_process_that_has_ended_its_session_itself_leaves_nothing_to_do(server):
    with broker(server, "stopped") as (process, pid):
        assert process.wait(30) == 0
        wait_until(lambda: has_ended(pid))
        assert not server.is_asked(0)


def test_a_server_that_breaks_off_or_answers_nonsense_is_asked_again(server):
    with broker(server) as (process, pid):
        process.kill()
        server.accept().close()
        with closing(server.accept()) as connection:
            frame_of(connection)
            answer(connection, b"?")
        see_it_end(server)
        wait_until(lambda: has_ended(pid))


def test_it_gives_up_when_the_session_has_expired_long_ago(server):
    with broker(server) as (process, pid):
        port = server.port
        server.socket.close()
        process.kill()
        wait_until(lambda: has_ended(pid))  # within two session timeouts, though nothing answers
        assert port


def talk(*answers: bytes) -> bool:
    dialogue = end_session(OpenSession(SESSION, PASSWORD, 3_000, [("a", 1)]))
    next(dialogue)
    try:
        for one in answers:
            dialogue.send(one)
    except StopIteration as end:
        return bool(end.value)
    raise AssertionError("it wants more answers")


def test_only_the_own_session_is_closed_and_an_expired_one_needs_nothing():
    closed = wire.HEADER.pack(1, 9, 0)
    assert talk(opened(), closed)
    assert talk(opened(), wire.HEADER.pack(1, 9, wire.SESSION_EXPIRED))
    assert not talk(opened(), wire.HEADER.pack(1, 9, wire.SESSION_MOVED))
    assert talk(opened(0, 0))
    assert not talk(opened(SESSION + 1))
    with pytest.raises(BrokenAnswer):
        talk(b"short")


def test_a_session_is_passed_on_as_it_is():
    session = OpenSession(SESSION, PASSWORD, 3_000, [("a", 1), ("::1", 2)], "user:p\nw")
    assert OpenSession.decode(session.encode()) == session
    assert session.encode().count(b"\n") == 1
