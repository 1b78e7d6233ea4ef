"""Small appends wait in memory for their segment: not visible from outside, whatever fails."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from pathlib import Path

import pytest

from headrace.errors import LedgerUnknown, StorageUnavailable
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.storage.files import FileLedgerStore, segment_write_buffer


class Disk(SystemDisk):
    """Counts the writes to segments, and refuses them on demand."""

    def __init__(self):
        self.paths = {}
        self.refuses = False
        self.writes = 0

    def open(self, path, flags):
        fd = super().open(path, flags)
        self.paths[fd] = path
        return fd

    def pwrite(self, fd, data, position):
        if self.paths[fd].endswith(".ledger"):
            if self.refuses:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.writes += 1
        return os.pwrite(fd, data, position)


async def open_store(folder, disk=None, **settings):
    settings = {"wal_file_bytes": 1 << 20, "retry_ms": 5, **settings}
    return await FileLedgerStore.open(folder, SystemClock(), disk=disk, **settings)


async def append(store, ledger, data, flush_ms=None):
    _, completion = store.append(ledger, [data], len(data), flush_ms)
    await completion.wait()


async def kill(store):
    """Leave it as a process that is killed; what a thread has begun ends first."""
    await store._tasks.close()
    store._maintenance._thread.shutdown()
    store._commit._sync.close()
    store._release()


async def all_of(store, ledger):
    return bytes(await store.read(ledger, 0, 1 << 30))


@pytest.mark.parametrize("seed", range(6))
async def test_reads_find_every_byte_wherever_it_is(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(segment_write_buffer, "SMALL_BYTES", 700)
    monkeypatch.setattr(segment_write_buffer, "RUN_BYTES_MAX", 3_000)
    monkeypatch.setattr(segment_write_buffer, "BUFFERED_BYTES_MAX", 5_000)

    rng = random.Random(seed)
    store = await open_store(tmp_path / "data", checkpoint_bytes=60_000)
    contents = {await store.create(): b"" for _ in range(4)}
    appends = 0
    while appends < 300 or store.counters.checkpoints < 2:
        appends += 1
        ledger = rng.choice(list(contents))
        data = rng.randbytes(rng.choice((1, 90, 699, 700, 2_000)))
        await append(store, ledger, data, rng.choice((None, 1_000)))
        contents[ledger] += data
        start = rng.randrange(len(contents[ledger]))
        size = rng.choice((1, 50, 5_000))
        wanted = contents[ledger][start : start + size]
        cached = store.read_cached(ledger, start, size)
        assert cached is None or bytes(cached) == wanted
        assert bytes(await store.read(ledger, start, size)) == wanted
        located = store.locate_cached(ledger, start, len(wanted))
        assert located is None or located.read() == wanted
    await kill(store)
    store = await open_store(tmp_path / "data")
    for ledger, content in contents.items():
        assert await all_of(store, ledger) == content
    await store.close()


async def test_a_segment_is_written_once_for_many_small_appends(tmp_path):
    disk = Disk()
    store = await open_store(tmp_path / "data", disk)
    ledgers = [await store.create() for _ in range(20)]
    for _ in range(50):
        for ledger in ledgers:
            store.append(ledger, [b"small"], 5, 1_000)
        await asyncio.sleep(0)
    assert disk.writes == 0
    await store.close()
    assert disk.writes == 20
    store = await open_store(tmp_path / "data")
    for ledger in ledgers:
        assert await all_of(store, ledger) == b"small" * 50
    await store.close()


async def test_memory_stays_bounded_however_many_ledgers_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_write_buffer, "BUFFERED_BYTES_MAX", 10_000)
    monkeypatch.setattr(segment_write_buffer, "BUFFERED_LEDGERS_MAX", 30)

    store = await open_store(tmp_path / "data")
    kept = store._segments._write_buffer
    ledgers = [await store.create() for _ in range(60)]
    for turn in range(20):
        for ledger in ledgers:
            size = 1 + (turn * ledger) % 900
            store.append(ledger, [bytes(size)], size, 1_000)
        await asyncio.sleep(0)
        runs_now = [ledger.buffered for ledger in kept.all()]
        assert sum(run.size for run in runs_now) <= 10_000
        assert len(runs_now) <= 30
    await store.close()


async def test_a_segment_that_takes_nothing_costs_no_byte_and_no_reader_notices(tmp_path):
    disk = Disk()
    store = await open_store(tmp_path / "data", disk, checkpoint_bytes=50_000)
    ledger = await store.create()
    await append(store, ledger, bytes(20_000))
    disk.refuses = True
    content = bytes(20_000)
    refused = 0
    for number in range(100):
        data = b"%4d" % number * 300
        try:
            await append(store, ledger, data)
        except StorageUnavailable:
            refused += 1
        else:
            content += data
        assert await all_of(store, ledger) == content
    assert refused, "not more is kept than may be"
    disk.refuses = False
    for _ in range(1_000):
        if store.counters.checkpoints > 1:
            break
        await asyncio.sleep(0.005)
    await append(store, ledger, b"again")
    assert await all_of(store, ledger) == content + b"again"
    await kill(store)
    store = await open_store(tmp_path / "data")
    assert await all_of(store, ledger) == content + b"again"
    await store.close()


async def test_a_deleted_ledger_leaves_nothing_in_memory_and_no_file(tmp_path):
    store = await open_store(tmp_path / "data")
    ledger = await store.create()
    await append(store, ledger, b"small")
    await store.delete(ledger)
    assert store._segments._write_buffer.all() == []
    await store.close()
    assert not list((tmp_path / "data").glob("ledgers/*/*.ledger"))


async def test_a_ledger_has_a_file_for_others_once_it_is_sealed_and_all_is_in_it(tmp_path):
    store = await open_store(tmp_path)
    try:
        ledger = await store.create()
        await append(store, ledger, b"small")
        assert store.file_of(ledger) is None
        await store.seal(ledger, b"footer")
        assert store.file_of(ledger) is None, "its bytes wait in memory"
        large = await store.create()
        data = bytes(range(256)) * 4096
        await append(store, large, data)
        assert store.file_of(large) is None, "it may grow"
        await store.seal(large, b"footer")
        path = store.file_of(large)
        assert Path(path).read_bytes() == data
        await store.delete(large)
        with pytest.raises(LedgerUnknown):
            store.file_of(large)
    finally:
        await store.close()
    store = await open_store(tmp_path)
    try:
        assert Path(store.file_of(ledger)).read_bytes() == b"small"
    finally:
        await store.close()
