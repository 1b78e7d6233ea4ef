"""The served port, with clients that say exactly what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import itertools
import ssl
import tempfile
import threading
import time

import pytest
from tests.unit.grpc.http2_peer import block, data, headers
from tests.unit.grpc.served_rig import GRPC, RawClient, served
from tests.waiting import wait_until

from headrace.errors import AuthenticationFailed
from headrace.grpc import frames
from headrace.grpc.calls import ServerCall
from headrace.grpc.limits import Limits
from headrace.grpc.messages import INLINE_BYTES_MAX, MessageInvalid
from headrace.grpc.outflow import Stream
from headrace.grpc.requests import Request
from headrace.grpc.server import DEFAULTS, GrpcServer
from headrace.grpc.service import Method, Status
from headrace.runtime.clock import SystemClock
from headrace.runtime.new_certificates import Authority
from headrace.runtime.tls import TlsMaterial, server_context

OK, CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = b"0", b"1", b"4", b"8"
UNIMPLEMENTED, INTERNAL, UNAVAILABLE = b"12", b"13", b"14"
NETWORKED = pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.{}"])
"""Connections of one address, or of a client that takes all of its network."""


def message(body: bytes, flag: int = 0) -> bytes:
    return bytes([flag]) + len(body).to_bytes(4) + body


@pytest.fixture(scope="module")
def shared():
    with served() as one:
        yield one


def test_a_response_is_three_frames_with_known_bytes(shared):
    """Golden: what clients get must not change by accident."""
    with RawClient(shared.address) as client:
        client.call(1, "/t/echo", b"hi")
        response = client.next(frames.HEADERS)
        body, trailers = client.frame(), client.frame()
    assert response.payload.hex() == "880f10106170706c69636174696f6e2f67727063"
    assert response.flags == 4
    assert (body.kind, body.flags, body.payload) == (frames.DATA, 0, message(b"hi"))
    assert (trailers.kind, trailers.flags) == (frames.HEADERS, 5)
    assert trailers.payload.hex() == "000b677270632d7374617475730130"


@pytest.mark.parametrize(
    ("path", "parts", "expected"),
    [
        ("/t/echo", [], UNIMPLEMENTED),
        ("/t/echo", [message(b"a") + message(b"b")], UNIMPLEMENTED),
        ("/t/echo", [message(b"a"), message(b"b")], UNIMPLEMENTED),
        ("/t/echo", [message(b"abc")[:-1]], INTERNAL),
        ("/t/echo", [b"\0\0"], INTERNAL),
        ("/t/echo", [message(b"abc", 2)], INTERNAL),
        ("/t/echo", [message(gzip.compress(b"a"), 1)], INTERNAL),
        ("/t/echo", [b"\0\xff\xff\xff\xff"], RESOURCE_EXHAUSTED),
        ("/t/echo", [message(b"abc")[:3], message(b"abc")[3:]], OK),
        ("/t/fail", [message(b"abc")], INTERNAL),
        ("/t/nothing", [message(b"abc")], UNIMPLEMENTED),
        ("/t/collect", [message(b"a") + message(b"b")[:2], message(b"b")[2:]], OK),
        ("/t/collect", [message(b"a") + message(b"b")[:2]], INTERNAL),
        ("/t/chat", [message(b"a") + message(b"fail") + message(b"b")], INTERNAL),
    ],
)
def test_malformed_requests_end_with_the_status_for_them(shared, path, parts, expected):
    with RawClient(shared.address) as client:
        client.send(headers(1, block({**GRPC, ":path": path}), 4))
        client.send(*[data(1, part) for part in parts], data(1, b"", 1))
        assert client.status(1) == expected
        client.call(3, "/t/echo", b"still served")
        assert client.status(3) == OK


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"grpc-timeout": "1"}, INTERNAL),
        ({"grpc-timeout": "123456789S"}, INTERNAL),
        ({"grpc-timeout": "50m"}, DEADLINE_EXCEEDED),
        ({"grpc-timeout": "0n"}, DEADLINE_EXCEEDED),
        ({"grpc-encoding": "deflate"}, UNIMPLEMENTED),
        ({"x-large": "a" * 17_000}, RESOURCE_EXHAUSTED),
    ],
)
def test_metadata_that_decides_over_a_call(shared, field, expected):
    with RawClient(shared.address) as client:
        fields = block({**GRPC, ":path": "/t/never", **field})
        client.send(headers(1, fields[:9000], 0), frames.frame(9, 4, 1, fields[9000:]))
        client.send(data(1, message(b"x"), 1))
        assert client.status(1) == expected


def test_a_deadline_cancels_the_handler(shared):
    shared.was_cancelled.clear()
    with RawClient(shared.address) as client:
        client.call(1, "/t/never", b"", grpc_timeout="30m")
        assert client.status(1) == DEADLINE_EXCEEDED
    assert shared.was_cancelled.wait(10)
    call = shared.calls[-1]
    assert call.is_finished
    called = []
    call.on_cancel(lambda: called.append(1))
    assert called == [1]


def test_a_lost_connection_and_a_reset_cancel_the_handler(shared):
    for end in (lambda one: one.send(frames.rst_stream(1, 8)), lambda one: one.socket.close()):
        shared.was_cancelled.clear()
        client = RawClient(shared.address)
        client.call(1, "/t/never", b"")
        while not (shared.calls and shared.calls[-1].path == "/t/never"):
            time.sleep(0.001)
        end(client)
        assert shared.was_cancelled.wait(10)
        client.socket.close()


def test_a_handler_sees_path_peer_authority_headers_and_deadline_of_its_call(shared):
    with RawClient(shared.address) as client:
        client.call(1, "/t/echo", b"", x_id="7", grpc_timeout="5S")
        assert client.status(1) == OK
    call = shared.calls[-1]
    assert (call.path, call.peer, call.secure) == ("/t/echo", "127.0.0.1", False)
    assert call.authority == "localhost:1"
    assert (call.header(b"x-id"), call.header(b"x-no")) == (b"7", None)
    assert 0 < call.deadline - shared.loop.time() <= 5


def test_metadata_of_one_name_is_joined(shared):
    with RawClient(shared.address) as client:
        fields = [*{**GRPC, ":path": "/t/echo"}.items(), ("x-a", "1"), ("x-a", "2")]
        client.send(headers(1, block(fields), 4), data(1, message(b""), 1))
        assert client.status(1) == OK
    assert shared.calls[-1].header(b"x-a") == b"1,2"


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"content-type": "application/json"}, b"415"), ({":method": "GET"}, b"405")],
)
def test_requests_that_are_not_grpc_get_an_http_status(shared, fields, status):
    with RawClient(shared.address) as client:
        client.send(headers(1, block({**GRPC, **fields})))
        assert status in client.next(frames.HEADERS).payload
        assert b"serves gRPC" in client.next(frames.DATA).payload


def test_a_gzip_bomb_is_not_unpacked_beyond_the_limit():
    with served(Limits(message_bytes_max=1000)) as one, RawClient(one.address) as client:
        for number, size, expected in ((1, 1000, OK), (3, 100_000_000, RESOURCE_EXHAUSTED)):
            packed = message(gzip.compress(bytes(size)), 1)[:16_000]
            if size > 1000:
                packed = message(gzip.compress(bytes(900_000)), 1)
            client.send(headers(number, block({**GRPC, "grpc-encoding": "gzip"}), 4))
            client.send(data(number, packed, 1))
            assert client.status(number) == expected


@contextlib.contextmanager
def gated(limits=DEFAULTS):
    """A server whose thread is busy until the gate is opened."""
    gate = threading.Event()
    with served(limits) as one:
        try:
            one.call(one.server._slow_calls.start, gate.wait)
            yield one, gate
        finally:
            gate.set()


COMPRESSED = {**GRPC, ":path": "/t/length", "grpc-encoding": "gzip"}


@NETWORKED
def test_few_messages_wait_to_be_decompressed_and_further_ones_are_refused(source):
    packed = message(gzip.compress(b"a" * 300_000), 1)
    limits = Limits(slow_messages_max=2, listener_slow_messages_max=3)
    with (
        gated(limits) as (one, gate),
        RawClient(one.address) as first,
        RawClient(one.address, source=source.format(7)) as same_address,
        RawClient(one.address, source="127.0.1.2") as second,
    ):

        def send(client, number):
            client.send(headers(number, block(COMPRESSED), 4), data(number, packed, 1))

        for number in (1, 3, 5):
            send(first, number)
        assert first.status(5) == RESOURCE_EXHAUSTED
        first.send(frames.rst_stream(3, frames.CANCEL))  # it still has its place before the thread
        send(first, 7)
        assert first.status(7) == RESOURCE_EXHAUSTED
        send(same_address, 1)
        assert same_address.status(1) == RESOURCE_EXHAUSTED, "it leaves room for others"
        send(second, 1)
        send(second, 3)
        assert second.status(3) == RESOURCE_EXHAUSTED
        second.call(5, "/t/echo", b"plain")
        assert second.status(5) == OK
        gate.set()
        assert first.status(1) == second.status(1) == OK
        for number in (9, 11):
            send(first, number)
            assert first.status(number) == OK
        assert not one.server.slow_messages


def test_a_large_compressed_message_is_not_tried_on_the_loop_first():
    """The thread alone finds that it is no gzip."""
    body = message(bytes(INLINE_BYTES_MAX + 1), 1)
    with gated() as (one, gate), RawClient(one.address) as client:
        client.send(headers(3, block(COMPRESSED), 4))
        client.send(*parts_of(3, body))
        client.call(5, "/t/echo", b"plain")
        assert client.status(5) == OK
        assert one.server.held_bytes == len(body)
        client.send(headers(7, block({**COMPRESSED, "grpc-encoding": "identity"}), 4))
        client.send(*parts_of(7, body))
        assert client.status(7) == INTERNAL, "without grpc-encoding"
        assert one.server.held_bytes == len(body)
        gate.set()
        assert client.status(3) == INTERNAL


def parts_of(number, body):
    """A request as frames that a peer may send."""
    ends = range(0, len(body), 16_000)
    return [data(number, body[at : at + 16_000], int(at == ends[-1])) for at in ends]


def test_a_decompression_error_after_its_call_has_ended_is_not_left_unretrieved():
    """asyncio logs an exception that is never retrieved."""

    class Connection:
        limits = DEFAULTS

        def hold(self, _size):
            return True

        def run_slowly(self, _function):
            return running[0]

    logged = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, context: logged.append(context["message"]))
    try:
        running = [loop.create_future()]
        request = Request([], {b"grpc-encoding": b"gzip"}, 0)
        call = ServerCall(Connection(), Stream(1, 0, 0), request, Method("/t/x", print), None)
        body = message(gzip.compress(bytes(300_000)), 1)
        call.receive(body, 0, len(body), is_last=True)
        call.reset()
        running[0].set_exception(MessageInvalid(Status.INTERNAL, "not gzip"))
        loop.run_until_complete(asyncio.sleep(0, loop))
        running.clear()
        gc.collect()
    finally:
        loop.close()
    assert logged == []


def test_a_message_that_grows_much_is_decompressed_beside_the_loop():
    packed = message(gzip.compress(b"a" * 300_000), 1)
    compressed = {**GRPC, ":path": "/t/never", "grpc-encoding": "gzip"}
    with gated() as (one, gate), RawClient(one.address) as client:
        for number in (1, 3):
            client.send(headers(number, block(compressed), 4))
            client.send(data(number, packed, 1))
        client.call(5, "/t/echo", b"plain")
        assert client.status(5) == OK
        client.send(frames.rst_stream(3, frames.CANCEL))
        client.call(7, "/t/echo", b"after the reset")
        assert client.status(7) == OK
        assert one.server.held_bytes == len(packed)  # of the call that was not reset
        gate.set()
        client.send(headers(9, block({**compressed, ":path": "/t/length"}), 4))
        client.send(data(9, packed, 1))
        assert client.status(9) == OK
        assert [call.path for call in one.calls] == ["/t/echo", "/t/echo", "/t/never"]
        assert one.server.held_bytes == 0
        client.send(headers(11, block({**compressed, ":path": "/t/chat"}), 4))
        client.send(data(11, packed))
        assert client.status(11) == RESOURCE_EXHAUSTED  # messages of a stream keep their order


def test_a_method_may_take_smaller_requests_than_its_listener(shared):
    with RawClient(shared.address) as client:
        for number, body in ((1, bytes(100)), (3, bytes(101))):
            client.call(number, "/t/small", body)
            assert client.status(number) == (OK if number == 1 else RESOURCE_EXHAUSTED)
        packed = message(gzip.compress(bytes(5_000)), 1)
        assert len(packed) < 100
        fields = {**GRPC, ":path": "/t/small", "grpc-encoding": "gzip"}
        client.send(headers(5, block(fields), 4))
        client.send(data(5, packed, 1))
        assert client.status(5) == RESOURCE_EXHAUSTED


def test_a_request_that_stands_still_is_ended():
    limits = Limits(request_s=0.5)
    with served(limits) as one, RawClient(one.address) as client:
        client.call(1, "/t/echo", None)
        client.call(3, "/t/chat", None)
        client.send(data(3, message(b"abc")[:-1]))
        client.call(5, "/t/chat", None)  # streams may be silent between messages
        assert client.status(1) == CANCELLED
        client.send(data(5, message(b"x")))
        assert client.next(frames.DATA).payload == message(b"X")


def test_a_client_that_does_not_begin_is_disconnected():
    with served(Limits(begin_s=0.2)) as one:
        for first in (b"", frames.PREFACE[:10], frames.PREFACE, b"\x16\x03\x01"):
            client = RawClient(one.address, begins=False)
            client.send(first)
            client.rest()
            client.socket.close()


def test_a_silent_client_is_asked_and_then_disconnected():
    limits = Limits(keepalive_s=0.3, keepalive_timeout_s=0.5)
    with served(limits) as one, RawClient(one.address) as client:
        ping = client.next(frames.PING)
        client.send(frames.frame(frames.PING, 1, 0, ping.payload))
        client.next(frames.PING)
        client.rest()


def test_connections_above_the_limit_are_closed():
    with served(Limits(connections_max=2)) as one:
        clients = [RawClient(one.address, begins=False) for _ in range(2)]
        for client in clients:
            client.send(frames.PREFACE, frames.settings({}))
            client.next(frames.SETTINGS)
        with RawClient(one.address, begins=False) as third:
            assert third.rest() == []
        for client in clients:
            client.socket.close()


def test_a_slow_reader_holds_no_more_than_the_limit():
    limits = Limits(unsent_bytes_max=4 << 20)
    with served(limits) as one, RawClient(one.address, buffer_bytes=65_536) as client:
        client.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31 - 1}))
        client.send(frames.window_update(0, 2**31 - 1 - 65_535))
        client.call(1, "/t/many", b"20")
        received = 0
        for _ in range(3):
            time.sleep(0.1)
            (connection,) = one.server._connections
            assert one.call(getattr, connection, "unsent_bytes") <= limits.unsent_bytes_max
        while received < 20 << 20:
            received += len(client.next(frames.DATA).payload)


def test_a_client_that_goes_before_it_was_sent_everything_cancels_the_call():
    with served() as one:
        for kib, is_cancelled in ((32, False), (100, True)):  # of a window of 64
            with RawClient(one.address) as client:
                client.call(1, "/t/whole", b"%d" % kib)
                client.next(frames.DATA)
                if not is_cancelled:
                    assert client.status(1) == OK
            assert one.was_cancelled.wait(5 if is_cancelled else 0.2) == is_cancelled


def test_a_client_that_reads_nothing_is_disconnected_when_it_owes_too_much():
    limits = Limits(unsent_bytes_max=2 << 20)
    with served(limits) as one, RawClient(one.address) as client:
        for number in range(1, 41, 2):  # windows of 65,535 bytes, and responses of 1 MiB
            body = message(bytes(1 << 20))
            try:
                client.call(number, "/t/echo", None)
                for at in range(0, len(body), 16_384):
                    client.send(data(number, body[at : at + 16_384]))
                client.send(data(number, b"", 1))
            except OSError:
                break  # disconnected
        client.rest()
        assert one.server.connection_count == 0


def test_incomplete_messages_of_a_connection_are_bounded():
    limits = Limits(partial_bytes_max=1 << 20)
    with served(limits) as one, RawClient(one.address) as client:
        refused = 0
        for number in range(1, 21, 2):
            client.call(number, "/t/echo", None)
            body = b"\0" + (1 << 20).to_bytes(4) + bytes(200_000)
            client.send(
                *[data(number, body[at : at + 16_384]) for at in range(0, len(body), 16_384)]
            )
        client.send(frames.frame(frames.PING, 0, 0, b"are done"))
        while (found := client.frame()).kind != frames.PING:
            refused += found.kind == frames.HEADERS
        assert refused == 5
        assert one.server.held_bytes <= limits.partial_bytes_max


def test_the_connection_that_holds_most_is_closed_when_the_listener_holds_too_much():
    limits = Limits(listener_partial_bytes_max=1 << 20)
    with served(limits) as one, RawClient(one.address) as greedy, RawClient(one.address) as other:
        for client, size in ((greedy, 900_000), (other, 300_000)):
            client.call(1, "/t/echo", None)
            body = b"\0" + (1 << 20).to_bytes(4) + bytes(size)
            client.send(*[data(1, body[at : at + 16_384]) for at in range(0, len(body), 16_384)])
            if client is greedy:
                while one.server.held_bytes < size:
                    time.sleep(0.001)
        assert greedy.next(frames.GOAWAY).code == frames.ENHANCE_YOUR_CALM
        other.call(3, "/t/echo", b"served")
        assert other.status(3) == OK


def test_the_connection_with_the_largest_calls_is_closed_when_all_take_too_much():
    """Also calls that have begun, and wait: their header lists are kept."""
    limits = Limits(listener_calls_bytes_max=400_000)
    with served(limits) as one, RawClient(one.address) as greedy, RawClient(one.address) as other:
        other.call(1, "/t/never", b"")
        for number in range(40):
            more = {f"x{field}": f"{number}-{field}" for field in range(100)}
            greedy.call(2 * number + 1, "/t/never", b"", **more)
        assert greedy.next(frames.GOAWAY).code == frames.ENHANCE_YOUR_CALM
        other.call(3, "/t/echo", b"served")
        assert other.status(3) == OK
        assert one.server.connection_count <= 2


@NETWORKED
@pytest.mark.parametrize("path", ["/t/never", "/t/keeps"])
def test_many_connections_of_an_address_have_no_other_closed_that_has_more_calls(path, source):
    """Nor is there a second in which calls keep as much as they can."""
    keeps = Method("/t/keeps", lambda call, body: call.keep(int(body)))
    limits = Limits(listener_calls_bytes_max=2_000_000)
    with contextlib.ExitStack() as opened, served(limits, [keeps]) as one:
        busy = opened.enter_context(RawClient(one.address, source="127.0.1.2"))
        for number in range(4):
            busy.call(2 * number + 1, "/t/keeps", b"200000")
        busy.call(9, "/t/echo", b"")
        assert busy.status(9) == OK
        sources = [source.format(number + 1) for number in range(40)]
        greedy = [opened.enter_context(RawClient(one.address, source=each)) for each in sources]
        for client in greedy:
            more = {f"x{field}": f"{field}" for field in range(200)}
            with contextlib.suppress(OSError):
                client.call(1, path, b"100000", **more)
        wait_until(lambda: one.server.connection_count < 41)
        busy.call(11, "/t/echo", b"served")
        assert busy.status(11) == OK


@NETWORKED
def test_many_connections_of_an_address_have_no_other_closed_that_holds_more_than_each(source):
    limits = Limits(listener_partial_bytes_max=1 << 20)
    body = b"\0" + (1 << 20).to_bytes(4) + bytes(400_000)
    with contextlib.ExitStack() as opened, served(limits) as one:

        def hold(source, size):
            client = opened.enter_context(RawClient(one.address, source=source))
            with contextlib.suppress(OSError):
                client.call(1, "/t/echo", None)
                client.send(*[data(1, body[at : at + 10_000]) for at in range(0, size, 10_000)])
                client.send(frames.frame(frames.PING, 0, 0, b"received"))
                while (found := client.frame()) is not None and found.kind != frames.PING:
                    pass
            return client

        busy = hold("127.0.1.2", 400_000)
        for number in range(14):
            hold(source.format(number + 1), 60_000)
        wait_until(lambda: one.server.connection_count < 15)
        busy.call(3, "/t/echo", b"served")
        assert busy.status(3) == OK


def test_responses_that_calls_keep_until_the_client_reads_count_as_calls_do():
    keeps = Method("/t/keeps", lambda call, body: call.keep(int(body)))
    limits = Limits(listener_calls_bytes_max=400_000)
    with (
        served(limits, [keeps]) as one,
        RawClient(one.address) as greedy,
        RawClient(one.address) as other,
    ):
        other.call(1, "/t/keeps", b"100000")
        for number in range(4):
            greedy.call(2 * number + 1, "/t/keeps", b"100000")
        assert greedy.next(frames.GOAWAY).code == frames.ENHANCE_YOUR_CALM
        other.call(3, "/t/echo", b"served")
        assert other.status(3) == OK


def test_a_server_stops_beside_a_connection_that_has_failed_and_has_calls():
    limits = Limits(listener_calls_bytes_max=40_000)
    with contextlib.ExitStack() as stays_open, served(limits) as one:
        greedy = stays_open.enter_context(RawClient(one.address))
        for number in range(10):
            more = {f"x{field}": f"{number}-{field}" for field in range(100)}
            greedy.call(2 * number + 1, "/t/never", b"", **more)
        assert greedy.next(frames.GOAWAY).code == frames.ENHANCE_YOUR_CALM


def ask_for(client: RawClient, kib: int) -> None:
    """Call for responses that are not read; the window of the connection holds them back."""
    body = message(bytes(kib << 10))
    client.call(1, "/t/echo", None)
    for at in range(0, len(body), 16_384):
        client.send(data(1, body[at : at + 16_384]))
    client.send(data(1, b"", 1))


def test_the_connection_that_owes_most_is_closed_when_the_listener_owes_too_much():
    limits = Limits(listener_unsent_bytes_max=1 << 20)
    with served(limits) as one, RawClient(one.address) as greedy, RawClient(one.address) as other:
        for client, kib in ((greedy, 900), (other, 300)):
            ask_for(client, kib)
            if client is greedy:
                while one.server.owed_bytes < kib - 64 << 10:
                    time.sleep(0.001)
        greedy.rest()
        assert one.server.connection_count == 1
        other.send(frames.window_update(0, 1 << 20), frames.window_update(1, 1 << 20))
        assert other.status(1) == OK
        other.call(3, "/t/echo", b"served")
        assert other.status(3) == OK
        assert one.server.owed_bytes == 0


def test_whatever_a_socket_has_not_taken_is_owed():
    """A fraction of the usual high-water mark is much when 10,000 clients owe it."""
    with served() as one, RawClient(one.address, buffer_bytes=8_192) as client:
        client.send(frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31 - 1}))
        client.send(frames.window_update(0, 2**31 - 1 - 65_535))
        client.call(1, "/t/echo", b"")
        assert client.status(1) == OK  # it has been accepted
        (connection,) = one.server._connections

        def unsent_and_owed():
            return connection.unsent_bytes, connection.owed_bytes, one.server.owed_bytes

        sent = 0
        while not (found := one.call(unsent_and_owed))[0]:
            sent += 1
            client.call(2 * sent + 1, "/t/count", b"1000")
            while one.call(lambda: connection._http2.last_stream_id) != 2 * sent + 1:
                time.sleep(0.001)
        unsent, owed, of_all = found
        assert unsent < 65_536
        assert unsent <= owed == of_all
        for number in range(sent):
            assert client.status(2 * number + 3) == OK
        wait_until(lambda: one.call(unsent_and_owed) == (0, 0, 0))


def test_resetting_a_stream_frees_the_bytes_that_waited_in_it():
    with served() as one, RawClient(one.address) as client:
        ask_for(client, 900)
        wait_until(lambda: one.server.owed_bytes >= 900 - 64 << 10)
        client.send(frames.rst_stream(1, frames.CANCEL))
        wait_until(lambda: not one.server.owed_bytes)
        assert one.server.connection_count == 1


async def test_large_answers_to_small_questions_leave_others_their_turns():
    """What one read of the socket brings may cause a hundred times as much."""
    answered = []

    class Questions:
        def __init__(self, call):
            self._call = call

        def message(self, body):
            answered.append(body)
            self._call.send(body * 1_000)

        def ended(self):
            self._call.finish()

    class Transport(asyncio.Transport):
        turns, is_reading = 0, True

        def pause_reading(self):
            self.turns += 1
            self.is_reading = False

        def resume_reading(self):
            self.is_reading = True

        def write(self, data):
            pass

        def set_write_buffer_limits(self, high=None, low=None):
            pass

        def get_write_buffer_size(self):
            return 0

        def is_closing(self):
            return False

    loop = asyncio.get_running_loop()
    server = GrpcServer({"/t/ask": Method("/t/ask", Questions, True)})
    protocol, transport = server.protocol(), Transport()
    protocol.connection_made(transport)
    windows = frames.frame(frames.SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff")
    sent = [b"%04d" % number for number in range(8_000)]
    asked = b"".join(map(message, sent))
    parts = [data(1, asked[at : at + 16_000]) for at in range(0, len(asked), 16_000)]
    first = frames.PREFACE + windows + headers(1, block({**GRPC, ":path": "/t/ask"}), 4)
    protocol.data_received(first + b"".join(parts[:3]))
    protocol.data_received(b"".join(parts[3:]))
    assert not transport.is_reading
    seen = []
    while not transport.is_reading:
        loop.call_soon(lambda: seen.append(len(answered)))
        await asyncio.sleep(0)
    steps = [after - before for before, after in itertools.pairwise(seen)]
    assert max(steps) < 16_384 // 9 + 2
    assert answered == sent
    assert len(seen) >= transport.turns > 2
    protocol.connection_lost(None)
    await server.close()


# --- stop --------------------------------------------------------------------------------------


def test_a_stop_lets_calls_end_and_refuses_others():
    with served() as one, RawClient(one.address) as client:
        client.call(1, "/t/never", b"")
        client.call(3, "/t/echo", b"")
        assert client.status(3) == OK
        stopping = threading.Thread(target=one.close, args=(10,))
        stopping.start()
        first = client.next(frames.GOAWAY)
        assert int.from_bytes(first.payload[:4]) == frames.STREAM_ID_MAX
        client.call(5, "/t/echo", b"on its way")
        assert client.status(5) == OK
        client.send(frames.frame(frames.PING, 1, 0, client_ping))
        assert int.from_bytes(client.next(frames.GOAWAY).payload[:4]) == 5
        client.call(7, "/t/echo", b"too late")
        one.call(one.calls[0].respond, b"at last")
        assert client.next(frames.HEADERS).stream_id == 1
        assert {found.stream_id for found in client.rest()} == {1}
        stopping.join()


client_ping = b"headrace"


def test_a_stop_ends_calls_after_its_grace():
    with served() as one, RawClient(one.address) as client:
        client.call(1, "/t/never", b"")
        client.call(3, "/t/echo", b"")
        assert client.status(3) == OK
        stopping = threading.Thread(target=one.close, args=(0.2,))
        stopping.start()
        assert client.status(1) == UNAVAILABLE
        client.rest()
        stopping.join()
        assert one.cancelled == ["/t/never"]


# --- TLS ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority():
    return Authority("test", SystemClock().now_ms())


def context_of(authority, **more) -> ssl.SSLContext:
    pem = authority.sign("server", ["127.0.0.1"])
    return server_context(TlsMaterial(pem.certificate, pem.key, **more))


def encrypted(client: RawClient, authority, identity=None, protocols=("h2",)) -> None:
    """Make TLS of the client's connection."""
    context = ssl.create_default_context(cadata=authority.certificate.decode())
    context.set_alpn_protocols(protocols)
    if identity is not None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(identity.certificate + identity.key)
            file.flush()
            context.load_cert_chain(file.name)
    client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")


def test_plain_and_encrypted_clients_are_served_at_one_port(authority):
    with served(tls=context_of(authority)) as one:
        with RawClient(one.address) as client:
            client.call(1, "/t/echo", b"x")
            assert client.status(1) == OK
            assert not one.calls[-1].secure
        with RawClient(one.address, begins=False) as client:
            encrypted(client, authority)
            assert client.socket.selected_alpn_protocol() == "h2"
            client.send(frames.PREFACE, frames.settings({}))
            client.call(1, "/t/echo", bytes(60_000)[:16_000])
            assert client.status(1) == OK
            assert one.calls[-1].secure


def test_a_listener_may_require_tls(authority):
    with served(tls=context_of(authority), accepts_plain=False) as one:
        with RawClient(one.address) as client:
            assert client.rest() == []
        with RawClient(one.address, begins=False) as client:
            encrypted(client, authority)
            client.send(frames.PREFACE, frames.settings({}))
            client.call(1, "/t/echo", b"x")
            assert client.status(1) == OK


def test_a_handshake_without_a_certificate_to_show_is_refused():
    with served() as one, RawClient(one.address, begins=False) as client:
        client.send(b"\x16\x03\x01\x02\x00\x01")
        assert client.rest() == []


def test_a_client_is_known_by_its_certificate(authority):
    seen = []

    def open_session(peer):
        seen.append(peer)
        if peer.certificate is None:
            raise AuthenticationFailed("no certificate")
        return "session"

    trusting = context_of(authority, trust=authority.certificate, client_auth="requested")
    with served(tls=trusting, open_session=open_session) as one:
        with RawClient(one.address, begins=False) as client:
            encrypted(client, authority, authority.sign("alice"))
            client.send(frames.PREFACE, frames.settings({}))
            client.call(1, "/t/echo", b"x")
            assert client.status(1) == OK
            assert one.calls[-1].session == "session"
        with RawClient(one.address) as client:
            assert client.rest() == []
    assert [one.is_secure for one in seen] == [True, False]
    assert seen[0].certificate
    assert seen[1].certificate is None


def test_broken_records_end_a_connection_and_no_other(authority):
    with served(tls=context_of(authority)) as one, RawClient(one.address) as other:
        with RawClient(one.address, begins=False) as client:
            plain = client.socket.dup()
            encrypted(client, authority)
            plain.sendall(b"\x17\x03\x03\0\x20" + bytes(32))
            with pytest.raises(ssl.SSLError):
                client.rest()
            plain.close()
        with RawClient(one.address, begins=False) as client:
            client.send(b"\x16garbage that is no handshake")
            client.rest()
        other.call(1, "/t/echo", b"x")
        assert other.status(1) == OK
