"""One id is that of a share group or of a consumer group, never of both."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.kit.broker import broker
from tests.unit.broker.test_share_partitions import make_topic

from headrace.kafka import apis
from headrace.kafka.error_codes import (
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    INCONSISTENT_GROUP_PROTOCOL,
)

SHARE = {"group_id": "g", "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["jobs"]}
CONSUMER = {
    "group_id": "g",
    "member_id": str(UUID(int=7)),
    "member_epoch": 0,
    "rebalance_timeout": 60_000,
    "subscribed_topic_names": ["jobs"],
    "topic_partitions": [],
}
CLASSIC = {
    "group_id": "g",
    "session_timeout": 30_000,
    "rebalance_timeout": 1_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"x"}],
}
COMMIT = {
    "group_id": "g",
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "topics": [
        {"name": "jobs", "partitions": [{"partition_index": 0, "committed_offset": 1,
                                         "committed_metadata": ""}]}
    ],
}  # fmt: skip


async def ask(rig, api, version, request):
    while True:
        answer = await rig.client().ask(api, version, request)
        if answer.error_code not in {14, 15, 16}:  # loading, not available, not the coordinator
            return answer
        await asyncio.sleep(0.01)


async def test_a_consumer_cannot_join_a_share_group():
    async with broker() as rig:
        await make_topic(rig, "jobs")
        assert (await ask(rig, apis.SHARE_GROUP_HEARTBEAT, 1, SHARE)).error_code == 0
        answer = await ask(rig, apis.CONSUMER_GROUP_HEARTBEAT, 0, CONSUMER)
        assert answer.error_code == GROUP_ID_NOT_FOUND
        assert "share group" in answer.error_message
        answer = await ask(rig, apis.JOIN_GROUP, 5, CLASSIC)
        assert answer.error_code == INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("kind", ["members", "offsets"])
async def test_a_share_consumer_cannot_join_a_consumer_group(kind):
    async with broker() as rig:
        await make_topic(rig, "jobs")
        other = {**SHARE, "group_id": "other"}
        assert (await ask(rig, apis.SHARE_GROUP_HEARTBEAT, 1, other)).error_code == 0
        if kind == "members":
            answer = await ask(rig, apis.CONSUMER_GROUP_HEARTBEAT, 0, CONSUMER)
            assert answer.error_code == 0
        else:
            answer = await rig.client().ask(apis.OFFSET_COMMIT, 8, COMMIT)
            assert answer.topics[0].partitions[0].error_code == 0
        answer = await ask(rig, apis.SHARE_GROUP_HEARTBEAT, 1, SHARE)
        assert answer.error_code == GROUP_ID_NOT_FOUND
        assert "is a consumer group" in answer.error_message


async def test_a_second_member_of_an_exclusive_share_group_is_refused_until_the_first_has_left():
    async with broker() as rig:
        await make_topic(rig, "jobs")
        await rig.node.group_configs.change(
            "g", lambda _: {"headrace.share.subscription": "exclusive"}
        )
        assert (await ask(rig, apis.SHARE_GROUP_HEARTBEAT, 1, SHARE)).error_code == 0
        second = {**SHARE, "member_id": "second"}
        answer = await ask(rig, apis.SHARE_GROUP_HEARTBEAT, 1, second)
        assert answer.error_code == GROUP_MAX_SIZE_REACHED
        leave = {**SHARE, "member_epoch": -1}
        assert (await ask(rig, apis.SHARE_GROUP_HEARTBEAT, 1, leave)).error_code == 0
        assert (await ask(rig, apis.SHARE_GROUP_HEARTBEAT, 1, second)).error_code == 0
