"""Retention of records without a timestamp, whose age is known only from when they were stored."""

from __future__ import annotations

import pytest
from tests.kit.records import append, batch
from tests.unit.log.log_rig import LogHarness, rig, settle

from headrace.log.log_config import LogConfig
from headrace.log.retention import enforce
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch, with_max_timestamp

HOUR_MS = 3_600_000
CONFIG = LogConfig(retention_ms=HOUR_MS)


async def append_timeless(bench: LogHarness) -> None:
    """A record as clients send it that set no time."""
    await append(bench.log, batch(b"timeless", timestamp_ms=-1))


async def look(bench: LogHarness) -> int:
    await enforce(bench.log, bench.clock.ms, bench.clock.now_ns())
    await settle()
    return bench.log.log_start_offset


async def taken_over(bench: LogHarness, epoch: int) -> LogHarness:
    rival = bench.rival(epoch)
    rival.clock.ms = bench.clock.ms
    await rival.ready()
    return rival


@pytest.mark.parametrize("is_shared", [False, True])
async def test_records_without_a_time_stay_for_as_long_after_a_crash(is_shared: bool) -> None:
    async with rig(CONFIG, leader_epoch=0 if is_shared else None) as bench:
        await append_timeless(bench)
        bench.clock.ms += HOUR_MS // 2
        if is_shared:
            bench = await taken_over(bench, 1)
        else:
            await bench.reload()
        assert await look(bench) == 0
        # Nobody knows any more when they were stored: they count from when they were found.
        bench.clock.ms += HOUR_MS // 2 + 1
        assert await look(bench) == 0
        bench.clock.ms += HOUR_MS
        assert await look(bench) == 1
        await bench.tasks.close()


async def test_a_ledger_of_unknown_age_is_deleted_with_the_one_after_it() -> None:
    """As chains of former versions have it."""

    async with rig(CONFIG, leader_epoch=0) as bench:
        await append_timeless(bench)
        second = await taken_over(bench, 1)
        second.log.segments[0].first_append_ms = -1
        assert await look(second) == 0
        await second.append(b"later")
        third = await taken_over(second, 2)
        third.log.segments[0].first_append_ms = -1
        assert await look(third) == 0
        third.clock.ms += HOUR_MS + 1
        assert await look(third) == 2
        await second.tasks.close()
        await third.tasks.close()


@pytest.mark.parametrize("max_ms", [-1, None])
@pytest.mark.parametrize("is_reloaded", [False, True])
async def test_young_records_stay_whatever_an_earlier_version_stored_as_their_time(
    max_ms: int | None, is_reloaded: bool
) -> None:
    """Headers without a maximum, over ledgers that were begun long ago and sealed just now."""

    async def append(bench: LogHarness) -> None:
        time_ms = bench.clock.ms if max_ms is not None else -1
        batch = with_max_timestamp(encode_batch([Record(0, time_ms, None, b"x", [])]), -1)
        appended = bench.log.append(batch, check_batch(batch))
        assert appended is not None
        await appended.completion.wait()

    async with rig(CONFIG) as bench:
        await append_timeless(bench)
        for _ in range(3):
            bench.clock.ms += HOUR_MS // 2
            await append(bench)
        await bench.log.roll_now()
        await append_timeless(bench)
        if is_reloaded:
            await bench.reload()
        bench.clock.ms += HOUR_MS // 2
        assert await look(bench) == 0
        bench.clock.ms += HOUR_MS
        assert await look(bench) >= 4
