"""What a backup holds of a broker that goes on between two steps of the copying."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness

from headrace.administration import broker_backup as backup
from headrace.administration.backup_place import FolderPlace
from headrace.broker.broker_config import BrokerConfig
from headrace.coordination.groups.commands import (
    CommitCommand,
    FetchOffsetsCommand,
    OffsetToCommit,
)
from headrace.errors import Retriable
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.storage.files import FileLedgerStore
from headrace_verify.crash.data_folder import append, make_batch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

TOPIC, GROUP = "orders", "readers"


class Running(BrokerHarness):
    """A broker without sockets on a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(BrokerConfig(offsets_partition_count=1), clock=SystemClock())
        self.folder = folder
        self._number = 0

    async def open(self, **options: Any) -> Running:
        self.folder.mkdir(exist_ok=True)
        self.store = await FileLedgerStore.open(self.folder, self.clock, **options)
        path = self.folder / backup.METADATA
        self.metadata = await SqliteMetadataStore.open(path, self.clock)
        await self.start()
        await self.node.topics.ensure_internal("__consumer_offsets")
        return self

    async def close(self) -> None:
        await self.stop()
        await self.store.close()
        await self.metadata.close()

    async def produce(self, count: int, topic: str = TOPIC) -> int:
        """Append batches; the end of the log."""
        log = self.node.topics.get(topic).require_log(0)
        for _ in range(count):
            self._number += 1
            await append(self.node, log, make_batch(1, topic, self._number, scale=20))
        return log.high_watermark

    async def commit(self, offset: int) -> None:
        command = CommitCommand(GROUP, -1, "", None, [OffsetToCommit(TOPIC, 0, offset)])
        reply = await self.node.groups.submit(command)
        assert reply.results[0].error is None

    async def state(self) -> tuple[int, int]:
        """(end of the log, committed offset)."""
        log = self.node.topics.get(TOPIC).require_log(0)
        await log.wait_loaded()
        reply = await self.node.groups.submit(FetchOffsetsCommand(GROUP, [(TOPIC, 0)]))
        return log.high_watermark, reply.offsets[0].offset


async def backed_up(
    running: Running, target: Path, step: str, meanwhile: Callable[[], Awaitable[Any]], patch: Any
) -> int:
    """Back up, with the broker doing something `meanwhile`, once `step` has first ended; how often
    it ended."""
    loop, original, count = asyncio.get_running_loop(), getattr(backup, step), 0

    def done(source: Path, *copy: Path) -> Any:
        nonlocal count
        found = original(source, *copy)
        if step != "copy_file" or source.suffix == ".wal":
            count += 1
            if count == 1:
                asyncio.run_coroutine_threadsafe(meanwhile(), loop).result(60)
        return found

    patch.setattr(backup, step, done)
    await asyncio.to_thread(backup.back_up, running.folder, target, "1", 1)
    return count


async def restored(folder: Path) -> tuple[int, int]:
    running = await Running(folder).open()
    try:
        return await running.state()
    finally:
        await running.close()


async def test_a_partition_that_rolls_after_the_metadata_was_copied_ends_the_copy_there(
    tmp_path, monkeypatch
) -> None:
    running = await Running(tmp_path / "data").open()
    for topic in (TOPIC, "deleted"):
        await running.node.topics.create(topic, 1, 1, {})
    await running.commit(await running.produce(1))
    await running.produce(3, "deleted")
    before = await running.produce(4)
    await running.commit(before)
    # appends to ledgers that no chain names any more are no reason to end the copy
    await running.node.services.topics.delete("deleted")

    async def rolls() -> None:
        end = await running.produce(2)
        await running.commit(end)
        await running.node.topics.get(TOPIC).require_log(0).roll_now()
        await running.commit(await running.produce(3))

    target = tmp_path / "backup"
    try:
        attempts = await backed_up(running, target, "_copy_database", rolls, monkeypatch)
        assert attempts == 1, "not one that waits for a time without rolls"
        now, _ = await running.state()
    finally:
        await running.close()
    backup.restore(FolderPlace(target), tmp_path / "restored")
    end, committed = await restored(tmp_path / "restored")
    assert before <= end < now, "all that was acknowledged before, and not the next ledger"
    assert before <= committed <= end


async def test_a_ledger_that_is_deleted_before_the_metadata_is_copied_ends_no_copy(
    tmp_path, monkeypatch
) -> None:
    running = await Running(tmp_path / "data").open()
    await running.node.topics.create(TOPIC, 1, 1, {})
    await running.produce(4)

    async def deletes_and_rolls() -> None:
        await running.node.topics.create("brief", 1, 1, {})
        await running.produce(2, "brief")
        await running.node.services.topics.delete("brief")
        await running.node.topics.get(TOPIC).require_log(0).roll_now()
        await running.commit(await running.produce(3))

    target = tmp_path / "backup"
    try:
        attempts = await backed_up(running, target, "last_frame", deletes_and_rolls, monkeypatch)
        expected = await running.state()
    finally:
        await running.close()
    assert attempts == 1
    backup.restore(FolderPlace(target), tmp_path / "restored")
    assert await restored(tmp_path / "restored") == expected


async def test_a_log_whose_files_are_recycled_while_it_is_copied_is_copied_again(
    tmp_path, monkeypatch
) -> None:
    running = await Running(tmp_path / "data").open(wal_file_bytes=16 << 10)
    await running.node.topics.create(TOPIC, 1, 1, {})
    end = await running.produce(60)
    logs = sorted((tmp_path / "data" / "wal").glob("*.wal"))
    assert len(logs) >= 4

    async def restarts() -> None:
        await running.close()
        await running.open(wal_file_bytes=16 << 10)
        assert not logs[1].exists(), "a checkpoint covers it"

    try:
        await backed_up(running, tmp_path / "backup", "copy_file", restarts, monkeypatch)
    finally:
        await running.close()
    backup.restore(FolderPlace(tmp_path / "backup"), tmp_path / "restored")
    found, _ = await restored(tmp_path / "restored")
    assert found == end


def test_a_log_that_is_recycled_each_time_is_no_backup_and_not_called_damaged(
    tmp_path, monkeypatch
) -> None:
    async def main() -> None:
        running = await Running(tmp_path / "data").open()
        await running.close()

    asyncio.run(main())
    original = backup.copy_file

    def recycling(source: Path, copy: Path) -> Any:
        copied = original(source, copy)
        if source.suffix == ".wal":
            source.rename(source.with_name(f"{int(source.stem, 16) + 1:016x}.wal"))
        return copied

    (tmp_path / "data" / "wal" / f"{99:016x}.wal").write_bytes(bytes(512))
    monkeypatch.setattr(backup, "copy_file", recycling)
    with pytest.raises(Retriable, match="written to faster than its log can be copied; no backup"):
        backup.back_up(tmp_path / "data", tmp_path / "backup", "1", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
