"""Whether this broker can write, and whether all copies of what it serves are there.

Invariants: looks at what the store and the view of the cluster know, once a second; nothing is done
for it when a record comes or goes. Metadata of closed ledgers are read again only when bookies came
or went, and now and then while copies are missing. It decides nothing: metrics, readiness and the
log say what it sees, and BookKeeper's AutoRecovery copies again what a lost bookie held.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.topics.ownership import NO_LEADER
from headrace.errors import HeadraceError
from headrace.runtime.session import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.store import StoreSession
    from headrace.runtime.clock import Clock
    from headrace.storage.ledger import LedgerId, ReplicatesLedgers

log = logging.getLogger(__name__)

LOOK_S = 1.0
READ_AGAIN_S = 30.0
"""While copies are missing: to notice that they were made again."""
MARGIN = 5
"""This part of the session's time is kept as a margin, as by `session_guard`."""


class Partitions(NamedTuple):
    """Counts of partitions."""

    owned: int
    """By this broker."""
    offline: int
    """In the whole cluster: no living broker serves them."""
    under_replicated: int
    """Owned, and entries of theirs lack copies, or would lack them if they were written now."""


def count_partitions(
    topics: Topics, ownership: Ownership, lacking: Mapping[LedgerId, int]
) -> Partitions:
    """Of the cluster and of this broker, at this moment."""
    owned = offline = under_replicated = 0
    for topic in topics.by_id.values():
        for number in range(len(topic.partitions)):
            if ownership.is_mine(topic, number):
                owned += 1
                segments = topic.require_log(number).segments if lacking else ()
                if any(one.ledger in lacking for one in segments):
                    under_replicated += 1
            elif ownership.leader(topic, number).broker == NO_LEADER:
                offline += 1
    return Partitions(owned, offline, under_replicated)


class Replication:
    """Of one broker over ledgers that are kept in copies."""

    def __init__(
        self,
        ledgers: ReplicatesLedgers,
        topics: Topics,
        ownership: Ownership,
        session: StoreSession,
        clock: Clock,
    ) -> None:
        self.ledgers = ledgers
        self.session = session
        self._topics = topics
        self._ownership = ownership
        self._clock = clock
        self._closed: Mapping[LedgerId, int] = {}
        """Closed ledgers of this broker's partitions that lack copies, and how many."""
        self._registered: object = None
        self._read_ns = 0
        self._lacking_before = 0
        self._obstacle: str | None = None

    async def run(self) -> None:
        """Look, now and then."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except HeadraceError as error:
                log.info("whether copies are missing is not known now: %s", error)

    async def look(self) -> None:
        """Read what changed, and say in the log what is new. Raises StorageUnavailable."""
        now = self.ledgers.replication()
        registered = now.registered, now.known
        elapsed_s = (self._clock.now_ns() - self._read_ns) / 1e9
        is_due = self._closed or not set(now.known) <= set(now.registered)
        if registered != self._registered or (is_due and elapsed_s >= READ_AGAIN_S):
            self._read_ns = self._clock.now_ns()
            ledgers = [
                segment.ledger
                for partition in self._owned()
                for segment in partition.closed
                if segment.is_local
            ]
            self._closed = await self.ledgers.lacking(ledgers)
            self._registered = registered
        self._tell()

    @property
    def lacking(self) -> Mapping[LedgerId, int]:
        """This broker's ledgers that lack copies or a bookie, and how many copies are missing."""
        return {**self._closed, **self.ledgers.replication().lacking}

    def obstacle(self) -> str | None:
        """Why nothing can be written here now, None if it can."""
        session = self.session
        if not session.is_safe(self._clock.now_ns(), session.timeout_ms // MARGIN):
            state = session.state
            silent = "silent" if state is SessionState.CONNECTED else state.value
            return (
                f"the session with ZooKeeper is {silent}: this broker serves nothing until"
                " ZooKeeper answers again"
            )
        now = self.ledgers.replication()
        if len(now.writable) < now.ack:
            away = f"; in quarantine: {', '.join(now.quarantined)}" if now.quarantined else ""
            return (
                f"{len(now.writable)} of {len(now.known)} bookies take writes, and {now.ack} must"
                f" acknowledge each entry{away}: start bookies"
            )
        return None

    def _owned(self) -> Iterator[PartitionLog]:
        for topic in self._topics.by_id.values():
            for number, partition in topic.logs:
                if self._ownership.is_mine(topic, number):
                    yield partition

    def _tell(self) -> None:
        obstacle = self.obstacle()
        if obstacle != self._obstacle:
            if obstacle is not None:
                log.warning("this broker cannot write: %s", obstacle)
            else:
                log.info("this broker can write again")
            self._obstacle = obstacle
        lacking = self.lacking
        count = len(lacking)
        if count and not self._lacking_before:
            counts = count_partitions(self._topics, self._ownership, lacking)
            log.warning(
                "%d partitions are under-replicated: %d ledgers lack %d copies or a bookie; known"
                " bookies %s, registered %s",
                counts.under_replicated,
                count,
                sum(lacking.values()),
                ", ".join(self.ledgers.replication().known),
                ", ".join(self.ledgers.replication().registered),
            )
        elif self._lacking_before and not count:
            log.info("no partition of this broker is under-replicated any more")
        self._lacking_before = count
