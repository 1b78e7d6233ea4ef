"""Deaths of other brokers as seen by connections, and the answers to clients meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.waiting import until

from headrace.broker.ownership import departures, peers
from headrace.broker.ownership.departures import Departures
from headrace.broker.ownership.peers import Peers
from headrace.metadata.facts import BrokerFact
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

TWO = BrokerFact(2, "127.0.0.1", 9093, "127.0.0.1", 0, 0, incarnation="two")


class Line:
    """One end of a connection to a broker that responds while it lives."""

    def __init__(self, peer: Peer, on_end: Callable[[], None]) -> None:
        self._peer, self._on_end = peer, on_end
        self.ended = asyncio.Event()

    def end(self) -> None:
        if not self.ended.is_set():
            self.ended.set()
            self._on_end()

    async def ping(self) -> None:
        if not self._peer.lives:
            await self.ended.wait()
        if self.ended.is_set():
            raise ConnectionResetError

    def abort(self) -> None:
        self.end()


class Peer:
    """A broker whose process may be killed: its system refuses connections after a while only."""

    def __init__(self) -> None:
        self.lives = True
        self.is_reached = True
        self.resets = 0
        """connections that its system still accepts after its death"""
        self.lines: list[Line] = []

    async def open_line(self, broker: BrokerFact, mine: str, on_end: Callable[[], None]) -> Line:
        assert (broker.id, mine) == (2, "one")
        if not self.is_reached:
            raise TimeoutError
        if self.lives:
            self.lines.append(Line(self, on_end))
            return self.lines[-1]
        if self.resets:
            self.resets -= 1
            raise ConnectionResetError
        raise ConnectionRefusedError

    def die(self, resets: int = 0) -> None:
        self.lives, self.resets = False, resets
        for line in self.lines:
            line.end()


class WatchedPeer:
    """Broker 1, which watches broker 2."""

    def __init__(self) -> None:
        self.departures = Departures()
        self.tasks = Tasks()
        self.peer = Peer()
        self.peers = Peers(1, "one", self.tasks, self.departures, self.peer.open_line)
        self.departures.owner_changed(None, "two")

    async def start(self) -> None:
        self.peers.follow({2: TWO})
        await until(lambda: bool(self.peer.lines))
        await asyncio.sleep(0.01)

    async def waited_s(self) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.departures.wait_settled()
        return loop.time() - began


@asynccontextmanager
async def watching() -> AsyncIterator[WatchedPeer]:
    world = WatchedPeer()
    try:
        yield world
    finally:
        await world.tasks.close()


@pytest.mark.parametrize("resets", [0, 1, 10])
async def test_a_killed_broker_is_doubtful_although_its_system_still_accepts(resets):
    async with watching() as world:
        await world.start()
        world.peer.die(resets)
        assert world.departures.doubtful == {"two"}
        await asyncio.sleep((resets + peers.PROBES + 3) * peers.PROBE_GAP_S)
        assert world.departures.doubtful == {"two"}
        world.departures.left(TWO)
        assert not world.departures.doubtful


async def test_a_broker_whose_address_refuses_is_trusted_again_while_it_is_registered(monkeypatch):
    """A firewall or a proxy on the way refuses as well: the broker may serve its clients."""
    monkeypatch.setattr(peers, "RETRY_S", 0.05)

    async with watching() as world:
        await world.start()
        world.peer.die()
        assert world.departures.doubtful == {"two"}
        await until(lambda: not world.departures.doubtful)
        await asyncio.sleep(0.2)
        assert not world.departures.doubtful


async def test_clients_wait_until_the_partitions_of_a_killed_broker_have_other_owners(monkeypatch):
    monkeypatch.setattr(departures, "SETTLE_S", 1_000)

    async with watching() as world:
        await world.start()
        assert await world.waited_s() < departures.SETTLE_S
        world.peer.die()
        waiting = asyncio.create_task(world.waited_s())
        await asyncio.sleep(0.1)
        world.departures.left(TWO)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        world.departures.owner_changed("two", "one")
        assert 0.15 < await waiting < departures.SETTLE_S


async def test_clients_wait_only_so_long(monkeypatch):
    monkeypatch.setattr(departures, "SETTLE_S", 0.2)

    async with watching() as world:
        await world.start()
        world.peer.die()
        assert await world.waited_s() > 0.15


async def test_a_broker_that_closes_a_line_and_responds_is_trusted(monkeypatch):
    monkeypatch.setattr(peers, "HELD_S", 0.0)

    async with watching() as world:
        await world.start()
        world.peer.lines[-1].end()
        assert world.departures.doubtful == {"two"}
        await until(lambda: not world.departures.doubtful)
        await until(lambda: not world.peer.lines[-1].ended.is_set())
        await asyncio.sleep(0.01)
        world.peers.line_ended("two")  # its own one, too
        assert world.departures.doubtful == {"two"}
        await until(lambda: not world.departures.doubtful)
        assert await world.waited_s() < departures.SETTLE_S


async def test_the_end_of_the_other_brokers_line_is_the_first_sign_of_its_death():
    async with watching() as world:
        await world.start()
        world.peer.lives = False  # what it had open is being closed
        world.peers.line_ended("two")
        await asyncio.sleep(0.1)
        assert world.departures.doubtful == {"two"}
        world.peer.die()
        await asyncio.sleep(0.1)
        assert world.departures.doubtful == {"two"}


async def test_a_broker_that_only_this_one_cannot_reach_is_left_to_its_session(monkeypatch):
    monkeypatch.setattr(peers, "RETRY_S", 0.05)

    async with watching() as world:
        await world.start()
        world.peer.is_reached = False
        world.peer.lines[-1].end()
        await until(lambda: not world.departures.doubtful)
        await asyncio.sleep(0.2)
        assert not world.departures.doubtful


async def test_a_line_of_an_unknown_broker_means_nothing():
    async with watching() as world:
        await world.start()
        world.peers.line_ended("unknown")
        assert not world.departures.doubtful


async def test_no_client_waits_for_a_broker_that_handed_over_everything():
    async with watching() as world:
        await world.start()
        world.departures.owner_changed("two", "one")
        world.departures.left(TWO)
        world.peer.die()
        assert await world.waited_s() < departures.SETTLE_S


async def test_a_broker_stays_listed_for_a_moment(monkeypatch):
    monkeypatch.setattr(departures, "LISTED_S", 1.0)

    async with watching() as world:
        one = BrokerFact(1, "127.0.0.1", 9092, "127.0.0.1", 0, 0, incarnation="one")
        world.departures.left(TWO)
        assert [fact.id for fact in world.departures.listed([one])] == [1, 2]
        back = replace(TWO, kafka_port=9999, incarnation="two again")
        listed = world.departures.listed([back, one])
        assert [(fact.id, fact.kafka_port) for fact in listed] == [(1, 9092), (2, 9999)]
        await until(lambda: [fact.id for fact in world.departures.listed([one])] == [1])
