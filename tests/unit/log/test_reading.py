"""Reading by time where headers promise what their records do not hold, and by leader epoch."""

from __future__ import annotations

import asyncio

from tests.unit.log.log_rig import NOW_MS, LogHarness, rig

from headrace.log.reading import (
    NO_OFFSET,
    end_offset_of_epoch,
    epoch_of_offset,
)
from headrace.records.batch import HEADER, Buffer, check_batch, read_header
from headrace.records.codec import Record, _seal, encode_batch


async def _append(bench: LogHarness, batch: Buffer) -> None:
    appended = bench.log.append(batch, check_batch(batch))
    assert appended is not None
    await appended.completion.wait()


async def _append_lying(bench: LogHarness) -> None:
    """Append a batch whose header promises a later timestamp than that of its record."""
    batch = encode_batch([Record(0, NOW_MS, None, b"value", [])])
    header = read_header(batch)._replace(max_timestamp_ms=NOW_MS + 1000)
    await _append(bench, _seal(bytearray(HEADER.pack(*header) + batch[HEADER.size :])))


async def test_a_search_through_headers_that_lie_leaves_the_loop_to_others() -> None:
    async with rig() as bench:
        await bench.append(b"first")
        for _ in range(50):
            await _append_lying(bench)
        turns = 0
        search = bench.tasks.start(bench.log.reader.offset_of_time(NOW_MS + 500), "search")
        while not search.done():
            turns += 1
            await asyncio.sleep(0)
        assert search.result() == NO_OFFSET
        assert turns > 40


async def test_a_search_goes_on_at_the_start_of_a_log_that_is_trimmed_under_it() -> None:
    async with rig() as bench:
        await bench.append(b"first")
        for _ in range(50):
            await _append_lying(bench)
        await _append(bench, encode_batch([Record(0, NOW_MS + 500, None, b"value", [])]))
        search = bench.tasks.start(bench.log.reader.offset_of_time(NOW_MS + 500), "search")
        for _ in range(5):
            await asyncio.sleep(0)
        assert not search.done()
        await bench.log.lifecycle_host.trim(49)
        assert await search == (NOW_MS + 500, 51)


async def test_an_offset_keeps_its_epoch_and_an_epoch_its_end_at_every_broker() -> None:
    async with rig(leader_epoch=2) as first:
        owner, epochs = first, list[int]()
        for leader_epoch in (2, 5, 6, 9):
            owner = owner.rival(leader_epoch) if epochs else first
            await owner.ready()
            if leader_epoch != 6:  # a tenure without a record
                epochs += [leader_epoch] * 2
                assert [await owner.append(b"v") for _ in range(2)] == [*range(len(epochs))][-2:]
            log = owner.log
            assert [epoch_of_offset(log, at) for at in range(len(epochs))] == epochs
            assert epoch_of_offset(log, log.high_watermark) == leader_epoch, "of what comes"
        ends = [end_offset_of_epoch(log, epoch) for epoch in (2, 3, 4, 5, 6, 8, 9)]
        assert ends == [(2, 2), (2, 2), (2, 2), (5, 4), (5, 4), (5, 4), (9, 6)]
        assert end_offset_of_epoch(log, 10) == (-1, -1), "nobody knows it yet"
        assert end_offset_of_epoch(log, -1) == (-1, -1)
        assert end_offset_of_epoch(log, 1) == (1, 0), "before all there is"
        await log.lifecycle_host.trim(3)
        assert [end_offset_of_epoch(log, epoch) for epoch in (1, 2, 5)] == [
            (1, 3),
            (2, 3),
            (5, 4),
        ], "whoever stands at the log's start has lost nothing"
