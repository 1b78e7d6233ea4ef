"""A cluster's metadata is copied as of one moment, and restored only where there is no other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from headrace.administration import cluster_backup
from headrace.administration.cluster_backup import (
    Node,
    Roots,
    read_nodes,
    refuse_while_restoring,
    restore,
)
from headrace.errors import RequestInvalid
from headrace.metadata.facts import CLUSTER_ID, ClusterFact
from headrace.metadata.zookeeper_keys import path_of_key
from headrace.storage.bookkeeper.quorum import Quorum
from headrace_verify.simulation.clock import SimulatedClock
from headrace_verify.simulation.cluster import Cluster
from headrace_verify.simulation.loop import Host, SimulatedLoop
from headrace_verify.simulation.zookeeper import connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.zookeeper.client import ZooKeeper

ROOTS = Roots("/headrace", "/kept")
CLUSTER = ClusterFact("a" * 22).encode()
CHAIN = path_of_key("/partitions/x/0")
NODES = [
    Node("facts", "", b""),
    Node("facts", path_of_key(CLUSTER_ID), CLUSTER),
    Node("facts", CHAIN, b"ledger 1"),
    Node("ledgers", "", b""),
    Node("ledgers", "/1", b"first"),
]


def run(work: Callable[[ZooKeeper], Awaitable[None]]) -> None:
    """Do `work` with a client of simulated ZooKeeper servers."""
    loop = SimulatedLoop()
    cluster = Cluster("backup", loop, 0, 1, Quorum(1, 1, 1))
    host = Host("operator")
    cluster.hosts.append(host)

    async def begin() -> None:
        await asyncio.sleep(0.1)
        zookeeper = await connect(cluster, SimulatedClock(loop), 10_000, "operator")
        try:
            await work(zookeeper)
        finally:
            await zookeeper.close()

    async def main() -> None:
        await host.run(lambda: loop.create_task(begin()))

    cluster.start()
    try:
        loop.run_until_complete(main())
    finally:
        cluster.network.is_over = True
        loop.bury(cluster.hosts)


async def restored(zookeeper: ZooKeeper, digest: str = "digest") -> None:
    await restore(zookeeper, ROOTS, NODES, digest, "backup")


def test_no_fact_names_a_ledger_that_was_deleted_while_bookkeepers_tree_was_read(
    monkeypatch,
) -> None:
    read = cluster_backup._ledger_nodes
    readings = []

    async def work(zookeeper: ZooKeeper) -> None:
        await restored(zookeeper)

        async def trimmed(*arguments) -> list[Node]:
            if not readings:  # as a broker does it: the chain first
                await zookeeper.put(ROOTS.facts + CHAIN, b"")
                await zookeeper.delete("/kept/1")
            readings.append(await read(*arguments))
            return readings[-1]

        monkeypatch.setattr(cluster_backup, "_ledger_nodes", trimmed)
        found = {(node.tree, node.path): node.value for node in await read_nodes(zookeeper, ROOTS)}
        assert found["facts", CHAIN] == b""
        assert ("ledgers", "/1") not in found
        assert len(readings) == 2

    run(work)


def test_brokers_stay_out_until_a_restore_that_was_interrupted_is_complete(monkeypatch) -> None:
    async def work(zookeeper: ZooKeeper) -> None:
        await refuse_while_restoring(zookeeper, ROOTS)
        with monkeypatch.context() as patched:
            patched.setattr(cluster_backup, "_compare", None)  # ends there
            with pytest.raises(TypeError):
                await restored(zookeeper)
        with pytest.raises(RequestInvalid, match="headrace cluster restore"):
            await refuse_while_restoring(zookeeper, ROOTS)
        await restored(zookeeper)
        await refuse_while_restoring(zookeeper, ROOTS)

    run(work)


def test_a_restore_that_continues_does_not_overwrite_what_is_newer(monkeypatch) -> None:
    async def work(zookeeper: ZooKeeper) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(cluster_backup, "_compare", None)
            with pytest.raises(TypeError):
                await restored(zookeeper)
        await zookeeper.put(ROOTS.facts + CHAIN, b"ledgers 1 and 2")
        with pytest.raises(RequestInvalid, match="not changed"):
            await restored(zookeeper)
        found = await zookeeper.get(ROOTS.facts + CHAIN)
        assert found is not None
        assert found.value == b"ledgers 1 and 2"

    run(work)
