"""Self-test: known bugs are planted, one at a time, and each must be found.

Invariants: a harness that has never failed proves nothing. A planted bug names the attack that must
find it; it is found if that attack reports a violation within its quick budget.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.log import lifecycle_host, reading, segment
from headrace.log.partition_log import PartitionLog
from headrace.log.producer_state import ProducerState
from headrace.runtime.disk import CREATE as CREATE_FILE
from headrace.storage.files import recovery, store, wal_reader, wal_sync, write_ahead_log
from headrace.storage.files.format import CREATE
from headrace.storage.files.group import Ledger
from headrace_verify.crash import broker_bugs, store_bugs
from headrace_verify.self_proof import Bug
from headrace_verify.task import Attack, Task, patched, work_s

if TYPE_CHECKING:
    from pathlib import Path

    from headrace_verify.self_proof import Patch

BUDGET_S = 45.0
"""Processor time per bug."""


POWER, POWER_FAULTS, POWER_FILES = ("power",), ("power-faults",), ("power-files",)
POWER_BROKER, POWER_TABLE = ("power-broker",), ("power-table",)
FLIPS, FAULTS, LOG, KILLS = ("flips",), ("faults",), ("log",), ("kills",)
"""The attacks that must find the bugs."""


def sync_only_the_first_file_of_a_group(patch: Patch) -> None:
    sync = wal_sync.WalSync._sync
    patch(wal_sync.WalSync, "_sync", lambda self, files: sync(self, files[:1]))


def serve_batches_whose_checksum_is_wrong(patch: Patch) -> None:
    patch(segment, "is_intact", lambda *_: True)


def serve_batches_at_other_offsets(patch: Patch) -> None:
    patch(segment.Segment, "verify_crc", lambda *_: None)


def take_damage_in_the_middle_for_a_torn_tail(patch: Patch) -> None:
    patch(wal_reader.WalReader, "_check_rest", lambda *_: None)


def show_records_before_they_are_durable(patch: Patch) -> None:
    append = PartitionLog.append

    def eager(self: PartitionLog, *arguments: Any) -> Any:
        appended = append(self, *arguments)
        if appended is not None and self.active is not None:
            self.visibility.advance(self.end_offset, self.active.end_position)
        return appended

    patch(PartitionLog, "append", eager)
    patch(store.FileLedgerStore, "read_cached", _read_all_that_is_written)


def read_behind_the_high_watermark(patch: Patch) -> None:
    patch(reading, "_visible_end", lambda _log, found, _bound: found.end_position)
    patch(store.FileLedgerStore, "read_cached", _read_all_that_is_written)


def _read_all_that_is_written(self: Any, number: int, position: int, size: int) -> Any:
    ledger = self._ledgers[number]
    size = min(size, ledger.end - position)
    return self._segments.read_cached(ledger, position, size) if size > 0 else b""


def forget_the_producers_on_restart(patch: Patch) -> None:
    load = lifecycle_host.LifecycleHost._load

    async def forgetful(self: Any) -> None:
        await load(self)
        self._log.producers = ProducerState()

    patch(lifecycle_host.LifecycleHost, "_load", forgetful)


def name_a_ledger_before_it_is_durable(patch: Patch) -> None:
    async def create(self: Any, *_for_whom: Any) -> Any:
        number = self._catalog.next_ledger
        self._catalog.next_ledger = number + 1
        ledger = self._catalog.ledgers[number] = Ledger(number)
        self._commit.change(CREATE, ledger)
        return number

    patch(store.FileLedgerStore, "create", create)


def empty_the_wal_before_recovery_has_ended(patch: Patch) -> None:
    recover = recovery.recover

    def hasty(disk: Any, folder: str, *arguments: Any) -> Any:
        found = recover(disk, folder, *arguments)
        for number in found.old_wal_numbers:
            fd = disk.open(write_ahead_log.wal_path(folder, number), CREATE_FILE)
            disk.truncate(fd, 0)
            disk.fdatasync(fd)
            disk.close(fd)
        return found

    patch(store, "recover", hasty)


def lose_the_last_frame(patch: Patch) -> None:
    frames = wal_reader.WalReader.frames

    def shortened(self: Any, *arguments: Any) -> Any:
        yield from list(frames(self, *arguments))[:-1]

    patch(wal_reader.WalReader, "frames", shortened)


BUGS = (
    Bug(store_bugs.acknowledge_before_the_sync, POWER, 1),
    Bug(store_bugs.never_sync_the_wal, POWER, 1),
    Bug(store_bugs.count_what_joined_after_the_sync_began, POWER, 3),
    Bug(store_bugs.forget_the_folders_of_new_segments, POWER, 4),
    Bug(store_bugs.make_wal_files_without_a_sync_of_their_folder, POWER, 4),
    Bug(store_bugs.rename_without_a_sync_of_the_file, POWER, 5),
    Bug(store_bugs.rename_without_a_sync_of_the_folder, POWER, 6),
    Bug(store_bugs.swallow_failed_syncs, POWER_FAULTS, 7),
    Bug(store_bugs.repeat_failed_syncs, POWER_FAULTS, 8),
    Bug(store_bugs.trust_a_segment_whose_sync_failed, POWER_FAULTS, 8),
    Bug(store_bugs.take_a_torn_write_for_a_whole_one, POWER_FAULTS, 9),
    Bug(store_bugs.share_sectors_with_what_is_durable, POWER, 10),
    Bug(store_bugs.resume_without_a_checkpoint, POWER_FAULTS, 10),
    Bug(store_bugs.ignore_checksums, POWER, 11),
    Bug(store_bugs.skip_bad_frames, POWER, 13),
    Bug(store_bugs.forget_the_segments, POWER, 16),
    Bug(store_bugs.forget_what_is_kept_in_memory, POWER, 16),
    Bug(store_bugs.forget_the_footers, POWER, 16),
    Bug(store_bugs.checkpoint_what_is_not_durable, POWER, 16),
    Bug(store_bugs.recycle_before_the_checkpoint, POWER, 42),
    Bug(sync_only_the_first_file_of_a_group, POWER, 2),
    Bug(serve_batches_whose_checksum_is_wrong, FLIPS, 12),
    Bug(serve_batches_at_other_offsets, FLIPS, 12),
    Bug(take_damage_in_the_middle_for_a_torn_tail, FLIPS, 14),
    Bug(show_records_before_they_are_durable, FAULTS, 18),
    Bug(read_behind_the_high_watermark, FAULTS, 19),
    Bug(forget_the_producers_on_restart, FAULTS, 21),
    Bug(name_a_ledger_before_it_is_durable, POWER, 34),
    Bug(empty_the_wal_before_recovery_has_ended, POWER, 42),
    Bug(lose_the_last_frame, KILLS, 1),
    Bug(broker_bugs.commit_metadata_without_a_sync, POWER_FILES, 1),
    Bug(broker_bugs.make_the_data_folder_without_a_sync, POWER_FILES, 4),
    Bug(store_bugs.acknowledge_before_the_sync, POWER_BROKER, 1),
    Bug(broker_bugs.give_out_ids_of_deleted_ledgers_again, POWER, 15),
    Bug(broker_bugs.let_the_time_index_fall, LOG, 17),
    Bug(broker_bugs.know_four_retries_only, LOG, 20),
    Bug(broker_bugs.know_six_retries, LOG, 20),
    Bug(forget_the_producers_on_restart, LOG, 21),
    Bug(broker_bugs.let_sequences_run_beyond_their_end, LOG, 22),
    Bug(broker_bugs.answer_groups_before_it_is_durable, POWER_BROKER, 30),
    Bug(broker_bugs.tell_members_before_it_is_durable, POWER_BROKER, 30),
    Bug(name_a_ledger_before_it_is_durable, POWER_BROKER, 34),
    Bug(broker_bugs.give_a_topic_the_id_of_its_name, POWER_BROKER, 35),
    Bug(broker_bugs.let_a_topic_made_again_have_the_progress_of_the_old, POWER_BROKER, 35),
    Bug(broker_bugs.leave_the_ledgers_of_deleted_topics, POWER_BROKER, 35),
    Bug(broker_bugs.move_the_start_of_a_log_in_memory_alone, POWER_BROKER, 36),
    Bug(store_bugs.acknowledge_before_the_sync, POWER_TABLE, 1),
    Bug(store_bugs.finish_in_bulk_without_a_sync_of_the_folder, POWER_TABLE, 4),
    Bug(store_bugs.finish_in_bulk_without_a_sync_of_the_segment, POWER_TABLE, 16),
    Bug(broker_bugs.drop_live_keys, POWER_TABLE, 43),
    Bug(broker_bugs.drop_tombstones_early, POWER_TABLE, 44),
    Bug(broker_bugs.drop_markers_while_their_records_live, POWER_TABLE, 45),
    Bug(broker_bugs.compact_records_of_aborted_transactions, POWER_TABLE, 46),
)


def is_found(bug: Bug, attacks: dict[str, Attack], seed: int, folder: Path) -> Task:
    """Run the bug's attack on the patched process; it should report a violation."""
    (attack,) = bug.found_by
    task = Task(attack, seed, BUDGET_S, folder, now_s=work_s)
    task.stop_at_first = True
    task.planted = bug.name
    with ExitStack() as patches:

        def patch(target: Any, name: str, value: Any) -> None:
            patches.enter_context(patched(target, name, value))

        bug.plant(patch)
        try:
            attacks[attack].run(task)
        except (HeadraceError, AssertionError, OSError) as error:
            task.wrong(f"even the attack's initial folder is invalid: {error!r}", seed=seed)
    return task
