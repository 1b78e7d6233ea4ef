"""Limits of tenants: what they have, and byte rates that all brokers share."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.broker import BrokerHarness, broker
from tests.kit.records import batch
from tests.unit.http.test_queues_of_brokers import with_brokers
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.housekeeping import tenant_storage
from headrace.broker.security.connection_limits import ConnectionLimits
from headrace.broker.security.listener import TenantPlace
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.tenants import Tenants
from headrace.broker.services.access_control import access_of
from headrace.broker.services.configurations import SET, ConfigChange
from headrace.broker.services.tenant_rates import TenantRates
from headrace.broker.services.topic_service import NewTopic
from headrace.broker.topics import topic_writes
from headrace.coordination.groups.commands import CommitCommand, OffsetToCommit
from headrace.coordination.quotas.entities import CONSUMER, PRODUCER
from headrace.coordination.quotas.tenant_limits import check_limits, share_of
from headrace.errors import (
    DataCorrupt,
    HeadraceError,
    MetadataUnavailable,
    PolicyViolation,
    RequestInvalid,
    TopicExists,
    TopicNameInvalid,
)
from headrace.log.lifecycle_host import LifecycleHost
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.tenant_facts import TENANT_TOPICS, tenant_topics_key
from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from headrace.metadata.store import MetadataStore, MultiOperation

CONFIG = {"authorizer": "acl", "super_users": "User:root", "offsets_partition_count": 1}
RATE = 1_000_000


def session(name: str = "alice") -> ClientSession:
    return ClientSession("PLAINTEXT", "127.0.0.1", Principal(name))


async def test_a_tenant_has_no_more_topics_and_partitions_than_its_limits():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        tenants, topics = rig.node.access.tenants, rig.node.services.topics
        await tenants.create("acme", ["User:alice"])
        await tenants.change("acme", limits={"topics": 2, "partitions": 4})
        await topics.create(NewTopic("«acme»a", 2, -1, {}))
        for new in (NewTopic("«acme»b", 3, -1, {}), NewTopic("«acme»b", 3, -1, {})):
            with pytest.raises(PolicyViolation, match="5 partitions, and may have 4"):
                await topics.create(new)
        await topics.create(NewTopic("«acme»b", 1, -1, {}), is_dry_run=True)
        await topics.create(NewTopic("«acme»b", 1, -1, {}))
        with pytest.raises(PolicyViolation, match="3 topics, and may have 2"):
            await topics.create(NewTopic("«acme»c", 1, -1, {}))
        with pytest.raises(PolicyViolation, match="5 partitions"):
            await topics.add_partitions("«acme»b", 3)
        await topics.add_partitions("«acme»b", 2)
        await tenants.create("beta", [])
        for name in ("c", "«beta»c"):
            await topics.create(NewTopic(name, 9, -1, {}))
        await tenants.change("acme", limits={"topics": None})
        with pytest.raises(PolicyViolation, match="5 partitions"):
            await topics.create(NewTopic("«acme»c", 1, -1, {}))
        await topics.delete("«acme»a")
        await topics.create(NewTopic("«acme»c", 1, -1, {}))
        await tenants.delete("acme", is_forced=True)
        with pytest.raises(TopicNameInvalid, match="no tenant 'acme'"):
            await topics.add_partitions("«acme»c", 2)
        changes = [ConfigChange("retention.ms", SET, "1000")]
        await rig.node.services.configurations.change_topic("«acme»c", changes)
        await topics.delete("«acme»c")
        assert "«acme»c" not in topics.names()


@with_brokers(0)
async def test_brokers_that_create_at_once_do_not_exceed_a_tenants_limits(cluster):
    cluster.settings |= {**CONFIG, "super_users": "User:ANONYMOUS"}
    for number in (1, 2):
        await cluster.start(number)
    listed = MemoryMetadataStore.list

    async def list_as_from_afar(self: MemoryMetadataStore, prefix: str) -> object:
        found = await listed(self, prefix)
        await asyncio.sleep(0)  # the other broker counts, too
        return found

    cluster.patch.setattr(MemoryMetadataStore, "list", list_as_from_afar)
    nodes = [one.node for one in cluster.brokers.values()]
    await nodes[0].access.tenants.create("acme", ["User:alice"])
    await nodes[0].access.tenants.change("acme", limits={"topics": 4, "partitions": 10})
    await until(lambda: all(node.access.tenants.limits("acme") for node in nodes))

    async def each(*calls: Awaitable[object]) -> int:
        """How many of the calls are carried out; the others are refused."""
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in results if isinstance(one, PolicyViolation)]
        assert len(refused) == sum(isinstance(one, BaseException) for one in results), results
        return len(results) - len(refused)

    def create(at: int, name: str) -> Awaitable[object]:
        return nodes[at].services.topics.create(NewTopic(f"«acme»{name}", 2, -1, {}))

    assert await each(*(create(at, f"t{number}-{at}") for number in range(4) for at in (0, 1))) == 4
    await until(lambda: all(len(node.topics.by_name) == 4 for node in nodes))
    names = nodes[0].topics.names()
    # 8 partitions, and each of the two would add two.
    grow = [node.services.topics.add_partitions(names[at], 4) for at, node in enumerate(nodes)]
    assert await each(*grow) == 1
    await nodes[1].services.topics.delete(names[2])
    assert await each(create(0, "again"), create(1, "too")) == 1


@with_brokers(0)
async def test_a_topic_that_two_brokers_create_at_once_exists_for_the_slower_one(cluster):
    """Not: its tenant has too many. And the many facts of its partitions are written once."""
    cluster.settings = {**CONFIG, "super_users": "User:ANONYMOUS"}
    for number in (1, 2):
        await cluster.start(number)
    nodes = [one.node for one in cluster.brokers.values()]
    await nodes[0].access.tenants.create("acme", ["User:alice"])
    await nodes[0].access.tenants.change("acme", limits={"topics": 3, "partitions": 10})
    await until(lambda: all(node.access.tenants.limits("acme") for node in nodes))
    multi = MemoryMetadataStore.multi
    waiting: list[object] = []

    async def multi_at_once(self: MemoryMetadataStore, steps: Sequence[MultiOperation]) -> object:
        if any(one.key.startswith(TENANT_TOPICS) for one in steps) and len(waiting) < 2:
            waiting.append(self)
            await until(lambda: len(waiting) == 2)  # the other broker has counted, too
        return await multi(self, steps)

    cluster.patch.setattr(MemoryMetadataStore, "multi", multi_at_once)
    cluster.patch.setattr(topic_writes, "PARTS_AT_ONCE", 3)

    async def create(at: int, name: str) -> None:
        await nodes[at].services.topics.create(NewTopic(f"«acme»{name}", 6, -1, {}))

    results = await asyncio.gather(create(0, "a"), create(1, "a"), return_exceptions=True)
    assert {*map(type, results)} == {TopicExists, type(None)}, results
    await nodes[0].access.tenants.change("acme", limits={"partitions": 18})
    await until(
        lambda: all(node.access.tenants.limits("acme")["partitions"] == 18 for node in nodes)
    )
    waiting.clear()
    assert await asyncio.gather(create(0, "b"), create(1, "c")) == [None, None]


async def test_a_topic_of_a_large_tenant_costs_no_count_of_all_unless_it_may_be_one_too_many(
    monkeypatch,
):
    async with broker(BrokerConfig(**CONFIG)) as rig:
        tenants, topics = rig.node.access.tenants, rig.node.services.topics
        await tenants.create("acme", ["User:alice"])
        await tenants.change("acme", limits={"topics": 3})
        counts: list[str] = []
        listed = type(rig.node.metadata).list

        async def list_counted(store: MetadataStore, prefix: str) -> object:
            counts.append(prefix)
            return await listed(store, prefix)

        monkeypatch.setattr(type(rig.node.metadata), "list", list_counted)

        async def create(name: str) -> int:
            counts.clear()
            await topics.create(NewTopic(f"«acme»{name}", 1, -1, {}))
            return counts.count("/topics/«acme»")

        assert [await create(name) for name in "abc"] == [1, 0, 0]
        with pytest.raises(PolicyViolation, match="4 topics, and may have 3"):
            await create("d")
        await topics.delete("«acme»a")
        assert await create("d") == 1, "the deletion has given something back"
        await topics.delete("«acme»b")
        fact = await rig.node.metadata.get(tenant_topics_key("acme"))
        await rig.node.metadata.put(fact.key, fact.value, fact.version)
        assert await create("e") == 1, "another broker has created topics"


async def test_limits_are_stored_followed_and_end_with_the_tenant():
    store = MemoryMetadataStore()
    one, other = Tenants(store), Tenants(store)
    await one.create("acme", ["User:alice"])
    await one.change("acme", limits={"topics": 3, PRODUCER: RATE})
    await one.change("acme", ["User:bob"])
    for entry in await store.list("/tenants/"):
        other.apply(entry.key, entry)
    assert dict(other.limits("acme")) == {"topics": 3.0, PRODUCER: RATE}
    assert other.has_rates
    await other.change("acme", limits={"topics": None})
    assert dict(other.limits("acme")) == {PRODUCER: RATE}
    await other.delete("acme", is_forced=True)
    assert not other.has_rates
    await other.create("acme", [])
    assert not other.limits("acme")


@pytest.mark.parametrize("limits", [{"x": 1}, {"topics": 0}, {"topics": 1.5}, {PRODUCER: 2**63}])
def test_invalid_limits_are_refused(limits):
    with pytest.raises(RequestInvalid):
        check_limits(limits)


@given(st.integers(1, 2**40), st.lists(st.floats(0, 2.0**50), min_size=1, max_size=20))
def test_shares_add_up_to_the_rate_and_follow_the_use(rate, used):
    shares = [share_of(rate, one, used[:at] + used[at + 1 :]) for at, one in enumerate(used)]
    assert sum(shares) == pytest.approx(rate)
    assert all(share > 0 for share in shares)
    ordered = [share for _use, share in sorted(zip(used, shares, strict=True))]
    assert ordered == pytest.approx(sorted(ordered))


class Rates:
    """The rates of brokers, in time that is passed by hand."""

    def __init__(self, count: int) -> None:
        self.now_ms = 0
        self.access = access_of(BrokerConfig(**CONFIG), MemoryMetadataStore())
        self.rates = [TenantRates(self.access, self, number) for number in range(count)]

    async def limit(self, limits: dict[str, float]) -> None:
        await self.access.tenants.create("acme", ["User:alice"])
        await self.access.tenants.change("acme", limits=limits)

    def now_ns(self) -> int:
        return self.now_ms * 1_000_000

    async def ask_broker(self, _call: str, broker_id: int, _asked: list[object]) -> object:
        return await self.rates[broker_id]._answer(None)

    async def used(self, clients: list[tuple[int, int]], from_ms: int, to_ms: int) -> list[float]:
        """The parts of the rate that clients got, each (its broker, bytes of its requests), that
        send as fast as they may."""
        next_ms, got = [self.now_ms] * len(clients), [0] * len(clients)
        while self.now_ms < to_ms:
            for number, one in enumerate(self.rates):
                if self.now_ms and (self.now_ms - 90 * number) % 1_000 == 0:
                    await one._exchange(self, range(len(self.rates)))
            for at, (broker_id, size) in enumerate(clients):
                if next_ms[at] <= self.now_ms:
                    wait_ms = self.rates[broker_id].take(session(), PRODUCER, size)
                    next_ms[at] = self.now_ms + wait_ms
                    is_stored = "acme" not in self.rates[broker_id].counts.refused
                    got[at] += size if is_stored and self.now_ms >= from_ms else 0
            self.now_ms += 10
        return [one / (to_ms - from_ms) * 1_000 / RATE for one in got]


@pytest.mark.parametrize(("count", "part_min"), [(3, 0.9), (10, 0.8)])
@pytest.mark.parametrize("size", [20_000, 300_000, 1_000_000, 5_000_000])
async def test_requests_of_any_size_at_one_broker_get_most_of_the_rate(size, count, part_min):
    """While a client is throttled it sends nothing, for longer than a period."""

    cluster = Rates(count)
    await cluster.limit({PRODUCER: RATE})
    await cluster.used([(0, RATE)], 0, 10_000)
    (part,) = await cluster.used([(1, size)], 13_000, 73_000)
    assert part_min - 0.02 < part < 1.1


@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("other", [20_000, 1_000_000, 5_000_000])
@pytest.mark.parametrize("size", [20_000, 5_000_000])
async def test_clients_at_two_brokers_get_about_one_half_each(size, other, count):
    cluster = Rates(count)
    await cluster.limit({PRODUCER: RATE})
    parts = await cluster.used([(0, size), (1, other)], 20_000, 80_000)
    assert all(0.4 <= part <= 0.6 for part in parts), parts
    assert 0.8 < sum(parts) < 1.1


@pytest.mark.parametrize("count", [1, 3])
async def test_many_clients_of_large_requests_get_no_more_than_the_rate(count):
    """Each is throttled for 30 s at most, and all together owe more than that."""

    cluster = Rates(count)
    await cluster.limit({PRODUCER: RATE})
    clients = [(0, 5_000_000)] * 20
    parts = await cluster.used(clients, 0, 200_000)
    assert 0.8 < sum(parts) < 1.25, "over 200 s, with what was owed at the end"


async def test_writes_that_are_charged_once_they_are_stored_are_owed_in_full():
    """As those over HTTP: what was stored while a tenant owes more than it may wait counts, too."""

    cluster = Rates(1)
    await cluster.limit({PRODUCER: RATE})
    rates, size = cluster.rates[0], 40 * RATE
    for _ in range(5):
        rates.take(session(), PRODUCER, size, is_stored=True)
    cluster.now_ms += 150_000
    assert rates.take(session(), PRODUCER, 0) > 0
    assert "acme" in rates.counts.refused
    cluster.now_ms += 60_000
    assert rates.take(session(), PRODUCER, 0) == 0
    assert "acme" not in rates.counts.refused


async def test_limits_of_counts_alone_meter_no_request():
    cluster = Rates(1)
    await cluster.limit({"topics": 3})
    assert not cluster.rates[0].is_active
    await cluster.limit({CONSUMER: RATE})
    assert cluster.rates[0].is_active


async def test_a_client_of_a_tenant_is_throttled_by_its_rate_and_others_are_not():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        tenants, quotas = rig.node.access.tenants, rig.node.quotas
        assert not quotas.is_active
        await tenants.create("acme", ["User:alice", "User:ann"])
        await tenants.change("acme", limits={PRODUCER: RATE})
        assert quotas.is_active
        assert quotas.take(session(), PRODUCER, RATE) == 0
        assert quotas.take(session("ann"), PRODUCER, 30 * RATE) > 20_000
        assert quotas.take(session("ann"), CONSUMER, 9 * RATE) == 0
        assert quotas.take(session("carol"), PRODUCER, 9 * RATE) == 0
        assert quotas.burst(session(), PRODUCER) == RATE
        assert quotas.burst(session("carol"), PRODUCER) is None
        await tenants.change("acme", limits={PRODUCER: None})
        assert not quotas.is_active
        assert quotas.take(session("ann"), PRODUCER, RATE) == 0


@with_brokers(0)
async def test_a_rate_is_shared_by_all_brokers_and_follows_the_load(cluster):
    cluster.settings |= {**CONFIG, "super_users": "User:ANONYMOUS"}
    for number in (1, 2, 3):
        await cluster.start(number)
    nodes = {number: one.node for number, one in cluster.brokers.items()}
    await nodes[1].access.tenants.create("acme", ["User:alice"])
    await nodes[1].access.tenants.change("acme", limits={PRODUCER: RATE})
    await until(lambda: all(node.quotas.is_active for node in nodes.values()))

    def shares() -> list[int]:
        return [node.quotas.burst(session(), PRODUCER) for node in nodes.values()]

    def send(number: int) -> None:
        """As a client that waits for as long as it is throttled."""
        if not nodes[number].quotas.take(session(), PRODUCER, 0):
            nodes[number].quotas.take(session(), PRODUCER, RATE)

    for busy in (1, 3):

        def has_most(busy: int = busy) -> bool:
            send(busy)
            found = shares()
            return found[busy - 1] > 0.9 * RATE and sum(found) <= RATE

        await until(has_most)

    def is_even() -> bool:
        for number in nodes:
            send(number)
        return max(shares()) < 0.4 * RATE and sum(shares()) > 0.9 * RATE

    await until(is_even)


@with_brokers(0)
async def test_connections_are_counted_over_all_brokers(cluster):
    cluster.settings |= {**CONFIG, "super_users": "User:ANONYMOUS"}
    for number in (1, 2, 3):
        await cluster.start(number)
    one, other, third = (cluster.brokers[number].node for number in (1, 2, 3))
    await one.access.tenants.create("acme", ["User:alice", "User:ann"])
    await one.access.tenants.change("acme", limits={"connections": 2})
    await until(lambda: all(n.access.tenants.has_shared for n in (one, other, third)))

    def connect(node, name: str, place: TenantPlace | None = None) -> object | None:
        client = session(name)
        client.place = place
        connections = node.services.connections
        assert connections.open(client, "PLAINTEXT", "127.0.0.1") == ""
        try:
            connections.join(client, client)
        except PolicyViolation:
            connections.close(client)
            return None
        connections.join(client, client)  # counted once
        return client

    first = connect(one, "alice")
    assert connect(other, "nobody", TenantPlace("acme", is_given=True))
    await until(lambda: third.tenant_rates.counts.total("acme", "connections") == 2)
    assert connect(third, "ann") is None
    assert connect(third, "ANONYMOUS", TenantPlace("acme", is_given=True)), "a super user"
    assert connect(third, "carol"), "others are not limited"
    one.services.connections.close(first)
    await until(lambda: connect(third, "alice"))


async def test_a_connection_that_leaves_a_tenant_or_stays_in_it_counts_once():
    """At once, not from the next count on."""
    cluster = Rates(1)
    await cluster.limit({"connections": 2})
    await cluster.access.tenants.change("acme", ["User:ann"])
    counts = cluster.rates[0].counts
    counts.add("connections", lambda _tenants: {})
    counts.measure()
    limits = ConnectionLimits(BrokerConfig(), cluster.now_ns, counts)
    for connection in range(4):
        assert limits.open(connection, "HTTP", "127.0.0.1") == ""
    for connection, name in ((0, "alice"), (1, "alice"), (0, "ann"), (1, "ann"), (0, "alice")):
        limits.join(connection, session(name))
    with pytest.raises(PolicyViolation):
        limits.join(2, session())
    limits.close(2)
    limits.close(0)
    limits.join(3, session())
    assert counts.total("acme", "connections") == 2
    limits.join(1, session("carol"))
    limits.close(1)
    assert counts.total("acme", "connections") == 1


async def test_a_tenant_has_no_more_groups_than_its_limit():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        node = rig.node
        await node.access.tenants.create("acme", ["User:alice"])
        await node.access.tenants.change("acme", limits={"groups": 2})
        await node.topics.ensure_internal(OFFSETS_TOPIC)
        await node.services.topics.create(NewTopic("«acme»t", 1, -1, {}))

        async def commit(group: str) -> HeadraceError | None:
            offsets = [OffsetToCommit("«acme»t", 0, 1, -1, "")]
            reply = await node.groups.submit(CommitCommand(group, -1, "", None, offsets))
            return reply.results[0].error

        assert await commit("«acme»a") is None
        await node.group_configs.begin("«acme»share", rig.node.randomness.uuid())
        await until(lambda: node.tenant_rates.used("acme", "groups") == 2)
        for _ in range(2):
            error = await commit("«acme»b")
            assert isinstance(error, PolicyViolation)
            assert "3 groups, and may have 2" in str(error)
        with pytest.raises(PolicyViolation):
            await node.group_configs.begin("«acme»other", rig.node.randomness.uuid())
        assert await commit("«acme»a") is None, "one that exists goes on"
        assert await commit("b") is None, "others are not limited"
        await node.access.tenants.change("acme", limits={"groups": 3})
        assert await commit("«acme»b") is None


VALUE = bytes(10_000)


async def stored_of(rig: BrokerHarness, when_full: str) -> None:
    tenants = rig.node.access.tenants
    await tenants.create("acme", ["User:alice"])
    await tenants.change("acme", limits={"stored_bytes": 100_000}, when_full=when_full)
    for name in ("«acme»a", "«acme»b", "c"):
        await rig.node.services.topics.create(NewTopic(name, 1, -1, {}))


async def write(rig: BrokerHarness, topic: str) -> bool:
    """Whether the tenant may write."""
    log = rig.node.topics.get(topic).partitions[0]
    try:
        await rig.node.appends.append_and_wait(log, batch(VALUE))
    except PolicyViolation:
        return False
    return True


async def test_a_tenant_that_is_full_writes_no_more_until_it_has_room():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        await stored_of(rig, "reject")
        counts, written = rig.node.tenant_rates.counts, 0
        while await write(rig, "«acme»a"):
            written += 1
            await asyncio.sleep(0.05)  # the limit is looked at once a second
        assert written > 9
        assert not await write(rig, "«acme»b")
        assert "may store 100000" in str(counts.refused["acme"]())
        assert await write(rig, "c"), "others are not limited"
        assert rig.node.quotas.take(session(), PRODUCER, 1) == 0
        await rig.node.services.topics.delete("«acme»a")
        await until(lambda: not counts.refused)
        assert await write(rig, "«acme»b")


async def test_slow_throttles_writes_more_and_more():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        await stored_of(rig, "slow")
        quotas, rates = rig.node.quotas, rig.node.tenant_rates
        assert quotas.is_active
        waits = []
        for _ in range(3):
            for _ in range(3):
                await write(rig, "«acme»a")
            log = rig.node.topics.get("«acme»a").partitions[0]
            await until(lambda log=log: rates.used("acme", "stored_bytes") == log.size_bytes)
            waits.append(quotas.take(session(), PRODUCER, 1))
        assert waits[:2] == [0, 0]
        assert 14_000 < waits[2] < 17_000
        assert quotas.take(session(), PRODUCER, 0) == 0, "it owes nothing"
        assert quotas.take(session("carol"), PRODUCER, 1) == 0


async def test_drop_oldest_makes_room_for_what_is_written():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        await stored_of(rig, "drop-oldest")
        first, second = (rig.node.topics.get(f"«acme»{one}").partitions[0] for one in "ab")
        for topic in ("«acme»b", "c", "c"):
            await write(rig, topic)
        for _ in range(12):
            await write(rig, "«acme»a")
        await until(lambda: first.log_start_offset > 0)
        await until(lambda: first.size_bytes + second.size_bytes <= 100_000)
        await until(lambda: not rig.node.tenant_rates.counts.refused)
        assert await write(rig, "«acme»a")
        assert rig.node.topics.get("c").partitions[0].log_start_offset == 0


async def test_what_is_dropped_follows_from_what_is_stored_then():
    """Not from the last count: the drop before may have taken long, and others may have deleted."""
    cluster = Rates(1)
    await cluster.limit({"stored_bytes": 100})
    await cluster.access.tenants.change("acme", when_full="drop-oldest")
    counts, stored = cluster.rates[0].counts, {"acme": 130}
    counts.add("stored_bytes", lambda _tenants: stored)
    counts.measure()
    asked: list[float] = []

    async def drop(_tenant: str, size_bytes: float) -> bool:
        asked.append(size_bytes)
        return True

    stored["acme"] = 110
    await counts.drop_oldest(drop)
    stored["acme"] = 90
    await counts.drop_oldest(drop)
    assert asked == [10]


@pytest.mark.parametrize(("has_dropped", "counts_made"), [(False, 1), (True, 3)])
async def test_all_tenants_are_counted_at_once_and_again_after_a_drop(has_dropped, counts_made):
    cluster, names = Rates(1), ("a", "b", "c")
    counts, counted = cluster.rates[0].counts, []
    for name in names:
        await cluster.access.tenants.create(name, [])
        limits = {"stored_bytes": 100}
        await cluster.access.tenants.change(name, limits=limits, when_full="drop-oldest")

    def measure(tenants: object) -> dict[str, int]:
        counted.append(tenants)
        return dict.fromkeys(names, 130)

    async def drop(tenant: str, _size_bytes: float) -> bool:
        asked.append(tenant)
        return has_dropped

    asked: list[str] = []
    counts.add("stored_bytes", measure)
    counts.measure()
    counted.clear()
    await counts.drop_oldest(drop)
    assert tuple(asked) == names
    assert len(counted) == counts_made


async def test_after_a_drop_brokers_wait_for_what_the_others_have_dropped():
    """Or each would drop the others' excess once more."""
    cluster = Rates(2)
    await cluster.limit({"stored_bytes": 100})
    await cluster.access.tenants.change("acme", when_full="drop-oldest")
    for one in cluster.rates:
        one.counts.add("stored_bytes", lambda _tenants: {"acme": 80})
    for one in reversed(cluster.rates):
        await one._exchange(cluster, range(2))
    counts, asked_ms = cluster.rates[0].counts, []

    async def drop(_tenant: str, _size_bytes: float) -> bool:
        asked_ms.append(cluster.now_ms)
        return True

    while cluster.now_ms < 7_000:
        await counts.drop_oldest(drop)
        cluster.now_ms += 1_000
    assert asked_ms == [0, 3_000, 6_000]


async def test_counting_for_refusals_takes_a_hundredth_of_the_time_at_most():
    cluster = Rates(1)
    await cluster.limit({"groups": 1})
    counts, counted_ms = cluster.rates[0].counts, []

    def measure(_tenants: object) -> dict[str, int]:
        counted_ms.append(cluster.now_ms)
        cluster.now_ms += 50
        return {"acme": 1}

    counts.add("groups", measure)
    counts.measure()
    while cluster.now_ms < 20_000:
        with pytest.raises(PolicyViolation):
            counts.check("acme", "groups")
        cluster.now_ms += 10
    assert 3 <= len(counted_ms) <= 5


async def test_nothing_is_dropped_where_that_makes_no_room():
    """Compacted topics and journals may exceed the limit alone, and cannot be dropped."""

    async with broker(BrokerConfig(**CONFIG)) as rig:
        await stored_of(rig, "reject")
        await write(rig, "«acme»a")
        log, storage = rig.node.topics.get("«acme»a").partitions[0], rig.node.tenant_storage
        await storage.drop("acme", log.size_bytes + 1)
        assert (log.log_start_offset, len(log.closed)) == (0, 0)
        await storage.drop("acme", log.size_bytes)
        await storage.drop("acme", log.size_bytes)
        assert log.log_start_offset == 1


async def test_what_a_tenant_has_counts_from_the_start_of_a_broker_on():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        await stored_of(rig, "reject")
        await rig.node.access.tenants.change("acme", limits={"groups": 2})
        await rig.node.topics.ensure_internal(OFFSETS_TOPIC)
        offsets = [OffsetToCommit("«acme»a", 0, 1, -1, "")]
        command = CommitCommand("«acme»g", -1, "", None, offsets)
        assert (await rig.node.groups.submit(command)).results[0].error is None
        assert await write(rig, "«acme»a")
        stored = rig.node.topics.get("«acme»a").partitions[0].size_bytes
    async with rig.running() as node:
        await until(lambda: node.tenant_rates.used("acme", "stored_bytes") >= stored > 0)
        await until(lambda: node.tenant_rates.used("acme", "groups") == 1)


async def test_partitions_that_cannot_be_loaded_hold_up_no_others(monkeypatch):
    monkeypatch.setattr(tenant_storage, "LOADS_MAX", 1)
    load, begun = LifecycleHost._load, Counter()

    async def loaded(host: LifecycleHost) -> None:
        begun[host._log] += 1
        if host._log is failing:
            raise MetadataUnavailable("it is away")
        await load(host)

    async with broker(BrokerConfig(**CONFIG)) as rig:
        assert rig.node.access is not None
        await rig.node.access.tenants.create("acme", [])
        await rig.node.services.topics.create(NewTopic("«acme»a", 3, -1, {}))
        damaged, failing, good = rig.node.topics.get("«acme»a").partitions
        monkeypatch.setattr(LifecycleHost, "_load", loaded)
        damaged.lifecycle_host.fail(DataCorrupt("it is damaged"))
        storage = rig.node.tenant_storage

        def is_loaded() -> bool:
            storage.measure(["acme"])
            return good.is_loaded

        await until(is_loaded)
        assert begun == {failing: 1, good: 1}
        await until(lambda: storage.measure(["acme"]) is None or begun[failing] == 2)
