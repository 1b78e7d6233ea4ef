"""Calls to another broker: several at a time, each on a connection of its own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting import until

from headrace.errors import BrokerUnreachable
from headrace.kafka import apis
from headrace.kafka.client.asynchronous import AsyncConnection
from headrace.kafka.peers import client
from headrace.kafka.peers.client import MARKERS_VERSION, PeerConnections, PeerTarget

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NO_MARKERS = b"\x00\x01\x00"
"""The rest of a response: no tags in its header, no markers, no tags in its body."""


class Peer:
    """Answers WriteTxnMarkers once it may."""

    def __init__(self) -> None:
        self.may_answer: list[asyncio.Event] = []
        """One for each request, in order of arrival."""
        self.connection_count = 0
        self.open_count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connection_count += 1
        self.open_count += 1
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                request = await reader.readexactly(size)
                may_answer = asyncio.Event()
                self.may_answer.append(may_answer)
                await may_answer.wait()
                answer = request[4:8] + NO_MARKERS
                writer.write(len(answer).to_bytes(4, "big") + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            self.open_count -= 1

    async def close(self) -> None:
        """Wait until all connections are closed, as the other end has closed them."""
        async with asyncio.timeout(30):
            while self.open_count:
                for one in self.may_answer:
                    one.set()
                await asyncio.sleep(0.001)

    async def asked(self, count: int) -> None:
        await until(lambda: len(self.may_answer) >= count)


@asynccontextmanager
async def rig(count_max: int) -> AsyncIterator[tuple[Peer, PeerConnections]]:
    peer = Peer()
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    connections = PeerConnections(PeerTarget(server.sockets[0].getsockname()[:2]), count_max)
    try:
        yield peer, connections
    finally:
        connections.close()
        server.close()
        await peer.close()


def call(connections: PeerConnections, timeout_s: float = 30.0) -> asyncio.Task[object]:
    body = {"markers": []}
    return asyncio.create_task(
        connections.call(apis.WRITE_TXN_MARKERS, MARKERS_VERSION, body, timeout_s)
    )


async def test_a_call_does_not_wait_for_one_that_takes_long() -> None:
    async with rig(2) as (peer, connections):
        slow = call(connections)
        await peer.asked(1)
        for number in range(5):  # all on the second connection
            quick = call(connections)
            await peer.asked(number + 2)
            peer.may_answer[-1].set()
            assert not (await quick).markers
        assert not slow.done()
        assert peer.connection_count == 2
        peer.may_answer[0].set()
        await slow


async def test_connections_are_limited_and_a_call_that_waits_for_one_has_its_timeout() -> None:
    async with rig(2) as (peer, connections):
        held = [call(connections) for _ in range(2)]
        await peer.asked(2)
        with pytest.raises(BrokerUnreachable, match="all 2 connections to it are busy"):
            await call(connections, 0.05)
        waiting = call(connections)
        await asyncio.sleep(0.01)
        assert len(peer.may_answer) == 2
        for one in peer.may_answer:
            one.set()
        await asyncio.gather(*held)
        await peer.asked(3)
        peer.may_answer[2].set()
        await waiting
        assert peer.connection_count == 2


async def test_a_connection_without_an_answer_in_time_is_not_used_again() -> None:
    async with rig(1) as (peer, connections):
        first = call(connections)
        await peer.asked(1)
        peer.may_answer[0].set()
        await first
        with pytest.raises(BrokerUnreachable, match="did not answer"):
            await call(connections, 0.05)
        await peer.asked(2)  # it was sent at once, since there was a connection
        following = call(connections)
        await peer.asked(3)
        assert peer.connection_count == 2
        peer.may_answer[2].set()
        await following


async def test_a_connection_that_is_being_opened_does_not_outlive_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with rig(1) as (peer, connections):
        open_one, may_open = AsyncConnection.open, asyncio.Event()

        async def held_up(*arguments: Any) -> AsyncConnection:
            made = await open_one(*arguments)
            await may_open.wait()
            return made

        monkeypatch.setattr(AsyncConnection, "open", held_up)
        late = call(connections)
        await until(lambda: peer.connection_count == 1)
        connections.close()
        may_open.set()
        await peer.asked(1)
        peer.may_answer[0].set()
        await late
        await peer.close()  # waits until the other end has closed it


async def test_connections_that_a_burst_has_opened_are_closed_when_nothing_uses_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "IDLE_S_MAX", 0.2)
    async with rig(3) as (peer, connections):
        burst = [call(connections) for _ in range(3)]
        await peer.asked(3)
        assert peer.open_count == 3
        for one in peer.may_answer:
            one.set()
        await asyncio.gather(*burst)
        await until(lambda: peer.open_count == 0)
        late = call(connections)
        await peer.asked(4)
        peer.may_answer[3].set()
        await late
