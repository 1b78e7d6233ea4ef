"""What is written in one turn of the loop leaves in its order, two writes at a time."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
import uvloop

from headrace.http.joined_writes import JOIN_BYTES_MAX, JoinedWrites


class Wire(asyncio.Transport):
    """Notes what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.is_over = False

    def write(self, data) -> None:
        self.sent.append(bytes(data))

    def writelines(self, list_of_data) -> None:
        self.sent += [bytes(data) for data in list_of_data]

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    def abort(self) -> None:
        self.is_over = True


def run(test):
    async def scenario() -> list[bytes]:
        wire = Wire()
        await test(wire, JoinedWrites(wire, asyncio.get_running_loop()))
        return wire.sent

    return asyncio.run(scenario())


def test_a_write_leaves_with_the_next_one_or_at_the_end_of_the_turn():
    async def test(wire, joined):
        joined.write(b"head ")
        joined.write(b"")
        assert wire.sent == []
        joined.write(b"body")
        assert wire.sent == [b"head body"]
        joined.write(b"next")
        await asyncio.sleep(0)

    assert run(test) == [b"head body", b"next"]


def test_large_writes_are_not_joined_by_copying():
    large = bytes(JOIN_BYTES_MAX)

    async def test(_wire, joined):
        joined.write(b"head")
        joined.write(large)
        joined.write(b"end")
        await asyncio.sleep(0)

    assert run(test) == [b"head", large, b"end"]


def test_writes_before_a_close_are_sent():
    async def test(wire, joined):
        joined.write(b"last")
        joined.close()
        assert wire.is_over

    assert run(test) == [b"last"]


def test_writes_before_an_abort_are_dropped():
    async def test(wire, joined):
        joined.write(b"last")
        joined.abort()
        await asyncio.sleep(0)
        assert wire.is_over

    assert run(test) == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_writes_after_the_connection_was_lost_are_dropped(new_loop):
    errors: list[dict[str, object]] = []

    class Server(asyncio.Protocol):
        def connection_made(self, transport) -> None:
            self.joined = JoinedWrites(transport, asyncio.get_running_loop())
            self.is_lost = asyncio.Event()

        def connection_lost(self, _error) -> None:
            self.is_lost.set()

    async def scenario() -> None:
        loop, protocols = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda _loop, context: errors.append(context))
        made = asyncio.Event()

        def protocol() -> Server:
            protocols.append(Server())
            loop.call_soon(made.set)
            return protocols[-1]

        server = await loop.create_server(protocol, "127.0.0.1", 0)
        try:
            client = socket.create_connection(server.sockets[0].getsockname())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await made.wait()
            client.close()  # a reset
            (served,) = protocols
            await asyncio.wait_for(served.is_lost.wait(), 30)
            served.joined.write(b"head")
            served.joined.write(b"body")
            served.joined.write(b"next")
            await asyncio.sleep(0)
            served.joined.close()
        finally:
            server.close()
            await server.wait_closed()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())
    assert errors == []
