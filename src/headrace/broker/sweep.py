"""Collects what crashes and deleted topics leave behind over storage that brokers share.

Rules of the room: one broker sweeps, the same that all would name. What no chain names is deleted
only after it has been seen like that for a long while: a ledger that was just made is not yet in
its chain, and a broker that was stopped for a time must not find its ledger gone, since the bookies
forget with the ledger that it was fenced (docs/BOOKKEEPER.md, invariant I7).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from headrace.coordination.placement.rendezvous import one_of
from headrace.errors import HeadraceError
from headrace.metadata.facts import (
    OWNERS,
    PARTITIONS,
    PINS,
    TOPICS,
    PartitionFact,
    TopicFact,
    partition_of_key,
)
from headrace.metadata.store import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.ownership import Ownership
    from headrace.broker.topics import Topics
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.storage.ledger import LedgerId

log = logging.getLogger(__name__)

SWEEPER = UUID(int=0)
"""What is placed on the brokers like a topic, to choose the one that sweeps."""


class SharedLedgers(Protocol):
    """A store that can tell of all its ledgers, whoever made them."""

    async def all_ledgers(self) -> Sequence[LedgerId]:
        """By id. Raises StorageUnavailable."""
        ...

    async def delete(self, ledger: LedgerId) -> None:
        """See LedgerStore."""
        ...


class Sweep:
    """The sweeper of one broker."""

    def __init__(
        self,
        config: BrokerConfig,
        store: SharedLedgers,
        metadata: MetadataStore,
        topics: Topics,
        ownership: Ownership,
        clock: Clock,
    ) -> None:
        self._config = config
        self._store = store
        self._metadata = metadata
        self._topics = topics
        self._ownership = ownership
        self._clock = clock
        self._since_ms: dict[LedgerId | str, int] = {}
        """Ledgers and keys that belong to nothing, and when that was first seen."""

    async def run(self) -> None:
        """Sweep now and then, if it is this broker's turn."""
        while True:
            await asyncio.sleep(self._config.sweep_interval_ms / 1000)
            brokers = [broker.id for broker in self._ownership.brokers()]
            if one_of(SWEEPER, brokers) != self._config.broker_id:
                self._since_ms.clear()
                continue
            await self._topics.finish_deletions()
            try:
                await self.sweep()
            except HeadraceError as error:
                log.warning("what belongs to no topic stays for now: %s", error)

    async def sweep(self) -> int:
        """One pass: note what belongs to nothing, delete what has done so for long; how many."""
        ledgers = await self._store.all_ledgers()  # before the chains, which only grow ledgers
        facts = [
            (prefix, entry)
            for prefix in (PARTITIONS, OWNERS, PINS)
            for entry in await self._metadata.list(prefix)
        ]
        # As they are stored, and read last: what this broker knows may be behind, and a topic that
        # it cannot read is not one that was deleted.
        topics = {TopicFact.decode(entry.value).id for entry in await self._metadata.list(TOPICS)}
        used: set[int] = set()
        stale: list[str] = []
        for prefix, entry in facts:
            if partition_of_key(entry.key)[0] not in topics:
                stale.append(entry.key)
            elif prefix == PARTITIONS:
                used |= PartitionFact.decode(entry.value).local_ledgers
        now_ms = self._clock.now_ms()
        orphans: list[LedgerId | str] = [
            *(ledger for ledger in ledgers if ledger not in used),
            *stale,
        ]
        self._since_ms = {orphan: self._since_ms.get(orphan, now_ms) for orphan in orphans}
        ripe = [
            orphan
            for orphan, since_ms in self._since_ms.items()
            if now_ms - since_ms >= self._config.sweep_grace_ms
        ]
        for orphan in ripe:
            try:
                if isinstance(orphan, str):
                    await self._metadata.delete(orphan, ANY)
                else:
                    await self._store.delete(orphan)
            except HeadraceError as error:  # the next one may go all the same
                log.warning("%s stays for now: %s", orphan, error)
                continue
            del self._since_ms[orphan]
        if ripe:
            log.info("removed %d ledgers and facts that belonged to no topic", len(ripe))
        return len(ripe)
