"""The limit of processor time of a tenant: its amount, brokers' shares, and who is charged."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.kit.broker import broker
from tests.kit.records import batch
from tests.unit.broker.test_tenant_limits import CONFIG, Rates, session
from tests.unit.http.test_authorization import guarded
from tests.unit.rocketmq.rocketmq_rig import Rocket
from tests.unit.rocketmq.test_access import TOPIC, code_of
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.principal import Principal
from headrace.broker.services.reads import Reads
from headrace.broker.services.record_sends import RecordSends
from headrace.broker.services.topic_service import NewTopic
from headrace.broker.shares.share_partitions import SharePartitions
from headrace.coordination.quotas.entities import PRODUCER, REQUEST
from headrace.kafka import apis, dispatch
from headrace.rocketmq import codes

if TYPE_CHECKING:
    from tests.kit.kafka_client import Client

PERCENT = 20
EVERY_MS = 50
NS_PER_MS = 1_000_000
SLOW_NS = 50 * NS_PER_MS


class Busy(Rates):
    """Clients that want more of the processors than their tenant may have."""

    async def percent(self, clients: list[tuple[int, int]], from_ms: int, to_ms: int) -> float:
        """What all clients got of a processor, each (its broker, how long its requests take), that
        sends one each EVERY_MS, and is not read while it is throttled."""
        next_ms, got_ms = [self.now_ms] * len(clients), 0
        while self.now_ms < to_ms:
            for number, one in enumerate(self.rates):
                if self.now_ms and (self.now_ms - 90 * number) % 1_000 == 0:
                    await one._exchange(self, range(len(self.rates)))
            for at, (broker_id, cost_ms) in enumerate(clients):
                if next_ms[at] <= self.now_ms:
                    rates = self.rates[broker_id]
                    wait_ms = rates.take(session(), REQUEST, 0)
                    rates.take(session(), REQUEST, cost_ms * NS_PER_MS)
                    next_ms[at] = self.now_ms + max(EVERY_MS, wait_ms)
                    got_ms += cost_ms if self.now_ms >= from_ms else 0
            self.now_ms += 10
        return got_ms / (to_ms - from_ms) * 100


@pytest.mark.parametrize(
    "brokers", [[0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
)
async def test_a_tenant_at_three_times_its_limit_gets_its_limit(brokers):
    """However many brokers its clients are at."""
    cluster = Busy(max(brokers) + 1)
    await cluster.limit({REQUEST: PERCENT})
    cost_ms = 3 * PERCENT * EVERY_MS // 100 // len(brokers)
    wanted = [(one, max(cost_ms, 5)) for one in brokers]
    got = await cluster.percent(wanted, 10_000, 110_000)
    assert 0.9 * PERCENT < got < 1.1 * PERCENT


async def test_the_limit_follows_clients_that_move_to_another_broker():
    cluster = Busy(2)
    await cluster.limit({REQUEST: PERCENT})
    await cluster.percent([(0, 10)] * 3, 0, 20_000)
    got = await cluster.percent([(1, 10)] * 3, 24_000, 124_000)
    assert 0.9 * PERCENT < got < 1.1 * PERCENT


async def test_what_is_used_is_shown_in_percent_of_a_processor():
    cluster = Busy(2)
    await cluster.limit({REQUEST: 90})
    await cluster.percent([(0, 5), (1, 10)], 0, 5_300)
    used = [one.used("acme", REQUEST) for one in cluster.rates]
    assert used == pytest.approx([30, 30], rel=0.1)


async def test_limits_of_other_rates_meter_no_time():
    cluster = Rates(1)
    await cluster.limit({PRODUCER: 1})
    assert cluster.rates[0].take(session(), REQUEST, 1e12) == 0
    assert cluster.access.tenants.has_rate(PRODUCER)
    assert not cluster.access.tenants.has_rate(REQUEST)


async def limited(node) -> None:
    await node.access.tenants.create("acme", ["User:alice"])
    await node.access.tenants.change("acme", limits={REQUEST: 100})


def owe(node, seconds: float = 0) -> None:
    """Have the tenant take the loop for that long, beyond what it may at once."""
    node.quotas.take(session(), REQUEST, (1 + seconds) * 1e9)


def as_user(client: Client, name: str) -> Client:
    client.connection.session.principal = Principal(name)
    return client


async def test_kafka_clients_of_the_tenant_are_charged_and_throttled_and_others_are_not():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        await limited(rig.node)
        client, other = as_user(rig.client(), "alice"), as_user(rig.client(), "carol")
        answer = await client.ask(apis.METADATA, 9, {"topics": None})
        assert not answer.throttle_time
        await until(lambda: rig.node.tenant_rates.used("acme", REQUEST) > 0)
        owe(rig.node, 10)
        answer = await client.ask(apis.METADATA, 9, {"topics": None})
        assert 8 < answer.throttle_time.total_seconds() <= 12
        assert client.transport.is_paused
        answer = await other.ask(apis.METADATA, 9, {"topics": None})
        assert not answer.throttle_time


async def test_a_fetch_that_waits_is_charged_for_the_time_that_its_answer_takes():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        node = rig.node
        await node.access.tenants.create("acme", ["User:alice"])
        await node.services.topics.create(NewTopic("«acme»t", 1, -1, {}))
        client = as_user(rig.client(), "alice")
        part = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0}
        part |= {"last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
        request = {"max_wait": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "session_id": 0}
        request |= {"session_epoch": -1, "topics": [{"topic": "t", "partitions": [part]}]}
        client.send(apis.FETCH, 12, request)
        await until(lambda: rig.face.fetch.waiting == 1)
        await node.access.tenants.change("acme", limits={REQUEST: 100})
        log = node.topics.get("«acme»t").partitions[0]
        await node.appends.append_and_wait(log, batch(b"v"))
        await until(client.answers)
        await until(lambda: node.tenant_rates.used("acme", REQUEST) > 0)


async def test_a_request_is_charged_for_the_encoding_of_its_answer(monkeypatch):
    encode = dispatch.write_response

    def slow(*args):
        until_ns = time.perf_counter_ns() + SLOW_NS
        while time.perf_counter_ns() < until_ns:
            pass
        return encode(*args)

    async with broker(BrokerConfig(**CONFIG)) as rig:
        await limited(rig.node)
        monkeypatch.setattr(dispatch, "write_response", slow)
        charged_ns = charges(monkeypatch, rig.node.quotas)
        await as_user(rig.client(), "alice").ask(apis.METADATA, 9, {"topics": None})
        assert SLOW_NS <= sum(charged_ns) < 2 * SLOW_NS, "once"


def slow_down(monkeypatch, owner: type, name: str, *, fails: bool = False) -> None:
    """A method of `owner` takes the loop for SLOW_NS longer."""
    method = getattr(owner, name)

    async def slow(*args, **more):
        until_ns = time.perf_counter_ns() + SLOW_NS
        while time.perf_counter_ns() < until_ns:
            pass
        assert not fails
        return await method(*args, **more)

    monkeypatch.setattr(owner, name, slow)


def charges(monkeypatch, quotas) -> list[float]:
    """What is charged from now on, in ns of the loop."""
    charged_ns: list[float] = []
    take = quotas.take

    def taken(asker, key, amount, **more):
        charged_ns.extend([amount] if key == REQUEST else [])
        return take(asker, key, amount, **more)

    monkeypatch.setattr(quotas, "take", taken)
    return charged_ns


async def test_a_pull_of_rocketmq_is_charged_for_what_it_reads(monkeypatch):
    """That is done in a task of its own, which ends if the client goes."""
    async with broker(BrokerConfig(**CONFIG)) as rig:
        rocket, quotas = Rocket(rig), rig.node.quotas
        await limited(rig.node)
        await rig.node.topics.create(f"«acme»{TOPIC}", 1)
        slow_down(monkeypatch, Reads, "read")
        charged_ns = charges(monkeypatch, quotas)
        assert await code_of(rocket, "PullMessage", "alice") == codes.MESSAGE_NOT_FOUND
        assert sum(charged_ns) >= SLOW_NS


@pytest.mark.parametrize("partitions", [[0], [0, 1]])
async def test_records_over_http_are_charged_for_however_many_partitions(monkeypatch, partitions):
    """Those of several partitions are appended in tasks of their own."""
    async with guarded(monkeypatch) as web:
        await limited(web.node)
        await web.node.topics.create("«acme»t", 2)
        web.principal = "alice"
        slow_down(monkeypatch, RecordSends, "_send_some")
        charged_ns = charges(monkeypatch, web.node.quotas)
        records = [{"value": "x", "partition": one} for one in partitions]
        status, _ = await web.ask("POST", "/v1/topics/t/records", {"records": records})
        assert status == 200
        assert sum(charged_ns) >= SLOW_NS * len(partitions)


@pytest.mark.parametrize("action", ["park", "unpark"])
async def test_keys_that_are_parked_over_http_are_charged_for(monkeypatch, action):
    """A task for each of them, so that they share a sync."""
    async with guarded(monkeypatch) as web:
        await limited(web.node)
        await web.node.topics.create("«acme»t", 1)
        web.principal = "alice"
        config = {"set": {"headrace.share.key.order": "true"}}
        await web.ask("PATCH", "/v1/groups/g/config", config)
        slow_down(monkeypatch, SharePartitions, "ask")
        charged_ns = charges(monkeypatch, web.node.quotas)
        asked = {"keys": ["a", "b", "c"]}
        status, answer = await web.ask("POST", f"/v1/queues/t/g/{action}", asked)
        assert status == 200, answer
        assert sum(charged_ns) >= 3 * SLOW_NS


async def test_a_request_whose_handler_fails_is_charged(monkeypatch):
    async with guarded(monkeypatch) as web:
        await limited(web.node)
        await web.node.topics.create("«acme»t", 1)
        web.principal = "alice"
        slow_down(monkeypatch, RecordSends, "send", fails=True)
        charged_ns = charges(monkeypatch, web.node.quotas)
        with suppress(AssertionError):  # after its answer
            await web.ask("POST", "/v1/topics/t/records", {"records": [{"value": "x"}]})
        assert sum(charged_ns) >= SLOW_NS


async def test_http_clients_of_the_tenant_are_charged_and_refused_and_others_are_not(monkeypatch):
    async with guarded(monkeypatch) as web:
        await limited(web.node)
        web.principal = "alice"
        assert (await web.ask("GET", "/v1/topics"))[0] == 200
        await until(lambda: web.node.tenant_rates.used("acme", REQUEST) > 0)
        owe(web.node, 10)
        status, problem = await web.ask("GET", "/v1/topics")
        assert (status, problem["retriable"]) == (429, True)
        assert "request_percentage" in problem["detail"]
        web.principal = "root"
        assert (await web.ask("GET", "/v1/topics"))[0] == 200
        _, shown = await web.ask("GET", "/v1/tenants/acme")
        assert set(shown["used"]) == {"request_percentage"}


async def test_rocketmq_clients_of_the_tenant_are_charged_and_refused_and_others_are_not():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        rocket = Rocket(rig)
        await limited(rig.node)
        assert await code_of(rocket, "QueryRoute", "alice") != codes.TOO_MANY_REQUESTS
        await until(lambda: rig.node.tenant_rates.used("acme", REQUEST) > 0)
        owe(rig.node, 10)
        for rpc in ("SendMessage", "ReceiveMessage", "PullMessage"):
            assert await code_of(rocket, rpc, "alice") == codes.TOO_MANY_REQUESTS
            assert await code_of(rocket, rpc, "carol") != codes.TOO_MANY_REQUESTS
        assert await code_of(rocket, "AckMessage", "alice") != codes.TOO_MANY_REQUESTS
