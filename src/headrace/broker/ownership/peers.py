"""Suspects that another broker's process has died, before its registration ends.

Invariants: suspicion only. It decides what clients are told meanwhile (`Departures`), never who
owns what: no broker removes another one's registration. Connections that are reset and refused
prove nothing about the process: a firewall, a namespace or a proxy on the way does the same to a
broker that lives and answers its clients, and a stopped broker cannot learn what others make of it.
The proof comes from the broker's own machine (`zookeeper/session_ender`) or from the end of its
session.

Each broker keeps one idle connection to every other broker. When a process dies, its machine closes
the connection at once and refuses the next one. Between two brokers there are two lines, one opened
by each. The end of either makes the other broker doubtful, until it responds, or has not for a
while: then others may reach it, and its session decides.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.ownership.departures import Departures
    from headrace.broker.topics.ownership import OpenLine, PeerLine
    from headrace.metadata.facts import BrokerFact
    from headrace.runtime.tasks import Tasks

CONNECT_TIMEOUT_S = 2.0
RETRY_S = 5.0
"""Until an unreachable peer is tried again."""
HELD_S = 1.0
"""A connection that lasted this long was accepted for good."""
PROBES = 2
"""Refused in succession."""
PROBES_MAX = 50
"""The system of a killed process needs a while to close all that was open."""
PROBE_GAP_S = 0.02


class Peers:
    """Watches the other brokers of a cluster."""

    def __init__(
        self,
        me: int,
        incarnation: str,
        tasks: Tasks,
        departures: Departures,
        open_line: OpenLine | None,
    ) -> None:
        """`open_line`: None if no other broker is watched."""
        self._me = me
        self._incarnation = incarnation
        self._departures = departures
        self._tasks = tasks
        self._watched: dict[str, asyncio.Task[None]] = {}
        self._lines: dict[str, PeerLine] = {}
        self._open_line = open_line

    def follow(self, brokers: Mapping[int, BrokerFact]) -> None:
        """Watch these brokers, and no others."""
        if self._open_line is None:
            return
        wanted = {
            fact.incarnation: fact
            for fact in brokers.values()
            if fact.id != self._me and fact.incarnation is not None
        }
        for incarnation in [known for known in self._watched if known not in wanted]:
            self._watched.pop(incarnation).cancel()
        for incarnation, fact in wanted.items():
            if incarnation not in self._watched:
                task = self._tasks.start(
                    self._watch(self._open_line, fact, incarnation), f"peer {fact.id}"
                )
                self._watched[incarnation] = task

    def line_ended(self, incarnation: str) -> None:
        """The line that another broker had opened to this one has ended."""
        line = self._lines.get(incarnation)
        if line is not None and not line.ended.is_set():
            self._departures.doubt(incarnation)
            self._tasks.spawn(self._reconsider(line, incarnation), "ping of a peer")

    async def _reconsider(self, line: PeerLine, incarnation: str) -> None:
        with suppress(OSError):
            await line.ping()  # no response: the line's end decides
            self._departures.trust(incarnation)

    async def _watch(self, open_line: OpenLine, fact: BrokerFact, incarnation: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if not await self._hold(open_line, fact, incarnation):
                self._departures.trust(incarnation)  # others may reach it
                await asyncio.sleep(RETRY_S)
            elif await self._is_refused(open_line, fact):
                await asyncio.sleep(RETRY_S)  # probably its registration ends soon
            else:
                self._departures.trust(incarnation)
                if loop.time() - began < HELD_S:
                    await asyncio.sleep(RETRY_S)  # it accepts connections and drops them

    async def _hold(self, open_line: OpenLine, fact: BrokerFact, incarnation: str) -> bool:
        """Connect and wait for the connection to end; False if it could not be opened."""

        def ended() -> None:
            if incarnation in self._lines:
                self._departures.doubt(incarnation)

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                line = await open_line(fact, self._incarnation, ended)
        except (OSError, TimeoutError):
            return False
        self._departures.trust(incarnation)
        self._lines[incarnation] = line
        try:
            await line.ended.wait()
        finally:
            del self._lines[incarnation]
            line.abort()
        return True

    async def _is_refused(self, open_line: OpenLine, fact: BrokerFact) -> bool:
        """Whether the broker's address refuses connections. While the system closes what a killed
        process had open, it still accepts some, but no one responds."""
        refused = 0
        for _ in range(PROBES_MAX):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    line = await open_line(fact, self._incarnation, lambda: None)
            except ConnectionRefusedError:
                refused += 1
                if refused == PROBES:
                    return True
            except TimeoutError:
                return False
            except OSError:
                refused = 0
            else:
                line.abort()
                return False
            await asyncio.sleep(PROBE_GAP_S)
        return False
