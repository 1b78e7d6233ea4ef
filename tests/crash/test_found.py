"""What `headrace verify crash` has found, each held down by a test of its own."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, Future
from functools import partial

import pytest
from crc32c import crc32c
from tests.kit.broker import BrokerHarness, running
from tests.waiting import until

from headrace.coordination.groups.commands import (
    CommitCommand,
    FetchOffsetsCommand,
    OffsetToCommit,
)
from headrace.errors import DataCorrupt, StorageUnavailable
from headrace.log.environment import Environment
from headrace.metadata.memory import MemoryMetadata, MemoryMetadataStore
from headrace.records.batch import read_header
from headrace.records.codec import Record, encode_batch
from headrace.runtime.tasks import Tasks
from headrace_verify.crash import faults
from headrace_verify.crash.broker_scenario import batches_in
from headrace_verify.crash.damage import verdict
from headrace_verify.crash.data_folder import SlowClock, build, open_ledgers
from headrace_verify.crash.exploration import NEW_DISK
from headrace_verify.crash.model_disk import ModelDisk
from headrace_verify.crash.power_loss import PowerLoss
from headrace_verify.crash.scenario import abandon
from headrace_verify.rng import seeded
from headrace_verify.task import Task


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("closed")
    return asyncio.run(build(2, folder, turns=6, is_closed=True))


def after_power_loss(disk):
    """What is left of it: what was synced, and nothing else."""
    loss = PowerLoss(NEW_DISK, "posix-strict")
    for operation in disk.operations:
        loss.step(operation)
    (state,) = loss.states(seeded(1), ("none",))
    return state


def flipped(folder, path, byte, bit):
    content = bytearray(folder.files()[path])
    content[byte] ^= 1 << bit
    return folder.with_file(path, bytes(content))


@pytest.mark.parametrize("byte", [0, 7, 8, 9, 11, 12, 15, 16])
def test_damage_to_what_a_batchs_checksum_leaves_out_is_reported(closed, byte):
    """Base offset, length, leader epoch and magic lie before what Kafka's CRC covers."""
    for path in closed.files():
        if path.endswith(".ledger"):
            for bit in range(byte % 2, 8, 2):
                assert verdict(closed, flipped(closed, path, byte, bit), None)[0] == "reported"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_length_that_grew_is_reported_at_the_end_of_a_sealed_ledger_too(tmp_path, seed):
    """There the batch looks cut, and what looks cut was served without a look at its CRC."""
    closed = asyncio.run(build(seed, tmp_path, turns=8, is_closed=True))
    for path, content in closed.files().items():
        if path.endswith(".ledger"):
            last = [at for at, _header in batches_in(content)][-1]
            for bit in range(seed, 24, 3):
                damaged = flipped(closed, path, last + 8 + bit // 8, bit % 8)
                assert verdict(closed, damaged, None)[0] == "reported", (path, bit)


def test_damaged_metadata_loses_no_topic_in_silence(closed, tmp_path):
    size = len(closed.files()["metadata.sqlite"])
    kinds = {
        verdict(closed, flipped(closed, "metadata.sqlite", at, at % 8), tmp_path)
        for at in range(0, size, 97)
    }
    assert {kind for kind, _what in kinds} <= {"exact", "reported"}


def test_a_ledger_that_ends_before_its_chain_says_is_reported(tmp_path):
    folder = asyncio.run(build(2, tmp_path, turns=120, is_closed=True))
    path = next(path for path in sorted(folder.files()) if path.endswith(".footer"))
    path = path.replace(".footer", ".ledger")
    content = folder.files()[path]
    row = folder.files()["checkpoint"]
    shorter = len(content) - 500
    at = row.index(len(content).to_bytes(8, "little"))
    changed = row[:at] + shorter.to_bytes(8, "little") + row[at + 8 :]
    crc = crc32c(changed[8:]).to_bytes(4, "little")
    damaged = folder.with_file(path, content[:shorter])
    damaged = damaged.with_file("checkpoint", changed[:4] + crc + changed[8:])
    assert verdict(folder, damaged, None)[0] == "reported"


def test_a_counter_that_is_gone_from_the_metadata_is_reported(closed, tmp_path):
    """Its name changed in place: SQLite finds the file in order, and the row no more."""
    content = closed.files()["metadata.sqlite"]
    for name in (b"sequence", b"session"):
        at = content.rindex(name)
        kind, what = verdict(closed, flipped(closed, "metadata.sqlite", at + 3, 2), tmp_path)
        assert kind in {"exact", "reported"}, what


def test_which_files_are_read_is_known_so_that_flips_in_others_need_no_run(closed):
    """`flips --all` leaves out what is not read: after a clean stop, the WAL."""
    read = asyncio.run(closed.files_read())
    assert {path for path in closed.files() if path not in read} == {
        "lock",
        "metadata.sqlite",  # opened by SQLite, and always flipped
        *(path for path in closed.files() if path.endswith(".wal")),
    }
    assert "checkpoint" in read


def test_sqlites_journal_is_empty_while_nothing_is_written(tmp_path):
    """A damaged journal ends for SQLite where the damage is: what follows would be undone."""
    folder = asyncio.run(build(2, tmp_path, turns=2, is_closed=False))
    assert folder.files().get("metadata.sqlite-wal", b"") == b""


async def test_a_failed_seal_takes_no_producer_from_the_next_start(monkeypatch):
    disk = ModelDisk()
    store = await open_ledgers(disk, 12 << 10, 1 << 20)
    seal, failures = store.seal, [1]

    async def fail_once(*arguments):
        if failures:
            failures.pop()
            raise StorageUnavailable("injected")
        await seal(*arguments)

    monkeypatch.setattr(store, "seal", fail_once)
    facts = MemoryMetadata()
    tasks = Tasks()
    metadata = MemoryMetadataStore(facts)
    log = (await faults._load(Environment(store, metadata, SlowClock(), tasks)))[0]
    number = -1
    while len(log.segments) < 3 and number < 60:
        number += 1
        record = Record(0, 1_000, None, bytes(1_000))
        batch = encode_batch([record], producer_id=9, producer_epoch=0, base_sequence=number)
        assert await faults._append(log, batch) == number
        await asyncio.sleep(0)
    await faults._settle(tasks)
    assert len(log.segments) == 3, "two rolls, the first seal failed; the last ledger is empty"
    await abandon(store)
    store = await open_ledgers(ModelDisk(disk.image()), 12 << 10, 1 << 20)
    tasks = Tasks()
    metadata = MemoryMetadataStore(facts)
    log = (await faults._load(Environment(store, metadata, SlowClock(), tasks)))[0]
    assert log.producers.check(read_header(batch)) is not None
    await tasks.close()
    await abandon(store)


@pytest.mark.parametrize("seed", [4, 9, 11, 51])
def test_a_ledger_prepared_while_appends_may_fail_begins_where_they_end(tmp_path, seed):
    """By name the lives of a log that brought it up, and the failed seal."""
    task = Task("faults", seed, 60, tmp_path, runs_max=1)
    faults.run_faults(task)
    assert task.violations == []


async def test_writing_a_segment_again_leaves_alone_what_the_checkpoint_vouches_for():
    """Those bytes may be gone from the WAL: a loss of power in the midst of it took them along."""

    disk = ModelDisk()
    store = await open_ledgers(disk, 64 << 10, 1 << 20)
    maintenance = store._maintenance
    ledger = await store.create()
    # Readable, but no sync of the WAL has covered it: the checkpoint covers it by its length.
    store.append(ledger, [bytes(1_000)], 1_000, 60_000)
    await asyncio.sleep(0)
    await maintenance._write_checkpoint(maintenance._wal.number)
    store.append(ledger, [bytes(500)], 500, 60_000)
    await asyncio.sleep(0)
    store._ledgers[ledger].must_rewrite = True
    begun_at = len(disk.operations)
    await maintenance._write_checkpoint(maintenance._wal.number)
    inode = disk.names[f"data/ledgers/{ledger & 0xFF:02x}"][f"{ledger:016x}.ledger"]
    writes = [op for op in disk.operations[begun_at:] if op[:2] == ("write", inode)]
    assert {(at, len(data)) for _, _, at, data in writes} == {(1_000, 500)}
    await abandon(store)


async def test_a_topic_made_again_after_a_deletion_that_a_crash_cut_short_has_no_progress(
    monkeypatch,
):
    """Groups forget a deleted topic after its deletion; a crash may come between the two."""

    async def committed(node):
        command = FetchOffsetsCommand("g", [("t", 0)])
        return (await node.groups.submit(command)).offsets[0].offset

    disk, facts = ModelDisk(), MemoryMetadata()
    store = await open_ledgers(disk, 12 << 10, 1 << 20)
    rig = BrokerHarness(None, store, MemoryMetadataStore(facts), SlowClock())
    node = await rig.start()
    await node.topics.ensure_internal("__consumer_offsets")
    await node.topics.create("t")
    await node.groups.submit(CommitCommand("g", -1, "", None, [OffsetToCommit("t", 0, 7)]))
    assert await committed(node) == 7

    async def crash(_name, _id):
        raise StorageUnavailable("the process dies here")

    monkeypatch.setattr(node.groups, "topic_deleted", crash)
    await node.services.topics.delete("t")
    await rig.kill()
    await abandon(store)
    store = await open_ledgers(ModelDisk(disk.image()), 12 << 10, 1 << 20)
    async with running(None, store=store, metadata=MemoryMetadataStore(facts)) as node:
        await node.topics.create("t")
        assert await committed(node) == -1
    await abandon(store)


async def test_the_name_of_a_data_folder_that_existed_before_is_durable():
    """A folder that was made, but never synced, may be gone after a loss of power."""

    disk = ModelDisk()
    disk.make_folder("/data")
    await abandon(await open_ledgers(disk, 12 << 10, 1 << 20))
    state = after_power_loss(disk)
    assert "format" in state.names["data"]


async def test_a_ledger_whose_file_is_gone_is_reported_as_damaged():
    disk = ModelDisk()
    store = await open_ledgers(disk, 12 << 10, 1 << 20)
    ledger = await store.create()
    _, completion = store.append(ledger, [b"data"], 4, None)
    await completion.wait()
    store._segments.flush_all()
    disk.unlink(store._segments.path(ledger))
    with pytest.raises(DataCorrupt, match="its file is missing"):
        await store.read(ledger, 0, 4)
    await abandon(store)


async def test_with_a_damaged_wal_and_a_failed_segment_only_reading_continues():
    """The store's background task died of it, and took appends that could not be recovered."""

    disk = ModelDisk()
    store = await open_ledgers(disk, 64 << 10, 1 << 20)
    ledger = await store.create()
    for data in (b"first", b"second"):
        _, completion = store.append(ledger, [data], len(data), None)
        await completion.wait()
    wal = store._commit._wal.current.path
    inode = disk.names["data/wal"][wal.rpartition("/")[2]]
    disk.inodes[inode][disk.inodes[inode].index(b"first")] ^= 1
    store._ledgers[ledger].must_rewrite = True
    store._commit.bytes_since_checkpoint = 1 << 30
    store._commit.attention.set()
    for _ in range(200):
        if store._commit.outage is not None:
            break
        await asyncio.sleep(0.001)
    _, completion = store.append(ledger, [b"third"], 5, None)
    with pytest.raises(StorageUnavailable, match="checksum mismatch"):
        await completion.wait()
    assert bytes(await store.read(ledger, 0, 100)) == b"firstsecond"
    await store.close()


async def test_a_footer_whose_sync_failed_is_written_again_from_the_wal():
    """The page cache may have dropped it, so that the next sync is of nothing, and succeeds."""

    disk = ModelDisk()
    disk.are_failed_syncs_dropped = True
    store = await open_ledgers(disk, 64 << 10, 1 << 20)
    ledger = await store.create()
    _, completion = store.append(ledger, [b"data"], 4, None)
    await completion.wait()
    await store.seal(ledger, b"footer")

    def fail(action, path):
        if action == "sync" and path.endswith(".footer"):
            raise OSError(5, "no", path)

    disk.fault = fail
    with pytest.raises(OSError, match="no"):
        await store._maintenance._write_checkpoint(1)
    disk.fault = lambda action, path: None
    await store._maintenance._write_checkpoint(2)
    state = after_power_loss(disk)
    await abandon(store)
    store = await open_ledgers(ModelDisk(state), 64 << 10, 1 << 20)
    assert (await store.recover(ledger)).footer == b"footer"
    await abandon(store)


async def test_files_named_by_a_killed_process_are_made_durable_by_the_next():
    """Its folders exist, so they are not created again: yet no sync has covered them."""

    disk = ModelDisk()
    store = await open_ledgers(disk, 64 << 10, 1 << 20)
    ledger = await store.create()
    _, completion = store.append(ledger, [bytes(50_000)], 50_000, None)
    await completion.wait()
    await store.seal(ledger, b"footer")
    store._segments.flush_all()
    await abandon(store)
    store = await open_ledgers(disk, 64 << 10, 1 << 20)
    state = after_power_loss(disk)
    await abandon(store)
    store = await open_ledgers(ModelDisk(state), 64 << 10, 1 << 20)
    assert (await store.recover(ledger)).footer == b"footer"
    assert bytes(await store.read(ledger, 0, 50_000)) == bytes(50_000)
    await abandon(store)


class HeldThread(Executor):
    """A thread that gets no processor for a while: before it begins, or before its end is
    noticed."""

    def __init__(self, *, begins_at_once):
        self.begins_at_once = begins_at_once
        self.is_held = False
        self.held = []

    def submit(self, function, /, *arguments, **options):
        future = Future()

        def begin():
            if not future.set_running_or_notify_cancel():
                return lambda: None
            try:
                return partial(future.set_result, function(*arguments, **options))
            except BaseException as error:
                return partial(future.set_exception, error)

        if not self.is_held:
            begin()()
        else:
            self.held.append(begin() if self.begins_at_once else lambda: begin()())
        return future

    def release(self):
        self.is_held = False
        for go_on in self.held:
            go_on()


class DiskWithHeldThread(ModelDisk):
    def __init__(self, thread):
        super().__init__()
        self.thread = thread

    def threads(self, name, count, /):
        return self.thread if name == "headrace-checkpoint" else super().threads(name, count)


@pytest.mark.parametrize("begins_at_once", [False, True], ids=["not begun", "failed, not heard of"])
@pytest.mark.parametrize("fails", [".ledger", ".wal"], ids=["checkpoint", "end of an outage"])
async def test_a_close_vouches_for_nothing_that_a_checkpoint_under_way_has_not_made_durable(
    begins_at_once, fails
):
    """What the checkpoint should have synced is unsynced as long as it has not succeeded."""

    thread = HeldThread(begins_at_once=begins_at_once)
    disk = DiskWithHeldThread(thread)
    disk.are_failed_syncs_dropped = True
    store = await open_ledgers(disk, 64 << 10, 1 << 20)
    ledger = await store.create()
    _, completion = store.append(ledger, [bytes([7]) * 20_000], 20_000, None)
    await completion.wait()
    thread.is_held = True
    failing = [fails, ".ledger"] if fails == ".wal" else [fails]

    def fail(action, path):
        if action == "sync" and failing and path.endswith(failing[0]):
            failing.pop(0)
            raise OSError(5, "no", path)

    if begins_at_once or fails == ".wal":
        disk.fault = fail
    if fails == ".wal":
        _, completion = store.append(ledger, [b"refused"], 7, None)
        with pytest.raises(StorageUnavailable):
            await completion.wait()
        if not begins_at_once:
            failing.clear()
    else:
        store._commit.checkpoint_bytes = 0
        store._commit.attention.set()
    await until(lambda: thread.held)
    closing = asyncio.create_task(store.close())
    for _ in range(200):
        await asyncio.sleep(0)
    thread.release()
    await closing
    store = await open_ledgers(ModelDisk(after_power_loss(disk)), 64 << 10, 1 << 20)
    assert bytes(await store.read(ledger, 0, 30_000)) == bytes([7]) * 20_000
    await abandon(store)
