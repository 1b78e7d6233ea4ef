"""An operator of a simulated cluster: loses some metadata, and rebuilds it.

Invariants: loses only what `headrace cluster repair` guarantees to rebuild, of topics that no
client deletes; runs it as that command would, as a separate host, until it has succeeded.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.housekeeping.chain_repair import ChainRepairer
from headrace.errors import HeadraceError
from headrace.metadata.facts import (
    TOPICS,
    PartitionFact,
    TopicFact,
    ensure_cluster_id,
    partition_key,
)
from headrace.metadata.zookeeper import ROOT, ZooKeeperMetadataStore
from headrace.metadata.zookeeper_keys import path_of_key
from headrace.records.identifiers import INTERNAL_TOPICS
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace_verify.rng import seeded
from headrace_verify.simulation.clock import SimulatedClock, SimulatedRandomness
from headrace_verify.simulation.loop import Host
from headrace_verify.simulation.machines import LEDGERS_ROOT, SESSION_TIMEOUT_MS
from headrace_verify.simulation.zookeeper import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace_verify.simulation.cluster import Cluster, SimulatedBroker
    from headrace_verify.simulation.schedule import Fault

RETRY_S = 1.0


class Operator:
    """The operator of one run."""

    def __init__(self, cluster: Cluster, topics: Iterable[str]) -> None:
        """`topics`: those that no client deletes."""
        self._cluster = cluster
        self._lasting = sorted({*topics, *INTERNAL_TOPICS})
        self._repairs = 0

    def lose_chain(self, fault: Fault, broker: SimulatedBroker) -> Callable[[], None] | None:
        """Delete a chain that names ledgers; in half of the cases, also kill `broker`."""
        chains = self._chains()
        if not chains:
            return None
        ensemble = self._cluster.ensemble
        ensemble.zxid += 1
        ensemble.delete(chains[fault.other % len(chains)], -1)
        if fault.strength > 0.5 and broker.host is not None:
            broker.end(is_notified=True)

        def heal() -> None:
            if broker.host is None:
                broker.start()
            self._repair()

        return heal

    def _chains(self) -> list[str]:
        """The paths of all non-empty chains of permanent topics."""
        nodes, found = self._cluster.ensemble.nodes, []
        for name in self._lasting:
            node = nodes.get(ROOT + path_of_key(TOPICS + name))
            if node is None:
                continue
            topic = TopicFact.decode(node.value)
            for number in range(topic.partition_count):
                path = ROOT + path_of_key(partition_key(topic.id, number))
                if path in nodes and PartitionFact.decode(nodes[path].value).ledgers:
                    found.append(path)
        return found

    def _repair(self) -> None:
        self._repairs += 1
        host = Host("operator", self._repairs)
        self._cluster.hosts.append(host)
        loop = self._cluster.loop

        def begin() -> None:
            _ = loop.create_task(self._repair_until_done(), name="cluster repair")

        loop.call_soon(begin, context=host.context)

    async def _repair_until_done(self) -> None:
        while True:
            try:
                if await self._repair_once():
                    return
            except HeadraceError:
                pass  # no available bookie has the records, or a concurrent change
            await asyncio.sleep(RETRY_S)

    async def _repair_once(self) -> bool:
        cluster, clock = self._cluster, SimulatedClock(self._cluster.loop)
        zookeeper = await connect(
            cluster.world, clock, SESSION_TIMEOUT_MS, f"operator {self._repairs}"
        )
        try:
            metadata = await ZooKeeperMetadataStore.open(zookeeper)
            randomness = SimulatedRandomness(seeded(f"{cluster.seed} operator {self._repairs}"))
            settings = BookKeeperSettings(
                ledgers_root=LEDGERS_ROOT,
                quorum=cluster.world.quorum,
                cluster=await ensure_cluster_id(metadata, randomness),
            )
            store = await BookKeeperLedgerStore.open(zookeeper, settings, clock, randomness)
            try:
                repairer = ChainRepairer(store, metadata, clock)
                # Trimmed ledgers that are partially deleted leave gaps; a loss is found later.
                done = await repairer.repair(await store.records(), accept_loss=True)
            finally:
                await store.close()
                await metadata.close()
        finally:
            await zookeeper.close()
        return not any(chain.problem for chain in done.chains)
