"""What the logs of one broker share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.log.ledger_chain import ChainEvidence
    from headrace.log.loaded_indexes import LoadedIndexes
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks
    from headrace.storage.ledger import LedgerStore
    from headrace.storage.tiering.tier import Tier


class Environment(NamedTuple):
    """What all logs of a broker share."""

    store: LedgerStore
    metadata: MetadataStore
    clock: Clock
    tasks: Tasks
    is_shared: bool = False
    """Whether other brokers see the same ledgers: then none is deleted here, since a broker that
    was stopped for a while might still write to it; the sweep of orphans does it later."""
    tier: Tier | None = None
    """Object storage under `store`, where there is one."""
    indexes: LoadedIndexes | None = None
    """Bounds what the indexes of closed ledgers take; without it they stay."""
    evidence: ChainEvidence | None = None
    """What the ledgers' labels say of chains, where brokers share a store."""
    companioned: dict[PartitionLog, None] | None = None
    """The loaded logs that had companions when they were loaded, in that order, for those who host
    companions without being asked."""
