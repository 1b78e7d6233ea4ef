"""Ledgers that are closed, or whose store is, under appends, over simulated bookies."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("google.protobuf", reason="a cluster needs headrace[cluster]")

from tests.simulation.store_rig import run_store

from headrace.errors import HeadraceError, LedgerLost, StorageUnavailable
from headrace.storage.bookkeeper.quorum import Quorum

if TYPE_CHECKING:
    from headrace.runtime.completion import Completion
    from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
    from headrace_verify.simulation.cluster import Cluster

APPENDS = 40
SEEDS = range(12)


async def ends(completions: list[Completion]) -> list[bool]:
    """Whether each append was acknowledged, once all have ended."""
    found = []
    for completion in completions:
        try:
            async with asyncio.timeout(60):
                await completion.wait()
            found.append(True)
        except HeadraceError:
            found.append(False)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_that_closes_under_its_writers_leaves_no_task(seed):
    """Connections that ended with it had bookies replaced in ledgers that were over."""

    async def work(cluster: Cluster, store: BookKeeperLedgerStore) -> None:
        ledgers = [await store.create() for _ in range(3)]
        cluster.bookies[seed % 4].end(is_notified=seed % 3 != 0)
        completions = []
        for number in range(APPENDS):
            completions.append(store.append(ledgers[number % 3], [b"y" * 50], 50, 0)[1])
            if number % 7 == 0:
                await asyncio.sleep(0.000_3)
        await asyncio.sleep(0.001 * seed)
        await store.close()
        for _ in range(5):  # connections are lost in later turns
            await asyncio.sleep(0)
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert [name for name in names if "ledger" in name or "bookie" in name] == []
        assert len(await ends(completions)) == APPENDS
        with pytest.raises(StorageUnavailable):
            await store.recover(ledgers[0])

    run_store("closing", seed, work)


def test_sealing_a_ledger_ends_when_it_loses_a_bookie():
    """Without a spare bookie and after a release, nothing else notices that the quorum is lost."""

    async def work(cluster: Cluster, store: BookKeeperLedgerStore) -> None:
        ledger = await store.create()
        await store.append(ledger, [b"y" * 50], 50, 0)[1].wait()
        for bookie in cluster.bookies:
            assert bookie.server is not None
            bookie.server.slow_s = 1.0
        sealing = asyncio.ensure_future(store.seal(ledger, b"footer"))
        await asyncio.sleep(0.01)
        store.release(ledger)
        cluster.bookies[0].end(is_notified=True)
        async with asyncio.timeout(60):
            with pytest.raises(LedgerLost):
                await sealing

    run_store("closing", 1, work, Quorum(3, 3, 3), bookies=3)
