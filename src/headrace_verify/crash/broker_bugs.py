"""Bugs planted in the broker and the log, which affect topics, groups, producers and readers.

Invariants: as in `store_bugs`.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import NAMESPACE_DNS, uuid5

from headrace.broker.coordinators import coordinator_shard, group_coordinator
from headrace.broker.node import Node
from headrace.broker.topics import topics
from headrace.log import ledger_chain, offset_index, producer_state
from headrace.log.compaction import rounds as compaction
from headrace.metadata import sqlite_file
from headrace.runtime.disk import SystemDisk
from headrace.storage.files import recovery, store

if TYPE_CHECKING:
    from headrace.storage.files.group import Catalog
    from headrace_verify.self_proof import Patch


def answer_groups_before_it_is_durable(patch: Patch) -> None:
    async def at_once(_self: Any, _command: Any, reply: Any) -> Any:
        return reply

    patch(coordinator_shard.CoordinatorShard, "_hold", at_once)


def tell_members_before_it_is_durable(patch: Patch) -> None:
    def answer(self: Any, answers: Any) -> None:
        replies = [
            (*parked, reply)
            for ticket, reply in answers
            if (parked := self._parked.pop(ticket, None)) is not None
        ]
        self._release(None, (self._load_count, replies))

    patch(coordinator_shard.CoordinatorShard, "_answer", answer)


def give_a_topic_the_id_of_its_name(patch: Patch) -> None:
    class Named:
        def __init__(self, name: str) -> None:
            self._name = name

        def uuid(self) -> Any:
            return uuid5(NAMESPACE_DNS, self._name)

    create = topics.Topics._create

    async def careless(self: Any, name: str, *arguments: Any, **settings: Any) -> Any:
        randomness, self.randomness = self.randomness, Named(name)
        try:
            return await create(self, name, *arguments, **settings)
        finally:
            self.randomness = randomness

    patch(topics.Topics, "_create", careless)


def let_a_topic_made_again_have_the_progress_of_the_old(patch: Patch) -> None:
    async def believing(_self: Any, _command: Any, _reply: Any) -> None:
        return

    patch(group_coordinator.GroupCoordinator, "_drop_stale", believing)


def leave_the_ledgers_of_deleted_topics(patch: Patch) -> None:
    async def nothing(_self: Any) -> None:
        return

    patch(Node, "_collect_orphans", nothing)


def move_the_start_of_a_log_in_memory_alone(patch: Patch) -> None:
    async def forgetful(
        self: Any, log_start_offset: int, gone: set[Any], base_offsets: Any, stored: Any
    ) -> None:
        if gone:
            await trim(self, self.fact.log_start_offset, gone, base_offsets, stored)
        else:
            stored()

    trim = ledger_chain.LedgerChain.trim
    patch(ledger_chain.LedgerChain, "trim", forgetful)


def commit_metadata_without_a_sync(patch: Patch) -> None:
    begin = sqlite_file.SqliteFile._open

    def careless(self: Any) -> None:
        begin(self)
        self._db.execute("PRAGMA synchronous = OFF")

    patch(sqlite_file.SqliteFile, "_open", careless)


def make_the_data_folder_without_a_sync(patch: Patch) -> None:
    sync = SystemDisk.sync_folder

    def careless(self: Any, path: str) -> None:
        if not path.endswith("/root"):
            sync(self, path)

    patch(SystemDisk, "sync_folder", careless)


def give_out_ids_of_deleted_ledgers_again(patch: Patch) -> None:
    recover = recovery.recover

    def careless(*arguments: Any) -> Any:
        found = recover(*arguments)
        catalog: Catalog = found.catalog
        catalog.next_ledger = max(catalog.ledgers, default=0) + 1
        return found

    patch(store, "recover", careless)


def know_four_retries_only(patch: Patch) -> None:
    patch(producer_state, "DUPLICATES_KEPT", 4)


def know_six_retries(patch: Patch) -> None:
    patch(producer_state, "DUPLICATES_KEPT", 6)


def let_sequences_run_beyond_their_end(patch: Patch) -> None:
    patch(producer_state, "sequence_after", lambda sequence, count: sequence + count)


def let_the_time_index_fall(patch: Patch) -> None:
    add = offset_index.OffsetIndex.add

    def falling(self: Any, base_offset: int, position: int, max_timestamp_ms: int) -> None:
        entries = len(self.positions)
        add(self, base_offset, position, max_timestamp_ms)
        if len(self.positions) > entries:
            self.max_timestamps[-1] = max_timestamp_ms

    patch(offset_index.OffsetIndex, "add", falling)


def drop_live_keys(patch: Patch) -> None:
    latest = compaction.KeyMap.latest
    patch(compaction.KeyMap, "latest", lambda self, keys: [one + 1 for one in latest(self, keys)])


def drop_tombstones_early(patch: Patch) -> None:
    patch(compaction, "delete_horizon_ms", lambda _header: 0)


def drop_markers_while_their_records_live(patch: Patch) -> None:
    rewrite = compaction.Compaction._rewrite_marker

    def careless(self: Any, stored: Any, header: Any, *, is_edge: bool) -> Any:
        self._with_data.discard(header.producer_id)
        self._now_ms = 2**62
        return rewrite(self, stored, header, is_edge=is_edge)

    patch(compaction.Compaction, "_rewrite_marker", careless)


def compact_records_of_aborted_transactions(patch: Patch) -> None:
    patch(compaction.AbortedRanges, "has", lambda _self, _header: False)
