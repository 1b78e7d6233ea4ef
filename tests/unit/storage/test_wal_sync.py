"""The WAL is synced by the loop if a caller waits and the disk is quick, else by a thread."""

from __future__ import annotations

import asyncio
import threading

from headrace.runtime.clock import SystemClock
from headrace.runtime.disk import SystemDisk
from headrace.storage.files import FileLedgerStore


class Disk(SystemDisk):
    """Notes in which thread each WAL file is synced."""

    def __init__(self):
        self.wal_fds = set()
        self.threads_seen = []

    def open(self, path, flags):
        fd = super().open(path, flags)
        if path.endswith(".wal"):
            self.wal_fds.add(fd)
        return fd

    def fdatasync(self, fd):
        if fd in self.wal_fds:
            self.threads_seen.append(threading.current_thread().name)
        SystemDisk.fdatasync(fd)


async def test_a_sync_that_no_append_waits_for_leaves_the_loop_free(tmp_path):
    disk = Disk()
    store = await FileLedgerStore.open(tmp_path / "data", SystemClock(), disk=disk)
    ledger = await store.create()
    for _ in range(3):
        disk.threads_seen.clear()
        _, completion = store.append(ledger, [b"data"], 4, 1)
        await completion.wait()
        while not any(name.startswith("headrace-sync") for name in disk.threads_seen):
            assert threading.current_thread().name not in disk.threads_seen
            await asyncio.sleep(0.001)
    await store.close()
