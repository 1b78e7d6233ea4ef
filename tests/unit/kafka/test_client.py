"""The raw client: frames, correlation ids and bounds, and its two faces over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import contextmanager

import pytest
import uvloop

from headrace.kafka.client.asynchronous import AsyncConnection
from headrace.kafka.client.blocking import BlockingConnection
from headrace.kafka.client.exchange import (
    API_VERSIONS,
    AnswerInvalid,
    Exchange,
    answer_body,
    answer_size,
    framed,
    request_frame,
)

METADATA = 3


def answer(correlation_id: int, body: bytes) -> bytes:
    return framed(struct.pack(">i", correlation_id) + body)


def test_a_request_has_its_size_header_and_body():
    plain = request_frame(b"me", METADATA, 1, 7, b"body", is_flexible=False)
    assert plain == b"\0\0\0\x10\0\x03\0\x01\0\0\0\x07\0\x02mebody"
    flexible = request_frame(b"me", METADATA, 9, 7, b"body", is_flexible=True)
    assert flexible == b"\0\0\0\x11\0\x03\0\x09\0\0\0\x07\0\x02me\0body"


def test_requests_are_numbered_and_answers_belong_to_the_oldest():
    exchange = Exchange(b"me")
    first = exchange.ask(METADATA, 1, b"", is_flexible=False)
    second = exchange.ask(METADATA, 1, b"", is_flexible=False)
    assert [frame[8:12] for frame in (first, second)] == [b"\0\0\0\1", b"\0\0\0\2"]
    exchange.receive(answer(1, b"one") + answer(2, b"two"))
    assert [exchange.next_answer() for _ in range(3)] == [b"one", b"two", None]


def test_correlation_ids_stay_positive():
    exchange = Exchange(b"me")
    exchange._correlation_id = 2**31 - 2
    frames = [exchange.ask(METADATA, 1, b"", is_flexible=False) for _ in range(2)]
    assert [frame[8:12] for frame in frames] == [b"\x7f\xff\xff\xff", b"\0\0\0\1"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_an_answer_may_arrive_in_any_pieces(size):
    exchange = Exchange(b"me")
    for _ in range(2):
        exchange.ask(METADATA, 9, b"", is_flexible=True)
    data = answer(1, b"\0" + b"x" * 30) + answer(2, b"\0")
    found = []
    for at in range(0, len(data), size):
        exchange.receive(data[at : at + size])
        while (body := exchange.next_answer()) is not None:
            found.append(body)
    assert found == [b"x" * 30, b""]


def test_missing_bytes_never_exceed_the_answer():
    exchange = Exchange(b"me")
    data, missing = answer(1, b"xyz"), []
    for byte in data:
        missing.append(exchange.missing_bytes())
        exchange.receive(bytes([byte]))
    assert missing == [4, 3, 2, 1, 7, 6, 5, 4, 3, 2, 1]
    assert exchange.missing_bytes() == 0
    assert exchange.next_frame() == data[4:]


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 3, 101, 2**31 - 1])
def test_a_size_that_no_answer_has_is_refused_before_its_bytes_arrive(size):
    exchange = Exchange(b"me", answer_bytes_max=100)
    exchange.ask(METADATA, 1, b"", is_flexible=False)
    exchange.receive(struct.pack(">i", size))
    with pytest.raises(AnswerInvalid, match=f"of {size} bytes"):
        exchange.next_answer()


def test_another_protocol_is_known_by_its_first_bytes():
    for greeting in (b"HTTP/1.1 400 Bad Request", b"SSH-2.0", b"RFB 003.008"):
        with pytest.raises(AnswerInvalid):
            answer_size(greeting)


def test_the_bounds_themselves_are_allowed():
    assert [answer_size(struct.pack(">i", size), 100) for size in (4, 100)] == [4, 100]


def test_an_answer_to_another_request_is_refused():
    exchange = Exchange(b"me")
    exchange.receive(answer(1, b""))
    with pytest.raises(AnswerInvalid, match="without a request"):
        exchange.next_answer()
    exchange.ask(METADATA, 1, b"", is_flexible=False)
    exchange.receive(answer(2, b""))
    with pytest.raises(AnswerInvalid, match="response 2 to request 1"):
        exchange.next_answer()


def test_flexible_answers_have_a_header_without_tagged_fields_but_for_api_versions():
    number = b"\0\0\0\x01"
    assert answer_body(number + b"\0b", METADATA, 1, is_flexible=True) == b"b"
    assert answer_body(number + b"\0b", METADATA, 1, is_flexible=False) == b"\0b"
    assert answer_body(number + b"\0b", API_VERSIONS, 1, is_flexible=True) == b"\0b"
    for tags in (b"\x01\x00\x00", b""):
        with pytest.raises(AnswerInvalid, match="tagged fields"):
            answer_body(number + tags, METADATA, 1, is_flexible=True)


@contextmanager
def broker(*answers: bytes):
    """Answers the requests of one connection with these bytes, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for data in answers:
                    head = connection.recv(4, socket.MSG_WAITALL)
                    connection.recv(*struct.unpack(">i", head), socket.MSG_WAITALL)
                    connection.sendall(data)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()
        thread.join(10)
        assert not thread.is_alive()


def test_a_blocking_connection_asks_one_request_after_another():
    body = bytes(range(256)) * 10_000
    answers = answer(1, b"one"), answer(2, b"\0" + body)
    with broker(*answers) as address, BlockingConnection(address, 10, b"me") as connection:
        assert connection.call(METADATA, 1, b"", is_flexible=False) == b"one"
        assert connection.call(METADATA, 9, b"", is_flexible=True) == body


def test_a_blocking_connection_sends_any_bytes_and_reads_answers_as_they_are():
    answers = answer(77, b"one") + answer(78, b"two"), b""
    with broker(*answers) as address, BlockingConnection(address, 10, b"me") as connection:
        connection.send(framed(b"anything"))
        assert connection.receive() == struct.pack(">i", 77) + b"one"
        assert connection.receive_into(bytearray(7)) == struct.pack(">i", 78) + b"two"
        connection.send(framed(b"more"))
        with pytest.raises(ConnectionResetError, match="closed"):
            connection.receive()


def test_an_answer_larger_than_the_buffer_is_refused():
    with broker(answer(1, b"four")) as address, BlockingConnection(address, 10, b"me") as wire:
        wire.send(framed(b""))
        with pytest.raises(AnswerInvalid, match="of 8 bytes"):
            wire.receive_into(bytearray(7))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request):
    """Runs a coroutine on either loop."""
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield lambda scenario: runner.run(asyncio.wait_for(scenario, 10))


def test_requests_on_a_loop_are_answered_in_their_order(run):
    async def scenario(address: tuple[str, int]) -> None:
        connection = await AsyncConnection.open(address, b"me")
        asked = [connection.ask(METADATA, 1, b"", is_flexible=False) for _ in range(3)]
        asked[1].cancel()
        assert await asked[2] == b"three"
        assert asked[0].result() == b"one"
        connection.close()

    with broker(answer(1, b"one"), answer(2, b"two"), answer(3, b"three")) as address:
        run(scenario(address))


def test_a_connection_on_a_loop_that_ends_fails_what_waits_and_what_comes(run):
    async def scenario(address: tuple[str, int]) -> None:
        connection = await AsyncConnection.open(address, b"me")
        asked = [connection.ask(METADATA, 1, b"", is_flexible=False) for _ in range(2)]
        for answered in asked:
            with pytest.raises(ConnectionResetError, match="closed"):
                await answered
        with pytest.raises(ConnectionResetError, match="closed"):
            connection.ask(METADATA, 1, b"", is_flexible=False)

    with broker(b"", b"") as address:
        run(scenario(address))


def test_an_answer_to_something_else_ends_a_connection_on_a_loop(run):
    async def scenario(address: tuple[str, int]) -> None:
        connection = await AsyncConnection.open(address, b"me")
        asked = [connection.ask(METADATA, 1, b"", is_flexible=False) for _ in range(2)]
        for answered in asked:
            with pytest.raises(AnswerInvalid, match="response 9 to request 1"):
                await answered
        with pytest.raises(ConnectionResetError):
            connection.ask(METADATA, 1, b"", is_flexible=False)

    with broker(b"", answer(9, b"") + answer(2, b"")) as address:
        run(scenario(address))
