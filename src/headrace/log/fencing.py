"""Fences brokers that still serve a deleted topic.

Invariants: knows the stored chain and the ledgers, not PartitionLog: the broker that deletes a
topic need not serve it. The chain is claimed first, as otherwise a former owner whose ledger was
fenced would add another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import LedgerUnknown
from headrace.log.ledger_chain import LedgerChain
from headrace.storage.ledger import LedgerId, ReleasesLedgers

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.log.environment import Environment

EPOCH_OF_DELETED = 2**31 - 1
"""The leader epoch in the chain of a deleted partition: the largest in Kafka's protocol, so that no
later owner with stale metadata has a newer one."""


async def fence_brokers(environment: Environment, topic_id: UUID, partition: int) -> None:
    """On return no broker can append to the partition, even if it missed the deletion.

    Only needed for shared storage. Raises StorageUnavailable, MetadataUnavailable: then some may
    still append.
    """
    chain = LedgerChain(environment.metadata, topic_id, partition)
    fact = await chain.claim(EPOCH_OF_DELETED)
    for link in fact.ledgers:
        if link.is_sealed:
            continue
        ledger = LedgerId(link.ledger)
        try:
            await environment.store.recover(ledger)
        except LedgerUnknown:  # the sweep of orphans was faster
            continue
        if isinstance(environment.store, ReleasesLedgers):
            environment.store.release(ledger)
