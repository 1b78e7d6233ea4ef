"""Bugs planted in the store, each a small patch: the attacks must find every one of them.

Invariants: a patch changes one function of the running process and nothing on disk. The numbers are
those that `headrace verify crash --list` prints.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.runtime.disk import CREATE_EMPTY
from headrace.storage.files import checkpoint as checkpoint_module
from headrace.storage.files import format as format_module
from headrace.storage.files import (
    group_commit,
    maintenance,
    segments,
    wal_reader,
    wal_sync,
    write_ahead_log,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.self_proof import Patch


def acknowledge_before_the_sync(patch: Patch) -> None:
    def begin(self: Any, files: Any, size: int, ended: Any, context: int) -> None:
        ended(None, context)
        self._sync(files)

    patch(wal_sync.WalSync, "begin", begin)


def never_sync_the_wal(patch: Patch) -> None:
    patch(
        wal_sync.WalSync,
        "begin",
        lambda self, files, size, ended, context: ended(None, context),
    )


def count_what_joined_after_the_sync_began(patch: Patch) -> None:
    ended = group_commit.GroupCommit._sync_ended
    patch(wal_sync, "INLINE_SYNC_NS", -1)
    patch(
        group_commit.GroupCommit,
        "_sync_ended",
        lambda self, error, _covers: ended(self, error, self.written_sequence),
    )


def forget_the_folders_of_new_segments(patch: Patch) -> None:
    write = checkpoint_module.CheckpointWriter.write

    def forgetful(self: Any, snapshot: Any) -> None:
        snapshot.folders = {}
        write(self, snapshot)

    patch(checkpoint_module.CheckpointWriter, "write", forgetful)


def forget_the_segments(patch: Patch) -> None:
    write = checkpoint_module.CheckpointWriter.write

    def forgetful(self: Any, snapshot: Any) -> None:
        snapshot.dirty = {}
        write(self, snapshot)

    patch(checkpoint_module.CheckpointWriter, "write", forgetful)


def finish_in_bulk_without_a_sync_of_the_segment(patch: Patch) -> None:
    def sync(self: Any, ledger: int, _fd: int) -> None:
        self._disk.sync_folder(self.path(ledger).rpartition("/")[0])
        self._disk.sync_folder(self._folder)

    patch(segments.Segments, "sync_new", sync)


def finish_in_bulk_without_a_sync_of_the_folder(patch: Patch) -> None:
    def sync(self: Any, _ledger: int, fd: int) -> None:
        self._disk.fdatasync(fd)

    patch(segments.Segments, "sync_new", sync)


def forget_what_is_kept_in_memory(patch: Patch) -> None:
    patch(segments.Segments, "flush_all", lambda self: None)


def forget_the_footers(patch: Patch) -> None:
    write = checkpoint_module.CheckpointWriter.write

    def forgetful(self: Any, snapshot: Any) -> None:
        snapshot.footers = {}
        write(self, snapshot)

    patch(checkpoint_module.CheckpointWriter, "write", forgetful)


def rename_without_a_sync_of_the_file(patch: Patch) -> None:
    def write(disk: Any, folder: str, name: str, data: bytes) -> None:
        fd = disk.open(f"{folder}/{name}.tmp", CREATE_EMPTY)
        disk.pwrite(fd, data, 0)
        disk.close(fd)
        disk.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")
        disk.sync_folder(folder)

    patch(checkpoint_module, "write_durable_file", write)


def rename_without_a_sync_of_the_folder(patch: Patch) -> None:
    def write(disk: Any, folder: str, name: str, data: bytes) -> None:
        fd = disk.open(f"{folder}/{name}.tmp", CREATE_EMPTY)
        disk.pwrite(fd, data, 0)
        disk.fdatasync(fd)
        disk.close(fd)
        disk.rename(f"{folder}/{name}.tmp", f"{folder}/{name}")

    patch(checkpoint_module, "write_durable_file", write)


def make_wal_files_without_a_sync_of_their_folder(patch: Patch) -> None:
    def make(self: Any, number: int, size: int, *, is_zeroed: bool) -> Any:
        path = write_ahead_log.wal_path(self._folder, number)
        fd = self._disk.open(path, CREATE_EMPTY)
        self._disk.allocate(fd, size)
        return write_ahead_log.WalFile(number, path, fd, size)

    def recycle(self: Any, old: Any, number: int) -> Any:
        path = write_ahead_log.wal_path(self._folder, number)
        self._disk.rename(old.path, path)
        return write_ahead_log.WalFile(number, path, old.fd, old.size)

    patch(write_ahead_log.WriteAheadLog, "make_numbered_file", make)
    patch(write_ahead_log.WriteAheadLog, "recycle", recycle)


def ignore_checksums(patch: Patch) -> None:
    def decode(data: memoryview, start: int, salt: int, generation: int) -> Any:
        head = format_module.FRAME_HEAD
        if start + head.size > len(data):
            return None
        magic, _crc, size, count, found, sequence, synced = head.unpack_from(data, start)
        end = start + head.size + size
        if magic != format_module.FRAME_MAGIC or found != generation or end > len(data):
            return None
        body = data[end - size : end]
        return format_module.Frame(start, end, sequence, synced, count, body, generation)

    patch(wal_reader, "decode_frame", decode)


def skip_bad_frames(patch: Patch) -> None:
    def frames(self: Any, first_number: int, covered: int) -> Iterator[Any]:
        for number in self.numbers():
            if number >= first_number:
                data = self._read(number)
                for frame in self._valid_frames(data, memoryview(data), 0, number):
                    if frame.sequence > covered:
                        yield frame

    patch(wal_reader.WalReader, "frames", frames)


def recycle_before_the_checkpoint(patch: Patch) -> None:
    checkpoint = maintenance.Maintenance.checkpoint

    async def early(self: Any) -> None:
        for file in self._wal.finished:
            self._wal._disk.truncate(file.fd, 0)
            self._wal._disk.fdatasync(file.fd)
        await checkpoint(self)

    patch(maintenance.Maintenance, "checkpoint", early)


def checkpoint_what_is_not_durable(patch: Patch) -> None:
    init = checkpoint_module.Snapshot.__init__

    def eager(self: Any, segments: Any, catalog: Any, sequence: int, number: int) -> None:
        init(self, segments, catalog, sequence + 1, number)

    patch(checkpoint_module.Snapshot, "__init__", eager)


def share_sectors_with_what_is_durable(patch: Patch) -> None:
    patch(write_ahead_log, "SECTOR_BYTES", 1)


def swallow_failed_syncs(patch: Patch) -> None:
    sync = wal_sync.WalSync._sync

    def swallow(self: Any, files: Any) -> int:
        try:
            return int(sync(self, files))
        except OSError:
            return 0

    patch(wal_sync.WalSync, "_sync", swallow)


def repeat_failed_syncs(patch: Patch) -> None:
    sync = wal_sync.WalSync._sync

    def repeat(self: Any, files: Any) -> int:
        while True:
            try:
                return int(sync(self, files))
            except OSError:
                continue

    patch(wal_sync.WalSync, "_sync", repeat)


def resume_without_a_checkpoint(patch: Patch) -> None:
    async def resume(self: Any) -> None:
        if not self._commit.is_syncing:
            self._commit.next_sequence = self._commit.written_sequence + 1
            self._commit.resume()

    patch(maintenance.Maintenance, "_end_outage", resume)


def trust_a_segment_whose_sync_failed(patch: Patch) -> None:
    patch(checkpoint_module.CheckpointWriter, "_rewrite", lambda self, ledgers, lengths: None)


def take_a_torn_write_for_a_whole_one(patch: Patch) -> None:
    write = write_ahead_log.WriteAheadLog.write

    def careless(self: Any, head: bytes, body: Any, size: int, sequence: int) -> int:
        start = int(self.next_start())
        try:
            return int(write(self, head, body, size, sequence))
        except OSError:
            self.offset = start + size
            self.current.last_sequence = sequence
            return start

    patch(write_ahead_log.WriteAheadLog, "write", careless)
