"""ZooKeeper comes back as it was some time ago: what would be lost is refused, and said."""

from __future__ import annotations

import asyncio
import copy
import logging

import pytest

pytest.importorskip("google.protobuf", reason="a cluster needs headrace[cluster]")

from headrace.storage.bookkeeper.ledger_metadata import ledger_path
from headrace_verify.simulation import operator, workload
from headrace_verify.simulation.churn import make_topic
from headrace_verify.simulation.machines import LEDGERS_ROOT
from headrace_verify.simulation.run import Run, draw_scenario

UP_S = 60.0


async def work(run: Run, seconds: float) -> None:
    """Have a client write for so long, and every broker end and come back meanwhile."""
    over = asyncio.Event()
    context = run._context(1, run.hosts[0], over)
    task = run._as_host(run.hosts[0], workload.run_idempotent(context), "writer")
    for broker in run.cluster.brokers:
        await asyncio.sleep(seconds / len(run.cluster.brokers))
        broker.end(is_notified=True)
        broker.start()
    over.set()
    await task


def restored(run: Run, saved: dict[str, object]) -> None:
    """All brokers end, the servers have the tree of the back-up, and all start again.

    The sessions of the back-up are over: servers that are restored end them, and their nodes go.
    """
    ensemble = run.cluster.ensemble
    for broker in run.cluster.brokers:
        broker.end(is_notified=True)
    for name, value in saved.items():
        setattr(ensemble, name, value)
    for path in [path for path, node in ensemble.nodes.items() if node.owner]:
        ensemble.delete(path, -1)
    for broker in run.cluster.brokers:
        broker.start()


def allocate(run: Run, count: int) -> None:
    """Others allocate ids: of ledgers that were deleted since, or have not been written to."""
    run.cluster.ensemble.nodes[f"{LEDGERS_ROOT}/idgen"].created_count += count


def collect_garbage(run: Run) -> None:
    """The bookies delete what ZooKeeper does not list, as real ones do after minutes."""
    paths = run.cluster.ensemble.nodes
    for bookie in run.cluster.bookies:
        for ledgers in (bookie.store._ledgers, bookie.store._durable):
            for ledger in [one for one in ledgers if ledger_path(LEDGERS_ROOT, one) not in paths]:
                del ledgers[ledger]


@pytest.mark.parametrize(
    ("seed", "gap", "is_collected"),
    [(1, 0, False), (5, 0, False), (9, 0, False), (1, 1_000, False), (5, 1_000, True)],
)
def test_no_broker_starts_over_a_zookeeper_that_is_older_than_the_bookies(
    seed, gap, is_collected, caplog
):
    run = Run(draw_scenario(seed, 60.0, is_lone=False)._replace(points=()))
    cluster = run.cluster
    for name in ("headrace", "headrace_verify"):
        caplog.set_level(logging.INFO, name)

    async def play() -> None:
        cluster.start()
        assert await cluster.wait_up(UP_S)
        maker = run._context(0, None, asyncio.Event())
        routes = maker.routes()
        for name, partitions in run.work.topics.items():
            await make_topic(maker, routes, name, partitions)
        await work(run, 8.0)
        ensemble = cluster.ensemble
        saved = {name: copy.deepcopy(getattr(ensemble, name)) for name in ("nodes", "children")}
        restored(run, copy.deepcopy(saved))
        assert await cluster.wait_up(UP_S), "nothing was written since"
        saved = {name: copy.deepcopy(getattr(ensemble, name)) for name in ("nodes", "children")}
        allocate(run, gap)
        await work(run, 8.0)
        restored(run, saved)
        if is_collected:
            collect_garbage(run)
        await asyncio.sleep(15.0)
        assert cluster.ready() == []
        refusals = [text for text in caplog.messages if "cannot start" in text]
        assert refusals
        assert all("a backup that is older than these ledgers" in text for text in refusals)
        operator.Operator(cluster, run.work.topics)._repair()
        assert await cluster.wait_up(UP_S), "given up, as the operator said, and refused"

    run.loop.run_until_complete(play())
    run.cluster.network.is_over = True
    run.loop.bury(cluster.hosts)
