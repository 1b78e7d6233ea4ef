"""Producers that were silent for a day are forgotten, but not because a calendar was set.

Found by `headrace verify simulate`: a broker's calendar was three days behind and was put right;
what producers had sent meanwhile was three days old, they were forgotten, and a retry was stored
again.
"""

from __future__ import annotations

import pytest
from tests.kit import records
from tests.kit.records import batch
from tests.unit.log.log_rig import LogHarness, rig

from headrace.log.log_config import LogConfig
from headrace.log.retention import PRODUCER_EXPIRY_MS, enforce

HOUR_MS = 3_600_000
DAYS_MS = 3 * PRODUCER_EXPIRY_MS
CONFIG = LogConfig(retention_ms=-1)


async def append(bench: LogHarness, sequence: int) -> int:
    of_producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
    data = batch(b"%d" % sequence, timestamp_ms=bench.clock.now_ms(), **of_producer)
    return await records.append(bench.log, data)


async def look(bench: LogHarness) -> None:
    await enforce(bench.log, bench.clock.now_ms(), bench.clock.now_ns())


@pytest.mark.parametrize(
    ("before_ms", "behind_ms"), [(-DAYS_MS, 0), (0, DAYS_MS), (-DAYS_MS, DAYS_MS)]
)
async def test_a_clock_that_is_set_forward_expires_no_producer(
    before_ms: int, behind_ms: int
) -> None:
    async with rig(CONFIG) as bench:
        bench.clock.skew_ms = before_ms
        assert await append(bench, 0) == 0
        await look(bench)
        bench.clock.skew_ms = behind_ms
        for _ in range(5):
            await look(bench)
            bench.clock.ms += HOUR_MS // 6
        assert await append(bench, 0) == 0, "a retry"
        assert await append(bench, 1) == 1


async def test_the_next_owner_whose_calendar_is_ahead_knows_them_for_an_hour() -> None:
    async with rig(CONFIG) as bench:
        assert await append(bench, 0) == 0
        bench.clock.skew_ms = DAYS_MS
        await bench.reload()
        await look(bench)
        assert await append(bench, 0) == 0, "a retry"


async def test_producers_silent_for_a_day_and_an_hour_expire_and_no_others_do() -> None:
    async with rig(CONFIG) as bench:
        assert await append(bench, 0) == 0
        bench.clock.ms += PRODUCER_EXPIRY_MS + 1
        await look(bench)
        assert await append(bench, 1) == 1, "just in time"
        bench.clock.ms += 2 * HOUR_MS
        await look(bench)
        assert 7 in bench.log.producers
        bench.clock.ms += PRODUCER_EXPIRY_MS
        await look(bench)
        assert 7 in bench.log.producers
        bench.clock.ms += HOUR_MS
        await look(bench)
        assert 7 not in bench.log.producers
