"""One connection to a bookie, against a server that answers as the test says, or does not."""

from __future__ import annotations

import asyncio
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import uvloop

from headrace.runtime import compiled
from headrace.runtime.tasks import Tasks
from headrace.storage.bookkeeper.bookie_connection import BookieConnection
from headrace.storage.bookkeeper.ledger_metadata import BookieAddress
from headrace.storage.bookkeeper.wire import (
    ADD,
    BATCH_READ,
    DISCONNECTED,
    FENCED,
    NO_ENTRY,
    OK,
    OVERLOADED,
    READ,
    TIMED_OUT,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TIMEOUT_MS = 30_000
SHORT_MS = 1_000
"""Where it shall pass; longer than a busy machine takes for what shall not time out."""


class Server:
    """Keeps requests; answers on demand."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                self.asked.put_nowait(await reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def send(self, data: bytes) -> None:
        self.writers[-1].write(data)

    def answer(self, operation: int, code: int, ledger: int, entry: int, body: bytes = b"") -> None:
        head = struct.pack(">Iiqq", 2 << 24 | operation << 16, code, ledger, entry)
        self.send(struct.pack(">I", len(head) + len(body)) + head + body)


@asynccontextmanager
async def connected(
    kind: type[BookieConnection] = BookieConnection,
    bytes_max: int = 1 << 20,
    timeout_ms: int = TIMEOUT_MS,
) -> AsyncIterator[tuple[Server, BookieConnection]]:
    """A server, and a connection to it that is made when something is asked."""
    server, tasks = Server(), Tasks()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]

    async def resolve(_bookie: str) -> BookieAddress:
        return BookieAddress("127.0.0.1", port)

    connection = kind("b", resolve, tasks, timeout_ms=timeout_ms, bytes_max=bytes_max)
    try:
        yield server, connection
    finally:
        connection.close()
        await tasks.close()
        listener.close()
        for writer in server.writers:
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])


def asking(connection: BookieConnection) -> Callable[..., asyncio.Future[tuple[int, bytes]]]:
    """ask(ledger, entry, fence=False): the answer, as a future."""

    def ask(ledger: int, entry: int, *, fence: bool = False) -> asyncio.Future[tuple[int, bytes]]:
        future: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

        def answered(code: int, body: memoryview, _context: object) -> None:
            future.set_result((code, bytes(body)))

        if fence:
            connection.fencing_read(ledger, entry, bytes(20), answered, None)
        else:
            connection.read(ledger, entry, answered, None)
        return future

    return ask


async def test_answers_find_their_requests_in_any_order_and_in_any_pieces():
    async with connected() as (server, connection):
        ask = asking(connection)
        first, second, third = ask(1, 1), ask(1, 2), ask(2, 1)
        for _ in range(3):
            await server.asked.get()
        head = struct.pack(">IIiqq", 24 + 5, 2 << 24 | READ << 16, OK, 2, 1)
        data = head + b"third" + struct.pack(">IIiqq", 24, 2 << 24 | READ << 16, NO_ENTRY, 1, 1)
        for at in range(0, len(data), 7):
            server.send(data[at : at + 7])
            await asyncio.sleep(0.001)
        server.answer(READ, OK, 1, 2, b"second" * 50_000)
        assert await third == (OK, b"third")
        assert await first == (NO_ENTRY, b"")
        assert await second == (OK, b"second" * 50_000)
        assert connection.in_flight_bytes == 0


async def test_answers_to_adds_are_parsed_wherever_the_stream_is_cut():
    """Among answers to reads, in one piece, byte by byte, and with every cut in two."""
    answers = b"".join(
        struct.pack(">IIiqq", 24 + len(body), 2 << 24 | operation << 16, code, 1, entry) + body
        for operation, entry, code, body in (
            (ADD, 1, OK, b""),
            (READ, 1, OK, b"one"),
            (ADD, 2, FENCED, b""),
            (ADD, 3, OK, b""),
            (READ, 3, NO_ENTRY, b""),
        )
    )
    expected = [(ADD, 1, OK), (READ, 1, OK), (ADD, 2, FENCED), (ADD, 3, OK), (READ, 3, NO_ENTRY)]

    async with connected() as (_server, connection):
        told = []

        def answered(code, _body, context):
            told.append((*context, code))

        def ask():
            told.clear()
            for entry in (1, 2, 3):
                connection.add(1, entry, b"frame %d" % entry, answered, (ADD, entry))
            for entry in (1, 3):
                connection.read(1, entry, answered, (READ, entry))

        ask()
        while connection._transport is None:
            await asyncio.sleep(0)
        connection.data_received(answers)
        assert told == expected
        for size in (1, *range(2, len(answers))):
            ask()
            for at in range(0, len(answers), size):
                connection.data_received(answers[at : at + size])
            assert told == expected, size
        assert connection.in_flight_bytes == 0


async def test_a_prepared_connection_connects_once_for_earlier_and_later_requests():
    async with connected() as (server, connection):
        ask = asking(connection)
        connection.prepare()
        early = ask(1, 1)
        connection.prepare()
        await server.asked.get()
        server.answer(READ, NO_ENTRY, 1, 1)
        assert await early == (NO_ENTRY, b"")
        connection.prepare()
        late = ask(1, 2)
        await server.asked.get()
        server.answer(READ, OK, 1, 2, b"x")
        assert await late == (OK, b"x")
        assert len(server.writers) == 1
        connection.close()
        connection.prepare()  # changes nothing any more


async def test_a_fencing_read_is_never_answered_by_the_answer_to_a_plain_one():
    async with connected() as (server, connection):
        ask = asking(connection)
        plain, fencing = ask(1, 5), ask(1, 5, fence=True)
        frame = await server.asked.get()
        assert len(frame) == 20  # no fence
        await asyncio.sleep(0.01)
        assert server.asked.empty(), "the second waits for the answer to the first"
        server.answer(READ, NO_ENTRY, 1, 5)
        assert await plain == (NO_ENTRY, b"")
        assert len(await server.asked.get()) == 40
        assert not fencing.done()
        server.answer(READ, OK, 1, 5, b"fenced")
        assert await fencing == (OK, b"fenced")


async def test_an_answer_that_comes_too_late_is_not_taken_for_that_to_the_next_request():
    async with connected(timeout_ms=SHORT_MS) as (server, connection):
        ask = asking(connection)
        late = ask(1, 5)
        await server.asked.get()
        keep_alive = asyncio.get_running_loop().time() + 60
        while not late.done():  # it is alive, and answers others
            other = ask(9, 9)
            await server.asked.get()
            server.answer(READ, OK, 9, 9)
            await other
            await asyncio.sleep(0.02)
            assert asyncio.get_running_loop().time() < keep_alive
        assert (await late)[0] == TIMED_OUT
        fencing = ask(1, 5, fence=True)
        await asyncio.sleep(0.01)
        server.answer(READ, OK, 1, 5, b"late")
        assert len(await server.asked.get()) == 40
        assert not fencing.done()
        server.answer(READ, OK, 1, 5, b"fenced")
        assert await fencing == (OK, b"fenced")
        assert len(server.writers) == 1


async def test_a_bookie_that_says_nothing_is_given_up_with_all_that_it_owes():
    async with connected(timeout_ms=SHORT_MS) as (server, connection):
        ask = asking(connection)
        connection._backoff_s = 60.0
        owed = [ask(1, entry) for entry in range(5)] + [ask(1, 0)]
        codes = {code for code, _ in await asyncio.gather(*owed)}
        assert codes <= {TIMED_OUT, DISCONNECTED}
        assert (await ask(1, 9))[0] == DISCONNECTED  # not again at once
        connection._retry_at = 0.0
        again = ask(1, 10)
        while (frame := await server.asked.get())[-1] != 10:
            assert len(frame) == 20
        server.answer(READ, OK, 1, 10)
        assert (await again)[0] == OK
        assert len(server.writers) == 2


async def test_more_than_a_bookie_may_owe_is_refused():
    async with connected(bytes_max=1_000) as (_server, connection):
        codes: list[int] = []

        def answered(code: int, _body: memoryview, _context: object) -> None:
            codes.append(code)

        for entry in range(5):
            connection.add(1, entry, bytes(400), answered, None)
        await asyncio.sleep(0.01)
        assert codes == [OVERLOADED] * 3
        assert connection.in_flight_bytes == 800


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">I", 1 << 31),
        struct.pack(">I", 3) + b"abc",
        struct.pack(">IIiqq", 24, 7 << 24 | READ << 16, OK, 1, 1),
        struct.pack(">IIiqq", 24, 2 << 24 | READ << 16, OK, 8, 8),
        struct.pack(">IIiqq", 24, 2 << 24 | BATCH_READ << 16, OK, 1, 1),
    ],
    ids=["huge", "short", "version", "unasked", "no request id"],
)
async def test_a_bookie_that_sends_what_cannot_be_is_disconnected(garbage):
    async with connected() as (server, connection):
        ask = asking(connection)
        owed = ask(1, 1)
        await server.asked.get()
        server.send(garbage)
        assert (await owed)[0] == DISCONNECTED


async def test_requests_to_an_absent_bookie_fail_at_once_or_soon():
    async with connected() as (_server, connection):

        async def nowhere(_bookie: str) -> BookieAddress:
            raise ConnectionError("not registered")

        connection._resolve = nowhere
        ask = asking(connection)
        codes = await asyncio.gather(ask(1, 1), ask(1, 2))
        assert [code for code, _ in codes] == [DISCONNECTED] * 2
        assert (await ask(1, 3))[0] == DISCONNECTED
        connection.close()
        assert (await ask(1, 4))[0] == DISCONNECTED


class MadeTooLate(BookieConnection):
    """Its first connection is made at the very moment in which the time for it is over."""

    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.count += 1
        super().connection_made(transport)
        if self.count == 1:
            (task,) = (one for one in asyncio.all_tasks() if "connect to" in one.get_name())
            task.cancel()


@pytest.mark.skipif(compiled.is_used(), reason="a compiled class has no heirs in Python")
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_connection_that_exceeded_its_time_is_made_again(loop):
    """The loop closes it without a notice: every request timed out from then on, for good."""

    async def main() -> None:
        async with connected(MadeTooLate, timeout_ms=SHORT_MS) as (server, connection):
            ask = asking(connection)
            code, _ = await asyncio.wait_for(ask(1, 1), 60)
            assert code == DISCONNECTED, "nothing is left to wait for"
            entry = 0
            while code != OK:
                await asyncio.sleep(0.02)
                entry += 1
                asked = ask(7, entry)
                await asyncio.wait([asked], timeout=0.02)
                if connection.count > 1:
                    server.answer(READ, OK, 7, entry)
                code, _ = await asked

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(main(), 60))
