"""Facts that vanish from the metadata store, or come back old: detected, and rebuilt."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.unit.broker.test_shared_ownership import Cluster, append_at, run, until

from headrace.broker.chain_repair import ChainRepairer
from headrace.errors import ChainMissing
from headrace.metadata.facts import (
    PartitionFact,
    partition_key,
    topic_key,
)
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.store import ANY
from headrace.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.node import Node
    from headrace.storage.ledger import LedgerRecord


async def filled(cluster: Cluster, name: str = "t", count: int = 5) -> list[bytes]:
    """A topic of one partition, with records in several ledgers."""
    node = next(iter(cluster.nodes.values()))
    await node.topics.create(name, 1)
    values = [b"%d" % number for number in range(count)]
    for value in values:
        await cluster.append(name, 0, value)
        log = owner_log(cluster, name)
        if value[-1] % 2:
            await log.upkeep.roll_now()
    return values


def owner_log(cluster: Cluster, name: str = "t"):
    for node in cluster.nodes.values():
        topic = node.topics.get(name)
        if node.ownership.is_mine(topic, 0):
            return topic.partitions[0]
    raise AssertionError("nobody serves it")


def chain_key(cluster: Cluster, name: str = "t") -> str:
    node = next(iter(cluster.nodes.values()))
    return partition_key(node.topics.get(name).id, 0)


async def lose(cluster: Cluster, key: str) -> None:
    """Delete a key from outside, as somebody with a shell would."""
    await next(iter(cluster.nodes.values())).metadata.delete(key, ANY)


async def records(node: Node) -> Sequence[LedgerRecord]:
    return await node.store.records_of(await node.store.ledger_ids())


async def restart(cluster: Cluster) -> None:
    ids = list(cluster.nodes)
    for broker_id in ids:
        await cluster.kill(broker_id)
    for broker_id in ids:
        await cluster.start(broker_id)


async def refused(cluster: Cluster, name: str = "t") -> ChainMissing:
    """Wait until the owner refuses to serve; its error."""
    await until(lambda: owner_fails(cluster, name))
    log = owner_log(cluster, name)
    for node in cluster.nodes.values():
        if node.ownership.is_mine(node.topics.get(name), 0):
            with pytest.raises(ChainMissing, match="cluster repair"):
                await append_at(node, node.topics.get(name), 0, b"x")
    with pytest.raises(ChainMissing):
        await log.wait_loaded()
    return log.failure


def owner_fails(cluster: Cluster, name: str) -> bool:
    try:
        return isinstance(owner_log(cluster, name).failure, ChainMissing)
    except AssertionError:
        return False


async def repair(cluster: Cluster, *, accept_loss: bool = False):
    """`headrace cluster repair --yes`: from a process of its own."""
    store = cluster.ledgers.beside()
    metadata = MemoryMetadataStore(cluster.metadata)
    repairer = ChainRepairer(store, metadata, SystemClock())
    ledgers = await store.records_of(await store.ledger_ids())
    before = dict(cluster.metadata.entries)
    plan = await repairer.plan(ledgers)
    assert cluster.metadata.entries == before, "a plan changes nothing"
    done = await repairer.repair(ledgers, accept_loss=accept_loss)
    await metadata.close()
    return plan, done


def test_an_owner_whose_chain_is_deleted_takes_no_more_records() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(1)
        await filled(cluster)
        await lose(cluster, chain_key(cluster))
        assert "deleted while" in str(await refused(cluster))

    run(scenario)


def test_an_owner_that_did_not_hear_of_it_notices_when_it_changes_the_chain(monkeypatch) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.start(1)
        await filled(cluster)
        log = owner_log(cluster)
        monkeypatch.setattr(node.ownership._chains, "_look", lambda _key: asyncio.sleep(0))
        await lose(cluster, chain_key(cluster))
        await append_at(node, node.topics.get("t"), 0, b"into what the chain named")
        await log.upkeep.roll_now()
        await refused(cluster)

    run(scenario)


@pytest.mark.parametrize("is_of_an_earlier_version", [False, True])
def test_after_a_restart_a_partition_without_its_chain_is_refused_and_can_be_rebuilt(
    is_of_an_earlier_version,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.start(1)
        values = await filled(cluster)
        if is_of_an_earlier_version:
            topic = node.topics.get("t")
            old = replace(topic.fact, chain_count=None)
            await node.metadata.put(topic_key("t"), old.encode(), ANY)
        await lose(cluster, chain_key(cluster))
        await restart(cluster)
        await refused(cluster)
        plan, done = await repair(cluster)
        assert [chain.name for chain in plan.chains] == ["t-0"]
        assert not done.chains[0].problem
        assert done.chains[0].end_offset == len(values)
        await until(lambda: cluster.agree("t", {1}))
        assert await cluster.append("t", 0, b"next") == len(values), "no offset is given twice"
        assert await cluster.values("t", 0) == [*values, b"next"]

    run(scenario)


def test_a_chain_that_is_lost_while_its_owner_serves_is_rebuilt_with_all_it_acknowledged() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.start(1)
        await cluster.start(2)
        values = await filled(cluster)
        await lose(cluster, chain_key(cluster))
        await refused(cluster)
        await repair(cluster)
        await until(lambda: cluster.agree("t", {1, 2}))
        assert await cluster.values("t", 0) == values

    run(scenario)


def test_the_sweep_keeps_the_ledgers_of_a_living_topic_whose_chain_is_missing() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.start(1)
        await filled(cluster)
        await lose(cluster, chain_key(cluster))
        await refused(cluster)
        before = await node.store.all_ledgers()
        node.config.sweep_grace_ms = 0
        for _ in range(3):
            assert await node.sweep.sweep() == 0
        assert await node.store.all_ledgers() == before
        assert list(node.sweep.found.missing) == [(node.topics.get("t").id, 0)]

    run(scenario)


def test_a_partition_that_an_earlier_version_never_wrote_to_is_served() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.start(1)
        await node.topics.create("t", 1)
        topic = node.topics.get("t")
        old = replace(topic.fact, chain_count=None)
        await node.metadata.put(topic_key("t"), old.encode(), ANY)
        await lose(cluster, chain_key(cluster))
        await restart(cluster)
        assert await cluster.append("t", 0, b"first") == 0

    run(scenario)


def test_a_missing_chain_of_which_no_ledger_is_left_is_refused_too() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.start(1)
        await filled(cluster)
        await lose(cluster, chain_key(cluster))
        for ledger in await node.store.all_ledgers():
            await node.store.delete(ledger)
        await restart(cluster)
        await refused(cluster)
        _, done = await repair(cluster)
        assert done.chains[0].fact.ledgers == []
        await until(lambda: cluster.agree("t", {1}))

    run(scenario)


def test_a_gap_between_ledgers_is_not_passed_over_in_silence() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.start(1)
        values = await filled(cluster)
        middle = owner_log(cluster).segments[1]
        start = middle.end_offset
        await lose(cluster, chain_key(cluster))
        await refused(cluster)
        await node.store.delete(middle.ledger)
        _, done = await repair(cluster)
        assert "--accept-loss" in done.chains[0].problem
        assert isinstance(owner_log(cluster).failure, ChainMissing)
        _, done = await repair(cluster, accept_loss=True)
        assert done.chains[0].lost_records == middle.end_offset - middle.base_offset
        await until(lambda: cluster.agree("t", {1}))
        assert await cluster.values("t", 0) == values[start:]

    run(scenario)


def test_partitions_that_are_added_have_chains_that_must_be_there() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.start(1)
        await node.topics.create("t", 1)
        await node.topics.add_partitions(node.topics.get("t"), 3)
        topic = node.topics.get("t")
        assert topic.fact.chain_count == 3
        await until(lambda: cluster.agree("t", {1}))
        await lose(cluster, partition_key(topic.id, 2))
        await until(lambda: isinstance(topic.partitions[2].failure, ChainMissing))

    run(scenario)


def test_a_chain_that_is_older_than_its_ledgers_is_refused_and_completed() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = await cluster.start(1)
        values = await filled(cluster, count=3)
        key = chain_key(cluster)
        old = (await node.metadata.get(key)).value
        for value in (b"a", b"b"):
            await cluster.append("t", 0, value)
            await owner_log(cluster).upkeep.roll_now()
        await cluster.kill(1)
        store = MemoryMetadataStore(cluster.metadata)
        assert len(PartitionFact.decode(old).ledgers) < 5
        await store.put(key, old, ANY)  # restored from a back-up
        node = await cluster.start(1)
        assert "older than its ledgers" in str(await refused(cluster))
        held = [one.ledger for one in await records(node) if one.size_bytes]
        node.config.sweep_grace_ms = 0
        await node.sweep.sweep()
        assert [one.ledger for one in await records(node) if one.size_bytes] == held
        _, done = await repair(cluster)
        assert done.chains[0].end_offset == 5
        await until(lambda: cluster.agree("t", {1}))
        assert await cluster.values("t", 0) == [*values, b"a", b"b"]

    run(scenario)
