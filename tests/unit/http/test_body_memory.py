"""Large bodies of all clients have a bounded memory, and one that stands still gives way."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from starlette.requests import Request
from tests.unit.http.served_rig import client, served

from headrace.errors import QuotaExceeded
from headrace.http import body_memory, operations
from headrace.http.body_memory import TENANT_FRACTION, Body, BodyMemory
from headrace.http.problems import refused

SIZE = 900_000
BODY = json.dumps({"text": "x" * SIZE}).encode()
HEAD = (
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
)


async def two_at_once(patience_s: float, monkeypatch) -> tuple[int, int]:
    """The statuses of a request that has stopped before its end, and goes on after another one was
    answered, and of that."""
    monkeypatch.setattr(body_memory, "PATIENCE_S", patience_s)
    memory = BodyMemory(SIZE + SIZE // 2)

    async def answer(scope, receive, send) -> None:
        try:
            with Body(memory) as held:
                body = await operations.read_body(Request(scope, receive), held, is_required=True)
            size = len(body["text"])
        except QuotaExceeded as error:
            await refused(error)(scope, receive, send)
            return
        head = [(b"content-length", b"%d" % len(str(size)))]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": str(size).encode()})

    async with served(answer) as address, client(address) as slow, client(address) as other:
        slow.send(HEAD + BODY[:-10])
        async with asyncio.timeout(60):
            while memory.held_bytes < SIZE:
                await asyncio.sleep(0.01)
        other.send(HEAD + BODY)
        status = (await other.response())[0]
        slow.send(BODY[-10:])
        found = (await slow.response())[0], status
    assert memory.held_bytes == 0
    return found


def test_a_body_that_stands_still_gives_way_to_others(monkeypatch) -> None:
    assert asyncio.run(two_at_once(0.0, monkeypatch)) == (429, 200)


def test_a_body_for_which_there_is_no_memory_is_refused(monkeypatch) -> None:
    assert asyncio.run(two_at_once(1e9, monkeypatch)) == (200, 429)


def test_a_tenant_has_a_part_of_the_memory() -> None:
    async def scenario() -> None:
        memory = BodyMemory(TENANT_FRACTION * SIZE)
        with Body(memory) as one, Body(memory) as second, Body(memory) as other:
            one.tenant = second.tenant = "acme"
            other.tenant = "beta"
            one.grow(SIZE)
            with pytest.raises(QuotaExceeded):
                second.grow(SIZE)
            other.grow(SIZE)
        assert memory.held_bytes == 0

    asyncio.run(scenario())


def test_one_whose_time_is_over_gives_way_before_it_is_resumed(monkeypatch) -> None:
    """It waits for its turn of the event loop."""
    monkeypatch.setattr(body_memory, "PATIENCE_S", 0.0)

    async def scenario() -> None:
        memory = BodyMemory(SIZE)
        turn = asyncio.Event()

        async def receive() -> None:
            with Body(memory) as late, suppress(TimeoutError):
                async with asyncio.timeout(0) as late.timer:
                    late.grow(SIZE)
                    try:
                        await asyncio.get_running_loop().create_future()
                    finally:
                        await turn.wait()

        late = asyncio.create_task(receive())
        for _ in range(5):
            await asyncio.sleep(0)
        with Body(memory) as other:
            other.grow(SIZE)
        turn.set()
        await late
        assert memory.held_bytes == 0

    asyncio.run(scenario())
