"""Share groups as administrators see them: listed, described, moved, deleted."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.kit.broker import BrokerHarness, on_a_broker
from tests.kit.records import append, batch

from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.coordination.shares.commands import ACCEPT, Settlement
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    COORDINATOR_LOAD_IN_PROGRESS,
    GROUP_ID_NOT_FOUND,
    INVALID_REQUEST,
    NON_EMPTY_GROUP,
    UNKNOWN_TOPIC_OR_PARTITION,
)

GROUP = "workers"


on_broker = on_a_broker(lambda rig: rig)


async def topic_with(rig: BrokerHarness, name: str, *values: bytes) -> None:
    await rig.node.group_configs.change(GROUP, lambda _: {"share.auto.offset.reset": "earliest"})
    await rig.node.topics.create(name, 2)
    log = rig.node.topics.get(name).partitions[0]
    await log.wait_loaded()
    for value in values:
        data = batch(value)
        await append(log, data)


async def consume(rig: BrokerHarness, name: str, count: int) -> None:
    """Receive all, acknowledge the first `count`."""
    topic = rig.node.topics.get(name)
    asked = ReceiveRequest(GROUP, "m", 100, 1_000_000)
    received = await rig.node.shares.receive(topic, 0, asked)
    assert received.acquired
    settled = [Settlement(0, count - 1, ACCEPT)]
    await rig.node.shares.settle(topic, 0, GROUP, "m", settled, is_atomic=True)


async def offsets(rig: BrokerHarness, *topics: str) -> dict[tuple[str, int], tuple[int, int]]:
    """(start offset, lag) of each partition."""
    asked = [{"topic_name": name, "partitions": (0,)} for name in topics] if topics else None
    answer = await rig.client().ask(
        apis.DESCRIBE_SHARE_GROUP_OFFSETS, 1, {"groups": [{"group_id": GROUP, "topics": asked}]}
    )
    (group,) = answer.groups
    assert int(group.error_code) == 0, group.error_message
    return {
        (topic.topic_name, part.partition_index): (part.start_offset, part.lag)
        for topic in group.topics
        for part in topic.partitions
    }


async def alter(rig: BrokerHarness, name: str, number: int, offset: int) -> tuple[int, list[int]]:
    """(the request's error, the partitions' errors)."""
    parts = [{"partition_index": number, "start_offset": offset}]
    answer = await rig.client().ask(
        apis.ALTER_SHARE_GROUP_OFFSETS,
        0,
        {"group_id": GROUP, "topics": [{"topic_name": name, "partitions": parts}]},
    )
    errors = [int(part.error_code) for topic in answer.responses for part in topic.partitions]
    return int(answer.error_code), errors


async def heartbeat(
    rig: BrokerHarness, member_id: str = "m", epoch: int = 0, topic: str = "jobs"
) -> int:
    beat = {"group_id": GROUP, "member_id": member_id, "member_epoch": epoch}
    beat |= {"subscribed_topic_names": (topic,) if epoch == 0 else None}
    answer = await rig.client().ask(apis.SHARE_GROUP_HEARTBEAT, 1, beat)
    return int(answer.error_code)


async def join(
    rig: BrokerHarness, member_id: str = "m", epoch: int = 0, topic: str = "jobs"
) -> None:
    assert await heartbeat(rig, member_id, epoch, topic) == 0


async def listed(rig: BrokerHarness, **filters: Any) -> list[tuple[str, str, str]]:
    answer = await rig.client().ask(apis.LIST_GROUPS, 5, filters)
    return [(one.group_id, one.group_state, one.group_type) for one in answer.groups]


async def delete_group(rig: BrokerHarness) -> int:
    answer = await rig.client().ask(apis.DELETE_GROUPS, 2, {"groups_names": (GROUP,)})
    return int(answer.results[0].error_code)


@on_broker
async def test_offsets_say_where_a_group_stands_and_how_much_is_left(rig: BrokerHarness) -> None:
    await topic_with(rig, "jobs", b"1", b"2", b"3")
    await topic_with(rig, "other", b"1")
    await consume(rig, "jobs", 2)
    assert await offsets(rig) == {("jobs", 0): (2, 1)}
    assert await offsets(rig, "jobs", "other", "unknown") == {
        ("jobs", 0): (2, 1),
        ("other", 0): (-1, -1),
        ("unknown", 0): (-1, -1),
    }


@on_broker
async def test_an_empty_group_is_moved_and_reads_from_there(rig: BrokerHarness) -> None:
    await topic_with(rig, "jobs", b"1", b"2", b"3")
    await consume(rig, "jobs", 3)
    assert await alter(rig, "jobs", 0, 1) == (0, [0])
    assert await offsets(rig) == {("jobs", 0): (1, 2)}
    await consume(rig, "jobs", 2)
    assert await alter(rig, "jobs", 7, 1) == (0, [UNKNOWN_TOPIC_OR_PARTITION])
    assert await alter(rig, "jobs", 0, -2) == (0, [INVALID_REQUEST])


@on_broker
async def test_a_group_is_created_by_saying_where_it_begins(rig: BrokerHarness) -> None:
    await topic_with(rig, "jobs", b"1", b"2", b"3")
    assert await alter(rig, "jobs", 0, 2) == (0, [0])
    assert await offsets(rig) == {("jobs", 0): (2, 1)}
    assert await listed(rig) == [(GROUP, "Empty", "share")]


@on_broker
async def test_a_group_with_members_is_neither_moved_nor_deleted(rig: BrokerHarness) -> None:
    await topic_with(rig, "jobs", b"1")
    await consume(rig, "jobs", 1)
    await join(rig)
    assert await alter(rig, "jobs", 0, 0) == (NON_EMPTY_GROUP, [])
    request = {"group_id": GROUP, "topics": [{"topic_name": "jobs"}]}
    answer = await rig.client().ask(apis.DELETE_SHARE_GROUP_OFFSETS, 0, request)
    assert int(answer.error_code) == NON_EMPTY_GROUP
    assert await delete_group(rig) == NON_EMPTY_GROUP
    assert await offsets(rig) == {("jobs", 0): (1, 0)}
    await join(rig, epoch=-1)
    assert await delete_group(rig) == 0


@on_broker
async def test_nobody_joins_a_group_while_its_positions_change(rig: BrokerHarness) -> None:
    for name in ("jobs", "other"):
        await topic_with(rig, name, b"1")
        await consume(rig, name, 1)
    administration, refused = rig.node.share_group_administration, []

    def joined_first(change: Any) -> Any:
        async def changed(*arguments: Any) -> None:
            refused.append(await heartbeat(rig, epoch=0))
            await change(*arguments)

        return changed

    for name in ("forget_here", "move_here"):
        setattr(administration, name, joined_first(getattr(administration, name)))
    assert await alter(rig, "jobs", 0, 0) == (0, [0])
    request = {"group_id": GROUP, "topics": [{"topic_name": "jobs"}, {"topic_name": "unknown"}]}
    answer = await rig.client().ask(apis.DELETE_SHARE_GROUP_OFFSETS, 0, request)
    assert [int(one.error_code) for one in answer.responses] == [0, UNKNOWN_TOPIC_OR_PARTITION]
    assert await offsets(rig) == {("other", 0): (1, 0)}
    assert await delete_group(rig) == 0
    assert {*refused} == {COORDINATOR_LOAD_IN_PROGRESS}
    assert len(refused) == 5, "one partition moved; two, and two more, forgotten"
    await join(rig)


@on_broker
async def test_groups_are_listed_by_state_and_type_with_or_without_members(
    rig: BrokerHarness,
) -> None:
    await topic_with(rig, "jobs", b"1")
    await join(rig)
    assert await listed(rig) == [(GROUP, "Stable", "share")]
    await consume(rig, "jobs", 1)
    await join(rig, epoch=-1)
    assert await listed(rig) == [(GROUP, "Empty", "share")]
    assert await listed(rig, types_filter=("Share",)) == [(GROUP, "Empty", "share")]
    assert await listed(rig, types_filter=("classic",)) == []
    assert await listed(rig, states_filter=("stable",)) == []
    described = await rig.client().ask(apis.SHARE_GROUP_DESCRIBE, 1, {"group_ids": (GROUP, "x")})
    assert [(one.group_state, int(one.error_code)) for one in described.groups] == [
        ("Empty", 0),
        ("Dead", GROUP_ID_NOT_FOUND),
    ]


@on_broker
async def test_deleted_offsets_and_groups_are_forgotten_and_can_begin_again(
    rig: BrokerHarness,
) -> None:
    await topic_with(rig, "jobs", b"1", b"2")
    await topic_with(rig, "other", b"1")
    await consume(rig, "jobs", 2)
    await consume(rig, "other", 1)
    request = {"group_id": GROUP, "topics": [{"topic_name": "jobs"}, {"topic_name": "no"}]}
    answer = await rig.client().ask(apis.DELETE_SHARE_GROUP_OFFSETS, 0, request)
    assert [(one.topic_name, int(one.error_code)) for one in answer.responses] == [
        ("jobs", 0),
        ("no", UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert await offsets(rig) == {("other", 0): (1, 0)}
    assert await delete_group(rig) == 0
    assert await listed(rig) == []
    assert await delete_group(rig) == GROUP_ID_NOT_FOUND
    await consume(rig, "jobs", 1)
    assert await offsets(rig) == {("jobs", 0): (1, 1)}


@on_broker
async def test_a_deleted_topic_leaves_no_share_group_that_only_read_it(rig: BrokerHarness) -> None:
    await topic_with(rig, "jobs", b"1")
    await consume(rig, "jobs", 1)
    assert await listed(rig) == [(GROUP, "Empty", "share")]
    await rig.node.services.topics.delete("jobs")
    for _ in range(100):
        await asyncio.sleep(0)
    assert await listed(rig) == []


@on_broker
async def test_owners_answer_coordinators_for_their_partitions(rig: BrokerHarness) -> None:
    await topic_with(rig, "jobs", b"1", b"2", b"3")
    await consume(rig, "jobs", 2)
    topic_id = rig.node.topics.get("jobs").id

    async def ask(api: int, version: int, **values: int) -> Any:
        parts = [{"partition": 0, **values}, {"partition": 9, **values}]
        request = {"group_id": GROUP, "topics": [{"topic_id": topic_id, "partitions": parts}]}
        answer = await rig.client().ask(api, version, request)
        first, second = answer.results[0].partitions
        assert int(second.error_code) == UNKNOWN_TOPIC_OR_PARTITION
        assert int(first.error_code) == 0
        return first

    read = await ask(apis.READ_SHARE_GROUP_STATE_SUMMARY, 1, leader_epoch=-1)
    assert (read.start_offset, read.delivery_complete_count) == (2, 0)
    await ask(apis.INITIALIZE_SHARE_GROUP_STATE, 0, state_epoch=0, start_offset=1)
    assert await offsets(rig) == {("jobs", 0): (1, 2)}
    await ask(apis.DELETE_SHARE_GROUP_STATE, 0)
    read = await ask(apis.READ_SHARE_GROUP_STATE_SUMMARY, 1, leader_epoch=-1)
    assert read.start_offset == -1
