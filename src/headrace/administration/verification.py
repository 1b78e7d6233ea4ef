"""What `headrace cluster verify` finds: facts that contradict each other or BookKeeper's ledgers.

Invariants: reads no records, and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.administration.replication_report import under_replicated
from headrace.broker.housekeeping.chain_repair import ChainRepairer, Repairs
from headrace.broker.housekeeping.fact_audit import audit
from headrace.broker.housekeeping.ledger_evidence import read_facts
from headrace.metadata.decoding import decode_all, decode_fact
from headrace.metadata.facts import (
    CLUSTER_ID,
    PARTITIONS,
    OwnerFact,
    PartitionFact,
    owner_key,
    partition_key,
    partition_of_companion,
    partition_of_key,
)
from headrace.metadata.store import ABSENT
from headrace.runtime.clock import SystemClock
from headrace.runtime.log_text import one_line
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from headrace.administration.replication_report import UnderReplicated
    from headrace.administration.snapshot import ClusterSnapshot
    from headrace.metadata.facts import PartitionKey
    from headrace.metadata.zookeeper import ZooKeeperMetadataStore
    from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
    from headrace.storage.ledger import LedgerRecord


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


async def chains_of(metadata: ZooKeeperMetadataStore) -> dict[PartitionKey, PartitionFact]:
    """Each partition's chain; what cannot be decoded, the snapshot lists."""
    entries = await metadata.list(PARTITIONS)
    return decode_all(PartitionFact, entries, partition_of_key, [])


async def compare(
    metadata: ZooKeeperMetadataStore,
    store: BookKeeperLedgerStore,
    snapshot: ClusterSnapshot,
    findings: Findings,
) -> None:
    """Compare chains, owners and ledgers."""
    listed = await store.records()
    repairs = await ChainRepairer(store, metadata, SystemClock()).plan(listed)
    records = {int(record.ledger): record for record in listed}
    chains = await chains_of(metadata)
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
            name, found = snapshot.name_of(key), await _look_again(metadata, store, key, told)
            findings.problems += [f"{name}: {one}" for one in found]
    known = sorted({*chains, *snapshot.owners, *snapshot.pins})
    findings.stale = [f"{key[0].hex}-{key[1]}" for key in known if key[0] not in snapshot.topics]
    served = set(snapshot.partitions)
    used = {
        link.ledger
        for (topic_id, number), chain in chains.items()
        if (topic_id, partition_of_companion(number)) in served
        for link in chain.ledgers
    }
    facts = await read_facts(metadata)
    unnamed = [record for ledger, record in sorted(records.items()) if ledger not in used]
    kept = audit(facts, unnamed, set(records)).kept
    findings.orphans = [Orphan.of(record) for record in unnamed if record.ledger not in kept]
    findings.problems += lost_facts(snapshot, repairs)
    findings.under_replicated = list(under_replicated(snapshot, chains, records))
    findings.problems += [one.text for one in findings.under_replicated]


async def _look_again(
    metadata: ZooKeeperMetadataStore,
    store: BookKeeperLedgerStore,
    key: PartitionKey,
    told: AbstractSet[int],
) -> list[str]:
    """The contradictions of one partition as of now. What `verify` read first is older than the
    rest: a ledger created or sealed in between, and a takeover, look like contradictions.

    Owner and ledgers change before the chain, and so are read after it.
    """
    entry = await metadata.get(partition_key(*key))
    if entry is None:
        return []
    chain = decode_fact(PartitionFact, entry)
    owner = await metadata.get(owner_key(*key))
    records = await store.records_of([LedgerId(link.ledger) for link in chain.ledgers])
    return _contradictions(
        chain,
        None if owner is None else decode_fact(OwnerFact, owner),
        {int(record.ledger): record for record in records},
        told,
    )


def lost_facts(snapshot: ClusterSnapshot, repairs: Repairs) -> list[str]:
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
