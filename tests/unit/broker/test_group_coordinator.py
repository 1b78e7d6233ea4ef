"""The shard and the coordinator over a log in memory: what waits, what fails, what is read back."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from headrace.broker.coordinators import shard_appends
from headrace.broker.coordinators.coordinator_shards import hash_key
from headrace.broker.coordinators.group_coordinator import GroupCoordinator
from headrace.broker.coordinators.shard_log import BATCH_OVERHEAD_BYTES, size_of
from headrace.coordination.groups.commands import (
    CommitCommand,
    DeleteGroupsCommand,
    DeleteOffsetsCommand,
    DescribeGroupsCommand,
    FetchOffsetsCommand,
    HeartbeatCommand,
    JoinCommand,
    LeaveCommand,
    LeavingMember,
    ListGroupsCommand,
    OffsetToCommit,
    SyncCommand,
)
from headrace.coordination.groups.config import GroupConfig
from headrace.errors import (
    BatchTooLarge,
    CoordinatorLoading,
    CoordinatorUnavailable,
    GroupIdInvalid,
    GroupUnknown,
    HeadraceError,
    MemberUnknown,
    NotCoordinator,
    NotOwner,
    RebalanceInProgress,
    StorageUnavailable,
)
from headrace.runtime.clock import SystemClock
from headrace.runtime.completion import Completion, completed
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PARTITIONS = 3


class MemoryLog:
    """A ShardLog whose appends become durable when the test says so."""

    def __init__(self) -> None:
        self.records: list = []
        self.waiting: list = []
        self.is_manual = False
        self.snapshots = 0
        self.replays = 0
        self.replay_error: HeadraceError | None = None
        self.replay_gate: asyncio.Event | None = None
        self.append_error: HeadraceError | None = None
        self.batch_bytes_max = 1_000_000
        self.batches: list = []

    def append(self, records: list, _transaction: object = None) -> Completion:
        if self.append_error is not None:
            raise self.append_error
        if size_of(records) > self.batch_bytes_max:
            raise BatchTooLarge
        self.batches.append(records)
        if not self.is_manual:
            self.records += records
            return completed()
        completion = Completion()
        self.waiting.append((completion, records))
        return completion

    def finish(self, error: HeadraceError | None = None) -> None:
        completion, records = self.waiting.pop(0)
        if error is None:
            self.records += records
            completion.succeed()
        else:
            completion.fail(error)

    async def replay(self) -> AsyncIterator:
        self.replays += 1
        if self.replay_gate is not None:
            await self.replay_gate.wait()
        if self.replay_error is not None:
            raise self.replay_error
        for record in list(self.records):
            yield [record]

    def begin_snapshot(self) -> int:
        return len(self.records)

    async def end_snapshot(self, needed_from: int) -> None:
        self.snapshots += 1
        del self.records[:needed_from]


class RestartableCoordinator:
    """A coordinator, its logs, and the clients' calls in short."""

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.logs = [MemoryLog() for _ in range(PARTITIONS)]
        self.config = config or GroupConfig(initial_rebalance_delay_ms=0)
        self.tasks = Tasks()
        self.not_here: set[int] = set()
        self.coordinator = self.restart()

    def restart(self) -> GroupCoordinator:
        self.coordinator = GroupCoordinator(
            self._log, PARTITIONS, SystemClock(), SystemRandomness(), self.tasks, self.config
        )
        return self.coordinator

    def _log(self, partition: int) -> MemoryLog:
        if partition in self.not_here:
            raise NotCoordinator
        return self.logs[partition]

    def log(self, group_id: str = "g") -> MemoryLog:
        return self.logs[self.coordinator.partition_for(group_id)]

    async def join(self, member_id: str = "", group_id: str = "g", session_ms: int = 10_000):
        return await self.coordinator.submit(
            JoinCommand(
                group_id, member_id, None, "c", "/h", session_ms, 20_000, "consumer", [("r", b"")]
            )
        )

    async def sync(self, member_id: str, generation: int, shares: dict | None = None):
        pairs = list((shares or {}).items())
        return await self.coordinator.submit(
            SyncCommand("g", generation, member_id, assignments=pairs)
        )

    async def heartbeat(self, member_id: str, generation: int = 1):
        reply = await self.coordinator.submit(HeartbeatCommand("g", generation, member_id))
        return reply.error

    async def commit(self, offset: int, group_id: str = "g"):
        command = CommitCommand(group_id, -1, "", None, [OffsetToCommit("t", 0, offset)])
        return (await self.coordinator.submit(command)).results[0].error

    async def fetch(self, group_id: str = "g"):
        reply = await self.coordinator.submit(FetchOffsetsCommand(group_id, [("t", 0)]))
        return reply.error or reply.offsets[0].offset

    async def settle(self) -> str:
        member_id = (await self.join()).member_id
        assert (await self.sync(member_id, 1, {member_id: b"all"})).assignment == b"all"
        return member_id


@asynccontextmanager
async def world(config: GroupConfig | None = None):
    it = RestartableCoordinator(config)
    try:
        yield it
    finally:
        it.coordinator.shards.close()
        await it.tasks.close()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("group_id", "code"),
    [("", 0), ("a", 97), ("hello", 99_162_322), ("polygenelubricants", -(2**31))],
)
def test_groups_hash_as_java_hashes_strings(group_id, code):
    """`code` is what Java's String.hashCode gives; the last is the least int, whose abs is 0."""
    assert hash_key(group_id, 50) == (0 if code == -(2**31) else abs(code) % 50)


def test_characters_beyond_the_first_plane_hash_as_two():
    assert hash_key("\U0001f600", 1_000_000) == (31 * 0xD83D + 0xDE00) % 1_000_000


async def test_a_commit_is_answered_when_it_is_durable_and_not_before():
    async with world() as w:
        await w.commit(1)
        w.log().is_manual = True
        commit = asyncio.ensure_future(w.commit(2))
        await turns()
        assert not commit.done()
        w.log().finish()
        assert await commit is None
        assert await w.fetch() == 2


async def test_commits_that_are_not_durable_are_never_visible():
    async with world() as w:
        await w.commit(1)
        w.log().is_manual = True
        commit = asyncio.ensure_future(w.commit(2))
        await turns()
        fetch = asyncio.ensure_future(w.fetch())
        await turns()
        assert not fetch.done()
        w.log().finish(StorageUnavailable())
        assert isinstance(await commit, CoordinatorUnavailable)
        assert isinstance(await fetch, CoordinatorUnavailable)
        await turns()
        assert await w.fetch() == 1


async def test_replies_leave_in_the_order_of_their_appends():
    async with world() as w:
        await w.commit(0)
        w.log().is_manual = True
        done: list[int] = []

        async def commit(offset: int) -> None:
            await w.commit(offset)
            done.append(offset)

        tasks = []
        for n in range(1, 4):
            tasks.append(asyncio.ensure_future(commit(n)))
            await turns()  # each has a batch of its own
        for expected in (1, 2, 3):
            w.log().finish()
            await turns()
            assert done == list(range(1, expected + 1))
        await asyncio.gather(*tasks)


async def test_decisions_of_one_turn_share_a_batch():
    async with world() as w:
        await w.commit(0)
        w.log().is_manual = True
        w.log().batches.clear()
        commits = [asyncio.ensure_future(w.commit(n)) for n in range(1, 6)]
        await turns()
        assert [len(batch) for batch in w.log().batches] == [5]
        assert not any(commit.done() for commit in commits)
        w.log().finish()
        assert await asyncio.gather(*commits) == [None] * 5
        assert await w.fetch() == 5
        w.restart()
        assert await w.fetch() == 5


async def test_a_batch_of_several_decisions_is_bounded():
    async with world() as w:
        await w.commit(0)
        for records_max, bytes_max in ((3, 10**6), (10**6, 150)):
            w.log().batches.clear()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(shard_appends, "TURN_RECORDS", records_max)
                patch.setattr(shard_appends, "TURN_BYTES", bytes_max)
                commits = [asyncio.ensure_future(w.commit(n)) for n in range(10)]
                assert await asyncio.gather(*commits) == [None] * 10
            batches = w.log().batches
            assert sum(len(batch) for batch in batches) == 10
            assert 2 < len(batches) < 10
            assert all(len(batch) <= records_max for batch in batches)
            assert all(size_of(batch) <= bytes_max for batch in batches)
        assert await w.fetch() == 9


async def test_a_failed_batch_refuses_every_decision_of_its_turn():
    async with world() as w:
        await w.commit(1)
        w.log().is_manual = True
        commits = [asyncio.ensure_future(w.commit(n)) for n in (2, 3)]
        await turns()
        later = asyncio.ensure_future(w.commit(4))
        await asyncio.sleep(0)  # decided, and not given to the log yet
        w.log().finish(StorageUnavailable())
        for commit in (*commits, later):
            assert isinstance(await commit, CoordinatorUnavailable)
        await turns()
        assert w.log().waiting == []
        w.log().is_manual = False
        assert await w.fetch() == 1


async def test_a_decision_that_is_too_large_is_refused_alone():
    async with world() as w:
        member_id = await w.settle()
        place = w.coordinator.partition_for
        other = next(name for name in "abcdef" if place(name) == place("g"))
        await w.commit(1, other)
        parked = asyncio.ensure_future(w.join())
        small = asyncio.ensure_future(w.commit(2, other))
        await asyncio.sleep(0)
        w.log().batch_bytes_max = 500
        wide = [OffsetToCommit("t", n, 7) for n in range(100)]
        before = w.log().replays
        results = (await w.coordinator.submit(CommitCommand(other, -1, "", None, wide))).results
        assert all(isinstance(result.error, BatchTooLarge) for result in results)
        assert await small is None
        assert await w.fetch(other) == 2
        assert isinstance(await w.heartbeat(member_id), RebalanceInProgress), "nothing is forgotten"
        assert not parked.done()
        assert w.log().replays == before


async def test_records_decided_before_a_shard_closes_are_still_appended():
    async with world() as w:
        await w.commit(1)
        commit = asyncio.ensure_future(w.commit(2))
        await asyncio.sleep(0)
        w.coordinator.shards.close()
        assert await commit is None
        w.restart()
        assert await w.fetch() == 2


async def test_a_join_is_answered_only_when_its_generation_is_durable():
    async with world() as w:
        await w.fetch()
        w.log().is_manual = True
        join = asyncio.ensure_future(w.join())
        await turns()
        assert not join.done()
        w.log().finish()
        assert (await join).generation == 1


async def test_a_failed_append_refuses_all_that_wait_and_reads_the_log_again():
    async with world() as w:
        member_id = await w.settle()
        parked = asyncio.ensure_future(w.join())
        await turns()
        w.log().is_manual = True
        rejoin = asyncio.ensure_future(w.join(member_id))
        await turns()
        assert not parked.done()
        w.log().replay_gate = asyncio.Event()
        w.log().finish(StorageUnavailable())
        for reply in (await parked, await rejoin):
            assert isinstance(reply.error, CoordinatorUnavailable)
        assert isinstance((await w.join()).error, CoordinatorLoading)
        assert isinstance((await w.sync(member_id, 1)).error, RebalanceInProgress)
        assert await w.heartbeat(member_id) is None
        w.log().replay_gate.set()
        await turns()
        w.log().is_manual = False
        assert w.log().replays == 2
        assert await w.heartbeat(member_id) is None
        assert (await w.sync(member_id, 1)).assignment == b"all"


async def test_an_append_that_fails_at_once_is_no_different():
    async with world() as w:
        await w.commit(1)
        w.log().append_error = StorageUnavailable()
        assert isinstance(await w.commit(2), CoordinatorUnavailable)
        w.log().append_error = None
        await turns()
        assert await w.fetch() == 1
        assert await w.commit(3) is None


async def test_a_log_that_takes_nothing_is_read_again_after_growing_pauses():
    async with world() as w:
        await w.commit(1)
        w.log().append_error = StorageUnavailable()
        before = w.log().replays
        loop = asyncio.get_running_loop()
        end_s = loop.time() + 1.0
        while loop.time() < end_s:
            assert isinstance(await w.commit(2), HeadraceError)
            await asyncio.sleep(0.001)
        assert 1 < w.log().replays - before < 10
        w.log().append_error = None
        async with asyncio.timeout(5):
            while isinstance(await w.commit(3), HeadraceError):
                await asyncio.sleep(0.01)
        w.log().append_error = StorageUnavailable()
        before = w.log().replays
        assert isinstance(await w.commit(4), CoordinatorUnavailable)
        await turns()
        assert w.log().replays == before + 1, "at once, since it took something in between"


async def test_the_log_is_read_again_only_when_later_appends_are_settled():
    async with world() as w:
        await w.commit(1)
        w.log().is_manual = True
        first = asyncio.ensure_future(w.commit(2))
        await turns()
        second = asyncio.ensure_future(w.commit(3))
        await turns()
        w.log().finish(StorageUnavailable())
        await turns()
        assert w.log().replays == 1
        w.log().finish()
        for commit in (first, second):
            assert isinstance(await commit, CoordinatorUnavailable)
        await turns()
        assert await w.fetch() == 3


async def test_a_log_that_cannot_be_read_is_tried_until_it_can():
    async with world() as w:
        await w.commit(1)
        w.restart()
        w.log().replay_error = StorageUnavailable()
        fetch = asyncio.ensure_future(w.fetch())
        await turns()
        w.log().replay_error = None
        assert await fetch == 1


async def test_state_is_there_after_a_restart():
    async with world() as w:
        member_id = await w.settle()
        await w.commit(5, "h")
        w.coordinator.shards.close()
        w.restart()
        assert await w.heartbeat(member_id) is None
        assert await w.fetch("h") == 5
        assert isinstance(await w.heartbeat("who"), MemberUnknown)


async def test_a_cancelled_join_leaves_nothing_that_waits():
    async with world() as w:
        member_id = await w.settle()
        join = asyncio.ensure_future(w.join())
        await turns()
        join.cancel()
        with pytest.raises(asyncio.CancelledError):
            await join
        assert (await w.join(member_id)).generation == 2


async def test_a_cancelled_commit_does_not_disturb_others():
    async with world() as w:
        await w.commit(1)
        w.log().is_manual = True
        first, second = (asyncio.ensure_future(w.commit(n)) for n in (2, 3))
        await turns()
        first.cancel()
        w.log().finish()
        assert await second is None
        assert await w.fetch() == 3


async def test_the_timer_completes_the_initial_delay_and_sleeps_when_nothing_is_due():
    async with world(GroupConfig(initial_rebalance_delay_ms=20)) as w:
        first, second = await asyncio.gather(w.join(), w.join())
        assert first.generation == second.generation == 1
        assert first.leader == second.leader
        await w.coordinator.submit(
            LeaveCommand("g", [LeavingMember(first.member_id), LeavingMember(second.member_id)])
        )
        assert w.coordinator.counters().members == 0


async def test_a_long_log_of_little_state_becomes_a_snapshot():
    async with world() as w:
        await w.commit(0)
        (shard,) = w.coordinator.shards.opened()
        shard.snapshots.bytes_min = shard.snapshots.due_at_bytes = 2_000
        for offset in range(200):
            assert await w.commit(offset) is None
            await asyncio.sleep(0)  # commits go on between the parts of a snapshot
        assert w.log().snapshots >= 2
        assert len(w.log().records) < 100
        w.restart()
        assert await w.fetch() == 199


async def test_a_log_has_one_length_for_its_writer_and_for_its_reader():
    """Most of what a single commit costs to read is its record batch."""
    async with world() as w:
        for offset in range(50):
            assert await w.commit(offset) is None
        (shard,) = w.coordinator.shards.opened()
        written = shard.snapshots.log_bytes
        assert written > 50 * BATCH_OVERHEAD_BYTES
        w.restart()
        assert await w.fetch() == 49
        (shard,) = w.coordinator.shards.opened()
        assert shard.snapshots.log_bytes == written


async def test_a_snapshot_is_written_in_batches_that_the_log_takes():
    async with world() as w:
        wide = [OffsetToCommit("t", n, n) for n in range(300)]
        await w.coordinator.submit(CommitCommand("g", -1, "", None, wide))
        w.log().batch_bytes_max = 2_000
        (shard,) = w.coordinator.shards.opened()
        shard.snapshots.bytes_min = shard.snapshots.due_at_bytes = 2_000
        shard.snapshots.log_bytes = 1_000_000
        await w.commit(0)
        while not w.log().snapshots:
            await asyncio.sleep(0)
        assert len(w.log().batches[-1]) < 50
        w.restart()
        fetched = await w.coordinator.submit(FetchOffsetsCommand("g"))
        assert [found.offset for found in fetched.offsets] == list(range(300))


async def test_groups_of_other_brokers_are_refused_and_not_listed():
    async with world() as w:
        names = [f"g{n}" for n in range(20)]
        for name in names:
            await w.commit(1, name)
        w.not_here = {0}
        w.restart()
        errors = [await w.commit(2, name) for name in names]
        elsewhere = [name for name, error in zip(names, errors, strict=True) if error]
        assert elsewhere
        assert all(isinstance(e, NotCoordinator | None) for e in errors)
        listed = await w.coordinator.list_groups(ListGroupsCommand())
        assert [g.group_id for g in listed.groups] == sorted(set(names) - set(elsewhere))
        described = await w.coordinator.submit_each(DescribeGroupsCommand([*names, "x"]))
        assert [g.group_id for g in described] == [*names, "x"]
        results = await w.coordinator.submit_each(DeleteGroupsCommand(names))
        assert [r.group_id for r in results] == names
        deleted = [r.group_id for r in results if r.error is None]
        assert sorted(deleted) == sorted(set(names) - set(elsewhere))


async def test_a_shard_that_lost_its_log_steps_down_and_may_come_back():
    async with world() as w:
        await w.commit(1)
        w.log().append_error = NotOwner()
        assert isinstance(await w.commit(2), CoordinatorUnavailable)
        w.not_here = {w.coordinator.partition_for("g")}
        assert isinstance(await w.commit(2), NotCoordinator)
        w.not_here = set()
        w.log().append_error = None
        assert await w.fetch() == 1


async def test_resigning_sends_those_that_wait_elsewhere():
    async with world() as w:
        await w.settle()
        parked = asyncio.ensure_future(w.join())
        await turns()
        w.coordinator.shards.resign(w.coordinator.partition_for("g"))
        assert isinstance((await parked).error, NotCoordinator)


async def test_closing_refuses_what_waits():
    async with world() as w:
        await w.settle()
        parked = asyncio.ensure_future(w.join())
        await turns()
        w.coordinator.shards.close()
        assert isinstance((await parked).error, CoordinatorUnavailable)
        assert isinstance(await w.commit(1), CoordinatorUnavailable)


async def test_group_ids_are_checked():
    async with world() as w:
        assert isinstance((await w.join(group_id="")).error, GroupIdInvalid)
        assert isinstance((await w.join(group_id="x" * 8_001)).error, GroupIdInvalid)
        reply = await w.coordinator.submit(HeartbeatCommand("", 1, "m"))
        assert isinstance(reply.error, GroupIdInvalid)
        assert await w.commit(1, "") is None
        assert isinstance(await w.commit(1, "\u00e9" * 8_001), GroupIdInvalid)
        (described,) = await w.coordinator.submit_each(DescribeGroupsCommand(["x" * 8_001]))
        assert isinstance(described.error, GroupIdInvalid)


async def test_a_deleted_topic_is_forgotten_in_every_shard():
    async with world() as w:
        names = [f"g{n}" for n in range(10)]
        for name in names:
            await w.commit(1, name)
        w.restart()
        await w.coordinator.topic_deleted("t", UUID(int=1))
        assert [await w.fetch(name) for name in names] == [-1] * 10
        reply = await w.coordinator.submit(DeleteOffsetsCommand("g1", [("t", 0)]))
        assert isinstance(reply.error, GroupUnknown)


async def test_counters_say_what_there_is():
    async with world() as w:
        await w.settle()
        await w.commit(1, "h")
        w.log().records.append((b"\0\x63", b"from the future"))
        counters = w.coordinator.counters()
        assert (counters.groups, counters.members, counters.offsets) == (2, 1, 1)
        assert (counters.rebalances_total, counters.commits_total) == (1, 1)
        w.restart()
        await w.fetch()
        assert w.coordinator.counters().skipped_records == 1
