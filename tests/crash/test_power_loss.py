"""Power loss: at every operation of the disk, in every mode, what was acknowledged is there.

`explore` records a workload on a ModelDisk, then recovers each state that a loss of power may
leave. The planted bugs prove that it would see one.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING, Any

import pytest
from tests.crash.model_disk import Image, ModelDisk
from tests.crash.power_loss import KEEPS, PROFILES, PowerLoss
from tests.crash.scenario import (
    Oracle,
    abandon,
    open_store,
    run_faulty_workload,
    run_workload,
)

from headrace.errors import HeadraceError
from headrace.storage.files import checkpoint as checkpoint_module
from headrace.storage.files import format as format_module
from headrace.storage.files import group_commit, maintenance, wal_reader, wal_sync, write_ahead_log

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

NEW_DISK = Image([], {"": {}})


class Report:
    def __init__(self) -> None:
        self.states = 0
        self.violations: list[str] = []


async def _check(
    image: Image, oracle: Oracle, where: str, report: Report
) -> list[tuple[Any, ...]] | None:
    """Recover `image` and compare; the account of the recovery, None if it failed."""
    disk = ModelDisk(image)
    report.states += 1
    try:
        store = await open_store(disk)
    except HeadraceError as error:
        report.violations.append(f"{where}: {error!r}")
        return None
    account = list(disk.operations)
    try:
        report.violations += [f"{where}: {text}" for text in oracle.violations(store)]
        if not report.violations:
            fresh = await store.create()
            if fresh in oracle.ledgers and oracle.ledgers[fresh].is_created:
                report.violations.append(f"{where}: id {fresh} was given out again")
    finally:
        await abandon(store)
    return account


async def explore(
    seed: int,
    profile: str,
    *,
    sync_turns: int = 0,
    has_threads: bool = False,
    workload: Callable[..., Awaitable[None]] = run_workload,
    turns: int = 25,
    generations: int = 2,
    recovery_share: float = 0.01,
    states_max: int = 1 << 30,
    stop_at_first: bool = False,
) -> Report:
    """Lose power at each operation of each generation; `recovery_share` of the states lose it
    again during each operation of their recovery."""
    chance = random.Random(seed)
    report = Report()
    image = NEW_DISK
    seen: set[int] = set()
    oracle = Oracle()
    for generation in range(generations):
        disk = ModelDisk(image, sync_turns, has_threads=has_threads)
        store = await open_store(disk)
        oracle = Oracle.after_recovery(store)
        begun_at = len(disk.operations) if generation == 0 else 0
        await workload(store, disk, seed + generation, turns, generation)
        await abandon(store)
        loss = PowerLoss(image, profile)
        candidates: deque[Image] = deque(maxlen=20)
        for index, operation in enumerate(disk.operations):
            if operation[0] in NOTES:
                oracle.step(operation)
                loss.step(operation)
                continue
            loss.step(operation)
            if index < begun_at:
                continue
            for keep, state in zip(KEEPS, loss.states(chance), strict=True):
                key = hash((tuple(state.inodes), repr(state.names), _acknowledged(oracle)))
                if key in seen:
                    continue
                seen.add(key)
                where = f"seed {seed} {profile} generation {generation} operation {index} {keep}"
                again = await _check(state, oracle, where, report)
                if again is not None and chance.random() < recovery_share:
                    await _lose_power_in_recovery(state, again, oracle, profile, where, report)
                if report.states >= states_max or (stop_at_first and report.violations):
                    return report
                candidates.append(state)
        image = candidates[-chance.randint(1, len(candidates))]
    return report


NOTES = {
    "creating",
    "created",
    "failed",
    "append",
    "acknowledged",
    "sealing",
    "sealed",
    "deleting",
    "deleted",
}


def _acknowledged(oracle: Oracle) -> int:
    return hash(
        tuple(
            (number, one.acknowledged, one.is_created, one.is_sealed, one.is_deleted)
            for number, one in oracle.ledgers.items()
        )
    )


async def _lose_power_in_recovery(
    image: Image,
    account: list[tuple[Any, ...]],
    oracle: Oracle,
    profile: str,
    where: str,
    report: Report,
) -> None:
    chance = random.Random(where)
    loss = PowerLoss(image, profile)
    for index, operation in enumerate(account):
        loss.step(operation)
        for state in loss.states(chance, ("none", "prefix", "subset", "all")):
            await _check(state, oracle, f"{where}, then in recovery at {index}", report)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("sync_turns", [0, 3], ids=["inline", "thread"])
def test_after_a_power_loss_the_acknowledged_is_there_and_nothing_else(
    monkeypatch, profile, sync_turns
):
    if sync_turns:
        monkeypatch.setattr(wal_sync, "INLINE_SYNC_NS", -1)
    report = asyncio.run(explore(7, profile, sync_turns=sync_turns, states_max=1_500))
    assert report.violations == []
    assert report.states >= 1_000, "the account was too short to prove anything"


def test_a_power_loss_while_a_checkpoint_and_appends_run_at_once():
    """With real threads, so no two runs are alike; whatever comes up must hold."""
    report = asyncio.run(explore(3, "posix-strict", has_threads=True, turns=60, states_max=2_000))
    assert report.violations == []
    assert report.states >= 500, "the account was too short to prove anything"


@pytest.mark.parametrize("sync_turns", [0, 3], ids=["inline", "thread"])
def test_what_failed_never_comes_back_once_its_positions_are_used_again(monkeypatch, sync_turns):
    """Failed syncs and torn writes, and then a loss of power at any later operation."""
    if sync_turns:
        monkeypatch.setattr(wal_sync, "INLINE_SYNC_NS", -1)
    states = 0
    for seed in range(3):
        report = asyncio.run(
            explore(
                seed,
                "posix-strict",
                sync_turns=sync_turns,
                workload=run_faulty_workload,
                turns=40,
                generations=1,
                states_max=800,
            )
        )
        assert report.violations == []
        states += report.states
    assert states >= 1_000, "the account was too short to prove anything"


# --- planted bugs: each must be found ---------------------------------------------------------


def _acknowledge_before_the_sync(patch: Any) -> None:
    def begin(self: Any, files: Any, size: int, ended: Any, context: int) -> None:
        ended(None, context)
        self._sync(files)

    patch(wal_sync.WalSync, "begin", begin)


def _never_sync_the_wal(patch: Any) -> None:
    patch(
        wal_sync.WalSync,
        "begin",
        lambda self, files, size, ended, context: ended(None, context),
    )


def _count_what_joined_after_the_sync_began(patch: Any) -> None:
    ended = group_commit.GroupCommit._sync_ended
    patch(wal_sync, "INLINE_SYNC_NS", -1)
    patch(
        group_commit.GroupCommit,
        "_sync_ended",
        lambda self, error, _covers: ended(self, error, self.written_sequence),
    )


def _forget_the_folders_of_new_segments(patch: Any) -> None:
    write = checkpoint_module.CheckpointWriter.write

    def forgetful(self: Any, snapshot: Any) -> None:
        snapshot.folders = {}
        write(self, snapshot)

    patch(checkpoint_module.CheckpointWriter, "write", forgetful)


def _forget_the_segments(patch: Any) -> None:
    write = checkpoint_module.CheckpointWriter.write

    def forgetful(self: Any, snapshot: Any) -> None:
        snapshot.dirty = {}
        write(self, snapshot)

    patch(checkpoint_module.CheckpointWriter, "write", forgetful)


def _forget_the_footers(patch: Any) -> None:
    write = checkpoint_module.CheckpointWriter.write

    def forgetful(self: Any, snapshot: Any) -> None:
        snapshot.footers = {}
        write(self, snapshot)

    patch(checkpoint_module.CheckpointWriter, "write", forgetful)


def _rename_without_a_sync_of_the_file(patch: Any) -> None:
    def write(disk: Any, folder: str, name: str, data: bytes) -> None:
        fd = disk.open(f"{folder}/{name}.tmp", checkpoint_module.CREATE_EMPTY)
        disk.pwrite(fd, data, 0)
        disk.close(fd)
        disk.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")
        disk.sync_folder(folder)

    patch(checkpoint_module, "write_durable_file", write)


def _rename_without_a_sync_of_the_folder(patch: Any) -> None:
    def write(disk: Any, folder: str, name: str, data: bytes) -> None:
        fd = disk.open(f"{folder}/{name}.tmp", checkpoint_module.CREATE_EMPTY)
        disk.pwrite(fd, data, 0)
        disk.fdatasync(fd)
        disk.close(fd)
        disk.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")

    patch(checkpoint_module, "write_durable_file", write)


def _make_wal_files_without_a_sync_of_their_folder(patch: Any) -> None:
    def make(self: Any, number: int, size: int, *, is_zeroed: bool) -> Any:
        path = write_ahead_log.wal_path(self._folder, number)
        fd = self._disk.open(path, write_ahead_log.CREATE_EMPTY)
        self._disk.allocate(fd, size)
        return write_ahead_log.WalFile(number, path, fd, size)

    def recycle(self: Any, old: Any, number: int) -> Any:
        path = write_ahead_log.wal_path(self._folder, number)
        self._disk.rename(old.path, path)
        return write_ahead_log.WalFile(number, path, old.fd, old.size)

    patch(write_ahead_log.WriteAheadLog, "make_numbered_file", make)
    patch(write_ahead_log.WriteAheadLog, "recycle", recycle)


def _ignore_checksums(patch: Any) -> None:
    def decode(data: memoryview, start: int, salt: int, generation: int) -> Any:
        head = format_module.FRAME_HEAD
        if start + head.size > len(data):
            return None
        magic, _crc, size, count, found, sequence, synced = head.unpack_from(data, start)
        end = start + head.size + size
        if magic != format_module.FRAME_MAGIC or found != generation or end > len(data):
            return None
        return format_module.Frame(start, end, sequence, synced, count, data[end - size : end])

    patch(wal_reader, "decode_frame", decode)


def _skip_bad_frames(patch: Any) -> None:
    def frames(self: Any, first_number: int, covered: int) -> Iterator[Any]:
        for number in self.numbers():
            if number >= first_number:
                data = self._read(number)
                for frame in self._valid_frames(data, memoryview(data), 0, number):
                    if frame.sequence > covered:
                        yield frame

    patch(wal_reader.WalReader, "frames", frames)


def _recycle_before_the_checkpoint(patch: Any) -> None:
    checkpoint = maintenance.Maintenance.checkpoint

    async def early(self: Any) -> None:
        for file in self._wal.finished:
            self._wal._disk.truncate(file.fd, 0)
            self._wal._disk.fdatasync(file.fd)
        await checkpoint(self)

    patch(maintenance.Maintenance, "checkpoint", early)


def _checkpoint_what_is_not_durable(patch: Any) -> None:
    init = checkpoint_module.Snapshot.__init__

    def eager(self: Any, segments: Any, catalog: Any, sequence: int, number: int) -> None:
        init(self, segments, catalog, sequence + 1, number)

    patch(checkpoint_module.Snapshot, "__init__", eager)


def _share_sectors_with_what_is_durable(patch: Any) -> None:
    patch(write_ahead_log, "SECTOR_BYTES", 1)


BUGS: dict[str, Callable[[Any], None]] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _acknowledge_before_the_sync,
        _never_sync_the_wal,
        _count_what_joined_after_the_sync_began,
        _forget_the_folders_of_new_segments,
        _forget_the_segments,
        _forget_the_footers,
        _rename_without_a_sync_of_the_file,
        _rename_without_a_sync_of_the_folder,
        _make_wal_files_without_a_sync_of_their_folder,
        _ignore_checksums,
        _skip_bad_frames,
        _recycle_before_the_checkpoint,
        _checkpoint_what_is_not_durable,
        _share_sectors_with_what_is_durable,
    )
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_by_power_loss(monkeypatch, bug):
    BUGS[bug](monkeypatch.setattr)
    found = False
    for seed in range(3):
        try:
            report = asyncio.run(
                explore(
                    seed,
                    "posix-strict",
                    sync_turns=3 if "joined" in bug else 0,
                    turns=40,
                    stop_at_first=True,
                    states_max=4_000,
                )
            )
        except (HeadraceError, AssertionError, OSError):
            found = True  # not even the way to the next generation is whole
            break
        if report.violations:
            found = True
            break
    assert found, f"nobody noticed: {bug}"


# --- planted bugs that only a failing disk brings up ------------------------------------------


def _swallow_failed_syncs(patch: Any) -> None:
    sync = wal_sync.WalSync._sync

    def swallow(self: Any, files: Any) -> int:
        try:
            return sync(self, files)
        except OSError:
            return 0

    patch(wal_sync.WalSync, "_sync", swallow)


def _repeat_failed_syncs(patch: Any) -> None:
    sync = wal_sync.WalSync._sync

    def repeat(self: Any, files: Any) -> int:
        while True:
            try:
                return sync(self, files)
            except OSError:
                continue

    patch(wal_sync.WalSync, "_sync", repeat)


def _resume_without_a_checkpoint(patch: Any) -> None:
    async def resume(self: Any) -> None:
        if not self._commit.is_syncing:
            self._commit.next_sequence = self._commit.written_sequence + 1
            self._commit.resume()

    patch(maintenance.Maintenance, "_end_outage", resume)


def _trust_a_segment_whose_sync_failed(patch: Any) -> None:
    patch(checkpoint_module.CheckpointWriter, "_rewrite", lambda self, ledgers, lengths: None)


def _take_a_torn_write_for_a_whole_one(patch: Any) -> None:
    write = write_ahead_log.WriteAheadLog.write

    def careless(self: Any, head: bytes, body: Any, size: int, sequence: int) -> int:
        start = self.next_start()
        try:
            return write(self, head, body, size, sequence)
        except OSError:
            self.offset = start + size
            self.current.last_sequence = sequence
            return start

    patch(write_ahead_log.WriteAheadLog, "write", careless)


FAULT_BUGS: dict[str, Callable[[Any], None]] = {
    function.__name__.strip("_").replace("_", " "): function
    for function in (
        _swallow_failed_syncs,
        _repeat_failed_syncs,
        _resume_without_a_checkpoint,
        _trust_a_segment_whose_sync_failed,
        _take_a_torn_write_for_a_whole_one,
    )
}


@pytest.mark.parametrize("bug", FAULT_BUGS)
def test_a_planted_bug_is_found_by_a_failing_disk_and_power_loss(monkeypatch, bug):
    FAULT_BUGS[bug](monkeypatch.setattr)
    for seed in range(8):
        try:
            report = asyncio.run(
                explore(
                    seed,
                    "posix-strict",
                    workload=run_faulty_workload,
                    turns=60,
                    generations=2,
                    recovery_share=0.0,
                    states_max=3_000,
                    stop_at_first=True,
                )
            )
        except (HeadraceError, AssertionError, OSError):
            return  # not even the way to the next generation is whole
        if report.violations:
            return
    raise AssertionError(f"nobody noticed: {bug}")
