"""A small data folder with all kinds of contents, its expected contents, and a reader for both.

Invariants: the folder is created and opened by the broker's own parts (store, metadata, logs,
groups), without sockets. Its ledger files are on a ModelDisk, so that a damaged copy needs no disk;
the metadata's SQLite file is real.
"""

# ruff: noqa: SLF001 - inspects the store's private state

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.node import Node
from headrace.coordination.groups.commands import CommitCommand, OffsetToCommit
from headrace.errors import HeadraceError
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.sqlite import IDLE_MS as METADATA_IDLE_MS
from headrace.metadata.sqlite import SqliteMetadataStore
from headrace.metadata.store import ANY
from headrace.records.batch import read_header
from headrace.records.codec import Record, encode_batch
from headrace.runtime.randomness import SystemRandomness
from headrace.storage.files import FileLedgerStore
from headrace_verify.crash.model_disk import ROOT, Image, ModelDisk
from headrace_verify.crash.scenario import FixedSalt, abandon
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.store import MetadataEntry, MetadataStore

JOURNAL_TIMEOUT_S = 60
METADATA_FILES = ("metadata.sqlite", "metadata.sqlite-wal")
_GROUP = "verifiers"
_CONFIG = BrokerConfig(offsets_partition_count=1)


class SlowClock:
    """A fixed time, an hour after the epoch, so that runs do not depend on the date."""

    def now_ms(self) -> int:
        """See Clock."""
        return 3_600_000

    def now_ns(self) -> int:
        """See Clock."""
        return 0


class StoredBatch(NamedTuple):
    """An acknowledged batch."""

    data: bytes
    base_offset: int
    sequence: int
    """The WAL frame that made it durable, or an earlier one."""


class DataFolder:
    """The bytes of a folder, and what was acknowledged in it."""

    def __init__(self) -> None:
        self.image = Image([], {"": {}})
        self.metadata_files: dict[str, bytes] = {}
        self.facts: list[MetadataEntry] = []
        self.batches: dict[str, list[StoredBatch]] = {}
        """By partition, such as orders-0."""
        self.committed = -1
        """The group's committed offset in orders-0."""

    def files(self) -> dict[str, bytes]:
        """The bytes of every file, by path."""
        found = dict(self.metadata_files)
        for folder, names in self.image.names.items():
            for name, inode in names.items():
                found[f"{folder}/{name}".removeprefix("data/")] = self.image.inodes[inode]
        return found

    async def files_read(self) -> set[str]:
        """The paths that opening and reading the whole folder read, without the metadata's."""
        disk = ModelDisk(self.image)
        await read_folder(self, None, disk)
        return {
            f"{folder}/{name}".removeprefix("data/")
            for folder, names in self.image.names.items()
            for name, inode in names.items()
            if inode in disk.was_read
        }

    def with_file(self, path: str, content: bytes) -> DataFolder:
        """Return a copy in which one file has other contents."""
        copy = DataFolder()
        copy.__dict__.update(self.__dict__)
        if path in self.metadata_files:
            copy.metadata_files = {**self.metadata_files, path: content}
            return copy
        folder, _, name = f"data/{path}".rpartition("/")
        inodes = list(self.image.inodes)
        inodes[self.image.names[folder][name]] = content
        copy.image = Image(inodes, self.image.names)
        return copy


async def open_ledgers(disk: ModelDisk, wal_bytes: int, checkpoint_bytes: int) -> FileLedgerStore:
    """A store on a modelled disk."""
    return await FileLedgerStore.open(
        Path(ROOT),
        SlowClock(),
        wal_file_bytes=wal_bytes,
        checkpoint_bytes=checkpoint_bytes,
        retry_ms=1,
        disk=disk,
        randomness=FixedSalt(),
    )


def make_batch(seed: int, partition: str, number: int, scale: int = 1) -> bytes:
    """The self-describing batch `number` of a partition: it decides every byte.

    `scale` makes records larger, so that few batches fill a file.
    """
    rng = seeded(f"{seed} {partition} {number}")
    records = [
        Record(
            0,
            1_000 * number + at,
            b"%d" % number,
            rng.randbytes(scale * rng.choice((5, 60, 300))),
        )
        for at in range(rng.choice((1, 2, 5)))
    ]
    if number:
        return encode_batch(records)
    return encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=0)


async def append(node: Node, partition: PartitionLog, batch: bytes) -> int:
    """Append and wait until it is acknowledged; its base offset."""
    await partition.wait_loaded()
    header = read_header(batch)
    while (appended := partition.append(batch, header)) is None:
        ready = partition.ready
        if ready is not None:
            await ready.wait()
    await appended.completion.wait()
    return appended.base_offset


async def build(
    seed: int,
    folder: Path,
    *,
    turns: int,
    is_closed: bool,
    wal_bytes: int = 12 << 10,
    scale: int = 1,
) -> DataFolder:
    """Create a folder as a kill leaves it (or a clean stop, with `is_closed`)."""
    built = DataFolder()
    disk = ModelDisk()
    store = await open_ledgers(disk, wal_bytes, wal_bytes + (4 << 10))
    path = folder / METADATA_FILES[0]
    metadata = await SqliteMetadataStore.open(path, SlowClock())
    node = Node(_CONFIG, store, metadata, SlowClock(), SystemRandomness())
    await node.open()
    await node.topics.create("orders", 2, 1, {"segment.bytes": str(2_500 * scale)})
    await node.topics.create("payments", 1, 1, {})
    await node.topics.ensure_internal("__consumer_offsets")
    topics = (node.topics.get("orders"), node.topics.get("payments"))
    partitions = [log for topic in topics for _, log in topic.logs]
    for number in range(turns):
        for partition in partitions:
            batch = make_batch(seed, partition.name, number, scale)
            base_offset = await append(node, partition, batch)
            sequence = store._commit.written_sequence
            stored = bytes(await partition.reader.read(base_offset, 1))
            found = StoredBatch(stored, base_offset, sequence)
            built.batches.setdefault(partition.name, []).append(found)
        commit = OffsetToCommit("orders", 0, number)
        command = CommitCommand(_GROUP, -1, "", None, [commit])
        reply = await node.groups.submit(command)
        assert reply.results[0].error is None, reply
        built.committed = number
    # Whether a roll by size happens depends on timing, and every attack needs a sealed ledger.
    await partitions[0].roll_now()
    internal = node.topics.get("__consumer_offsets").require_log(0)
    data = bytes(await internal.reader.read(0, 1 << 30))
    sequence = store._commit.written_sequence
    built.batches[internal.name] = [StoredBatch(data, 0, sequence)]
    journal = folder / METADATA_FILES[1]
    async with asyncio.timeout(JOURNAL_TIMEOUT_S):
        while journal.stat().st_size:  # noqa: ASYNC110 - emptied once the metadata has been idle
            await asyncio.sleep(METADATA_IDLE_MS / 1000)
    await node.close()
    built.facts = list(await metadata.list("/"))
    if is_closed:
        await store.close()
        await metadata.close()
    else:
        await abandon(store)
    built.image = disk.image()
    for name in METADATA_FILES:
        if (folder / name).exists():
            built.metadata_files[name] = (folder / name).read_bytes()
    if not is_closed:
        await metadata.close()
    return built


class Found(NamedTuple):
    """What opening a (damaged) folder returned."""

    error: HeadraceError | None
    """Why nothing was served at all."""
    data: dict[str, bytes | HeadraceError]
    """By partition: everything it serves, or the error it reports."""
    notes: list[str]
    """Answers that contradict the served data."""

    def __repr__(self) -> str:
        # asyncio.run calls repr twice for each result: 10 ms for the whole folder's bytes.
        return f"Found({self.error!r}, {len(self.data)} partitions)"


async def read_folder(
    damaged: DataFolder, metadata_folder: Path | None, disk: ModelDisk | None = None
) -> Found:
    """Open the folder and read everything sequentially, by offset and by time.

    The metadata comes from `metadata_folder`'s SQLite file, which is rewritten, or (None) from the
    original facts. `disk` already has its image.
    """
    disk = disk or ModelDisk(damaged.image)
    metadata: MetadataStore
    try:
        store = await open_ledgers(disk, 12 << 10, 1 << 40)
    except HeadraceError as error:
        return Found(error, {}, [])
    try:
        try:
            if metadata_folder is None:
                metadata = await _remembered(damaged.facts)
            else:
                metadata = await _restored(damaged, metadata_folder)
        except HeadraceError as error:
            return Found(error, {}, [])
        node = Node(_CONFIG, store, metadata, SlowClock(), SystemRandomness())
        try:
            return await _read_everything(node, damaged)
        finally:
            await node.tasks.close()
            await metadata.close()
    finally:
        await abandon(store)


async def _remembered(facts: list[MetadataEntry]) -> MemoryMetadataStore:
    metadata = MemoryMetadataStore()
    for fact in facts:
        await metadata.put(fact.key, fact.value, ANY)
    return metadata


async def _restored(damaged: DataFolder, folder: Path) -> SqliteMetadataStore:
    _put_back(damaged, folder)
    return await SqliteMetadataStore.open(folder / METADATA_FILES[0], SlowClock())


def _put_back(damaged: DataFolder, folder: Path) -> None:
    for old in folder.glob("metadata.sqlite*"):
        old.unlink()
    for name, content in damaged.metadata_files.items():
        (folder / name).write_bytes(content)


async def _read_everything(node: Node, damaged: DataFolder) -> Found:
    found = Found(None, {}, [])
    try:
        await node.open()
    except HeadraceError as error:
        return Found(error, {}, [])
    for topic in node.topics.by_name.values():
        for _, partition in topic.logs:
            try:
                await partition.wait_loaded()
                found.data[partition.name] = await _read_all(node, partition)
            except HeadraceError as error:
                found.data[partition.name] = error
                continue
            batches = damaged.batches.get(partition.name, [])
            try:
                found.notes.extend(await _cross_check(node, partition, batches))
            except HeadraceError as error:
                found.data[partition.name] = error
    return found


async def _read_all(node: Node, partition: PartitionLog) -> bytes:
    parts: list[bytes] = []
    offset = partition.log_start_offset
    while offset < partition.high_watermark:
        data = bytes(await partition.reader.read(offset, 1 << 20))
        if not data:
            return b"".join(parts) + b" and nothing where records are expected"
        parts.append(data)
        at = 0
        while at < len(data):
            header = read_header(data, at)
            if header.base_offset != offset:
                return b"".join(parts) + b" and a gap"
            offset = header.last_offset + 1
            at += header.size
    return b"".join(parts)


async def _cross_check(
    node: Node, partition: PartitionLog, batches: list[StoredBatch]
) -> list[str]:
    """Look up single offsets and times: both must lead to the same batches."""
    wrong = []
    for batch in batches[:: max(1, len(batches) // 4)]:
        if batch.base_offset >= partition.high_watermark:
            continue
        data = bytes(await partition.reader.read(batch.base_offset, 1))
        if len(batches) > 1 and data != batch.data:
            wrong.append(f"{partition.name}: offset {batch.base_offset} returns another batch")
        header = read_header(batch.data)
        if len(batches) > 1:
            timed = await partition.reader.offset_of_time(header.first_timestamp_ms)
            if timed.offset != batch.base_offset:
                wrong.append(f"{partition.name}: time {header.first_timestamp_ms} returns {timed}")
    return wrong
