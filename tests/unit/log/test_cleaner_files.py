"""A round whose process reads the ledgers in files itself: the same outcome, the same checks."""

from __future__ import annotations

from contextlib import asynccontextmanager

import psutil
import pytest
from tests.unit.log.log_rig import LogHarness, rig
from tests.unit.log.test_cleaner import (
    COMPACTED,
    AtFirstRead,
    check_end,
    filled_with_megabytes,
    put,
    values,
)

from headrace.errors import CompactionInterrupted, DataCorrupt, LedgerUnknown, StorageUnavailable
from headrace.log.compaction import cleaner
from headrace.log.compaction.cleanable import cleanable_segments
from headrace.log.compaction.cleaner import Cleaner
from headrace.log.environment import Environment
from headrace.runtime.clock import SystemClock
from headrace.storage.files import FileLedgerStore
from headrace.storage.ledger import NamesFiles


@asynccontextmanager
async def rig_with_files(folder):
    """The bytes of a sealed ledger, as they are when a file is first asked for, and counted reads
    of the store."""
    async with rig(COMPACTED) as bench:
        store, bench.reads = bench.store, []
        read = store.read

        def file_of(ledger):
            path = folder / str(ledger)
            if not path.exists():
                path.write_bytes(store._find(ledger).data)
            return str(path)

        async def counted(ledger, position, size):
            bench.reads.append(size)
            return await read(ledger, position, size)

        store.file_of, store.read = file_of, counted
        assert isinstance(store, NamesFiles)
        yield bench


def in_process(bench, pace=None, keys_max=1_000_000) -> Cleaner:
    environment = Environment(bench.store, bench.metadata, bench.clock, bench.tasks)
    return Cleaner(bench.log, environment, pace, keys_max=keys_max, process_bytes_min=0)


async def test_the_process_reads_the_ledgers_and_the_broker_reads_none(tmp_path):
    async with rig_with_files(tmp_path) as bench:
        latest = await filled_with_megabytes(bench)
        size = sum(segment.end_position for segment in bench.log.segments)
        done = await in_process(bench).run()
        assert not bench.reads
        assert done.removed_records == 1_600 - len(latest)
        assert done.read_bytes == 2 * size
        assert [offset for offset, _ in await values(bench)] == sorted(latest.values())
        await bench.reload()
        assert [offset for offset, _ in await values(bench)] == sorted(latest.values())


async def test_a_full_map_leaves_the_rest_to_later_rounds(tmp_path):
    async with rig_with_files(tmp_path) as bench:
        latest = await filled_with_megabytes(bench)
        rounds = 0
        while bench.log.lifecycle_host.chain.fact.cleaned_offset != bench.log.end_offset:
            await in_process(bench, keys_max=30).run()
            rounds += 1
        assert rounds > 1
        assert [offset for offset, _ in await values(bench)] == sorted(latest.values())


async def test_ledgers_with_and_without_a_file_are_compacted_together(tmp_path):
    async with rig_with_files(tmp_path) as bench:
        for number in range(12):
            await put(bench, b"key", b"%d" % number)
            if number % 3 == 2:
                await bench.log.lifecycle_host.roll_now()
        file_of = bench.store.file_of
        bench.store.file_of = lambda ledger: file_of(ledger) if ledger % 2 else None
        done = await in_process(bench).run()
        assert done.removed_records == 11
        assert bench.reads
        assert await values(bench) == [(11, b"11")]


def _damaged(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [_damaged, _cut])
async def test_damage_in_a_file_is_not_compacted_away(tmp_path, spoil):
    async with rig_with_files(tmp_path) as bench:
        await filled_with_megabytes(bench)
        before = await values(bench)
        ledger = cleanable_segments(bench.log, bench.clock.ms)[0].ledger
        bench.store.file_of(ledger)
        spoil(tmp_path / str(ledger))
        with pytest.raises(DataCorrupt, match="is corrupt at byte") as raised:
            await in_process(bench).run()
        assert raised.value.fields["ledger"] == ledger
        assert await values(bench) == before


async def test_a_missing_file_is_distinguished_from_an_unreadable_one(tmp_path):
    async with rig_with_files(tmp_path) as bench:
        await filled_with_megabytes(bench)
        before = await values(bench)
        bench.store.file_of = lambda _: str(tmp_path / "none")
        with pytest.raises(LedgerUnknown):
            await in_process(bench).run()
        bench.store.file_of = lambda _: str(tmp_path)
        with pytest.raises(StorageUnavailable, match="cannot use the file"):
            await in_process(bench).run()
        assert await values(bench) == before


async def test_a_trim_meanwhile_ends_the_round(tmp_path):
    async with rig_with_files(tmp_path) as bench:
        await filled_with_megabytes(bench)
        await put(bench, b"last", b"x")

        async def trim():
            await bench.log.lifecycle_host.trim(bench.log.high_watermark)

        done = await in_process(bench, AtFirstRead(trim)).run()
        assert not done.is_complete
        assert not done.replaced


@pytest.mark.parametrize("pieces", [0, 1, 2])
async def test_a_process_that_is_killed_on_the_way_leaves_the_log_as_it_was(tmp_path, pieces):
    async with rig_with_files(tmp_path) as bench:
        latest = await filled_with_megabytes(bench)
        base_offset = bench.log.end_offset
        more = await filled_with_megabytes(bench)  # a piece each, in each pass
        latest |= {key: base_offset + offset for key, offset in more.items()}
        before = await values(bench)

        others = psutil.Process().children()

        async def kill():
            for child in set(psutil.Process().children()).difference(others):
                child.kill()
                child.wait()

        with pytest.raises(CompactionInterrupted, match="is retried"):
            await in_process(bench, AtFirstRead(kill, pieces)).run()
        assert await values(bench) == before
        await in_process(bench).run()
        found = await values(bench)
        assert [offset for offset, _ in found] == sorted(latest.values())
        assert check_end(await bench.log.reader.read(found[-1][0], 1)) == bench.log.end_offset


@pytest.mark.parametrize("is_bulk", [True, False])
async def test_a_folder_takes_a_large_new_ledger_past_the_write_ahead_log(
    tmp_path, monkeypatch, is_bulk
):
    monkeypatch.setattr(cleaner, "BULK_BYTES_MIN", 0 if is_bulk else 1 << 40)
    bench = LogHarness(COMPACTED)
    bench.store = await FileLedgerStore.open(tmp_path / "data", SystemClock())
    bench.log = bench.open()
    await bench.ready()
    latest = await filled_with_megabytes(bench)
    before = bench.store.counters.append_bytes
    done = await in_process(bench).run()
    logged = bench.store.counters.append_bytes - before
    assert (logged < done.written_bytes // 100) == is_bulk, "beside the footer"
    assert done.removed_records == 1_600 - len(latest)
    await bench.store.close()
    bench.store = await FileLedgerStore.open(tmp_path / "data", SystemClock())
    await bench.reload()
    assert [offset for offset, _ in await values(bench)] == sorted(latest.values())
    await bench.tasks.close()
    await bench.store.close()
