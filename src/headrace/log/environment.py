"""The services shared by the logs of one broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.log.ledger_chain import ChainEvidence
    from headrace.log.loaded_indexes import LoadedIndexes
    from headrace.log.log_state import LogState
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks
    from headrace.storage.ledger import LedgerStore
    from headrace.storage.tiering.tier import Tier


class CompanionedLogs:
    """The loaded logs that had companion logs when they were loaded, in order, until their host has
    seen them."""

    def __init__(self) -> None:
        self._unseen: dict[LogState, None] = {}
        self._is_loaded = asyncio.Event()

    def add(self, log: LogState) -> None:
        """The log is loaded, and has companion logs."""
        self._unseen[log] = None
        self._is_loaded.set()

    def discard(self, log: LogState) -> None:
        """The log is not loaded any more, or had no companion logs."""
        self._unseen.pop(log, None)

    async def wait_loaded(self) -> list[LogState]:
        """The logs that were loaded since the last call; waits for the first."""
        await self._is_loaded.wait()
        self._is_loaded.clear()
        logs, self._unseen = [*self._unseen], {}
        return logs


class Environment(NamedTuple):
    """Shared by all logs of a broker."""

    store: LedgerStore
    metadata: MetadataStore
    clock: Clock
    tasks: Tasks
    is_shared: bool = False
    """Whether other brokers use the same ledgers: then none is deleted here, since a paused broker
    might still write to it; garbage collection deletes it later."""
    tier: Tier | None = None
    """Object storage beneath `store`, if configured."""
    indexes: LoadedIndexes | None = None
    """Limits the memory for indexes of closed ledgers; None: no limit."""
    evidence: ChainEvidence | None = None
    """Evidence of chains in the ledgers' labels, if brokers share a store."""
    companioned: CompanionedLogs | None = None
    """For hosts of companions."""
