"""Self-test: known bugs are planted, one at a time, and each must be found.

Invariants: a harness that has never failed proves nothing. A planted bug names the attack that must
find it; it is found if that attack reports a violation within its quick budget.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import HeadraceError
from headrace.log import lifecycle_host, reading, segment
from headrace.log.partition_log import PartitionLog
from headrace.log.producer_state import ProducerState
from headrace.runtime.disk import CREATE as CREATE_FILE
from headrace.storage.files import recovery, store, wal_reader, wal_sync, write_ahead_log
from headrace.storage.files.format import CREATE
from headrace.storage.files.group import Ledger
from headrace_verify import broker_bugs, store_bugs
from headrace_verify.self_proof import choose
from headrace_verify.task import Attack, Task, patched, work_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from headrace_verify.store_bugs import Patch

BUDGET_S = 45.0
"""Processor time per bug."""


class Planted(NamedTuple):
    """A bug, its number in the list, and the attack that must find it."""

    number: int
    attack: str
    plant: Callable[[Patch], None]

    @property
    def name(self) -> str:
        """A description of the bug."""
        return self.plant.__name__.replace("_", " ")


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


PLANTED = (
    Planted(1, "power", store_bugs.acknowledge_before_the_sync),
    Planted(1, "power", store_bugs.never_sync_the_wal),
    Planted(3, "power", store_bugs.count_what_joined_after_the_sync_began),
    Planted(4, "power", store_bugs.forget_the_folders_of_new_segments),
    Planted(4, "power", store_bugs.make_wal_files_without_a_sync_of_their_folder),
    Planted(5, "power", store_bugs.rename_without_a_sync_of_the_file),
    Planted(6, "power", store_bugs.rename_without_a_sync_of_the_folder),
    Planted(7, "power-faults", store_bugs.swallow_failed_syncs),
    Planted(8, "power-faults", store_bugs.repeat_failed_syncs),
    Planted(8, "power-faults", store_bugs.trust_a_segment_whose_sync_failed),
    Planted(9, "power-faults", store_bugs.take_a_torn_write_for_a_whole_one),
    Planted(10, "power", store_bugs.share_sectors_with_what_is_durable),
    Planted(10, "power-faults", store_bugs.resume_without_a_checkpoint),
    Planted(11, "power", store_bugs.ignore_checksums),
    Planted(13, "power", store_bugs.skip_bad_frames),
    Planted(16, "power", store_bugs.forget_the_segments),
    Planted(16, "power", store_bugs.forget_what_is_kept_in_memory),
    Planted(16, "power", store_bugs.forget_the_footers),
    Planted(16, "power", store_bugs.checkpoint_what_is_not_durable),
    Planted(42, "power", store_bugs.recycle_before_the_checkpoint),
    Planted(2, "power", sync_only_the_first_file_of_a_group),
    Planted(12, "flips", serve_batches_whose_checksum_is_wrong),
    Planted(12, "flips", serve_batches_at_other_offsets),
    Planted(14, "flips", take_damage_in_the_middle_for_a_torn_tail),
    Planted(18, "faults", show_records_before_they_are_durable),
    Planted(19, "faults", read_behind_the_high_watermark),
    Planted(21, "faults", forget_the_producers_on_restart),
    Planted(34, "power", name_a_ledger_before_it_is_durable),
    Planted(42, "power", empty_the_wal_before_recovery_has_ended),
    Planted(1, "kills", lose_the_last_frame),
    Planted(1, "power-files", broker_bugs.commit_metadata_without_a_sync),
    Planted(4, "power-files", broker_bugs.make_the_data_folder_without_a_sync),
    Planted(1, "power-broker", store_bugs.acknowledge_before_the_sync),
    Planted(15, "power", broker_bugs.give_out_ids_of_deleted_ledgers_again),
    Planted(17, "log", broker_bugs.let_the_time_index_fall),
    Planted(20, "log", broker_bugs.know_four_retries_only),
    Planted(20, "log", broker_bugs.know_six_retries),
    Planted(21, "log", forget_the_producers_on_restart),
    Planted(22, "log", broker_bugs.let_sequences_run_beyond_their_end),
    Planted(30, "power-broker", broker_bugs.answer_groups_before_it_is_durable),
    Planted(30, "power-broker", broker_bugs.tell_members_before_it_is_durable),
    Planted(34, "power-broker", name_a_ledger_before_it_is_durable),
    Planted(35, "power-broker", broker_bugs.give_a_topic_the_id_of_its_name),
    Planted(35, "power-broker", broker_bugs.let_a_topic_made_again_have_the_progress_of_the_old),
    Planted(35, "power-broker", broker_bugs.leave_the_ledgers_of_deleted_topics),
    Planted(36, "power-broker", broker_bugs.move_the_start_of_a_log_in_memory_alone),
    Planted(1, "power-table", store_bugs.acknowledge_before_the_sync),
    Planted(4, "power-table", store_bugs.finish_in_bulk_without_a_sync_of_the_folder),
    Planted(16, "power-table", store_bugs.finish_in_bulk_without_a_sync_of_the_segment),
    Planted(43, "power-table", broker_bugs.drop_live_keys),
    Planted(44, "power-table", broker_bugs.drop_tombstones_early),
    Planted(45, "power-table", broker_bugs.drop_markers_while_their_records_live),
    Planted(46, "power-table", broker_bugs.compact_records_of_aborted_transactions),
)


def chosen(words: str) -> Sequence[Planted]:
    """The bugs with a number, or whose name contains the text; all of them for `all`."""
    if words.isdigit():
        return [bug for bug in PLANTED if bug.number == int(words)]
    return choose(PLANTED, words)


def is_found(bug: Planted, attacks: dict[str, Attack], seed: int, folder: Path) -> Task:
    """Run the bug's attack on the patched process; it should report a violation."""
    task = Task(bug.attack, seed, BUDGET_S, folder, now_s=work_s)
    task.stop_at_first = True
    task.planted = bug.name
    with ExitStack() as patches:

        def patch(target: Any, name: str, value: Any) -> None:
            patches.enter_context(patched(target, name, value))

        bug.plant(patch)
        try:
            attacks[bug.attack].run(task)
        except (HeadraceError, AssertionError, OSError) as error:
            task.wrong(f"even the attack's initial folder is invalid: {error!r}", seed=seed)
    return task
