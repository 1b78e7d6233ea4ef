"""Bookies that die one at a time and come back, under a store that writes all the while."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("google.protobuf", reason="a cluster needs headrace[cluster]")

from tests.simulation.store_rig import run_store

from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
    from headrace_verify.simulation.cluster import Cluster

GAP_MS_MAX = 250
SEEDS = range(8)


async def write(store: BookKeeperLedgerStore, ledger: Any, seconds: float) -> float:
    """Append and wait, again and again; the longest wait in ms."""
    loop = asyncio.get_running_loop()
    longest, end_s = 0.0, loop.time() + seconds
    while loop.time() < end_s:
        begun_s = loop.time()
        _, completion = store.append(ledger, [b"x" * 100], 100, None)
        await completion.wait()
        longest = max(longest, loop.time() - begun_s)
        await asyncio.sleep(0.01)
    return longest * 1000


@pytest.mark.parametrize("bookie_count", [3, 4])
@pytest.mark.parametrize("seed", SEEDS)
def test_bookies_that_are_killed_one_at_a_time_cost_no_ledger_and_no_pause(
    seed, bookie_count, caplog
):
    caplog.set_level(logging.INFO)

    async def work(cluster: Cluster, store: BookKeeperLedgerStore) -> None:
        ledger = await store.create()
        rng = seeded(f"victims {seed}")
        assert await write(store, ledger, 1.0) < GAP_MS_MAX
        for _ in range(8):
            victim = rng.choice(cluster.bookies)
            victim.end(is_notified=True)
            assert await write(store, ledger, rng.choice([0.2, 1.0, 6.0])) < GAP_MS_MAX
            victim.start()
            assert await write(store, ledger, rng.choice([1.0, 3.0])) < GAP_MS_MAX
            assert not store.without_bookie(), "all slots have a bookie again"
        await store.seal(ledger, b"")
        state = store.replication()
        assert len(state.writable) == bookie_count

    run_store("returning", seed, work, bookies=bookie_count)
    lines = "\n".join(record.getMessage() for record in caplog.records)
    assert "no longer registered" in lines
    assert "is quarantined because" in lines
    assert "answers again" in lines


def test_a_ledger_waits_for_a_bookie_when_too_few_are_left_to_acknowledge():
    async def work(cluster: Cluster, store: BookKeeperLedgerStore) -> None:
        ledger = await store.create()
        await write(store, ledger, 0.5)
        names = sorted(store.replication().known)
        assert await store.machines(ledger) == await store.machines(ledger, 0) == names
        for bookie in cluster.bookies[:2]:
            bookie.end(is_notified=True)
        _, completion = store.append(ledger, [b"y"], 1, None)
        waiting = asyncio.ensure_future(completion.wait())
        await asyncio.sleep(2.0)
        assert not waiting.done()
        cluster.bookies[0].start()
        await asyncio.sleep(1.0)
        assert waiting.done()
        await waiting
        assert store.replication().lacking[ledger] > 0
        cluster.bookies[1].start()
        await asyncio.sleep(1.0)
        assert not store.without_bookie()
        await store.seal(ledger, b"")

    run_store("returning", 0, work, bookies=3)
