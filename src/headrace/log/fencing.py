"""Fences brokers that still serve a deleted topic out of its log.

Invariants: knows the stored chain and the ledgers, no PartitionLog: who deletes a topic need
not serve it. The chain comes first, since a former owner whose ledger is taken from it would
otherwise enter another one.
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
"""The leader epoch in the chain of a deleted partition: the greatest that Kafka's protocol has, so
that no owner who comes later, from an old picture, has a newer one."""


async def shut_out(environment: Environment, topic_id: UUID, partition: int) -> None:
    """On return no broker can append to the partition, whatever it knows of its deletion.

    Only over storage that brokers share. Raises StorageUnavailable, MetadataUnavailable: then some
    may.
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
