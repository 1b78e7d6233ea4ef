"""Delayed records that were accepted and that the topic, or its log, would refuse when due."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING

from tests.unit.broker.test_timer_partitions import (
    YEAR_MS,
    add,
    alone,
    delivered,
    hosted_of,
    until_delivered,
)
from tests.waiting import until

from headrace.broker.timers import deliveries
from headrace.coordination.timers.commands import Deliver
from headrace.coordination.timers.schedule import ScheduleEntry
from headrace.errors import NotOwner
from headrace.records.codec import iterate_records

if TYPE_CHECKING:
    import pytest

START = ScheduleEntry(-1, -1)


async def set_config(node, name, value):
    topic = node.topics.get("t")
    await node.topics.change_configs(topic, lambda configs: {**configs, name: value})


async def test_records_accepted_before_a_limit_was_lowered_are_delivered():
    async with alone() as node:
        now_ms = node.clock.now_ms()
        large = os.urandom(5_000)
        await add(node, [large], now_ms + 300)
        await add(node, [b"a" * 400] * 10, now_ms + 300)
        await set_config(node, "max.message.bytes", "1000")
        assert sorted(await until_delivered(node, 11)) == sorted([large] + [b"a" * 400] * 10)
        await add(node, [b"after"], node.clock.now_ms() + 20)
        assert (await until_delivered(node, 12))[-1] == b"after"


async def test_no_bound_on_timestamps_holds_a_due_record_back():
    async with alone() as node:
        await set_config(node, "message.timestamp.before.max.ms", "0")
        await add(node, [b"a"], node.clock.now_ms() + 50)
        assert await until_delivered(node, 1) == [b"a"]


async def test_deliveries_go_on_after_the_log_lost_some_of_their_sequences():
    """As after a power loss under `flush.ms`: what was confirmed is not in the log."""

    async with alone() as node:
        await add(node, [b"lost"], node.clock.now_ms() + 10)
        await until_delivered(node, 1)
        hosted = hosted_of(node)
        await until(lambda: not hosted.state.outstanding_count)
        hosted.state.taken += 7  # taken, confirmed, and not in the log
        hosted.state.confirmed += 7
        await add(node, [b"next"], node.clock.now_ms() + 10)
        assert await until_delivered(node, 2) == [b"lost", b"next"]


def test_a_record_that_cannot_be_read_is_refused_and_those_after_it_are_delivered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(deliveries, "REFUSED_AFTER", 2)

    async def scenario() -> None:
        async with alone() as node:
            await add(node, [b"a", b"b", b"c"], node.clock.now_ms() + YEAR_MS)
            hosted = hosted_of(node)
            first, second, third = [entry.offset for entry in hosted.state.schedule.after(START)]
            get = hosted.bodies.get

            async def damaged(offsets):
                # The offset of another kind of record: as if this one was overwritten.
                return await get([99 if offset == second else offset for offset in offsets])

            monkeypatch.setattr(hosted.bodies, "get", damaged)
            done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            effect = Deliver(hosted.state.producer_id, 0, (first, second, third))
            hosted.deliveries.add(effect, done.set_result)
            assert await asyncio.wait_for(done, 30) == 3
            assert await delivered(node) == [b"a", b"c"]
            assert node.timers.host.figures.refused_total == 1
            (refused,) = await node.timers.delayed.list_refused(hosted.topic, hosted.number)
            assert refused.offset == second
            assert refused.reason
            assert node.timers.host.figures.delivered_total == 2
            assert hosted.data.producers.last_sequence(hosted.state.producer_id) == 2

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert "cannot be read and is not delivered" in caplog.text


def test_deliveries_that_are_closed_while_an_append_ends_stop_without_a_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    async def scenario() -> None:
        async with alone() as node:
            await add(node, [b"a"], node.clock.now_ms() + YEAR_MS)
            hosted = hosted_of(node)
            (entry,) = hosted.state.schedule.after(START)
            deliver = hosted.deliveries._deliver

            async def close_after(effects):
                await deliver(effects)
                hosted.deliveries.close()

            monkeypatch.setattr(hosted.deliveries, "_deliver", close_after)
            done: list[int] = []
            hosted.deliveries.add(
                Deliver(hosted.state.producer_id, 0, (entry.offset,)), done.append
            )
            assert await until_delivered(node, 1) == [b"a"]
            await until(lambda: not hosted.deliveries._is_running)
            assert not done

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    assert not caplog.records


async def test_a_record_delivered_late_has_the_time_of_its_delivery_for_retention():
    async with alone() as node:
        before_ms = node.clock.now_ms()
        await add(node, [b"late"], before_ms - YEAR_MS)
        await until_delivered(node, 1)
        log = node.topics.get("t").require_log(0)
        (record,) = iterate_records(await log.reader.read(0, 1_000))
        assert record.timestamp_ms >= before_ms


async def test_timers_whose_log_was_taken_away_run_again_without_a_request():
    async with alone() as node:
        await add(node, [b"a"], node.clock.now_ms() + 1_000)
        hosted = hosted_of(node)
        hosted.shard.close(NotOwner("its ledger was fenced"))
        assert await until_delivered(node, 1) == [b"a"]
