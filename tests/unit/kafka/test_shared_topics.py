"""Topics that a tenant shares with another, which reads them by names of its own."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from tests.kit.records import batch
from tests.unit.kafka.access_rig import (
    GROUP,
    TOPIC,
    TRANSACTION,
    NamedClient,
    codes_in,
    made,
    renamed,
)
from tests.unit.kafka.test_tenants import (
    ALICE,
    ALL,
    CAROL,
    COMMIT,
    DAVE,
    KEYS,
    ROOT,
    Tenant,
    as_of_any,
    fetch,
    made_topics,
    tenants,
)

from headrace.broker.services.topic_service import NewTopic
from headrace.broker.services.topic_shares import TopicShares
from headrace.errors import TopicExists, TopicUnknown
from headrace.kafka import apis
from headrace.metadata.tenant_facts import AcceptedFact
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kit.broker import BrokerHarness

SOURCE, NAME = "canary-orders", "partner-orders"
KEY, OWN = "«acme»canary-orders", "«beta»partner-orders"
OF_IDS = 13


@asynccontextmanager
async def shared() -> AsyncIterator[tuple[BrokerHarness, TopicShares]]:
    """Acme shares its topic with beta, which has accepted it."""
    async with tenants(ALICE, CAROL) as rig:
        owner = NamedClient(rig, ALICE)
        created = await owner.ask(apis.CREATE_TOPICS, 5, made_topics(SOURCE, "canary-other"))
        assert codes_in(created) == {0}
        assert codes_in(await owner.ask(apis.PRODUCE, 9, produced(SOURCE, b"of acme"))) == {0}
        shares = TopicShares(rig.node.services)
        await shares.share(KEY, "beta")
        await shares.accept(OWN, KEY, is_operator=False)
        yield rig, shares


def produced(name: str, value: bytes) -> dict[str, Any]:
    part = {"index": 0, "records": batch(value)}
    topics = [{"name": name, "partition_data": [part]}]
    return {"transactional_id": None, "acks": -1, "timeout_ms": 1_000, "topic_data": topics}


def fetched(name: str, **more: Any) -> dict[str, Any]:
    request = fetch(None, 12) | more
    request["topics"][0]["topic"] = name
    return request


def metadata_of(*names: str) -> dict[str, Any]:
    topics = [{"topic_id": None, "name": name} for name in names]
    return {"topics": topics or None, "allow_auto_topic_creation": False} | dict.fromkeys(
        ("include_cluster_authorized_operations", "include_topic_authorized_operations"), False
    )


def fetched_by_id(topic_id: Any) -> dict[str, Any]:
    return fetch(SimpleNamespace(id=topic_id), OF_IDS)


async def names_of(client: NamedClient) -> set[str]:
    answer = await client.ask(apis.METADATA, 12, metadata_of())
    return {topic.name for topic in answer.topics if not topic.error_code}


async def test_a_reader_sees_and_reads_a_topic_by_a_name_of_its_own():
    async with shared() as (rig, _):
        carol = Tenant(rig, CAROL)
        answer = await carol.ask(apis.METADATA, 12, metadata_of(NAME))
        (topic,) = answer.topics
        assert (topic.error_code, topic.name, len(topic.partitions)) == (0, NAME, 1)
        assert topic.topic_id != rig.node.topics.get(KEY).id
        read = await carol.ask(apis.FETCH, 12, fetched(NAME))
        assert codes_in(read) == {0}
        by_id = fetched_by_id(topic.topic_id)
        read = await carol.ask(apis.FETCH, OF_IDS, by_id)
        assert codes_in(read) == {0}
        assert carol.received.count(b"of acme") == 2
        assert b"canary" not in carol.received
        assert not KEYS.search(repr(carol.answers()))
        assert NAME in await names_of(carol)
        for other in (Tenant(rig, ALICE), Tenant(rig, DAVE)):
            assert NAME not in await names_of(other)
            assert codes_in(await other.ask(apis.FETCH, OF_IDS, by_id)) == {0, 100}
            assert b"of acme" not in other.received


@pytest.mark.parametrize("who", [CAROL, ROOT], ids=str)
async def test_nobody_changes_a_topic_by_the_name_of_a_reader(who):
    async with shared() as (rig, _):
        client = Tenant(rig, who)
        name = NAME if who is CAROL else OWN
        stored = await client.ask(apis.PRODUCE, 9, produced(name, b"mine"))
        assert codes_in(stored) == {29}
        created = await client.ask(apis.CREATE_TOPICS, 5, made_topics(name))
        assert codes_in(created) == {0, 36} or codes_in(created) == {36}
        deleted = await client.ask(
            apis.DELETE_TOPICS, 5, {"topic_names": [name], "timeout_ms": 1_000}
        )
        assert codes_in(deleted) == {29}
        topic = rig.node.topics.get(KEY)
        assert topic.require_log(0).high_watermark == 1


async def test_what_is_not_shared_is_answered_as_what_does_not_exist():
    async with shared() as (_rig, shares):
        errors: list[str] = []
        for source in ("«acme»canary-other", "«acme»absent", "«nobody»canary-other", "absent"):
            with pytest.raises(TopicUnknown) as refused:
                await shares.accept("«beta»other", source, is_operator=False)
            errors.append(str(refused.value).replace(source.split("»")[-1], "T"))
        assert len({one.replace("nobody/", "").replace("acme/", "") for one in errors}) == 1
        await shares.share("«acme»canary-other", "nobody")  # not said that it does not exist


async def end_by_owner(rig: BrokerHarness, shares: TopicShares) -> None:
    assert await shares.unshare(KEY, "beta")


async def end_by_reader(rig: BrokerHarness, shares: TopicShares) -> None:
    assert await shares.leave(OWN)


async def end_by_deletion(rig: BrokerHarness, shares: TopicShares) -> None:
    request = {"topic_names": [SOURCE], "timeout_ms": 1_000}
    assert codes_in(await NamedClient(rig, ALICE).ask(apis.DELETE_TOPICS, 5, request)) == {0}


async def end_by_another_topic(rig: BrokerHarness, shares: TopicShares) -> None:
    await end_by_deletion(rig, shares)
    client = NamedClient(rig, ALICE)
    assert codes_in(await client.ask(apis.CREATE_TOPICS, 5, made_topics(SOURCE))) == {0}
    assert codes_in(await client.ask(apis.PRODUCE, 9, produced(SOURCE, b"of later"))) == {0}


ENDS = [end_by_owner, end_by_reader, end_by_deletion, end_by_another_topic]


@pytest.mark.parametrize("end", ENDS)
async def test_it_is_absent_once_it_is_no_longer_shared(end):
    """For open connections, and sessions of fetches."""
    async with shared() as (rig, shares):
        carol = Tenant(rig, CAROL)
        (topic,) = (await carol.ask(apis.METADATA, 12, metadata_of(NAME))).topics
        opened = await carol.ask(apis.FETCH, 12, fetched(NAME, session_epoch=0))
        assert opened.session_id
        by_id = fetched_by_id(topic.topic_id)
        assert codes_in(await carol.ask(apis.FETCH, OF_IDS, by_id)) == {0}
        await end(rig, shares)
        carol.transport.out.clear()
        carol.asked.clear()
        more = fetched(NAME) | {"session_id": opened.session_id, "session_epoch": 1, "topics": []}
        assert codes_in(await carol.ask(apis.FETCH, 12, more)) == {0, 3}
        assert codes_in(await carol.ask(apis.FETCH, 12, fetched(NAME))) == {0, 3}
        assert codes_in(await carol.ask(apis.FETCH, OF_IDS, by_id)) == {0, 100}
        assert b"of acme" not in carol.received
        assert b"of later" not in carol.received
        assert NAME not in await names_of(carol)
        created = await carol.ask(apis.CREATE_TOPICS, 5, made_topics(NAME))
        assert codes_in(created) == {0}
        assert codes_in(await carol.ask(apis.PRODUCE, 9, produced(NAME, b"mine"))) == {0}


@pytest.mark.parametrize("end", [one for one in ENDS if one is not end_by_reader])
async def test_a_consumer_that_asks_for_it_creates_no_topic_in_its_place(end):
    """As Java's do of topics that are missing: it would hide what is shared again."""
    async with shared() as (rig, shares):
        carol = Tenant(rig, CAROL)
        await end(rig, shares)
        asked = metadata_of(NAME, "another") | {"allow_auto_topic_creation": True}
        answer = await carol.ask(apis.METADATA, 12, asked)
        assert {one.name: one.error_code for one in answer.topics}[NAME] == 3
        assert OWN not in rig.node.topics.by_name
        assert "«beta»another" in rig.node.topics.by_name


async def test_a_topic_behind_one_of_the_readers_own_is_not_accepted_again():
    async with shared() as (rig, shares):
        await end_by_owner(rig, shares)
        created = await Tenant(rig, CAROL).ask(apis.CREATE_TOPICS, 5, made_topics(NAME))
        assert codes_in(created) == {0}
        await shares.share(KEY, "beta")
        with pytest.raises(TopicExists):
            await shares.accept(OWN, KEY, is_operator=False)


async def test_a_topic_of_its_own_comes_before_one_that_is_shared():
    """Whichever was first, as brokers may store both at the same moment."""
    async with shared() as (rig, shares):
        carol = Tenant(rig, CAROL)
        with pytest.raises(TopicExists):
            await shares.accept("«beta»secret-topic", KEY, is_operator=False)
        with pytest.raises(TopicExists):
            await shares.accept("«beta»another-name", KEY, is_operator=False)
        await shares.leave(OWN)
        await shares.sharing.accept(
            "«beta»secret-topic",
            AcceptedFact(
                "secret-topic", KEY, rig.node.topics.get(KEY).id, rig.node.services.topics.new_id()
            ),
        )
        assert codes_in(await carol.ask(apis.PRODUCE, 9, produced("secret-topic", b"mine"))) == {0}
        assert codes_in(await carol.ask(apis.FETCH, 12, fetched("secret-topic"))) == {0}
        assert b"of acme" not in carol.received
        # Dead letters of what its groups had of the shared one are no records of its own topic.
        readable, home = rig.node.topics.readable, rig.node.topics.get(KEY)
        assert readable.seen_by("«beta»workers", home) is None
        request = {"topic_names": ["secret-topic"], "timeout_ms": 1_000}
        assert codes_in(await carol.ask(apis.DELETE_TOPICS, 5, request)) == {0}
        assert readable.seen_by("«beta»workers", home) is not None
        assert codes_in(await carol.ask(apis.PRODUCE, 9, produced("secret-topic", b"x"))) == {29}
        assert codes_in(await carol.ask(apis.FETCH, 12, fetched("secret-topic"))) == {0}
        assert b"of acme" in carol.received


@pytest.mark.parametrize("tenant", ["gamma", "delta"])
async def test_a_deleted_tenant_shares_and_reads_nothing(tenant):
    async with tenants() as rig:
        assert rig.node.access is not None
        known, topics = rig.node.access.tenants, rig.node.services.topics
        for name in ("gamma", "delta"):
            await known.create(name, [f"User:{name}"])
        await topics.create(NewTopic("«gamma»t", 1))
        shares = TopicShares(rig.node.services)
        await shares.share("«gamma»t", "delta")
        await shares.accept("«delta»t", "«gamma»t", is_operator=False)
        found = topics.readable.get("«delta»t")
        version = topics.lookup.version
        await known.delete(tenant, is_forced=True)
        assert topics.readable.find("«delta»t") is None
        assert topics.readable.find_by_id(found.id) is None
        assert topics.lookup.version > version


OF_CLIENTS = {apis.GET_TELEMETRY_SUBSCRIPTIONS, apis.PUSH_TELEMETRY}
NAMING = [api for api in ALL if api.key not in OF_CLIENTS]


@pytest.mark.parametrize("api", NAMING, ids=lambda api: api.name)
async def test_what_is_shared_no_longer_is_answered_as_what_never_was(api):
    """In every version, by name and by the id that its reader knew. But for what a consumer has
    created by asking for it, above: the tenant itself has accepted this name."""

    async with tenants(auto_create_topics=False) as rig:
        owner = NamedClient(rig, ALICE)
        assert codes_in(await owner.ask(apis.CREATE_TOPICS, 5, made_topics(SOURCE))) == {0}
        shares = TopicShares(rig.node.services)
        topic = rig.node.topics.get(KEY)
        for version in range(api.version_min, api.version_max + 1):
            await shares.share(KEY, "beta")
            own = f"«beta»{TOPIC}"
            await shares.accept(own, KEY, is_operator=False)
            shown = rig.node.topics.readable.get(own)
            before = Tenant(rig, CAROL, "before")
            while_shared = await before.ask(api.key, version, made(api, version, shown.id))
            assert b"canary" not in before.received
            assert not KEYS.search(repr(while_shared))
            assert await shares.unshare(KEY, "beta")
            client = Tenant(rig, CAROL)
            answers = [
                await client.ask(api.key, version, request)
                for request in (
                    made(api, version, shown.id),
                    renamed(made(api, version, uuid4())),
                )
            ]
            first, second = (
                # The member's assignment has changed by what was revoked.
                re.sub(r"member_epoch=\d+", "member_epoch=N", as_of_any(one))
                for one in answers
            )
            assert first == second, version
            assert b"canary" not in client.received
            for left in (own, "«beta»absent-topic"):  # of a request that creates topics
                if rig.node.topics.by_name.get(left) is not None:
                    await rig.node.services.topics.delete(left)
        assert rig.node.topics.get(KEY) is topic
        assert (topic.fact.configs, topic.fact.partition_count) == ({}, 1)
        assert topic.require_log(0).high_watermark == 0


async def test_a_fetch_that_waits_gets_nothing_of_what_is_written_later():
    async with shared() as (rig, shares):
        carol, alice = Tenant(rig, CAROL), NamedClient(rig, ALICE)
        waits = fetched(NAME, max_wait_ms=60_000, min_bytes=1)
        waits["topics"][0]["partitions"][0]["fetch_offset"] = 1
        carol.send(apis.FETCH, 12, waits)
        await asyncio.sleep(0)
        assert not carol.received
        assert await shares.unshare(KEY, "beta")
        assert codes_in(await alice.ask(apis.PRODUCE, 9, produced(SOURCE, b"of later"))) == {0}
        while not carol.answers():
            await asyncio.sleep(0)
        assert codes_in(carol.answers()[0]) == {0, 3}
        assert b"of later" not in carol.received


def committed(name: str) -> dict[str, Any]:
    (topic,) = COMMIT["topics"]
    return COMMIT | {"topics": [topic | {"name": name}]}


async def test_a_fetch_that_reads_from_disk_gets_nothing_once_it_is_shared_no_longer(monkeypatch):
    async with shared() as (rig, shares):
        carol = Tenant(rig, CAROL)
        reads = type(rig.node.services.stored_reads)
        read = reads.read

        async def read_late(*args: Any) -> Any:
            found = await read(*args)
            await shares.unshare(KEY, "beta")
            return found

        monkeypatch.setattr(reads, "read", read_late)
        cached = MemoryLedgerStore.read_cached

        async def from_disk(*args: Any) -> Any:
            return cached(*args)

        monkeypatch.setattr(MemoryLedgerStore, "read", from_disk)
        monkeypatch.setattr(MemoryLedgerStore, "read_cached", lambda *_: None)
        answer = await carol.ask(apis.FETCH, 12, fetched(NAME))
        assert codes_in(answer) == {0, 3}
        assert b"of acme" not in carol.received


async def test_offsets_of_a_readers_groups_are_kept_by_its_name():
    async with shared() as (rig, shares):
        carol, alice = Tenant(rig, CAROL), Tenant(rig, ALICE)
        assert codes_in(await carol.ask(apis.OFFSET_COMMIT, 8, committed(NAME))) == {0}
        asked = {"group_id": GROUP, "topics": None}
        found = await carol.ask(apis.OFFSET_FETCH, 5, asked)
        assert {one.name for one in found.topics} == {TOPIC, NAME}
        seen = await alice.ask(apis.OFFSET_FETCH, 5, asked)
        assert {one.name for one in seen.topics} == {TOPIC}
        await shares.unshare(KEY, "beta")
        assert codes_in(await carol.ask(apis.OFFSET_COMMIT, 8, committed(NAME))) == {3}
        found = await carol.ask(apis.OFFSET_FETCH, 5, asked)
        assert {one.name for one in found.topics} == {TOPIC}


async def test_a_pattern_matches_names_of_shared_topics():
    """Of a consumer group whose broker evaluates it; the reader's other names match as well."""
    async with shared() as (rig, shares):
        beat = {
            "group_id": "watchers",
            "member_id": str(uuid4()),
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [],
            "subscribed_topic_regex": ".*er-.*|.*canary.*",
            "server_assignor": None,
            "topic_partitions": [],
        }
        carol = Tenant(rig, CAROL)
        joined = await carol.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, beat)
        assert joined.error_code == 0, joined
        shown = rig.node.topics.readable.get(OWN)
        assert [one.topic_id for one in joined.assignment.topic_partitions] == [shown.id]
        await shares.unshare(KEY, "beta")
        again = beat | {
            "member_epoch": joined.member_epoch,
            "subscribed_topic_regex": None,
            "subscribed_topic_names": None,
            "rebalance_timeout_ms": -1,
            "topic_partitions": [{"topic_id": shown.id, "partitions": [0]}],
        }
        later = await carol.ask(apis.CONSUMER_GROUP_HEARTBEAT, 1, again)
        assert later.error_code == 0
        assert list(later.assignment.topic_partitions) == []


async def test_a_transaction_commits_offsets_of_it_and_writes_none_of_its_records():
    async with shared() as (rig, _):
        carol = Tenant(rig, CAROL)
        init = {"transactional_id": TRANSACTION, "transaction_timeout_ms": 60_000}
        begun = await carol.ask(
            apis.INIT_PRODUCER_ID, 4, init | {"producer_id": -1, "producer_epoch": -1}
        )
        who = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
        parts = [{"name": NAME, "partitions": [0]}]
        added = {"v3_and_below_transactional_id": TRANSACTION, "v3_and_below_topics": parts}
        added |= {f"v3_and_below_{name}": value for name, value in who.items()}
        assert codes_in(await carol.ask(apis.ADD_PARTITIONS_TO_TXN, 3, added)) == {29}
        named = {"transactional_id": TRANSACTION, **who}
        group = {"group_id": "in-transactions"}
        assert codes_in(await carol.ask(apis.ADD_OFFSETS_TO_TXN, 3, named | group)) == {0}
        offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
        topics = [{"name": NAME, "partitions": [offset | {"committed_metadata": ""}]}]
        of_member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        committed = named | group | of_member | {"topics": topics}
        assert codes_in(await carol.ask(apis.TXN_OFFSET_COMMIT, 3, committed)) == {0}
        ended = await carol.ask(apis.END_TXN, 3, named | {"committed": True})
        assert codes_in(ended) == {0}
        while True:
            found = await carol.ask(apis.OFFSET_FETCH, 5, group | {"topics": None})
            if [one.partitions[0].committed_offset for one in found.topics] == [1]:
                break
            await asyncio.sleep(0.01)  # its marker is being written


def streams_beat(source: str, *changelogs: dict[str, Any]) -> dict[str, Any]:
    """The first heartbeat of a member of a streams group."""
    lists = ("source_topic_regex", "repartition_sink_topics")
    lists += ("repartition_source_topics", "copartition_groups")
    part = {"subtopology_id": "0", **{one: [] for one in lists}, "source_topics": [source]}
    part["state_changelog_topics"] = list(changelogs)
    tasks = ("active_tasks", "standby_tasks", "warmup_tasks", "client_tags")
    return {
        "group_id": "app",
        "member_id": str(uuid4()),
        "member_epoch": 0,
        "endpoint_information_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": 60_000,
        "process_id": "p",
        "user_endpoint": None,
        "topology": {"epoch": 1, "subtopologies": [part]},
        "shutdown_application": False,
        **{one: [] for one in tasks},
        "task_offsets": None,
        "task_end_offsets": None,
    }


async def test_no_topic_of_a_streams_group_is_created_in_place_of_a_shared_one():
    async with shared() as (rig, shares):
        await shares.unshare(KEY, "beta")
        carol = Tenant(rig, CAROL)
        assert codes_in(await carol.ask(apis.CREATE_TOPICS, 5, made_topics("source"))) == {0}
        changelogs = [
            {"name": name, "partitions": 0, "replication_factor": 0, "topic_configs": []}
            for name in (NAME, "state")
        ]
        beat = streams_beat("source", *changelogs)
        joined = await carol.ask(apis.STREAMS_GROUP_HEARTBEAT, 0, beat)
        assert joined.error_code == 0, joined
        async with asyncio.timeout(10):
            while "«beta»state" not in rig.node.topics.by_name:
                await asyncio.sleep(0.01)
        assert OWN not in rig.node.topics.by_name


@pytest.mark.parametrize("source", [NAME, "absent-topic"])
async def test_a_streams_group_has_it_as_a_source(source):
    async with shared() as (rig, _):
        beat = streams_beat(source)
        joined = await Tenant(rig, CAROL).ask(apis.STREAMS_GROUP_HEARTBEAT, 0, beat)
        assert joined.error_code == 0
        # Sources that are missing are named here.
        assert bool(joined.status) == (source != NAME), joined


OF_READERS = {
    *(apis.METADATA, apis.DESCRIBE_TOPIC_PARTITIONS, apis.LIST_OFFSETS, apis.FETCH),
    *(apis.OFFSET_FOR_LEADER_EPOCH, apis.DESCRIBE_CONFIGS),
}


@pytest.mark.parametrize("key", sorted(OF_READERS), ids=lambda key: apis.APIS[key].name)
async def test_a_reader_may_send_what_consumers_send(key):
    async with shared() as (rig, _):
        shown = rig.node.topics.readable.get(OWN)
        api = apis.APIS[key]
        for version in range(api.version_min, api.version_max + 1):
            client = Tenant(rig, CAROL)
            answer = await client.ask(key, version, _of_name(made(api, version, shown.id)))
            assert codes_in(answer) <= {0}, (version, answer)
            assert b"canary" not in client.received


def _of_name(request: Any) -> Any:
    if isinstance(request, dict):
        return {field: _of_name(value) for field, value in request.items()}
    if isinstance(request, list):
        return [_of_name(item) for item in request]
    return NAME if request == TOPIC else request


async def in_transaction(client: Tenant, group: dict[str, str]) -> dict[str, Any]:
    """Begin a transaction with an offset of the shared topic; returns the request that ends it."""
    init = {"transactional_id": TRANSACTION, "transaction_timeout_ms": 60_000}
    begun = await client.ask(
        apis.INIT_PRODUCER_ID, 4, init | {"producer_id": -1, "producer_epoch": -1}
    )
    named = {
        "transactional_id": TRANSACTION,
        "producer_id": begun.producer_id,
        "producer_epoch": begun.producer_epoch,
    }
    assert codes_in(await client.ask(apis.ADD_OFFSETS_TO_TXN, 3, named | group)) == {0}
    offset = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    topics = [{"name": NAME, "partitions": [offset | {"committed_metadata": ""}]}]
    of_member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
    commit = named | group | of_member | {"topics": topics}
    assert codes_in(await client.ask(apis.TXN_OFFSET_COMMIT, 3, commit)) == {0}
    return named | {"committed": True}


async def test_an_offset_in_an_open_transaction_is_forgotten_when_the_topic_is_accepted_anew():
    """As one that was committed before, also if the transaction ends later."""
    async with shared() as (rig, shares):
        carol, group = Tenant(rig, CAROL), {"group_id": "in-transactions"}
        end = await in_transaction(carol, group)
        await shares.leave(OWN)
        await shares.accept(OWN, KEY, is_operator=False)
        assert codes_in(await carol.ask(apis.END_TXN, 3, end)) == {0}
        while True:  # its marker is being written
            ask = group | {"topics": None, "require_stable": True}
            found = await carol.ask(apis.OFFSET_FETCH, 7, ask)
            if codes_in(found) == {0}:
                break
            await asyncio.sleep(0.01)
        assert [
            part.committed_offset
            for topic in found.topics
            for part in topic.partitions
            if part.committed_offset >= 0
        ] == []


async def test_the_owners_producers_are_not_described_to_a_reader():
    async with shared() as (rig, _):
        producer = {"producer_id": 77, "producer_epoch": 0, "base_sequence": 0}
        part = {"index": 0, "records": batch(b"by one", **producer)}
        sent = produced(SOURCE, b"") | {"topic_data": [{"name": SOURCE, "partition_data": [part]}]}
        assert codes_in(await NamedClient(rig, ALICE).ask(apis.PRODUCE, 9, sent)) == {0}
        asked = {"topics": [{"name": NAME, "partition_indexes": [0]}]}
        answer = await Tenant(rig, CAROL).ask(apis.DESCRIBE_PRODUCERS, 0, asked)
        (described,) = answer.topics[0].partitions
        assert list(described.active_producers) == []


@pytest.mark.parametrize("end", ENDS)
async def test_a_share_session_gets_and_settles_nothing_once_it_is_shared_no_longer(end):
    """Nor does a request of it that waits."""
    async with shared() as (rig, shares):
        carol = Tenant(rig, CAROL)
        await rig.node.group_configs.change(
            "«beta»workers", lambda _: {"share.auto.offset.reset": "earliest"}
        )
        member = str(uuid4())
        beat = {
            "group_id": "workers",
            "member_id": member,
            "member_epoch": 0,
            "rack_id": None,
            "subscribed_topic_names": [NAME],
        }
        joined = await carol.ask(apis.SHARE_GROUP_HEARTBEAT, 1, beat)
        assert joined.error_code == 0, joined
        (topic,) = (await carol.ask(apis.METADATA, 12, metadata_of(NAME))).topics

        def share_fetch(epoch: int, wait_ms: int = 0, **part: Any) -> dict[str, Any]:
            parts = [{"partition_index": 0, "partition_max_bytes": 0, **part}]
            parts[0].setdefault("acknowledgement_batches", [])
            return {
                "group_id": "workers",
                "member_id": member,
                "share_session_epoch": epoch,
                "max_wait_ms": wait_ms,
                "min_bytes": 1,
                "max_bytes": 1_000_000,
                "max_records": 10,
                "batch_size": 10,
                "topics": [{"topic_id": topic.topic_id, "partitions": parts}],
                "forgotten_topics_data": [],
            }

        while b"of acme" not in carol.received:
            carol.transport.out.clear()
            carol.asked.clear()
            got = await carol.ask(apis.SHARE_FETCH, 1, share_fetch(0, 1_000))
            assert codes_in(got) == {0}
        carol.transport.out.clear()
        carol.asked.clear()
        carol.send(apis.SHARE_FETCH, 1, share_fetch(1, 60_000))
        await asyncio.sleep(0.01)
        assert not carol.received
        await end(rig, shares)
        if end in {end_by_owner, end_by_reader}:
            written = await NamedClient(rig, ALICE).ask(
                apis.PRODUCE, 9, produced(SOURCE, b"of later")
            )
            assert codes_in(written) == {0}
        async with asyncio.timeout(30):
            while not carol.answers():
                await asyncio.sleep(0.01)
        assert codes_in(carol.answers()[0]) == {0, 100}
        acknowledged = {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
        settled = await carol.ask(
            apis.SHARE_FETCH, 1, share_fetch(2, acknowledgement_batches=[acknowledged])
        )
        assert codes_in(settled) == {0, 100}
        for value in (b"of later", b"of acme", b"canary"):
            assert value not in carol.received
