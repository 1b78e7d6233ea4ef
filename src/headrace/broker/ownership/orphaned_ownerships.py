"""Ownerships of partitions whose topic was deleted before the assigned broker learned of it.

Invariants: a topic's first owners are written together with the topic, so a topic that is deleted
at once may have owners that never knew it and would stay in the metadata for ever. The broker that
deletes the topic waits for them, and without ledger garbage collection nothing else removes them.
The metadata store is read before an ownership is given up: the event for the topic may still be in
flight, and the owners of a topic with thousands of partitions are written before it. A partition
that is given up too early is claimed again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, HeadraceError
from headrace.metadata.decoding import DamagedFact, decode_all
from headrace.metadata.facts import TOPICS, TopicFact, owner_key

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from uuid import UUID

    from headrace.broker.ownership.cluster_view import ClusterView
    from headrace.metadata.facts import PartitionKey
    from headrace.metadata.store import MetadataStore
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

WAIT_S = 0.5
"""For the event of the topic, which follows those of its owners within milliseconds, if at all."""


class OrphanedOwnerships:
    """Gives up ownerships that one incarnation of a broker holds for topics that do not exist."""

    def __init__(
        self, view: ClusterView, metadata: MetadataStore, incarnation: str, tasks: Tasks
    ) -> None:
        self._view = view
        self._metadata = metadata
        self._incarnation = incarnation
        self._tasks = tasks
        self._waiting: dict[PartitionKey, None] = {}
        self._is_running = False

    def note(self, changed: Iterable[PartitionKey], known: Container[UUID]) -> None:
        """The owners of these partitions have changed; the broker knows the topics in `known`."""
        for key in changed:
            if key[0] not in known and self._version_of(key) is not None:
                self._waiting[key] = None
        if self._waiting and not self._is_running:
            self._is_running = True
            self._tasks.spawn(self._run(), "owners of unknown topics")

    def _version_of(self, key: PartitionKey) -> int | None:
        """The version of the owner fact if this broker owns the partition, else None."""
        owner = self._view.owners.get(key)
        is_ours = owner is not None and owner.fact.incarnation == self._incarnation
        return owner.version if owner is not None and is_ours else None

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(WAIT_S)
                try:
                    await self._give_up()
                except HeadraceError as error:
                    log.info("cannot remove the owners of unknown topics yet: %s", error)
        finally:
            self._is_running = False

    async def _give_up(self) -> None:
        """Raises MetadataUnavailable, VersionConflict. While a topic fact cannot be decoded, the
        owners are kept until it can: it may be the one in question."""
        asked, damaged = list(self._waiting), list[DamagedFact]()
        entries = await self._metadata.list(TOPICS)
        facts = decode_all(TopicFact, entries, str, damaged).values()
        topics = {fact.id for fact in facts if not fact.is_deleted}
        unknown = [key for key in asked if key[0] not in topics]
        if damaged and unknown:
            for key in set(asked) - set(unknown):
                del self._waiting[key]
            raise DataCorrupt(f"{damaged[0]}", key=damaged[0].key)
        for key in asked:
            version = self._version_of(key)
            if key[0] not in topics and version is not None:
                await self._metadata.delete(owner_key(*key), version)
            del self._waiting[key]
