"""Every API, with a client without rights, one with just those of its row, and a super user.

The requests are made from Kafka's definitions, so an API that is added is tested without a line
here; one whose row names too little or too much fails.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.kit.broker import broker
from tests.kit.records import batch
from tests.unit.kafka.access_rig import (
    GROUP,
    TOPIC,
    TRANSACTION,
    NamedClient,
    codes_in,
    made,
    renamed,
    texts_of,
)

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.ownership.metadata_cache import MetadataCache
from headrace.broker.security.access import How
from headrace.broker.security.acls import Acl, AclFilter, Entry, Pattern, PatternType, Permission
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import REMEMBERED_LENGTH_MAX
from headrace.broker.services.access_control import AccessControl
from headrace.errors import DataCorrupt, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.authorization_rules import RULES
from headrace.metadata.acl_facts import ACLS, acl_key
from headrace.metadata.store import MetadataEntry
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kit.broker import BrokerHarness

    from headrace.kafka.apis import Api

NAMES = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.TRANSACTIONAL_ID: TRANSACTION,
    ResourceType.CLUSTER: CLUSTER_NAME,
}
DENIALS = {29, 30, 31, 53, 65}
ROOT, NOBODY, SOMEBODY = Principal("root"), Principal("nobody"), Principal("somebody")
CONFIG = {"offsets_partition_count": 2, "authorizer": "acl", "super_users": "User:root"}
ALL = [*apis.APIS.values(), *apis.OWN_APIS.values()]
GUARDED = [api for api in apis.APIS.values() if not api.access.public]


@asynccontextmanager
async def guarded(**more: Any) -> AsyncIterator[BrokerHarness]:
    async with broker(BrokerConfig(**{**CONFIG, **more})) as rig:
        await rig.node.topics.create(TOPIC)
        root = NamedClient(rig, ROOT)
        commit = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [
                {
                    "name": TOPIC,
                    "partitions": [
                        {
                            "partition_index": 0,
                            "committed_offset": 0,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        }
        answer = await root.ask(apis.OFFSET_COMMIT, 8, commit)
        assert answer.topics[0].partitions[0].error_code == 0
        init = {"transactional_id": TRANSACTION, "transaction_timeout_ms": 60_000}
        init |= {"producer_id": -1, "producer_epoch": -1}
        assert (await root.ask(apis.INIT_PRODUCER_ID, 4, init)).error_code == 0
        yield rig


def allow(operation: Operation, kind: ResourceType, name: str, who: Principal = SOMEBODY) -> Acl:
    return Acl(Pattern(kind, name), Entry(str(who), "*", operation, Permission.ALLOW))


def shown(api: Api) -> bool:
    return any(need.how is How.SHOWN for need in api.access.needs)


def versions(api: Api) -> range:
    return range(api.version_min, api.version_max + 1)


# --- the table ---------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_each_row_says_what_right_a_request_needs(api):
    access = api.access
    assert bool(access.needs) != bool(access.public)
    assert access.rule in {"", "produce", "fetch", *RULES}
    if not access.rule:
        assert all(need.how is not How.ANY for need in access.needs)


@pytest.mark.parametrize("who", [NOBODY, ROOT])
async def test_a_session_remembers_nothing_of_names_that_are_longer_than_any_topics(who):
    """A request may have 256 of 32 KiB, and a session remembers ten thousand decisions."""
    async with guarded() as rig:
        client = NamedClient(rig, who)
        names = [f"{number}{'x' * 30_000}" for number in range(20)]
        limits = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1, "session_id": 0}
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
        part |= {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": 0}
        fetch = {"topics": [{"topic": name, "partitions": [part]} for name in names]}
        fetch |= limits | {"session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
        fetch |= {"replica_id": -1, "max_wait_ms": 0, "isolation_level": 0}
        await client.ask(apis.FETCH, 12, fetch)
        await client.ask(apis.METADATA, 8, made(apis.APIS[apis.METADATA], 8, None) | {
            "topics": [{"name": name} for name in names],
            "include_topic_authorized_operations": True,
        })  # fmt: skip
        session = client.connection.session
        remembered = [name for _, name in session.rights] + [key[1] for key in session.granted]
        assert max(map(len, remembered), default=0) <= REMEMBERED_LENGTH_MAX


def test_only_these_are_for_everybody():
    assert [api.name for api in ALL if api.access.public] == [
        "SaslHandshake",
        "ApiVersions",
        "SaslAuthenticate",
        "CreateDelegationToken",  # these four: a client's own, as their handlers check
        "RenewDelegationToken",
        "ExpireDelegationToken",
        "DescribeDelegationToken",
        "DescribeCluster",
        "GetTelemetrySubscriptions",
        "PushTelemetry",
    ]


@pytest.mark.parametrize("api", GUARDED, ids=lambda api: api.name)
async def test_a_client_without_rights_gets_kafkas_error_and_learns_nothing(api):
    """In every version; an absent name is answered as an existing one, and nothing changes."""

    async with guarded() as rig:
        topic = rig.node.topics.get(TOPIC)
        client = NamedClient(rig, NOBODY)
        for version in versions(api):
            request = made(api, version, topic.id)
            answer = await client.ask(api.key, version, request)
            codes = codes_in(answer)
            assert codes & DENIALS or (shown(api) and codes <= {0}), (version, answer)
            assert codes <= DENIALS | {0, 55}, (version, answer)
            if shown(api):
                assert "secret" not in repr(answer) or codes & DENIALS
            other = await client.ask(api.key, version, renamed(request))
            if "topic_id" not in repr(request) or "None" in repr(request):
                assert texts_of(other) == texts_of(answer), version
        assert rig.node.topics.names() == sorted(
            [TOPIC, "__consumer_offsets", "__transaction_state"]
        )
        assert rig.node.topics.get(TOPIC) is topic
        assert topic.fact.configs == {}
        assert topic.fact.partition_count == 1
        assert rig.node.access is not None
        assert rig.node.access.count == 0
        assert topic.require_log(0).high_watermark == 0
        assert rig.node.audit.denied_total > 0 or shown(api)


@pytest.mark.parametrize("api", GUARDED, ids=lambda api: api.name)
async def test_the_rights_of_a_row_suffice(api):
    async with guarded() as rig:
        access = rig.node.access
        assert access is not None
        rules = [allow(need.operation, need.kind, NAMES[need.kind]) for need in api.access.needs]
        if api.key == apis.ADD_PARTITIONS_TO_TXN:  # of its later versions
            rules.append(allow(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME))
        assert await access.create(rules) == [None] * len(rules)
        topic = rig.node.topics.get(TOPIC)
        for version in versions(api):
            for principal in (SOMEBODY, ROOT):
                client = NamedClient(rig, principal)
                if TOPIC not in rig.node.topics.by_name:
                    await rig.node.topics.deletions.finish_all(rig.node.topics.ownership)
                    topic = await _again(rig)
                request = made(api, version, topic.id)
                answer = await client.ask(api.key, version, request)
                assert not codes_in(answer) & DENIALS, (version, principal, answer)


async def _again(rig: BrokerHarness) -> Any:
    for _ in range(200):
        try:
            await rig.node.topics.create(TOPIC)
        except Exception:  # its deletion is not complete
            await asyncio.sleep(0.01)
        else:
            break
    return rig.node.topics.get(TOPIC)


@pytest.mark.parametrize("api", apis.OWN_APIS.values(), ids=lambda api: api.name)
async def test_only_brokers_send_what_brokers_send(api):
    async with guarded() as rig:
        client = NamedClient(rig, NOBODY)
        answer = await client.ask(api.key, 0, made(api, 0, uuid4()))
        assert "ClusterUnauthorized" in repr(answer)
        client = NamedClient(rig, Principal("1", "Broker"))
        answer = await client.ask(api.key, 0, made(api, 0, uuid4()))
        assert "ClusterUnauthorized" not in repr(answer)


# --- single rules ------------------------------------------------------------------------------


async def _grant(rig: BrokerHarness, *rules: Acl) -> None:
    assert rig.node.access is not None
    assert await rig.node.access.create(rules) == [None] * len(rules)


def _fetch(version: int, topic: Any, **more: Any) -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    part |= {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
    wanted = {"topic": topic.name, "topic_id": topic.id, "partitions": [part]}
    return {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1 << 20,
        "isolation_level": 0, "session_id": 0, "session_epoch": -1, "topics": [wanted],
        "forgotten_topics_data": [], **more,
    }  # fmt: skip


def _produce(topic: Any) -> dict[str, Any]:
    data = {"index": 0, "records": batch(b"v")}
    topics = [{"name": topic.name, "topic_id": topic.id, "partition_data": [data]}]
    return {"transactional_id": None, "acks": -1, "timeout_ms": 1_000, "topic_data": topics}


NO_OPERATIONS = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
    "include_cluster_authorized_operations": False,
}
READ_TOPIC = allow(Operation.READ, ResourceType.TOPIC, TOPIC)
WRITE_TOPIC = allow(Operation.WRITE, ResourceType.TOPIC, TOPIC)


@pytest.mark.parametrize("version", [9, 12, 13])
async def test_a_right_acts_at_once_on_open_connections_and_so_does_its_removal(version):
    async with guarded() as rig:
        topic, client = rig.node.topics.get(TOPIC), NamedClient(rig, SOMEBODY)
        access = rig.node.access
        assert access is not None

        async def codes() -> list[int]:
            sent = await client.ask(apis.PRODUCE, version, _produce(topic))
            read = await client.ask(apis.FETCH, version, _fetch(version, topic))
            return [*(codes_in(sent) - {0}), *(codes_in(read) - {0})]

        for _ in range(2):
            before = access.version
            assert await codes() == [29, 29]
            await _grant(rig, READ_TOPIC, WRITE_TOPIC)
            assert access.version > before
            for _ in range(3):  # the second is answered from what the session remembers
                assert await codes() == []
            await access.delete(AclFilter(principal=str(SOMEBODY)))


async def test_a_fetch_that_waits_loses_its_right_with_the_rule():
    async with guarded() as rig:
        topic, client = rig.node.topics.get(TOPIC), NamedClient(rig, SOMEBODY)
        await _grant(rig, READ_TOPIC)
        wait = {"max_wait_ms": 5_000, "min_bytes": 1}
        client.send(apis.FETCH, 12, _fetch(12, topic, **wait))
        await asyncio.sleep(0.05)
        assert client.answers() == []
        assert rig.node.access is not None
        await rig.node.access.delete(AclFilter(principal=str(SOMEBODY)))
        root = NamedClient(rig, ROOT)
        await root.ask(apis.PRODUCE, 9, _produce(topic))
        while not client.answers():
            await asyncio.sleep(0.01)
        (answer,) = client.answers()
        assert codes_in(answer) == {0, 29}
        assert b"v" not in bytes(client.transport.out)


async def test_a_fetch_session_is_no_way_around_the_rules():
    """It does not exist for another principal, who would learn which topics its owner reads, and
    could end it; and it ends with the owner's right."""

    async with guarded() as rig:
        topic, owner = rig.node.topics.get(TOPIC), NamedClient(rig, SOMEBODY)
        await _grant(rig, READ_TOPIC)
        first = await owner.ask(apis.FETCH, 12, _fetch(12, topic, session_epoch=0))
        assert codes_in(first) == {0}
        root, number = NamedClient(rig, ROOT), first.session_id
        await root.ask(apis.PRODUCE, 9, _produce(topic))

        async def resume(
            client: NamedClient, epoch: int, number: int = number
        ) -> tuple[int, list[tuple[str, int]]]:
            more = {"session_id": number, "session_epoch": epoch, "topics": []}
            answer = await client.ask(apis.FETCH, 12, _fetch(12, topic) | more)
            found = [(one.topic, one.partitions[0].error_code) for one in answer.responses]
            return answer.error_code, found

        for other in (NamedClient(rig, NOBODY), root):
            absent = await resume(other, 1, 1 + number % 7)
            assert absent == (70, [])
            for epoch in (1, 2):
                assert await resume(other, epoch) == absent
            for epoch in (-1, 0):
                assert await resume(other, epoch) == (0, [])
        again = NamedClient(rig, Principal(*SOMEBODY))
        assert await resume(again, 1) == (0, [(TOPIC, 0)]), "another connection of its owner"
        assert rig.node.access is not None
        await rig.node.access.delete(AclFilter(principal=str(SOMEBODY)))
        assert await resume(owner, 2) == (0, [(TOPIC, 29)])


async def test_denied_and_allowed_items_of_a_request_are_answered_together():
    async with guarded() as rig:
        await rig.node.topics.create("open")
        await _grant(rig, allow(Operation.DESCRIBE, ResourceType.TOPIC, "open"))
        client = NamedClient(rig, SOMEBODY)
        topics = [
            {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]}
            for name in (TOPIC, "open")
        ]
        request = {"replica_id": -1, "isolation_level": 0, "topics": topics}
        for topic in topics:
            topic["partitions"][0]["current_leader_epoch"] = -1  # type: ignore[index]
        answer = await client.ask(apis.LIST_OFFSETS, 6, request)
        found = {one.name: one.partitions[0] for one in answer.topics}
        assert (found["open"].error_code, found["open"].offset) == (0, 0)
        assert (found[TOPIC].error_code, found[TOPIC].offset) == (29, -1)
        everything = await client.ask(apis.METADATA, 9, {**NO_OPERATIONS, "topics": None})
        assert [one.name for one in everything.topics] == ["open"]


def _beat(**more: Any) -> dict[str, Any]:
    return {
        "group_id": GROUP, "member_id": "m", "member_epoch": 0, "instance_id": None,
        "rack_id": None, "rebalance_timeout_ms": 60_000, "server_assignor": None,
        "subscribed_topic_names": None, "subscribed_topic_regex": None, "topic_partitions": [],
        **more,
    }  # fmt: skip


@pytest.mark.parametrize("sees_topic", [True, False])
@pytest.mark.parametrize(
    "subscription", [{"subscribed_topic_regex": "s.*"}, {"subscribed_topic_names": [TOPIC]}]
)
async def test_a_description_of_a_group_names_no_topic_that_the_client_may_not_describe(
    subscription, sees_topic
):
    """Neither of its assignments nor of its subscriptions, in the protocol of either time."""

    async with guarded() as rig:
        member = NamedClient(rig, ROOT)
        answer = await member.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, _beat(**subscription))
        for _ in range(100):
            if answer.assignment is not None and answer.assignment.topic_partitions:
                break
            await asyncio.sleep(0.01)
            beat = _beat(member_epoch=answer.member_epoch, **subscription)
            answer = await member.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, beat)
        assert answer.assignment.topic_partitions
        await _grant(rig, allow(Operation.DESCRIBE, ResourceType.GROUP, GROUP))
        if sees_topic:
            await _grant(rig, allow(Operation.DESCRIBE, ResourceType.TOPIC, TOPIC))
        client = NamedClient(rig, SOMEBODY)
        for api_key, field in (
            (apis.DESCRIBE_GROUPS, "groups"),
            (apis.CONSUMER_GROUP_DESCRIBE, "group_ids"),
        ):
            for version in versions(apis.APIS[api_key]):
                asked = {field: [GROUP], "include_authorized_operations": False}
                (group,) = (await client.ask(api_key, version, asked)).groups
                assert group.error_code == (0 if sees_topic else 29), version
                assert len(group.members) == sees_topic
        assert (TOPIC.encode() in bytes(client.transport.out)) == sees_topic


async def test_authorized_operations_are_those_of_the_principal():
    async with guarded() as rig:
        await _grant(
            rig,
            READ_TOPIC,
            allow(Operation.READ, ResourceType.GROUP, GROUP),
            allow(Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME),
        )
        client = NamedClient(rig, SOMEBODY)
        asked = {
            "topics": [{"name": TOPIC, "topic_id": None}],
            "include_topic_authorized_operations": True,
        }
        asked |= {"include_cluster_authorized_operations": True}
        asked |= {"allow_auto_topic_creation": False}
        answer = await client.ask(apis.METADATA, 10, asked)
        read, see = 1 << Operation.READ, 1 << Operation.DESCRIBE
        assert answer.topics[0].topic_authorized_operations == read | see
        assert answer.cluster_authorized_operations == 1 << Operation.ALTER | see
        groups = {"groups": [GROUP], "include_authorized_operations": True}
        described = await client.ask(apis.DESCRIBE_GROUPS, 5, groups)
        assert described.groups[0].authorized_operations == read | see
        cluster = await NamedClient(rig, NOBODY).ask(
            apis.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": True}
        )
        assert cluster.cluster_authorized_operations == 0


async def test_without_an_authorizer_rules_are_refused():
    async with guarded(authorizer="none") as rig:
        client = NamedClient(rig, NOBODY)
        for key in (apis.DESCRIBE_ACLS, apis.CREATE_ACLS, apis.DELETE_ACLS):
            answer = await client.ask(key, 3, made(apis.APIS[key], 3, uuid4()))
            assert codes_in(answer) == {54}


async def test_another_broker_applies_a_change_and_a_restart_keeps_it():
    async with guarded() as rig:
        other = AccessControl(rig.metadata)
        cache = MetadataCache(rig.metadata, ACLS, other.apply, lambda: None, Tasks(), {})
        await cache.start()
        await _grant(rig, READ_TOPIC, WRITE_TOPIC)
        while other.count < 2:
            await asyncio.sleep(0.01)
        assert rig.node.access is not None
        assert other.find(AclFilter()) == rig.node.access.find(AclFilter())
        deleted = await other.delete(AclFilter(operation=Operation.READ))
        assert deleted == [READ_TOPIC]
        while rig.node.access.count > 1:
            await asyncio.sleep(0.01)
        assert rig.node.access.find(AclFilter()) == [WRITE_TOPIC]


async def test_a_list_that_cannot_be_read_denies_everything_on_its_resource():
    async with guarded() as rig:
        access = rig.node.access
        assert access is not None
        await _grant(rig, READ_TOPIC)
        key = acl_key(ResourceType.TOPIC, PatternType.LITERAL, TOPIC)
        with pytest.raises(DataCorrupt):
            access.apply(key, MetadataEntry(key, b"{", 99))
        session = NamedClient(rig, SOMEBODY).connection.session
        assert not access.allows(session, Operation.READ, ResourceType.TOPIC, TOPIC)


@pytest.mark.parametrize(
    "rule",
    [
        allow(Operation.READ, ResourceType.TOPIC, ""),
        allow(Operation.READ, ResourceType.TOPIC, "x" * 1_001),
        allow(Operation.READ, ResourceType.CLUSTER, "another"),
        Acl(Pattern(ResourceType.TOPIC, "t", PatternType.MATCH), READ_TOPIC.entry),
        Acl(READ_TOPIC.pattern, READ_TOPIC.entry._replace(principal="alice")),
    ],
)
async def test_a_rule_without_meaning_is_refused(rule):
    async with guarded() as rig:
        assert rig.node.access is not None
        (error,) = await rig.node.access.create([rule])
        assert isinstance(error, RequestInvalid)
        assert rig.node.access.count == 0
