"""Attack: the disk fails under a running log: full, EIO, short and torn writes, slow syncs; kills.

How it works: three partitions over one store on a ModelDisk. Writers retry with *different* bytes
after a failure, so that failed data which reappears is detected. Readers read continuously, and
what was read once must stay. Between sessions the process dies.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from headrace.errors import HeadraceError, StorageUnavailable
from headrace.log.environment import Environment
from headrace.log.log_config import LogConfig
from headrace.log.partition_log import PartitionLog
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.records.batch import PLACEMENT, read_header
from headrace.records.codec import Record, encode_batch
from headrace.runtime.tasks import Tasks
from headrace.storage.files import segment_write_buffer, wal_sync
from headrace_verify.crash.data_folder import SlowClock, open_ledgers
from headrace_verify.crash.model_disk import ModelDisk
from headrace_verify.crash.scenario import abandon
from headrace_verify.rng import seeded
from headrace_verify.task import patched

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

    from headrace.storage.files import FileLedgerStore
    from headrace_verify.task import Task

PARTITIONS = 3
SESSIONS = 4
TURNS = 25
_TOPIC_ID = UUID(int=42)


class FailingDisk(ModelDisk):
    """A ModelDisk that fails at random, in the ways of real disks."""

    def __init__(self, rng: Random, *settings: Any) -> None:
        super().__init__(*settings)
        self._rng = rng
        self.share = 0.0
        """The fraction of operations that fail."""
        self.counts: dict[str, int] = {}

    def _draws(self, what: str) -> bool:
        if self._rng.random() >= self.share:
            return False
        self.counts[what] = self.counts.get(what, 0) + 1
        return True

    def pwrite(self, fd: int, data: Any, position: int, /) -> int:
        """See OpenFiles."""
        if self._draws("EIO on write"):
            raise OSError(errno.EIO, "injected")
        if self._draws("ENOSPC after a part"):
            super().pwrite(fd, bytes(data)[: self._rng.choice((0, 1, 30, 511))], position)
            raise OSError(errno.ENOSPC, "injected")
        if len(data) > 1 and self._draws("short writes"):
            return super().pwrite(fd, bytes(data)[: self._rng.randrange(1, len(data))], position)
        return super().pwrite(fd, data, position)

    def fdatasync(self, fd: int, /) -> None:
        """See OpenFiles."""
        if self._draws("EIO on sync"):
            raise OSError(errno.EIO, "injected")
        super().fdatasync(fd)


class _Sent(NamedTuple):
    batch: bytes
    base_offset: int
    """Where it was acknowledged; meaningless before."""


class _Truth:
    """The expected state of one partition."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acknowledged: list[_Sent] = []
        self.data = b""
        """The acknowledged batches, as they must be stored."""
        self.end_offset = 0
        self.attempts = 0
        self.maybe: list[bytes] = []
        """Attempts since the last acknowledgement: a crash may leave one of them, or none."""
        self.seen = b""
        """The end offset that a reader has read: it must stay."""

    def next_batch(self, seed: int) -> bytes:
        """Return a new batch for the same offset: each attempt has different bytes."""
        self.attempts += 1
        rng = seeded(f"{seed} {self.name} {self.attempts}")
        records = [
            Record(0, 1_000, None, rng.randbytes(rng.choice((3, 100, 900))))
            for _ in range(rng.choice((1, 2, 4)))
        ]
        batch = encode_batch(
            records, producer_id=9, producer_epoch=0, base_sequence=self.end_offset
        )
        self.maybe.append(batch)
        return batch

    def stored(self, batch: bytes) -> bytes:
        """Return the batch as it must be stored after the acknowledged ones."""
        header = read_header(batch)
        return PLACEMENT.pack(self.end_offset, header.length, 0) + batch[16:]

    def accept(self, batch: bytes) -> None:
        """Record that it was acknowledged, or restored by recovery."""
        self.data += self.stored(batch)
        self.acknowledged.append(_Sent(batch, self.end_offset))
        self.end_offset += read_header(batch).last_offset_delta + 1
        self.maybe.clear()


def run_faults(task: Task) -> None:
    """Run sessions on one modelled disk, each ended by a kill; then continue on another disk."""
    while task.has_time():
        seed = task.seed + task.runs
        inline_ns = -1 if seed % 2 else wal_sync.INLINE_SYNC_NS
        small_bytes = seeded(seed).choice((0, 600, segment_write_buffer.SMALL_BYTES))
        with (
            patched(wal_sync, "INLINE_SYNC_NS", inline_ns),
            patched(segment_write_buffer, "SMALL_BYTES", small_bytes),
            patched(segment_write_buffer, "RUN_BYTES_MAX", 2_000),
        ):
            try:
                wrong = asyncio.run(_life(task, seed))
            except (HeadraceError, AssertionError, OSError) as error:
                wrong = [f"the log did not survive a failing disk: {error!r}"]
        task.runs += 1
        for text in wrong:
            task.wrong(text, seed=seed)


async def _life(task: Task, seed: int) -> list[str]:
    rng = seeded(seed)
    truths = [_Truth(f"p-{number}") for number in range(PARTITIONS)]
    facts = MemoryMetadata()
    disk = FailingDisk(rng, None, 3 if seed % 2 else 0)
    wrong: list[str] = []
    for session in range(SESSIONS + 1):
        store = await open_ledgers(disk, 12 << 10, 16 << 10)
        tasks = Tasks()
        try:
            metadata = MemoryMetadataStore(facts)
            logs = await _load(Environment(store, metadata, SlowClock(), tasks))
            for log, truth in zip(logs, truths, strict=True):
                wrong += await _recovered(store, log, truth)
                task.checked += 1
            if wrong or session == SESSIONS:
                return wrong
            disk.share = rng.choice((0.0, 0.005, 0.02))
            writers = [
                _write(store, log, truth, seed) for log, truth in zip(logs, truths, strict=True)
            ]
            lists = await asyncio.gather(*writers)
            wrong += [text for found in lists for text in found]
        finally:
            disk.share = 0.0
            await _settle(tasks)
            await abandon(store)
            for what, count in disk.counts.items():
                task.add(what, count)
            disk.counts = {}
        task.add("acknowledgements", sum(len(truth.acknowledged) for truth in truths))
        if wrong:
            return wrong
        image = disk.image()
        disk = FailingDisk(rng, image, 3 if seed % 2 else 0)
    return wrong


async def _settle(tasks: Tasks) -> None:
    for _ in range(20):
        await asyncio.sleep(0)  # started appends have failed or ended
    await tasks.close()


async def _load(environment: Environment) -> list[PartitionLog]:
    config = LogConfig(segment_bytes=9_000)
    logs = [
        PartitionLog(f"p-{number}", _TOPIC_ID, number, config, environment)
        for number in range(PARTITIONS)
    ]
    for log in logs:
        log.load()
        assert log.ready is not None
        await log.ready.wait()
    return logs


async def _all(store: FileLedgerStore, log: PartitionLog) -> bytes:
    parts, offset = [], 0
    while offset < log.high_watermark:
        data = bytes(await log.reader.read(offset, 1 << 20))
        if not data:
            break
        parts.append(data)
        at = 0
        while at < len(data):
            header = read_header(data, at)
            offset = header.last_offset + 1
            at += header.size
    return b"".join(parts)


async def _recovered(store: FileLedgerStore, log: PartitionLog, truth: _Truth) -> list[str]:
    """Check after a kill: all acknowledged batches, and at most one complete batch more."""
    data = await _all(store, log)
    if not data.startswith(truth.data):
        return [f"{truth.name}: acknowledged bytes are missing or changed"]
    rest = data[len(truth.data) :]
    if rest:
        found = [batch for batch in truth.maybe if truth.stored(batch) == rest]
        if not found:
            return [f"{truth.name}: {len(rest)} bytes appeared that were not sent there"]
        truth.accept(found[0])
    truth.maybe.clear()
    if not data.startswith(truth.seen):
        return [f"{truth.name}: records that were read are missing"]
    if not truth.acknowledged:
        return []
    last = truth.acknowledged[-1]
    again = await _append(log, last.batch)
    if again != last.base_offset or log.end_offset != truth.end_offset:
        return [f"{truth.name}: a retry of an acknowledged batch was appended again at {again}"]
    return []


async def _append(log: PartitionLog, batch: bytes) -> int:
    """Append once the log is ready; returns the base offset. Raises StorageUnavailable."""
    header = read_header(batch)
    while True:
        appended = log.append(batch, header)
        if appended is not None:
            await appended.completion.wait()
            return appended.base_offset
        ready = log.ready
        if ready is not None:
            await ready.wait()


async def _write(store: FileLedgerStore, log: PartitionLog, truth: _Truth, seed: int) -> list[str]:
    for _ in range(TURNS):
        batch = truth.next_batch(seed)
        waiting = asyncio.ensure_future(_append(log, batch))
        while not waiting.done():
            await asyncio.sleep(0)
            try:
                data = await _all(store, log)
            except HeadraceError:
                continue
            if not data.startswith(truth.seen):
                waiting.cancel()
                return [f"{truth.name}: records that were read were revoked"]
            truth.seen = data
        try:
            offset = waiting.result()
        except StorageUnavailable:
            await asyncio.sleep(0.001)
            continue
        if offset != truth.end_offset:
            return [f"{truth.name}: offset {offset} was assigned, expected {truth.end_offset}"]
        truth.accept(batch)
    return []
