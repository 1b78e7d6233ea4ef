"""Appends that fail: what readers see meanwhile, and how the log goes on."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.log.log_rig import rig, settle

from headrace.errors import StorageUnavailable
from headrace.log.largest_timestamp import offset_of_max_timestamp
from headrace.log.log_config import LogConfig


async def test_a_read_between_a_failure_and_its_repair_leads_no_later_read_astray() -> None:
    async with rig() as bench:
        await bench.append(b"one")
        bench.store.is_held = True
        failing = bench.begin(b"two", size=500)
        assert failing is not None
        await settle()
        bench.store.fail_newest()
        # The log knows of the failure, and has not asked the store yet where it ends.
        assert bench.log.ready is not None
        found = bench.log.reader.read_now(0, 100_000)
        assert len(found[0]) > 0
        bench.store.complete_all()
        await settle()
        await bench.append(b"three")
        await bench.append(b"four")
        assert await bench.offsets() == [0, 1, 2]
        assert len(await bench.log.reader.read(1, 100_000)) > 0


async def test_a_failure_takes_back_nothing_that_was_appended_before_it() -> None:
    async with rig() as bench:
        await bench.append(b"zero")
        bench.store.is_held = True
        first = bench.begin(b"first")
        await settle()
        second = bench.begin(b"second")
        await settle()
        assert first is not None
        assert second is not None
        bench.store.fail_newest()
        assert second.completion.error is not None
        assert not first.completion.done
        bench.store.complete_all()
        await settle()
        assert first.completion.error is None
        assert await bench.append(b"third") == 2, "offset 1 is taken: it was acknowledged"
        assert await bench.offsets() == [0, 1, 2]
        await bench.reload()
        assert await bench.offsets() == [0, 1, 2]


async def test_after_a_failure_the_appends_before_it_may_fail_as_well() -> None:
    async with rig() as bench:
        await bench.append(b"zero")
        bench.store.is_held = True
        bench.begin(b"first")
        await settle()
        bench.begin(b"second")
        await settle()
        bench.store.fail_newest()
        bench.store.fail_newest()
        bench.store.complete_all()
        await settle()
        assert await bench.append(b"third") == 1
        await bench.reload()
        assert await bench.offsets() == [0, 1]


async def test_an_append_refused_at_once_returns_its_error_even_where_a_roll_is_due() -> None:
    async with rig(LogConfig(segment_bytes=300)) as bench:
        await bench.append(b"one", size=100)
        bench.store.refuse_appends = True
        appended = bench.begin(b"two", size=200)
        assert appended is not None
        assert isinstance(appended.completion.error, StorageUnavailable)
        bench.store.refuse_appends = False
        await settle()
        assert await bench.append(b"three", size=200) == 1


async def test_an_append_refused_at_once_returns_its_error_even_where_a_checkpoint_is_due() -> None:
    async with rig() as bench:
        await bench.append(b"one")
        segment = bench.log.active
        assert segment is not None
        segment.checkpoint_at = segment.end_position + 1  # as in a large ledger after a restart
        bench.store.refuse_appends = True
        appended = bench.begin(b"two")
        assert appended is not None
        assert isinstance(appended.completion.error, StorageUnavailable)
        bench.store.refuse_appends = False
        await settle()
        assert await bench.append(b"three") == 1


async def test_a_repair_that_failed_is_tried_again_though_another_step_is_under_way() -> None:
    async with rig() as bench:
        await bench.append(b"one")
        bench.store.recover_errors = [StorageUnavailable("an outage")]
        bench.store.refuse_appends = True
        bench.begin(b"two")
        bench.store.refuse_appends = False
        ready = bench.log.ready
        assert ready is not None
        gate = asyncio.Event()
        bench.log.lifecycle_host._steps.begin(gate.wait(), "another step")
        with pytest.raises(StorageUnavailable):
            await ready.wait()
        assert bench.begin(b"three") is None
        waiting = bench.log.ready
        assert waiting is not None
        gate.set()
        await asyncio.wait_for(waiting.wait(), 2)
        assert await bench.append(b"three") == 1


async def test_a_failed_append_leaves_no_trace_of_its_time() -> None:
    """It lay in the interval of the index that stays, and was said to hold the largest time."""

    async with rig() as bench:
        await bench.append(b"zero")
        bench.clock.ms += 5_000
        await bench.append(b"one")
        largest = bench.clock.ms
        bench.store.is_held = True
        bench.clock.ms += 5_000
        failing = bench.begin(b"two")
        assert failing is not None
        await settle()
        bench.store.fail_newest()
        bench.store.complete_all()
        await settle()
        bench.clock.ms -= 9_000
        assert await bench.append(b"three") == 2
        log = bench.log
        assert await offset_of_max_timestamp(log) == (largest, 1)
        assert log.segments[-1].index.max_timestamp_ms == largest
        await log.lifecycle_host.roll_now()
        await settle()
        assert len(bench.log.segments) == 2, "the first ledger is sealed"
        await bench.reload()
        assert await offset_of_max_timestamp(bench.log) == (largest, 1)


async def test_a_first_ledger_asked_for_twice_is_not_created_after_one_whose_end_is_in_doubt():
    """Found by `headrace verify blackbox`: what was in doubt, and stored, got its offsets twice,
    and the partition could not be read any more."""

    async with rig(leader_epoch=1) as bench:
        log, store = bench.log, bench.store
        made, trimmed = asyncio.Event(), asyncio.Event()
        create = store.create

        async def slow_create(*arguments):
            await made.wait()
            return await create(*arguments)

        store.create = slow_create
        assert bench.begin(b"zero") is None  # asks for the first ledger
        await settle()
        trim = asyncio.create_task(log.lifecycle_host.do(trimmed.wait(), "a step between"))
        await settle()
        assert bench.begin(b"zero") is None  # and once more, while it is made
        made.set()
        await settle()
        assert await bench.append(b"zero") == 0
        store.is_held = True
        in_doubt = bench.begin(b"one")
        assert in_doubt is not None
        await settle()
        store.recover_errors = [StorageUnavailable("only one bookie is there")]
        store.lose_answers()
        trimmed.set()
        await trim
        for _ in range(3):
            bench.begin(b"two")
            await settle()
        assert await bench.append(b"three") >= 2
        await bench.reload()
        assert await bench.offsets() == list(range(bench.log.high_watermark))
