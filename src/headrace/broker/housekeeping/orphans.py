"""Deletes ledgers and facts that a crash left without a topic, when a broker starts.

Invariants: a ledger is deleted only if every required chain was read.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import MetadataUnavailable, StorageUnavailable
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import (
    OWNERS,
    PARTITIONS,
    CompanionKind,
    OwnerFact,
    PartitionFact,
    companion_number,
    owner_key,
    partition_of_companion,
    partition_of_key,
)
from headrace.metadata.store import ANY, MetadataStore
from headrace.storage.ledger import LedgerId, LedgerStore

if TYPE_CHECKING:
    from headrace.broker.topics.topics import Topics
    from headrace.metadata.facts import PartitionKey

_KINDS = tuple(CompanionKind)
log = logging.getLogger(__name__)


async def collect_orphans(
    store: LedgerStore,
    metadata: MetadataStore,
    topics: Topics,
    broker_id: int,
    *,
    has_neighbours: bool,
) -> None:
    """Delete ledgers that no topic's chain names, left by a crash between two steps.

    `has_neighbours`: other brokers share the metadata, each with ledgers of its own.
    """
    if topics.damaged_facts:  # what belongs to these topics is not known
        log.error("no orphans are deleted while facts cannot be decoded")
        return
    used: set[int] = set()
    stale: list[str] = []
    chained: set[PartitionKey] = set()
    expected: set[PartitionKey] = set()
    owners = {
        partition_of_key(entry.key): decode_fact(OwnerFact, entry).broker
        for entry in (await metadata.list(OWNERS) if has_neighbours else ())
    }
    for entry in await metadata.list(PARTITIONS):
        topic_id, number = partition_of_key(entry.key)
        chained.add((topic_id, number))
        owner = owners.get((topic_id, partition_of_companion(number)))
        if has_neighbours and owner is None:
            # Its owner is unknown: the ledgers of its chain are deleted in no folder.
            used |= decode_fact(PartitionFact, entry).local_ledgers
            continue
        if has_neighbours and owner != broker_id:
            continue  # another broker's, in another folder
        if topic_id in topics.by_id:
            fact = decode_fact(PartitionFact, entry)
            used |= fact.local_ledgers
            expected |= {
                (topic_id, companion_number(number, kind))
                for kind in _KINDS
                if fact.has_companion(kind)
            }
        else:
            stale.append(entry.key)
    for partition, owner in owners.items():
        # Written by a previous incarnation, which ended before it could release what was deleted.
        if owner == broker_id and partition[0] not in topics.by_id:
            stale.append(owner_key(*partition))
    expected |= {
        (topic.id, number)
        for topic in topics.by_id.values()
        for number in range(len(topic.partitions))
        if topic.fact.has_chain(number)
    }
    orphans = [info.ledger for info in store.list() if info.ledger not in used]
    if orphans and not expected <= chained:
        log.error("a partition's chain is missing: keeping all orphaned ledgers")
        orphans = []
    try:
        for ledger in orphans:
            await store.delete(LedgerId(ledger))
        for key in stale:
            await metadata.delete(key, ANY)
    except (StorageUnavailable, MetadataUnavailable) as error:
        # A full disk must not stop the broker: the next start deletes them.
        log.warning("cannot delete %d orphaned ledgers yet: %s", len(orphans), error)
    else:
        if orphans:
            log.info("deleted %d orphaned ledgers", len(orphans))
