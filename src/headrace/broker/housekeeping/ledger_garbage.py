"""Deletes ledgers and facts that crashes and deleted topics left in shared storage.

Invariants: one broker collects garbage; placement elects it, so all brokers agree on it. A ledger
that no chain names is deleted only after a long grace period: a new ledger is not yet in its chain,
and a broker that was suspended must not find its ledger deleted, since bookies forget with the
ledger that it was fenced (docs/BOOKKEEPER.md, invariant I7). Ledgers of an existing partition whose
chain is missing or outdated are never deleted: they are all that is left of its records. Nor are
those of a topic whose fact was lost (`fact_audit`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.broker.housekeeping.fact_audit import Audit, audit, lost_text, read_label
from headrace.broker.housekeeping.ledger_evidence import holds_lost_records, read_facts
from headrace.coordination.placement.rendezvous import one_of
from headrace.errors import HeadraceError
from headrace.metadata.facts import (
    PINS,
    owner_key,
    partition_key,
    partition_of_key,
    pin_key,
)
from headrace.metadata.store import ANY
from headrace.metadata.titles import log_title
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.broker_config import BrokerConfig
    from headrace.broker.housekeeping.fact_audit import ClusterFacts
    from headrace.broker.housekeeping.ledger_evidence import SharedLedgers
    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

SWEEPER = UUID(int=0)
"""Placed on the brokers like a topic, to elect the garbage collector."""


class LedgerGarbageCollector:
    """One broker's part in garbage collection."""

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
        """Orphaned ledgers and keys, and when each was first seen."""
        self.found = Audit()
        """The losses that the last pass found."""
        self.problems: dict[str, str] = {}
        """Partitions with lost ledgers, as of the last pass, with the next step."""

    async def round(self) -> None:
        """Collect garbage, if this broker is elected."""
        brokers = [broker.id for broker in self._ownership.brokers()]
        if one_of(SWEEPER, brokers) != self._config.broker_id:
            self._since_ms.clear()
            self.problems.clear()  # the elected broker reports them
            return
        await self._topics.deletions.finish_all(self._topics.ownership)
        try:
            await self.collect()
        except HeadraceError as error:
            log.warning("cannot collect orphaned ledgers and facts yet: %s", error)

    async def collect(self) -> int:
        """One pass: record orphans, and delete those whose grace has expired; returns how many."""
        ledgers = await self._store.ledger_ids()  # before the chains, which only gain ledgers
        pins = await self._metadata.list(PINS)
        # Read from the store, and last: this broker's view may be outdated, and an unreadable topic
        # is not a deleted one.
        facts = await read_facts(self._metadata)
        used = {ledger for chain in facts.living.values() for ledger in chain.local_ledgers}
        records = await self._store.records_of([one for one in ledgers if one not in used])
        named = facts.named
        unnamed = [one for one in records if one.ledger not in named]
        found = self.found = audit(facts, unnamed, set(ledgers))
        await self._report_lost(found, facts)
        if facts.damaged:  # what they name, and what exists because of them, is not known
            log.error("nothing is collected while facts cannot be decoded: %s", facts.damaged[0])
            return 0
        kept = await self._confirm(found, facts)
        by_topic = {
            record.ledger: label.key[0]
            for record in records
            if (label := read_label(record.custom)) is not None
        }
        stale = [
            key_of(*key)
            for key_of, keys in (
                (partition_key, facts.chains),
                (owner_key, facts.owners),
                (pin_key, [partition_of_key(entry.key) for entry in pins]),
            )
            for key in keys
            if key[0] not in facts.topics and key[0] not in found.lost_topics
        ]
        orphans = [one.ledger for one in records if one.ledger not in kept]
        return await self._delete_ripe([*orphans, *stale], by_topic)

    async def _report_lost(self, found: Audit, facts: ClusterFacts) -> None:
        """Note ledgers that chains name and that do not exist."""
        self.problems.clear()
        for key, links in found.lost.items():
            ids = [LedgerId(link.ledger) for link in links]
            there = {record.ledger for record in await self._store.records_of(ids)}
            lost = [link for link in links if link.ledger not in there]
            if lost:
                self.problems[log_title(f"{facts.topics[key[0]].name}-{key[1]}")] = (
                    f"{lost_text(lost)} do not exist: these offsets cannot be read; restore the"
                    " ledgers from a backup, or see `headrace cluster repair`"
                )

    async def _confirm(self, found: Audit, facts: ClusterFacts) -> set[LedgerId]:
        """The ledgers to keep: former owners' with records, and all of present owners."""
        kept = set(found.kept)
        for key, suspects in found.suspects.items():
            chain = facts.chains[key]
            for ledger, label in suspects.items():
                epoch = label.epoch
                if label.covers is not None:
                    continue
                # The epoch is over: no broker is about to enter the ledger into the chain.
                if epoch < chain.leader_epoch and not await holds_lost_records(
                    self._store, ledger, chain
                ):
                    kept.discard(ledger)
                elif epoch < chain.leader_epoch:
                    found.proved.add(key)
        return kept

    async def _delete_ripe(
        self, orphans: Sequence[LedgerId | str], by_topic: Mapping[LedgerId, UUID]
    ) -> int:
        """Delete orphans whose grace has expired: ledgers first, and the facts of a topic after its
        last ledger, since they record the deletion; returns how many."""
        now_ms = self._clock.now_ms()
        self._since_ms = {orphan: self._since_ms.get(orphan, now_ms) for orphan in orphans}
        left = set(by_topic)
        count = 0
        for orphan in orphans:
            if now_ms - self._since_ms[orphan] < self._config.sweep_grace_ms:
                continue
            try:
                if not isinstance(orphan, str):
                    await self._store.delete(orphan)
                    left.discard(orphan)
                elif partition_of_key(orphan)[0] not in {by_topic[ledger] for ledger in left}:
                    await self._metadata.delete(orphan, ANY)
                else:
                    continue
            except HeadraceError as error:  # the next one may still be deleted
                log.warning("cannot delete orphan %s yet: %s", orphan, error)
                continue
            count += 1
            del self._since_ms[orphan]
        if count:
            log.info("deleted %d orphaned ledgers and facts", count)
        return count
