"""Several brokers share ledgers and metadata: owners and take-overs."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.kit.cluster import Cluster, append_at
from tests.kit.records import append
from tests.waiting import until

from headrace.broker.coordinators import coordinator_shards, shard_snapshot
from headrace.broker.ownership import (
    hand_over,
    next_owner,
    orphaned_ownerships,
    shared_ownership,
    tenures,
)
from headrace.broker.ownership.hand_over import HandOvers
from headrace.broker.ownership.membership import Membership
from headrace.broker.services.reassignments import Move, Reassignment
from headrace.broker.services.topic_service import NewTopic
from headrace.broker.topics import deletion
from headrace.broker.topics.ownership import NO_LEADER
from headrace.broker.topics.topic import Topic
from headrace.coordination.groups.commands import (
    CommitCommand,
    FetchOffsetsCommand,
    OffsetToCommit,
)
from headrace.coordination.transactions.commands import (
    AddPartitionsCommand,
    InitProducerIdCommand,
)
from headrace.errors import (
    AssignmentInvalid,
    BrokerIdInUse,
    HeadraceError,
    NoReassignment,
    NotCoordinator,
    NotOwner,
    StorageUnavailable,
    TopicUnknown,
)
from headrace.log.log_tenure import LogTenure
from headrace.metadata.facts import (
    OWNERS,
    OwnerFact,
    PartitionFact,
    PinFact,
    TopicFact,
    broker_key,
    draining_key,
    owner_key,
    partition_key,
    partition_of_key,
    pin_key,
    topic_key,
)
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.store import ANY, MetadataEntry
from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch
from headrace.records.identifiers import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.runtime.randomness import SystemRandomness
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.node import Node
    from headrace.metadata.facts import PartitionKey
    from headrace.metadata.store import MultiOperation
    from headrace.storage.ledger import LedgerId, LedgerInfo


async def test_a_new_topic_is_served_by_all_brokers_alike_when_its_creation_is_answered() -> None:
    async with Cluster() as cluster:
        for broker_id in (1, 2, 3):
            await cluster.start(broker_id)
        await cluster.nodes[2].topics.create("t", 6)
        assert sorted(cluster.owners("t", cluster.nodes[2])) == [1, 1, 2, 2, 3, 3]
        await until(lambda: cluster.agree("t", {1, 2, 3}))
        for number in range(6):
            assert await cluster.append("t", number, b"x") == 0


async def test_when_a_broker_dies_others_serve_its_partitions_and_nothing_is_lost() -> None:
    async with Cluster() as cluster:
        for broker_id in (1, 2, 3):
            await cluster.start(broker_id)
        await cluster.nodes[1].topics.create("t", 6)
        for number in range(6):
            await cluster.append("t", number, b"before")
        await cluster.kill(2)
        await until(lambda: cluster.agree("t", {1, 3}))
        for number in range(6):
            assert await cluster.append("t", number, b"after") == 1
            assert await cluster.values("t", number) == [b"before", b"after"]


async def test_a_broker_whose_session_ended_can_write_nothing_more_once_another_serves() -> None:
    async with Cluster() as cluster:
        zombie = await cluster.start(1)
        await zombie.topics.create("t", 1)
        topic = zombie.topics.get("t")
        await until(lambda: cluster.agree("t", {1}))
        await append_at(zombie, topic, 0, b"a")
        log = topic.partitions[0]
        await cluster.kill(1)
        await cluster.start(2)
        await until(lambda: cluster.agree("t", {2}))
        assert await cluster.append("t", 0, b"b") == 1
        batch = encode_batch([Record(0, 0, None, b"zombie", [])])
        with pytest.raises(HeadraceError):
            log.append(batch, check_batch(batch))
        assert await cluster.values("t", 0) == [b"a", b"b"]


async def test_a_broker_that_stops_hands_over_without_an_error_that_a_retry_does_not_mend() -> None:
    async with Cluster() as cluster:
        for broker_id in (1, 2):
            await cluster.start(broker_id)
        await cluster.nodes[1].topics.create("t", 4)
        for number in range(4):
            await cluster.append("t", number, b"a")
        epochs = {
            number: cluster.nodes[2].ownership.leader(cluster.nodes[2].topics.get("t"), number)
            for number in range(4)
        }
        await cluster.stop(1)
        await until(lambda: cluster.agree("t", {2}))
        topic = cluster.nodes[2].topics.get("t")
        for number in range(4):
            leader = cluster.nodes[2].ownership.leader(topic, number)
            moved = epochs[number].broker == 1
            assert leader.leader_epoch == epochs[number].leader_epoch + moved
            assert await cluster.append("t", number, b"b") == 1


async def test_a_stopping_broker_stays_listed_until_clients_know_the_new_owners(
    monkeypatch,
) -> None:
    """librdkafka drops a broker that an answer does not list, and with it the leaders it learnt of
    while a request was on its way: the last partitions of a stop stood still for half a second."""
    monkeypatch.setattr(shared_ownership, "LEFT_PAUSE_S", 1_000)

    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 4)
        for number in range(4):
            await cluster.append("t", number, b"a")
        stopping = asyncio.create_task(one.leave())
        for node in one, two:
            await until(lambda node=node: {*cluster.owners("t", node)} == {2})
            assert {fact.id for fact in node.cluster.brokers()} == {1, 2}
        assert not stopping.done()
        stopping.cancel()  # as if the pause were over
        await asyncio.wait([stopping])
        await until(lambda: {fact.id for fact in two.cluster.brokers()} == {2})


async def test_a_stopping_broker_that_has_nothing_to_hand_over_leaves_at_once(monkeypatch) -> None:
    monkeypatch.setattr(shared_ownership, "LEFT_PAUSE_S", 1_000)

    async with Cluster() as cluster:
        one = await cluster.start(1)
        await one.topics.create("t", 4)
        await cluster.append("t", 0, b"a")
        async with asyncio.timeout(60):
            await one.leave()


async def test_partitions_handed_over_by_a_stopping_broker_are_not_returned_to_it(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 4)
        for number in range(4):
            await cluster.append("t", number, b"a")
        may_leave, leave = asyncio.Event(), Membership.leave

        async def late(membership: Membership) -> None:
            await may_leave.wait()
            await leave(membership)

        monkeypatch.setattr(Membership, "leave", late)
        stopping = asyncio.create_task(one.leave())
        topic = two.topics.get("t")
        await until(lambda: all(two.ownership.is_mine(topic, number) for number in range(4)))
        await asyncio.sleep(3 * one.config.rebalance_delay_ms / 1000)
        two.ownership.topics_changed()  # all partitions are looked at
        await asyncio.sleep(0)
        assert 1 in two.ownership.view.brokers
        assert not two.ownership._busy
        assert cluster.owners("t", two) == [2] * 4
        may_leave.set()
        await stopping


async def test_a_move_of_what_is_in_use_is_done_while_other_partitions_cannot_be_read(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        monkeypatch.setattr(tenures, "LOADS_AT_ONCE", 1)
        owner, other, topic = await two_brokers(cluster)
        async with other.ownership._tenures._loads:  # as of a partition whose bookies are away
            loaded = asyncio.Event()
            other.ownership._tenures._loaded = lambda *_: loaded.set()
            await pin(owner, topic, other.config.broker_id)
            await asyncio.wait_for(loaded.wait(), 5)
            seen = other.topics.get("t").partitions[0]
            await until(lambda: seen.active is not None)


async def test_a_broker_that_joins_gets_its_share_and_no_data_is_copied() -> None:
    async with Cluster() as cluster:
        await cluster.start(1)
        await cluster.nodes[1].topics.create("t", 6)
        for number in range(6):
            await cluster.append("t", number, b"a")
        await cluster.start(2)
        await until(  # the partitions move in turn
            lambda: cluster.agree("t", {1, 2}) and sorted(cluster.owners("t")) == [1, 1, 1, 2, 2, 2]
        )
        for number in range(6):
            assert await cluster.append("t", number, b"b") == 1
            assert await cluster.values("t", number) == [b"a", b"b"]


async def test_partitions_served_by_another_broker_take_little_memory() -> None:
    async with Cluster() as cluster:
        one = await cluster.start(1)
        fact = TopicFact("large", SystemRandomness().uuid(), 10_000, 1, {}, 0)
        gc.collect()
        tracemalloc.start()
        one.topics.apply(topic_key("large"), MetadataEntry(topic_key("large"), fact.encode(), 0))
        gc.collect()
        size, _peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        topic = one.topics.get("large")
        assert len(topic.partitions) == 10_000
        assert size <= 2_000_000, f"{size / 10_000} bytes each"
        with pytest.raises(NotOwner, match="large-7 is not served"):
            topic.require_log(7)
        with pytest.raises(TopicUnknown):
            topic.require_log(10_000)
        assert topic.log(7) is None
        assert not list(topic.logs)


async def test_an_assignment_is_a_placement_on_any_live_brokers() -> None:
    async with Cluster() as cluster:
        for broker_id in (1, 2, 3):
            await cluster.start(broker_id)
        admin = cluster.nodes[2].services.topics
        wanted = [3, 3, 3, 1]
        assignments = [(number, (broker,)) for number, broker in enumerate(wanted)]
        await admin.create(NewTopic("t", assignments=assignments))
        await until(lambda: cluster.agree("t", {1, 3}))
        assert cluster.owners("t") == wanted
        await admin.add_partitions("t", 6, [(0, (2,)), (1, (3,))])
        await until(lambda: cluster.agree("t", {1, 2, 3}) and len(cluster.owners("t")) == 6)
        assert cluster.owners("t") == [*wanted, 2, 3]
        await admin.create(NewTopic("copies", assignments=[(0, (2, 1)), (1, (1, 3))]))
        await until(lambda: cluster.agree("copies", {1, 2}))
        assert cluster.owners("copies") == [2, 1], "the first of each; copies are the storage's"
        for wrong, reason in (
            ([(0, (4,))], "broker 4, which is not live: live are 1, 2, 3"),
            ([(0, (1, 1))], "names a broker twice"),
            ([(0, ())], "has no broker"),
            ([(0, (1,)), (1, (1, 2))], "another number of brokers"),
        ):
            with pytest.raises(AssignmentInvalid, match=reason):
                await admin.create(NewTopic("u", assignments=wrong))
        with pytest.raises(AssignmentInvalid, match="1 assignments for 2 new partitions"):
            await admin.add_partitions("t", 8, [(0, (2,))])


async def test_a_pin_moves_a_partition_and_draining_empties_a_broker() -> None:
    async with Cluster() as cluster:
        for broker_id in (1, 2):
            await cluster.start(broker_id)
        metadata = cluster.nodes[1].metadata
        await cluster.nodes[1].topics.create("t", 2)
        topic_id = cluster.nodes[1].topics.get("t").id
        for number in (0, 1):
            await metadata.put(pin_key(topic_id, number), PinFact(2).encode(), ANY)
        await until(lambda: cluster.agree("t", {2}))
        await metadata.put(draining_key(2), b"{}", ANY)
        await until(lambda: cluster.agree("t", {1}))
        await metadata.delete(draining_key(2), ANY)
        await until(lambda: cluster.agree("t", {2}))


async def test_a_reassignment_moves_a_partition_and_can_be_cancelled_while_it_is_under_way():
    async with Cluster() as cluster:
        nodes = [await cluster.start(broker_id) for broker_id in (1, 2)]
        await nodes[0].topics.create("t", 4)
        topics = [node.topics.get("t") for node in nodes]
        number = cluster.owners("t").index(1)

        async def alter(brokers: Sequence[int] | None) -> HeadraceError | None:
            (error,) = await nodes[0].services.reassignments.alter(
                [Reassignment("t", number, brokers)]
            )
            return error

        def under_way(at: int = 0) -> list[Move]:
            return nodes[at].services.reassignments.under_way([topics[at]])

        assert isinstance(await alter(None), NoReassignment)
        for node in nodes:  # partitions do not move between live brokers for now
            node.config.rebalance_delay_ms = 60_000
        assert await alter([2]) is None
        assert under_way() == [Move("t", number, 1, 2)]
        await until(lambda: under_way(1) == under_way())  # known to all brokers
        assert await alter(None) is None
        assert under_way() == []
        assert isinstance(await alter(None), NoReassignment)
        assert await nodes[0].metadata.get(pin_key(topics[0].id, number)) is None
        for node in nodes:
            node.config.rebalance_delay_ms = 20
        assert await alter([2]) is None
        await until(lambda: cluster.owners("t")[number] == 2)
        assert under_way() == []
        for node in nodes:
            node.config.rebalance_delay_ms = 60_000
        for wanted in (1, 2, 1):  # what was under way is forgotten
            assert await alter([wanted]) is None
        assert under_way() == [Move("t", number, 2, 1)]
        assert await alter(None) is None  # the pin that held before holds again
        entry = await nodes[0].metadata.get(pin_key(topics[0].id, number))
        assert entry is not None
        assert PinFact.decode(entry.value).broker == 2
        assert cluster.owners("t")[number] == 2


async def test_a_reassignment_to_a_broker_that_gets_no_partitions_is_refused() -> None:
    async with Cluster() as cluster:
        nodes = [await cluster.start(broker_id) for broker_id in (1, 2)]
        await nodes[0].topics.create("t", 2)
        await nodes[0].metadata.put(draining_key(2), b"{}", ANY)
        await until(lambda: cluster.owners("t") == [1, 1])
        for brokers in ([2], [7], [1, 7]):
            (error,) = await nodes[0].services.reassignments.alter([Reassignment("t", 0, brokers)])
            assert isinstance(error, AssignmentInvalid)
        assert cluster.nodes[1].services.reassignments.under_way([nodes[0].topics.get("t")]) == []


async def test_workers_keep_their_partitions_and_say_so() -> None:
    async with Cluster() as cluster:
        nodes = [await cluster.start(broker_id, (1, 2)) for broker_id in (1, 2)]
        await nodes[0].topics.create("t", 2)
        await until(lambda: set(cluster.owners("t")) == {1, 2})
        number = cluster.owners("t").index(1)
        alter = nodes[0].services.reassignments.alter
        assert await alter([Reassignment("t", number, [1])]) == [None]
        (error,) = await alter([Reassignment("t", number, [2])])
        assert isinstance(error, AssignmentInvalid)
        assert "BookKeeper" in str(error)


async def test_a_second_broker_with_the_same_id_is_refused() -> None:
    async with Cluster() as cluster:
        await cluster.start(1)
        with pytest.raises(BrokerIdInUse):
            await cluster.start(1)


async def test_topics_made_changed_and_deleted_elsewhere_are_seen() -> None:
    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 1, configs={"retention.ms": "1000"})
        await until(lambda: "t" in two.topics.by_name)
        assert two.topics.get("t").fact.configs == {"retention.ms": "1000"}
        await two.topics.add_partitions(two.topics.get("t"), 3)
        await until(lambda: len(one.topics.get("t").partitions) == 3)
        await until(lambda: cluster.agree("t", {1, 2}))
        await one.topics.change_configs(one.topics.get("t"), lambda _: {"retention.ms": "2000"})
        await until(lambda: two.topics.get("t").fact.configs == {"retention.ms": "2000"})
        owner = two if cluster.owners("t")[0] == 2 else one
        log = owner.topics.get("t").require_log(0)
        await until(lambda: log.config.retention_ms == 2000)
        await two.services.topics.delete("t")
        await until(lambda: "t" not in one.topics.by_name)
        assert isinstance(log.failure, NotOwner)
        await one.topics.create("t", 1)
        await until(lambda: cluster.agree("t", {1, 2}))
        assert await cluster.append("t", 0, b"new") == 0


def deaf_to_topics(node: Node) -> None:
    """As if the news of topics that are changed from now on took very long to come."""
    node.topics.apply = lambda _key, _entry: None  # type: ignore[method-assign]


async def test_a_broker_that_has_not_seen_a_deletion_takes_no_record_once_it_is_answered(
    monkeypatch,
) -> None:
    """Clients that name topics (Produce before v13) may be led to it for the next topic's sake."""

    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 4)
        await until(lambda: cluster.agree("t", {1, 2}))
        topic = two.topics.get("t")
        served = [number for number in range(4) if two.ownership.is_mine(topic, number)]
        for number in served[:-1]:  # one stays without a ledger
            await append_at(two, topic, number, b"old")
        deaf_to_topics(two)
        monkeypatch.setattr(deletion, "HEARD_WAIT_S", 0.05)
        await one.services.topics.delete("t")
        await one.topics.create("t", 4)
        assert two.topics.get("t") is topic
        for number in served:
            for _ in range(3):  # whatever it does to get the partition back meanwhile
                with pytest.raises(HeadraceError):
                    await append_at(two, topic, number, b"late")


async def test_a_broker_that_has_not_seen_a_deletion_cannot_take_over_what_was_deleted(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        for broker_id in (1, 2, 3):
            await cluster.start(broker_id)
        one, two = cluster.nodes[1], cluster.nodes[2]
        await one.metadata.put(draining_key(1), b"{}", ANY)  # so that the other takes over all
        await one.topics.create("t", 6)
        await until(lambda: cluster.agree("t", {2, 3}))
        topic = two.topics.get("t")
        deaf_to_topics(two)
        monkeypatch.setattr(deletion, "HEARD_WAIT_S", 0.05)
        await one.services.topics.delete("t")
        await cluster.kill(3)
        await until(lambda: all(two.ownership.is_mine(topic, number) for number in range(6)))
        for number in range(6):
            with pytest.raises(HeadraceError):
                await append_at(two, topic, number, b"late")


async def test_a_deletion_is_answered_when_the_worker_that_serves_the_topic_has_seen_it() -> None:
    """No broker can take ledgers of its own from it."""

    async with Cluster() as cluster:
        one, two = await cluster.start(1, slots=(1, 2)), await cluster.start(2, slots=(1, 2))
        await one.topics.create("t", 4)
        await until(lambda: cluster.agree("t", {1, 2}))
        topic = two.topics.get("t")
        served = next(number for number in range(4) if two.ownership.is_mine(topic, number))
        await append_at(two, topic, served, b"old")
        missed: list[tuple[str, MetadataEntry | None]] = []
        hear, two.topics.apply = two.topics.apply, lambda *news: missed.append(news)  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(one.services.topics.delete("t"))
        await until(lambda: bool(missed))
        await append_at(two, topic, served, b"late, and gone with the rest")
        await asyncio.sleep(0.05)
        assert not deleting.done()
        two.topics.apply = hear  # type: ignore[method-assign]
        hear(*missed[0])
        two.ownership.topics_changed()
        await deleting
        with pytest.raises(HeadraceError):
            await append_at(two, topic, served, b"late")


@pytest.mark.parametrize("slots", [(), (1, 2)], ids=["shared ledgers", "workers"])
async def test_an_owner_that_does_not_know_a_topic_does_not_delay_its_deletion(
    slots, monkeypatch
) -> None:
    """Made and deleted before it looked: its owners are in the metadata, and it does not know."""

    async with Cluster() as cluster:
        monkeypatch.setattr(orphaned_ownerships, "WAIT_S", 0.05)
        one, two = await cluster.start(1, slots=slots), await cluster.start(2, slots=slots)
        await one.topics.create("kept", 4)
        await until(lambda: cluster.agree("kept", {1, 2}))
        hear, two.topics.apply = two.topics.apply, lambda *_news: None  # type: ignore[method-assign]
        await one.topics.create("t", 4)
        topic = one.topics.get("t")
        assert 2 in cluster.owners("t", one)
        two.topics.apply = hear  # type: ignore[method-assign]
        async with asyncio.timeout(deletion.HEARD_WAIT_S * 0.9):
            await one.topics.delete(topic, one.deleted_topics.forget)
        left = {one.topics.get("kept").id}

        def is_seen(node: Node) -> bool:
            return {key[0] for key in node.ownership.view.owners} == left  # type: ignore[attr-defined]

        for node in (one, two):  # it hears of the metadata a little later
            await until(lambda at=node: is_seen(at))  # type: ignore[misc]
        owners = await one.metadata.list(OWNERS)
        assert {partition_of_key(entry.key)[0] for entry in owners} == left
        assert cluster.agree("kept", {1, 2})


async def test_a_worker_that_starts_lets_go_of_what_was_deleted_in_its_former_life() -> None:
    async with Cluster() as cluster:
        one = await cluster.start(1, slots=(1, 2))
        await one.topics.create("t", 4)
        gone = SystemRandomness().uuid()
        for broker_id in (1, 2):
            fact = OwnerFact(broker_id, "a former life", 0)
            await one.metadata.put(owner_key(gone, broker_id), fact.encode(), ANY)
        await cluster.start(2, slots=(1, 2))
        left = {partition_of_key(entry.key) for entry in await one.metadata.list(OWNERS)}
        assert {key for key in left if key[0] == gone} == {(gone, 1)}, "the other's is the other's"
        await until(lambda: cluster.agree("t", {1, 2}))


async def test_an_owner_that_learns_late_of_a_topic_serves_it(monkeypatch) -> None:
    async with Cluster() as cluster:
        monkeypatch.setattr(orphaned_ownerships, "WAIT_S", 0.01)
        one, two = await cluster.start(1), await cluster.start(2)
        news: list[tuple[str, MetadataEntry | None]] = []
        hear, two.topics.apply = two.topics.apply, lambda *told: news.append(told)  # type: ignore[method-assign]
        await one.topics.create("t", 4)
        await asyncio.sleep(0.1)
        assert {owner.fact.leader_epoch for owner in two.ownership.view.owners.values()} == {0}  # type: ignore[attr-defined]
        assert 2 in cluster.owners("t", one)
        two.topics.apply = hear  # type: ignore[method-assign]
        for told in news:
            hear(*told)
        await until(lambda: cluster.agree("t", {1, 2}))


async def test_an_uncertain_deletion_is_reported_as_uncertain(monkeypatch) -> None:
    async with Cluster() as cluster:
        one, _two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 2)
        await until(lambda: cluster.agree("t", {1, 2}))
        for number in range(2):
            await cluster.append("t", number, b"old")

        tries = 0

        async def out_of_reach(ledger: LedgerId) -> LedgerInfo:
            nonlocal tries
            tries += 1
            raise StorageUnavailable(f"no bookie answers for ledger {ledger}")

        one.store.recover = out_of_reach  # type: ignore[method-assign]
        monkeypatch.setattr(deletion, "RETRY_S", 0.01)
        monkeypatch.setattr(deletion, "TRIES_MAX", 1_000_000)
        monkeypatch.setattr(deletion, "END_WAIT_S", 0.2)
        with pytest.raises(StorageUnavailable, match=r"'t' is deleted, but "):
            await one.services.topics.delete("t")
        assert "t" not in one.topics.by_name
        await until(lambda: tries > 2)
        with pytest.raises(StorageUnavailable, match=r"'t' is deleted, but .*no bookie"):
            await one.topics.create("t", 1)
        one.store.recover = type(one.store).recover.__get__(one.store)  # type: ignore[method-assign]
        monkeypatch.setattr(deletion, "END_WAIT_S", 60)
        await one.topics.create("t", 1)
        await until(lambda: cluster.agree("t", {1, 2}))


async def test_recreating_a_topic_finishes_its_deletion_begun_by_a_dead_broker(
    monkeypatch,
) -> None:
    """And until then a broker that does not know it may accept records of a topic that cannot be
    created again."""

    async with Cluster() as cluster:
        for broker_id in (1, 2, 3):
            await cluster.start(broker_id)
        one, two, three = (cluster.nodes[broker_id] for broker_id in (1, 2, 3))
        await one.topics.create("t", 6)
        await until(lambda: cluster.agree("t", {1, 2, 3}))
        topic = two.topics.get("t")
        served = [number for number in range(6) if two.ownership.is_mine(topic, number)]
        for number in served:
            await append_at(two, topic, number, b"old")
        deaf_to_topics(two)
        monkeypatch.setattr(deletion, "HEARD_WAIT_S", 0.05)
        one.topics.deletions.finish = stuck  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(one.services.topics.delete("t"))
        await until(lambda: "t" in three.topics.deletions)
        await cluster.kill(1)
        deleting.cancel()
        assert "t" not in three.topics.by_name
        await append_at(two, topic, served[0], b"in time")
        await three.topics.create("t", 6)
        for number in served:
            with pytest.raises(HeadraceError):
                await append_at(two, topic, number, b"late")


async def stuck(*_: object) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("slots", [(), (1, 2)])
async def test_a_deletion_that_was_cut_short_is_finished_by_the_next_start(slots) -> None:
    async with Cluster() as cluster:
        one = await cluster.start(1, slots=slots)
        await one.topics.create("t", 2)
        one.topics.deletions.finish = stuck  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(one.services.topics.delete("t"))
        await until(lambda: "t" not in one.topics.by_name)
        await cluster.kill(1)
        deleting.cancel()
        two = await cluster.start(2, slots=slots)
        assert "t" not in two.topics.by_name
        await until(lambda: "t" not in two.topics.deletions)
        entry = await two.metadata.get(topic_key("t"))
        assert entry is not None
        assert TopicFact.decode(entry.value).is_ended


async def test_news_from_before_a_deletion_do_not_bring_the_topic_back() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.create("t", 1)
        before = await node.metadata.get(topic_key("t"))
        node.topics.deletions.finish = stuck  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(node.services.topics.delete("t"))
        await until(lambda: "t" in node.topics.deletions)
        node.topics.apply(topic_key("t"), before)
        assert "t" not in node.topics.by_name
        deleting.cancel()


async def test_a_topic_that_was_made_again_before_anybody_looked_has_no_old_progress() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.create("t", 1)
        forgotten: list[tuple[str, UUID]] = []
        old = node.topics.get("t").id

        async def forget(name: str, topic_id: UUID) -> None:
            forgotten.append((name, topic_id))

        node.groups.topic_deleted = forget  # type: ignore[method-assign]
        metadata = MemoryMetadataStore(cluster.metadata)
        fact = replace(node.topics.get("t").fact, id=SystemRandomness().uuid())
        await metadata.delete(topic_key("t"), ANY)
        await metadata.put(topic_key("t"), fact.encode(), ANY)  # in the same turn of the loop
        await until(lambda: node.topics.get("t").id == fact.id)
        await until(lambda: forgotten == [("t", old)])


async def test_a_coordinator_that_was_away_at_the_deletion_shows_no_old_progress() -> None:
    """What a group did in a topic is known by the topic's id, at any broker and any time."""

    async def committed(node: Node) -> int:
        command = FetchOffsetsCommand("g", [("t", 0)])
        reply = await node.groups.submit(command)
        assert reply.error is None
        return reply.offsets[0].offset

    async def commit(node: Node, offset: int) -> HeadraceError | None:
        command = CommitCommand("g", -1, "", None, [OffsetToCommit("t", 0, offset)])
        return (await node.groups.submit(command)).results[0].error

    async with Cluster() as cluster:
        one = await cluster.start(1)
        await one.topics.ensure_internal(OFFSETS_TOPIC)
        await one.topics.create("t", 1)
        assert await commit(one, 7) is None
        assert await committed(one) == 7
        fact = one.topics.get("t").fact
        await cluster.kill(1)
        # Nobody lives while the topic goes and another comes, as when its coordinator is away.
        metadata = MemoryMetadataStore(cluster.metadata)
        await metadata.delete(topic_key("t"), ANY)
        await metadata.put(
            topic_key("t"), replace(fact, id=SystemRandomness().uuid()).encode(), ANY
        )
        two = await cluster.start(2)
        await until(lambda: two.ownership.is_mine(two.topics.get(OFFSETS_TOPIC), 0))
        await until(lambda: two.ownership.is_mine(two.topics.get("t"), 0))
        assert await committed(two) == -1
        shard = two.groups.shards.shard(two.groups.partition_for("g"))
        assert "g" not in shard.machine.groups, "what is stale is dropped, too"
        assert await commit(two, 3) is None
        assert await committed(two) == 3


async def test_a_new_owner_of_groups_progress_reads_it_before_a_client_asks() -> None:
    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.ensure_internal(OFFSETS_TOPIC)
        await one.topics.create("t", 1)
        number = one.groups.partition_for("g")
        internal = one.topics.get(OFFSETS_TOPIC)
        await until(lambda: one.ownership.leader(internal, number).broker in {1, 2})
        owner = one if one.ownership.leader(internal, number).broker == 1 else two
        other = two if owner is one else one
        await until(lambda: owner.ownership.is_mine(owner.topics.get(OFFSETS_TOPIC), number))
        await until(lambda: "t" in owner.topics.by_name)
        command = CommitCommand("g", -1, "", None, [OffsetToCommit("t", 0, 7)])
        assert (await owner.groups.submit(command)).results[0].error is None
        await cluster.kill(owner.config.broker_id)
        await until(lambda: any("g" in m.groups for m in other.groups.shards.machines()))


async def group_owners(cluster: Cluster) -> tuple[Node, Node]:
    """Two new brokers with a topic `t`: the coordinator of the group `g`, and the other one."""
    one, two = await cluster.start(1), await cluster.start(2)
    await one.topics.ensure_internal(OFFSETS_TOPIC)
    await one.topics.create("t", 1)
    number, topic = one.groups.partition_for("g"), one.topics.get(OFFSETS_TOPIC)
    await until(lambda: cluster.agree(OFFSETS_TOPIC, {1, 2}))
    owner, other = (one, two) if one.ownership.is_mine(topic, number) else (two, one)
    await until(lambda: "t" in owner.topics.by_name)
    return owner, other


async def test_a_coordinators_log_that_is_handed_over_is_no_longer_than_its_state(
    monkeypatch,
) -> None:
    monkeypatch.setattr(shard_snapshot, "SHRINK_BYTES_MIN", 2_000)

    async with Cluster() as cluster:
        owner, other = await group_owners(cluster)
        number = owner.groups.partition_for("g")
        topic = owner.topics.get(OFFSETS_TOPIC)
        for offset in range(100):
            command = CommitCommand("g", -1, "", None, [OffsetToCommit("t", 0, offset)])
            assert (await owner.groups.submit(command)).results[0].error is None
        to = other.config.broker_id
        await owner.metadata.put(pin_key(topic.id, number), PinFact(to).encode(), ANY)
        await until(lambda: any("g" in m.groups for m in other.groups.shards.machines()))
        log = other.topics.get(OFFSETS_TOPIC).partitions[number]
        assert log.log_start_offset == 100, "what lies before the snapshot is not read"
        assert log.high_watermark - log.log_start_offset < 5
        fetch = FetchOffsetsCommand("g", [("t", 0)])
        assert [row.offset for row in (await other.groups.submit(fetch)).offsets] == [99]


async def test_a_groups_clients_wait_until_its_next_coordinator_is_named(monkeypatch) -> None:
    """One that is redirected before looks for the coordinator in vain, and backs off."""

    async with Cluster() as cluster:
        owner, other = await group_owners(cluster)
        number = owner.groups.partition_for("g")
        topic = owner.topics.get(OFFSETS_TOPIC)
        command = CommitCommand("g", -1, "", None, [OffsetToCommit("t", 0, 1)])
        assert (await owner.groups.submit(command)).results[0].error is None
        may_name, is_naming, name = asyncio.Event(), asyncio.Event(), HandOvers._name

        async def late(hand_overs: HandOvers, key: PartitionKey, *arguments: Any) -> None:
            if key == (topic.id, number):  # others may still move because brokers joined
                is_naming.set()
                await may_name.wait()
            await name(hand_overs, key, *arguments)

        monkeypatch.setattr(HandOvers, "_name", late)
        monkeypatch.setattr(coordinator_shards, "HAND_OVER_WAIT_S", 60)
        to = other.config.broker_id
        await owner.metadata.put(pin_key(topic.id, number), PinFact(to).encode(), ANY)
        await is_naming.wait()
        commit = asyncio.create_task(owner.groups.submit(command))
        found = asyncio.create_task(owner.groups.shards.wait_handed_over("g"))
        await asyncio.sleep(0.05)
        assert not commit.done()
        assert not found.done()
        may_name.set()
        await found
        assert owner.cluster.coordinator_of(owner.groups.shards, "g").id == to
        assert isinstance((await commit).results[0].error, NotCoordinator)
        await until(lambda: any("g" in m.groups for m in other.groups.shards.machines()))


async def test_progress_that_is_newer_than_a_coordinators_picture_is_shown() -> None:
    """What a new owner knows of topics may be older than a commit that the former owner
    accepted."""

    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.ensure_internal(OFFSETS_TOPIC)
        await node.topics.create("t", 1)
        offset = OffsetToCommit("t", 0, 7)
        await node.groups.submit(CommitCommand("g", -1, "", None, [offset]))
        node.topics.ids["t"] = UUID(int=5)

        async def look(name: str) -> None:
            node.topics.ids[name] = node.topics.get(name).id

        node.topics.refresh = look  # type: ignore[method-assign]
        reply = await node.groups.submit(FetchOffsetsCommand("g"))
        assert [found.offset for found in reply.offsets] == [7]


async def test_a_commit_for_a_topic_that_went_on_the_way_is_refused() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.ensure_internal(OFFSETS_TOPIC)
        await node.topics.create("t", 1)
        gone = UUID(int=5)
        offsets = [OffsetToCommit("t", 0, 7, -1, "", gone), OffsetToCommit("u", 0, 7)]
        reply = await node.groups.submit(CommitCommand("g", -1, "", None, offsets))
        assert [type(r.error) for r in reply.results] == [TopicUnknown, TopicUnknown]


async def test_a_partition_of_a_dead_broker_has_no_leader_until_another_takes_over() -> None:
    async with Cluster() as cluster:
        await cluster.start(1)
        await cluster.nodes[1].topics.create("t", 1)
        await cluster.kill(1)
        node = await cluster.start(2)
        topic = node.topics.get("t")
        await until(lambda: node.ownership.leader(topic, 0).broker != NO_LEADER)
        assert node.ownership.leader(topic, 0) == (2, 1)


async def test_orphaned_ledgers_and_metadata_are_deleted_after_the_grace_period() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.create("kept", 1)
        await node.topics.create("gone", 1)
        for name in ("kept", "gone"):
            await cluster.append(name, 0, b"a")
        orphan = await node.store.create()
        gone = node.topics.get("gone")
        dead = gone.partitions[0].segments[0].ledger
        await node.topics.delete(gone, node.deleted_topics.forget)
        assert await node.ledger_garbage.collect() == 0, "it was only just seen"
        node.config.sweep_grace_ms = 0
        assert await node.ledger_garbage.collect() >= 3, "two ledgers, the chain, the owner"
        assert await node.ledger_garbage.collect() == 0
        left = await node.store.all_ledgers()
        assert orphan not in left
        assert dead not in left
        assert await cluster.values("kept", 0) == [b"a"]


async def test_a_broker_whose_registration_was_removed_serves_nothing_until_it_has_claimed_again():
    """An operator can do that, or a broker of an earlier version; others may claim at once."""

    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 4)
        await until(lambda: cluster.agree("t", {1, 2}))
        topic = one.topics.get("t")
        served = [log for number, log in topic.logs if one.ownership.is_mine(topic, number)]
        term = one.ownership.guard.term
        await two.metadata.delete(broker_key(1), ANY)
        await until(lambda: one.ownership.guard.term > term)
        assert not any(one.ownership.is_mine(topic, number) for number in range(4))
        await until(lambda: len(two.ownership.brokers()) == 2)
        await until(lambda: cluster.agree("t", {1, 2}))
        assert not set(served) & {log for _number, log in topic.logs}
        for number in range(4):
            assert await cluster.append("t", number, b"a") == 0


async def test_a_partition_is_not_claimed_because_the_view_of_the_brokers_is_stale() -> None:
    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 4)
        await until(lambda: cluster.agree("t", {1, 2}))
        before = [one.ownership.leader(one.topics.get("t"), number) for number in range(4)]
        view = two.ownership.view
        one_fact = view.brokers.pop(1)  # as if its registration had not been read yet
        view.members_version += 1
        two.ownership._mark_all()
        await asyncio.sleep(0.1)
        assert [one.ownership.leader(one.topics.get("t"), n) for n in range(4)] == before
        view.brokers[1] = one_fact
        view.members_version += 1
        two.ownership._mark_all()
        await cluster.kill(1)
        await until(lambda: cluster.owners("t") == [2] * 4)


async def test_the_death_of_a_process_is_suspected_before_its_session_ends_and_changes_no_owner():
    async with Cluster() as cluster:
        cluster.has_ports = True
        for broker_id in (1, 2):
            await cluster.start(broker_id)
        await cluster.nodes[1].topics.create("t", 4)
        face = cluster.rigs[1].face
        await until(lambda: cluster.agree("t", {1, 2}) and len(face.connections) == 1)
        await asyncio.sleep(0.05)  # the line is open when its first response has arrived
        # What the kernel does for a process that is killed, and a firewall to one that lives.
        dead = await cluster.kill(1, is_session_over=False)
        survivor = cluster.nodes[2].ownership
        topic = cluster.nodes[2].topics.get("t")
        (part,) = [n for n in range(4) if survivor.view.owners[topic.id, n].fact.broker == 1][:1]
        await until(lambda: survivor.leader(topic, part).broker == NO_LEADER)
        await asyncio.sleep(0.3)
        assert survivor.view.owners[topic.id, part].fact.broker == 1
        assert [fact.id for fact in survivor.brokers()] == [1, 2]
        await dead.metadata.close()
        await until(lambda: survivor.leader(topic, part).broker == 2)
        await survivor.wait_settled()
        assert cluster.owners("t") == [2] * 4, "clients are told the new leaders at once"
        assert [fact.id for fact in survivor.listed_brokers()] == [1, 2]


async def test_an_overtaken_hand_over_names_no_broker(monkeypatch) -> None:
    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 1)
        await until(lambda: cluster.agree("t", {1, 2}))
        holder = one if cluster.owners("t")[0] == 1 else two
        topic = holder.topics.get("t")
        await append_at(holder, topic, 0, b"a")
        served = topic.partitions[0]
        honest = LogTenure.settle_and_seal

        async def overtaken(host: LogTenure, *moved: NotOwner | None) -> None:
            await honest(host, *moved)
            rival = OwnerFact(7, "another", served.leader_epoch + 1)
            await holder.metadata.put(owner_key(topic.id, 0), rival.encode(), ANY)
            await until(lambda: holder.ownership.leader(topic, 0).leader_epoch >= 1)

        monkeypatch.setattr(LogTenure, "settle_and_seal", overtaken)
        other = 3 - holder.config.broker_id
        await holder.ownership._hand_over(topic, 0, other)
        entry = await holder.metadata.get(owner_key(topic.id, 0))
        fact = OwnerFact.decode(entry.value)
        assert (fact.broker, fact.leader_epoch) != (other, 1), "two owners of one epoch"


def hold_the_answer_that_names(former: Node, topic: Topic, next_owner: int) -> asyncio.Event:
    """The write that hands partition 0 over is done; its author gets no answer until the event."""
    multi, is_told = former.metadata.multi, asyncio.Event()

    async def late(operations: Sequence[MultiOperation]) -> Sequence[int]:
        versions = await multi(operations)
        named = [
            OwnerFact.decode(value).broker
            for key, value, _ in operations
            if key == owner_key(topic.id, 0) and value is not None
        ]
        if next_owner in named:
            await is_told.wait()
        return versions

    former.metadata.multi = late  # type: ignore[method-assign, assignment]
    return is_told


async def test_a_former_owner_that_does_not_know_that_its_hand_over_is_done_shows_no_old_end():
    """The answer of the metadata may come late, or never: the next owner goes ahead without it."""

    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 1)
        await until(lambda: cluster.agree("t", {1, 2}))
        former, owner = (one, two) if cluster.owners("t")[0] == 1 else (two, one)
        topic = former.topics.get("t")
        await append_at(former, topic, 0, b"a")
        log = topic.partitions[0]
        is_told = hold_the_answer_that_names(former, topic, owner.config.broker_id)
        pin = PinFact(owner.config.broker_id)
        await owner.metadata.put(pin_key(topic.id, 0), pin.encode(), ANY)
        seen = owner.topics.get("t")
        await until(lambda: owner.ownership.is_mine(seen, 0))
        assert await append_at(owner, seen, 0, b"b") == 1
        assert former.ownership.is_mine(topic, 0)
        with pytest.raises((NotOwner, TimeoutError)):
            await asyncio.wait_for(log.wait_loaded(), 0.05)
        with pytest.raises(NotOwner):  # nor does it keep whoever asks for long
            await log.wait_loaded()
        is_told.set()
        await until(lambda: not former.ownership.is_mine(topic, 0))


# --- warm hand-overs -------------------------------------------------------------------------


async def two_brokers(cluster: Cluster) -> tuple[Node, Node, Topic]:
    """The owner of a partition that is in use, the other broker, and the owner's topic."""
    one, two = await cluster.start(1), await cluster.start(2)
    await one.topics.create("t", 1)
    await until(lambda: cluster.agree("t", {1, 2}))
    owner, other = (one, two) if cluster.owners("t")[0] == 1 else (two, one)
    topic = owner.topics.get("t")
    await append_at(owner, topic, 0, b"a")
    return owner, other, topic


async def pin(owner: Node, topic: Topic, broker_id: int) -> None:
    await owner.metadata.put(pin_key(topic.id, 0), PinFact(broker_id).encode(), ANY)


async def test_the_next_owner_is_ready_before_the_former_one_takes_no_more_records(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        settle, seen = LogTenure.settle_and_seal, []

        async def noted(host: LogTenure, *moved: NotOwner | None) -> None:
            fact = owner.ownership.view.owners[topic.id, 0].fact
            waiting = other.topics.get("t").partitions[0]
            seen.append((fact.successor, fact.is_ready, waiting.failure, waiting.is_loaded))
            assert await append_at(owner, topic, 0, b"b") == 1
            await settle(host, *moved)

        monkeypatch.setattr(LogTenure, "settle_and_seal", noted)
        await pin(owner, topic, other.config.broker_id)
        await until(lambda: cluster.agree("t", {other.config.broker_id}))
        assert seen == [(other.config.broker_id, 1, None, False)]
        await cluster.append("t", 0, b"c")
        assert await cluster.values("t", 0) == [b"a", b"b", b"c"]


async def test_a_client_that_comes_to_the_next_owner_too_early_waits_there(monkeypatch) -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        settle, may_go = LogTenure.settle_and_seal, asyncio.Event()

        async def late(host: LogTenure, *moved: NotOwner | None) -> None:
            await may_go.wait()
            await settle(host, *moved)

        monkeypatch.setattr(LogTenure, "settle_and_seal", late)
        await pin(owner, topic, other.config.broker_id)
        seen = other.topics.get("t")
        await until(lambda: seen.partitions[0].failure is None)
        early = asyncio.create_task(append_at(other, seen, 0, b"b"))
        await asyncio.sleep(0.02)
        assert not early.done()
        may_go.set()
        assert await early == 1
        assert await cluster.values("t", 0) == [b"a", b"b"]


async def test_a_silent_next_owner_is_waited_for_within_reason(monkeypatch) -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        monkeypatch.setattr(hand_over, "READY_WAIT_S", 0.05)
        monkeypatch.setattr(other.ownership._next, "owner_changed", lambda *_: None)
        await pin(owner, topic, other.config.broker_id)
        await until(lambda: cluster.agree("t", {other.config.broker_id}))
        assert await cluster.append("t", 0, b"b") == 1


async def test_a_broker_that_stops_does_not_wait_longer_than_until_the_next_owner_is_ready(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        monkeypatch.setattr(hand_over, "READY_WAIT_S", 60)
        owner, other, _topic = await two_brokers(cluster)
        await asyncio.wait_for(cluster.stop(owner.config.broker_id), 5)
        await until(lambda: cluster.agree("t", {other.config.broker_id}))
        assert await cluster.append("t", 0, b"b") == 1


async def test_brokers_that_stop_at_once_hand_over_to_those_that_stay(monkeypatch) -> None:
    async with Cluster() as cluster:
        for broker_id in (1, 2, 3):
            await cluster.start(broker_id)
        monkeypatch.setattr(hand_over, "READY_WAIT_S", 60)
        stays = cluster.nodes[3]
        await stays.topics.create("t", 12)
        await until(lambda: cluster.agree("t", {1, 2, 3}))
        for number in range(12):
            await cluster.append("t", number, b"a")
        leave, owned = Membership.leave, []

        async def noted(membership: Membership) -> None:
            for entry in await stays.metadata.list(OWNERS):
                owned.append(OwnerFact.decode(entry.value).broker == membership._fact.id)
            await leave(membership)

        monkeypatch.setattr(Membership, "leave", noted)
        await asyncio.wait_for(asyncio.gather(cluster.stop(1), cluster.stop(2)), 5)
        assert not any(owned)
        await until(lambda: cluster.agree("t", {3}))
        for number in range(12):
            assert await cluster.append("t", number, b"b") == 1


async def test_a_ledger_that_a_former_life_of_the_next_owner_made_is_not_entered(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        other_id, key = other.config.broker_id, (topic.id, 0)
        is_dead = asyncio.Event()

        async def too_late(*_: object) -> bool:
            await is_dead.wait()
            return False

        with monkeypatch.context() as patch:
            patch.setattr(HandOvers, "_move", too_late)
            await pin(owner, topic, other_id)
            await until(lambda: owner.ownership.view.owners[key].fact.is_ready == 1)
            ahead = owner.ownership.view.owners[key].fact.ledger_ahead
            await cluster.kill(other_id)
            await until(lambda: len(owner.ownership.brokers()) == 1)
        is_dead.set()
        await cluster.ledgers.delete(ahead)  # the sweep: no chain names it
        monkeypatch.setattr(shared_ownership, "WARM_VERSION", None)
        await cluster.start(other_id)
        await until(lambda: cluster.agree("t", {other_id}))
        chain = await owner.metadata.get(partition_key(*key))
        assert ahead not in [link.ledger for link in PartitionFact.decode(chain.value).ledgers]
        assert await cluster.append("t", 0, b"b") == 1


async def test_a_broker_of_a_version_that_does_not_get_ready_is_not_asked_to(monkeypatch) -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        owner.ownership.view.brokers[other.config.broker_id].warm_version = None
        asked = []
        monkeypatch.setattr(other.ownership._next, "_prepare", lambda *_: asked.append(1))
        await pin(owner, topic, other.config.broker_id)
        await until(lambda: cluster.agree("t", {other.config.broker_id}))
        assert not asked
        assert await cluster.append("t", 0, b"b") == 1


async def test_a_next_owner_takes_over_from_an_owner_that_died_after_announcing_it(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)

        async def never(*_: object) -> None:
            await asyncio.Event().wait()

        with monkeypatch.context() as patch:
            patch.setattr(LogTenure, "settle_and_seal", never)
            await pin(owner, topic, other.config.broker_id)
            seen = other.topics.get("t")
            await until(lambda: seen.partitions[0].failure is None)
            await cluster.kill(owner.config.broker_id)
        await until(lambda: cluster.agree("t", {other.config.broker_id}))
        assert await cluster.append("t", 0, b"b") == 1


async def test_an_announced_hand_over_that_stalls_sends_clients_back(monkeypatch) -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        may_go = asyncio.Event()

        async def late(*_: object) -> None:
            await may_go.wait()

        monkeypatch.setattr(LogTenure, "settle_and_seal", late)
        monkeypatch.setattr(next_owner, "HELD_MS", 50)
        await pin(owner, topic, other.config.broker_id)
        seen = other.topics.get("t")
        await until(lambda: seen.partitions[0].failure is None)
        with pytest.raises(NotOwner):
            await append_at(other, seen, 0, b"b")
        key = (topic.id, 0)

        def is_withdrawn() -> bool:
            fact = owner.ownership.view.owners[key].fact
            return fact.is_ready is None and fact.ledger_ahead is None

        await until(is_withdrawn)
        may_go.set()
        await until(lambda: other.ownership.is_mine(seen, 0))


async def test_while_it_is_handed_over_clients_are_sent_to_the_next_owner_at_once(
    monkeypatch,
) -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        log, may_go, is_shut = topic.partitions[0], asyncio.Event(), asyncio.Event()
        settled = log.settled

        async def late() -> None:
            await settled()
            is_shut.set()
            await may_go.wait()

        monkeypatch.setattr(type(log), "settled", lambda _log: late())
        await pin(owner, topic, other.config.broker_id)
        await is_shut.wait()
        with pytest.raises(NotOwner):
            await append_at(owner, topic, 0, b"b")
        with pytest.raises(NotOwner):
            await log.wait_loaded()
        assert owner.ownership.leader(topic, 0) == (other.config.broker_id, 1)
        may_go.set()
        await until(lambda: cluster.agree("t", {other.config.broker_id}))
        assert await cluster.append("t", 0, b"b") == 1


def named_with(owner: Node, topic: Topic, seen: list[set[str]]) -> None:
    """Note the keys that are written together with the next owner of partition 0."""
    multi = owner.metadata.multi

    async def noted(operations: Sequence[MultiOperation]) -> Sequence[int]:
        for key, value, _ in operations:
            is_owner = key == owner_key(topic.id, 0) and value is not None
            if is_owner and OwnerFact.decode(value).broker != owner.config.broker_id:
                seen.append({operation.key for operation in operations})
        return await multi(operations)

    owner.metadata.multi = noted  # type: ignore[method-assign, assignment]


async def test_the_next_owner_is_named_together_with_the_chain_of_its_epoch() -> None:
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        seen: list[set[str]] = []
        named_with(owner, topic, seen)
        await pin(owner, topic, other.config.broker_id)
        await until(lambda: cluster.agree("t", {other.config.broker_id}))
        assert seen == [{owner_key(topic.id, 0), partition_key(topic.id, 0)}]
        assert await cluster.append("t", 0, b"b") == 1
        assert await cluster.values("t", 0) == [b"a", b"b"]


async def test_a_seal_that_waits_for_its_bookies_holds_up_no_other_move(monkeypatch) -> None:
    async with Cluster() as cluster:
        monkeypatch.setattr(hand_over, "IN_MOTION_MAX_S", 0.1)
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 8)
        await until(lambda: cluster.agree("t", {1, 2}))
        holder = one if cluster.owners("t").count(1) >= 4 else two
        me, other = holder.config.broker_id, 3 - holder.config.broker_id
        topic = holder.topics.get("t")
        mine = [number for number, owner in enumerate(cluster.owners("t")) if owner == me]
        for number in mine:
            await append_at(holder, topic, number, b"a")
        stuck_logs = {topic.partitions[number] for number in mine[:3]}
        honest = LogTenure.settle_and_seal

        async def slow(host: LogTenure, *moved: NotOwner | None) -> None:
            if host._log in stuck_logs:
                await asyncio.Event().wait()
            await honest(host, *moved)

        monkeypatch.setattr(LogTenure, "settle_and_seal", slow)
        for number in mine:
            await holder.metadata.put(pin_key(topic.id, number), PinFact(other).encode(), ANY)
        await until(lambda: all(cluster.owners("t")[number] == other for number in mine[3:]))


async def test_where_the_chain_has_changed_the_next_owner_is_named_and_enters_its_epoch_itself():
    async with Cluster() as cluster:
        owner, other, topic = await two_brokers(cluster)
        seen: list[set[str]] = []
        named_with(owner, topic, seen)
        key = partition_key(topic.id, 0)
        entry = await owner.metadata.get(key)
        assert entry is not None
        await owner.metadata.put(key, entry.value, ANY)  # as a change of its own in doubt would
        await pin(owner, topic, other.config.broker_id)
        await until(lambda: cluster.agree("t", {other.config.broker_id}))
        assert [len(keys) for keys in seen] == [2, 2, 1], "both, the owner's own bundle, alone"
        assert await cluster.append("t", 0, b"b") == 1
        assert await cluster.values("t", 0) == [b"a", b"b"]


async def test_a_fact_that_cannot_be_read_does_not_make_its_ledgers_orphans() -> None:
    async with Cluster() as cluster:
        node = await cluster.start(1)
        await node.topics.create("t", 1)
        await cluster.append("t", 0, b"a")
        ledger = node.topics.get("t").partitions[0].segments[0].ledger
        await node.metadata.put(topic_key("t"), b'{"v":99}', ANY)
        node.config.sweep_grace_ms = 0
        for _ in range(2):
            assert await node.ledger_garbage.collect() == 0
        assert ledger in await node.store.all_ledgers()


async def test_a_broker_that_has_not_seen_a_deletion_cannot_change_the_next_topic_of_that_name(
    monkeypatch,
) -> None:
    """Over its key alone: both facts had the same versions if the key were deleted between them."""

    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        await one.topics.create("t", 1)
        await until(lambda: cluster.agree("t", {1, 2}))
        old = two.topics.get("t")
        deaf_to_topics(two)
        monkeypatch.setattr(deletion, "HEARD_WAIT_S", 0.05)
        await one.services.topics.delete("t")
        made = await one.topics.create("t", 1)
        for change in (
            lambda: two.topics.change_configs(old, lambda _: {"retention.ms": "1"}),
            lambda: two.topics.add_partitions(old, 2),
            lambda: two.topics.delete(old, two.deleted_topics.forget),
        ):
            with pytest.raises(HeadraceError):
                await change()
        await one.topics.change_configs(one.topics.get("t"), lambda _: {"retention.ms": "5000"})
        # As a broker that has begun to finish the first deletion, and was held up.
        marked = Topic(replace(old.fact, deleted_ms=1), 1, [])
        two.topics.deletions.marked(marked)
        await two.topics.deletions.finish("t", two.ownership)
        entry = await one.metadata.get(topic_key("t"))
        assert entry is not None
        fact = TopicFact.decode(entry.value)
        assert (fact.id, fact.partition_count, fact.is_deleted) == (made.id, 1, False)
        assert fact.configs == {"retention.ms": "5000"}


async def test_the_fact_of_a_topic_that_ended_is_forgotten_after_a_time(monkeypatch) -> None:
    async with Cluster() as cluster:
        one, two = await cluster.start(1), await cluster.start(2)
        for _ in range(3):  # by either broker, which knows of the other's deletion or not
            await one.topics.create("t", 1)
            await until(lambda: "t" in two.topics.by_name)
            await two.services.topics.delete("t")
        assert await one.metadata.get(topic_key("t")) is not None
        await one.topics.deletions.finish_all(one.topics.ownership)
        assert await one.metadata.get(topic_key("t")) is not None
        monkeypatch.setattr(deletion, "FREE_KEPT_MS", -1)
        await until(lambda: "t" not in one.topics.by_name)
        await one.topics.deletions.finish_all(one.topics.ownership)
        assert await one.metadata.get(topic_key("t")) is None
        await two.topics.create("t", 1)
        await until(lambda: cluster.agree("t", {1, 2}))


async def test_the_next_coordinator_ends_a_dead_producers_transaction_though_its_first_read_fails(
    monkeypatch,
) -> None:
    """No client asks for the coordinator: the broker that takes over its log reads it, and tries
    again until that succeeds."""
    genuine, failed = MemoryLedgerStore.recover, set()

    async def recover(store: MemoryLedgerStore, ledger: LedgerId) -> LedgerInfo:
        if ledger not in failed:
            failed.add(ledger)
            raise StorageUnavailable("the storage does not answer yet")
        return await genuine(store, ledger)

    async with Cluster() as cluster:
        one = await cluster.start(1)
        await one.topics.create("t", 1)
        await one.topics.ensure_internal(TRANSACTIONS_TOPIC)
        await until(lambda: cluster.agree(TRANSACTIONS_TOPIC, {1}))
        reply = await one.transactions.submit(InitProducerIdCommand("id", 1_000))
        assert reply.error is None
        producer = reply.producer_id, reply.producer_epoch
        asked = AddPartitionsCommand("id", *producer, frozenset({("t", 0)}))
        assert (await one.transactions.submit(asked)).error is None
        names = dict(zip(("producer_id", "producer_epoch"), producer, strict=True))
        data = encode_batch(
            [Record(0, 1, None, b"v", [])], base_sequence=0, is_transactional=True, **names
        )
        await append(one.topics.get("t").require_log(0), data)
        two = await cluster.start(2)
        monkeypatch.setattr(MemoryLedgerStore, "recover", recover)
        await cluster.kill(1)
        await until(lambda: cluster.agree("t", {2}))
        taken = two.topics.get("t").require_log(0)
        await until(lambda: taken.is_loaded and taken.visibility.last_stable_offset == 2)
        assert failed
