"""Administers a cluster through ZooKeeper, without running brokers.

Invariants: reads facts, and writes requests (pins, draining). It never changes an owner or a chain:
brokers act on the requests.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from headrace.administration.cluster_backup import Roots, refuse_while_restoring
from headrace.administration.replication_report import under_replicated
from headrace.administration.snapshot import ClusterSnapshot
from headrace.administration.verification import Findings, chains_of, compare, lost_facts
from headrace.broker.housekeeping.chain_repair import ChainRepairer, Repairs
from headrace.broker.housekeeping.fact_audit import audit
from headrace.broker.housekeeping.ledger_evidence import read_facts
from headrace.broker.topics.overrides import copies_of
from headrace.errors import TopicUnknown
from headrace.metadata.decoding import decode_all, decode_fact
from headrace.metadata.facts import (
    BROKERS,
    CLUSTER_ID,
    DRAINING,
    PINS,
    BrokerFact,
    ClusterFact,
    PinFact,
    TopicFact,
    draining_key,
    partition_of_key,
    pin_key,
    topic_key,
)
from headrace.metadata.health_facts import HEALTH, HealthFact
from headrace.metadata.load_facts import LOADS, MOVES, LoadFact, MovesFact
from headrace.metadata.store import ANY
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.zookeeper.client import ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions
from headrace.zookeeper.servers import ask_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headrace.administration.cluster_settings import ClusterSettings
    from headrace.administration.replication_report import UnderReplicated
    from headrace.metadata.facts import PartitionKey

CONNECT_TIMEOUT_MS = 5_000


class ClusterAdmin:
    """An operator's connection to a cluster."""

    def __init__(
        self, settings: ClusterSettings, zookeeper: ZooKeeper, metadata: ZooKeeperMetadataStore
    ) -> None:
        self._settings = settings
        self._zookeeper = zookeeper
        self._metadata = metadata

    async def snapshot(self) -> ClusterSnapshot:
        """Read everything. Raises MetadataUnavailable."""
        metadata = self._metadata
        prefixes = (BROKERS, DRAINING, PINS, LOADS)
        brokers, draining, pins, loads = await asyncio.gather(
            *(metadata.list(prefix) for prefix in prefixes)
        )
        facts = await read_facts(metadata)
        lost = audit(facts, ())
        moved = await metadata.get(MOVES)
        moves = MovesFact() if moved is None else decode_fact(MovesFact, moved)
        available = f"{self._settings.ledgers_root}/available"
        bookies = sorted(set(await self._zookeeper.children(available) or ()) - {"readonly"})
        read_only = await self._zookeeper.children(f"{available}/readonly") or ()
        cookies = await self._zookeeper.children(f"{self._settings.ledgers_root}/cookies") or ()
        health = await metadata.list(HEALTH)
        cluster = await metadata.get(CLUSTER_ID)
        damaged = list(facts.damaged)
        live = decode_all(BrokerFact, brokers, str, damaged).values()
        return ClusterSnapshot(
            "" if cluster is None else decode_fact(ClusterFact, cluster).id,
            {fact.id: fact for fact in live},
            {int(entry.key.removeprefix(DRAINING)) for entry in draining},
            {topic.id: topic for topic in facts.topics.values() if not topic.is_deleted},
            dict(facts.owners),
            {
                key: fact.broker
                for key, fact in decode_all(PinFact, pins, partition_of_key, damaged).items()
            },
            decode_all(LoadFact, loads, lambda key: int(key.removeprefix(LOADS)), damaged),
            {key: move.broker for key, move in moves.by_partition.items()},
            bookies,
            sorted(read_only),
            sorted(set(cookies) - set(bookies) - set(read_only)),
            sorted(lost.missing, key=lambda key: (key[0].hex, key[1])),
            sorted(lost.lost_topics, key=lambda topic_id: topic_id.hex),
            [str(fact) for fact in damaged],
            {
                broker: fact.problems
                for broker, fact in decode_all(
                    HealthFact, health, lambda key: int(key.removeprefix(HEALTH)), damaged
                ).items()
            },
        )

    async def set_draining(self, broker_id: int, *, is_draining: bool) -> None:
        """Request that a broker owns no partitions, or may own partitions again."""
        if is_draining:
            await self._metadata.put(draining_key(broker_id), b"{}", ANY)
        elif await self._metadata.get(draining_key(broker_id)) is not None:
            await self._metadata.delete(draining_key(broker_id), ANY)

    async def set_pin(self, topic: str, partition: int, broker_id: int | None) -> PartitionKey:
        """Request that a broker serves a partition; None: leave it to placement.

        Raises TopicUnknown.
        """
        entry = await self._metadata.get(topic_key(topic))
        fact = None if entry is None else decode_fact(TopicFact, entry)
        if fact is None or fact.is_deleted or not 0 <= partition < fact.partition_count:
            raise TopicUnknown(f"partition {partition} of topic {topic!r} does not exist")
        key = pin_key(fact.id, partition)
        if broker_id is not None:
            await self._metadata.put(key, PinFact(broker_id).encode(), ANY)
        elif await self._metadata.get(key) is not None:
            await self._metadata.delete(key, ANY)
        else:
            await self._forget_move((fact.id, partition))
        return fact.id, partition

    async def _forget_move(self, key: PartitionKey) -> None:
        """Return a partition that load has moved to placement. Raises VersionConflict on a
        concurrent move."""
        entry = await self._metadata.get(MOVES)
        if entry is not None:
            fact = decode_fact(MovesFact, entry)
            fact.moves = [move for move in fact.moves if move.key != key]
            await self._metadata.put(MOVES, fact.encode(), entry.version)

    async def repair(self, *, is_plan: bool, accept_loss: bool) -> Repairs:
        """Rebuild lost facts from the ledgers' labels, or (`is_plan`) return what would be rebuilt.

        Raises MetadataUnavailable, StorageUnavailable, VersionConflict.
        """
        async with self._store(await self.snapshot()) as store:
            repairer = ChainRepairer(store, self._metadata, SystemClock())
            ledgers = await store.records()
            if is_plan:
                return await repairer.plan(ledgers)
            return await repairer.repair(ledgers, accept_loss=accept_loss)

    async def under_replicated(self, snapshot: ClusterSnapshot) -> Sequence[UnderReplicated]:
        """The partitions that lack copies; reads no ledger metadata while all bookies are
        registered.

        Raises StorageUnavailable, MetadataUnavailable.
        """
        if not snapshot.lost_bookies:
            return ()
        async with self._store(snapshot) as store:
            records = {int(record.ledger): record for record in await store.records()}
        return under_replicated(snapshot, await chains_of(self._metadata), records)

    def unwritable(self, snapshot: ClusterSnapshot) -> list[str]:
        """The topics that cannot be written because too few bookies are writable."""
        acks = {"topics without a setting": self._settings.ack_quorum}
        for topic in snapshot.topics.values():
            copies = copies_of(topic.configs)
            if copies is not None:
                acks[f"topic {topic.name}"] = copies.ack
        writable = set(snapshot.bookies) - set(snapshot.read_only_bookies)
        return [
            f"writable bookies: {len(writable)}, but {ack} must acknowledge each entry "
            f"for {name}: no records can be written there"
            for name, ack in acks.items()
            if len(writable) < ack
        ]

    @asynccontextmanager
    async def _store(self, snapshot: ClusterSnapshot) -> AsyncIterator[BookKeeperLedgerStore]:
        cluster = BookKeeperSettings(
            ledgers_root=self._settings.ledgers_root,
            cluster=snapshot.cluster_id,
            tls=self._settings.bookie_context(),
            credential=self._settings.bookie_credential,
        )
        store = await BookKeeperLedgerStore.open(self._zookeeper, cluster, SystemClock())
        try:
            yield store
        finally:
            await store.close()

    async def verify(self) -> Findings:
        """Compare the facts with each other and with BookKeeper's. Reads no records."""
        findings = Findings()
        snapshot = await self.snapshot()
        findings.lost_bookies = snapshot.lost_bookies
        if snapshot.cluster_id:
            async with self._store(snapshot) as store:
                await compare(self._metadata, store, snapshot, findings)
        else:  # ledgers are known by it: all would seem to be missing
            findings.problems += lost_facts(snapshot, Repairs())
        findings.problems += snapshot.lasting_problems
        findings.problems += self.unwritable(snapshot)
        settings = self._settings
        servers = await ask_servers(settings.zookeeper, settings.zookeeper_context())
        findings.problems += [server.warning for server in servers if server.warning]
        return findings


@asynccontextmanager
async def open_zookeeper(settings: ClusterSettings) -> AsyncIterator[ZooKeeper]:
    """Connect to ZooKeeper, and write nothing. Raises MetadataUnavailable."""
    options = ZooKeeperOptions(
        settings.zookeeper,
        settings.session_timeout_ms,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        credential=settings.credential,
        tls=settings.zookeeper_context(),
    )
    zookeeper = await ZooKeeper.connect(options, SystemClock())
    try:
        yield zookeeper
    finally:
        await zookeeper.close()


@asynccontextmanager
async def open_metadata(
    settings: ClusterSettings,
) -> AsyncIterator[tuple[ZooKeeper, ZooKeeperMetadataStore]]:
    """Connect to the metadata of a cluster. Raises MetadataUnavailable, RequestInvalid while it is
    being restored."""
    async with open_zookeeper(settings) as zookeeper:
        await refuse_while_restoring(zookeeper, Roots(settings.root, settings.ledgers_root))
        metadata = await ZooKeeperMetadataStore.open(zookeeper, settings.root)
        try:
            yield zookeeper, metadata
        finally:
            await metadata.close()


@asynccontextmanager
async def open_admin(settings: ClusterSettings) -> AsyncIterator[ClusterAdmin]:
    """Connect. Raises MetadataUnavailable."""
    async with open_metadata(settings) as (zookeeper, metadata):
        yield ClusterAdmin(settings, zookeeper, metadata)
