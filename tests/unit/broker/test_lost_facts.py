"""Facts that vanish from the metadata store, or come back old: detected, and rebuilt."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from tests.kit.broker import BrokerHarness
from tests.kit.cluster import Cluster, append_at
from tests.waiting import until

from headrace.broker.coordinators.producer_ids import ProducerIds
from headrace.broker.housekeeping.chain_repair import ChainRepairer
from headrace.broker.housekeeping.fact_audit import audit
from headrace.broker.housekeeping.ledger_evidence import read_facts
from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.coordination.kit.member_epochs import JOIN_EPOCH
from headrace.coordination.shares.membership import ShareHeartbeat
from headrace.errors import (
    ChainMissing,
    DataCorrupt,
    FactMissing,
    HeadraceError,
    LedgerUnknown,
    MetadataUnavailable,
)
from headrace.log.ledger_chain import Acknowledged, LedgerChain
from headrace.metadata import followed_facts
from headrace.metadata.facts import (
    CLUSTER_ID,
    PARTITIONS,
    PRODUCER_IDS_NEXT,
    TOPICS,
    CompanionKind,
    LedgerLink,
    PartitionFact,
    PinFact,
    TopicFact,
    companion_number,
    copy_cluster_id,
    draining_key,
    ensure_cluster_id,
    owner_key,
    partition_key,
    pin_key,
    topic_key,
)
from headrace.metadata.group_facts import group_key
from headrace.metadata.load_facts import MOVES, MovedPartition, MovesFact
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.store import ANY
from headrace.records.codec import iterate_records
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace.runtime.clock import SystemClock
from headrace.runtime.randomness import SystemRandomness
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.node import Node
    from headrace.storage.ledger import LedgerRecord

MEMBER = "AAAAAAAAAAAAAAAAAAAAAQ"


async def filled(cluster: Cluster, name: str = "t", count: int = 5) -> list[bytes]:
    """A topic of one partition, with records in several ledgers."""
    node = next(iter(cluster.nodes.values()))
    await node.topics.create(name, 1)
    values = [b"%d" % number for number in range(count)]
    for value in values:
        await cluster.append(name, 0, value)
        log = owner_log(cluster, name)
        if value[-1] % 2:
            await log.lifecycle_host.roll_now()
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
    """Delete a key from outside, as an operator with a shell would."""
    await next(iter(cluster.nodes.values())).metadata.delete(key, ANY)


async def records(node: Node) -> Sequence[LedgerRecord]:
    return await node.store.records_of(await node.store.ledger_ids())


async def restart(cluster: Cluster) -> None:
    ids = list(cluster.nodes)
    for broker_id in ids:
        await cluster.kill(broker_id)
    for broker_id in ids:
        await cluster.start(broker_id)


async def values_around_gaps(cluster: Cluster) -> list[bytes]:
    log, found = owner_log(cluster), []
    await log.wait_loaded()
    offset = log.log_start_offset
    while offset < log.high_watermark:
        for record in iterate_records(await log.reader.read(offset, 1 << 20)):
            assert record.offset >= offset
            found.append(record.value)
            offset = record.offset + 1
    return found


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


async def test_an_owner_whose_chain_is_deleted_takes_no_more_records() -> None:
    async with Cluster() as cluster:
        await cluster.start(1)
        await filled(cluster)
        await lose(cluster, chain_key(cluster))
        assert "deleted while" in str(await refused(cluster))


async def test_an_owner_without_the_notification_notices_when_it_changes_the_chain(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster)
        log = owner_log(cluster)
        monkeypatch.setattr(
            node.ownership._tenures.chains, "_read_chain", lambda _key: asyncio.sleep(0)
        )
        await lose(cluster, chain_key(cluster))
        await append_at(node, node.topics.get("t"), 0, b"into what the chain named")
        await log.lifecycle_host.roll_now()
        await refused(cluster)


@pytest.mark.parametrize("is_of_an_earlier_version", [False, True])
async def test_after_a_restart_a_partition_without_its_chain_is_refused_and_can_be_rebuilt(
    is_of_an_earlier_version,
) -> None:
    async with Cluster() as cluster:
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


async def test_a_chain_that_is_lost_while_its_owner_serves_is_rebuilt_with_all_it_acknowledged():
    async with Cluster() as cluster:
        await cluster.start(1)
        await cluster.start(2)
        values = await filled(cluster)
        await lose(cluster, chain_key(cluster))
        await refused(cluster)
        await repair(cluster)
        await until(lambda: cluster.agree("t", {1, 2}))
        assert await cluster.values("t", 0) == values


@pytest.mark.parametrize("is_journal_lost", [False, True])
async def test_a_chain_that_is_rebuilt_names_the_companion_logs_of_its_partition(
    is_journal_lost,
) -> None:
    """Otherwise delayed and half messages would wait until a client used the companion again."""

    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster)
        topic = node.topics.get("t")
        await node.shares.receive(topic, 0, ReceiveRequest("workers", "a", 1, 1_000))
        before = PartitionFact.decode(cluster.metadata.entries[chain_key(cluster)].value)
        assert before.has_companion(CompanionKind.SHARES)
        await lose(cluster, chain_key(cluster))
        if is_journal_lost:
            journal = companion_number(0, CompanionKind.SHARES)
            await lose(cluster, partition_key(topic.id, journal))
        await refused(cluster)
        await repair(cluster)
        await until(lambda: cluster.agree("t", {1}))
        after = PartitionFact.decode(cluster.metadata.entries[chain_key(cluster)].value)
        assert after.companions == before.companions


async def test_an_owner_that_meets_a_chain_that_was_lost_and_rebuilt_serves_it_again(
    monkeypatch,
) -> None:
    """It was notified of both before it had lost anything: no other notice follows."""

    async with Cluster() as cluster:
        node = await cluster.start(1)
        values = await filled(cluster)
        log = owner_log(cluster)
        with monkeypatch.context() as deaf:
            deaf.setattr(
                node.ownership._tenures.chains, "_read_chain", lambda _key: asyncio.sleep(0)
            )
            await lose(cluster, chain_key(cluster))
            await repair(cluster)
            # What else a rebuilt chain may say.
            entry = await node.metadata.get(chain_key(cluster))
            fact = replace(PartitionFact.decode(entry.value), cleaned_offset=0)
            await node.metadata.put(entry.key, fact.encode(), entry.version)
            await asyncio.sleep(0.1)
        with pytest.raises(ChainMissing, match="was changed"):
            await log.lifecycle_host.trim(2)
        await until(lambda: owner_log(cluster) is not log and owner_log(cluster).is_loaded)
        assert await cluster.values("t", 0) == values


async def go_back(cluster: Cluster, *, with_ledger: bool) -> int:
    """The metadata lose their last changes, among them a ledger with a record; its offset."""
    await filled(cluster)
    node, key, log = cluster.nodes[1], chain_key(cluster), owner_log(cluster)
    before = cluster.metadata.entries[key]
    await log.roll_now()
    offset = await cluster.append("t", 0, b"late")
    cluster.metadata.entries[key] = before
    if with_ledger:
        await node.store.delete(log.segments[-1].ledger)
    # As the store reports it once it is connected again.
    await node.ownership._tenures.chains._read_chain((node.topics.get("t").id, 0))
    return offset


async def test_a_chain_that_has_gone_back_is_no_longer_served(caplog) -> None:
    async with Cluster() as cluster:
        await cluster.start(1)
        await go_back(cluster, with_ledger=False)
        assert "was changed back while the partition was served" in caplog.text
        await until(lambda: "has acknowledged records" in str(owner_log(cluster).failure))
        await refused(cluster)
        stored = cluster.metadata.entries[chain_key(cluster)]
        assert PartitionFact.decode(stored.value).leader_epoch == 0, "nothing was written into it"
        await restart(cluster)  # chains are compared with the ledgers when a broker starts
        assert "older than its ledgers" in str(await refused(cluster))
        await repair(cluster)
        await until(lambda: cluster.agree("t", {1}) and owner_log(cluster).is_loaded)
        assert (await cluster.values("t", 0))[-1] == b"late"


async def test_a_broker_does_not_serve_a_log_that_lacks_acknowledged_records() -> None:
    """The ledger is lost as well: nothing in the metadata shows that there was more."""

    async with Cluster() as cluster:
        node = await cluster.start(1)
        offset = await go_back(cluster, with_ledger=True)
        text = f"does not reach offset {offset + 1}, up to which this broker has acknowledged"
        await until(lambda: text in str(owner_log(cluster).failure))
        await refused(cluster)
        for _ in range(2):  # nor in later tenures
            log = owner_log(cluster)
            node.ownership._step_down()
            node.ownership._step_up(has_survived=False)
            await until(lambda log=log: owner_fails(cluster, "t") and owner_log(cluster) is not log)
            assert text in str(owner_log(cluster).failure)


def test_the_start_of_a_ledger_created_ahead_is_preliminary_and_no_sign_of_a_loss() -> None:
    """A tenure that ended between the addition of the next ledger to the chain and the sealing of
    the one before it: records went on into the one, and begin later in the other."""

    async def claimed(ledger: int) -> None:
        metadata, topic = MemoryMetadataStore(), UUID(int=4)
        links = [LedgerLink(22, 133, 2), LedgerLink(27, 158, 2)]
        fact = PartitionFact(ledgers=links, leader_epoch=2)
        await metadata.put(partition_key(topic, 0), fact.encode(), ANY)
        chain = LedgerChain(metadata, topic, 0)
        chain.acknowledged = Acknowledged(LedgerId(ledger), 167)
        assert (await chain.claim(3)).ledgers == links

    for present in (22, 27):
        asyncio.run(claimed(present))
    with pytest.raises(ChainMissing, match="does not reach offset 167"):
        asyncio.run(claimed(28))


async def test_a_ledger_that_has_lost_acknowledged_records_is_not_continued() -> None:
    """Its chain is as it was: only reading it shows that."""

    async with Cluster() as cluster:
        node = await cluster.start(1)
        values = await filled(cluster)
        log = owner_log(cluster)
        ledger = node.store._ledgers[log.segments[-1].ledger]
        ledger.data, ledger.end, ledger.readable = bytearray(), 0, 0
        node.ownership._step_down()
        node.ownership._step_up(has_survived=False)
        failure = await refused(cluster)
        assert f"does not reach offset {len(values)}" in str(failure)


async def test_the_sweep_keeps_the_ledgers_of_a_living_topic_whose_chain_is_missing() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster)
        await lose(cluster, chain_key(cluster))
        await refused(cluster)
        before = await node.store.all_ledgers()
        node.config.sweep_grace_ms = 0
        for _ in range(3):
            assert await node.ledger_garbage.collect() == 0
        assert await node.store.all_ledgers() == before
        assert list(node.ledger_garbage.found.missing) == [(node.topics.get("t").id, 0)]


async def test_a_partition_that_an_earlier_version_never_wrote_to_is_served() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.create("t", 1)
        topic = node.topics.get("t")
        old = replace(topic.fact, chain_count=None)
        await node.metadata.put(topic_key("t"), old.encode(), ANY)
        await lose(cluster, chain_key(cluster))
        await restart(cluster)
        assert await cluster.append("t", 0, b"first") == 0


async def test_a_missing_chain_of_which_no_ledger_is_left_is_refused_too() -> None:
    async with Cluster() as cluster:
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


async def test_a_gap_between_ledgers_is_not_passed_over_in_silence() -> None:
    async with Cluster() as cluster:
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


async def test_partitions_that_are_added_have_chains_that_must_be_there() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.create("t", 1)
        await node.topics.add_partitions(node.topics.get("t"), 3)
        topic = node.topics.get("t")
        assert topic.fact.chain_count == 3
        await until(lambda: cluster.agree("t", {1}))
        await lose(cluster, partition_key(topic.id, 2))
        await until(lambda: isinstance(topic.partitions[2].failure, ChainMissing))


async def test_a_chain_that_is_older_than_its_ledgers_is_refused_and_completed() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        values = await filled(cluster, count=3)
        key = chain_key(cluster)
        old = (await node.metadata.get(key)).value
        for value in (b"a", b"b"):
            await cluster.append("t", 0, value)
            await owner_log(cluster).lifecycle_host.roll_now()
        await cluster.kill(1)
        store = MemoryMetadataStore(cluster.metadata)
        assert len(PartitionFact.decode(old).ledgers) < 5
        await store.put(key, old, ANY)  # restored from a back-up
        node = await cluster.start(1)
        assert "older than its ledgers" in str(await refused(cluster))
        held = [one.ledger for one in await records(node) if one.size_bytes]
        node.config.sweep_grace_ms = 0
        await node.ledger_garbage.collect()
        assert [one.ledger for one in await records(node) if one.size_bytes] == held
        _, done = await repair(cluster)
        assert done.chains[0].end_offset == 5
        await until(lambda: cluster.agree("t", {1}))
        assert await cluster.values("t", 0) == [*values, b"a", b"b"]


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_topic_whose_fact_is_lost_is_neither_new_nor_deleted(is_restarted) -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        values = await filled(cluster)
        fact = node.topics.get("t").fact
        await lose(cluster, topic_key("t"))
        await until(lambda: "t" not in node.topics.by_name)
        if is_restarted:
            await restart(cluster)
            node = cluster.nodes[1]
        with pytest.raises(FactMissing, match="cluster repair"):
            await node.topics.create("t", 1)
        held = [one.ledger for one in await records(node)]
        node.config.sweep_grace_ms = 0
        for _ in range(2):
            assert await node.ledger_garbage.collect() == 0
        assert [one.ledger for one in await records(node)] == held
        assert node.ledger_garbage.found.lost_topics == {fact.id: "t"}
        _, done = await repair(cluster)
        assert [topic.fact.name for topic in done.topics] == ["t"]
        await until(lambda: cluster.agree("t", {1}))
        assert node.topics.get("t").id == fact.id
        assert await cluster.values("t", 0) == values
        await node.services.topics.delete("t")
        await node.topics.create("t", 1)


async def test_a_lost_topic_keeps_the_progress_of_its_groups() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster)
        forgotten: list[str] = []

        async def forget(name: str, _id: object) -> None:
            forgotten.append(name)

        node.groups.topic_deleted = forget
        await lose(cluster, topic_key("t"))
        await until(lambda: "t" not in node.topics.by_name)
        await filled(cluster, "u")
        await node.services.topics.delete("u")
        await until(lambda: "u" in forgotten)
        assert "t" not in forgotten


async def test_an_owner_fact_that_is_lost_costs_no_record_and_no_epoch_is_given_again() -> None:
    async with Cluster() as cluster:
        await cluster.start(1)
        values = await filled(cluster)
        for _ in range(3):
            await restart(cluster)
            await until(lambda: cluster.agree("t", {1}))
        epoch = owner_log(cluster).leader_epoch
        assert epoch > 1
        await lose(cluster, owner_key(cluster.nodes[1].topics.get("t").id, 0))
        await until(lambda: cluster.agree("t", {1}) and owner_log(cluster).leader_epoch > epoch)
        assert await cluster.append("t", 0, b"next") == len(values)
        assert await cluster.values("t", 0) == [*values, b"next"]


@pytest.mark.parametrize("key", ["pins", "draining", "moves"])
async def test_wishes_that_are_lost_cost_no_record(key) -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await cluster.start(2)
        values = await filled(cluster)
        topic = node.topics.get("t")
        moves = MovesFact([MovedPartition(topic.id, 0, 2, 0)])
        wish, value = {
            "pins": (pin_key(topic.id, 0), PinFact(2).encode()),
            "draining": (draining_key(1), b"{}"),
            "moves": (MOVES, moves.encode()),
        }[key]
        await node.metadata.put(wish, value, ANY)
        await until(lambda: cluster.agree("t", {2}))
        await lose(cluster, wish)
        await until(lambda: cluster.agree("t", {1, 2}))
        assert await cluster.append("t", 0, b"next") == len(values)


@pytest.mark.parametrize("how", ["lost", "restored from an old back-up"])
async def test_no_producer_id_is_given_twice_where_the_counter_is(how) -> None:
    store, clock = MemoryMetadataStore(), SystemClock()
    given = set()
    old = None
    for _ in range(3):
        ids = ProducerIds(store, clock)
        given |= {await ids.take() for _ in range(2)}
        old = old or (await store.get(PRODUCER_IDS_NEXT)).value
        await asyncio.sleep(0.005)  # a broker's restart takes longer
    if how == "lost":
        await store.delete(PRODUCER_IDS_NEXT, ANY)
    else:
        await store.put(PRODUCER_IDS_NEXT, old, ANY)
    ids = ProducerIds(store, clock)
    assert not given & {await ids.take() for _ in range(3_000)}


async def test_a_lost_cluster_id_comes_back_from_its_copy_and_is_never_replaced() -> None:
    store = MemoryMetadataStore()
    made = await ensure_cluster_id(store, SystemRandomness())
    await copy_cluster_id(store, made)
    await ProducerIds(store, SystemClock()).take()
    await store.delete(CLUSTER_ID, ANY)
    assert await ensure_cluster_id(store, SystemRandomness()) == made
    assert (await store.get(CLUSTER_ID)) is not None
    await store.put(topic_key("t"), b"{}", ANY)
    await store.delete(CLUSTER_ID, ANY)
    await store.delete(PRODUCER_IDS_NEXT, ANY)
    with pytest.raises(FactMissing, match="restore it"):
        await ensure_cluster_id(store, SystemRandomness())
    assert await store.get(CLUSTER_ID) is None


async def test_a_broker_that_is_alone_keeps_what_a_lost_chain_named() -> None:
    rig = BrokerHarness()
    async with rig.running() as node:
        await node.topics.create("t", 1)
        topic = node.topics.get("t")
        await append_at(node, topic, 0, b"a")
        held = [info.ledger for info in rig.store.list()]
    await rig.metadata.delete(partition_key(topic.id, 0), ANY)
    async with rig.running() as node:
        assert [info.ledger for info in rig.store.list()] == held
        with pytest.raises(ChainMissing):
            await append_at(node, node.topics.get("t"), 0, b"b")


async def test_a_ledger_that_a_next_owner_created_ahead_proves_no_loss() -> None:
    """Its epoch is not in the chain before the move; without the mark, or later, it is damage."""

    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.create("t", 1)
        topic = node.topics.get("t")
        await cluster.append("t", 0, b"a")
        store = MemoryMetadataStore(cluster.metadata)
        labels = {"partition": b"t-0", "topic": topic.id.hex.encode()}

        async def is_verified(**more: bytes) -> bool:
            ledger = await cluster.ledgers.create({**labels, **more})
            found = audit(await read_facts(store), await cluster.ledgers.records_of([ledger]))
            assert ledger in found.kept
            return (topic.id, 0) in found.proved

        assert not await is_verified(epoch=b"1", ahead=b"1")
        assert await is_verified(epoch=b"1")
        assert await is_verified(epoch=b"2", ahead=b"1")
        await store.close()


@pytest.mark.parametrize("is_made", [True, False])
async def test_a_topic_that_comes_or_goes_while_facts_are_read_has_lost_nothing(
    monkeypatch, is_made
) -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster, "goes")
        ledgers = await records(node)
        store = MemoryMetadataStore(cluster.metadata)
        listed = store.list

        async def slowly(prefix: str) -> object:
            found = await listed(prefix)
            if prefix == PARTITIONS and is_made:
                await node.topics.create("t", 3)
            elif prefix == PARTITIONS:
                await node.services.topics.delete("goes")
                await until(lambda: is_deletion_over(cluster))
            return found

        monkeypatch.setattr(store, "list", slowly)
        found = audit(await read_facts(store), ledgers)
        assert (found.missing, found.lost_topics) == ({}, {})
        assert ("t" in node.topics.by_name) is is_made
        await store.close()


def is_deletion_over(cluster: Cluster) -> bool:
    """Whether no topic is left but those whose deletion has ended."""
    entries = cluster.metadata.entries.items()
    facts = [TopicFact.decode(entry.value) for key, entry in entries if key.startswith(TOPICS)]
    return all(fact.is_ended for fact in facts)


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_start_keeps_unnamed_ledgers_while_the_chain_of_a_journal_is_missing(
    is_lost,
) -> None:
    rig = BrokerHarness()
    async with rig.running() as node:
        await node.topics.create("t", 1)
        topic = node.topics.get("t")
        await node.shares.receive(topic, 0, ReceiveRequest("workers", "a", 1, 1_000))
        key = partition_key(topic.id, companion_number(0, CompanionKind.SHARES))
        entry = await rig.metadata.get(key)
        assert entry is not None
        journal = PartitionFact.decode(entry.value).local_ledgers
        orphan = await rig.store.create()
    if is_lost:
        await rig.metadata.delete(key, ANY)
    async with rig.running():
        left = {info.ledger for info in rig.store.list()}
    assert journal
    assert journal <= left, "only its chain names them, and it can be rebuilt from them"
    assert (orphan in left) == is_lost


@pytest.mark.parametrize("value", [b"\x00 not JSON", b'{"v":1}'])
async def test_an_undecodable_chain_is_damage_of_its_partition_alone(value) -> None:
    async with Cluster() as cluster:
        await cluster.start(1)
        values = await filled(cluster)
        others = await filled(cluster, "other")
        key = chain_key(cluster)
        await restart(cluster)
        node = cluster.nodes[1]
        await until(lambda: cluster.agree("t", {1}) and cluster.agree("other", {1}))
        await node.metadata.put(key, value, ANY)
        assert await cluster.values("other", 0) == others
        error = await refused(cluster)
        assert key in str(error)
        assert "cannot be decoded" in str(error)
        assert [one.what for one in node.health.problems()] == ["t-0"]
        facts = await read_facts(node.metadata)
        assert [fact.key for fact in facts.damaged] == [key]
        assert await node.ledger_garbage.collect() == 0
        plan, _ = await repair(cluster)
        assert [chain.name for chain in plan.chains] == ["t-0"]
        await until(lambda: cluster.agree("t", {1}))
        assert await cluster.values("t", 0) == values
        await until(lambda: not node.health.problems())


async def test_undecodable_facts_of_a_topic_and_an_owner_stop_nothing_else() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster)
        others = await filled(cluster, "other")
        owner = owner_key(node.topics.get("t").id, 0)
        damaged = [topic_key("t"), owner]
        before = (await node.metadata.get(damaged[0])).value
        for key in damaged:
            await node.metadata.put(key, b"{", ANY)
        await restart(cluster)
        node = cluster.nodes[1]
        await until(lambda: cluster.agree("other", {1}))
        assert await cluster.values("other", 0) == others
        assert {one.what for one in node.health.problems()} == set(damaged)
        assert await node.ledger_garbage.collect() == 0
        await node.metadata.put(damaged[0], before, ANY)
        await repair(cluster)
        assert await node.metadata.get(owner) is None or "t" in node.topics.by_name
        await until(lambda: cluster.agree("t", {1}))
        assert len(await cluster.values("t", 0)) == 5
        await until(lambda: not node.health.problems())


async def test_a_companion_that_is_lost_while_served_is_reported_and_opened_again() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster)
        topic = node.topics.get("t")
        request = ReceiveRequest("workers", "a", 1, 1_000)
        await node.shares.receive(topic, 0, request)
        journal = partition_key(topic.id, companion_number(0, CompanionKind.SHARES))
        before = (await node.metadata.get(journal)).value
        await lose(cluster, journal)
        await until(lambda: bool(node.health.problems()))
        assert [one.what for one in node.health.problems()] == ["share groups of t-0"]
        await node.metadata.put(journal, before, ANY)
        await until(lambda: not node.health.problems())
        deadline = asyncio.get_running_loop().time() + 10
        while True:
            try:
                await node.shares.receive(topic, 0, request)
                break
            except HeadraceError:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_group_whose_settings_cannot_be_decoded_is_refused_until_they_can(
    is_restarted,
) -> None:
    """With the defaults it would lose its key order, or drop its dead letters."""

    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster)
        await node.topics.ensure_internal(OFFSETS_TOPIC)
        key = group_key("workers")
        settings = {"headrace.share.key.order": "true", "share.auto.offset.reset": "earliest"}
        await node.services.configurations.replace_group("workers", settings)
        before = (await node.metadata.get(key)).value
        await node.metadata.put(key, b"{", ANY)
        if is_restarted:
            await restart(cluster)
            node = cluster.nodes[1]
        await until(lambda: cluster.agree("t", {1}) and bool(node.health.problems()))
        assert [one.what for one in node.health.problems()] == [key]
        topic = node.topics.get("t")
        await until(lambda: cluster.agree(OFFSETS_TOPIC, {1}))
        beat = ShareHeartbeat("workers", MEMBER, JOIN_EPOCH, ("t",), None, "", "")
        with pytest.raises(MetadataUnavailable, match=f"restore or delete {key}"):
            await node.share_groups.heartbeat(beat)
        request = ReceiveRequest("workers", "a", 1, 1_000)
        with pytest.raises(MetadataUnavailable, match=f"restore or delete {key}"):
            await node.shares.receive(topic, 0, request)
        with pytest.raises(MetadataUnavailable, match=f"restore or delete {key}"):
            await node.services.configurations.replace_group("workers", {})
        await node.shares.receive(topic, 0, ReceiveRequest("others", "a", 1, 1_000))
        await node.metadata.put(key, before, ANY)
        await until(lambda: not node.health.problems())
        assert (await node.shares.receive(topic, 0, request)).acquired
        assert node.group_configs.overrides("workers")["headrace.share.key.order"] == "true"
        await node.share_groups.heartbeat(beat)


async def test_group_settings_that_are_deleted_by_hand_are_reported_and_a_reset_is_not() -> None:
    async with Cluster() as cluster:
        first, second = await cluster.start(1), await cluster.start(2)
        key = group_key("workers")
        await first.services.configurations.replace_group(
            "workers", {"share.session.timeout.ms": "50000"}
        )
        await until(lambda: bool(second.group_configs.overrides("workers")))
        await lose(cluster, key)
        await until(lambda: bool(first.health.problems() and second.health.problems()))
        for node in (first, second):
            (problem,) = node.health.problems()
            assert problem.what == key
            assert "share.session.timeout.ms=50000" in str(problem)
        await second.services.configurations.replace_group(
            "workers", {"share.session.timeout.ms": "50000"}
        )
        await until(lambda: not first.health.problems() and not second.health.problems())
        await first.services.configurations.replace_group("workers", {})
        await until(lambda: not second.group_configs.overrides("workers"))
        assert not first.health.problems()
        assert not second.health.problems()


async def test_settings_that_stay_empty_are_deleted(monkeypatch) -> None:
    monkeypatch.setattr(followed_facts, "EMPTY_KEPT_S", 0.05)

    async with Cluster() as cluster:
        node = await cluster.start(1)
        key = group_key("workers")
        await node.services.configurations.replace_group(
            "workers", {"share.session.timeout.ms": "50000"}
        )
        await node.services.configurations.replace_group("workers", {})
        assert key in cluster.metadata.entries
        await until(lambda: key not in cluster.metadata.entries)
        assert not node.health.problems()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("which", ["middle", "newest sealed"])
async def test_one_lost_ledger_is_named_and_its_offsets_can_be_given_up(
    which, is_restarted
) -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        values = await filled(cluster, count=7)
        segments = owner_log(cluster).segments
        lost = segments[1] if which == "middle" else segments[-2]
        first, end = lost.base_offset, lost.end_offset
        await node.store.delete(lost.ledger)
        if is_restarted:
            await restart(cluster)
            node = cluster.nodes[1]
        name = f"ledger {lost.ledger} with offsets {first} to {end - 1} does not exist"
        if which == "middle" or not is_restarted:  # else the producer state is lost with it
            await until(lambda: cluster.agree("t", {1}) and owner_log(cluster).is_loaded)
            log = owner_log(cluster)
            assert await cluster.append("t", 0, b"next") == len(values)
            values.append(b"next")
            assert (await log.reader.fetch(end, 1, 0)).data, "the others are served"
            with pytest.raises(LedgerUnknown, match=name):
                await log.reader.fetch(first, 1, 0)
        await node.ledger_garbage.collect()
        shown = {one.what: str(one) for one in node.health.problems()}
        assert f"ledger {lost.ledger} (offsets {first} to {end - 1})" in shown["t-0"]
        plan, done = await repair(cluster)
        for found in (plan, done):
            (chain,) = found.chains
            assert [link.ledger for link in chain.lost_ledgers] == [lost.ledger]
            assert "--accept-loss" in chain.problem
        _, done = await repair(cluster, accept_loss=True)
        assert not done.chains[0].problem
        left = values[:first] + values[end:]
        await until(lambda: cluster.agree("t", {1}) and owner_log(cluster).is_loaded)
        await until(lambda: owner_log(cluster).lifecycle_host.chain.fact.lost_offsets is not None)
        assert await cluster.append("t", 0, b"last") == len(values), "no offset is given twice"
        assert await values_around_gaps(cluster) == [*left, b"last"]
        stored = PartitionFact.decode(cluster.metadata.entries[chain_key(cluster)].value)
        assert stored.lost_offsets == f"{first}-{end}"
        await node.ledger_garbage.collect()
        assert not node.health.problems()
        await restart(cluster)
        await until(lambda: cluster.agree("t", {1}) and owner_log(cluster).is_loaded)
        assert await values_around_gaps(cluster) == [*left, b"last"]
        plan, _ = await repair(cluster)
        assert not plan.chains


async def test_an_owner_of_an_unknown_topic_waits_for_what_cannot_be_decoded_only() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await filled(cluster)
        await filled(cluster, "other")
        orphans = node.ownership._orphaned
        await node.metadata.put(topic_key("other"), b"{", ANY)
        known = (node.topics.get("t").id, 0)
        orphans._waiting[known] = None
        await orphans._give_up()
        assert not orphans._waiting
        orphans._waiting[UUID(int=7), 0] = None
        with pytest.raises(DataCorrupt, match=topic_key("other")):
            await orphans._give_up()
