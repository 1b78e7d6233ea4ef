"""Tenants: two with the same names of everything, and clients that learn nothing of another's.

The requests are made from Kafka's definitions, so that an API that is added is tested here, too.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.kit.broker import broker
from tests.kit.records import batch
from tests.unit.kafka.access_rig import (
    ABSENT,
    GROUP,
    TOPIC,
    TRANSACTION,
    NamedClient,
    codes_in,
    made,
    renamed,
)

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.acls import (
    Acl,
    Entry,
    Pattern,
    PatternType,
    Permission,
    Question,
)
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.tenant_ownership import tenants_of
from headrace.broker.services.access_control import access_of
from headrace.errors import RequestInvalid, StorageUnavailable
from headrace.kafka import apis
from headrace.kafka.error_codes import REBOOTSTRAP_REQUIRED
from headrace.kafka.tenancy import _TEXTS, NAMES, tenancy_of
from headrace.kafka.wire.definitions import RESPONSE, load
from headrace.metadata.followed_facts import TENANTS_CLUSTER_IDS
from headrace.metadata.memory import MemoryMetadataStore
from headrace.records.cluster_ids import tenants_cluster_id
from headrace.records.identifiers import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kit.broker import BrokerHarness

ROOT, ALICE, CAROL, DAVE = (Principal(name) for name in ("root", "alice", "carol", "dave"))
CONFIG: dict[str, Any] = {
    "offsets_partition_count": 2,
    "authorizer": "acl",
    "super_users": "User:root",
    "tenants": "acme=User:alice;beta=User:carol",
}
KEY = "«acme»"
SOFTWARE = {"client_software_name": "apache-kafka-java", "client_software_version": "4.4.0"}
# A key in an answer, as text or as bytes; random ids of topics and of sessions are neither.
KEYS = re.compile(r"«|\\xc2\\xab")
ALL = [*apis.APIS.values(), *apis.OWN_APIS.values()]
OF_TENANTS = [api for api in apis.APIS.values() if api.key in {*NAMES, apis.PRODUCE, apis.FETCH}]
DENIALS = {29, 30, 31, 53, 65}
COMMIT: dict[str, Any] = {
    "group_id": GROUP,
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "topics": [
        {
            "name": TOPIC,
            "partitions": [
                {
                    "partition_index": 0,
                    "committed_offset": 7,
                    "committed_leader_epoch": -1,
                    "committed_metadata": "«acme»mine",
                }
            ],
        }
    ],
}


class Tenant(NamedClient):
    """A client whose received bytes are looked at."""

    @property
    def received(self) -> bytes:
        return bytes(self.transport.out)


@asynccontextmanager
async def tenants(*owners: Principal, **more: Any) -> AsyncIterator[BrokerHarness]:
    """A broker where each owner has a topic, a group and a transactional id of the same names."""
    async with broker(BrokerConfig(**CONFIG | more)) as rig:
        assert rig.node.access is not None
        kinds = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
        entry = Entry(str(DAVE), "*", Operation.ALL, Permission.ALLOW)
        rules = [Acl(Pattern(kind, "*"), entry) for kind in kinds]
        assert await rig.node.access.create(rules) == [None] * 3
        for owner in owners:
            client = NamedClient(rig, owner)
            created = await client.ask(apis.CREATE_TOPICS, 5, made_topics(TOPIC))
            assert codes_in(created) == {0}
            find = {"key_type": 0, "coordinator_keys": [GROUP]}
            assert codes_in(await client.ask(apis.FIND_COORDINATOR, 4, find)) == {0}
            assert codes_in(await client.ask(apis.OFFSET_COMMIT, 8, COMMIT)) == {0}
            init = {"transactional_id": TRANSACTION, "transaction_timeout_ms": 60_000}
            init |= {"producer_id": -1, "producer_epoch": -1}
            while (code := (await client.ask(apis.INIT_PRODUCER_ID, 4, init)).error_code) == 14:
                await asyncio.sleep(0.01)  # its coordinator is loading
            assert code == 0
        yield rig


def made_topics(*names: str) -> dict[str, Any]:
    items = [
        {
            "name": name,
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for name in names
    ]
    return {"topics": items, "timeout_ms": 1_000, "validate_only": False}


def as_of_any(answer: Any) -> str:
    """An answer without names, and what differs from one request to the next."""
    text = repr(answer)
    for name, absent in ABSENT.items():
        text = text.replace(absent, name)
    text = re.sub(r"UUID\('[^']*'\)|id [0-9a-f-]{36}", "ID", text)
    text = re.sub(r"(producer_id|session_id|subscription_id)=-?\d+", r"\1=N", text)
    text = re.sub(r"(member_id|leader|client_instance_id)='[^']*'", r"\1=M", text)
    return re.sub(r"(timestamp\w*|time_ms|\w+_ms)=\d+", r"\1=T", text)


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
async def test_a_client_learns_nothing_of_what_another_tenant_has(api):
    """In every version: what exists there is answered as what exists nowhere, and stays as it is,
    also by names that are written as the broker stores them. One client is of another tenant, one
    has all rights to all topics, groups and transactional ids of the default tenant."""

    async with tenants(ALICE) as rig:
        topic = rig.node.topics.get(KEY + TOPIC)
        for who in (CAROL, DAVE):
            for prefix in ("", KEY, "«beta»«acme»", "«acme»«acme»"):
                for version in range(api.version_min, api.version_max + 1):
                    client = Tenant(rig, who)
                    answers = [
                        await client.ask(api.key, version, _mapped(request, prefix))
                        for request in (
                            made(api, version, topic.id),
                            renamed(made(api, version, uuid4())),
                        )
                    ]
                    first, second = map(as_of_any, answers)
                    assert first == second, (who, prefix, version)
                    if not prefix:
                        assert not KEYS.search(repr(answers)), (who, version)
                    if who is CAROL:
                        assert rig.node.cluster_id.encode() not in client.received
        assert rig.node.topics.get(KEY + TOPIC) is topic
        assert topic.fact.configs == {}
        assert topic.fact.partition_count == 1
        assert topic.require_log(0).high_watermark == 0
        alice = NamedClient(rig, ALICE)
        fetched = await alice.ask(apis.OFFSET_FETCH, 5, {"group_id": GROUP, "topics": None})
        partition = fetched.topics[0].partitions[0]
        assert (partition.committed_offset, partition.metadata) == (7, "«acme»mine")


def _mapped(request: Any, prefix: str) -> Any:
    """A request with a prefix before each name of a resource."""
    if isinstance(request, dict):
        return {field: _mapped(value, prefix) for field, value in request.items()}
    if isinstance(request, list):
        return [_mapped(item, prefix) for item in request]
    if isinstance(request, str) and request in {*ABSENT, *ABSENT.values()}:
        return prefix + request
    return request


@pytest.mark.parametrize("api", OF_TENANTS, ids=lambda api: api.name)
async def test_a_client_uses_its_tenants_names_in_every_version(api):
    """A field with a name that is not turned into a key would be denied."""

    for version in range(api.version_min, api.version_max + 1):
        if api.key == apis.ADD_PARTITIONS_TO_TXN and version >= 4:
            continue  # sent by brokers
        async with tenants(ALICE, CAROL) as rig:
            assert rig.node.access is not None
            users = Pattern(ResourceType.USER, f"User:{KEY}", PatternType.PREFIXED)
            rule = Entry(str(ALICE), "*", Operation.ALL, Permission.ALLOW)
            itself = Pattern(ResourceType.CLUSTER, KEY + CLUSTER_NAME)
            rules = [Acl(pattern, rule) for pattern in (users, itself)]
            assert await rig.node.access.create(rules) == [None, None]
            topic = rig.node.topics.get(KEY + TOPIC)
            client = Tenant(rig, ALICE)
            answer = await client.ask(api.key, version, made(api, version, topic.id))
            assert not codes_in(answer) & DENIALS, (version, answer)
            assert "«" not in repr(answer).replace("«acme»mine", ""), version
            assert rig.node.cluster_id.encode() not in client.received, version


@pytest.mark.parametrize("api", ALL, ids=lambda api: api.name)
def test_requests_without_a_row_are_refused_to_tenants(api):
    async def scenario() -> None:
        async with tenants(ALICE) as rig:
            topic = rig.node.topics.get(KEY + TOPIC)
            for version in range(api.version_min, api.version_max + 1):
                client = NamedClient(rig, ALICE)
                answer = await client.ask(api.key, version, made(api, version, topic.id))
                assert codes_in(answer) <= {0, 31} or "ClusterUnauthorized" in repr(answer)
            assert rig.node.topics.get(KEY + TOPIC) is topic

    if api not in OF_TENANTS:
        asyncio.run(scenario())


@pytest.mark.parametrize("version", [9, 13])
async def test_a_batch_that_fails_says_why_in_its_tenants_words(version, monkeypatch):
    async with tenants(ALICE) as rig:
        topic, own = rig.node.topics.get(KEY + TOPIC), rig.node.cluster_id

        def failing(_topic: Any, number: int) -> Any:
            raise StorageUnavailable(f"{own}/ledgers/0 of {KEY}{TOPIC}-{number} cannot be read")

        monkeypatch.setattr(type(topic), "require_log", failing)
        for count in (1, 2):
            request = produce(topic, b"v", version)
            request["topic_data"][0]["partition_data"] *= count
            answer = await NamedClient(rig, ALICE).ask(apis.PRODUCE, version, request)
            found = {one.error_message for one in answer.responses[0].partition_responses}
            shown = tenants_cluster_id(own, "acme")
            assert found == {f"{shown}/ledgers/0 of {TOPIC}-0 cannot be read"}


async def cluster_ids(client: NamedClient) -> set[str]:
    """The ids that a client is answered, which are to be one."""
    found = set[str]()
    for api in (apis.APIS[one] for one in (apis.METADATA, apis.DESCRIBE_CLUSTER)):
        for version in range(api.version_min, api.version_max + 1):
            answer = await client.ask(api.key, version, made(api, version, uuid4()))
            found.add(answer.cluster_id)
    return found - {None}  # the oldest versions have none


async def test_each_tenant_sees_a_cluster_id_of_its_own():
    async with tenants(ALICE, CAROL) as rig:
        own = rig.node.cluster_id
        for who, shown in (
            (ALICE, tenants_cluster_id(own, "acme")),
            (CAROL, tenants_cluster_id(own, "beta")),
            *((one, own) for one in (DAVE, ROOT)),
        ):
            assert await cluster_ids(NamedClient(rig, who)) == {shown}


async def test_tenants_see_the_clusters_own_id_while_a_broker_shows_it(monkeypatch):
    """An upgrade is seen as one change, and not as clients being connected to two clusters."""
    async with tenants(ALICE) as rig:
        cluster = rig.node.services.cluster
        own = cluster.brokers()[0]
        older = replace(own, facts_version=TENANTS_CLUSTER_IDS - 1)
        monkeypatch.setattr(cluster, "brokers", lambda: [own, older])
        alice = NamedClient(rig, ALICE)
        assert await cluster_ids(alice) == {cluster.id}
        asked = SOFTWARE | {"cluster_id": cluster.id, "node_id": cluster.broker_id}
        assert (await alice.ask(apis.API_VERSIONS, 5, asked)).error_code == 0
        monkeypatch.undo()
        assert await cluster_ids(alice) == {tenants_cluster_id(cluster.id, "acme")}


async def test_a_client_that_expects_the_cluster_of_another_tenant_is_told_so():
    """KIP-1242. Before its login a client may be of any tenant, also of one that does not exist:
    whoever knows the cluster's own id would otherwise find out which tenants there are."""
    async with tenants(ALICE) as rig:
        own, node_id = rig.node.cluster_id, rig.node.services.cluster.broker_id
        acme, beta, none = (tenants_cluster_id(own, one) for one in ("acme", "beta", "none"))
        for who, right in (
            (ALICE, {acme}),
            (CAROL, {beta}),
            (DAVE, {own}),
            (ROOT, {own}),
            (None, {own, acme, beta, none}),
        ):
            client = NamedClient(rig, ALICE)
            client.connection.session.principal = who
            for cluster_id in (own, acme, beta, none, "other", "", acme[:-1], f"{acme}="):
                asked = SOFTWARE | {"cluster_id": cluster_id, "node_id": node_id}
                answer = await client.ask(apis.API_VERSIONS, 5, asked)
                code = 0 if cluster_id in right else REBOOTSTRAP_REQUIRED
                assert answer.error_code == code, (who, cluster_id)


@pytest.mark.parametrize(("who", "tenant"), [(ALICE, "acme"), (DAVE, ""), (Principal("x"), "")])
async def test_a_text_for_people_has_the_id_that_its_client_sees(who, tenant):
    """Such as the name of an object that cannot be read."""
    async with tenants(ALICE) as rig:
        client, own = NamedClient(rig, who), rig.node.cluster_id
        tenancy = tenancy_of(rig.node, client.connection.session)
        assert tenancy is not None
        found = tenancy.leave({"error_message": f"{own}/ledgers/0", "metadata": own})
        shown = tenants_cluster_id(own, tenant)
        assert found == {"error_message": f"{shown}/ledgers/0", "metadata": own}


@pytest.mark.parametrize(
    "api", [api for api in OF_TENANTS if api.key in NAMES], ids=lambda api: api.name
)
def test_texts_for_people_in_answers_are_translated(api):
    for version in range(api.version_min, api.version_max + 1):
        definition = load(api.key, version, RESPONSE)
        fields = [one for struct in definition.structs.values() for one in struct]
        texts = {one.name for one in fields if one.kind == "string" and "message" in one.name}
        assert texts <= _TEXTS, version


def produce(topic: Any, value: bytes, version: int) -> dict[str, Any]:
    name = {"name": TOPIC} if version < 13 else {"topic_id": topic.id}
    part = {"index": 0, "records": batch(value)}
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1_000,
        "topic_data": [{**name, "partition_data": [part]}],
    }


def fetch(topic: Any, version: int, **more: Any) -> dict[str, Any]:
    name = {"topic": TOPIC} if version < 13 else {"topic_id": topic.id}
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    part |= {"current_leader_epoch": -1, "log_start_offset": -1, "last_fetched_epoch": -1}
    return {
        "replica_id": -1,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{**name, "partitions": [part]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    } | more


@pytest.mark.parametrize("versions", [(3, 4), (9, 12), (13, 18)])
async def test_two_tenants_write_and_read_topics_of_one_name(versions):
    produced, fetched = versions

    async with tenants(ALICE, CAROL) as rig:
        for who, value in ((ALICE, b"of alice"), (CAROL, b"of carol")):
            topic = rig.node.topics.get(f"«{'acme' if who is ALICE else 'beta'}»{TOPIC}")
            client = Tenant(rig, who)
            for _ in range(2):  # the second from what the handler remembers
                stored = await client.ask(apis.PRODUCE, produced, produce(topic, value, produced))
                assert codes_in(stored) == {0}
                if produced < 13:
                    assert stored.responses[0].name == TOPIC
        for who, value, other in (
            (ALICE, b"of alice", b"of carol"),
            (CAROL, b"of carol", b"of alice"),
        ):
            topic = rig.node.topics.get(f"«{'acme' if who is ALICE else 'beta'}»{TOPIC}")
            client = Tenant(rig, who)
            first = await client.ask(apis.FETCH, fetched, fetch(topic, fetched, session_epoch=0))
            assert codes_in(first) == {0}
            assert value in client.received
            assert other not in client.received
            assert not KEYS.search(repr(first))
            if 7 <= fetched < 13:
                assert first.responses[0].topic == TOPIC
                more = {"session_id": first.session_id, "session_epoch": 1, "topics": []}
                again = await client.ask(apis.FETCH, fetched, fetch(topic, fetched) | more)
                assert [one.topic for one in again.responses] == [TOPIC]


@pytest.mark.parametrize("first", [ALICE, ROOT], ids=str)
async def test_a_tenant_and_an_operator_are_answered_by_the_names_they_use(first):
    """Whoever's requests the handlers remember."""

    async with tenants(ALICE) as rig:
        topic = rig.node.topics.get(KEY + TOPIC)
        for who in (first, ALICE, ROOT, first):
            name = TOPIC if who is ALICE else KEY + TOPIC
            client = Tenant(rig, who)
            request = produce(topic, b"v", 9)
            request["topic_data"][0]["name"] = name
            stored = await client.ask(apis.PRODUCE, 9, request)
            assert codes_in(stored) == {0}
            assert stored.responses[0].name == name
            wanted = fetch(topic, 12)
            wanted["topics"][0]["topic"] = name
            read = await client.ask(apis.FETCH, 12, wanted)
            assert [one.topic for one in read.responses] == [name]


async def test_a_change_of_tenants_holds_for_open_connections():
    """Names that the client sends mean another tenant's things at once, also those whose rights
    its session remembers; without the setting, and after the broker began without tenants."""

    config = BrokerConfig(**CONFIG | {"tenants": ""})
    async with broker(config) as rig:
        assert rig.node.access is not None
        tenants = rig.node.access.tenants
        rule = Entry(str(ALICE), "*", Operation.ALL, Permission.ALLOW)
        await rig.node.access.create([Acl(Pattern(ResourceType.TOPIC, TOPIC), rule)])
        client, values = Tenant(rig, ALICE), {"": b"of none", "acme": b"of acme", "b": b"of b"}
        for tenant, value in values.items():
            if tenant:
                for other in tenants.names():
                    await tenants.change(other, (), [str(ALICE)])
                await tenants.create(tenant, [str(ALICE)])
            created = await client.ask(apis.CREATE_TOPICS, 5, made_topics(TOPIC))
            assert codes_in(created) == {0}
            topic = rig.node.topics.get((f"«{tenant}»" if tenant else "") + TOPIC)
            stored = await client.ask(apis.PRODUCE, 9, produce(topic, value, 9))
            assert codes_in(stored) == {0}
            client.transport.out.clear()
            client.asked.clear()
            read = await client.ask(apis.FETCH, 12, fetch(topic, 12))
            assert codes_in(read) == {0}
            assert [one for one in values.values() if one in client.received] == [value]
        await tenants.delete("b", is_forced=True)
        created = await client.ask(apis.CREATE_TOPICS, 5, made_topics(TOPIC))
        assert 36 in codes_in(created)  # by its rule, in the default tenant again


async def test_a_fetch_that_waits_reads_nothing_of_a_tenant_its_principal_has_left():
    """Although the connection may by now read a topic that it calls by the same name."""

    async with broker(BrokerConfig(**CONFIG | {"tenants": ""})) as rig:
        assert rig.node.access is not None
        tenants = rig.node.access.tenants
        await tenants.create("acme", [str(ALICE)])
        await tenants.create("beta", [str(CAROL)])
        for who in (ALICE, CAROL):
            created = await NamedClient(rig, who).ask(apis.CREATE_TOPICS, 5, made_topics(TOPIC))
            assert codes_in(created) == {0}
        client = Tenant(rig, ALICE)
        waiting = {"max_wait_ms": 60_000, "min_bytes": 1}
        client.send(apis.FETCH, 12, fetch(None, 12, **waiting))
        await tenants.change("acme", (), [str(ALICE)])
        await tenants.change("beta", [str(ALICE)], ())
        client.send(apis.FETCH, 12, fetch(None, 12))
        stored = produce(None, b"record of acme", 9)
        stored["topic_data"][0]["name"] = KEY + TOPIC
        assert codes_in(await Tenant(rig, ROOT).ask(apis.PRODUCE, 9, stored)) == {0}
        for _ in range(100):
            if len(client.answers()) == 2:
                break
            await asyncio.sleep(0)
        first, second = client.answers()
        assert b"record of acme" not in client.received
        assert codes_in(first) == {0, 29}
        assert codes_in(second) == {0}


async def test_a_pattern_of_a_tenant_finds_its_topics_alone():
    async with tenants(ALICE, CAROL) as rig:
        client = Tenant(rig, CAROL)
        beat = {
            "group_id": "g",
            "member_id": "m",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": ".*",
            "server_assignor": None,
            "topic_partitions": [],
        }
        find = {"key_type": 0, "coordinator_keys": ["g"]}
        await client.ask(apis.FIND_COORDINATOR, 4, find)
        answer = await client.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, beat)
        for _ in range(50):
            if answer.assignment is not None and answer.assignment.topic_partitions:
                break
            await asyncio.sleep(0.01)
            more = {"member_epoch": answer.member_epoch, "topic_partitions": []}
            answer = await client.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, beat | more)
        ids = [one.topic_id for one in answer.assignment.topic_partitions]
        assert ids == [rig.node.topics.get("«beta»" + TOPIC).id]
        for pattern in ("a)|(?:.*", "(", "«acme».*"):
            bad = beat | {"subscribed_topic_regex": pattern, "member_id": "n", "group_id": "h"}
            await client.ask(apis.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["h"]})
            refused = await client.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, bad)
            assert refused.error_code == (0 if pattern == "«acme».*" else 128)
            given = refused.assignment
            assert given is None or not given.topic_partitions
            assert "«" not in (refused.error_message or "").replace(pattern, "")


@pytest.mark.parametrize("version", [1, 5, 6])
async def test_rights_to_the_cluster_are_none_to_topics_of_tenants(version):
    """They neither create nor delete there, nor reveal what exists."""

    async with tenants(ALICE) as rig:
        assert rig.node.access is not None
        entry = Entry(str(DAVE), "*", Operation.ALL, Permission.ALLOW)
        rule = Acl(Pattern(ResourceType.CLUSTER, "kafka-cluster"), entry)
        assert await rig.node.access.create([rule]) == [None]
        client = NamedClient(rig, DAVE)
        for name in (KEY + TOPIC, KEY + "absent", KEY + TOPIC.replace("-", "_")):
            made = await client.ask(apis.CREATE_TOPICS, 5, made_topics(name))
            assert codes_in(made) - {0} == {29}
            asked = {"topic_names": [name]}
            if version >= 6:
                asked = {"topics": [{"name": name, "topic_id": None}]}
            asked["timeout_ms"] = 1_000
            codes = codes_in(await client.ask(apis.DELETE_TOPICS, version, asked))
            assert codes - {0} == {29}
        assert KEY + TOPIC in rig.node.topics.by_name
        assert KEY + "absent" not in rig.node.topics.by_name
        assert codes_in(await client.ask(apis.CREATE_TOPICS, 5, made_topics("own"))) == {0}


async def test_a_rule_about_all_topics_opens_none_that_holds_what_tenants_have():
    async with tenants(ALICE) as rig:
        client = NamedClient(rig, DAVE)
        present = [rig.node.topics.by_name[one] for one in INTERNAL_TOPICS
                   if one in rig.node.topics.by_name]  # fmt: skip
        assert present
        for topic in present:
            answer = await client.ask(apis.FETCH, 13, fetch(topic, 13))
            assert codes_in(answer) - {0} == {29}
        beat = {
            "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None,
            "rack_id": None, "rebalance_timeout_ms": 60_000, "subscribed_topic_names": None,
            "subscribed_topic_regex": "«acme».*", "server_assignor": None,
            "topic_partitions": [],
        }  # fmt: skip
        find = {"key_type": 0, "coordinator_keys": ["g"]}
        await client.ask(apis.FIND_COORDINATOR, 4, find)
        refused = await client.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, beat)
        assert refused.error_code == 29


@pytest.mark.parametrize("who", [CAROL, DAVE], ids=str)
async def test_an_error_names_the_id_that_the_client_sent(who):
    """Whether it is of another tenant's topic, or of none."""

    async with tenants(ALICE) as rig:
        client = NamedClient(rig, who)
        texts = []
        for sent in (rig.node.topics.get(KEY + TOPIC).id, uuid4()):
            asked = {"topics": [{"name": None, "topic_id": sent}], "timeout_ms": 1_000}
            (result,) = (await client.ask(apis.DELETE_TOPICS, 6, asked)).responses
            assert result.error_code == 100
            texts.append(result.error_message.replace(str(sent), "SENT"))
        assert "SENT" in texts[0]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("version", [4, 9])
async def test_a_client_may_call_itself_by_a_key_of_its_tenant(version):
    """Its member id begins with its client id, and it must find out that it is the leader."""

    async with tenants(ALICE) as rig:
        client = NamedClient(rig, ALICE, KEY + "app")
        find = {"key_type": 0, "coordinator_keys": ["g"]}
        await client.ask(apis.FIND_COORDINATOR, 4, find)
        join = {
            "group_id": "g", "member_id": "", "group_instance_id": None,
            "session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "reason": "",
            "protocol_type": KEY + "t", "protocols": [{"name": KEY + "p", "metadata": b""}],
        }  # fmt: skip
        first = await client.ask(apis.JOIN_GROUP, version, join)
        join["member_id"] = first.member_id
        joined = await client.ask(apis.JOIN_GROUP, version, join)
        assert joined.error_code == 0
        assert joined.member_id.startswith(KEY + "app")
        assert joined.leader == joined.member_id == joined.members[0].member_id
        assert joined.protocol_name == KEY + "p"


async def test_super_users_see_the_keys_of_all_tenants():
    async with tenants(ALICE, CAROL) as rig:
        everything = {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        for who, seen in (
            (ROOT, {f"«acme»{TOPIC}", f"«beta»{TOPIC}"}),
            (ALICE, {TOPIC}),
            (DAVE, set()),
        ):
            answer = await NamedClient(rig, who).ask(apis.METADATA, 9, everything)
            names = {one.name for one in answer.topics}
            assert {name for name in names if not name.startswith("__")} == seen


async def test_no_group_sends_dead_letters_to_another_tenant():
    async with tenants(ALICE) as rig:
        client = NamedClient(rig, DAVE)
        for letters in (KEY + TOPIC, KEY + "absent", TOPIC):
            change = {"name": "errors.deadletterqueue.topic.name", "value": letters}
            resource = {"resource_type": 32, "resource_name": GROUP}
            resource |= {"configs": [change | {"config_operation": 0}]}
            request = {"resources": [resource], "validate_only": False}
            answer = await client.ask(apis.INCREMENTAL_ALTER_CONFIGS, 1, request)
            assert codes_in(answer) == ({0} if letters == TOPIC else {40})


@pytest.mark.parametrize("api_key", [apis.ALTER_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS])
async def test_a_tenants_group_names_its_dead_letter_topic_as_its_clients_do(api_key):
    name, letters = "errors.deadletterqueue.topic.name", "letters"
    async with tenants(ALICE) as rig:
        client = NamedClient(rig, ALICE)

        async def set_to(value: str) -> set[int]:
            change = {"name": name, "value": value}
            if api_key == apis.INCREMENTAL_ALTER_CONFIGS:
                change |= {"config_operation": 0}
            resource = {"resource_type": 32, "resource_name": GROUP, "configs": [change]}
            request = {"resources": [resource], "validate_only": False}
            return codes_in(await client.ask(api_key, 1, request))

        assert await set_to(letters) == {0}
        assert await set_to("«beta»letters") == {40}
        assert rig.node.services.configurations.overrides_of_group(KEY + GROUP) == {
            name: KEY + letters
        }
        resource = {"resource_type": 32, "resource_name": GROUP, "configuration_keys": [name]}
        request = {"resources": [resource], "include_synonyms": True}
        answer = await client.ask(apis.DESCRIBE_CONFIGS, 4, request)
        (setting,) = answer.results[0].configs
        assert setting.value == letters
        assert letters in {one.value for one in setting.synonyms}
        assert not KEYS.search(repr(answer))


async def test_an_operator_may_deny_a_tenants_client_what_its_tenant_has():
    async with tenants(ALICE) as rig:
        assert rig.node.access is not None
        entry = Entry(str(ALICE), "*", Operation.WRITE, Permission.DENY)
        await rig.node.access.create([Acl(Pattern(ResourceType.TOPIC, KEY + TOPIC), entry)])
        topic, client = rig.node.topics.get(KEY + TOPIC), NamedClient(rig, ALICE)
        stored = await client.ask(apis.PRODUCE, 9, produce(topic, b"v", 9))
        assert stored.responses[0].name == TOPIC
        assert codes_in(stored) == {29}


async def test_in_a_closed_tenant_rules_about_its_own_names_alone_give_rights():
    """Rules on all names, and on prefixes that cover those of the default tenant, give none."""
    async with tenants(ALICE, CAROL) as rig:
        access, topic = rig.node.access, rig.node.topics.get(KEY + TOPIC)
        assert access is not None
        client = Tenant(rig, ALICE)

        async def stored() -> set[int]:
            return codes_in(await client.ask(apis.PRODUCE, 9, produce(topic, b"v", 9)))

        async def let(name: str, who: object = ALICE, kind: PatternType = PatternType.LITERAL):
            entry = Entry(str(who), "*", Operation.WRITE, Permission.ALLOW)
            await access.create([Acl(Pattern(ResourceType.TOPIC, name, kind), entry)])

        assert await stored() == {0}
        await access.tenants.change("acme", access="rules")
        assert await stored() == {29}
        init = {"transactional_id": None, "transaction_timeout_ms": 1_000}
        init |= {"producer_id": -1, "producer_epoch": -1}
        assert codes_in(await client.ask(apis.INIT_PRODUCER_ID, 4, init)) == {31}
        for who in (ALICE, "User:*"):
            await let("*", who)
            await let("«", who, PatternType.PREFIXED)
            await let(KEY[:-1], who, PatternType.PREFIXED)
            await let(TOPIC, who)
            await let("«beta»" + TOPIC, who)
        assert await stored() == {29}
        carols = NamedClient(rig, CAROL)
        assert codes_in(await carols.ask(apis.PRODUCE, 9, produce(topic, b"v", 9))) == {0}
        await let(KEY + TOPIC[:3], ALICE, PatternType.PREFIXED)
        assert await stored() == {0}
        assert codes_in(await client.ask(apis.INIT_PRODUCER_ID, 4, init)) == {0}
        every = {"topics": None, "allow_auto_topic_creation": False}
        every |= {"include_topic_authorized_operations": False}
        found = await client.ask(apis.METADATA, 12, every)
        assert {one.name for one in found.topics} == {TOPIC}
        commit = await client.ask(apis.OFFSET_COMMIT, 8, COMMIT)
        assert codes_in(commit) == {30}
        await access.tenants.change("acme", access="all")
        assert codes_in(await client.ask(apis.OFFSET_COMMIT, 8, COMMIT)) == {0}


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("of", [CONFIG["tenants"], ""])
async def test_an_explanation_agrees_with_the_decision(of, closed):
    """Without tenants a group may have a name that looks like a key."""

    config = BrokerConfig(**CONFIG | {"tenants": of})
    access = access_of(config, MemoryMetadataStore())
    assert access is not None
    if of and closed:
        await access.tenants.change("acme", access="rules")
    names = TOPIC, KEY + TOPIC, "«beta»" + TOPIC
    entries = (
        Entry("User:*", "*", Operation.READ, Permission.ALLOW),
        Entry(str(ALICE), "*", Operation.WRITE, Permission.DENY),
    )
    patterns = [Pattern(ResourceType.TOPIC, name) for name in ("*", *names)]
    patterns.append(Pattern(ResourceType.CLUSTER, CLUSTER_NAME))
    patterns.append(Pattern(ResourceType.GROUP, KEY + GROUP))
    for pattern in patterns:
        await access.create([Acl(pattern, entry) for entry in entries])
    for who in (ROOT, ALICE, CAROL, DAVE):
        session = ClientSession("KAFKA", "10.0.0.7", who)
        for kind, name in (
            *((ResourceType.TOPIC, name) for name in names),
            (ResourceType.CLUSTER, CLUSTER_NAME),
            (ResourceType.GROUP, KEY + GROUP),
        ):
            for operation in (Operation.READ, Operation.WRITE, Operation.CREATE):
                asked = Question(str(who), "10.0.0.7", operation, kind, name)
                found = access.explain(asked)
                allowed = access.allows(session, operation, kind, name)
                assert found.is_allowed == allowed, (asked, found)
    session = ClientSession("KAFKA", "10.0.0.7", DAVE)
    named = session, Operation.READ, ResourceType.GROUP, KEY + GROUP
    assert access.allows(*named) == (not of)


@pytest.mark.parametrize(
    "text",
    [
        "acme",
        "acme=",
        "acme=alice",
        "acme=User:",
        "ACME=User:alice",
        "a/b=User:alice",
        "=User:alice",
        "a»b=User:alice",
        "acme=User:*",
        "acme=User:ANONYMOUS",
        "acme=Broker:1",
        "acme=User:root",
        "acme=User:alice;beta=User:alice",
    ],
)
def test_a_setting_that_contradicts_itself_is_refused(text):
    with pytest.raises(RequestInvalid, match="nothing was started"):
        tenants_of(text, {"User:root"})


def test_tenants_need_access_control_lists():
    config = BrokerConfig(authorizer="none", tenants="acme=User:alice")
    with pytest.raises(RequestInvalid, match=r"headrace\.authorizer=acl"):
        access_of(config, MemoryMetadataStore())
    assert tenants_of(" acme=User:CN=a,O=b ; acme=User:bob;", ()) == {
        "User:CN=a,O=b": "acme",
        "User:bob": "acme",
    }
