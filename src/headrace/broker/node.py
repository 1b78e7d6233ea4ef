"""One broker: what it knows and owns, and its housekeeping.

Rules of the room: faces call this, it calls the log and the coordinators. Opening it reads the
metadata; a partition's log is read when somebody first asks for it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.group_coordinator import GroupCoordinator
from headrace.broker.internal_topics import InternalPartition
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.topics import Topics
from headrace.errors import (
    HeadraceError,
    MetadataUnavailable,
    NotCoordinator,
    StorageUnavailable,
)
from headrace.log.environment import Environment
from headrace.log.retention import enforce
from headrace.metadata.facts import (
    PARTITIONS,
    BrokerFact,
    PartitionFact,
    broker_key,
    ensure_cluster_id,
    partition_of_key,
)
from headrace.metadata.store import ANY, MetadataStore
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace.runtime.tasks import Tasks
from headrace.storage.ledger import LedgerId, LedgerStore

if TYPE_CHECKING:
    from headrace.broker.broker_config import BrokerConfig
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness

log = logging.getLogger(__name__)


class Node:
    """A running broker without its faces."""

    def __init__(
        self,
        config: BrokerConfig,
        store: LedgerStore,
        metadata: MetadataStore,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self.config = config
        self.store = store
        self.metadata = metadata
        self.clock = clock
        self.tasks = Tasks()
        self.cluster_id = ""
        self.kafka_address = ("", 0)
        """What clients are told: host and port."""
        self.topics = Topics(Environment(store, metadata, clock, self.tasks), config, randomness)
        self.producer_ids = ProducerIds(metadata)
        self.groups: GroupCoordinator

    async def open(self) -> None:
        """Read the metadata, and collect what a crash left behind."""
        self.cluster_id = await ensure_cluster_id(self.metadata, self.randomness)
        await self.topics.load()
        await self._collect_orphans()
        offsets_topic = self.topics.by_name.get(OFFSETS_TOPIC)
        self.groups = GroupCoordinator(
            self._shard_log,
            # The hash of a group depends on it: what is stored wins over what is configured.
            offsets_topic.fact.partition_count
            if offsets_topic
            else self.config.offsets_partition_count,
            self.clock,
            self.randomness,
            self.tasks,
        )
        self.tasks.spawn(self._keep_house(), "housekeeping")

    @property
    def randomness(self) -> Randomness:
        """Where ids come from."""
        return self.topics.randomness

    async def register(self, kafka: tuple[str, int], http: tuple[str, int]) -> None:
        """Tell the cluster where this broker is reached."""
        self.kafka_address = kafka
        fact = BrokerFact(
            self.config.broker_id,
            kafka[0],
            kafka[1],
            http[0],
            http[1],
            self.clock.now_ms(),
            self.config.rack,
        )
        key = broker_key(self.config.broker_id)
        await self.metadata.put(key, fact.encode(), ANY, ephemeral=True)

    async def close(self) -> None:
        """Stop the coordinators and all background work. Storage is closed by its owner."""
        await self.groups.close()
        await self.tasks.close()

    def _shard_log(self, number: int) -> InternalPartition:
        topic = self.topics.by_name.get(OFFSETS_TOPIC)
        if topic is None:
            raise NotCoordinator("no group was ever made here: there is no topic of offsets yet")
        return InternalPartition(topic.partitions[number], self.store, self.clock, self.tasks)

    async def partition_ready(self, partition: PartitionLog) -> None:
        """Wait until the partition's log has been read. Raises why it cannot be."""
        await partition.wait_loaded()

    # --- housekeeping ------------------------------------------------------------------------

    async def _collect_orphans(self) -> None:
        """Delete the ledgers that no topic's chain names: a crash came between two steps."""
        used: set[int] = set()
        stale: list[str] = []
        for entry in await self.metadata.list(PARTITIONS):
            topic_id, _number = partition_of_key(entry.key)
            if topic_id in self.topics.by_id:
                used |= {link.ledger for link in PartitionFact.decode(entry.value).ledgers}
            else:
                stale.append(entry.key)
        orphans = [info.ledger for info in self.store.list() if info.ledger not in used]
        try:
            for ledger in orphans:
                await self.store.delete(LedgerId(ledger))
            for key in stale:
                await self.metadata.delete(key, ANY)
        except (StorageUnavailable, MetadataUnavailable) as error:
            # A full disk is no reason to serve nobody: they go at the next start.
            log.warning("%d ledgers that belong to no topic stay for now: %s", len(orphans), error)
        else:
            if orphans:
                log.info("removed %d ledgers that belong to no topic", len(orphans))

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self.config.retention_check_interval_ms / 1000)
            for topic in list(self.topics.by_name.values()):
                for partition in topic.partitions:
                    try:
                        await self._enforce_retention(partition)
                    except HeadraceError as error:
                        log.warning("%s: retention failed: %s", partition.name, error)

    async def _enforce_retention(self, partition: PartitionLog) -> None:
        if partition.is_deleted:
            return
        if not partition.is_loaded and partition.failure is None:
            await self.partition_ready(partition)
        dropped = await enforce(partition, self.clock.now_ms())
        if dropped:
            log.info("%s: retention dropped %d records", partition.name, dropped)
