"""Steps of the lifecycle host that fail, or that a crash cuts short."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.unit.log.log_rig import LogHarness, rig, settle

from headrace.errors import DataCorrupt, HeadraceError, LedgerLost, StorageUnavailable
from headrace.log import footer as footer_module
from headrace.log.log_config import LogConfig
from headrace.log.retention import enforce
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.storage.ledger import LedgerId


async def test_a_ledger_whose_seal_failed_can_be_trimmed_and_the_log_still_loads() -> None:
    async with rig(LogConfig(segment_bytes=1000)) as bench:
        for number in range(4):
            await bench.append(b"%d" % number, size=200)
        # The next ledger is made while this one is written to; it begins later than planned.
        await settle()
        bench.store.refuse_seals = True
        while len(bench.log.segments) < 2:
            await bench.append(b"more", size=200)
        await bench.append(b"last")
        await settle()
        bench.store.refuse_seals = False
        start = bench.log.segments[-1].base_offset
        await bench.log.lifecycle_host.trim(start)
        end = bench.log.high_watermark
        await bench.reload()
        assert await bench.offsets() == list(range(start, end))


async def test_a_log_that_lost_its_tail_below_its_start_continues_after_the_start() -> None:
    async with rig() as bench:
        for _ in range(5):
            await bench.append(b"acknowledged without a sync")
        segment = bench.log.segments[0]
        two = segment.end_position // 5 * 2
        await bench.log.lifecycle_host.trim(5)
        # A power loss: the chain's fact is synced, these bytes (flush.ms) were not.
        ledger = bench.store._ledgers[segment.ledger]
        del ledger.data[two:]
        ledger.end = ledger.readable = two
        await bench.reload()
        assert bench.log.high_watermark == 5
        assert await bench.append(b"new") == 5
        await bench.reload()
        assert await bench.offsets() == [5]
        assert await bench.append(b"newer") == 6


async def test_a_step_that_fails_by_a_bug_fails_its_waiters() -> None:
    bench = LogHarness()

    async def broken(_key: str) -> None:
        raise FileNotFoundError("gone")

    bench.metadata.get = broken  # type: ignore[method-assign]
    bench.log.load()
    assert bench.log.ready is not None
    with pytest.raises(HeadraceError):
        await asyncio.wait_for(bench.log.ready.wait(), 2)
    await bench.tasks.close()


async def test_an_outage_at_the_start_keeps_a_seal_back_not_the_records() -> None:
    async with rig(LogConfig(segment_bytes=1000)) as bench:
        bench.store.refuse_seals = True
        for number in range(8):
            await bench.append(b"%d" % number, size=200)
        await bench.reload()
        assert await bench.offsets() == list(range(8))


def test_a_damaged_log_is_read_once_and_its_error_gathers_no_tracebacks() -> None:
    async def scenario() -> None:
        async with rig() as bench:
            for _ in range(3):
                await bench.append(b"value")
            bench.store._ledgers[1].data[100] ^= 1
            with pytest.raises(DataCorrupt):
                await bench.reload()
            reads = 0
            read = bench.store.read

            async def counted(*arguments):
                nonlocal reads
                reads += 1
                return await read(*arguments)

            bench.store.read = counted  # type: ignore[method-assign]
            depths = []
            for _ in range(5):
                with pytest.raises(DataCorrupt) as caught:
                    await asyncio.wait_for(bench.log.wait_loaded(), 2)
                depths.append(len(caught.traceback))
                with pytest.raises(DataCorrupt):
                    bench.begin(b"value")
            assert reads == 0
            assert depths[0] == depths[-1]

    asyncio.run(scenario())


async def test_a_ledger_made_while_appends_were_under_way_that_failed_begins_where_it_truly_does():
    async with rig(LogConfig(segment_bytes=1000)) as bench:
        for number in range(3):
            await bench.append(b"%d" % number, size=200)
        bench.store.is_held = True
        bench.begin(b"fails")
        bench.begin(b"fails", size=200)  # nearly full now: the next ledger is made meanwhile
        bench.store.create = _create_at_once(bench)  # type: ignore[method-assign]
        await settle()
        assert bench.log.lifecycle_host._prepared is not None
        bench.store.fail_newest()
        bench.store.complete_all()
        await settle()
        bench.store.refuse_seals = True
        bench.begin(b"fills", size=600)
        await settle()
        await bench.append(b"first of the next")
        assert len(bench.log.segments) == 2
        end = bench.log.high_watermark
        await bench.reload()
        assert await bench.offsets() == list(range(end))


def _create_at_once(bench: LogHarness) -> Callable[..., Awaitable[LedgerId]]:
    return lambda *_for_whom: MemoryLedgerStore.create(bench.store)


def test_a_log_without_idempotent_producers_is_scanned_once() -> None:
    async def scenario() -> None:
        async with rig() as bench:
            for _ in range(3):
                await bench.append(b"value")
            scans = 0
            read = bench.store.read

            async def counted(*arguments):
                nonlocal scans
                scans += 1
                return await read(*arguments)

            bench.store.read = counted  # type: ignore[method-assign]
            await bench.reload()
            assert scans == 1

    asyncio.run(scenario())


async def rolled(bench: LogHarness) -> None:
    """Fill the first ledger, and begin the second."""
    while len(bench.log.segments) < 2:
        await bench.append(b"fills", size=200)
        await settle()


async def test_a_ledger_counts_as_sealed_when_storage_has_sealed_it() -> None:
    async with rig(LogConfig(segment_bytes=1000)) as bench:
        gate = asyncio.Event()
        seal = bench.store.seal

        async def slow(ledger: LedgerId, footer: bytes) -> None:
            await gate.wait()
            await seal(ledger, footer)

        bench.store.seal = slow  # type: ignore[method-assign]
        await rolled(bench)
        first = bench.log.segments[0]
        assert bench.log.closed == [first]
        assert not first.is_sealed
        gate.set()
        await settle()
        assert first.is_sealed


@pytest.mark.parametrize("is_in_doubt", [False, True])
async def test_a_seal_that_failed_is_tried_again_with_the_same_footer(is_in_doubt: bool) -> None:
    config = LogConfig(segment_bytes=1000, retention_ms=-1)
    async with rig(config) as bench:
        seal = bench.store.seal
        footers: list[bytes] = []

        async def failing(ledger: LedgerId, footer: bytes) -> None:
            footers.append(footer)
            if is_in_doubt or len(footers) > 1:
                await seal(ledger, footer)
            if len(footers) == 1:
                raise StorageUnavailable("an outage")

        bench.store.seal = failing  # type: ignore[method-assign]
        await rolled(bench)
        await bench.append(b"more")
        await settle()
        first = bench.log.segments[0]
        assert not first.is_sealed
        await enforce(bench.log, bench.clock.ms, bench.clock.now_ns())
        await settle()
        assert first.is_sealed
        assert footers == [footers[0]] * 2
        link = bench.log.lifecycle_host.chain.fact.ledgers[0]
        assert (link.end_offset, link.size_bytes) == (first.end_offset, first.end_position)
        await enforce(bench.log, bench.clock.ms, bench.clock.now_ns())
        await settle()
        assert len(footers) == 2


async def test_a_ledger_that_its_writer_has_lost_over_the_seal_is_sealed_by_a_recovery() -> None:
    async with rig(LogConfig(segment_bytes=1000, retention_ms=-1), leader_epoch=0) as bench:
        lost: set[LedgerId] = set()
        seal = bench.store.seal

        async def failing(ledger: LedgerId, footer: bytes) -> None:
            if not lost:
                lost.add(ledger)
                bench.store.recover_errors = [StorageUnavailable("an outage")]
            if ledger in lost:
                raise LedgerLost("no answer", ledger=ledger)
            await seal(ledger, footer)

        bench.store.seal = failing  # type: ignore[method-assign]
        await rolled(bench)
        await bench.append(b"more")
        await settle()
        first = bench.log.segments[0]
        assert not first.is_sealed
        await enforce(bench.log, bench.clock.ms, bench.clock.now_ns())
        await settle()
        assert first.is_sealed
        assert bench.log.lifecycle_host.chain.fact.ledgers[0].is_sealed
        end = bench.log.end_offset
        assert await bench.offsets() == list(range(end))
        await bench.reload()
        assert await bench.offsets() == list(range(end))
        assert await bench.append(b"last") == end


async def test_appends_wait_for_a_next_ledger_that_is_long_in_the_making() -> None:
    async with rig(LogConfig(segment_bytes=10_000)) as bench:
        await bench.append(b"first")
        gate = asyncio.Event()
        create = bench.store.create

        async def slow(*_for_whom: object) -> LedgerId:
            await gate.wait()
            return await create()

        bench.store.create = slow  # type: ignore[method-assign]
        taken = 0
        while bench.begin(b"fast", size=500) is not None:
            taken += 1
            assert taken < 100, "an append is taken however full the ledger is"
            await asyncio.sleep(0)
        active = bench.log.active
        assert active is not None
        assert 12_500 <= active.end_position < 12_500 + 700
        gate.set()
        assert await bench.append(b"next") == taken + 1
        assert bench.log.active is not active
        assert await bench.offsets() == list(range(taken + 2))


async def test_where_no_ledger_can_be_made_the_old_one_goes_on_an_append_at_a_time() -> None:
    async with rig(LogConfig(segment_bytes=10_000)) as bench:
        await bench.append(b"first")
        create = bench.store.create

        async def broken(*_for_whom: object) -> LedgerId:
            await asyncio.sleep(0)
            raise StorageUnavailable("an outage")

        bench.store.create = broken  # type: ignore[method-assign]
        stored = 1
        for _ in range(60):
            try:
                await bench.append(b"more", size=500)
                stored += 1
            except StorageUnavailable:
                await settle()
        assert stored > 30
        bench.store.create = create  # type: ignore[method-assign]
        await settle()
        await bench.append(b"more", size=500)
        await settle()
        await bench.append(b"last")
        assert len(bench.log.segments) == 2
        assert await bench.offsets() == list(range(stored + 2))


async def test_a_footer_always_fits_and_keeps_the_producers_that_were_seen_last(
    monkeypatch,
) -> None:
    monkeypatch.setattr(footer_module, "FOOTER_BYTES_MAX", 2_000)

    async with rig(LogConfig(segment_bytes=10_000)) as bench:
        for producer_id in range(60):
            bench.clock.ms += 1
            record = Record(0, bench.clock.ms, None, b"v", [])
            batch = encode_batch(
                [record], producer_id=producer_id, producer_epoch=0, base_sequence=0
            )
            appended = bench.log.append(batch, check_batch(batch))
            if appended is None:
                assert bench.log.ready is not None
                await bench.log.ready.wait()
                continue
            await appended.completion.wait()
        await bench.log.lifecycle_host.roll_now()
        await settle()
        assert bench.log.segments[0].is_sealed
        await bench.reload()
        kept = sorted(bench.log.producers._producers)
        assert kept
        assert kept == list(range(60 - len(kept), 60))


async def test_a_log_that_is_found_damaged_while_it_is_served_takes_no_more_records() -> None:
    async with rig(LogConfig(segment_bytes=1000)) as bench:
        await bench.append(b"a", size=200)

        async def damaged(ledger: LedgerId, _footer: bytes) -> None:
            raise DataCorrupt("a bad block", ledger=ledger, position=0)

        bench.store.seal = damaged  # type: ignore[method-assign]
        await bench.log.lifecycle_host.roll_now()
        await settle()
        with pytest.raises(DataCorrupt):
            bench.begin(b"b")
        with pytest.raises(DataCorrupt):
            await bench.log.wait_loaded()
