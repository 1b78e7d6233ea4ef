"""Checks against the ledgers of a shared store whether a chain is present and current.

Invariants: reads facts and labels, and only ledgers that no chain names. The first audit, at the
broker's start, finds what a metadata store restored from an old backup has lost: brokers that ran
before the restore cannot continue (ZooKeeper refuses a client that has seen more). A missing chain
gets an audit of its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headrace.broker.housekeeping.fact_audit import Audit, ClusterFacts, audit, is_after
from headrace.errors import FactMissing, HeadraceError, LedgerUnknown
from headrace.metadata.decoding import DamagedFact, decode_all
from headrace.metadata.facts import (
    OWNERS,
    PARTITIONS,
    TOPICS,
    OwnerFact,
    PartitionFact,
    TopicFact,
    partition_of_key,
    topic_of_key,
)
from headrace.records.batch import HEADER_SIZE, read_header
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.storage.ledger import Buffer, IdsAhead, LedgerId, LedgerInfo, LedgerRecord

log = logging.getLogger(__name__)

FRESH_NS = 10 * 1_000_000_000
"""Maximum age of the audit that decides about a missing chain: many may be missing at once."""


class ReadsLedgers(Protocol):
    """The part of a LedgerStore needed to look into a ledger."""

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        """See LedgerStore."""
        ...

    async def read(self, ledger: LedgerId, position: int, size: int) -> Buffer:
        """See LedgerStore."""
        ...


@runtime_checkable
class NumbersLedgers(Protocol):
    """An optional capability of a shared store whose ledger ids are allocated separately."""

    async def ids_ahead(self) -> IdsAhead | None:
        """The ids that were allocated, and would be again; None if there are none. Raises
        MetadataUnavailable."""
        ...

    async def skip_ids(self, last: int) -> None:
        """Never allocate ids up to `last`. Raises MetadataUnavailable."""
        ...


class SharedLedgers(ReadsLedgers, Protocol):
    """A store that can list all its ledgers, of every creator."""

    async def ledger_ids(self) -> Sequence[LedgerId]:
        """All ledgers by id, including those of other applications. Raises StorageUnavailable."""
        ...

    async def records_of(self, ledgers: Sequence[LedgerId]) -> Sequence[LedgerRecord]:
        """Those of these ledgers that brokers of this cluster created. Raises
        StorageUnavailable."""
        ...

    async def delete(self, ledger: LedgerId) -> None:
        """See LedgerStore."""
        ...


async def _read_topics(metadata: MetadataStore, damaged: list[DamagedFact]) -> list[TopicFact]:
    facts = decode_all(TopicFact, await metadata.list(TOPICS), topic_of_key, damaged)
    return [fact for fact in facts.values() if not fact.is_ended]


async def read_facts(metadata: MetadataStore) -> ClusterFacts:
    """The stored facts, without those that cannot be decoded. Raises MetadataUnavailable."""
    damaged: list[DamagedFact] = []
    before = await _read_topics(metadata, [])
    entries = await metadata.list(PARTITIONS)
    chains = decode_all(PartitionFact, entries, partition_of_key, damaged)
    owners = decode_all(OwnerFact, await metadata.list(OWNERS), partition_of_key, damaged)
    # Before and after: a topic created meanwhile may have chains that were not read, and a topic
    # whose chains were read may have been deleted since.
    topics = {topic.id: topic for topic in await _read_topics(metadata, damaged)}
    counts = {topic.id: topic.partition_count for topic in before}
    deleted = counts.keys() - topics.keys()
    return ClusterFacts(topics, chains, owners, counts, deleted, damaged)


async def unnamed_in(
    store: SharedLedgers, ledgers: Sequence[LedgerId], facts: ClusterFacts
) -> Sequence[LedgerRecord]:
    """Those of `ledgers` that belong to this cluster and are in no chain. Raises
    StorageUnavailable."""
    named = facts.named
    return await store.records_of([ledger for ledger in ledgers if ledger not in named])


async def holds_lost_records(store: ReadsLedgers, ledger: LedgerId, fact: PartitionFact) -> bool:
    """Whether a ledger that its chain does not name has records after the start of the log.

    Recovers the ledger, which fences its writer: call only if that must not write any more. Raises
    StorageUnavailable, DataCorrupt.
    """
    try:
        if not (await store.recover(ledger)).end:
            return False
        first = read_header(await store.read(ledger, 0, HEADER_SIZE)).base_offset
    except LedgerUnknown:  # deleted in the meantime
        return False
    return first >= fact.log_start_offset


class LedgerEvidence:
    """One broker's implementation of ChainEvidence."""

    def __init__(self, store: SharedLedgers, metadata: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._metadata = metadata
        self._clock = clock
        self._lock = FairLock()
        self._first: Audit | None = None
        self._last: Audit | None = None
        self._last_ns = 0

    async def unnamed(
        self, topic_id: UUID, partition: int, fact: PartitionFact | None
    ) -> Sequence[LedgerId]:
        """See ChainEvidence."""
        key = (topic_id, partition)
        if fact is None:
            return (await self._fresh()).missing.get(key, ())
        suspects = (await self.first()).suspects.get(key, {})
        named = {link.ledger for link in fact.ledgers}
        return [
            ledger
            for ledger, label in suspects.items()
            if ledger not in named
            and is_after(ledger, label, fact)
            # A compacted ledger itself records which offsets it covers.
            and (label.covers or await holds_lost_records(self._store, ledger, fact))
        ]

    async def first(self) -> Audit:
        """The result of this broker's first audit; runs it now if it failed at start."""
        async with self._lock:
            if self._first is None:
                self._first = await self._audit()
            return self._first

    async def lost_names(self, name: str) -> Collection[str]:
        """See ChainEvidence."""
        names = (await self.first()).lost_topics.values()
        if name not in names:
            return names
        async with self._lock:  # it may have been restored, and deleted, since
            found = self._first = await self._audit()
        return found.lost_topics.values()

    async def _fresh(self) -> Audit:
        async with self._lock:
            if self._last is None or self._clock.now_ns() - self._last_ns > FRESH_NS:
                self._last = await self._audit()
                self._last_ns = self._clock.now_ns()
            return self._last

    async def _audit(self) -> Audit:
        ledgers = await self._store.ledger_ids()  # before the chains, which only gain ledgers
        facts = await read_facts(self._metadata)
        return audit(facts, await unnamed_in(self._store, ledgers, facts), set(ledgers))

    async def check_ids(self) -> None:
        """Raise FactMissing if ledger ids would be allocated again."""
        store = self._store
        ahead = await store.ids_ahead() if isinstance(store, NumbersLedgers) else None
        if ahead is not None:
            raise FactMissing(
                f"{ahead}: ZooKeeper was restored from a backup that is older than these ledgers."
                " No broker starts, because their records would be lost. Stop the bookies, which"
                " delete unlisted ledgers within minutes, and restore a newer backup; or give up"
                " these ledgers with `headrace cluster repair --accept-loss --yes`",
                ledgers=ahead.ledgers,
            )

    async def audit_at_start(self) -> None:
        """Audit once, ahead of the first claim, and log what was lost."""
        try:
            found = await self.first()
        except HeadraceError as error:
            log.warning("cannot compare the ledgers with the facts yet: %s", error)
            return
        for name in sorted(found.lost_topics.values()):
            log.error(
                "the fact of topic %s was lost: its ledgers are kept, but the topic is not "
                "served; run `headrace cluster verify`",
                repr(name) if name else "(name unknown)",
            )
