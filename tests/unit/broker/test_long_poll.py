"""One wait for any of several partitions."""

from __future__ import annotations

import asyncio

from tests.kit.broker import broker
from tests.kit.records import append, batch
from tests.unit.broker.test_share_partitions import (
    GROUP,
    ask,
    everything,
    make_topic,
)
from tests.waiting import until

from headrace.broker.services.long_poll import LongPoll, wait_for_records
from headrace.errors import NotOwner
from headrace.log.visibility import READ_COMMITTED, READ_UNCOMMITTED
from headrace.log.waiters import Waiters


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


class Looks(list):
    def look(self, is_over):
        self.append(is_over)


async def test_changes_of_one_turn_are_looked_at_once_and_nothing_is_retained():
    looks, one, other = Looks(), Waiters(), Waiters()
    poll = LongPoll(asyncio.get_running_loop(), looks.look)
    poll.watch(one, READ_UNCOMMITTED)
    poll.watch(other, READ_COMMITTED)
    poll.begin(60)
    one.wake()
    other.wake()
    one.wake()
    assert looks == []
    await turns()
    assert looks == [False]
    other.wake(has_committed=False)
    await turns()
    assert looks == [False], "readers of committed transactions have nothing new"
    one.wake()
    poll.end()
    poll.end()
    await turns()
    assert looks == [False]
    assert not one
    assert not other


async def test_a_wait_whose_time_is_over_looks_once_more_and_has_ended():
    looks, source = Looks(), Waiters()
    poll = LongPoll(asyncio.get_running_loop(), looks.look)
    poll.watch(source, READ_UNCOMMITTED)
    poll.begin(0)
    await until(lambda: looks)
    assert looks == [True]
    assert poll.has_ended
    assert not source


async def _two_waiting(rig):
    """Two partitions that a member has emptied, and what it saw."""
    await rig.node.group_configs.change(GROUP, lambda _: {"share.auto.offset.reset": "earliest"})
    waiting = []
    for name in ("one", "other"):
        topic = await make_topic(rig, name)
        received = await rig.node.shares.receive(topic, 0, ask())
        waiting.append((topic, 0, received.pause))
    return waiting


async def test_records_of_any_partition_end_the_wait_and_no_task_waits_for_it():
    async with broker() as rig:
        waiting = await _two_waiting(rig)
        before = len(asyncio.all_tasks())
        task = asyncio.create_task(wait_for_records(rig.node.shares, waiting, 60))
        await turns()
        assert len(asyncio.all_tasks()) == before + 1
        assert not task.done()
        await append(waiting[1][0].partitions[0], batch(b"1"))
        await asyncio.wait_for(task, 20)
        for topic, number, _ in waiting:
            hosted = await rig.node.shares.watched(topic, number)
            assert not hosted.waiters
            assert not hosted.data.waiters


async def test_records_appended_before_the_wait_are_not_missed():
    async with broker() as rig:
        waiting = await _two_waiting(rig)
        await append(waiting[0][0].partitions[0], batch(b"1"))
        await asyncio.wait_for(wait_for_records(rig.node.shares, waiting, 60), 20)


async def test_a_session_that_ends_and_a_partition_that_changes_hands_end_the_wait():
    async with broker() as rig:
        waiting, session = await _two_waiting(rig), Waiters()
        task = asyncio.create_task(wait_for_records(rig.node.shares, waiting, 60, session))
        await turns()
        session.wake()
        await asyncio.wait_for(task, 20)
        task = asyncio.create_task(wait_for_records(rig.node.shares, waiting, 60, session))
        await turns()
        waiting[0][0].partitions[0].tenure.abandon(NotOwner("another broker has it"))
        await asyncio.wait_for(task, 20)


async def test_a_settlement_by_another_member_ends_the_wait():
    async with broker() as rig:
        waiting = await _two_waiting(rig)
        topic = waiting[0][0]
        await append(topic.partitions[0], batch(b"1"))
        shares = rig.node.shares
        held = await shares.receive(topic, 0, ask("a"))
        seen = (await shares.receive(topic, 0, ask("b"))).pause
        task = asyncio.create_task(wait_for_records(shares, [(topic, 0, seen)], 60))
        await turns()
        settlements = everything(held)
        await shares.settle(topic, 0, GROUP, "a", settlements, is_atomic=True)
        await asyncio.wait_for(task, 20)
