"""Topics that one tenant shares with another, at several brokers that serve their partitions."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from tests.kit.cluster import Cluster
from tests.unit.http.http_rig import Web
from tests.waiting import until

from headrace.broker.services.reads import AT_START, Start
from headrace.broker.services.topic_service import NEW_TOPIC_WAIT_S, NewTopic
from headrace.broker.services.topic_shares import TopicShares
from headrace.errors import TopicExists, TopicUnknown
from headrace.metadata.followed_facts import SHARED_TOPICS
from headrace.metadata.store import ANY
from headrace.metadata.tenant_facts import AcceptedFact, topic_shares_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.broker.node import Node

SOURCE, NAME, PARTITIONS = "«acme»canary", "«beta»partner", 4
SETTINGS = {
    "offsets_partition_count": 2,
    "authorizer": "acl",
    "super_users": "User:ANONYMOUS",  # brokers, and the operator
    "tenants": "acme=User:alice;beta=User:carol",
}


@asynccontextmanager
async def shared() -> AsyncIterator[tuple[Cluster, Node, Node]]:
    """Two brokers, each of which serves partitions of a topic that was shared at the first one."""
    async with Cluster(has_ports=True) as cluster:
        cluster.settings |= SETTINGS
        first, second = [await cluster.start(one) for one in (1, 2)]
        await first.services.topics.create(NewTopic(SOURCE, PARTITIONS))
        await until(lambda: len({*cluster.owners(SOURCE)}) == 2)
        await until(lambda: cluster.agree(SOURCE, {1, 2}))
        for number in range(PARTITIONS):
            await cluster.append(SOURCE, number, b"of acme %d" % number)
        await until(lambda: first.services.cluster.all_know(SHARED_TOPICS))
        await shares(first).share(SOURCE, "beta")
        await shares(second).accept(NAME, SOURCE, is_operator=False)  # it asks the store
        for node in (first, second):
            await until(lambda node=node: node.topics.readable.find(NAME))
        yield cluster, first, second


def shares(node: Node) -> TopicShares:
    return TopicShares(node.services)


async def test_each_broker_reads_all_partitions_and_names_the_same_leaders():
    async with shared() as (cluster, first, second):
        topics = [node.topics.readable.get(NAME) for node in (first, second)]
        assert topics[0].id == topics[1].id != first.topics.get(SOURCE).id
        for node, topic in zip((first, second), topics, strict=True):
            for number in range(PARTITIONS):
                leader = node.services.topics.leader(topic, number)
                assert leader.broker == cluster.owners(SOURCE)[number]
                read = await node.services.reads.read(topic, number, Start(AT_START), 10, 0)
                assert [one.value for one in read.records] == [b"of acme %d" % number]
        await shares(second).unshare(SOURCE, "beta")
        await until(lambda: first.topics.readable.find(NAME) is None)
        for node, topic in zip((first, second), topics, strict=True):
            for number in range(PARTITIONS):
                with pytest.raises(TopicUnknown):
                    await node.services.reads.read(topic, number, Start(AT_START), 10, 0)


async def test_any_broker_receives_the_messages_of_a_queue():
    async with shared() as (cluster, first, _second):
        group = "«beta»workers"
        settings = {"share.auto.offset.reset": "earliest"}
        await first.group_configs.change(group, lambda _: settings)
        for node in cluster.nodes.values():
            await until(lambda node=node: node.group_configs.overrides(group) == settings)
        path = f"/v1/queues/{NAME}/{group}"
        webs = [Web(rig) for rig in cluster.rigs.values()]
        status, got = await webs[0].ask("POST", f"{path}/receive", {"max": 100})
        assert status == 200, got
        values = {f"of acme {number}" for number in range(PARTITIONS)}
        assert {one["value"] for one in got["messages"]} == values
        assert "canary" not in str(got)
        ended = {"ack": [one["receipt"] for one in got["messages"]]}
        status, settled = await webs[1].ask("POST", f"{path}/settle", ended)
        assert [one["ok"] for one in settled["results"]] == [True] * PARTITIONS
        status, got = await webs[1].ask("POST", f"{path}/receive", {"max": 100})
        assert (status, got["messages"]) == (200, [])


async def test_a_broker_serves_what_was_accepted_at_another_one_just_now():
    async with shared() as (cluster, first, _second):
        first.access.sharing.apply(topic_shares_key("beta"), None)  # as if it had not followed yet
        assert first.topics.readable.find(NAME) is None
        web = Web(cluster.rigs[1])
        status, got = await web.ask("GET", f"/v1/topics/{NAME}/records?partition=0")
        assert (status, [one["value"] for one in got["records"]]) == (200, ["of acme 0"]), got
        for tenant in ("acme", "beta"):
            key = topic_shares_key(tenant)
            await cluster.rigs[1].metadata.put(key, b"not readable", ANY)
            status, got = await web.ask("GET", "/v1/topics/«beta»absent/records?partition=0")
            assert status == 404, got


@pytest.mark.parametrize("is_own_first", [True, False])
async def test_brokers_agree_who_has_a_name_that_two_took_at_once(is_own_first):
    """The reader's own topic, whichever they learn of first."""
    async with shared() as (_, first, second):
        await shares(second).leave(NAME)
        source = first.topics.get(SOURCE).id
        accepted = AcceptedFact("n", SOURCE, source, first.topics.randomness.uuid())

        async def create() -> None:
            try:
                await first.services.topics.create(NewTopic("«beta»n", 1))
            except TopicExists:
                assert first.topics.readable.is_shared("«beta»n")

        async def accept() -> None:
            await shares(second).sharing.accept("«beta»n", accepted)

        both = [create(), accept()] if is_own_first else [accept(), create()]
        await asyncio.gather(*both)
        if "«beta»n" in first.topics.by_name:
            for node in (first, second):
                await until(lambda node=node: "«beta»n" in node.topics.by_name)
                await until(lambda node=node: node.access.sharing.is_accepted("«beta»n"))
                topic = node.topics.readable.get("«beta»n")
                assert topic.home is topic
                assert node.topics.readable.find_by_id(accepted.id) is None


async def test_a_topic_that_another_broker_does_not_know_is_answered_as_unknown():
    """Without its id, which clients over HTTP do not know."""
    async with shared() as (cluster, _first, second):
        second.access.sharing.apply(topic_shares_key("beta"), None)
        web, path = Web(cluster.rigs[1]), f"/v1/queues/{NAME}/«beta»workers"
        status, got = await web.ask("POST", f"{path}/receive", {"max": 1})
        assert (status, got["code"]) == (404, "TopicUnknown"), got
        assert got["detail"] == "the topic does not exist"
        status, got = await web.ask("GET", path)
        assert {one["error"]["code"] for one in got["failed"]} == {"TopicUnknown"}


async def test_another_brokers_request_about_a_topic_waits_until_it_is_known_to_be_shared():
    async with shared() as (cluster, first, second):
        known = first.topics.readable.get(NAME)
        key = topic_shares_key("beta")
        second.access.sharing.apply(key, None)
        asked = asyncio.create_task(second.services.topics.of_another(known.id, []))
        await asyncio.sleep(0)
        second.access.sharing.apply(key, await cluster.rigs[2].metadata.get(key))
        async with asyncio.timeout(NEW_TOPIC_WAIT_S / 2):
            assert (await asked).name == NAME


async def test_what_another_broker_has_just_shared_ends_with_its_reader():
    """A tenant that is created with the reader's name does not read it."""
    async with shared() as (cluster, first, second):
        assert first.access is not None
        await first.access.tenants.create("gamma", ["User:gina"])
        await until(lambda: second.access.tenants.exists("gamma"))
        await shares(second).share(SOURCE, "gamma")
        await until(lambda: len(first.access.sharing.given("acme")) == 2)
        first.access.sharing.apply(topic_shares_key("acme"), None)  # it has not followed yet
        status, got = await Web(cluster.rigs[1]).ask("DELETE", "/v1/tenants/gamma?force=true")
        assert status == 200, got
        await until(lambda: not second.access.tenants.exists("gamma"))
        await first.access.tenants.create("gamma", ["User:gus"])
        await until(lambda: second.access.tenants.exists("gamma"))
        for node in (first, second):
            with pytest.raises(TopicUnknown):
                await shares(node).accept("«gamma»g", SOURCE, is_operator=False)


async def test_a_broker_that_has_not_followed_yet_changes_what_is_stored():
    """It neither leaves undone what another broker's change has made necessary, nor says that there
    was nothing to end."""
    async with shared() as (_cluster, first, second):
        accepted = await first.metadata.get(topic_shares_key("beta"))
        given = await first.metadata.get(topic_shares_key("acme"))
        assert await shares(second).leave(NAME)
        await until(lambda: not first.access.sharing.is_accepted(NAME))
        first.access.sharing.apply(topic_shares_key("beta"), accepted)
        await shares(first).accept(NAME, SOURCE, is_operator=False)
        await until(lambda: second.topics.readable.find(NAME))
        first.access.sharing.apply(topic_shares_key("beta"), None)
        assert await shares(first).leave(NAME)
        await shares(first).accept(NAME, SOURCE, is_operator=False)
        first.access.sharing.apply(topic_shares_key("acme"), None)
        assert await shares(first).unshare(SOURCE, "beta", is_dry_run=True)
        assert await shares(first).unshare(SOURCE, "beta")
        first.access.sharing.apply(topic_shares_key("acme"), given)
        assert not await shares(first).unshare(SOURCE, "beta")
