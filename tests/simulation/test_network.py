"""The simulated network keeps the promises that asyncio's transports make."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_verify.rng import seeded
from headrace_verify.simulation.loop import OUTSIDE, Host, SimulatedLoop
from headrace_verify.simulation.network import Network

PLACE, PORT = "server", 7


class _Greets(asyncio.Protocol):
    """A server that sends everything as soon as a client connects."""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"go ")
        transport.write(b"away")
        transport.close()


class _Notes(asyncio.Protocol):
    """A client that records what it receives, and may ask for patience at once."""

    def __init__(self, patience_s: float) -> None:
        self.told: list[str] = []
        self.over = asyncio.get_running_loop().create_future()
        self._patience_s = patience_s

    def connection_made(self, transport: Any) -> None:
        self.told.append("made")
        if self._patience_s:
            transport.pause_reading()
            asyncio.get_running_loop().call_later(self._patience_s, transport.resume_reading)

    def data_received(self, data: bytes) -> None:
        self.told.append(data.decode())

    def eof_received(self) -> bool | None:
        self.told.append("end")
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")
        self.over.set_result(exc)


@pytest.mark.parametrize("patience_s", [0.0, 2.0])
@pytest.mark.parametrize("paused_s", [0.0, 0.000_1, 1.0])
def test_data_sent_before_the_client_learns_of_its_connection_waits_for_it(paused_s, patience_s):
    """A client that stands still while its connection comes and goes: all of it was in one turn,
    and the end was reported to a protocol that did not exist yet."""
    loop = SimulatedLoop()
    faults: list[Any] = []
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    network = loop.network = Network(loop, seeded("network"))
    server, client = Host(PLACE), Host("client")

    async def ask() -> list[str]:
        loop.call_soon(lambda: network.listen(_Greets, PLACE, PORT), context=server.context)
        await asyncio.sleep(0.1)
        made = loop.create_connection(lambda: _Notes(patience_s), PLACE, PORT)
        client.is_paused = bool(paused_s)
        if paused_s:
            loop.deliver_at(loop.now_s + paused_s, loop.resume, client, context=OUTSIDE)
        protocol: _Notes
        _, protocol = await made
        await protocol.over
        return protocol.told

    async def main() -> list[str]:
        task: asyncio.Task[list[str]] = client.run(lambda: loop.create_task(ask()))
        return await task

    try:
        assert loop.run_until_complete(main()) == ["made", "go ", "away", "end", "lost"]
        assert faults == []
    finally:
        loop.bury([server, client])
