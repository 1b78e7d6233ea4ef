"""Quorums of a topic's own, from the clients' request to the metadata of ledgers."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.bookkeeper_rig import opened
from tests.cluster.brokers import Brokers
from tests.integration.clients import TIMEOUT_S, admin
from tests.waiting import wait_until

from headrace.metadata.facts import PartitionFact, TopicFact, partition_key, topic_key
from headrace.metadata.zookeeper import ZooKeeperMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.zookeeper.client import ZooKeeper, ZooKeeperOptions


@pytest.fixture
def brokers(tmp_path, shared_cluster):
    made = Brokers(
        tmp_path,
        shared_cluster.zookeeper.address,
        1,
        *("--zookeeper-root", f"/{tmp_path.name}", "--quorum", "3,2,1"),
        *("--session-timeout-ms", "20000"),
    )
    yield made
    made.close()


@pytest.fixture
def quorums(shared_cluster, tmp_path):
    """quorums(topic): (ensemble, write, ack) of each ledger of partition 0, from old to new."""
    address = shared_cluster.zookeeper.address

    async def look(topic: str) -> list[tuple[int, ...]]:
        client = await ZooKeeper.connect(ZooKeeperOptions(address), SystemClock())
        facts = await ZooKeeperMetadataStore.open(client, f"/{tmp_path.name}")
        entry = await facts.get(topic_key(topic))
        entry = await facts.get(partition_key(TopicFact.decode(entry.value).id, 0))
        chain = PartitionFact.decode(entry.value).ledgers
        async with opened(address) as store:
            read = [await store._cluster.service.read(link.ledger) for link in chain]
        await facts.close()
        await client.close()
        found = [versioned.metadata for versioned in read]
        assert all(len(m.last_ensemble.bookies) == m.quorum.ensemble for m in found)
        return [tuple(metadata.quorum) for metadata in found]

    return lambda topic: asyncio.run(look(topic))


def test_a_topics_quorum_is_that_of_its_ledgers_from_the_next_one_on(brokers, quorums):
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ConfigSource,
        NewTopic,
    )

    client = admin(brokers.bootstrap)
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "log_level": 0})

    def make(name: str, **config: str) -> None:
        new = NewTopic(name, 1, config={"segment.bytes": "4000", **config})
        client.create_topics([new])[name].result(TIMEOUT_S)

    def fill(name: str, size: int = 100) -> None:
        producer.produce(name, b"x" * size, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    def described(name: str):
        resource = ConfigResource(ConfigResource.Type.TOPIC, name)
        return client.describe_configs([resource])[resource].result(TIMEOUT_S)["headrace.quorum"]

    make("plain")
    make("wide", **{"headrace.quorum": "4,3,2"})
    for name in ("plain", "wide"):
        fill(name)
    assert quorums("plain") == [(3, 2, 1)]
    assert quorums("wide") == [(4, 3, 2)]
    shown = described("plain")
    assert (shown.value, shown.source) == ("3,2,1", ConfigSource.STATIC_BROKER_CONFIG.value)
    assert (described("wide").value, described("wide").is_default) == ("4,3,2", False)
    with pytest.raises(KafkaException, match="E >= W >= A"):
        make("wrong", **{"headrace.quorum": "2,3,2"})

    entry = ConfigEntry("headrace.quorum", "2,2,2", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, "wide", incremental_configs=[entry])
    client.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    assert described("wide").value == "2,2,2"

    def rolled() -> bool:
        fill("wide", 1_000)
        return quorums("wide")[-1] == (2, 2, 2)

    wait_until(rolled, 120)
    assert quorums("wide")[0] == (4, 3, 2), "a ledger that is there stays as it is"
