"""A connection cuts the same frames however the stream is chopped up."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from headrace.broker.services.connection_memory import RequestMemory, ResponseMemory
from headrace.kafka.connection import KafkaConnection
from headrace.kafka.request_figures import RequestFigures
from headrace.kafka.request_turns import RequestTurns
from headrace.runtime.loop_turns import TURN_NS, LoopTurns


class Transport:
    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False
        self.pauses = 0

    def get_extra_info(self, _name: str) -> Any:
        return ("127.0.0.1", 1)

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[bytes]) -> None:
        for part in parts:
            self.written += part

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        self.pauses = 1  # as in asyncio, however often

    def resume_reading(self) -> None:
        self.pauses = 0


class Echo:
    """Answers each frame with itself, in an order of its own."""

    request_bytes_max = 10_000
    gate = None

    def __init__(self) -> None:
        self.responses = ResponseMemory(16 << 20, asyncio.get_running_loop())
        self.requests = RequestMemory(16 << 20, asyncio.get_running_loop())
        self.figures = RequestFigures({0: "Produce"})
        self.turns = RequestTurns(asyncio.get_running_loop(), self.responses, LoopTurns())
        self.now_ns = time.monotonic_ns
        self.frames: list[bytes] = []
        self.replies: list[Any] = []

    def opened(self, connection: KafkaConnection) -> None: ...

    def closed(self, connection: KafkaConnection) -> None: ...

    def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
        self.frames.append(bytes(frame))
        self.replies.append((connection.expect(), bytes(frame)))


def frames_of(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(rng.choice([8, 9, 50, 3_000])) for _ in range(12)]


async def _run(seed: int) -> None:
    rng = random.Random(seed)
    frames = frames_of(seed)
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    echo, transport = Echo(), Transport()
    connection = KafkaConnection(echo, asyncio.get_running_loop())
    connection.connection_made(transport)  # type: ignore[arg-type]
    at = 0
    while at < len(stream):
        size = rng.choice([1, 2, 3, 5, 100, 4_000])
        connection.data_received(stream[at : at + size])
        at += size
    assert echo.frames == frames
    rng.shuffle(echo.replies)
    for reply, frame in echo.replies:
        reply.send([frame])
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bytes(transport.written) == b"".join(frames), "answers leave in the order of requests"


def test_frames_are_cut_alike_however_they_arrive() -> None:
    for seed in range(200):
        asyncio.run(_run(seed))


def test_large_frames_of_many_clients_are_received_within_the_memory_for_requests() -> None:
    async def scenario(seed: int) -> None:
        rng = random.Random(seed)
        loop = asyncio.get_running_loop()
        echo = Echo()
        echo.request_bytes_max = 1_000_000
        memory = echo.requests = RequestMemory(400_000, loop)
        sent, clients = [], []
        for _ in range(6):
            frames = [rng.randbytes(rng.choice([10, 70_000, 150_000])) for _ in range(5)]
            stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
            connection, transport = KafkaConnection(echo, loop), Transport()
            connection.connection_made(transport)  # type: ignore[arg-type]
            sent += frames
            clients.append([connection, transport, stream])
        while echo.replies or any(stream for _, _, stream in clients):
            for client in rng.sample(clients, len(clients)):
                connection, transport, stream = client
                if not transport.pauses:
                    size = rng.choice([1, 3, 4, 5_000, 90_000, 200_000])
                    connection.data_received(stream[:size])
                    client[2] = stream[size:]
                assert memory.held_bytes <= memory.bytes_max
            rng.shuffle(echo.replies)
            for reply, frame in echo.replies[: rng.randrange(4)]:
                reply.send([frame])
                echo.replies.remove((reply, frame))
            await asyncio.sleep(0)
        assert sorted(echo.frames) == sorted(sent)
        await asyncio.sleep(0)
        assert memory.held_bytes == 0

    for seed in range(30):
        asyncio.run(scenario(seed))


async def test_a_frame_larger_than_the_limit_closes_the_connection() -> None:
    for size in (0, 7, 10_001, 2**31 - 1, 2**32 - 1):
        for chop in (1, 4, 8):
            echo, transport = Echo(), Transport()
            connection = KafkaConnection(echo, asyncio.get_running_loop())
            connection.connection_made(transport)  # type: ignore[arg-type]
            data = size.to_bytes(4, "big") + bytes(20)
            for at in range(0, len(data), chop):
                connection.data_received(data[at : at + chop])
            assert transport.is_closed
            assert not echo.frames


async def test_a_client_with_too_many_requests_under_way_is_not_read_from() -> None:
    echo, transport = Echo(), Transport()
    connection = KafkaConnection(echo, asyncio.get_running_loop())
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(((8).to_bytes(4, "big") + b"12345678") * 300)
    assert transport.pauses == 1
    for reply, frame in echo.replies:
        reply.send([frame])
    await asyncio.sleep(0)
    assert transport.pauses == 0


async def test_requests_during_which_the_input_was_held_follow_each_other() -> None:
    """However many: they are not handled one within the other."""

    class Holding(Echo):
        def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
            connection.hold_input()
            self.frames.append(bytes(frame))
            connection.release_input()

    echo, transport = Holding(), Transport()
    connection = KafkaConnection(echo, asyncio.get_running_loop())
    connection.connection_made(transport)  # type: ignore[arg-type]
    sent = [number.to_bytes(8, "big") for number in range(3_000)]
    connection.data_received(b"".join((8).to_bytes(4, "big") + frame for frame in sent))
    assert echo.frames == sent
    assert transport.pauses == 0


async def test_what_arrives_while_a_request_holds_the_input_waits() -> None:
    class Holding(Echo):
        def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
            self.frames.append(bytes(frame))
            connection.hold_input()

    for chop in (1, 5, 12, 40, 1_000):
        echo, transport = Holding(), Transport()
        connection = KafkaConnection(echo, asyncio.get_running_loop())
        connection.connection_made(transport)  # type: ignore[arg-type]
        sent = [bytes([number]) * 9 for number in range(20)]
        stream = b"".join((9).to_bytes(4, "big") + frame for frame in sent)
        for at in range(0, len(stream), chop):
            connection.data_received(stream[at : at + chop])
            assert echo.frames == sent[:1] if at + chop >= 13 else not echo.frames
        for count in range(2, len(sent) + 1):
            connection.release_input()
            assert echo.frames == sent[:count]


async def test_who_sends_many_requests_at_once_lets_others_have_their_turn() -> None:
    class Slow(Echo):
        def dispatch(self, connection: KafkaConnection, frame: memoryview) -> None:
            now_ns = connection.last_request_ns = self.now_ns()
            self.now_ns = lambda: now_ns + TURN_NS // 3
            self.frames.append(bytes(frame))

    echo, transports = Slow(), [Transport(), Transport()]
    loop = asyncio.get_running_loop()
    connections = [KafkaConnection(echo, loop) for _ in transports]
    for number, connection in enumerate(connections):
        connection.connection_made(transports[number])  # type: ignore[arg-type]
    for number, connection in enumerate(connections):
        connection.data_received(((8).to_bytes(4, "big") + bytes([number]) * 8) * 20)
    assert 2 <= len(echo.frames) <= 10
    assert bytes([1]) * 8 in echo.frames
    for _ in range(40):
        await asyncio.sleep(0)
    assert len(echo.frames) == 40
    assert [one.pauses for one in transports] == [0, 0]
