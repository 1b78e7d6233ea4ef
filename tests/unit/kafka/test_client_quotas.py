"""Client quotas over Kafka's protocol: set, shown, charged, and without effect on others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import broker
from tests.kit.records import batch

from headrace.coordination.quotas.entities import CLIENT_ID, IP, USER
from headrace.errors import RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED

if TYPE_CHECKING:
    from tests.kit.kafka_client import Client

RATE = 1_000


def _entity(parts: dict[str, str | None]) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in parts.items()]


async def alter(
    client: Client, parts: dict[str, str | None], dry_run: bool = False, **values: Any
) -> int:
    ops = [
        {"key": key, "value": value or 0.0, "remove": value is None}
        for key, value in values.items()
    ]
    entry = {"entity": _entity(parts), "ops": ops}
    request = {"entries": [entry], "validate_only": dry_run}
    answer = await client.ask(apis.ALTER_CLIENT_QUOTAS, 1, request)
    return int(answer.entries[0].error_code)


async def describe(client: Client, *components: tuple[str, int, str | None], strict: bool = False):
    request = {
        "components": [
            {"entity_type": kind, "match_type": match, "match": name}
            for kind, match, name in components
        ],
        "strict": strict,
    }
    answer = await client.ask(apis.DESCRIBE_CLIENT_QUOTAS, 1, request)
    if answer.error_code:
        return int(answer.error_code)
    return [
        (
            {part.entity_type: part.entity_name for part in entry.entity},
            {one.key: one.value for one in entry.values},
        )
        for entry in answer.entries
    ]


def throttle_ms(answer: Any) -> int:
    return round(answer.throttle_time.total_seconds() * 1_000)


def produce(size: int = 10, acks: int = -1) -> dict[str, Any]:
    data = {"name": "t", "partition_data": [{"index": 0, "records": batch(b"v" * size)}]}
    return {"acks": acks, "timeout": 1000, "transactional_id": None, "topic_data": [data]}


def fetch(offset: int = 0, session: int = 0, epoch: int = -1) -> dict[str, Any]:
    part = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": offset}
    part |= {"last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
    return {
        "max_wait_ms": 0,
        "max_bytes": 1 << 20,
        "session_id": session,
        "session_epoch": epoch,
        "topics": [{"topic": "t", "partitions": [part]}],
    }


async def test_quotas_are_set_shown_and_removed():
    async with broker() as rig:
        client = rig.client()
        assert await describe(client) == []
        assert await alter(client, {USER: "a", CLIENT_ID: None}, producer_byte_rate=10.0) == 0
        assert await alter(client, {CLIENT_ID: "b"}, True, request_percentage=5.0) == 0
        assert await alter(client, {CLIENT_ID: "b"}, request_percentage=2.5) == 0
        assert await alter(client, {IP: "127.0.0.1"}, connection_creation_rate=7.0) == 0
        both = {CLIENT_ID: None, USER: "a"}, {"producer_byte_rate": 10.0}
        one = {CLIENT_ID: "b"}, {"request_percentage": 2.5}
        assert await describe(client) == [
            both,
            one,
            ({IP: "127.0.0.1"}, {"connection_creation_rate": 7.0}),
        ]
        assert await describe(client, (CLIENT_ID, 2, None)) == [both, one]
        assert await describe(client, (CLIENT_ID, 2, None), strict=True) == [one]
        assert await describe(client, (CLIENT_ID, 1, None)) == [both]
        assert await describe(client, (CLIENT_ID, 0, "b")) == [one]
        assert await describe(client, ("planet", 2, None)) == INVALID_REQUEST
        assert await alter(client, {USER: "a", CLIENT_ID: None}, producer_byte_rate=None) == 0
        assert await alter(client, {CLIENT_ID: "b"}, request_percentage=None) == 0
        assert await alter(client, {IP: "127.0.0.1"}, connection_creation_rate=None) == 0
        assert await describe(client) == []
        assert not rig.node.quotas.is_active
        assert not rig.node.quotas.has_connection_quota


@pytest.mark.parametrize(
    ("parts", "values"),
    [
        ({}, {"producer_byte_rate": 1.0}),
        ({"planet": "a"}, {"producer_byte_rate": 1.0}),
        ({USER: ""}, {"producer_byte_rate": 1.0}),
        ({USER: "a", IP: "127.0.0.1"}, {"connection_creation_rate": 1.0}),
        ({IP: "nowhere"}, {"connection_creation_rate": 1.0}),
        ({IP: "127.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({USER: "a"}, {"connection_creation_rate": 1.0}),
        ({USER: "a"}, {"producer_byte_rate": -1.0}),
        ({USER: "a"}, {"producer_byte_rate": 1.5}),
        ({USER: "a"}, {"request_percentage": float("nan")}),
        ({USER: "a"}, {"planet_rate": None}),
    ],
)
async def test_impossible_quotas_are_refused_and_not_stored(parts, values):
    async with broker() as rig:
        client = rig.client()
        assert await alter(client, parts, **values) == INVALID_REQUEST
        assert await describe(client) == []


async def test_a_producer_over_its_rate_is_throttled_and_another_client_is_not():
    async with broker() as rig:
        await rig.node.topics.create("t")
        client, other = rig.client(), rig.client()
        assert await alter(client, {CLIENT_ID: "t"}, producer_byte_rate=float(RATE)) == 0
        assert throttle_ms(await client.ask(apis.PRODUCE, 9, produce())) == 0
        answer = await client.ask(apis.PRODUCE, 9, produce(3 * RATE))
        assert 1_900 < throttle_ms(answer) <= 2_500
        assert client.transport.is_paused
        assert answer.responses[0].partition_responses[0].error_code == 0
        figures = rig.node.quotas.throttled["producer_byte_rate"]
        assert (figures.count, figures.time_ms) == (1, throttle_ms(answer))
        assert throttle_ms(await other.ask(apis.METADATA, 9, {"topics": None})) == 0
        assert await alter(other, {CLIENT_ID: "t"}, producer_byte_rate=None) == 0
        assert throttle_ms(await other.ask(apis.PRODUCE, 9, produce(3 * RATE))) == 0


async def test_requests_that_were_sent_before_the_answer_wait_for_their_turn():
    async with broker() as rig:
        await rig.node.topics.create("t")
        client = rig.client()
        assert await alter(client, {CLIENT_ID: None}, producer_byte_rate=float(RATE)) == 0
        for _ in range(5):
            client.send(apis.PRODUCE, 9, produce(3 * RATE))
        assert rig.face.request_counts[apis.PRODUCE] == 1


async def test_a_producer_that_wants_no_answer_is_muted_all_the_same():
    async with broker() as rig:
        await rig.node.topics.create("t")
        client = rig.client()
        assert await alter(client, {CLIENT_ID: None}, producer_byte_rate=float(RATE)) == 0
        client.send(apis.PRODUCE, 9, produce(3 * RATE, acks=0))
        assert client.transport.is_paused


async def test_a_consumer_over_its_rate_gets_its_records_then_nothing_until_the_time_is_over():
    async with broker() as rig:
        await rig.node.topics.create("t")
        client, second, with_session = rig.client(), rig.client(), rig.client()
        await client.ask(apis.PRODUCE, 9, produce(3 * RATE))
        opened = await with_session.ask(apis.FETCH, 12, fetch(epoch=0))
        assert opened.session_id
        assert await alter(client, {USER: "ANONYMOUS"}, consumer_byte_rate=float(RATE)) == 0
        answer = await client.ask(apis.FETCH, 12, fetch())
        assert answer.responses[0].partitions[0].records
        assert 1_900 < throttle_ms(answer) <= 2_500
        for epoch in (0, -1):
            answer = await second.ask(apis.FETCH, 12, fetch(epoch=epoch))
            assert (answer.responses, answer.session_id) == ((), 0)
            assert 1_000 < throttle_ms(answer) <= 2_500
            second = rig.client()
        request = fetch(session=opened.session_id, epoch=1)
        answer = await with_session.ask(apis.FETCH, 12, request)
        assert (answer.responses, answer.session_id) == ((), opened.session_id)


async def test_partitions_are_created_at_the_rate_and_newer_clients_are_refused_meanwhile():
    async with broker() as rig:

        def new(name: str) -> dict[str, Any]:
            topic = {"name": name, "num_partitions": 30, "replication_factor": 1}
            return {"topics": [topic], "timeout_ms": 1000}

        client = rig.client()
        assert await alter(client, {USER: None}, controller_mutation_rate=1.0) == 0
        answer = await client.ask(apis.CREATE_TOPICS, 6, new("a"))
        assert answer.topics[0].error_code == 0
        assert 18_000 < throttle_ms(answer) <= 19_000
        answer = await rig.client().ask(apis.CREATE_TOPICS, 6, new("b"))
        assert answer.topics[0].error_code == THROTTLING_QUOTA_EXCEEDED
        assert throttle_ms(answer) > 18_000
        assert "b" not in rig.node.topics.by_name
        answer = await rig.client().ask(apis.CREATE_TOPICS, 5, new("b"))
        assert answer.topics[0].error_code == 0
        assert throttle_ms(answer) == 30_000
        answer = await rig.client().ask(apis.DELETE_TOPICS, 5, {"topic_names": ("a",)})
        assert answer.responses[0].error_code == THROTTLING_QUOTA_EXCEEDED


async def test_a_client_that_takes_more_of_the_loop_than_its_share_is_throttled():
    async with broker() as rig:
        client = rig.client()
        assert await alter(client, {USER: None}, request_percentage=0.0001) == 0
        await client.ask(apis.METADATA, 9, {"topics": None})
        answer = await rig.client().ask(apis.METADATA, 9, {"topics": None})
        assert throttle_ms(answer) > 0
        assert throttle_ms(await rig.client().ask(apis.API_VERSIONS, 3, {})) == 0


async def test_connections_of_an_address_wait_for_their_turn():
    async with broker() as rig:
        client = rig.client()
        assert await alter(client, {IP: None}, connection_creation_rate=1.0) == 0
        clients = [rig.client() for _ in range(12)]
        await asyncio.sleep(0)
        assert [one.transport.is_paused for one in clients] == [False] * 11 + [True]
        assert rig.node.quotas.throttled["connection_creation_rate"].count == 1


async def test_a_quota_of_a_user_gives_addresses_no_new_connections():
    """Where people of a tenant may set quotas of its users, too."""
    async with broker() as rig:
        quotas = rig.node.quotas
        await quotas.change([(IP, None)], {"connection_creation_rate": 1.0})
        assert [quotas.connected("10.0.0.1") > 0 for _ in range(12)] == [False] * 11 + [True]
        await quotas.change([(USER, "a")], {"producer_byte_rate": 5.0})
        assert quotas.connected("10.0.0.1") > 0
        await quotas.change([(IP, None)], {"connection_creation_rate": 2.0})
        assert not quotas.connected("10.0.0.1")


async def test_two_changes_of_one_entity_at_once_are_both_kept():
    async with broker() as rig:
        quotas = rig.node.quotas
        await asyncio.gather(
            quotas.change([(USER, "a")], {"producer_byte_rate": 5.0}),
            quotas.change([(USER, "a")], {"consumer_byte_rate": 6.0}),
        )
        both = {"producer_byte_rate": 5.0, "consumer_byte_rate": 6.0}
        assert quotas.find() == [(((USER, "a"),), both)]
        with pytest.raises(RequestInvalid):
            await quotas.change([(USER, "a"), (USER, "b")], {"producer_byte_rate": 5.0})
