"""Bookies and writers that die, hang and come back, with real processes and real signals."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.bookkeeper_rig import check_same
from tests.cluster.fixtures import cluster as started
from tests.cluster.oracle import Oracle, OracleError, oracle, stream
from tests.cluster.writer_process import WriterProcess

from headrace.errors import LedgerUnknown, StorageUnavailable
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace.storage.bookkeeper.settings import BookKeeperSettings
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions

PATIENCE_S = 60
TIMEOUT_MS = 12_000
GAP_MS_MAX = TIMEOUT_MS * 3 // 4
"""Below a writer's time-out: nobody waits for it. On a machine that does other things as
well; docs/BOOKKEEPER.md has what was measured."""


@asynccontextmanager
async def opened(cluster):
    client = await ZooKeeper.connect(ZooKeeperOptions(cluster.zookeeper.address), SystemClock())
    store = await BookKeeperLedgerStore.open(
        client, BookKeeperSettings(add_timeout_ms=2_000), SystemClock()
    )
    try:
        yield store
    finally:
        await store.close()
        await client.close()


def in_store(cluster, scenario):
    async def main():
        async with opened(cluster) as store:
            return await scenario(store)

    return asyncio.run(main())


def bookies_of(cluster, ledger: int):
    """The servers of a ledger's last ensemble."""

    async def read(store):
        return (await store._cluster.service.read(ledger)).metadata

    metadata = in_store(cluster, read)
    by_address = {bookie.address: bookie for bookie in cluster.bookies}
    return [by_address[name] for name in metadata.last_ensemble.bookies], metadata


async def recovered(store, ledger: int):
    """A bookie that is slow while another is dead may be one too many, for now."""
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return await store.recover(ledger)
        except StorageUnavailable:
            assert time.monotonic() < end


async def replaced(store, ledger: int) -> None:
    """Wait until one of its bookies was replaced."""
    while len((await store._cluster.service.read(ledger)).metadata.ensembles) < 2:
        await asyncio.sleep(0.05)


async def check_found(store, ledger: int, acked: int) -> None:
    info = await recovered(store, ledger)
    assert info.is_sealed
    assert info.end >= acked
    content = bytes(await store.read(ledger, 0, 1 << 40))
    assert content == stream(0, info.end)


@pytest.fixture(scope="module")
def own_cluster(cluster_parts):
    """Four bookies to kill; every test leaves them running."""
    with started(cluster_parts, bookie_count=4) as own:
        yield own


def revive(cluster) -> None:
    """Start whatever does not run, and wait until it serves."""
    for bookie in cluster.bookies:
        if not bookie.is_alive:
            bookie.start()
    for bookie in cluster.bookies:
        cluster.wait_ready(bookie)


def test_a_bookie_that_hangs_stops_no_writer_and_is_replaced(own_cluster):
    cluster = own_cluster
    writer = WriterProcess(cluster.zookeeper.address, (3, 3, 2), 2_000, 4, TIMEOUT_MS)
    writer.wait_more(50)
    bookies, _ = bookies_of(cluster, writer.ledger)
    try:
        since = time.monotonic_ns()
        bookies[0].suspend()
        in_store(cluster, lambda store: replaced(store, writer.ledger))
        writer.wait_more(50)
        assert not writer.failure
        assert writer.longest_gap_ms(since) < GAP_MS_MAX
        writer.end()

        # A reader, too, passes it over.
        in_store(cluster, lambda store: check_found(store, writer.ledger, writer.acked))
    finally:
        writer.end()
        bookies[0].kill()
        revive(cluster)


def test_a_bookie_that_comes_back_gets_its_own_slot_back(cluster_parts):
    """With as many bookies as copies there is no spare: it alone can hold the third copy."""
    with started(cluster_parts, bookie_count=3) as cluster:
        writer = WriterProcess(cluster.zookeeper.address, (3, 3, 2), 2_000, 4, TIMEOUT_MS)
        try:
            writer.wait_more(50)
            ensembles = 1
            for victim in bookies_of(cluster, writer.ledger)[0]:
                since = time.monotonic_ns()
                victim.kill()
                writer.wait_more(200)
                victim.start()
                cluster.wait_ready(victim)

                async def regained(store, before=ensembles):
                    return await ensembles_beyond(store, writer.ledger, before)

                ensembles = in_store(cluster, regained)
                writer.wait_more(50)
                assert not writer.failure
                assert writer.longest_gap_ms(since) < GAP_MS_MAX
                print(f"longest gap {writer.longest_gap_ms(since)} ms")
            writer.end()
            in_store(cluster, lambda store: check_found(store, writer.ledger, writer.acked))
            holders, metadata = bookies_of(cluster, writer.ledger)
            assert len(holders) == 3
            assert metadata.ensembles[-1].bookies == metadata.ensembles[0].bookies
        finally:
            writer.end()


async def ensembles_beyond(store, ledger: int, count: int) -> int:
    """Wait until the ledger has more than `count` ensembles; how many."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = len((await store._cluster.service.read(ledger)).metadata.ensembles)
        if found > count:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError("the bookie that came back was not taken in")


async def knows_of(store, count):
    """Until the store knows which bookies are gone, which it learns later than ZooKeeper."""
    while len(store._directory._addresses) > count:
        await asyncio.sleep(0.05)


def test_a_writer_goes_on_while_an_ack_quorum_lives_and_its_ledger_is_recovered(own_cluster):
    cluster = own_cluster
    writer = WriterProcess(cluster.zookeeper.address, (3, 3, 2), 16 << 10, 8, TIMEOUT_MS)
    try:
        writer.wait_more(200)
        since = time.monotonic_ns()
        victim = bookies_of(cluster, writer.ledger)[0][0]
        victim.kill()
        in_store(cluster, lambda store: replaced(store, writer.ledger))
        writer.wait_more(300)
        bookies, metadata = bookies_of(cluster, writer.ledger)
        # One more, if another was slow before.
        assert len(metadata.ensembles) >= 2, "the fourth bookie has taken over"
        assert victim not in bookies
        assert writer.longest_gap_ms(since) < GAP_MS_MAX

        since = time.monotonic_ns()
        bookies[1].kill()  # there is no spare one: two of three go on
        writer.wait_more(300)
        assert writer.longest_gap_ms(since) < GAP_MS_MAX
        assert not writer.failure
        writer.end()

        async def two_are_left(store):
            await check_found(store, writer.ledger, writer.acked)
            await knows_of(store, 2)
            ledger = await store.create()
            _, completion = store.append(ledger, [b"on two"], 6, None)
            await completion.wait()
            await store.seal(ledger, b"")
            return (await store._cluster.service.read(ledger)).metadata.quorum

        # A slot that every entry can do without belongs to one that is away, until it is back.
        assert in_store(cluster, two_are_left) == (3, 3, 2)
    finally:
        writer.end()

    # Without an ack quorum a ledger can neither be written nor recovered, and nothing is lost.
    writer = WriterProcess(cluster.zookeeper.address, (2, 2, 2), 1_000, 4)
    try:
        writer.wait_more(50)
        left = bookies_of(cluster, writer.ledger)[0]
        left[0].kill()
        writer.wait(lambda self: self.failure)
        assert writer.failure == "LedgerLost"

        async def one_is_left(store):
            # Whatever the one that is left may have acknowledged alone is none of its own: it can
            # be fenced, but not written again to two.
            with pytest.raises(StorageUnavailable):
                await store.recover(writer.ledger)
            await knows_of(store, 1)
            with pytest.raises(StorageUnavailable):
                await store.create()

        in_store(cluster, one_is_left)
        revive(cluster)
        in_store(cluster, lambda store: check_found(store, writer.ledger, writer.acked))
    finally:
        writer.end()
        revive(cluster)


@pytest.fixture(scope="module")
def own_java(cluster_parts, own_cluster):
    """The Java client over the cluster whose bookies are killed."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-oracle-") as folder,
        oracle(cluster_parts, Path(folder), own_cluster.zookeeper.address) as started_java,
    ):
        yield started_java


def recover_patiently(java: Oracle, ledger: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            java.recover(ledger)
            return
        except OracleError:
            assert time.monotonic() < end


def die_together(cluster, java: Oracle, seed: int) -> None:
    """A bookie and, a moment later, the writer: in the middle of an ensemble change, or near it."""
    rng = random.Random(seed)
    quorum = rng.choice([(3, 3, 2), (4, 3, 2), (3, 2, 2)])
    writer = WriterProcess(
        cluster.zookeeper.address, quorum, rng.choice([100, 16 << 10]), rng.choice([4, 32])
    )
    victim = None
    try:
        writer.wait_more(rng.randrange(5, 100))
        victim = rng.choice(bookies_of(cluster, writer.ledger)[0])
        victim.kill()
        time.sleep(rng.choice([0, 0, 0.002, 0.01, 0.05]))
        writer.end()
        if rng.random() < 0.5:
            recover_patiently(java, writer.ledger)

        async def check(store):
            assert (await recovered(store, writer.ledger)).end >= writer.acked
            await check_same(store, writer.ledger, java.recover(writer.ledger))

        in_store(cluster, check)
    finally:
        writer.end()
        revive(cluster)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_bookie_and_the_writer_die_together(own_cluster, own_java, seed):
    die_together(own_cluster, own_java, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 40))
def test_a_bookie_and_the_writer_die_together_many_times(own_cluster, own_java, seed):
    die_together(own_cluster, own_java, seed)


def test_a_writer_that_was_suspended_across_a_recovery_gets_no_acknowledgement(shared_cluster):
    for is_deleted in (False, True):
        writer = WriterProcess(shared_cluster.zookeeper.address, (3, 3, 2), 2_000, 16)
        try:
            writer.wait_more(50)
            writer.suspend()

            async def take_over(store, writer=writer, is_deleted=is_deleted):
                info = await recovered(store, writer.ledger)
                if is_deleted:
                    await store.delete(writer.ledger)
                    with pytest.raises(LedgerUnknown):
                        await store.read(writer.ledger, 0, 1)
                return info.end

            end = in_store(shared_cluster, take_over)
            writer.resume()
            writer.wait(lambda self: self.failure)
            assert writer.failure == "LedgerFenced"
            assert writer.acked <= end
        finally:
            writer.end()
