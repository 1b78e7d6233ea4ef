"""Reports whether this broker can write, and whether its partitions are fully replicated.

Invariants: samples the store and the cluster view once a second; the hot path does no work for it.
Metadata of closed ledgers is read again only when bookies joined or left, and periodically while
copies are missing. It decides nothing: metrics, readiness and the log report its findings, and
BookKeeper's AutoRecovery re-replicates the ledgers of a lost bookie.
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
"""While copies are missing: to detect that they were replicated again."""
MARGIN = 5
"""This fraction of the session timeout is kept as a margin, as in `session_guard`."""


class Partitions(NamedTuple):
    """Partition counts."""

    owned: int
    """By this broker."""
    offline: int
    """In the whole cluster: no live broker serves them."""
    under_replicated: int
    """Owned, with entries that lack copies, or would lack them if they were written now."""


def count_partitions(
    topics: Topics, ownership: Ownership, lacking: Mapping[LedgerId, int]
) -> Partitions:
    """The counts of the cluster and of this broker at this moment."""
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
    """The replication state of one broker with replicated ledgers."""

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
        """Closed ledgers of this broker's partitions with the number of missing copies."""
        self._registered: object = None
        self._read_ns = 0
        self._lacking_before = 0
        self._obstacle: str | None = None

    async def run(self) -> None:
        """Check periodically."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.refresh()
            except HeadraceError as error:
                log.info("cannot determine whether ledgers lack copies: %s", error)

    async def refresh(self) -> None:
        """Read what changed and log new findings. Raises StorageUnavailable."""
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
        self._log_changes()

    @property
    def lacking(self) -> Mapping[LedgerId, int]:
        """This broker's ledgers that lack copies or a bookie, with the number of missing copies."""
        return {**self._closed, **self.ledgers.replication().lacking}

    def obstacle(self) -> str | None:
        """Why nothing can be written here now, None if it can."""
        session = self.session
        if not session.is_safe(self._clock.now_ns(), session.timeout_ms // MARGIN):
            state = session.state
            silent = "silent" if state is SessionState.CONNECTED else state.value
            return (
                f"the session with ZooKeeper is {silent}: this broker serves no partitions "
                "until ZooKeeper answers again"
            )
        now = self.ledgers.replication()
        if now.refusal:
            return now.refusal
        if len(now.writable) < now.ack:
            away = f"; in quarantine: {', '.join(now.quarantined)}" if now.quarantined else ""
            return (
                f"{len(now.writable)} of {len(now.known)} bookies are writable, and {now.ack} "
                f"must acknowledge each entry{away}: start more bookies"
            )
        return None

    def _owned(self) -> Iterator[PartitionLog]:
        for topic in self._topics.by_id.values():
            for number, partition in topic.logs:
                if self._ownership.is_mine(topic, number):
                    yield partition

    def _log_changes(self) -> None:
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
            log.info("no partition of this broker is under-replicated any longer")
        self._lacking_before = count
