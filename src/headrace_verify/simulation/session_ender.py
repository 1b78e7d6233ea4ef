"""The process beside a simulated broker that ends its session after its death.

Invariants: holds the production dialogue (`zookeeper.session_ender`) over the simulated network,
from the broker's machine: a link that is cut holds it up as well. It has a life of its own, which a
fault may end together with the broker's.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.zookeeper import wire
from headrace.zookeeper.session_ender import PAUSE_S, ROUND_PARTS, TRIES_FOR, end_session
from headrace.zookeeper.wire import BrokenAnswer
from headrace_verify.simulation.loop import Host

if TYPE_CHECKING:
    from headrace.zookeeper.session_ender import OpenSession
    from headrace_verify.simulation.world import World


class SimulatedEnder:
    """The process beside one life of a broker."""

    def __init__(self, world: World, host: Host) -> None:
        """`host`: the broker's."""
        self._world = world
        self._host = Host(host.name, host.life)
        self._session: OpenSession | None = None
        world.hosts.append(self._host)

    def note(self, session: OpenSession | None) -> None:
        """See `zookeeper.session_ender_process`."""
        self._session = session

    def kill(self) -> None:
        """Its life ends, too."""
        self._host.is_alive = False
        self._world.network.end(self._host, is_notified=False)

    def act(self) -> None:
        """The broker's process has ended."""
        session, loop = self._session, self._world.loop
        if session is None:
            return

        def begin() -> None:
            _ = loop.create_task(self._end(session), name=f"the session of {self._host.name} ends")

        loop.call_soon(begin, context=self._host.context)

    async def _end(self, session: OpenSession) -> None:
        loop = self._world.loop
        ends_s = loop.time() + session.timeout_ms * TRIES_FOR / 1000
        while loop.time() < ends_s:
            for host, port in session.servers:
                try:
                    async with asyncio.timeout(session.timeout_ms / 1000 / ROUND_PARTS):
                        if await self._ask(host, port, session):
                            return
                except (OSError, EOFError, BrokenAnswer):
                    continue
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, host: str, port: int, session: OpenSession) -> bool:
        loop = self._world.loop
        reader = asyncio.StreamReader(loop=loop)
        transport, _ = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader, loop=loop), host, port
        )
        try:
            dialogue = end_session(session)
            frame = next(dialogue)
            while True:
                transport.write(frame)
                (size,) = wire.INT.unpack(await reader.readexactly(wire.INT.size))
                try:
                    frame = dialogue.send(await reader.readexactly(size))
                except StopIteration as end:
                    return bool(end.value)
        finally:
            transport.abort()
