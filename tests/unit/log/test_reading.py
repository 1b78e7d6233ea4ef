"""Reading by time where headers promise what their records do not hold."""

from __future__ import annotations

import asyncio

from log_rig import NOW_MS, rig

from headrace.log.reading import NO_OFFSET, offset_of_time
from headrace.records.batch import HEADER, check_batch, read_header
from headrace.records.codec import Record, _seal, encode_batch


def test_a_search_through_headers_that_lie_leaves_the_loop_to_others() -> None:
    async def scenario() -> None:
        async with rig() as bench:
            await bench.append(b"first")
            batch = encode_batch([Record(0, NOW_MS, None, b"value", [])])
            header = read_header(batch)._replace(max_timestamp_ms=NOW_MS + 1000)
            lying = _seal(bytearray(HEADER.pack(*header) + batch[HEADER.size :]))
            for _ in range(50):
                appended = bench.log.append(lying, check_batch(lying))
                assert appended is not None
                await appended.completion.wait()
            turns = 0
            search = bench.tasks.start(
                offset_of_time(bench.log, bench.store, NOW_MS + 500), "search"
            )
            while not search.done():
                turns += 1
                await asyncio.sleep(0)
            assert search.result() == NO_OFFSET
            assert turns > 40

    asyncio.run(scenario())
