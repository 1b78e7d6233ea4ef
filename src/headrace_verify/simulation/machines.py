"""The machines that simulated brokers run on: everything of a broker outside its process.

Invariants: knows how to assemble the parts, as `server/assemble` does, except for HTTP. A machine
outlives its broker's lives; how a life has ended decides what it keeps. A machine of a cluster
keeps nothing; that of a standalone broker has its files and its metadata.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.machine import Machine as Surroundings
from headrace.broker.node import Node
from headrace.metadata.facts import ensure_cluster_id
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.server.lifecycle import Broker
from headrace.server.peers import kafka_peers
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.storage.files.store import FileLedgerStore
from headrace_verify.crash.exploration import NEW_DISK
from headrace_verify.crash.model_disk import ROOT
from headrace_verify.crash.recorded_metadata import RecordedMetadata
from headrace_verify.rng import seeded
from headrace_verify.simulation.clock import SimulatedRandomness
from headrace_verify.simulation.disk import DiskClock, SimulatedDisk
from headrace_verify.simulation.zookeeper import connect

if TYPE_CHECKING:
    from headrace_verify.crash.recorded_metadata import Facts
    from headrace_verify.simulation.cluster import SimulatedBroker
    from headrace_verify.simulation.world import World

SESSION_TIMEOUT_MS = 6_000
LEDGERS_ROOT = "/ledgers"
OFFSETS_PARTITIONS = 2
RETENTION_CHECK_MS = 20_000
SWEEP_INTERVAL_MS, SWEEP_GRACE_MS = 30_000, 120_000
WAL_FILE_BYTES, CHECKPOINT_BYTES = 64 << 10, 96 << 10
OUTAGE_RETRY_MS = 200
COMPACTION_INTERVAL_MS = 3_000


class Machine(Protocol):
    """Where a broker's lives run."""

    async def open(self, broker: SimulatedBroker) -> tuple[Broker, Node]:
        """Start a life: all parts but the network servers. Raises HeadraceError, OSError."""
        ...

    def lost_power(self) -> None:
        """Discard what was not durable."""
        ...


def _config(number: int) -> BrokerConfig:
    return BrokerConfig(
        broker_id=number,
        auto_create_topics=False,
        offsets_partition_count=OFFSETS_PARTITIONS,
        retention_check_interval_ms=RETENTION_CHECK_MS,
        sweep_interval_ms=SWEEP_INTERVAL_MS,
        sweep_grace_ms=SWEEP_GRACE_MS,
        compaction_interval_ms=COMPACTION_INTERVAL_MS,
        balance_interval_ms=0,
    )


def _randomness(world: World, broker: SimulatedBroker) -> SimulatedRandomness:
    return SimulatedRandomness(seeded(f"{world.seed} {broker.name} {broker.life}"))


class ClusterMachine:
    """Of a broker that keeps everything in ZooKeeper and bookies."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def open(self, broker: SimulatedBroker) -> tuple[Broker, Node]:
        """See Machine; as `server.assemble.start_clustered`."""
        world = self._world
        randomness = _randomness(world, broker)
        zookeeper = await connect(
            world,
            broker.clock,
            SESSION_TIMEOUT_MS,
            f"{broker.name} {broker.life}",
            on_session=broker.ender.note,
        )
        broker.zookeeper = zookeeper
        life = Broker(zookeeper.close)
        metadata = await ZooKeeperMetadataStore.open(zookeeper)
        life.on_stop(metadata.close)
        settings = BookKeeperSettings(
            ledgers_root=LEDGERS_ROOT,
            quorum=world.quorum,
            cluster=await ensure_cluster_id(metadata, randomness),
        )
        store = await BookKeeperLedgerStore.open(zookeeper, settings, broker.clock, randomness)
        life.on_stop(store.close)
        config = _config(broker.number)
        parts = config, store, metadata, broker.clock, randomness
        node = Node(*parts, shared_ledgers=store, machine=Surroundings(peers=kafka_peers))
        return life, node

    def lost_power(self) -> None:
        """See Machine: it has no state."""


class LoneMachine:
    """Of a standalone broker: its files and its metadata are on one disk."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = seeded(f"{world.seed} disk")
        self._facts: Facts = {}
        self._metadata: RecordedMetadata | None = None
        self.disk = SimulatedDisk(NEW_DISK, world.loop, self._random)

    async def open(self, broker: SimulatedBroker) -> tuple[Broker, Node]:
        """See Machine; as `server.assemble.start_embedded`."""
        randomness = _randomness(self._world, broker)
        store = await FileLedgerStore.open(
            Path(ROOT),
            DiskClock(broker.clock, self.disk),
            wal_file_bytes=WAL_FILE_BYTES,
            checkpoint_bytes=CHECKPOINT_BYTES,
            retry_ms=OUTAGE_RETRY_MS,
            disk=self.disk,
            randomness=randomness,
        )
        life = Broker(store.close)
        if self._metadata is not None:  # of the previous life: the process died, its file exists
            self._facts = self._metadata.facts
        metadata = self._metadata = RecordedMetadata(self.disk, self._facts)
        life.on_stop(metadata.close)
        node = Node(_config(broker.number), store, metadata, broker.clock, randomness)
        return life, node

    def lost_power(self) -> None:
        """See Machine."""
        image, self._facts = self.disk.after_power_loss()
        self._metadata = None
        self.disk = SimulatedDisk(image, self._world.loop, self._random)
        self.disk.note("facts", self._facts)
