"""Bookies that die under brokers, and damage: what is said of it, and when all is well again."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from tests.cluster.bookkeeper_rig import opened, plant_damaged_end
from tests.cluster.brokers import Brokers, Load
from tests.cluster.fixtures import cluster as started
from tests.integration.clients import Confluent, Rec, create_topic
from tests.integration.test_rocketmq import post
from tests.waiting import wait_until

from headrace.cli.cluster_admin import status, verify
from headrace.metadata.facts import (
    CompanionKind,
    PartitionFact,
    TopicFact,
    companion_number,
    partition_key,
    topic_key,
)
from headrace.metadata.store import ANY
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.storage.bookkeeper.ledger_metadata import ledger_path
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions

PARTITIONS = 4


@pytest.fixture
def own_cluster(cluster_parts):
    with started(cluster_parts, bookie_count=4, bookie_session_timeout_ms=2_000) as own:
        yield own


@pytest.fixture
def brokers(own_cluster, tmp_path):
    made = Brokers(tmp_path, own_cluster.zookeeper.address, 1)
    yield made
    made.close()


def metrics(broker) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{broker.http}/metrics") as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if "topic" not in sample.labels
    }


def readiness(broker) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(f"http://{broker.http}/readyz") as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def asked(cluster, command) -> tuple[int, dict]:
    done = CliRunner().invoke(
        command, ["--zookeeper", cluster.zookeeper.address, "--json"], standalone_mode=True
    )
    return done.exit_code, json.loads(done.stdout)


def test_missing_copies_and_lost_bookies_are_reported_everywhere(own_cluster, brokers):
    cluster, broker = own_cluster, brokers.by_id[1]
    create_topic(brokers.bootstrap, "t", PARTITIONS)
    load = Load(brokers.bootstrap, "t", PARTITIONS, rate=200)
    try:
        load.wait_acked(20)
        seen = wait_until(lambda: (m := metrics(broker))["headrace_can_write"] and m)
        assert seen["headrace_partitions_offline"] == 0
        assert seen["headrace_partitions_owned"] >= PARTITIONS
        assert seen["headrace_copies_missing"] == 0
        assert seen["headrace_bookiesknown"] == seen["headrace_bookieswritable"] == 4
        assert seen["headrace_zookeeper_sessionconnected"] == 1
        for command in (status, verify):
            code, said = asked(cluster, command)
            assert code == 0, said
            assert not said["under_replicated"]
        assert readiness(broker)[0] == 200

        # Two of four: every entry still has its ack quorum, and one copy less.
        dead = cluster.bookies[:2]
        for bookie in dead:
            bookie.kill()
        load.wait_acked(20)
        wait_until(lambda: metrics(broker)["headrace_copies_missing"])
        seen = wait_until(lambda: (m := metrics(broker))["headrace_bookiesregistered"] == 2 and m)
        assert seen["headrace_bookiesknown"] == 4
        assert seen["headrace_partitions_under_replicated"] >= PARTITIONS
        assert readiness(broker)[0] == 200, "two bookies are an ack quorum"
        for command in (status, verify):
            code, said = asked(cluster, command)
            assert code == 1, said
            assert said["lost_bookies"] == sorted(bookie.address for bookie in dead)
            names = {one["partition"] for one in said["under_replicated"]}
            assert {f"t-{number}" for number in range(PARTITIONS)} <= names

        # Three of four: nothing can be written, and readiness says why.
        cluster.bookies[2].kill()
        code, said = wait_until(lambda: (r := readiness(broker))[0] == 503 and r)
        assert "2 must acknowledge" in said["reason"]
        assert not said["ready"]
        wait_until(lambda: metrics(broker)["headrace_bookiesregistered"] == 1)
        assert asked(cluster, status)[1]["unwritable"]

        for bookie in cluster.bookies[:3]:
            bookie.start()
        for bookie in cluster.bookies[:3]:
            cluster.wait_ready(bookie)
        wait_until(lambda: readiness(broker)[0] == 200)
        load.wait_acked(20)
        wait_until(lambda: metrics(broker)["headrace_bookieswritable"] == 4)
        for command in (status, verify):
            # What a broker reports is as old as its last check.
            wait_until(lambda command=command: asked(cluster, command)[0] == 0)
    finally:
        load.stop()
    assert not load.errors


async def _facts(address: str, ask) -> object:
    """What `ask` returns, given a ZooKeeper client and the store of facts over it."""
    client = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
    metadata = await ZooKeeperMetadataStore.open(client, "/headrace")
    try:
        return await ask(client, metadata)
    finally:
        await metadata.close()
        await client.close()


async def spoil(client, metadata, address: str, damage: str, key: str, chains: list[bytes]) -> None:
    """Do the damage to the partition whose chain has the key; `chains` are its earlier ones."""
    ledgers = PartitionFact.decode(chains[-1]).ledgers
    if damage == "ledger without metadata":
        assert await client.delete(ledger_path("/ledgers", ledgers[0].ledger))
    elif damage == "last entry corrupt":
        async with opened(address) as store:
            await plant_damaged_end(store, ledgers[-1].ledger)
    elif damage == "lost companion":
        await metadata.delete(key, ANY)
    else:
        await metadata.put(key, b"{" if damage == "undecodable chain" else chains[0], ANY)


DAMAGE = {
    "undecodable chain": "damaged-0",
    "older chain": "damaged-0",
    "ledger without metadata": "damaged-0",
    "last entry corrupt": "damaged-0",
    "lost companion": "share groups of damaged-0",
}
"""What is damaged, and the name by which people know it."""


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_of_one_partition_is_one_verdict_everywhere(own_cluster, brokers, damage):
    """Readiness, metrics, `cluster status` and `cluster verify` name the partition and why."""
    cluster, broker, what = own_cluster, brokers.by_id[1], DAMAGE[damage]
    address = cluster.zookeeper.address
    for topic in ("damaged", "sound"):
        create_topic(brokers.bootstrap, topic)

    async def chain(_client, metadata) -> tuple[str, bytes]:
        topic = TopicFact.decode((await metadata.get(topic_key("damaged"))).value)
        number = companion_number(0, CompanionKind.SHARES) if damage == "lost companion" else 0
        key = partition_key(topic.id, number)
        return key, (await metadata.get(key)).value

    chains = []
    for _ in range(3):  # each start begins a ledger
        for topic in ("damaged", "sound"):
            Confluent.produce(brokers.bootstrap, topic, [Rec(None, b"value")] * 10)
        post(broker, "/v1/queues/damaged/workers/receive", {"max": 1})  # makes the companion
        if damage == "last entry corrupt":
            broker.kill()  # the ledger stays open: its end is where its entries end
        else:
            broker.stop()
        key, value = asyncio.run(_facts(address, chain))
        chains.append(value)
        if len(chains) < 3:
            broker.start()

    asyncio.run(_facts(address, lambda *both: spoil(*both, address, damage, key, chains)))
    broker.start()
    broker.get("/v1/topics/damaged/records?partition=0&offset=0")
    with suppress(urllib.error.HTTPError):  # what nobody uses is not opened
        post(broker, "/v1/queues/damaged/workers/receive", {"max": 1})
    assert len(Confluent.consume(brokers.bootstrap, "sound", 30)) == 30

    def named() -> dict[str, str]:
        return {one["what"]: one["reason"] for one in readiness(broker)[1].get("problems", [])}

    wait_until(lambda: what in named())
    reason = named()[what]
    assert set(named()) == {what}
    seen = metrics(broker)
    assert (seen["headrace_partitions_damaged"], seen["headrace_problems"]) == (1, 1)
    for command in (status, verify):
        # What a broker reports is published now and then.
        wait_until(lambda command=command: reason in str(asked(cluster, command)[1]["problems"]))
        code, said = asked(cluster, command)
        assert code == 1, said
        assert "sound-0" not in str(said["problems"])

    if damage in ("ledger without metadata", "last entry corrupt"):
        return  # `cluster repair --accept-loss` gives it up: tests/unit/broker/test_lost_facts.py
    asyncio.run(_facts(address, lambda _, metadata: metadata.put(key, chains[-1], ANY)))
    wait_until(lambda: not named())
    for command in (status, verify):
        wait_until(lambda command=command: asked(cluster, command)[0] == 0)
    assert len(Confluent.consume(brokers.bootstrap, "damaged", 30)) == 30
