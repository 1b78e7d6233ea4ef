"""What clients have sent is processed in turns: of the event loop, of addresses, of connections."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.grpc.limits import Limits
from headrace.grpc.protocol import GrpcProtocol
from headrace.grpc.turns import TURN_BYTES, Arrivals, Turns
from headrace.runtime.loop_turns import TURN_NS

MANY, OTHER = "10.0.0.1", "10.0.0.2"


class Clock:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def read(self) -> int:
        return self.now_ns


class Transport:
    """As much of one as a connection needs that processes nothing."""

    is_read = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def set_write_buffer_limits(self, _high: int) -> None: ...

    def get_extra_info(self, _name: str) -> None: ...


class Client(Transport):
    """A connection and its transport; each piece that it has sent takes so long."""

    is_write_paused = False
    unsent_bytes = 0

    def __init__(self, arrivals, clock, log, name, address, piece_ns) -> None:
        self.turns = Turns(self, self, arrivals, address)
        self.clock, self.log, self.name, self.piece_ns = clock, log, name, piece_ns
        self.taken = b""

    def take(self, data: bytes) -> None:
        assert len(data) <= TURN_BYTES
        self.taken += data
        self.log.append(self.name)
        self.clock.now_ns += self.piece_ns


class Listener:
    """Clients of one listener."""

    def __init__(self) -> None:
        self.clock, self.log = Clock(), list[str]()
        self.arrivals = Arrivals(asyncio.get_running_loop(), self.clock.read)

    def client(self, name: str, address: str = MANY, piece_ns: int = TURN_NS) -> Client:
        return Client(self.arrivals, self.clock, self.log, name, address, piece_ns)


async def passes(condition) -> None:
    while not condition():
        await asyncio.sleep(0)


def test_no_more_is_processed_in_a_turn_of_the_loop_than_takes_a_turn() -> None:
    async def scenario() -> None:
        listener = Listener()
        clients = [listener.client(f"c{n}", piece_ns=TURN_NS // 2) for n in range(20)]
        data = bytes(range(256)) * (TURN_BYTES // 64)  # four pieces
        for client in clients:
            client.turns.add(data)
        assert not any(client.is_read for client in clients[1:])
        most, before = len(listener.log), 0
        while len(listener.log) < 4 * len(clients):
            before = len(listener.log)
            await asyncio.sleep(0)
            most = max(most, len(listener.log) - before)
        assert most <= 3
        assert all(client.taken == data and client.is_read for client in clients)

    asyncio.run(scenario())


def test_a_client_waits_for_one_piece_of_another_address_and_not_for_all() -> None:
    async def scenario() -> None:
        listener = Listener()
        many = [listener.client("many") for _ in range(100)]
        for client in many:
            client.turns.add(bytes(8 * TURN_BYTES))
        one = listener.client("one", OTHER, 0)
        await passes(lambda: len(listener.log) > 3)
        listener.log.clear()
        one.turns.add(b"a")
        one.turns.add(b"b")
        await passes(lambda: one.taken == b"ab")
        assert listener.log.count("many") <= 2

    asyncio.run(scenario())


def test_a_client_does_not_wait_for_all_of_its_address_whose_pieces_take_long() -> None:
    async def scenario() -> None:
        listener = Listener()
        many = [listener.client("many") for _ in range(100)]
        for client in many:
            client.turns.add(bytes(8 * TURN_BYTES))
        await passes(lambda: all(client.taken for client in many))  # it is known of each
        listener.log.clear()
        one = listener.client("one", MANY, 0)
        one.turns.add(b"a")
        await passes(lambda: one.taken)
        assert listener.log.count("many") <= 2

    asyncio.run(scenario())


def test_nothing_is_processed_of_a_connection_that_has_ended() -> None:
    async def scenario() -> None:
        listener = Listener()
        first, ends = listener.client("first"), listener.client("ends")
        for client in (first, ends):
            client.turns.add(bytes(3 * TURN_BYTES))
        ends.turns.close()
        await passes(lambda: len(first.taken) == 3 * TURN_BYTES)
        for _ in range(5):
            await asyncio.sleep(0)
        assert ends.taken == b""

    asyncio.run(scenario())


def test_what_waits_for_its_turn_does_not_grow_when_responses_are_read() -> None:
    async def scenario() -> None:
        listener, transport = Listener(), Transport()
        server: Any = SimpleNamespace(limits=Limits(), arrivals=listener.arrivals)
        server.run_slowly = server.kept = server.owe = server.closed = lambda *_: None
        server.address, server.opened = lambda _one: OTHER, lambda _one: True
        protocol = GrpcProtocol(server, asyncio.get_running_loop())
        protocol.connection_made(transport)
        listener.client("many").turns.add(bytes(2 * TURN_BYTES))
        protocol.data_received(b"waits")
        assert not transport.is_read
        protocol.pause_writing()
        protocol.resume_writing()
        assert not transport.is_read, "the turn has not come"
        protocol.connection_lost(None)

    asyncio.run(scenario())
