"""Answers that clients do not read have a bounded memory, and others have theirs meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from starlette.responses import Response
from tests.kit.turns import TurnCount
from tests.unit.http.http_rig import on_the_web
from tests.unit.http.served_rig import client, served

from headrace.broker.services import connection_memory
from headrace.http import answer_room
from headrace.http.answer_room import AnswerMemory, AnswerRoom
from headrace.http.connection import CONNECTION, SLICE_BYTES
from headrace.runtime.loop_turns import BEGUN_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.http.http_rig import Web
    from tests.unit.http.served_rig import Client

SIZE = 16 * 1024 * 1024
"""More than sockets take of a client that does not read."""
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Answering:
    """An application that answers as operations for records do."""

    def __init__(self, bytes_max: int) -> None:
        self.memory = AnswerMemory(bytes_max, asyncio.get_running_loop())
        self.granted: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        room = AnswerRoom(self.memory, scope["state"][CONNECTION])
        try:
            self.granted.append(await room.grant())
            response = Response(b"x" * SIZE)
            room.answered(response, 0)
            await response(scope, receive, send)
            room.sent()
        finally:
            room.rest()

    async def until_answered(self, count: int) -> None:
        async with asyncio.timeout(60):
            while len(self.granted) < count:
                await asyncio.sleep(0.001)

    async def until_held(self, size: int) -> None:
        async with asyncio.timeout(60):
            while self.memory.held_bytes != size:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def answering(bytes_max: int) -> AsyncIterator[tuple[Answering, tuple[str, int]]]:
    app = Answering(bytes_max)
    async with served(app) as address:
        yield app, address


@asynccontextmanager
async def two_clients(bytes_max: int) -> AsyncIterator[tuple[Answering, Client, Client]]:
    """Nothing is held once both have left."""
    async with (
        answering(bytes_max) as (app, address),
        client(address) as one,
        client(address) as other,
    ):
        yield app, one, other
        one.close()
        other.close()
        await app.until_held(0)
        assert not app.memory._memory._holders


async def loop_turns(count: int = 200) -> None:
    """So many of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


LONG = REQUEST.replace(b"/ ", b"/" + b"x" * SLICE_BYTES + b" ")


@pytest.mark.parametrize("second", [REQUEST, LONG], ids=["parsed", "not-parsed"])
def test_nothing_is_answered_beside_an_answer_that_is_not_read(second: bytes) -> None:
    async def scenario() -> None:
        async with answering(10 * SIZE) as (app, address), client(address) as one:
            one.send(REQUEST + second)
            await app.until_answered(1)
            await loop_turns()
            found = len(app.granted), app.memory.held_bytes
            for _ in range(2):
                assert len((await one.response())[2]) == SIZE
            await app.until_held(0)
            assert found == (1, SIZE)

    asyncio.run(scenario())


def test_what_is_granted_is_less_while_others_have_much() -> None:
    async def scenario() -> None:
        async with two_clients(2 * SIZE) as (app, one, other):
            one.send(REQUEST)
            await app.until_answered(1)
            await app.until_held(SIZE)
            other.send(REQUEST)
            await app.until_answered(2)
            assert app.granted[1] < app.granted[0]

    asyncio.run(scenario())


def test_a_request_waits_for_room_until_what_is_not_read_is_given_up(monkeypatch: Any) -> None:
    monkeypatch.setattr(connection_memory, "PATIENCE_S", 0.0)
    monkeypatch.setattr(connection_memory, "CHECK_S", 0.01)

    async def scenario() -> None:
        async with two_clients(SIZE) as (app, one, other):
            one.send(REQUEST)  # and reads nothing
            await app.until_answered(1)
            other.send(REQUEST)
            await app.until_answered(2)
            assert app.memory._memory.closed_count >= 1

    asyncio.run(scenario())


def test_clients_that_read_slowly_keep_nobody_waiting_for_room(monkeypatch: Any) -> None:
    """They are not disconnected, and others get little."""
    monkeypatch.setattr(connection_memory, "PATIENCE_S", 1e9)
    monkeypatch.setattr(answer_room, "WAIT_S", 0.01)

    async def scenario() -> None:
        async with two_clients(SIZE) as (app, one, other):
            one.send(REQUEST)
            await app.until_answered(1)
            await app.until_held(SIZE)
            other.send(REQUEST)
            await app.until_answered(2)
            assert app.granted[1] == connection_memory.RESPONSE_BYTES_MIN
            assert app.memory._memory.closed_count == 0

    asyncio.run(scenario())


@on_the_web
async def test_operations_begin_in_turns(web: Web) -> None:
    begun: list[int] = []
    turns = TurnCount(web.node.services.turns)
    look_up = web.node.services.topics.look_up

    async def noted(name: str) -> Any:
        begun.append(turns.number)
        return await look_up(name)

    web.node.services.topics.look_up = noted  # type: ignore[method-assign]
    await asyncio.gather(*(web.ask("GET", "/v1/topics/none") for _ in range(3 * BEGUN_MAX)))
    of_turns = Counter(begun)
    assert len(begun) == 3 * BEGUN_MAX
    assert max(of_turns.values()) <= BEGUN_MAX


@on_the_web
async def test_nothing_is_read_for_a_client_that_left_before_its_turn(web: Web) -> None:
    """It would keep others waiting, and connections that are closed have no limit."""
    turns, read = web.node.services.turns, list[str]()
    look_up = web.node.services.topics.look_up

    async def noted(name: str) -> Any:
        read.append(name)
        return await look_up(name)

    web.node.services.topics.look_up = noted  # type: ignore[method-assign]
    connections: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        connections.append(scope["state"][CONNECTION])
        await web.app(scope, receive, send)

    def ask(name: bytes) -> bytes:
        return b"GET /v1/topics/%s HTTP/1.1\r\nHost: localhost\r\n\r\n" % name

    async with served(app) as address, client(address) as one, client(address) as other:
        turns.end_turn_soon = lambda: None  # type: ignore[method-assign]
        turns.may_begin = False
        one.send(ask(b"left"))
        other.send(ask(b"here"))
        async with asyncio.timeout(60):
            while len(connections) < 2:
                await asyncio.sleep(0.001)
            one.close()
            while not any(each.is_over for each in connections):
                await asyncio.sleep(0.001)
        del turns.end_turn_soon
        turns.end_turn_soon()
        assert (await other.response())[0] == 404
        assert turns.may_begin, "nobody waits"
        assert read == ["here"]
