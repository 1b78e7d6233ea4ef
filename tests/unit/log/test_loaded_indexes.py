"""Indexes of closed ledgers in bounded memory."""

from __future__ import annotations

import asyncio

from tests.unit.log.log_rig import rig

from headrace.log.loaded_indexes import LoadedIndexes
from headrace.log.log_config import LogConfig
from headrace.records.batch import read_header


async def test_reading_a_long_history_again_and_again_keeps_few_indexes_in_memory() -> None:
    async with rig(LogConfig(segment_bytes=1000)) as bench:
        for _ in range(6):
            for number in range(3):
                await bench.append(b"%d" % number, size=200)
            await bench.log.lifecycle_host.roll_now()
        count = bench.log.high_watermark
        await bench.reload()
        log = bench.log
        log.indexes = LoadedIndexes(entries_max=2)
        for _ in range(2):
            assert await bench.offsets() == list(range(count))
            closed = [segment for segment in log.segments if segment.is_sealed]
            assert sum(len(segment.index.positions) for segment in closed) <= 2 + 1
            assert log.indexes.entry_count <= 2
        newest = max(segment.max_timestamp_ms for segment in log.segments)
        assert (await log.reader.offset_of_time(newest)).offset >= 0
        assert (await log.reader.offset_of_time(newest + 1)).offset == -1


async def test_a_closed_ledger_without_a_footer_is_scanned_while_others_read_it() -> None:
    """As over bookies: a recovered ledger is sealed without a footer."""

    async with rig(LogConfig(segment_bytes=1000)) as bench:
        for number in range(3):
            await bench.append(b"%d" % number, size=200)
        await bench.log.lifecycle_host.roll_now()
        await bench.append(b"last")
        await bench.reload()
        ledger = bench.log.segments[0].ledger
        bench.store._ledgers[ledger].footer = None
        bench.log.segments[0].unload_index()
        slow = bench.store.read

        async def read_slowly(*values):
            await asyncio.sleep(0.01)
            return await slow(*values)

        bench.store.read = read_slowly
        first = asyncio.ensure_future(bench.log.reader.read(0, 10_000))
        await asyncio.sleep(0.005)
        second = await bench.log.reader.read(1, 10_000)
        assert read_header(second).base_offset <= 1, "nothing is skipped"
        assert read_header(await first).base_offset == 0
