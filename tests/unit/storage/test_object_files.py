"""Objects in a folder, read as files: only whole blocks, only from memory, only this ledger's."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clocks import HandClock

from headrace.errors import DataCorrupt, StorageUnavailable
from headrace.runtime.disk import SystemDisk
from headrace.storage.ledger import LocatesBytes
from headrace.storage.memory import MemoryLedgerStore
from headrace.storage.tiering import object_files
from headrace.storage.tiering.blob_store import BlobStore
from headrace.storage.tiering.object_format import BLOCK_BYTES, object_name
from headrace.storage.tiering.tiered_store import TieredLedgerStore

DATA = bytes(range(251)) * (3 * BLOCK_BYTES // 251 + 40)


def can_tell_what_is_cached(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY)
    try:
        return SystemDisk().is_cached(fd, 10, 0)
    finally:
        os.close(fd)


@asynccontextmanager
async def in_folder(data: bytes, count: int = 1, clock: HandClock | None = None):
    """(store, ledgers, their files): each ledger holds `data`, and lies in its object alone."""
    with tempfile.TemporaryDirectory() as folder:
        blobs = BlobStore.open(f"file://{folder}")
        # No bytes are kept in memory, so that what is read is what lies in the file.
        store = TieredLedgerStore(
            MemoryLedgerStore(), blobs, "c", clock or HandClock(), cache_bytes_max=0
        )
        ledgers = []
        for _ in range(count):
            ledger = await store.create()
            await store.append(ledger, [data], len(data), None)[1].wait()
            await store.seal(ledger, b"footer")
            store.attach(ledger, await store.offload(ledger), is_local=True)
            await store.drop_local(ledger)
            await store.recover(ledger)  # opens it
            ledgers.append(ledger)
        paths = [Path(folder) / "c" / object_name(ledger) for ledger in ledgers]
        try:
            if not can_tell_what_is_cached(paths[0]):
                pytest.skip("NO CACHESTAT: this kernel does not tell what it has in memory")
            yield store, ledgers, paths
        finally:
            await store.close()


RANGES = st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(1, len(DATA))), max_size=8)


def test_bytes_located_in_or_read_from_the_file_are_those_of_the_ledger():
    located_count = 0

    @settings(max_examples=30, deadline=None)
    @given(ranges=RANGES)
    def check(ranges) -> None:
        async def main() -> None:
            nonlocal located_count
            async with in_folder(DATA) as (store, [ledger], _):
                assert isinstance(store, LocatesBytes)
                for position, size in ranges:
                    wanted = DATA[position : position + size]
                    located = store.locate_cached(ledger, position, size)
                    if located is not None:
                        assert len(located) == size, "exactly so many bytes, or none"
                        assert located.read() == wanted
                        located_count += 1
                    found = store.read_cached(ledger, position, size)
                    assert found is None or bytes(found) == wanted
                    assert await store.read(ledger, position, size) == wanted

        asyncio.run(main())

    check()
    assert located_count, "all of it was just written: memory holds some of it"


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_damage_in_a_file_is_reported_and_never_served(share, flip):
    step = BLOCK_BYTES // 2

    async def main() -> None:
        async with in_folder(DATA) as (store, [ledger], [path]):
            at = int(share * len(DATA))
            stored = bytearray(path.read_bytes())
            stored[at + 64] ^= flip
            path.write_bytes(stored)
            refused = []
            for position in range(0, len(DATA) - step, step):
                wanted = DATA[position : position + step]
                located = store.locate_cached(ledger, position, step)
                assert located is None or located.read() == wanted
                copied = store.read_cached(ledger, position, step)
                assert copied is None or copied == wanted
                try:
                    assert await store.read(ledger, position, step) == wanted
                except DataCorrupt:
                    refused.append(position)
            block = at // BLOCK_BYTES * BLOCK_BYTES
            assert refused == [p for p in (block, block + step) if p < len(DATA) - step]

    asyncio.run(main())


async def test_blocks_verified_a_second_ago_are_verified_again():
    clock = HandClock()
    async with in_folder(DATA, clock=clock) as (store, [ledger], [path]):
        store.locate_cached(ledger, 0, 1000)
        with path.open("r+b") as file:
            file.seek(64 + 10)
            file.write(b"damage")
        clock.ns += object_files.CHECKED_KEPT_NS
        assert store.locate_cached(ledger, 0, 1000) is None


async def test_a_file_that_is_cut_replaced_or_gone_is_the_slow_ways_to_tell():
    async with in_folder(DATA) as (store, [ledger], [path]):
        store.locate_cached(ledger, 0, 1000)
        whole = path.read_bytes()
        os.truncate(path, len(whole) // 2)
        assert store.locate_cached(ledger, len(DATA) - 1000, 1000) is None
        with pytest.raises((DataCorrupt, StorageUnavailable)):
            await store.read(ledger, len(DATA) - 1000, 1000)
        path.with_suffix(".new").write_bytes(whole)
        path.with_suffix(".new").replace(path)
        mended = store.locate_cached(ledger, len(DATA) - 1000, 1000)
        assert mended is None or mended.read() == DATA[-1000:]
        assert await store.read(ledger, len(DATA) - 1000, 1000) == DATA[-1000:]


async def test_few_files_are_open_whatever_is_read_and_none_when_the_store_is_closed(monkeypatch):
    monkeypatch.setattr(object_files, "OPEN_MAX", 3)

    def open_objects(folder: Path) -> int:
        links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link).startswith(str(folder)) for link in links)

    async with in_folder(DATA[:5000], 8) as (store, ledgers, paths):
        folder = paths[0].parents[2]
        for _ in range(2):
            located = [store.locate_cached(ledger, 0, 5000) for ledger in ledgers]
            # All of one turn are good, also those whose descriptor has been given back.
            assert all(one is None or one.read() == DATA[:5000] for one in located)
            assert open_objects(folder) <= 3
        await store.delete(ledgers[-1])
        await store.close()
        assert open_objects(folder) == 0


async def test_bytes_not_in_memory_are_not_waited_for_and_are_read_from_the_file():
    async with in_folder(DATA) as (store, [ledger], [path]):
        fd = os.open(path, os.O_RDWR)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if SystemDisk().is_cached(fd, len(DATA), 64):
                pytest.skip("THIS FILE SYSTEM KEEPS ALL IN MEMORY: nothing to be waited for")
        finally:
            os.close(fd)
        assert store.locate_cached(ledger, 0, len(DATA)) is None
        for position in range(0, len(DATA), 1000):
            found = store.read_cached(ledger, position, 1000)
            if found is None:
                found = await store.read(ledger, position, 1000)
            assert found == DATA[position : position + 1000]
