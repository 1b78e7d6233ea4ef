"""What a round of log compaction does beside appends, readers, damage and deletion."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psutil
import pytest
from crc32c import crc32c
from tests.kit.records import append
from tests.unit.log.log_rig import LogHarness, rig, settle
from tests.unit.log.transaction_rig import Producer

from headrace.errors import CompactionInterrupted, DataCorrupt, LedgerUnknown
from headrace.log.compaction.cleanable import cleanable_bytes, cleanable_segments, is_due
from headrace.log.compaction.cleaner import Cleaner
from headrace.log.compaction.rounds import STEP_RECORDS
from headrace.log.environment import Environment
from headrace.log.footer import decode_footer
from headrace.log.log_config import LogConfig
from headrace.log.reading import TimedOffset
from headrace.records.batch import check_batch, read_header
from headrace.records.codec import Record, decode_batch, encode_batch

COMPACTED = LogConfig(is_compacted=True, is_deleted_by_retention=False)


async def put(bench: LogHarness, key: bytes, value: bytes | None) -> int:
    batch = encode_batch([Record(0, bench.clock.ms, key, value)])
    return await append(bench.log, batch)


def cleaner(bench: LogHarness, pace=None) -> Cleaner:
    environment = Environment(bench.store, bench.metadata, bench.clock, bench.tasks)
    return Cleaner(bench.log, environment, pace)


async def values(bench: LogHarness) -> list[tuple[int, bytes | None]]:
    found, offset = [], bench.log.log_start_offset
    while offset < bench.log.high_watermark:
        data = await bench.log.reader.read(offset, 1)
        found += [(record.offset, record.value) for record in decode_batch(data)]
        offset = check_end(data)
    return found


def check_end(data) -> int:
    return read_header(data).last_offset + 1


class AtFirstRead:
    """Runs something before the first bytes of a round are read, or after so many reads."""

    def __init__(self, action, after: int = 0) -> None:
        self.action = action
        self.after = after

    async def pause(self) -> None:
        await asyncio.sleep(0)

    async def spend(self, size: int) -> None:
        self.after -= 1
        if self.after < 0 and self.action is not None:
            action, self.action = self.action, None
            await action()


async def filled(bench: LogHarness, count: int = 6) -> None:
    for number in range(count):
        await put(bench, b"key", b"%d" % number)
    await bench.log.lifecycle_host.roll_now()


async def test_a_removed_offset_gives_the_next_batch_and_the_end_stays():
    async with rig(COMPACTED) as bench:
        await filled(bench)
        done = await cleaner(bench).run()
        assert done.is_complete
        assert done.removed_records == 5
        assert len(done.replaced) == 1
        assert await values(bench) == [(5, b"5")]
        for offset in range(1, 6):
            data = await bench.log.reader.read(offset, 1)
            assert check_end(data) == 6
        footer = (await bench.store.recover(bench.log.segments[0].ledger)).footer
        assert decode_footer(footer).is_compacted
        found = await bench.log.reader.offset_of_time(0)
        assert found == TimedOffset(bench.clock.ms, 5)
        await put(bench, b"other", b"x")
        await bench.reload()
        assert await values(bench) == [(5, b"5"), (6, b"x")]


async def test_a_large_round_runs_in_a_process_of_its_own():
    async with rig(COMPACTED) as bench:
        await filled(bench)
        before = psutil.Process().children()
        children = []

        async def look():
            children.extend(set(psutil.Process().children()).difference(before))

        environment = Environment(bench.store, bench.metadata, bench.clock, bench.tasks)
        done = await Cleaner(bench.log, environment, AtFirstRead(look), process_bytes_min=0).run()
        assert done.removed_records == 5
        assert await values(bench) == [(5, b"5")]
        assert len(children) == 1
        assert not children[0].is_running(), "it ends with the round"


async def test_many_small_records_make_a_round_large():
    async with rig(COMPACTED) as bench:
        records = [Record(0, bench.clock.ms, b"%d" % n, b"") for n in range(300)]
        batch = encode_batch(records, codec=1)
        await append(bench.log, batch)
        await bench.log.lifecycle_host.roll_now()
        before = psutil.Process().children()
        children = []

        async def look():
            children.extend(set(psutil.Process().children()).difference(before))

        environment = Environment(bench.store, bench.metadata, bench.clock, bench.tasks)
        size = 300 * 700
        await Cleaner(bench.log, environment, AtFirstRead(look), process_bytes_min=size).run()
        assert len(children) == 1


def kills_new_processes():
    """A function that kills this process's children that do not exist yet."""
    others = psutil.Process().children()

    async def kill():
        for child in set(psutil.Process().children()).difference(others):
            child.kill()

    return kill


async def test_a_round_whose_process_is_killed_changes_nothing():
    async with rig(COMPACTED) as bench:
        await filled(bench)

        kill = kills_new_processes()
        environment = Environment(bench.store, bench.metadata, bench.clock, bench.tasks)
        round_ = Cleaner(bench.log, environment, AtFirstRead(kill), process_bytes_min=0)
        with pytest.raises(CompactionInterrupted, match="is retried"):
            await round_.run()
        assert len(await values(bench)) == 6


async def filled_with_megabytes(bench: LogHarness) -> dict[bytes, int]:
    """The latest offset of each key, in a ledger that is read in some 20 runs."""
    latest, offset = {}, 0
    for _ in range(40):
        keys = [b"%d" % ((offset + n * n) % 300) for n in range(40)]
        records = [Record(n, bench.clock.ms, key, b"v" * 3_000) for n, key in enumerate(keys)]
        batch = encode_batch(records)
        await append(bench.log, batch)
        latest |= {key: offset + n for n, key in enumerate(keys)}
        offset += len(keys)
    await bench.log.lifecycle_host.roll_now()
    return latest


def in_process(bench: LogHarness, pace=None) -> Cleaner:
    environment = Environment(bench.store, bench.metadata, bench.clock, bench.tasks)
    return Cleaner(bench.log, environment, pace, process_bytes_min=0)


async def test_a_process_leaves_the_latest_of_each_key_of_megabytes():
    async with rig(COMPACTED) as bench:
        latest = await filled_with_megabytes(bench)
        done = await in_process(bench).run()
        assert done.removed_records == 1_600 - len(latest)
        assert [offset for offset, _ in await values(bench)] == sorted(latest.values())


@pytest.mark.parametrize("reads", [3, 10, 25, 32])
async def test_a_process_that_is_killed_on_the_way_leaves_the_log_as_it_was(reads):
    async with rig(COMPACTED) as bench:
        latest = await filled_with_megabytes(bench)
        before = await values(bench)

        kill = kills_new_processes()
        with pytest.raises(CompactionInterrupted, match="is retried"):
            await in_process(bench, AtFirstRead(kill, reads)).run()
        assert await values(bench) == before
        await in_process(bench).run()
        assert [offset for offset, _ in await values(bench)] == sorted(latest.values())


async def test_appends_go_on_while_a_round_runs():
    async with rig(COMPACTED) as bench:
        await filled(bench)
        await cleaner(bench, AtFirstRead(lambda: put(bench, b"key", b"later"))).run()
        assert await values(bench) == [(5, b"5"), (6, b"later")]


async def test_a_log_that_is_deleted_meanwhile_leaves_no_ledger():
    async with rig(COMPACTED) as bench:
        await filled(bench)
        done = await cleaner(bench, AtFirstRead(bench.log.lifecycle_host.delete)).run()
        assert not done.is_complete
        await settle()
        assert not bench.store.list()


async def test_a_trim_meanwhile_ends_the_round():
    async with rig(COMPACTED) as bench:
        await filled(bench)
        await put(bench, b"other", b"x")
        done = await cleaner(bench, AtFirstRead(lambda: bench.log.lifecycle_host.trim(6))).run()
        assert not done.is_complete
        assert await values(bench) == [(6, b"x")]
        await bench.reload()
        assert await values(bench) == [(6, b"x")]


async def test_aborted_transactions_of_evicted_indexes_count_when_ledgers_are_joined(monkeypatch):
    monkeypatch.setattr("headrace.log.compaction.cleaner.ENTRIES_MAX", 1)

    async with rig(COMPACTED) as bench:
        for turn in range(2):
            producer = Producer(bench, 7 + turn)
            await producer.send()
            await producer.end(is_commit=False)
            await bench.log.lifecycle_host.roll_now()
        await bench.reload()
        for segment in cleanable_segments(bench.log, bench.clock.ms):
            segment.unload_index()
        groups = await cleaner(bench)._groups(cleanable_segments(bench.log, bench.clock.ms))
        assert [len(group) for group in groups] == [1, 1]


async def test_damage_is_not_compacted_away():
    async with rig(COMPACTED) as bench:
        await filled(bench)
        ledgers = [segment.ledger for segment in bench.log.segments]
        bench.store._find(ledgers[0]).data[70] ^= 1
        with pytest.raises(DataCorrupt):
            await cleaner(bench).run()
        assert [segment.ledger for segment in bench.log.segments] == ledgers


@pytest.mark.parametrize("in_process", [False, True])
async def test_a_batch_that_cannot_be_decoded_is_retained_and_replaces_nothing(in_process):
    """Its first record can be read, with the key that others have; no consumer gets to it."""

    async with rig(COMPACTED) as bench:
        await filled(bench, 3)
        records = [
            Record(0, bench.clock.ms, b"key", b"x"),
            Record(0, bench.clock.ms, b"o", b"y"),
        ]
        batch = bytearray(encode_batch(records))
        batch[-5] = 0x7E  # the last key's length
        batch[17:21] = crc32c(batch[21:]).to_bytes(4, "big")
        for _ in range(2):  # once in the dirty range, once in the clean one
            appended = bench.log.append(bytes(batch), check_batch(bytes(batch)))
            while appended is None:
                await asyncio.sleep(0)
                appended = bench.log.append(bytes(batch), check_batch(bytes(batch)))
            await appended.completion.wait()
            await filled(bench, 1)
            environment = Environment(bench.store, bench.metadata, bench.clock, bench.tasks)
            least = 0 if in_process else None
            done = await Cleaner(bench.log, environment, process_bytes_min=least).run()
            assert done.is_complete
        kept = [(h.base_offset, h.record_count) async for h in headers(bench)]
        # Not (2, 1): the key's latest record that can be read came after the first bad batch.
        assert kept[-3:] == [(3, 2), (6, 2), (8, 1)]
        assert kept[:-3] in ([], [(0, 0)])
        for base in (3, 6):
            stored = bytes(await bench.log.reader.read(base, 1))
            assert stored[21 : len(batch)] == bytes(batch)[21:]


async def headers(bench: LogHarness):
    offset = bench.log.log_start_offset
    while offset < bench.log.high_watermark:
        header = read_header(await bench.log.reader.read(offset, 1))
        yield header
        offset = header.last_offset + 1


async def test_a_base_offset_that_was_damaged_after_compaction_is_found():
    async with rig(COMPACTED) as bench:
        await filled(bench)
        await cleaner(bench).run()
        await bench.reload()
        segment = bench.log.segments[0]
        bench.store._find(segment.ledger).data[7] ^= 1
        with pytest.raises(DataCorrupt):
            await bench.log.reader.read(0, 1)


async def test_a_round_is_due_by_ratio_and_by_age_and_never_within_the_least_lag():
    config = LogConfig(is_compacted=True, dirty_ratio_min=0.5, compaction_lag_max_ms=1_000)
    async with rig(config) as bench:
        await filled(bench)
        assert cleanable_bytes(bench.log, bench.clock.ms).ratio == 1.0
        assert is_due(bench.log, bench.clock.ms)
        await cleaner(bench).run()
        assert not is_due(bench.log, bench.clock.ms)
        bench.log.config = replace(bench.log.config, dirty_ratio_min=1.0)
        await filled(bench)
        assert not is_due(bench.log, bench.clock.ms)
        assert is_due(bench.log, bench.clock.ms + 1_001)
        bench.log.config = replace(bench.log.config, compaction_lag_min_ms=5_000)
        assert not cleanable_segments(bench.log, bench.clock.ms + 4_999)
        assert cleanable_segments(bench.log, bench.clock.ms + 5_000)


async def test_a_segment_dropped_by_retention_is_not_read_as_another_ledger():
    async with rig(COMPACTED) as bench:
        await filled(bench)
        (dropped,) = bench.log.closed
        await filled(bench)
        await bench.log.lifecycle_host.trim(bench.log.closed[0].end_offset)
        active = bench.log.active
        dropped.unload_index()
        before = active.end_offset, active.end_position
        with pytest.raises(LedgerUnknown):
            await bench.log.reader.load_index(dropped)
        assert (active.end_offset, active.end_position) == before


class Counting:
    """Counts how often others had their turn."""

    pauses = 0

    async def pause(self) -> None:
        self.pauses += 1
        await asyncio.sleep(0)

    async def spend(self, size: int) -> None:
        await asyncio.sleep(0)


async def test_a_large_batch_lets_others_work_while_it_is_taken_apart():
    count = 20_000
    async with rig(COMPACTED) as bench:
        batch = encode_batch(
            [Record(number, bench.clock.ms, b"%d" % (number % 10), b"v") for number in range(count)]
        )
        await append(bench.log, batch)
        await bench.log.lifecycle_host.roll_now()
        pace = Counting()
        done = await cleaner(bench, pace).run()
        assert done.removed_records == count - 10
        assert [offset for offset, _ in await values(bench)] == [*range(count - 10, count)]
        assert pace.pauses >= 2 * (count // STEP_RECORDS), "in both passes"
