"""ShareFetch and ShareAcknowledge, request by request, on a broker in memory."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from tests.kit.broker import broker
from tests.kit.records import append, batch
from tests.unit.broker.test_share_partitions import GROUP, topic_with
from tests.unit.kafka.access_rig import NamedClient
from tests.waiting import until

from headrace.broker.security.principal import Principal
from headrace.broker.shares import share_sessions
from headrace.coordination.quotas.entities import CONSUMER, USER
from headrace.kafka.apis import SHARE_ACKNOWLEDGE, SHARE_FETCH
from headrace.kafka.error_codes import (
    INVALID_RECORD_STATE,
    INVALID_REQUEST,
    INVALID_SHARE_SESSION_EPOCH,
    SHARE_SESSION_LIMIT_REACHED,
    SHARE_SESSION_NOT_FOUND,
    UNKNOWN_TOPIC_ID,
)
from headrace.kafka.handlers.share_fetch import PARTITIONS_AT_ONCE


def fetch(topic_id, epoch, wait_ms=0, **more):
    topics = [{"topic_id": topic_id, "partitions": [{"partition_index": 0, **more}]}]
    return {
        "group_id": GROUP,
        "member_id": "m",
        "share_session_epoch": epoch,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "max_records": 500,
        "batch_size": 500,
        "topics": topics,
    }


def acknowledge(topic_id, epoch, first, last, *kinds):
    batches = [{"first_offset": first, "last_offset": last, "acknowledge_types": kinds}]
    part = {"partition_index": 0, "acknowledgement_batches": batches}
    return {
        "group_id": GROUP,
        "member_id": "m",
        "share_session_epoch": epoch,
        "topics": [{"topic_id": topic_id, "partitions": [part]}],
    }


def only_part(answer):
    assert answer.error_code == 0
    return answer.responses[0].partitions[0]


async def test_records_are_fetched_and_acknowledged_in_a_session():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2", b"3"))
        client = rig.client()
        part = only_part(await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0)))
        (acquired,) = part.acquired_records
        assert (acquired.first_offset, acquired.last_offset) == (0, 2)
        asked = acknowledge(topic.id, 1, 0, 2, 1, 2, 3)
        answer = await client.ask(SHARE_ACKNOWLEDGE, 2, asked)
        assert only_part(answer).error_code == 0
        asked = acknowledge(topic.id, 2, 0, 2, 1)
        answer = await client.ask(SHARE_ACKNOWLEDGE, 2, asked)
        assert only_part(answer).error_code == INVALID_RECORD_STATE
        part = only_part(await client.ask(SHARE_FETCH, 2, fetch(topic.id, 3)))
        assert [item.delivery_count for item in part.acquired_records] == [2]


async def test_a_consumer_over_its_rate_acknowledges_and_gets_nothing_until_the_time_is_over():
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"v" * 3_000), batch(b"2"))
        await rig.node.quotas.change([(USER, None)], {CONSUMER: 1_000.0})
        client, again = rig.client(), rig.client()
        answer = await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0))
        assert [one.first_offset for one in only_part(answer).acquired_records] == [0]
        assert 1_900 < answer.throttle_time.total_seconds() * 1_000 <= 2_500
        done = [{"first_offset": 0, "last_offset": 0, "acknowledge_types": (1,)}]
        asked = fetch(topic.id, 1, acknowledgement_batches=done)
        answer = await again.ask(SHARE_FETCH, 2, asked)
        assert only_part(answer).acknowledge_error_code == 0
        assert only_part(answer).acquired_records == ()
        assert answer.throttle_time.total_seconds() > 1
        await rig.node.quotas.change([(USER, None)], {CONSUMER: None})
        answer = await rig.client().ask(SHARE_FETCH, 2, fetch(topic.id, 2))
        assert [one.first_offset for one in only_part(answer).acquired_records] == [1]


@pytest.mark.parametrize(
    ("epoch", "code"), [(7, INVALID_SHARE_SESSION_EPOCH), (0, INVALID_SHARE_SESSION_EPOCH)]
)
async def test_acknowledgements_belong_to_the_sessions_next_epoch(epoch, code):
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1"))
        client = rig.client()
        asked = acknowledge(topic.id, 1, 0, 0, 1)
        assert (await client.ask(SHARE_ACKNOWLEDGE, 2, asked)).error_code == (
            SHARE_SESSION_NOT_FOUND
        )
        await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0))
        asked = acknowledge(topic.id, epoch, 0, 0, 1)
        assert (await client.ask(SHARE_ACKNOWLEDGE, 2, asked)).error_code == code


async def test_a_topic_id_of_zero_is_an_error_of_its_partition_alone():
    async with broker() as rig:
        await topic_with(rig, batch(b"1"))
        answer = await rig.client().ask(SHARE_FETCH, 2, fetch(None, 0))
        assert only_part(answer).error_code == UNKNOWN_TOPIC_ID


async def test_a_consumer_whose_connection_ends_while_it_waits_gets_nothing_more():
    async with broker() as rig:
        topic = await topic_with(rig)
        client = rig.client()
        await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0))
        client.send(SHARE_FETCH, 2, fetch(topic.id, 1, 60_000))
        await asyncio.sleep(0.01)
        client.transport.abort()
        while len(rig.node.share_groups.sessions):
            await asyncio.sleep(0)
        await append(topic.partitions[0], batch(b"1"))
        for _ in range(50):
            await asyncio.sleep(0)
        described = await rig.node.shares.describe(topic, 0)
        assert [found.acquired_records for found in described] == [0]


@pytest.mark.parametrize(
    ("first", "last", "kinds"),
    [(3, 1, (1,)), (0, 2, ()), (0, 2, (1, 1)), (0, 0, (9,)), (0, 0, (4,)), (-1, 0, (1,))],
)
async def test_acknowledgements_that_cannot_be_are_refused(first, last, kinds):
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2", b"3"))
        client = rig.client()
        await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0))
        asked = acknowledge(topic.id, 1, first, last, *kinds)
        answer = await client.ask(SHARE_ACKNOWLEDGE, 2, asked)
        assert only_part(answer).error_code == INVALID_REQUEST


async def test_all_share_sessions_together_have_a_bounded_number_of_partitions(monkeypatch):
    monkeypatch.setattr(share_sessions, "PARTITIONS_TOTAL_MAX", 10)
    async with broker() as rig:
        client = rig.client()

        def opening(member, count):
            parts = [{"partition_index": number} for number in range(count)]
            asked = fetch(UUID(int=7), 0) | {"member_id": member}
            return asked | {"topics": [{"topic_id": UUID(int=7), "partitions": parts}]}

        for member, count, code in (
            ("a", 6, 0),
            ("b", 5, SHARE_SESSION_LIMIT_REACHED),
            ("b", 4, 0),
            ("a", 7, SHARE_SESSION_LIMIT_REACHED),
            ("a", 6, 0),
        ):
            answer = await client.ask(SHARE_FETCH, 2, opening(member, count))
            assert answer.error_code == code
        count = len(client.asked)
        client.send(SHARE_FETCH, 2, opening("b", 5) | {"max_wait": 60_000})
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(client.answers()) == count, "who has too many may not ask again at once"
        client.transport.abort()
        while len(rig.node.share_groups.sessions):
            await asyncio.sleep(0)
        assert rig.node.share_groups.sessions._partition_count == 0


async def test_a_user_leaves_share_sessions_for_the_clients_of_others(monkeypatch):
    monkeypatch.setattr(share_sessions, "SESSIONS_MAX", 9)
    async with broker() as rig:
        noisy, quiet = (NamedClient(rig, Principal(name)) for name in ("noisy", "quiet"))
        nothing = {"forgotten_topics_data": [], "topics": [], "max_wait_ms": 0}

        async def opened(client, member):
            asked = fetch(UUID(int=7), 0) | nothing | {"member_id": member}
            return (await client.ask(SHARE_FETCH, 1, asked)).error_code

        codes = [await opened(noisy, f"n{number}") for number in range(9)]
        assert codes == [0] * 6 + [SHARE_SESSION_LIMIT_REACHED] * 3
        assert await opened(quiet, "q") == 0
        assert await opened(noisy, "n0") == 0, "in the place of its own"
        noisy.transport.abort()
        await until(lambda: len(rig.node.share_groups.sessions) == 1)
        assert [await opened(quiet, f"q{number}") for number in range(5)] == [0] * 5


async def test_a_fetch_that_wants_too_many_partitions_has_acknowledged(monkeypatch):
    """Otherwise what was processed would be delivered again. Kafka's client opens a new session
    after the error, which cannot acknowledge what the former one had."""
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2", b"3"))
        client = rig.client()
        assert only_part(await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0))).acquired_records
        monkeypatch.setattr(share_sessions, "PARTITIONS_TOTAL_MAX", 10)
        asked = fetch(topic.id, 1) | {"topics": acknowledge(topic.id, 1, 0, 2, 1)["topics"]}
        asked["topics"][0]["partitions"] += [{"partition_index": one} for one in range(1, 11)]
        answer = await client.ask(SHARE_FETCH, 2, asked)
        assert answer.error_code == SHARE_SESSION_LIMIT_REACHED
        answer = await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0))
        assert answer.error_code == 0
        assert not answer.responses, "all of them are finished"


async def test_what_a_session_with_too_many_partitions_holds_is_released_with_it(monkeypatch):
    async with broker() as rig:
        topic = await topic_with(rig, batch(b"1", b"2", b"3"))
        client = rig.client()
        assert only_part(await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0))).acquired_records
        monkeypatch.setattr(share_sessions, "PARTITIONS_TOTAL_MAX", 10)
        asked = fetch(topic.id, 1)
        asked["topics"][0]["partitions"] += [{"partition_index": one} for one in range(1, 11)]
        answer = await client.ask(SHARE_FETCH, 2, asked)
        assert answer.error_code == SHARE_SESSION_LIMIT_REACHED
        again = only_part(await client.ask(SHARE_FETCH, 2, fetch(topic.id, 0)))
        assert again.acquired_records[0].delivery_count == 2


async def test_a_fetch_of_many_partitions_gives_others_their_turns(monkeypatch):
    async with broker() as rig:
        await topic_with(rig)
        await rig.node.topics.create("many", 1_000, 1, {})
        topic, asked = rig.node.topics.get("many"), 0
        receive = rig.node.services.shares.receive

        async def counted(*given):
            nonlocal asked
            asked += 1
            return await receive(*given)

        monkeypatch.setattr(rig.node.services.shares, "receive", counted)
        request = fetch(topic.id, 0)
        request["topics"][0]["partitions"] = [{"partition_index": one} for one in range(1_000)]
        client = rig.client()
        client.send(SHARE_FETCH, 2, request)
        in_turns = [asked]
        async with asyncio.timeout(60):
            while not client.answers():
                before = asked
                await asyncio.sleep(0)
                in_turns.append(asked - before)
        assert sum(in_turns) == 1_000
        assert max(in_turns) <= PARTITIONS_AT_ONCE
