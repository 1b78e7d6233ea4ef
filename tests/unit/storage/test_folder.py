"""The data folder: one process, one format, no more open files than allowed, nothing left over."""

from __future__ import annotations

import asyncio
import os

import pytest

from headrace.errors import FolderInUse, FormatUnsupported, LedgerUnknown, StorageUnavailable
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.storage.files import FileLedgerStore
from headrace.storage.files.format import FOLDER, crc32c


async def open_store(folder, **settings):
    return await FileLedgerStore.open(
        folder, SystemClock(), **{"wal_file_bytes": 1 << 20, **settings}
    )


async def append(store, ledger, data):
    _, completion = store.append(ledger, [data], len(data), None)
    await completion.wait()


async def test_a_second_opener_is_refused_with_the_process_that_holds_the_folder(tmp_path):
    store = await open_store(tmp_path / "data")
    with pytest.raises(FolderInUse, match=f"process {os.getpid()}.*another data folder"):
        await open_store(tmp_path / "data")
    ledger = await store.create()
    await append(store, ledger, b"undisturbed")
    await store.close()
    await (await open_store(tmp_path / "data")).close()


@pytest.mark.parametrize("place", ["file/data", "/proc/data"])
async def test_a_folder_at_a_wrong_place_is_not_called_a_broken_disk(tmp_path, place):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StorageUnavailable, match="choose a folder that the user"):
        await open_store(tmp_path / place)


async def test_a_newer_format_is_refused_and_left_alone(tmp_path):
    await (await open_store(tmp_path / "data")).close()
    path = tmp_path / "data" / "format"
    magic, _version, salt, _crc = FOLDER.unpack(path.read_bytes())
    head = FOLDER.pack(magic, 2, salt, 0)[:-4]
    path.write_bytes(head + crc32c(head).to_bytes(4, "little"))
    (tmp_path / "data" / "lock").unlink()
    before = _content(tmp_path)
    with pytest.raises(FormatUnsupported, match="format 2, this version supports 1"):
        await open_store(tmp_path / "data")
    assert _content(tmp_path) == before


def _content(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


async def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "precious").write_text("mine")
    before = _content(tmp_path)
    with pytest.raises(FormatUnsupported, match="empty data folder"):
        await open_store(tmp_path)
    assert _content(tmp_path) == before, "nothing is left in it"


async def test_many_more_ledgers_than_open_files(tmp_path):
    store = await open_store(tmp_path / "data", open_files_max=16)
    before = len(os.listdir("/proc/self/fd"))
    ledgers = await asyncio.gather(*(store.create() for _ in range(1_000)))
    for turn in range(3):
        for ledger in ledgers:
            _, last = store.append(
                ledger, [b"%d,%d;" % (ledger, turn)], len(b"%d,%d;" % (ledger, turn)), None
            )
        await last.wait()
    assert len(os.listdir("/proc/self/fd")) - before <= 20
    for ledger in ledgers[::7]:
        expected = b"".join(b"%d,%d;" % (ledger, turn) for turn in range(3))
        assert bytes(store.read_cached(ledger, 0, 100)) == expected
    await store.close()
    store = await open_store(tmp_path / "data", open_files_max=16)
    assert len(store.list()) == 1_000
    for ledger in ledgers[::13]:
        expected = b"".join(b"%d,%d;" % (ledger, turn) for turn in range(3))
        assert bytes(await store.read(ledger, 0, 100)) == expected
    await store.close()


async def test_a_deleted_ledger_leaves_no_file_and_strays_are_removed(tmp_path):
    folder = tmp_path / "data"
    store = await open_store(folder)
    ledger = await store.create()
    await append(store, ledger, b"x")
    await store.seal(ledger, b"footer")
    await store.delete(ledger)
    assert [path for path in folder.glob("ledgers/*/*") if path.is_file()] == []
    await store.close()
    (folder / "ledgers" / "01").mkdir(exist_ok=True)
    stray = folder / "ledgers" / "01" / f"{0x501:016x}.ledger"
    stray.write_bytes(b"of a ledger that was deleted just before the end")
    store = await open_store(folder)
    assert not stray.exists()
    await store.close()


async def test_wal_files_are_recycled_not_gathered(tmp_path):
    folder = tmp_path / "data"
    store = await open_store(folder, wal_file_bytes=64 << 10, checkpoint_bytes=100 << 10)
    ledger = await store.create()
    for _ in range(300):
        await append(store, ledger, bytes(10_000))
    for _ in range(100):
        if len(list(folder.glob("wal/*"))) <= 6:
            break
        await asyncio.sleep(0.01)
    assert store.counters.checkpoints > 5
    assert len(list(folder.glob("wal/*"))) <= 6
    await store.close()


async def test_files_of_appends_that_ask_for_no_sync_are_recycled_too(tmp_path):
    """A minute may pass before they are synced; making files all that time costs ten times more."""

    class CountingDisk(SystemDisk):
        made = 0

        def open(self, path, flags):
            if flags & os.O_TRUNC and path.endswith(".wal"):
                self.made += 1
            return super().open(path, flags)

    disk = CountingDisk()
    settings = {"wal_file_bytes": 64 << 10, "checkpoint_bytes": 100 << 10, "disk": disk}
    store = await open_store(tmp_path / "data", **settings)
    ledger = await store.create()
    for _ in range(40):
        checkpoints = store.counters.checkpoints
        for _ in range(12):
            store.append(ledger, [bytes(10_000)], 10_000, 60_000)
            await asyncio.sleep(0)
        while store.counters.checkpoints == checkpoints:
            await asyncio.sleep(0.001)
    assert disk.made <= 40, "80 files were filled"
    await store.close()


async def test_a_closed_store_refuses_everything(tmp_path):
    store = await open_store(tmp_path / "data")
    ledger = await store.create()
    await store.close()
    await store.close()
    for call in (store.create(), store.read(ledger, 0, 1), store.delete(ledger)):
        with pytest.raises(LedgerUnknown, match="closed"):
            await call
    with pytest.raises(LedgerUnknown, match="closed"):
        store.append(ledger, [b"x"], 1, None)


async def test_foreign_files_among_the_ledgers_are_left_alone(tmp_path):
    store = await open_store(tmp_path / "data")
    ledger = await store.create()
    await append(store, ledger, b"content")
    await store.close()
    folders = [path for path in (tmp_path / "data").rglob("*") if path.is_dir()]
    foreign = [folder / name for folder in folders for name in (".DS_Store", "lost+found.txt")]
    for path in foreign:
        path.write_bytes(b"foreign")
    store = await open_store(tmp_path / "data")
    assert bytes(await store.read(ledger, 0, 7)) == b"content"
    await store.close()
    assert all(path.read_bytes() == b"foreign" for path in foreign)
