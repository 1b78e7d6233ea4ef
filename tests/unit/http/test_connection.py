"""One HTTP connection: what is sent ahead, what is bounded, what is refused."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
import uvicorn
from starlette.requests import Request
from tests.unit.http.served_rig import client, served
from uvicorn.server import ServerState

from headrace.errors import RequestInvalid
from headrace.http import connection, operations
from headrace.http.body_memory import Body, BodyMemory
from headrace.http.connection import BARREN_BYTES_MAX, SLICE_BYTES, HttpConnection
from headrace.http.problems import problem

HOST = b"Host: localhost\r\n"
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


def get(path: bytes) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n"


async def respond(send, body: bytes) -> None:
    head = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def echo(scope, receive, send) -> None:
    """Answers with what was asked."""
    size, has_more = 0, True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        has_more = message["more_body"]
    names = [name.decode() for name, _value in scope["headers"]]
    said = {"path": scope["path"], "names": names, "size": size}
    await respond(send, json.dumps(said).encode())


async def paths(one, count: int) -> list[str]:
    return [json.loads((await one.response())[2])["path"] for _ in range(count)]


def on_a_socket(answer, test) -> None:
    async def scenario() -> None:
        async with served(answer) as address, client(address) as one:
            await test(one)

    asyncio.run(scenario())


# --- good requests ---------------------------------------------------------------------------


def test_requests_that_are_sent_ahead_are_answered_in_order():
    count = 1_000

    async def test(one):
        one.send(b"".join(get(b"/%d" % number) for number in range(count)))
        assert await paths(one, count) == [f"/{number}" for number in range(count)]
        one.send(get(b"/later"))
        assert await paths(one, 1) == ["/later"]

    on_a_socket(echo, test)


@pytest.mark.parametrize("size", [0, 1, SLICE_BYTES, 1_000_000])
def test_bodies_of_every_size_come_whole_and_the_next_request_too(size):
    async def test(one):
        length = b"Content-Length: %d\r\n\r\n" % size
        one.send(b"POST /a HTTP/1.1\r\n" + HOST + length + bytes(size) + get(b"/b"))
        said = json.loads((await one.response())[2])
        assert (said["path"], said["size"]) == ("/a", size)
        assert await paths(one, 1) == ["/b"]

    on_a_socket(echo, test)


def test_a_request_may_come_byte_by_byte():
    async def test(one):
        for byte in get(b"/slow"):
            one.send(bytes([byte]))
            await asyncio.sleep(0)
        assert await paths(one, 1) == ["/slow"]

    on_a_socket(echo, test)


def test_fields_of_a_trailer_are_no_headers():
    async def test(one):
        one.send(CHUNKED + b"2\r\nab\r\n0\r\nHost: evil\r\nX-Late: y\r\n\r\n" + get(b"/next"))
        said = json.loads((await one.response())[2])
        assert (said["names"], said["size"]) == (["host", "transfer-encoding"], 2)
        assert await paths(one, 1) == ["/next"]

    on_a_socket(echo, test)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
def test_an_upgrade_is_answered_as_a_request_and_is_the_last_one(protocol):
    async def test(one):
        fields = b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n\r\n"
        one.send(b"GET /up HTTP/1.1\r\n" + HOST + fields + get(b"/hidden"))
        status, headers, body = await one.response()
        assert (status, headers[b"connection"]) == (200, b"close")
        assert json.loads(body)["path"] == "/up"
        assert await one.rest() == b""

    on_a_socket(echo, test)


# --- malformed ones --------------------------------------------------------------------------

MALFORMED = {
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "two hosts in 1.0": b"GET / HTTP/1.0\r\n" + HOST + HOST + b"\r\n",
    "HTTP/2.0": b"GET / HTTP/2.0\r\n" + HOST + b"\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "a length and chunks": CHUNKED.replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n"),
    "a folded line": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "a CR alone": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\rb\r\n\r\n",
    "an LF alone": b"GET / HTTP/1.1\nHost: localhost\n\n",
    "a NUL": b"GET / HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\n" + HOST + b"X : a\r\n\r\n",
    "a path of other bytes": b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n",
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "no protocol": bytes(100),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_request_is_refused_and_ends_the_connection(what):
    async def test(one):
        one.send(MALFORMED[what])
        status, headers, _body = await one.response()
        assert (status, headers[b"connection"]) == (400, b"close")
        assert await one.rest() == b""

    on_a_socket(echo, test)


def test_requests_before_a_malformed_one_are_answered_first():
    async def test(one):
        one.send(get(b"/a") + get(b"/b") + MALFORMED["no host"] + get(b"/c"))
        assert await paths(one, 2) == ["/a", "/b"]
        assert (await one.response())[0] == 400
        assert await one.rest() == b""

    on_a_socket(echo, test)


def test_a_malformed_body_ends_the_request_that_waits_for_it():
    ended = []

    async def wait(_scope, receive, _send) -> None:
        message = await receive()
        while message["type"] == "http.request":
            message = await receive()
        ended.append(message["type"])

    async def test(one):
        one.send(CHUNKED + b"2\r\nab\r\nzz\r\n")
        assert (await one.response())[0] == 400
        assert await one.rest() == b""

    on_a_socket(wait, test)
    assert ended == ["http.disconnect"]


# --- bounds ----------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """A client's end that is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_over = self.is_paused = False

    def write(self, data) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_over = True

    abort = close

    def is_closing(self) -> bool:
        return self.is_over

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


def connected(answer, wire: Wire) -> HttpConnection:
    config = uvicorn.Config(answer, lifespan="off", log_config=None, http=HttpConnection, ws="none")
    config.load()
    one = HttpConnection(config, ServerState(), {}, asyncio.get_running_loop())
    one.connection_made(wire)
    return one


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET / HTTP/1.1\r\n" + HOST, b"X: y\r\n" * 500),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: ", b"y" * 3_000),
        (b"GET /", b"x" * 3_000),
        (b"", b"\r\n" * 1_500),
        (CHUNKED + b"2\r\nab\r\n0\r\n", b"X: y\r\n" * 500),
        (CHUNKED + b"2\r\nab\r\n0\r\nX: ", b"y" * 3_000),
        (CHUNKED + b"2;", b"y" * 3_000),
    ],
    ids=["head", "header", "path", "empty lines", "trailer", "field of a trailer", "extension"],
)
async def test_endless_requests_are_refused_early(start, more):
    wire = Wire()
    one = connected(echo, wire)
    one.data_received(start)
    fed = 0
    while not wire.is_over and fed < 10 * BARREN_BYTES_MAX:
        one.data_received(more)
        fed += len(more)
        await asyncio.sleep(0)
    assert fed <= BARREN_BYTES_MAX + 2 * SLICE_BYTES
    assert wire.sent.startswith(b"HTTP/1.1 400 ")


async def test_requests_ahead_take_neither_objects_nor_memory(monkeypatch):
    begun = 0
    begin = HttpConnection.on_message_begin

    def counted(self) -> None:
        nonlocal begun
        begun += 1
        begin(self)

    monkeypatch.setattr(HttpConnection, "on_message_begin", counted)

    async def never(_scope, receive, _send) -> None:
        while (await receive())["type"] == "http.request":
            pass

    wire = Wire()
    one = connected(never, wire)
    shortest = b"GET / HTTP/1.0\r\n\r\n"
    one.data_received(shortest * 10_000)
    await asyncio.sleep(0.01)
    assert begun <= SLICE_BYTES // len(shortest) + 1
    fed = 0
    while not wire.is_over:  # a handler that waits for its client's end has it read on
        one.data_received(shortest * 10_000)
        fed += len(shortest) * 10_000
        assert fed < 2 * connection.UNPARSED_BYTES_MAX
    assert begun <= SLICE_BYTES // len(shortest) + 1
    one.connection_lost(None)
    await asyncio.sleep(0.01)


async def test_the_oldest_idle_connection_gives_way(monkeypatch):
    monkeypatch.setattr(connection, "CONNECTIONS_MAX", 2)

    async with (
        served(echo) as address,
        client(address) as first,
        client(address) as second,
    ):
        for one, path in ((first, b"/1"), (second, b"/2")):
            one.send(get(path))
            await one.response()
        async with client(address) as third:
            third.send(get(b"/3"))
            assert await paths(third, 1) == ["/3"]
            assert await first.rest() == b""
            second.send(get(b"/4"))
            assert await paths(second, 1) == ["/4"]


def test_a_body_that_does_not_arrive_holds_no_task(monkeypatch):
    monkeypatch.setattr(operations, "BODY_S_MAX", 0.05)

    async def answer(scope, receive, send) -> None:
        try:
            with Body(BodyMemory(1 << 20)) as held:
                await operations.read_body(Request(scope, receive), held, is_required=True)
        except RequestInvalid as error:
            await problem(400, str(error), "")(scope, receive, send)

    async def test(one) -> None:
        one.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 10\r\n\r\n{")
        status, _headers, body = await one.response()
        assert (status, b"did not arrive" in body) == (400, True)
        with pytest.raises(asyncio.IncompleteReadError):  # the rest is not taken for a request
            await one.response()

    on_a_socket(answer, test)


# --- requests that are late ----------------------------------------------------------------------


async def ask_first(one, monkeypatch) -> None:
    """From the next head on, little time is left for one; the first is not in a hurry."""
    one.send(get(b"/first"))
    assert (await one.response())[0] == 200
    monkeypatch.setattr(connection, "HEAD_S_MAX", 0.05)


def test_a_head_that_does_not_end_is_answered_and_ends_its_connection(monkeypatch):
    async def test(one) -> None:
        await ask_first(one, monkeypatch)
        for part in (b"GET / HTTP/1.1\r\n", HOST, b"X: "):
            one.send(part)
            await asyncio.sleep(0)
        status, headers, body = await one.response()
        assert (status, headers[b"connection"]) == (408, b"close")
        assert b"did not arrive" in body
        assert await one.rest() == b""

    on_a_socket(echo, test)


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_a_connection_that_asks_for_nothing_is_closed(sent, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_S_MAX", 0.05)

    async def test(one) -> None:
        one.send(sent)
        assert await one.rest() == b""

    on_a_socket(echo, test)


def test_a_body_after_an_early_response_has_no_longer_than_a_head(monkeypatch):
    async def answer(scope, receive, send) -> None:
        await respond(send, b"no")

    async def test(one) -> None:
        await ask_first(one, monkeypatch)
        one.send(b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n")
        assert (await one.response())[0] == 200
        one.send(b"123")
        assert await one.rest() == b""

    on_a_socket(answer, test)


def test_a_response_that_is_owed_may_take_longer_than_a_head(monkeypatch):
    never = threading.Event()

    async def answer(scope, receive, send) -> None:
        if scope["path"] == "/slow":
            await asyncio.to_thread(never.wait, 0.3)
        await respond(send, b"at last")

    async def test(one) -> None:
        await ask_first(one, monkeypatch)
        one.send(get(b"/slow"))
        assert (await one.response())[2] == b"at last"

    on_a_socket(answer, test)
