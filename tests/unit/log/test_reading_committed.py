"""Aborted transactions over more ledgers than have their indexes in memory."""

from __future__ import annotations

import asyncio

from tests.kit.records import append
from tests.unit.log.log_rig import LogHarness, rig

from headrace.log.loaded_indexes import LoadedIndexes
from headrace.log.visibility import READ_COMMITTED
from headrace.records.codec import Record, encode_batch


async def put(bench: LogHarness, producer_id: int = -1) -> None:
    options = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
    given = options if producer_id >= 0 else {}
    batch = encode_batch(
        [Record(0, bench.clock.ms, None, b"v")], is_transactional=producer_id >= 0, **given
    )
    await append(bench.log, batch)


async def test_a_transaction_over_more_indexes_than_are_kept_is_read():
    async with rig() as bench:
        await put(bench, 7)
        for _ in range(6):
            await put(bench)
            await bench.log.lifecycle_host.roll_now()
        appended = bench.log.append_marker(7, 0, 0, is_commit=False)
        assert appended is not None
        await appended.completion.wait()
        await bench.log.lifecycle_host.roll_now()
        bench.log.indexes = LoadedIndexes(entries_max=2)
        for segment in bench.log.closed:
            segment.unload_index()
        async with asyncio.timeout(10):
            found = await bench.log.reader.fetch(0, 10_000, READ_COMMITTED)
        assert found.aborted == [(0, 7)]
