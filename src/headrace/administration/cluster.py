"""Administers a cluster through ZooKeeper, without running brokers.

Invariants: reads facts, and writes requests (pins, draining). It never changes an owner or a chain:
brokers act on the requests.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.administration.cluster_backup import Roots, refuse_while_restoring
from headrace.administration.replication_report import under_replicated
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
    PARTITIONS,
    PINS,
    BrokerFact,
    ClusterFact,
    OwnerFact,
    PartitionFact,
    PinFact,
    TopicFact,
    draining_key,
    owner_key,
    partition_key,
    partition_of_companion,
    partition_of_key,
    pin_key,
    topic_key,
)
from headrace.metadata.health_facts import HEALTH, HealthFact, Problem
from headrace.metadata.load_facts import LOADS, MOVES, LoadFact, MovesFact
from headrace.metadata.store import ABSENT, ANY
from headrace.metadata.titles import log_title
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.runtime.log_text import one_line
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.storage.ledger import LedgerId
from headrace.zookeeper.client import ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions
from headrace.zookeeper.servers import ask_servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from headrace.administration.cluster_settings import ClusterSettings
    from headrace.administration.replication_report import UnderReplicated
    from headrace.metadata.facts import PartitionKey
    from headrace.storage.ledger import LedgerRecord

CONNECT_TIMEOUT_MS = 5_000
POLL_S = 0.2


@dataclass(slots=True)
class ClusterSnapshot:
    """All facts of a cluster at about one moment."""

    cluster_id: str
    brokers: dict[int, BrokerFact]
    draining: set[int]
    topics: dict[UUID, TopicFact]
    owners: dict[PartitionKey, OwnerFact]
    pins: dict[PartitionKey, int]
    loads: dict[int, LoadFact]
    """The recent loads of the live brokers."""
    moves: dict[PartitionKey, int]
    """Partitions moved by load, and their brokers."""
    bookies: list[str]
    read_only_bookies: list[str]
    lost_bookies: list[str] = field(default_factory=list)
    """Bookies that belong to the cluster (they have cookies) and are not registered."""
    missing_chains: list[PartitionKey] = field(default_factory=list)
    """Partitions that are not served because their chain of ledgers was lost."""
    lost_topics: list[UUID] = field(default_factory=list)
    """Topics with chains but without a fact."""
    damaged_facts: list[str] = field(default_factory=list)
    """Facts that cannot be decoded, by key, with the reason."""
    reported: dict[int, list[Problem]] = field(default_factory=dict)
    """What each live broker says is wrong there."""

    @property
    def partitions(self) -> list[PartitionKey]:
        """Every partition that should be served."""
        return [
            (topic.id, number)
            for topic in sorted(self.topics.values(), key=lambda topic: topic.name)
            for number in range(topic.partition_count)
        ]

    def server_of(self, key: PartitionKey) -> int | None:
        """The live broker that owns a partition, or None."""
        owner = self.owners.get(key)
        broker = None if owner is None else self.brokers.get(owner.broker)
        if owner is None or broker is None or broker.incarnation != owner.incarnation:
            return None
        return owner.broker

    def name_of(self, key: PartitionKey) -> str:
        """`topic-number`."""
        return log_title(f"{self.topics[key[0]].name}-{key[1]}")

    @property
    def problems(self) -> list[str]:
        """What cannot be decoded, and what brokers report, as text."""
        return self._problems(with_passing=True)

    @property
    def lasting_problems(self) -> list[str]:
        """As `problems`, without attempts that failed and may succeed when they are repeated: what
        they met, such as lost ledgers, `verify` examines itself."""
        return self._problems(with_passing=False)

    def _problems(self, *, with_passing: bool) -> list[str]:
        return [
            *self.damaged_facts,
            *(
                f"broker {broker} reports: {one}"
                for broker, found in sorted(self.reported.items())
                for one in found
                if with_passing or not one.is_passing
            ),
        ]


class Orphan(NamedTuple):
    """A ledger that no chain names, with the labels of its creator; "" if there are none."""

    ledger: int
    partition: str
    epoch: str
    created_ms: int

    @classmethod
    def of(cls, record: LedgerRecord) -> Orphan:
        """Decode the metadata, which any client may have written."""
        custom = record.custom
        partition, epoch = (
            value.decode(errors="replace")[:300]
            for value in (
                custom.get("partition", custom.get("compacted", b"")),
                custom.get("epoch", b""),
            )
        )
        return cls(int(record.ledger), partition, epoch, record.created_ms)


@dataclass(slots=True)
class Findings:
    """The scope and results of `verify`."""

    partitions: int = 0
    ledgers: int = 0
    records: int = 0
    size_bytes: int = 0
    orphans: list[Orphan] = field(default_factory=list)
    """Ledgers that no chain names: garbage collection deletes them after its grace period (an
    hour)."""
    stale: list[str] = field(default_factory=list)
    """Partitions of deleted topics (`<topic id>-<number>`) with remaining facts; deleted
    likewise."""
    under_replicated: list[UnderReplicated] = field(default_factory=list)
    lost_bookies: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


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
        return under_replicated(snapshot, await self._chains(), records)

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

    async def _chains(self) -> dict[PartitionKey, PartitionFact]:
        entries = await self._metadata.list(PARTITIONS)
        return decode_all(PartitionFact, entries, partition_of_key, [])  # others list the damaged

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
            await self._compare(snapshot, findings)
        else:  # ledgers are known by it: all would seem to be missing
            findings.problems += _lost_facts(snapshot, Repairs())
        findings.problems += snapshot.lasting_problems
        findings.problems += self.unwritable(snapshot)
        settings = self._settings
        servers = await ask_servers(settings.zookeeper, settings.zookeeper_context())
        findings.problems += [server.warning for server in servers if server.warning]
        return findings

    async def _compare(self, snapshot: ClusterSnapshot, findings: Findings) -> None:
        """Compare chains, owners and ledgers."""
        async with self._store(snapshot) as store:
            listed = await store.records()
            repairs = await ChainRepairer(store, self._metadata, SystemClock()).plan(listed)
            records = {int(record.ledger): record for record in listed}
            chains = await self._chains()
            told = {link.ledger for chain in repairs.chains for link in chain.lost_ledgers}
            for key in snapshot.partitions:
                findings.partitions += 1
                if snapshot.server_of(key) is None:
                    findings.problems.append(f"no broker serves {snapshot.name_of(key)}")
                chain = chains.get(key)
                if chain is None:
                    continue
                _count(chain, findings)
                if _contradictions(chain, snapshot.owners.get(key), records, told):
                    name, found = snapshot.name_of(key), await self._look_again(key, store, told)
                    findings.problems += [f"{name}: {one}" for one in found]
        known = sorted({*chains, *snapshot.owners, *snapshot.pins})
        findings.stale = [
            f"{key[0].hex}-{key[1]}" for key in known if key[0] not in snapshot.topics
        ]
        served = set(snapshot.partitions)
        used = {
            link.ledger
            for (topic_id, number), chain in chains.items()
            if (topic_id, partition_of_companion(number)) in served
            for link in chain.ledgers
        }
        facts = await read_facts(self._metadata)
        unnamed = [record for ledger, record in sorted(records.items()) if ledger not in used]
        kept = audit(facts, unnamed, set(records)).kept
        findings.orphans = [Orphan.of(record) for record in unnamed if record.ledger not in kept]
        findings.problems += _lost_facts(snapshot, repairs)
        findings.under_replicated = list(under_replicated(snapshot, chains, records))
        findings.problems += [one.text for one in findings.under_replicated]

    async def _look_again(
        self, key: PartitionKey, store: BookKeeperLedgerStore, told: AbstractSet[int]
    ) -> list[str]:
        """The contradictions of one partition as of now. What `verify` read first is older than the
        rest: a ledger created or sealed in between, and a takeover, look like contradictions.

        Owner and ledgers change before the chain, and so are read after it.
        """
        entry = await self._metadata.get(partition_key(*key))
        if entry is None:
            return []
        chain = decode_fact(PartitionFact, entry)
        owner = await self._metadata.get(owner_key(*key))
        records = await store.records_of([LedgerId(link.ledger) for link in chain.ledgers])
        return _contradictions(
            chain,
            None if owner is None else decode_fact(OwnerFact, owner),
            {int(record.ledger): record for record in records},
            told,
        )


def _lost_facts(snapshot: ClusterSnapshot, repairs: Repairs) -> list[str]:
    """Messages about lost facts."""
    problems = [
        f"the fact of topic {one_line(topic.fact.name) or topic.fact.id.hex} is "
        "missing, but it has ledgers: the topic is neither served nor deleted; see "
        "`headrace cluster repair`"
        for topic in repairs.topics
    ]
    if not snapshot.cluster_id and snapshot.topics:
        problems.append(
            f"the cluster id ({CLUSTER_ID}) is missing although there are topics: brokers restore"
            " it from its copy when they start, or do not start if that is missing, too; ledgers"
            " were not compared, since they are known by it. See `Lost metadata` in docs/CLUSTER.md"
        )
    if repairs.ids_ahead:
        problems.append(
            f"{repairs.ids_ahead}: it was restored from an old backup, and no broker starts; see"
            " `headrace cluster repair`"
        )
    for chain in repairs.chains:
        if chain.lost_ledgers:
            problems.append(f"{chain.name}: {chain.problem}; see `headrace cluster repair`")
            continue
        what = "is missing" if chain.version == ABSENT else "is older than its ledgers"
        problems.append(
            f"{chain.name}: its chain of ledgers {what}: the partition is not served, and "
            "its ledgers are kept; see `headrace cluster repair`"
        )
    return problems


def _count(chain: PartitionFact, findings: Findings) -> None:
    """Add one partition's ledgers."""
    for link in chain.ledgers:
        findings.ledgers += 1
        findings.size_bytes += link.size_bytes or 0
        if link.end_offset is not None:
            findings.records += link.end_offset - link.base_offset


def _contradictions(
    chain: PartitionFact,
    owner: OwnerFact | None,
    records: Mapping[int, LedgerRecord],
    told: AbstractSet[int],
) -> list[str]:
    """Messages about one partition's chain that contradicts itself, its owner or BookKeeper.

    Without the lost ledgers `told`, which a repair names.
    """
    found = []
    if owner is not None and chain.leader_epoch > owner.leader_epoch:
        found.append("the chain has a later epoch than its owner")
    for number, link in enumerate(chain.ledgers):
        is_last = number >= len(chain.ledgers) - 2  # the next one may have been created ahead
        record = records.get(link.ledger)
        if record is None:
            if link.local_deleted_ms is None and link.ledger not in told:
                found.append(f"ledger {link.ledger} does not exist")
        elif link.is_sealed and not record.is_closed:
            found.append(
                f"ledger {link.ledger} is sealed in the chain but not closed in BookKeeper"
            )
        elif not link.is_sealed and not is_last:
            found.append(f"ledger {link.ledger} has no end offset although other ledgers follow")
    return found


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
