"""Aborted transactions are listed for readers of committed records, also after restarts."""

from __future__ import annotations

import pytest
from tests.unit.log.log_rig import LogHarness, rig, settle
from tests.unit.log.transaction_rig import Producer

from headrace.log import aborted_index, segment
from headrace.log.aborted_index import AbortedIndex
from headrace.log.largest_timestamp import offset_of_max_timestamp
from headrace.log.log_config import LogConfig
from headrace.log.visibility import READ_COMMITTED
from headrace.records.batch import iterate_headers


async def committed(bench: LogHarness, offset: int = 0, bytes_max: int = 1) -> list[int]:
    """The base offsets of the data batches that a consumer shows, reading from `offset` on.

    It leaves aborted ones out as clients do: from a transaction's first offset to its marker.
    """
    shown: list[int] = []
    log = bench.log
    while offset < log.visibility.last_stable_offset:
        found = await log.reader.fetch(offset, bytes_max, READ_COMMITTED)
        assert found.aborted is not None
        assert found.aborted == sorted(found.aborted)
        coming, aborting = list(found.aborted), set()
        for _at, header in iterate_headers(found.data):
            while coming and coming[0][0] <= header.last_offset:
                aborting.add(coming.pop(0)[1])
            if header.is_control:
                aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                shown.append(header.base_offset)
            offset = header.last_offset + 1
    return shown


async def _interleaved(bench: LogHarness, *, is_rolled: bool) -> list[int]:
    """Transactions that overlap over several ledgers; what is committed of them."""
    one, two, three = (Producer(bench, number) for number in (1, 2, 3))
    kept = [await one.send(), await one.send()]
    await two.send()
    await _roll(bench, is_rolled)
    await three.send(2)
    kept.append(await one.send())
    await one.end()
    await _roll(bench, is_rolled)
    await two.send()
    await two.end(is_commit=False)
    kept.append(await two.send())
    await _roll(bench, is_rolled)
    await two.end()
    kept.append(await bench.append(b"plain"))
    await three.end(is_commit=False)
    kept.append(await bench.append(b"plain"))
    return kept


async def _roll(bench: LogHarness, is_rolled: bool) -> None:
    if is_rolled:
        await bench.log.lifecycle_host.roll_now()
        await settle()


@pytest.mark.parametrize("is_rolled", [False, True])
@pytest.mark.parametrize("bytes_max", [1, 200, 1 << 20])
async def test_aborted_records_are_left_out_live_and_after_a_restart(is_rolled, bytes_max) -> None:
    async with rig() as bench:
        kept = await _interleaved(bench, is_rolled=is_rolled)
        assert await committed(bench, bytes_max=bytes_max) == kept
        await bench.reload()
        assert await committed(bench, bytes_max=bytes_max) == kept
        for offset in range(bench.log.end_offset):
            shown = await committed(bench, offset, bytes_max)
            assert [o for o in shown if o >= offset] == [o for o in kept if o >= offset]


async def test_ledgers_without_footers_are_scanned_with_what_was_open_before_them() -> None:
    async with rig() as bench:
        kept = await _interleaved(bench, is_rolled=True)
        await bench.reload()
        for at in (1, 2):
            bench.store._ledgers[bench.log.segments[at].ledger].footer = None
        await bench.reload()
        assert await committed(bench) == kept
        for one in bench.log.segments[:-1]:
            one.unload_index()
        assert await committed(bench, 3) == [offset for offset in kept if offset >= 3]


async def test_a_new_owner_finds_aborted_transactions_in_checkpoints_and_records(
    monkeypatch,
) -> None:
    monkeypatch.setattr(segment, "CHECKPOINT_INTERVAL_BYTES", 500)
    monkeypatch.setattr(segment, "CHECKPOINT_RATIO", 1)

    async with rig(leader_epoch=0) as bench:
        producers = [Producer(bench, number) for number in range(3)]
        kept: list[int] = []
        sent: list[list[int]] = [[], [], []]
        for number in range(20):
            for producer in producers:
                sent[producer.id].append(await producer.send(size=100))
            kept.append(await bench.append(b"plain"))
            ended, is_commit = producers[number % 3], number % 2 == 0
            await ended.end(is_commit=is_commit)
            kept += sent[ended.id] if is_commit else []
            sent[ended.id].clear()
            if number % 6 == 5:
                bench = bench.rival((bench.leader_epoch or 0) + 1)
                await bench.ready()
                for producer in producers:
                    producer.bench = bench
        for producer in producers:
            await producer.end()
            kept += sent[producer.id]
        assert await committed(bench) == sorted(kept)
        again = bench.rival((bench.leader_epoch or 0) + 1)
        await again.ready()
        assert await committed(again) == sorted(kept)
        await again.tasks.close()
        await bench.tasks.close()


async def test_a_marker_whose_append_failed_aborts_nothing() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        first = await producer.send()
        bench.store.is_held = True
        producer.begin_end(is_commit=False)
        await settle()
        bench.store.fail_newest()
        bench.store.complete_all()
        await settle()
        await producer.end()
        assert await committed(bench) == [first]
        await bench.reload()
        assert await committed(bench) == [first]


async def test_an_abort_of_nothing_is_not_listed() -> None:
    async with rig() as bench:
        await Producer(bench).end(is_commit=False)
        await bench.append(b"plain")
        found = await bench.log.reader.fetch(0, 1 << 20, READ_COMMITTED)
        assert found.aborted == []


async def test_a_read_ends_at_the_last_stable_offset_wherever_it_lies() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        for _ in range(5):
            await bench.append(b"plain", size=1000)
        await producer.send()
        await bench.append(b"plain")
        for is_rolled, is_reloaded in ((False, False), (False, True), (True, False), (1, 1)):
            if is_rolled:
                await bench.log.lifecycle_host.roll_now()
                await bench.append(b"plain")
            if is_reloaded:
                await bench.reload()
            assert await committed(bench, bytes_max=1 << 20) == [0, 1, 2, 3, 4]
            found = await bench.log.reader.fetch(6, 1000, READ_COMMITTED)
            assert not len(found.data)


async def test_times_at_and_after_the_last_stable_offset_are_hidden() -> None:
    async with rig() as bench:
        producer = Producer(bench)
        start_ms = bench.clock.ms
        await bench.append(b"plain")
        bench.clock.ms += 10
        await producer.send()
        bench.clock.ms += 10
        await bench.append(b"plain")
        log = bench.log
        assert (await log.reader.offset_of_time(start_ms, READ_COMMITTED)).offset == 0
        assert (await log.reader.offset_of_time(start_ms + 5, READ_COMMITTED)).offset == -1
        assert (await log.reader.offset_of_time(start_ms + 5)).offset == 1
        assert (await offset_of_max_timestamp(log, READ_COMMITTED)).offset == -1
        await producer.end()
        assert (await log.reader.offset_of_time(start_ms + 5, READ_COMMITTED)).offset == 1


async def test_a_log_that_begins_after_the_last_stable_offset_shows_nothing_by_time() -> None:
    async with rig() as bench:
        start_ms = bench.clock.ms
        await Producer(bench).send()
        await bench.append(b"plain")
        await bench.append(b"plain")
        await bench.log.lifecycle_host.trim(2)
        assert (await bench.log.reader.offset_of_time(start_ms)).offset == 2
        assert (await bench.log.reader.offset_of_time(start_ms, READ_COMMITTED)).offset == -1


async def test_a_ledger_of_many_aborted_transactions_is_left_early(monkeypatch) -> None:
    monkeypatch.setattr(segment, "ENTRIES_MAX", 5)

    async with rig(LogConfig()) as bench:
        producer = Producer(bench)
        for _ in range(12):
            await producer.send()
            await producer.end(is_commit=False)
            await settle()
        assert len(bench.log.segments) >= 3
        assert await committed(bench) == []


def test_a_search_ends_where_nothing_later_can_matter() -> None:
    index = AbortedIndex()
    for number in range(aborted_index.ENTRIES_MAX // 100):
        index.add(number, 10 * number, 10 * number + 5, 10 * number + 6)
    assert index.find(5000, 5010) == [(5000, 500)]
    assert index.find(5006, 5010) == []
    assert index.find(5006, 5011) == [(5010, 501)]
    copied = AbortedIndex.decode(index.since(0).encode())
    assert copied.encode() == index.encode()
    copied.truncate(15)
    assert copied.find(0, 1 << 60) == [(0, 0)]
