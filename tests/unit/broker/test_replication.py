"""What a broker says of its bookies, of missing copies and of what it cannot write."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from uuid import UUID

from tests.clocks import HandClock

from headrace.broker.housekeeping.replication import Replication, count_partitions
from headrace.broker.topics.ownership import NO_LEADER, Leader
from headrace.broker.topics.topic import ForeignPartition, Topic
from headrace.runtime.session import Session
from headrace.storage.ledger import Replicas

SECOND = 1_000_000_000
BOOKIES = ("b0", "b1", "b2", "b3")


class Ledgers:
    """Ledgers over bookies of which some run."""

    def __init__(self) -> None:
        self.running = list(BOOKIES)
        self.quarantined: list[str] = []
        self.written: dict[int, int] = {}
        self.closed: dict[int, int] = {}
        self.refusal = ""
        self.reads = 0

    def replication(self) -> Replicas:
        writable = [bookie for bookie in self.running if bookie not in self.quarantined]
        state = (BOOKIES, self.running, (), self.quarantined, writable)
        return Replicas(*state, 2, self.written, self.refusal)

    async def lacking(self, ledgers):
        self.reads += 1
        return {ledger: self.closed[ledger] for ledger in ledgers if ledger in self.closed}


class Owners:
    """Of partitions 0 and 1 this broker, of 2 another, of 3 none."""

    def is_mine(self, _topic, number: int) -> bool:
        return number < 2

    def leader(self, _topic, number: int) -> Leader:
        return Leader({2: 7, 3: NO_LEADER}.get(number, 1), 0)


def segment(ledger: int):
    return SimpleNamespace(ledger=ledger, is_local=True)


def partition(*ledgers: int):
    segments = [segment(ledger) for ledger in ledgers]
    return SimpleNamespace(segments=segments, closed=segments[:-1])


TOPIC = Topic(None, 0, [partition(1, 2), partition(3, 4), ForeignPartition("t", 2), partition(6)])
TOPICS = SimpleNamespace(by_id={UUID(int=1): TOPIC})


def watched() -> tuple[Replication, Ledgers, Session, HandClock]:
    ledgers, clock = Ledgers(), HandClock()
    session = Session(6_000, 0)
    session.begin(6_000, 0, 0)
    return Replication(ledgers, TOPICS, Owners(), session, clock), ledgers, session, clock


def test_partitions_that_are_owned_offline_and_under_replicated_are_counted():
    assert count_partitions(TOPICS, Owners(), {}) == (2, 1, 0)
    assert count_partitions(TOPICS, Owners(), {4: 0, 5: 9}) == (2, 1, 1), "5 is another broker's"


def test_a_broker_says_why_it_cannot_write():
    seen, ledgers, session, clock = watched()
    assert seen.obstacle() is None
    ledgers.running = ["b0", "b1"]
    assert seen.obstacle() is None
    ledgers.quarantined = ["b1"]
    reason = seen.obstacle()
    assert reason is not None
    assert "1 of 4 bookies are writable, and 2 must" in reason
    assert "b1" in reason
    ledgers.quarantined = []
    ledgers.refusal = "ledger id 7 was allocated again"
    assert seen.obstacle() == "ledger id 7 was allocated again"
    ledgers.refusal = ""
    clock.ns = 5 * SECOND
    assert "session" in (seen.obstacle() or ""), "it may end before long"
    session.confirm(5 * SECOND)
    assert seen.obstacle() is None
    session.lose(clock.ns)
    assert "lost" in (seen.obstacle() or "")


def test_metadata_are_read_when_bookies_come_or_go_and_now_and_then_while_copies_are_missing(
    caplog,
):
    async def main() -> None:
        seen, ledgers, session, clock = watched()
        for _ in range(3):
            await seen.refresh()
        assert ledgers.reads == 1
        ledgers.running = list(BOOKIES[:3])
        ledgers.closed = {1: 40, 6: 1}
        ledgers.written = {4: 2}
        for _ in range(3):
            await seen.refresh()
        assert ledgers.reads == 2
        assert seen.lacking == {1: 40, 4: 2}
        ledgers.closed = {}
        clock.ns = 31 * SECOND
        session.confirm(clock.ns)
        await seen.refresh()
        assert ledgers.reads == 3, "they may have been copied"
        assert seen.lacking == {4: 2}
        ledgers.written = {}
        await seen.refresh()
        assert not seen.lacking

    caplog.set_level(logging.INFO)
    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "2 partitions are under-replicated: 2 ledgers lack 42 copies" in lines[0]
    assert "no partition of this broker is under-replicated any longer" in lines[1]
