"""Timers on brokers in memory: takeover, calendars that jump, checkpoints and the log's space."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial

import pytest
from tests.integration.in_process import move, serve
from tests.kit.broker import broker
from tests.kit.cluster import Cluster
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.coordinators.delays import BatchOrigin, DelayedBatch, DelayedRecord
from headrace.broker.timers import timer_bodies, timer_host, timer_room, timer_space
from headrace.broker.timers.listing import LISTED_BYTES_MAX, SHOWN_AT_ONCE
from headrace.broker.timers.timer_room import Added
from headrace.coordination.timers.schedule import Part, ScheduleEntry
from headrace.errors import PolicyViolation
from headrace.records import codec
from headrace.records.attributes import HALF, MESSAGE_ID
from headrace.records.codec import Record, iterate_records
from headrace.runtime.clock import SystemClock

ON = {"headrace.message.attributes": "true"}
YEAR_MS = 365 * 24 * 3_600_000


def batch(values, due_ms, origin=None):
    records = [Record(0, 1, None, value, []) for value in values]
    return DelayedBatch(
        [DelayedRecord(due_ms, index, record) for index, record in enumerate(records)], origin
    )


async def add(node, values, due_ms, origin=None, user=""):
    log = node.topics.get("t").require_log(0)
    await log.wait_loaded()
    await node.timers.delayed.add(log, batch(values, due_ms, origin), user).completion.wait()


async def delivered(node):
    log = node.topics.get("t").require_log(0)
    await log.wait_loaded()
    found, offset = [], 0
    while offset < log.high_watermark:
        records = list(iterate_records(await log.reader.read(offset, 1_000_000)))
        found += [record.value for record in records]
        offset = records[-1].offset + 1
    return found


async def until_delivered(node, count):
    async with asyncio.timeout(30):
        while len(found := await delivered(node)) < count:
            await asyncio.sleep(0.01)
    return found


@asynccontextmanager
async def alone(**config):
    async with broker(BrokerConfig(**config)) as rig:
        await rig.node.topics.create("t", 1, configs=ON)
        yield rig.node


def hosted_of(node):
    (hosted,) = node.timers.host.hosted
    return hosted


async def test_the_next_owner_delivers_what_is_pending_each_record_once():
    cluster = Cluster(has_ports=True)
    async with (
        cluster.running(1) as first,
        cluster.running(2) as second,
    ):
        await first.topics.create("t", 1, configs=ON)
        await until(lambda: "t" in second.topics.by_name)
        await move(first, first)
        now_ms = first.clock.now_ms()
        await add(first, [b"%d" % n for n in range(50)], now_ms + 50)
        await until_delivered(first, 50)
        await add(first, [b"soon"], now_ms + 1_500)
        await add(first, [b"later"], now_ms + 3_000)
        await move(first, second)
        await serve(second)
        found = await until_delivered(second, 52)
        assert sorted(found) == sorted([b"%d" % n for n in range(50)] + [b"soon", b"later"])
        assert second.clock.now_ms() >= now_ms + 3_000


async def test_the_next_owner_opens_timers_when_their_partition_is_loaded(monkeypatch):
    monkeypatch.setattr(timer_host, "LOOK_S", 3_600)

    cluster = Cluster(has_ports=True)
    async with (
        cluster.running(1) as first,
        cluster.running(2) as second,
    ):
        await first.topics.create("t", 1, configs=ON)
        await until(lambda: "t" in second.topics.by_name)
        await move(first, first)
        await add(first, [b"waits"], first.clock.now_ms() + 1_000)
        await move(first, second)
        await serve(second)
        assert await until_delivered(second, 1) == [b"waits"]


async def test_a_batch_that_comes_again_is_kept_once():
    async with alone() as node:
        origin = BatchOrigin(5, 0, 10)
        for _ in range(2):
            await add(node, [b"a", b"b"], node.clock.now_ms() + YEAR_MS, origin)
        assert hosted_of(node).state.schedule.count == 2


def test_a_calendar_that_is_set_is_followed(monkeypatch):
    async def scenario() -> None:
        async with alone() as node:
            shift_ms = 0
            monkeypatch.setattr(type(node.clock), "now_ms", lambda _: real_ms() + shift_ms)
            now_ms = node.clock.now_ms()
            await add(node, [b"an hour"], now_ms + 3_600_000)
            await add(node, [b"at once"], now_ms + 20)
            assert await until_delivered(node, 1) == [b"at once"]
            shift_ms = -1_800_000
            await add(node, [b"after it was set back"], node.clock.now_ms() + 20)
            assert await until_delivered(node, 2) == [b"at once", b"after it was set back"]
            shift_ms = 3_700_000
            assert (await until_delivered(node, 3))[2] == b"an hour"

    original, clock = SystemClock.now_ms, SystemClock()

    def real_ms() -> int:
        return original(clock)

    asyncio.run(scenario())


async def test_a_restart_reads_the_checkpoint_and_what_followed():
    async with alone() as node:
        due_ms = node.clock.now_ms() + YEAR_MS
        for n in range(20):
            await add(node, [b"%d.%d" % (n, m) for m in range(50)], due_ms + n)
        hosted = hosted_of(node)
        await timer_space.write_checkpoint(hosted)
        await add(node, [b"after"], due_ms)
        before = list(hosted.state.schedule.after(ScheduleEntry(-1, -1)))
        topic = node.topics.get("t")
        node.timers.host.hosted.resign(topic, 0)
        shown = await node.timers.delayed.list_delayed(topic, 0, ScheduleEntry(-1, -1), 2_000)
        fresh = hosted_of(node)
        assert fresh is not hosted
        assert list(fresh.state.schedule.after(ScheduleEntry(-1, -1))) == before
        assert fresh.state.replay_from >= 1_000, "the replay began at the checkpoint"
        assert {one.body.value for one in shown} >= {b"after", b"0.0", b"19.49"}


async def test_space_of_what_was_delivered_is_freed_and_what_waits_is_kept(monkeypatch):
    monkeypatch.setattr(timer_space, "SPACE_BYTES", 10_000)

    async with alone() as node:
        now_ms = node.clock.now_ms()
        await add(node, [b"kept"], now_ms + YEAR_MS)
        await add(node, [b"x" * 100] * 500, now_ms + 10)
        await until_delivered(node, 500)
        hosted = hosted_of(node)
        await until(lambda: not hosted.state.outstanding_count)
        await timer_space.keep_small(hosted)
        assert hosted.companion.log_start_offset >= 500
        topic = node.topics.get("t")
        (shown,) = await node.timers.delayed.list_delayed(topic, 0, ScheduleEntry(-1, -1), 10)
        assert shown.body.value == b"kept"
        assert shown.offset != shown.number, "it was written again"
        node.timers.host.hosted.resign(topic, 0)
        (again,) = await node.timers.delayed.list_delayed(topic, 0, ScheduleEntry(-1, -1), 10)
        assert again == shown
        receipt = 0, shown.due_ms, shown.number
        assert await node.services.timers.cancel(topic, [receipt], []) == ([True], [], {})
        assert not await node.timers.delayed.list_delayed(topic, 0, ScheduleEntry(-1, -1), 10)


@pytest.mark.parametrize("together_bytes", [512 * 1024, 2_000])
async def test_records_of_one_millisecond_keep_their_order_when_space_is_freed(
    monkeypatch, together_bytes
):
    monkeypatch.setattr(timer_space, "SPACE_BYTES", 10_000)
    monkeypatch.setattr(timer_space, "STEP_BYTES", 1)
    monkeypatch.setattr(timer_space, "TRIM_RECORDS", 100)
    monkeypatch.setattr(timer_space, "TOGETHER_BYTES", together_bytes, raising=False)

    async with alone() as node:
        now_ms = node.clock.now_ms()
        for n in range(10):
            await add(node, [b"first %d" % n], now_ms + YEAR_MS + n)
        await add(node, [b"x" * 100] * 500, now_ms + 10)
        for n in range(10):
            await add(node, [b"second %d" % n, b"third %d" % n], now_ms + YEAR_MS + n)
        await until_delivered(node, 500)
        hosted = hosted_of(node)
        await until(lambda: not hosted.state.outstanding_count)
        await timer_space.keep_small(hosted)
        assert hosted.companion.log_start_offset >= 500
        topic = node.topics.get("t")
        shown = await node.timers.delayed.list_delayed(topic, 0, ScheduleEntry(-1, -1), 100)
        words = (b"first", b"second", b"third")
        assert [one.body.value for one in shown] == [
            b"%b %d" % (word, n) for n in range(10) for word in words
        ]


async def test_listings_are_bounded_by_bytes_and_complete():
    async with alone() as node:
        topic, soon_ms = node.topics.get("t"), node.clock.now_ms() + YEAR_MS
        for n in range(24):  # they lie in another order than that of their times
            value = b"%02d" % n + bytes(900_000)
            await add(node, [value], soon_ms + (n * 7) % 24)
        after, seen = ScheduleEntry(-1, -1), []
        while some := await node.timers.delayed.list_delayed(topic, 0, after, 500):
            assert sum(len(one.body.value) for one in some) <= LISTED_BYTES_MAX + 900_002
            seen += [int(one.body.value[:2]) for one in some]
            after = ScheduleEntry(some[-1].due_ms, some[-1].offset)
        assert seen == sorted(range(24), key=lambda n: (n * 7) % 24)


@pytest.mark.parametrize("name", ["cancel", "deliver"])
async def test_records_that_are_named_in_one_call_share_reads_and_syncs(name, monkeypatch):
    async with alone() as node:
        topic, now_ms = node.topics.get("t"), node.clock.now_ms()
        values = [b"%d" % n for n in range(200)]
        await add(node, values, now_ms + 30_000)  # soon: their bodies are in memory
        await add(node, values, now_ms + YEAR_MS)
        hosted, counted = hosted_of(node), Counter()
        assert len(hosted.bodies._cached) == 200

        def count(owner, method):
            call = getattr(owner, method)

            def counting(*arguments):
                counted[method] += 1
                return call(*arguments)

            monkeypatch.setattr(owner, method, counting)

        count(hosted.bodies, "_read")
        count(hosted.shard._log, "append")
        waiting = [(0, *one) for one in hosted.state.schedule.after(ScheduleEntry(-1, -1))]
        gone = (0, now_ms + YEAR_MS, 10**6)
        asked = [waiting[0], gone, *waiting, gone]
        done, _, failed = await getattr(node.services.timers, name)(topic, asked, [])
        assert done == [True, False, False, *[True] * 399, False]
        assert not failed
        assert (hosted.bodies._cached, hosted.bodies._cached_bytes) == ({}, 0)
        assert counted["append"] <= 4
        assert counted["_read"] <= 12
        if name == "deliver":
            assert await until_delivered(node, 400) == values + values
        assert hosted.state.schedule.count == 0


@pytest.mark.parametrize("name", ["cancel", "deliver"])
async def test_records_of_many_message_ids_share_a_sync_and_count_once(name, monkeypatch):
    async with alone() as node:
        due_ms, ids = node.clock.now_ms() + YEAR_MS, [f"id-{n}" for n in range(30)]
        log = node.topics.get("t").require_log(0)
        await log.wait_loaded()
        records = [
            DelayedRecord(due_ms, n, Record(0, 1, None, b"%d" % n, [(MESSAGE_ID, one.encode())]))
            for n, one in enumerate([*ids, ids[0]])
        ]
        await node.timers.delayed.add(log, DelayedBatch(records, None)).completion.wait()
        hosted, appended, reads = hosted_of(node), [], []
        read = hosted.bodies._read
        monkeypatch.setattr(hosted.bodies, "_read", lambda *some: reads.append(1) or read(*some))
        append = hosted.shard._log.append

        def counting(written, *more):
            appended.append(len(written))
            return append(written, *more)

        monkeypatch.setattr(hosted.shard._log, "append", counting)
        change, topic = getattr(node.services.timers, name), node.topics.get("t")
        first = next(iter(hosted.state.schedule.after(ScheduleEntry(-1, -1))))
        done, counts, _ = await change(topic, [(0, *first)], [*ids, "id-1", "none"])
        assert done == [True]
        assert counts == [1] * 30 + [0, 0], "the first was named by its receipt, too"
        assert len(appended) <= 3
        assert len(reads) <= 6


async def read_per_turn(call, monkeypatch):
    """What `call` returns, and how many stored records it decoded in each turn of the loop."""
    turns, read = [0], timer_bodies.stored_timer

    def counting(*arguments):
        turns[-1] += 1
        return read(*arguments)

    async def turn():
        while True:
            await asyncio.sleep(0)
            turns.append(0)

    monkeypatch.setattr(timer_bodies, "stored_timer", counting)
    turning = asyncio.create_task(turn())
    try:
        return await call, turns
    finally:
        turning.cancel()
        monkeypatch.setattr(timer_bodies, "stored_timer", read)


async def add_batches(node, dues, count=1, headers=()):
    """Add batches of records that are due then."""
    log = node.topics.get("t").require_log(0)
    await log.wait_loaded()
    record = Record(0, 1, None, b"v", [*headers])
    some = DelayedBatch([DelayedRecord(due, n, record) for n, due in enumerate(dues)], None)
    for _ in range(count):
        await node.timers.delayed.add(log, some).completion.wait()


@pytest.mark.parametrize("named", ["receipt", "message id"])
async def test_others_have_turns_while_a_record_is_looked_for_among_many(named, monkeypatch):
    """All of them are due in one millisecond, and have one message id."""
    count, each = 12_000, 3_000
    async with alone() as node:
        due_ms, topic = node.clock.now_ms() + YEAR_MS, node.topics.get("t")
        await add_batches(node, [due_ms] * each, count // each, [(MESSAGE_ID, b"one")])
        timers = node.services.timers
        asked = ([(0, due_ms, 0)], []) if named == "receipt" else ([], ["one"])
        call = partial(timers.cancel, topic, *asked, is_dry_run=True)
        calls = asyncio.gather(call(), call(), call())
        ((done, counts, _), *_), turns = await read_per_turn(calls, monkeypatch)
        assert (done, counts) == (([False], []) if named == "receipt" else ([], [count]))
        assert sum(turns) < 6 * count, "a batch is not decoded again for each part of it"
        assert max(turns) <= 2 * SHOWN_AT_ONCE, "of all calls together"


async def test_of_large_batches_only_what_is_due_is_decoded(monkeypatch):
    async with alone() as node:
        now_ms = node.clock.now_ms()
        soon = now_ms + 2 * 3_600_000
        await add_batches(
            node, [soon if n == 1_500 else now_ms + YEAR_MS for n in range(3_000)], 20
        )
        hosted = hosted_of(node)
        decoded, decode = [], codec._decode_records

        def counting(*arguments):
            records, at = decode(*arguments)
            decoded.extend(records)
            return records, at

        entries = hosted.state.schedule.due(soon, 1_000)
        monkeypatch.setattr(codec, "_decode_records", counting)
        found = await hosted.bodies.get([entry.offset for entry in entries])
        assert len(found) == 20
        assert sorted(found) == [record.offset for record in decoded]


async def test_a_schedule_is_searched_once_for_any_number_of_message_ids(monkeypatch):
    async with alone() as node:
        await add(node, [b"%d" % n for n in range(100)], node.clock.now_ms() + YEAR_MS)
        searched, tagged = [], Part.tagged
        monkeypatch.setattr(Part, "tagged", lambda *one: searched.append(1) or tagged(*one))
        ids, topic = [f"id-{n}" for n in range(500)], node.topics.get("t")
        _, counts, _ = await node.services.timers.cancel(topic, [], ids)
        assert counts == [0] * 500
        assert len(searched) == 1


async def test_a_page_of_the_records_with_one_id_passes_over_those_of_others_pages(monkeypatch):
    count, each = 12_000, 3_000
    async with alone() as node:
        due_ms, topic = node.clock.now_ms() + YEAR_MS, node.topics.get("t")
        await add_batches(node, [due_ms] * each, count // each, [(MESSAGE_ID, b"one")])
        looked_at, tagged = [], Part.tagged

        def counting(*asked):
            found = tagged(*asked)
            looked_at.append(len(found))
            return found

        monkeypatch.setattr(Part, "tagged", counting)
        got, after = [], ScheduleEntry(-1, -1)
        while page := await node.timers.delayed.find_by_id(topic, 0, "one", after):
            got += [one.number for one in page]
            after = ScheduleEntry(page[-1].due_ms, page[-1].offset)
        assert len(got) == len({*got}) == count
        assert got == sorted(got)
        assert sum(looked_at) <= 4 * count


async def test_a_checkpoint_of_due_times_that_are_far_apart_takes_few_writes(monkeypatch):
    count = 2_000
    async with alone() as node:
        now_ms = node.clock.now_ms()
        dues = [now_ms + (n + 1) * 3 * 3_600_000 for n in range(count)]
        await add_batches(node, dues)
        hosted, appended = hosted_of(node), []
        append = hosted.shard._log.append
        monkeypatch.setattr(
            hosted.shard._log, "append", lambda *one: appended.append(1) or append(*one)
        )
        assert len(hosted.state.schedule.parts()) == count
        await timer_space.write_checkpoint(hosted)
        assert len(appended) <= 10
        waiting = [*hosted.state.schedule.after(ScheduleEntry(-1, -1))]
        assert [entry.due_ms for entry in waiting] == dues


HOURS_MS = 3 * 3_600_000
"""Between due times of which each has a part of its own in the schedule."""


async def added(node, user, count, due_ms, step_ms=HOURS_MS):
    """How many records, each due later than the last, a user can have delayed."""
    for number in range(count):
        try:
            await add(node, [b"x"], due_ms + number * step_ms, None, user)
        except PolicyViolation as error:
            assert "headrace.delayed.max.bytes" in str(error)  # noqa: PT017
            return number
    return count


async def test_delayed_records_of_a_user_leave_room_for_those_of_others():
    async with alone(delayed_bytes_max=30_000) as node:
        far_ms = node.clock.now_ms() + YEAR_MS
        count = await added(node, "User:noisy", 100, far_ms)
        assert 60 <= count <= 66, "two thirds, at 309 bytes each"
        assert await added(node, "User:quiet", 10, far_ms + YEAR_MS) == 10
        assert hosted_of(node).state.size_bytes == 309 * (count + 10)


async def test_delayed_records_that_were_delivered_or_cancelled_do_not_count():
    async with broker(BrokerConfig(delayed_bytes_max=30_000)) as rig:
        node = rig.node
        await node.topics.create("t", 1, configs=ON)
        now_ms = node.clock.now_ms()
        soon = await added(node, "User:noisy", 100, now_ms + 60_000, 1)
        far = await added(node, "User:noisy", 100, now_ms + YEAR_MS)
        assert (soon, far) == (100, 61)
        entries = list(hosted_of(node).state.schedule.after(ScheduleEntry(0, 0)))
        await node.timers.delayed.cancel(node.topics.get("t"), 0, entries[-30:], [])
        rig.clock.ahead_ms += 2_000
        assert await added(node, "User:noisy", 100, now_ms + 2 * YEAR_MS) == 30
        rig.clock.ahead_ms += 61_000
        await until_delivered(node, 100)
        assert await added(node, "User:noisy", 100, now_ms + 3 * YEAR_MS) >= 3


async def test_who_sends_what_is_due_soon_does_not_pay_for_who_sends_what_is_due_late():
    """Although all of it is in one partition."""
    async with broker(BrokerConfig(delayed_bytes_max=30_000)) as rig:
        node = rig.node
        await node.topics.create("t", 1, configs=ON)
        await added(node, "User:noisy", 100, node.clock.now_ms() + YEAR_MS)
        for _ in range(3):
            now_ms = node.clock.now_ms()
            before = len(await delivered(node))
            assert await added(node, "User:quiet", 600, now_ms + 60_000, 1) == 600
            rig.clock.ahead_ms += 70_000
            await until_delivered(node, before + 600)
        assert await added(node, "User:noisy", 1, node.clock.now_ms() + 2 * YEAR_MS) == 0


async def test_half_messages_count_as_delayed_records():
    async with alone(delayed_bytes_max=30_000) as node:
        log = node.topics.get("t").require_log(0)
        await log.wait_loaded()

        async def send(number):
            headers = [(HALF, b"g"), (MESSAGE_ID, b"%d" % number)]
            half = DelayedBatch([DelayedRecord(0, 0, Record(0, 1, None, b"x", headers))], None)
            await node.timers.delayed.add(log, half, "User:noisy").completion.wait()

        for number in range(20):
            await send(number)
        with pytest.raises(PolicyViolation, match=r"headrace\.delayed\.max\.bytes"):
            await asyncio.gather(*map(send, range(20, 40)))
        assert 20 <= len(hosted_of(node).state.halves) <= 24


def test_of_a_users_bytes_is_known_until_when_they_are_needed():
    added_by, start_ms = Added(), 1_800_000_000_000
    for exponent in range(4, 39):
        added_by.note("u", [(start_ms + (1 << exponent), 1)], start_ms)
        left = added_by.by_user(1_000, start_ms + (1 << exponent) - 1).get("u", 0)
        assert left == 1, "until it is due"
        late_ms = max((1 << exponent) * 5 // 4, (1 << exponent) + timer_room.STEP_MS_MIN)
        assert not added_by.by_user(1_000, start_ms + late_ms), "and little longer"


def test_what_is_known_of_a_users_bytes_stays_small_if_nothing_asks_for_it():
    """A count is rare: many small delayed records are sent until there is much."""
    added_by, start_ms = Added(), 1_800_000_000_000
    for number in range(20_000):
        now_ms = start_ms + number * timer_room.STEP_MS_MIN
        added_by.note("u", [(now_ms + 60_000, 1), (now_ms + YEAR_MS, 1)], now_ms)
    assert len(added_by._by_user["u"]) <= timer_room.TIMES_MAX + 1
    assert added_by.by_user(100_000, now_ms)["u"] == 20_000 + 60_000 // timer_room.STEP_MS_MIN + 1
