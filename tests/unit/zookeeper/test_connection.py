"""One connection to ZooKeeper: answers in pieces, out of order, hostile; watches; held-up loops."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RequestInvalid
from headrace.runtime.clock import SystemClock
from headrace.runtime.session import SessionState
from headrace.zookeeper import wire
from headrace.zookeeper.connection import (
    ConnectionBroken,
    WatchRequest,
    ZooKeeperConnection,
)
from headrace.zookeeper.link import ZooKeeperLink, ZooKeeperOptions, parse_hosts
from headrace.zookeeper.wire import NodeState, Refused, Stat, WatchEvent

SESSION, TIMEOUT_MS = 7, 6_000
STAT = Stat(1, 22, 0, 0, 3, 5, 0, SESSION, 4, 1, 0)


class Told:
    """A listener that keeps its notifications."""

    def __init__(self) -> None:
        self.proofs: list[int] = []
        self.events: list[WatchEvent] = []
        self.ends: list[str] = []
        self.zxid = 0

    def confirm(self, at_ns: int) -> None:
        self.proofs.append(at_ns)

    def notify(self, event: WatchEvent) -> None:
        self.events.append(event)

    def note_zxid(self, zxid: int) -> None:
        self.zxid = zxid

    def note_end(self, connection: ZooKeeperConnection) -> None:
        self.ends.append(connection.cause)


class Sent(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self, end: socket.socket | None = None) -> None:
        super().__init__({} if end is None else {"socket": end})
        self.data = b""
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.data += data

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def get_write_buffer_size(self) -> int:
        return 0


def frame(body: bytes) -> bytes:
    return wire.INT.pack(len(body)) + body


def answer(xid: int, body: bytes = b"", code: int = 0, zxid: int = 9) -> bytes:
    return frame(wire.HEADER.pack(xid, zxid, code) + body)


def event(kind: int, path: str) -> bytes:
    return answer(wire.EVENT_XID, wire.INT.pack(kind) + wire.INT.pack(3) + wire.text(path), zxid=-1)


OPENED = frame(
    wire.INT.pack(0) + wire.INT.pack(TIMEOUT_MS) + wire.LONG.pack(SESSION) + wire.data(b"p" * 16)
)


def opened(end: socket.socket | None = None) -> tuple[ZooKeeperConnection, Told, Sent]:
    told, sent = Told(), Sent(end)
    connection = ZooKeeperConnection(SystemClock(), told)
    connection.connection_made(sent)
    connection.data_received(OPENED)
    return connection, told, sent


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
def test_answers_are_the_same_in_whatever_pieces_they_come(cuts):
    async def run() -> None:
        connection, told, _ = opened()
        found: list[object] = []
        shot: list[str] = []
        watch = WatchRequest("node", "/a", lambda: shot.append("/a"))
        for request in (wire.get("/a"), wire.children("/"), wire.delete("/gone", 3)):
            watched = watch if request.kind == wire.GET else None
            connection.send(request, lambda result: found.append(result), watched)
        connection.beat()
        data = b"".join(
            (
                answer(1, wire.data(b"half") + wire.stat(STAT)),
                event(wire.CHANGED, "/a"),
                answer(2, wire.INT.pack(2) + wire.text("x") + wire.text("\u00fc")),
                answer(3, code=wire.BAD_VERSION, zxid=12),
                answer(wire.BEAT_XID, wire.text("/")),
            )
        )
        places = sorted({min(cut, len(data)) for cut in cuts})
        for start, end in zip([0, *places], [*places, len(data)], strict=True):
            connection.data_received(data[start:end])
        assert found[:2] == [NodeState(b"half", 3, SESSION, 22), ["x", "\u00fc"]]
        assert isinstance(found[2], Refused)
        assert found[2].code == wire.BAD_VERSION
        assert (shot, told.events, told.zxid) == (["/a"], [WatchEvent(wire.CHANGED, "/a")], 12)
        assert len(told.proofs) == 1
        assert not connection.is_over

    asyncio.run(run())


@given(data=st.binary(max_size=200), is_framed=st.booleans(), xid=st.sampled_from([-4, -2, -1, 1]))
def test_hostile_bytes_end_the_connection_at_most_and_fail_every_waiting_call(data, is_framed, xid):
    async def run() -> None:
        connection, _, sent = opened()
        requests = [
            wire.get("/a"),
            wire.multi([wire.create("/a", b"", wire.acl(is_closed=False))]),
            wire.read_many(wire.CHILDREN, ["/a"]),
        ]
        done: list[object] = []
        for request in requests:
            connection.send(request, lambda result: done.append(result))
        connection.data_received(answer(xid, data) if is_framed else data)
        assert connection.is_over == sent.is_aborted
        connection.connection_lost(None)
        assert len(done) == len(requests)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (wire.INT.pack(-2), "length of -2"),
        (wire.INT.pack(wire.FRAME_BYTES_MAX + 1), "length of"),
        (answer(2), "out of order"),
        (answer(1, wire.INT.pack(1_000_000)), "lacks 1000000 bytes"),
        (frame(b"short"), "ends too early"),
    ],
)
async def test_malformed_answers_end_the_connection_with_the_cause(data, cause):
    connection, told, sent = opened()
    done: list[object] = []
    for _ in range(2):
        connection.send(wire.get("/a"), lambda result: done.append(result))
    connection.data_received(data)
    assert sent.is_aborted
    assert [cause in text for text in told.ends] == [True]
    assert [type(one) for one in done] == [ConnectionBroken] * 2


async def test_a_watch_is_called_once_and_where_the_connection_ends():
    connection, _, _ = opened()
    called: list[str] = []

    def ask(request: wire.Request, kind: str, name: str, *, is_for_absent: bool = False):
        watch = WatchRequest(kind, "/a", lambda: called.append(name), is_for_absent)
        connection.send(request, lambda _result: None, watch)

    ask(wire.get("/a"), "node", "absent")
    ask(wire.exists("/a"), "node", "comes", is_for_absent=True)
    connection.data_received(answer(1, code=wire.NO_NODE) + answer(2, code=wire.NO_NODE))
    connection.data_received(event(wire.CREATED, "/b") + event(wire.CREATED, "/a") * 2)
    assert called == ["comes"]
    ask(wire.children("/a"), "children", "gone")
    ask(wire.get("/a"), "node", "broke")
    connection.data_received(answer(3, wire.INT.pack(0)) + event(wire.CHILDREN_CHANGED, "/a"))
    connection.data_received(answer(4, wire.data(b"") + wire.stat(STAT)))
    assert called == ["comes", "gone"]
    connection.connection_lost(None)
    assert called == ["comes", "gone", "broke"]


def test_a_callback_that_fails_does_not_keep_the_others_from_being_called(caplog):
    async def run() -> None:
        connection, _, _ = opened()
        called: list[int] = []
        for call in (lambda: 1 / 0, lambda: called.append(1)):
            watch = WatchRequest("node", "/a", call)
            connection.send(wire.exists("/a"), lambda _result: None, watch)
        connection.data_received(answer(1, wire.stat(STAT)) + answer(2, wire.stat(STAT)))
        connection.data_received(event(wire.DELETED, "/a"))
        assert called == [1]
        assert not connection.is_over

    asyncio.run(run())
    assert "ZeroDivisionError" in caplog.text


async def test_only_what_has_passed_the_leader_proves_a_sign_of_life_and_the_one_before_it():
    """A server that is cut off from its leader answers reads and pings all the same, and reports
    its clients to the leader twice a tick: an answer to a beat proves the beat before."""

    connection, told, sent = opened()
    begun_ns = connection._beat_ns
    connection.send(wire.get("/a"), lambda _result: None)
    connection.beat()
    first_ns = connection._beat_ns
    connection.beat()
    second_ns = connection._beat_ns
    connection.beat()
    assert sent.data.endswith(wire.beat() * 3)
    connection.data_received(answer(1, wire.data(b"a") + wire.stat(STAT)))
    assert told.proofs == []
    beaten = answer(wire.BEAT_XID, wire.text("/"))
    connection.data_received(beaten * 2)
    assert told.proofs == [begun_ns, first_ns]
    assert begun_ns < first_ns < second_ns
    connection.data_received(answer(wire.BEAT_XID, code=wire.SESSION_EXPIRED))
    assert told.proofs == [begun_ns, first_ns]
    connection.data_received(beaten)  # nobody asked
    assert told.proofs == [begun_ns, first_ns]


def test_beats_of_a_held_up_loop_are_proven_only_by_what_has_come():
    """`beat_from_thread`, called from the heartbeat thread, peeks and reads nothing."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reply = answer(wire.BEAT_XID, wire.text("/"))

    async def run() -> None:
        connection, told, _ = opened(ours)
        assert connection.beat_from_thread() is None  # a first beat; nothing has come
        assert theirs.recv(100) == wire.beat()
        theirs.sendall(event(wire.CHANGED, "/a") + reply[:5])
        assert connection.beat_from_thread() is None, "half an answer proves nothing"
        theirs.sendall(reply[5:])
        first_ns, second_ns = list(connection._beats)
        assert connection.beat_from_thread() == first_ns
        assert connection.beat_from_thread() == first_ns, "seen again"
        theirs.sendall(reply * 9)
        assert (connection.beat_from_thread() or 0) > second_ns
        connection.data_received(ours.recv(1_000))  # the loop goes on, with what was peeked at
        assert told.proofs[:2] == [first_ns, second_ns]
        connection.data_received(b"\0")
        assert connection.beat_from_thread() is None, "in the middle of an answer"
        connection.end("over")
        assert connection.beat_from_thread() is None

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == before
    ours.close()
    theirs.close()


def test_names_of_servers():
    assert parse_hosts("a:1, b , [::1]:3,[::2]") == [
        ("a", 1),
        ("b", 2181),
        ("::1", 3),
        ("::2", 2181),
    ]
    for wrong in ("", "a:", "a:0", "a:70000", "a:x", ":1", "a:1,", "a:1/root"):
        with pytest.raises(RequestInvalid, match="not a list of ZooKeeper servers"):
            parse_hosts(wrong)


class Server(asyncio.Protocol):
    """Opens the session that a client requests."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(OPENED)


async def test_a_name_whose_server_has_moved_is_resolved_again(monkeypatch):
    """Two servers, of which a name means the one and later the other: the session goes on there."""
    asked: list[tuple[str, int]] = []

    class Located(Server):
        def __init__(self, place: str) -> None:
            self.place = place

        def data_received(self, data):
            request = wire.FrameReader(data[4:])
            request.number(), request.take(wire.LONG), request.number()
            (session,) = request.take(wire.LONG)
            asked.append((self.place, session))
            super().data_received(data)

    loop = asyncio.get_running_loop()
    servers = {}
    port = 0
    for place in ("127.0.0.2", "127.0.0.3"):
        server = await loop.create_server(lambda place=place: Located(place), place, port)
        servers[place] = server
        port = server.sockets[0].getsockname()[1]
    means = ["127.0.0.2"]
    resolve = loop.getaddrinfo

    async def getaddrinfo(host, *arguments, **options):
        place = means[0] if host == "zookeeper.test" else host
        return await resolve(place, *arguments, **options)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    options = ZooKeeperOptions(f"zookeeper.test:{port}", has_heartbeat_thread=False)
    link = ZooKeeperLink(options, SystemClock())
    await link.open()
    number = link.session.number
    means[0] = "127.0.0.3"
    servers["127.0.0.2"].close()
    link.drop_connection("its server has moved")
    while len(asked) < 2 or link.session.state is not SessionState.CONNECTED:
        await asyncio.sleep(0.01)
    assert asked == [("127.0.0.2", 0), ("127.0.0.3", SESSION)]
    assert link.session.number == number, "the same session"
    link.drop_connection("the test is over")
    await link.close()
    servers["127.0.0.3"].close()


async def test_a_session_is_resumed_soon_after_servers_are_back():
    """They were away for a while: the pauses between attempts do not grow beyond a twentieth of the
    session, 0.3 s here. They grew to a second, and brokers stopped serving meanwhile."""

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Server, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    options = ZooKeeperOptions(f"127.0.0.1:{port}", has_heartbeat_thread=False)
    link = ZooKeeperLink(options, SystemClock())
    await link.open()
    server.close()
    link.drop_connection("its server is away")
    await asyncio.sleep(1.7)
    server = await loop.create_server(Server, "127.0.0.1", port)
    began = loop.time()
    while link.session.state is not SessionState.CONNECTED:
        await asyncio.sleep(0.01)
    assert loop.time() - began < 0.6
    await link.close()
    server.close()
