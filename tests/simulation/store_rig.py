"""A ledger store over simulated bookies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace_verify.rng import seeded
from headrace_verify.simulation.clock import SimulatedClock, SimulatedRandomness
from headrace_verify.simulation.cluster import Cluster
from headrace_verify.simulation.loop import Host, SimulatedLoop
from headrace_verify.simulation.machines import LEDGERS_ROOT
from headrace_verify.simulation.zookeeper import connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

QUORUM = Quorum(3, 3, 2)


def run_store(
    name: str,
    seed: int,
    work: Callable[[Cluster, BookKeeperLedgerStore], Awaitable[None]],
    quorum: Quorum = QUORUM,
    bookies: int = 4,
) -> None:
    """Do `work` with a store over bookies; `name` and `seed` decide the run.

    No task may be left after it, and what a callback raised is raised.
    """
    loop = SimulatedLoop()
    faults: list[Any] = []
    loop.set_exception_handler(lambda _loop, context: faults.append(context))
    cluster = Cluster(f"{name} {seed}", loop, 0, bookies, quorum)
    host = Host("writer")
    cluster.hosts.append(host)

    async def begin() -> None:
        await asyncio.sleep(0.1)
        clock = SimulatedClock(loop)
        zookeeper = await connect(cluster.world, clock, 6_000, "writer")
        settings = BookKeeperSettings(ledgers_root=LEDGERS_ROOT, quorum=quorum, cluster="one")
        randomness = SimulatedRandomness(seeded(f"writer {seed}"))
        store = await BookKeeperLedgerStore.open(zookeeper, settings, clock, randomness)
        await work(cluster, store)
        await store.close()
        await zookeeper.close()
        left = [task for task in host.tasks if task is not asyncio.current_task()]
        assert [task.get_name() for task in left if not task.done()] == []

    async def main() -> None:
        task: asyncio.Task[None] = host.run(lambda: loop.create_task(begin()))
        await task

    cluster.start()
    try:
        loop.run_until_complete(main())
        assert faults == []
    finally:
        cluster.network.is_over = True
        loop.bury(cluster.hosts)
