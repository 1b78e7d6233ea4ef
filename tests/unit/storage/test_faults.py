"""Disks that refuse: EIO, ENOSPC, short writes. What failed leaves no trace, readers go on."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import DataCorrupt, StorageUnavailable
from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.storage.files import FileLedgerStore, segment_write_buffer, wal_sync

if TYPE_CHECKING:
    from pathlib import Path


class FaultyDisk(SystemDisk):
    """The machine's disk, with faults: `fault(action, path)` may raise or cut a write short."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self.fault: Any = lambda action, path: None
        self.syncs: list[str] = []

    def open(self, path: str, flags: int, /) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: Any, position: int, /) -> int:
        limit = self.fault("write", self._paths[fd])
        return os.pwrite(fd, data if limit is None else memoryview(data)[:limit], position)

    def pwritev(self, fd: int, parts: Any, position: int, /) -> int:
        limit = self.fault("write", self._paths[fd])
        if limit is None:
            return os.pwritev(fd, parts, position)
        return os.pwrite(fd, b"".join(parts)[:limit], position)

    def fdatasync(self, fd: int, /) -> None:
        self.syncs.append(self._paths[fd])
        self.fault("sync", self._paths[fd])
        os.fdatasync(fd)

    def write_back(self, fd: int, position: int, size: int, /) -> None:
        self.fault("write back", self._paths[fd])
        super().write_back(fd, position, size)

    def allocate(self, fd: int, size: int, /) -> None:
        self.fault("allocate", self._paths[fd])
        super().allocate(fd, size)

    def sync_folder(self, path: str, /) -> None:
        self.fault("sync folder", path)
        super().sync_folder(path)

    def rename(self, old: str, new: str, /) -> None:
        self.fault("rename", old)
        super().rename(old, new)

    def unlink(self, path: str, /) -> None:
        self.fault("unlink", path)
        super().unlink(path)

    def pread(self, fd: int, size: int, position: int, /) -> bytes:
        limit = self.fault("read", self._paths[fd])
        return os.pread(fd, size if limit is None else min(size, limit), position)


def raising(number: int, action: str, ending: str, times: int = 1 << 30) -> Any:
    left = times

    def fault(done: str, path: str) -> None:
        nonlocal left
        if done == action and path.endswith(ending) and left > 0:
            left -= 1
            raise OSError(number, os.strerror(number), path)

    return fault


async def open_store(folder: Path, disk: Any = None, **settings: Any) -> FileLedgerStore:
    settings = {"wal_file_bytes": 1 << 20, "retry_ms": 5, **settings}
    return await FileLedgerStore.open(folder, SystemClock(), disk=disk, **settings)


async def append(store: FileLedgerStore, ledger: Any, data: bytes, flush_ms: Any = None) -> int:
    position, completion = store.append(ledger, [data], len(data), flush_ms)
    await completion.wait()
    return position


async def append_at_last(store: FileLedgerStore, ledger: Any, data: bytes) -> int:
    """Try until the outage is over."""
    for _ in range(2_000):
        try:
            return await append(store, ledger, data)
        except StorageUnavailable:
            await asyncio.sleep(0.001)
    raise AssertionError("the outage never ended")


async def content(store: FileLedgerStore, ledger: Any) -> bytes:
    return bytes(await store.read(ledger, 0, 1 << 30))


@pytest.fixture(params=["inline", "thread"])
def sync_way(request, monkeypatch):
    if request.param == "thread":
        monkeypatch.setattr(wal_sync, "INLINE_SYNC_NS", -1)
    return request.param


@pytest.mark.usefixtures("sync_way")
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_failed_sync_fails_the_group_and_is_never_repeated(tmp_path, number):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk)
    ledger = await store.create()
    assert await append(store, ledger, b"safe ") == 0
    # Not one that is just being made to follow it: those are synced, too.
    failed_path = str(min((tmp_path / "data" / "wal").glob("*.wal")))
    disk.fault = raising(number, "sync", failed_path, times=1)
    disk.syncs.clear()
    _, first = store.append(ledger, [b"lost"], 4, None)
    _, second = store.append(ledger, [b"lost too"], 8, None)
    with pytest.raises(StorageUnavailable, match="try again"):
        await first.wait()
    assert second.error is not None
    assert await content(store, ledger) == b"safe "
    assert store.list()[0].end == 5
    assert await append_at_last(store, ledger, b"sound") == 5
    assert disk.syncs.count(failed_path) == 1, "a failed sync was tried again"
    await store._tasks.close()  # as killed
    store._release()
    store = await open_store(tmp_path / "data")
    assert await content(store, ledger) == b"safe sound"
    await store.close()


@pytest.fixture
def _written_at_once(monkeypatch):
    """However small an append is, its segment gets it in its turn."""
    monkeypatch.setattr(segment_write_buffer, "SMALL_BYTES", 0)


@pytest.mark.usefixtures("sync_way", "_written_at_once")
@pytest.mark.parametrize("ending", [".wal", ".ledger"])
@pytest.mark.parametrize("limit", [None, 1, 30])
def test_a_write_that_stops_halfway_leaves_no_trace(tmp_path, ending, limit):
    async def main() -> None:
        disk = FaultyDisk()
        store = await open_store(tmp_path / "data", disk)
        ledger, other = await store.create(), await store.create()
        await append(store, ledger, b"safe ")
        calls = 0

        def fault(action: str, path: str) -> int | None:
            nonlocal calls
            if action == "write" and path.endswith(ending):
                calls += 1
                if calls > 1 or limit is None:
                    raise OSError(errno.ENOSPC, "no space", path)
                return limit
            return None

        disk.fault = fault
        _, completion = store.append(ledger, [b"lost" * 20], 80, None)
        store.append(other, [b"of the same group"], 17, None)
        with pytest.raises(StorageUnavailable):
            await completion.wait()
        assert await content(store, ledger) == b"safe "
        assert await content(store, other) == b""
        with pytest.raises(StorageUnavailable):
            await append(store, ledger, b"lost again")
        disk.fault = lambda action, path: None
        assert await append_at_last(store, ledger, b"sound") == 5
        assert await append_at_last(store, other, b"x") == 0
        await store._tasks.close()
        store._release()
        store = await open_store(tmp_path / "data")
        assert await content(store, ledger) == b"safe sound"
        assert await content(store, other) == b"x"
        await store.close()

    asyncio.run(main())


async def test_short_writes_are_finished(tmp_path):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk)
    ledger = await store.create()
    disk.fault = lambda action, path: 100 if action == "write" else None
    data = bytes(range(256)) * 300
    await append(store, ledger, data[:1_000])
    await append(store, ledger, data[1_000:])
    disk.fault = lambda action, path: 1_000 if action == "read" else None
    assert await content(store, ledger) == data
    await store.close()
    store = await open_store(tmp_path / "data")
    assert await content(store, ledger) == data
    await store.close()


async def test_during_an_outage_appends_fail_at_once_and_readers_go_on(tmp_path):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk, retry_ms=60_000)
    ledger = await store.create()
    await append(store, ledger, b"safe")
    disk.fault = raising(errno.EIO, "sync", "")
    with pytest.raises(StorageUnavailable):
        await append(store, ledger, b"lost")
    for _ in range(3):
        await asyncio.sleep(0.01)
        _, completion = store.append(ledger, [b"no"], 2, 100)
        assert completion.done
        assert isinstance(completion.error, StorageUnavailable)
    for call in (store.create(), store.seal(ledger, b""), store.delete(ledger)):
        with pytest.raises(StorageUnavailable):
            await call
    assert bytes(store.read_cached(ledger, 0, 100) or b"") == b"safe"
    assert await content(store, ledger) == b"safe"
    assert not store.list()[0].is_sealed
    await store.close()
    store = await open_store(tmp_path / "data")
    assert await content(store, ledger) == b"safe"
    await append(store, ledger, b" and sound")
    await store.close()


async def test_an_outage_ends_though_the_name_of_the_next_log_was_not_synced_at_first(tmp_path):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk)
    ledger = await store.create()
    await append(store, ledger, b"safe ")
    await spare_is_made(store)
    faults = [
        raising(errno.EIO, "sync", ".wal", times=1),
        raising(errno.EIO, "sync folder", "/wal", times=2),
    ]

    def fail(action: str, path: str) -> None:
        for fault in faults:
            fault(action, path)

    disk.fault = fail
    with pytest.raises(StorageUnavailable):
        await append(store, ledger, b"lost")
    assert await append_at_last(store, ledger, b"sound") == 5
    await store.close()
    store = await open_store(tmp_path / "data")
    assert await content(store, ledger) == b"safe sound"
    await store.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="it takes Linux's /proc")
@pytest.mark.parametrize("actions", [("rename",), ("rename", "unlink"), ("sync folder", "unlink")])
async def test_log_files_that_cannot_be_used_again_are_released_one_by_one(tmp_path, actions):
    """One that fails must not affect those after it: descriptors and room would be lost."""

    disk = FaultyDisk()
    settings = {"wal_file_bytes": 64 << 10, "checkpoint_bytes": 300 << 10}
    store = await open_store(tmp_path / "data", disk, **settings)
    ledger = await store.create()
    await append(store, ledger, b"x")
    await spare_is_made(store)
    left = dict.fromkeys(actions, 2)

    def fail(action: str, path: str) -> None:
        is_begun = store.counters.checkpoints > 1  # what is made before has other ways out
        if is_begun and left.get(action, 0) and path.endswith((".wal", "/wal")):
            left[action] -= 1
            raise OSError(errno.EIO, "no", path)

    disk.fault = fail
    for _ in range(200):
        await append_at_last(store, ledger, bytes(10_000))
    assert left[actions[0]] == 0
    for _ in range(1_000):
        if len(open_logs(tmp_path)) <= 12:
            break
        await asyncio.sleep(0.01)
    assert len(open_logs(tmp_path)) <= 12
    assert len(list(tmp_path.glob("data/wal/*"))) <= 12 + 2 * len(actions)
    disk.fault = lambda action, path: None
    await store.close()
    assert open_logs(tmp_path) == []


def open_logs(folder: Path) -> list[str]:
    """The log files below `folder` that this process has open, those that were removed too."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue
    return [link for link in links if link.startswith(str(folder)) and ".wal" in link]


async def spare_is_made(store: FileLedgerStore) -> None:
    """Until the next WAL file is there: making it syncs it, too, and would meet the fault."""
    while not store._maintenance._wal.spares:
        await asyncio.sleep(0.005)


async def test_a_failed_seal_or_delete_leaves_the_ledger_open(tmp_path):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk)
    ledger = await store.create()
    for call in (lambda: store.seal(ledger, b"f"), lambda: store.delete(ledger)):
        await spare_is_made(store)
        disk.fault = raising(errno.EIO, "sync", ".wal", times=1)
        with pytest.raises(StorageUnavailable):
            await call()
        disk.fault = lambda action, path: None
        await append_at_last(store, ledger, b"x")
    await store.seal(ledger, b"f")
    await spare_is_made(store)
    disk.fault = raising(errno.EIO, "sync", ".wal", times=1)
    with pytest.raises(StorageUnavailable):
        await store.delete(ledger)
    assert store.list()[0].is_sealed
    assert await content(store, ledger) == b"xx"
    await store.close()


async def test_the_disk_begins_with_all_segments_before_one_is_waited_for(tmp_path):
    """A sync of one file after the other would leave a disk idle between them."""

    done: list[tuple[str, str]] = []

    class Noting(FaultyDisk):
        def begin_sync(self, fd: int, /) -> None:
            done.append(("begin", self._paths[fd]))
            super().begin_sync(fd)

        def fdatasync(self, fd: int, /) -> None:
            done.append(("sync", self._paths[fd]))
            super().fdatasync(fd)

    store = await open_store(tmp_path / "data", Noting())
    ledgers = [await store.create() for _ in range(80)]
    for ledger in ledgers:
        await append(store, ledger, b"x" * 5_000)
    done.clear()
    await store._maintenance.checkpoint()
    kinds = [kind for kind, path in done if path.endswith(".ledger")]
    assert kinds == ["begin"] * 64 + ["sync"] * 64 + ["begin"] * 16 + ["sync"] * 16
    await store.close()


def test_a_checkpoint_hands_the_disk_a_few_megabytes_at_a_time(tmp_path):
    """A sync of the write-ahead log waits for everything that the disk was given before it."""

    async def main() -> None:
        under_way, most = 0, 0
        written: dict[str, int] = {}

        class Noting(FaultyDisk):
            def write_back(self, fd: int, position: int, size: int, /) -> None:
                nonlocal under_way, most
                super().write_back(fd, position, size)
                path = self._paths[fd]
                begun = position + size - written.get(path, 0)
                written[path] = position + size
                under_way = begun  # what was begun before it is written
                most = max(most, under_way)

            def begin_sync(self, fd: int, /) -> None:
                nonlocal under_way, most
                path = self._paths[fd]
                size = os.stat(path).st_size
                under_way += size - written.get(path, 0)
                written[path] = size
                most = max(most, under_way)

            def fdatasync(self, fd: int, /) -> None:
                nonlocal under_way
                super().fdatasync(fd)
                if self._paths[fd].endswith(".ledger"):
                    under_way = 0

        store = await open_store(tmp_path / "data", Noting())
        ledgers = [await store.create() for _ in range(12)]
        for turn in range(2):
            for number, ledger in enumerate(ledgers):
                for _ in range(10 if number == 5 else 1):
                    await append(store, ledger, bytes(3_000_000))
            most = 0
            await store._maintenance.checkpoint()
            assert 4_000_000 < most <= 8 * 1024 * 1024, turn
            assert len(written) == 12
            assert all(
                size
                == (turn + 1)
                * 3_000_000
                * (10 if path.endswith(f"{ledgers[5]:016x}.ledger") else 1)
                for path, size in written.items()
            )
        await store.close()

    asyncio.run(main())


def test_a_segment_whose_sync_failed_is_written_again_before_it_is_trusted(tmp_path):
    """The disk drops what a failed sync should have written, as a kernel may."""

    async def main() -> None:
        disk = FaultyDisk()
        folder = tmp_path / "data"
        store = await open_store(folder, disk, checkpoint_bytes=20_000)
        ledger = await store.create()
        failures = 0

        def fault(action: str, path: str) -> None:
            nonlocal failures
            if action == "sync" and path.endswith(".ledger") and failures < 2:
                failures += 1
                size = os.stat(path).st_size
                with open(path, "r+b") as file:
                    file.write(bytes(size))
                raise OSError(errno.EIO, "dropped", path)

        disk.fault = fault
        data = bytes(range(1, 251)) * 40
        for _ in range(5):
            await append_at_last(store, ledger, data)
        checkpoints = store.counters.checkpoints
        for _ in range(1_000):
            if store.counters.checkpoints > checkpoints:
                break
            await asyncio.sleep(0.002)
        assert failures == 2
        assert store.counters.checkpoints > checkpoints
        assert await content(store, ledger) == data * 5
        await store.close()

    asyncio.run(main())


@pytest.mark.usefixtures("_written_at_once")
async def test_a_read_that_fails_says_so(tmp_path):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk)
    ledger = await store.create()
    await append(store, ledger, b"abc")
    disk.fault = raising(errno.EIO, "read", ".ledger")
    with pytest.raises(StorageUnavailable, match="ledger 1 at 0"):
        await store.read(ledger, 0, 3)
    disk.fault = lambda action, path: 0 if action == "read" else None
    with pytest.raises(DataCorrupt):
        await store.read(ledger, 0, 3)
    disk.fault = lambda action, path: None
    assert await content(store, ledger) == b"abc"
    await store.close()


async def test_a_folder_on_a_full_disk_opens_for_reading(tmp_path):
    folder = tmp_path / "data"
    store = await open_store(folder)
    ledger = await store.create()
    await append(store, ledger, b"safe")
    await store.close()
    for file in (folder / "wal").iterdir():
        file.unlink()
    disk = FaultyDisk()
    disk.fault = raising(errno.ENOSPC, "allocate", ".wal")
    store = await open_store(folder, disk)
    assert await content(store, ledger) == b"safe"
    with pytest.raises(StorageUnavailable):
        await append(store, ledger, b"no")
    disk.fault = lambda action, path: None
    assert await append_at_last(store, ledger, b" again") == 4
    await store.close()


async def test_the_readable_end_never_moves_back(tmp_path, monkeypatch):
    """An older group that is acknowledged late takes nothing back from a newer one."""
    monkeypatch.setattr(wal_sync, "INLINE_SYNC_NS", -1)

    store = await open_store(tmp_path / "data")
    came_up = False
    for _ in range(100):  # a sync that is very quick takes the order away
        quick, synced = await store.create(), await store.create()
        _, older = store.append(synced, [b"s"], 1, None)
        store.append(quick, [b"one"], 3, 60_000)
        await asyncio.sleep(0)
        _, newer = store.append(quick, [b"two"], 3, 60_000)
        await newer.wait()
        came_up = not older.done
        await older.wait()
        assert bytes(store.read_cached(quick, 0, 100) or b"") == b"onetwo"
        if came_up:
            break
    await store.close()
    assert came_up, "the order that this test is about did not come up"


async def test_unsynced_appends_are_synced_within_their_delay(tmp_path):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk)
    ledger = await store.create()
    await asyncio.sleep(0.05)
    disk.syncs.clear()
    await append(store, ledger, b"x", 60_000)
    assert disk.syncs == []
    await append(store, ledger, b"x", 20)
    assert disk.syncs == []
    while not disk.syncs:
        await asyncio.sleep(0.005)
    assert len(disk.syncs) == 1
    await store.close()


FULL_DISK = """
import asyncio, sys
from pathlib import Path
from headrace.errors import StorageUnavailable
from headrace.runtime.clock import SystemClock
from headrace.storage.files import FileLedgerStore

async def main():
    folder = Path(sys.argv[1])
    settings = dict(wal_file_bytes=64 << 10, checkpoint_bytes=100 << 10, retry_ms=5)
    store = await FileLedgerStore.open(folder / "data", SystemClock(), **settings)
    ledgers = [await store.create() for _ in range(3)]
    kept = {ledger: b"" for ledger in ledgers}
    refused = 0
    for turn in range(4000):
        ledger = ledgers[turn % 3]
        data = bytes([turn % 256]) * 1500
        _, completion = store.append(ledger, [data], len(data), None)
        try:
            await completion.wait()
            kept[ledger] += data
        except StorageUnavailable:
            refused += 1
            await asyncio.sleep(0.001)
        if refused > 50:
            break
    assert refused > 50, "the disk never became full"
    for ledger in ledgers:
        assert await store.read(ledger, 0, 1 << 30) == kept[ledger], "readers work"
    await asyncio.sleep(0.05)
    # Room comes back: deleting needs a little of it itself, so a foreign file goes first.
    (folder / "ballast").unlink()
    for _ in range(500):
        try:
            await store.delete(ledgers[0])
            break
        except StorageUnavailable:
            await asyncio.sleep(0.01)
    else:
        raise AssertionError("the outage never ended")
    _, completion = store.append(ledgers[1], [b"again"], 5, None)
    await completion.wait()
    kept[ledgers[1]] += b"again"
    await store.close()
    store = await FileLedgerStore.open(folder / "data", SystemClock(), **settings)
    for ledger in ledgers[1:]:
        assert await store.read(ledger, 0, 1 << 30) == kept[ledger]
    await store.close()
    print("held")

asyncio.run(main())
"""


def test_a_really_full_disk(tmp_path):
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size=2m none {tmp_path}"
    if (
        unshare is None
        or subprocess.run([unshare, "-Urm", "sh", "-c", mount], check=False).returncode
    ):
        pytest.skip("no user namespaces here: full disks are tested with injected errors alone")
    script = tmp_path.parent / f"{tmp_path.name}-full-disk.py"
    script.write_text(FULL_DISK)
    command = (
        f"{mount} && head -c 300000 /dev/zero > {tmp_path}/ballast && "
        f"exec {sys.executable} {script} {tmp_path}"
    )
    done = subprocess.run(
        [unshare, "-Urm", "sh", "-c", command], check=False, capture_output=True, text=True
    )
    assert done.stdout.strip() == "held", done.stderr


async def _in_bulk(writer: Any, data: bytes) -> None:
    await writer.write([data], len(data)).wait()
    await writer.finish()


@pytest.mark.parametrize("action", ["write", "write back", "sync", "sync folder"])
async def test_a_bulk_that_failed_leaves_the_ledger_without_bytes(tmp_path, action):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk)
    before, ledger = await store.create(), await store.create()
    await append(store, before, b"before")
    writer = store.bulk_writer(ledger)
    disk.fault = raising(errno.EIO, action, "02" if action == "sync folder" else ".ledger")
    with pytest.raises(StorageUnavailable):
        await _in_bulk(writer, b"bytes")
    disk.fault = lambda action, path: None
    with pytest.raises(StorageUnavailable):  # no later sync vouches for what one has lost
        await writer.finish()
    writer.close()
    assert await append(store, before, b"after") == 6, "others go on"
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    await store.close()
    for folder in ("killed", "data"):
        store = await open_store(tmp_path / folder)
        assert await content(store, before) == b"beforeafter"
        assert await content(store, ledger) == b""
        await store.close()


async def test_a_bulk_whose_length_was_not_stored_leaves_the_ledger_without_bytes(tmp_path):
    disk = FaultyDisk()
    store = await open_store(tmp_path / "data", disk)
    ledger = await store.create()
    writer = store.bulk_writer(ledger)
    await writer.write([b"bytes"], 5).wait()
    disk.fault = raising(errno.EIO, "sync", ".wal")
    with pytest.raises(StorageUnavailable):
        await writer.finish()
    writer.close()
    disk.fault = lambda action, path: None
    assert await append_at_last(store, ledger, b"other") == 0
    await store.close()
    store = await open_store(tmp_path / "data")
    assert await content(store, ledger) == b"other"
    await store.close()


async def test_a_bulk_survives_a_crash_before_the_next_checkpoint_or_is_quarantined(tmp_path):
    store = await open_store(tmp_path / "data")
    ledgers = [await store.create(), await store.create()]
    for ledger in ledgers:
        writer = store.bulk_writer(ledger)
        await _in_bulk(writer, b"bytes")
        writer.close()
    shutil.copytree(tmp_path / "data", tmp_path / "killed")
    await store.close()
    short = tmp_path / "killed" / "ledgers" / "02" / f"{2:016x}.ledger"
    short.write_bytes(b"byte")
    store = await open_store(tmp_path / "killed")
    assert await content(store, ledgers[0]) == b"bytes"
    with pytest.raises(DataCorrupt):
        await content(store, ledgers[1])
    await store.close()
