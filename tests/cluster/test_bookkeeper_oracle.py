"""Headrace's ledgers and BookKeeper's own Java client: each understands what the other leaves."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cluster.bookkeeper_rig import beside, check_same, plant
from tests.cluster.oracle import Oracle, OracleError, oracle, stream
from tests.cluster.writer_process import WriterProcess

from headrace.errors import DataCorrupt, LedgerFenced, StorageUnavailable
from headrace.storage.bookkeeper.ledger_metadata import LedgerState

if TYPE_CHECKING:
    from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore

FENCED_CODES = {-101, -11, -12}
"""Fenced; or the ledger is closed, as its metadata say."""
QUORUMS = [(3, 3, 2), (4, 3, 2), (4, 2, 2), (3, 2, 1), (2, 2, 2)]


@pytest.fixture(scope="session")
def java(cluster_parts, shared_cluster):
    """The Java client, for all tests."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-oracle-") as folder,
        oracle(cluster_parts, Path(folder), shared_cluster.zookeeper.address) as started,
    ):
        yield started


async def append(store: BookKeeperLedgerStore, ledger: int, data: bytes) -> None:
    await store.append(ledger, [data], len(data), None)[1].wait()


async def fill(store: BookKeeperLedgerStore, ledger: int, count: int, seed: int = 0) -> int:
    rng = random.Random(seed)
    end = 0
    last = None
    for _ in range(count):
        size = rng.choice([1, 7, 300, 5_000, 70_000])
        _, last = store.append(ledger, [stream(end, size)], size, None)
        end += size
        if rng.random() < 0.7:
            await asyncio.sleep(0)
    await last.wait()
    return end


@pytest.mark.parametrize("quorum", QUORUMS)
def test_java_reads_what_was_sealed_here(java: Oracle, with_store, quorum):
    async def scenario(store):
        ledger = await store.create()
        end = await fill(store, ledger, 60)
        await store.seal(ledger, bytes(range(256)) * 8_000)  # a trailer of several entries
        content = await check_same(store, ledger, java.recover(ledger))
        assert len(content) == end

    with_store(scenario, quorum)


@pytest.mark.parametrize("quorum", QUORUMS)
def test_ledgers_written_and_closed_by_java_are_readable(java: Oracle, with_store, quorum):
    async def scenario(store):
        ledger = java.create(*quorum)
        java.ask("append", ledger, 40, 3_000)
        java.ask("close", ledger)
        content = await check_same(store, ledger, java.recover(ledger))
        assert len(content) == 40 * 3_000
        await store.delete(ledger)
        with pytest.raises(OracleError) as caught:
            java.recover(ledger)
        assert caught.value.code == -25  # no such ledger

    with_store(scenario)


@pytest.mark.parametrize("quorum", QUORUMS)
def test_each_fences_and_recovers_the_ledger_that_the_other_is_writing(
    java: Oracle, with_store, quorum
):
    async def scenario(store):
        ledger = java.create(*quorum)
        java.ask("append", ledger, 20, 1_000)
        assert (await store.recover(ledger)).end == 20_000
        with pytest.raises(OracleError) as caught:
            java.ask("append", ledger, 1, 1_000)
        assert caught.value.code in FENCED_CODES
        await check_same(store, ledger, java.recover(ledger))

        ledger = await store.create()
        end = await fill(store, ledger, 20)
        assert java.look(ledger).state == "OPEN"
        found = java.recover(ledger)
        with pytest.raises(LedgerFenced):
            await append(store, ledger, b"x")
        assert len(await check_same(store, ledger, found)) == end

    with_store(scenario, quorum)


def test_a_writer_in_java_gets_no_acknowledgement_beyond_what_was_recovered(
    java: Oracle, with_store
):
    async def scenario(store):
        for _ in range(3):
            ledger = java.create(3, 3, 2)
            java.tell("flood", ledger, 2_000, 16, 10_000)
            while not java.line().startswith("acked"):
                pass
            info = await store.recover(ledger)
            acked, code = 0, 0
            while not code:
                try:
                    acked = int(java.line().split()[1])
                except OracleError as error:
                    code = error.code
            assert code in FENCED_CODES
            assert acked <= info.end
            assert len(await check_same(store, ledger, java.recover(ledger))) == info.end

    with_store(scenario)


def test_both_recover_one_ledger_at_the_same_time_and_agree(
    java: Oracle, with_store, shared_cluster
):
    writers = [
        WriterProcess(shared_cluster.zookeeper.address, (3, 3, 2), 1_000, 64) for _ in range(2)
    ]
    for writer in writers:
        writer.wait_more(20)

    async def scenario(store):
        for writer in writers:
            # One is dead by then, the other goes on writing until it is fenced.
            java.tell("recover", writer.ledger)
            info = await store.recover(writer.ledger)
            line = java.line()
            assert len(await check_same(store, writer.ledger, java.recover(writer.ledger))) == (
                info.end
            )
            assert line.split()[1:4] == [str(x) for x in java.recover(writer.ledger)[:3]]
            assert info.end >= writer.acked

    try:
        writers[0].end()
        with_store(scenario)
    finally:
        writers[1].end()
    assert writers[1].failure == "LedgerFenced"


def kill_writer_at_random(zookeeper: str, quorum, seed: int) -> WriterProcess:
    rng = random.Random(seed)
    writer = WriterProcess(
        zookeeper, quorum, rng.choice([20, 2_000, 30_000]), rng.choice([1, 8, 32])
    )
    writer.wait_more(rng.randrange(1, 200))
    writer.end()
    return writer


@pytest.mark.parametrize("seed", range(2))
def test_java_recovers_the_ledger_of_a_writer_that_was_killed(
    java: Oracle, with_store, shared_cluster, seed
):
    quorum = QUORUMS[seed % len(QUORUMS)]
    writer = kill_writer_at_random(shared_cluster.zookeeper.address, quorum, seed)

    async def scenario(store):
        content = await check_same(store, writer.ledger, java.recover(writer.ledger))
        assert len(content) >= writer.acked

    with_store(scenario)


@pytest.mark.parametrize("seed", range(2))
def test_the_ledger_of_a_writer_that_was_killed_is_recovered_and_java_sees_the_same(
    java: Oracle, with_store, shared_cluster, seed
):
    quorum = QUORUMS[seed % len(QUORUMS)]
    writer = kill_writer_at_random(shared_cluster.zookeeper.address, quorum, 100 + seed)

    async def scenario(store):
        info = await store.recover(writer.ledger)
        assert info.end >= writer.acked
        await check_same(store, writer.ledger, java.recover(writer.ledger))

    with_store(scenario)


# --- what a writer can leave on single bookies, made by hand -----------------------------------


TAILS = {
    "on one bookie": [[0, 1, 2], [0]],
    "on the last bookie": [[0, 1, 2], [2]],
    "with a gap": [[0, 1, 2], [0], [], [1]],
    "on two of three, then on one": [[0, 1], [1, 2], [2]],
    "nothing": [],
    "a gap at the start": [[], [0, 1, 2]],
}


@pytest.mark.parametrize("by_java", [False, True], ids=["here", "java"])
@pytest.mark.parametrize("tail", TAILS)
def test_a_tail_that_lies_on_some_bookies_is_recovered_alike(java, with_store, tail, by_java):
    async def scenario(store):
        ledger = await store.create()
        for entry, slots in enumerate(TAILS[tail]):
            await plant(store, ledger, entry, slots)
        if not by_java:
            await store.recover(ledger)
        content = await check_same(store, ledger, java.recover(ledger))
        run = next((n for n, slots in enumerate(TAILS[tail]) if not slots), len(TAILS[tail]))
        certain = next((n for n, slots in enumerate(TAILS[tail]) if len(slots) < 2), run)
        # What one bookie alone has may be found or not, by the order in which bookies answer.
        assert certain * 10 <= len(content) <= run * 10

    with_store(scenario)


@pytest.mark.parametrize("bad", [[0], [1, 2]])
def test_damaged_copies_are_passed_over_by_both(java: Oracle, with_store, bad):
    async def scenario(store):
        ledger = await store.create()
        for entry in range(3):
            await plant(store, ledger, entry, [0, 1, 2], damaged=bad if entry == 1 else ())
        await store.recover(ledger)
        await check_same(store, ledger, java.recover(ledger))

    with_store(scenario)


def test_an_entry_that_is_damaged_everywhere_is_served_by_neither(java: Oracle, with_store):
    async def scenario(store):
        ledger = await store.create()
        for entry in range(5):
            bad = [0, 1, 2] if entry == 2 else ()
            await plant(store, ledger, entry, [0, 1, 2], damaged=bad)
        # It may have been acknowledged: neither ends the ledger before it, neither takes it in.
        with pytest.raises(StorageUnavailable):
            await store.recover(ledger)
        with pytest.raises(OracleError):
            java.recover(ledger)

        def close(metadata):
            is_closed = metadata.state is LedgerState.CLOSED
            return None if is_closed else metadata.closed(4, 150)

        service = store._cluster.service
        await service.update(ledger, await service.read(ledger), close)
        with pytest.raises(OracleError):
            java.recover(ledger)
        other = await beside(store)
        assert bytes(await other.read(ledger, 0, 20)) == stream(0, 20)
        with pytest.raises(DataCorrupt):
            await other.read(ledger, 20, 10)
        with pytest.raises(DataCorrupt):
            await other.read(ledger, 0, 50)
        await other.close()

    with_store(scenario)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 260))
def test_writers_killed_at_many_moments(java: Oracle, with_store, shared_cluster, seed):
    rng = random.Random(seed)
    writer = kill_writer_at_random(shared_cluster.zookeeper.address, rng.choice(QUORUMS), seed)

    async def scenario(store):
        if rng.random() < 0.5:
            assert (await store.recover(writer.ledger)).end >= writer.acked
        content = await check_same(store, writer.ledger, java.recover(writer.ledger))
        assert len(content) >= writer.acked

    with_store(scenario)
