"""A broker that steps down, and up again: in the same session its logs continue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.kit.cluster import Cluster, append_at
from tests.waiting import until

from headrace.broker.topics.ownership import NO_LEADER
from headrace.coordination.groups.commands import (
    CommitCommand,
    FetchOffsetsCommand,
    JoinCommand,
    OffsetToCommit,
)
from headrace.errors import (
    ChainMissing,
    CoordinatorLoading,
    CoordinatorUnavailable,
    HeadraceError,
    MetadataUnavailable,
    NotCoordinator,
    NotOwner,
    StorageUnavailable,
)
from headrace.metadata.facts import CompanionKind, OwnerFact, owner_key, partition_key
from headrace.metadata.store import ANY
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace.runtime.completion import Completion

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.node import Node
    from headrace.broker.topics.topic import Topic
    from headrace.log.partition_log import PartitionLog


async def one_broker(cluster: Cluster, partitions: int = 2) -> tuple[Node, Topic]:
    node = await cluster.start(1)
    await node.topics.create("t", partitions)
    await until(lambda: cluster.agree("t", {1}))
    await cluster.append("t", 0, b"a")
    return node, node.topics.get("t")


def step_down(node: Node) -> None:
    """As if the session had become unsafe, which this store's never does."""
    node.ownership.guard._end_term()


def step_up(node: Node, *, has_survived: bool) -> None:
    node.ownership.guard.is_up = True
    node.ownership._step_up(has_survived)


async def versions(node: Node, topic: Topic) -> list[int]:
    keys = [owner_key(topic.id, n) for n in range(len(topic.partitions))]
    keys += [partition_key(topic.id, n) for n in range(len(topic.partitions))]
    return [(await node.metadata.get(key)).version for key in keys]


async def test_in_the_same_session_the_logs_continue_and_nothing_is_written() -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        before, logs = await versions(node, topic), list(topic.partitions)
        step_down(node)
        assert not any(node.ownership.is_mine(topic, number) for number in (0, 1))
        assert node.ownership.leader(topic, 0).broker == NO_LEADER
        with pytest.raises(NotOwner):
            await append_at(node, topic, 0, b"b")
        step_up(node, has_survived=True)
        assert cluster.agree("t", {1}), "at once"
        assert await append_at(node, topic, 0, b"c") == 1
        assert await cluster.values("t", 0) == [b"a", b"c"]
        assert topic.partitions == logs
        await asyncio.sleep(0.05)
        assert await versions(node, topic) == before
        assert node.ownership.leader(topic, 0) == (1, 0)


async def test_in_another_session_the_partitions_are_claimed_again() -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        log = topic.require_log(0)
        step_down(node)
        step_up(node, has_survived=False)
        await until(lambda: cluster.agree("t", {1}))
        # Steps of the first tenure may still be running: their writes must not fit the second's.
        assert node.ownership.leader(topic, 0) == (1, 1)
        assert topic.require_log(0) is not log
        with pytest.raises(NotOwner):
            log.prepare()
        assert await cluster.append("t", 0, b"c") == 1
        assert await cluster.values("t", 0) == [b"a", b"c"]


async def test_a_suspended_log_refuses_reads_and_appends_of_earlier_holders() -> None:
    """Such as a fetch that has waited since before."""

    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        log = topic.require_log(0)
        woken: list[bool] = []

        class Waiter:
            def notify(self) -> None:
                woken.append(True)

        log.waiters.add(Waiter())
        step_down(node)
        assert woken
        with pytest.raises(NotOwner, match="t-0 is not served here"):
            await log.wait_loaded()
        batch_at = log.end_offset
        with pytest.raises(NotOwner):
            await append_held(node, log)
        assert log.end_offset == batch_at
        step_up(node, has_survived=True)
        await log.wait_loaded()
        await append_held(node, log)
        assert log.end_offset == batch_at + 1


async def append_held(node: Node, log: PartitionLog) -> None:
    class Held:
        def require_log(self, _number: int) -> PartitionLog:
            return log

    await append_at(node, Held(), 0, b"x")


async def test_an_append_in_progress_is_acknowledged_when_it_is_durable() -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        appending = asyncio.create_task(append_at(node, topic, 0, b"b"))
        log = topic.require_log(0)
        await until(lambda: log.end_offset == 2)
        step_down(node)
        assert await appending == 1
        step_up(node, has_survived=True)
        assert await cluster.append("t", 0, b"c") == 2
        assert await cluster.values("t", 0) == [b"a", b"b", b"c"]


async def test_suspending_a_log_refuses_its_waiters_and_loading_continues() -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        held, get = asyncio.Event(), node.metadata.get

        async def late(key: str) -> object:
            await held.wait()
            return await get(key)

        node.metadata.get = late
        log = node.topics.logs.make(topic.fact, 1, node.ownership.leader(topic, 1).leader_epoch)
        node.ownership._tenures.served[topic.id, 1] = topic.partitions[1] = log  # as after a claim
        waiting = asyncio.create_task(log.wait_loaded())
        await asyncio.sleep(0.01)
        step_down(node)
        with pytest.raises(NotOwner):
            await asyncio.wait_for(waiting, 5)
        held.set()
        node.metadata.get = get
        await until(lambda: log.is_loaded)
        with pytest.raises(NotOwner):
            log.prepare()
        step_up(node, has_survived=True)
        assert topic.require_log(1) is log
        assert await cluster.append("t", 1, b"b") == 0


async def change_in_suspension(
    change: Callable[[Cluster, Node, Topic], Awaitable[None]],
    check: Callable[[Cluster, Node, Topic], Awaitable[None]],
) -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        step_down(node)
        await change(cluster, node, topic)
        step_up(node, has_survived=True)
        await check(cluster, node, topic)


async def test_a_topic_deleted_in_between_is_not_served_again() -> None:
    async def change(_cluster: Cluster, node: Node, topic: Topic) -> None:
        node.topics._remove(topic)

    async def check(_cluster: Cluster, node: Node, topic: Topic) -> None:
        assert (topic.id, 0) not in node.ownership._tenures.suspended.by_key
        await until(lambda: (topic.id, 0) not in node.ownership._tenures.served)

    await change_in_suspension(change, check)


async def test_settings_changed_in_between_are_applied() -> None:
    async def change(_cluster: Cluster, node: Node, topic: Topic) -> None:
        topic.fact.configs["max.message.bytes"] = "1234"

    async def check(_cluster: Cluster, _node: Node, topic: Topic) -> None:
        assert topic.require_log(0).config.max_message_bytes == 1234

    await change_in_suspension(change, check)


async def test_a_partition_that_has_another_owner_is_left_to_it() -> None:
    async def change(_cluster: Cluster, node: Node, topic: Topic) -> None:
        owner = node.ownership.view.owners[topic.id, 0]
        fact = OwnerFact(1, "another incarnation", 1)
        node.ownership.view.own((topic.id, 0), fact, owner.version + 1)

    async def check(_cluster: Cluster, node: Node, topic: Topic) -> None:
        assert not node.ownership.is_mine(topic, 0)
        assert node.ownership.is_mine(topic, 1)

    await change_in_suspension(change, check)


async def test_a_chain_deleted_in_between_is_noticed() -> None:
    """An append to its ledger would be lost."""

    async def change(_cluster: Cluster, node: Node, topic: Topic) -> None:
        log = node.ownership._tenures.suspended.by_key[topic.id, 0]
        await node.metadata.delete(partition_key(topic.id, 0), ANY)
        await until(lambda: isinstance(log.failure, ChainMissing))

    async def check(cluster: Cluster, node: Node, topic: Topic) -> None:
        await until(lambda: node.ownership.is_mine(topic, 0))
        log = topic.require_log(0)
        with pytest.raises(ChainMissing):
            await log.wait_loaded()

    await change_in_suspension(change, check)


async def check_read_anew(cluster: Cluster, node: Node, topic: Topic) -> None:
    await until(lambda: node.ownership.leader(topic, 0) == (1, 1))
    assert await cluster.append("t", 0, b"b") == 1


async def test_a_log_that_fails_in_between_is_read_again() -> None:
    async def change(_cluster: Cluster, node: Node, topic: Topic) -> None:
        log = node.ownership._tenures.suspended.by_key[topic.id, 0]
        log.lifecycle_host.fail(NotOwner("storage names another owner"))

    await change_in_suspension(change, check_read_anew)


async def test_a_log_that_is_handed_over_in_between_is_read_again() -> None:
    async def change(_cluster: Cluster, node: Node, topic: Topic) -> None:
        log = node.ownership._tenures.suspended.by_key[topic.id, 0]
        await log.tenure.settle_and_seal()

    await change_in_suspension(change, check_read_anew)


async def test_logs_with_companions_are_not_suspended() -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        await topic.require_log(1).note_companion(CompanionKind.SHARES)
        step_down(node)
        assert list(node.ownership._tenures.suspended.by_key) == [(topic.id, 0)]
        step_up(node, has_survived=True)
        await until(lambda: cluster.agree("t", {1}))
        assert node.ownership.leader(topic, 0).leader_epoch == 0
        assert node.ownership.leader(topic, 1).leader_epoch == 1


async def coordinator(cluster: Cluster) -> tuple[Node, Topic, int]:
    """A broker, the topic of offsets, and the partition of the group `g`."""
    node, _ = await one_broker(cluster)
    offsets = await node.topics.ensure_internal(OFFSETS_TOPIC)
    await until(lambda: cluster.agree(OFFSETS_TOPIC, {1}))
    return node, offsets, node.groups.partition_for("g")


async def commit(node: Node, offset: int) -> HeadraceError | None:
    command = CommitCommand("g", -1, "", None, [OffsetToCommit("t", 0, offset)])
    return (await node.groups.submit(command)).results[0].error


async def committed(node: Node) -> int:
    """As a client asks, which tries again."""
    command = FetchOffsetsCommand("g", [("t", 0)])
    while (reply := await node.groups.submit(command)).error is not None:
        assert isinstance(reply.error, CoordinatorUnavailable | CoordinatorLoading)
        await asyncio.sleep(0.005)
    return reply.offsets[0].offset


async def test_a_coordinator_continues_with_its_state() -> None:
    """Reading a long log again takes seconds on busy cores, and holds up what else is served."""

    async with Cluster() as cluster:
        node, offsets, number = await coordinator(cluster)
        assert await commit(node, 5) is None
        before, log = await versions(node, offsets), offsets.require_log(number)
        machines = node.groups.shards.machines()
        step_down(node)
        assert isinstance(await commit(node, 6), NotCoordinator)
        assert not node.groups.shards.machines()
        step_up(node, has_survived=True)
        # Unasked: members' sessions expire.
        await until(lambda: len(node.groups.shards.machines()) == 1)
        assert node.groups.shards.machines()[0] is machines[0]
        assert await committed(node) == 5
        assert await commit(node, 7) is None
        assert offsets.require_log(number) is log
        assert await versions(node, offsets) == before
        await read_anew(node)
        assert await committed(node) == 7


async def read_anew(node: Node) -> None:
    """In another session, a coordinator reads its log."""
    machines = node.groups.shards.machines()
    step_down(node)
    step_up(node, has_survived=False)
    await until(lambda: len(node.groups.shards.machines()) == 1)
    assert node.groups.shards.machines()[0] is not machines[0]


async def test_a_coordinator_that_has_decided_in_this_turn_reads_its_log_again() -> None:
    """Its state has what the log refuses now."""

    async with Cluster() as cluster:
        node, _, number = await coordinator(cluster)
        assert await commit(node, 5) is None
        shard = node.groups.shards.shard(number)
        deciding = asyncio.create_task(commit(node, 6))
        await asyncio.sleep(0)
        assert shard._appends.is_collecting
        step_down(node)
        assert isinstance(await deciding, CoordinatorUnavailable)
        step_up(node, has_survived=True)
        assert await committed(node) == 5


async def test_a_coordinator_with_waiting_members_reads_its_log_again() -> None:
    """They have to look for it, and would wait for each other until they time out."""

    async with Cluster() as cluster:
        cluster.settings["group_initial_rebalance_delay_ms"] = 600_000
        node, _, number = await coordinator(cluster)
        assert await commit(node, 5) is None
        shard = node.groups.shards.shard(number)
        protocols = [("range", b"")]
        command = JoinCommand("g", "", None, "c", "host", 9_000, 600_000, "consumer", protocols)
        joining = asyncio.create_task(node.groups.submit(command))
        await until(lambda: shard._parked)
        step_down(node)
        assert isinstance((await joining).error, NotCoordinator)
        step_up(node, has_survived=True)
        assert await committed(node) == 5
        assert node.groups.shards.shard(number) is not shard


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("is_early", [False, True])
async def test_a_coordinator_waits_for_what_was_being_appended(fails: bool, is_early: bool) -> None:
    """Its state has it, although it may not be stored. `is_early`: while it is suspended."""

    async with Cluster() as cluster:
        node, offsets, number = await coordinator(cluster)
        assert await commit(node, 5) is None
        log = offsets.require_log(number)
        held, append = Completion(), log._store.append

        def appended(*arguments: object) -> tuple[int, Completion]:
            return log.active.end_position if fails else append(*arguments)[0], held

        log._store.append = appended
        committing = asyncio.create_task(commit(node, 6))
        await until(lambda: log.has_pending)
        log._store.append = append
        step_down(node)
        reading: asyncio.Task[int] | None = None
        if not is_early:
            step_up(node, has_survived=True)
            reading = asyncio.create_task(committed(node))
            await asyncio.wait([reading], timeout=0.2)
            assert not reading.done()
        if fails:
            held.fail(StorageUnavailable("a bookie"))
        else:
            held.succeed()
        if reading is None:
            await asyncio.sleep(0)
            step_up(node, has_survived=True)
            reading = asyncio.create_task(committed(node))
        assert await reading == (5 if fails else 6)
        assert isinstance(await committing, CoordinatorUnavailable) == fails
        assert await commit(node, 7) is None
        assert await committed(node) == 7


async def test_a_broker_that_was_frozen_long_past_its_session_keeps_nothing() -> None:
    """Its ledgers may have been deleted, with their fences."""

    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        log = topic.require_log(0)
        node.metadata.session.ends_ns = node.clock.now_ns() - 61_000_000_000
        step_down(node)
        assert not node.ownership._tenures.suspended.by_key
        with pytest.raises(NotOwner):
            log.prepare()


async def test_a_broker_that_stops_while_it_is_suspended_releases_its_ledgers() -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        log = topic.require_log(0)
        step_down(node)
        await node.leave()
        assert log.active is None
        assert not node.ownership._tenures.suspended.by_key


async def test_a_ledger_change_while_suspended_accepts_no_append() -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        log = topic.require_log(0)
        step_down(node)
        await log.roll_now()
        assert len(log.segments) == 2
        with pytest.raises(NotOwner):
            await append_held(node, log)
        step_up(node, has_survived=True)
        assert await append_at(node, topic, 0, b"b") == 1


async def test_metadata_that_cannot_be_written_does_not_end_a_suspended_log() -> None:
    async with Cluster() as cluster:
        node, topic = await one_broker(cluster)
        log = topic.require_log(0)
        put = node.metadata.put

        async def away(*_: object, **__: object) -> int:
            raise MetadataUnavailable("away")

        node.metadata.put = away
        step_down(node)
        rolling = asyncio.create_task(log.roll_now())
        await asyncio.wait([rolling], timeout=0.2)
        node.metadata.put = put
        step_up(node, has_survived=True)
        assert await cluster.append("t", 0, b"b") == 1
        await log.roll_now()
        assert await cluster.append("t", 0, b"c") == 2
