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

from headrace.errors import ChainMissing, DataCorrupt, FormatUnsupported, HeadraceError, NotOwner
from headrace.metadata.facts import (
    PARTITIONS,
    PartitionFact,
    partition_key,
    partition_of_companion,
    partition_of_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionKey
    from headrace.metadata.store import MetadataEntry, MetadataStore

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
        """`changed` is called for a partition whose chain exists again. `served` includes
        companion logs."""
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
        version = served.tenure.version  # what a later read must show at least
        entry = await self._metadata.get(partition_key(*key))
        if self._served.get(key) is not served or served.is_deleted:
            return
        known = served.tenure.fact.lost_offsets
        problem = _problem_of(entry, version, known)
        if served.is_loaded and problem:
            served.tenure.chain_missing(problem)
            log.error("%s is no longer served: %s", served.name, served.failure)
        elif (
            entry is not None
            and _decoded_or_none(entry) is not None
            and isinstance(served.failure, ChainMissing)
            and entry.version != served.tenure.version
        ):
            if partition_of_companion(key[1]) != key[1]:
                # Its host opens it again, as one that another broker has fenced.
                served.abandon(NotOwner(f"the chain of {served.name} exists again: try again"))
                return
            self._back.add(key)
            self._changed(key)


def _problem_of(entry: MetadataEntry | None, version: int, lost_offsets: str | None) -> str:
    """What is wrong with a stored chain that was at `version` and had given up `lost_offsets`;
    "" if nothing is."""
    if entry is None:
        return "was deleted"
    if entry.version < version:
        return "was changed back"
    if entry.version == version:
        return ""
    fact = _decoded_or_none(entry)
    if fact is None:
        return "cannot be decoded"
    return "" if fact.lost_offsets == lost_offsets else "was repaired: lost ledgers are given up"


def _decoded_or_none(entry: MetadataEntry) -> PartitionFact | None:
    try:
        return PartitionFact.decode(entry.value)
    except (DataCorrupt, FormatUnsupported):
        return None
