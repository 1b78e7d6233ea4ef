"""Detects that the chain of a served partition was deleted or is older again, or exists again.

Invariants: reads chains and changes none. The owner's next change of its chain would detect the
loss as well, but that may be hours away, and until then the owner would acknowledge appends to a
ledger that no chain names. One watch covers all partitions; only the owner reads a chain when it
changes.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import ChainMissing, HeadraceError
from headrace.metadata.facts import PARTITIONS, partition_key, partition_of_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionKey
    from headrace.metadata.store import MetadataStore

log = logging.getLogger(__name__)

RETRY_S = 0.5


class ChainWatch:
    """Watches the chains of the partitions that one broker serves."""

    def __init__(
        self,
        metadata: MetadataStore,
        served: Mapping[PartitionKey, PartitionLog],
        changed: Callable[[PartitionKey], None],
    ) -> None:
        """`changed` is called for a partition whose chain exists again."""
        self._metadata = metadata
        self._served = served
        self._changed = changed
        self._back: set[PartitionKey] = set()

    def is_back(self, key: PartitionKey) -> bool:
        """Whether the missing chain of a partition has been seen since it went missing."""
        return key in self._back

    def begun(self, key: PartitionKey) -> None:
        """A new tenure of the partition has begun."""
        self._back.discard(key)

    async def run(self) -> None:
        """Follow the chains until cancelled."""
        while True:
            try:
                changes = self._metadata.watch(PARTITIONS)
                for key, served in list(self._served.items()):
                    if served.is_loaded or isinstance(served.failure, ChainMissing):
                        await self._read_chain(key)
                async for text in changes:
                    await self._read_chain(partition_of_key(text))
                return  # the store was closed
            except HeadraceError as error:
                log.warning("cannot watch the partitions' chains (%s): retrying", error)
                await asyncio.sleep(RETRY_S)

    async def recheck(self, key: PartitionKey) -> None:
        """The partition has failed because of its chain, which may have been replaced since."""
        while True:
            try:
                await self._read_chain(key)
                return
            except HeadraceError as error:
                log.warning("cannot read the chain of a partition (%s): retrying", error)
                await asyncio.sleep(RETRY_S)

    async def _read_chain(self, key: PartitionKey) -> None:
        served = self._served.get(key)
        if served is None:
            return
        version = served.lifecycle_host.chain.version  # what a later read must show at least
        entry = await self._metadata.get(partition_key(*key))
        if self._served.get(key) is not served or served.is_deleted:
            return
        is_older = entry is not None and entry.version < version
        if served.is_loaded and (entry is None or is_older):
            served.lifecycle_host.chain_missing("was changed back" if is_older else "was deleted")
            log.error("%s is no longer served: %s", served.name, served.failure)
        elif (
            entry is not None
            and isinstance(served.failure, ChainMissing)
            and entry.version != served.lifecycle_host.chain.version
        ):
            self._back.add(key)
            self._changed(key)
