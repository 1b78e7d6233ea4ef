"""Queues over HTTP where several brokers own the partitions: any of them serves the whole topic."""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from uuid import UUID

import pytest
from tests.kit.cluster import Cluster
from tests.kit.records import append, batch
from tests.unit.http.http_rig import Web, scope
from tests.waiting import until

from headrace.broker.services import queue_owners, queue_receive
from headrace.errors import (
    BrokerUnreachable,
    GroupIdInvalid,
    NotOwner,
    RequestInvalid,
    StorageUnavailable,
    TopicIdUnknown,
    TopicUnknown,
)
from headrace.kafka.handlers import forwarded_queues

GROUP, TOPIC, PARTITIONS = "workers", "jobs", 6
QUEUE = f"/v1/queues/{TOPIC}/{GROUP}"
LIMIT_S = 30


class Broker(Web):
    """The queue, as clients of one broker have it."""

    async def receive(self, **asked):
        status, answer = await self.ask("POST", f"{QUEUE}/receive", asked)
        assert status == 200, answer
        return answer["messages"]

    async def settle(self, **asked):
        status, answer = await self.ask("POST", f"{QUEUE}/settle", asked)
        assert status == 200, answer
        return answer["results"]

    async def abandoned(self, leave, **asked):
        """Ask to receive, and go away when `leave` ends. What would have been the response."""
        sent, body = [], [json.dumps(asked).encode()]

        async def receive():
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await leave()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        await asyncio.wait_for(self.app(scope("POST", f"{QUEUE}/receive"), receive, send), LIMIT_S)
        return json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


class QueueCluster(Cluster):
    """Brokers that share a topic."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__(has_ports=True)
        self.patch = patch
        self.brokers: dict[int, Broker] = {}

    async def start(self, broker_id: int) -> None:
        await super().start(broker_id)
        self.brokers[broker_id] = Broker(self.rigs[broker_id])

    async def kill(self, broker_id: int) -> None:
        del self.brokers[broker_id]
        await super().kill(broker_id)

    def topic_owners(self) -> list[int]:
        """As all agree on it, and serve it; else nothing."""
        return self.owners(TOPIC) if self.agree(TOPIC, {*self.rigs}) else []

    def owner(self, partition: int) -> Broker:
        return self.brokers[self.topic_owners()[partition]]

    async def put(self, partition: int, *values: bytes) -> None:
        """Append at the owner."""
        log = self.owner(partition).node.topics.get(TOPIC).require_log(partition)
        await append(log, batch(*values, timestamp_ms=1))

    async def make_queue(self, topic_config: dict[str, str] | None = None, **config: str) -> None:
        first = next(iter(self.nodes.values()))
        config = {"share.auto.offset.reset": "earliest", **config}
        await first.group_configs.change(GROUP, lambda _: config)
        await first.topics.create(TOPIC, PARTITIONS, 1, topic_config or {})
        # Each owns some: else nothing is shown.
        await until(lambda: len(set(self.topic_owners())) == len(self.brokers))
        nodes = self.nodes.values()
        await until(lambda: all(n.group_configs.overrides(GROUP) == config for n in nodes))

    async def states(self):
        """Partition -> where the group stands, at its owner."""
        found = {}
        for number in range(PARTITIONS):
            node = self.owner(number).node
            for one in await node.shares.describe(node.topics.get(TOPIC), number, [GROUP]):
                found[number] = one
        return found


def with_brokers(count):
    def decorate(test):
        @functools.wraps(test)
        def run():
            async def scenario(patch):
                async with QueueCluster(patch) as cluster:
                    for broker_id in range(1, count + 1):
                        await cluster.start(broker_id)
                    await test(cluster)

            with pytest.MonkeyPatch.context() as patch:
                asyncio.run(scenario(patch))

        del run.__wrapped__
        return run

    return decorate


def values(messages):
    return sorted(message["value"] for message in messages)


@with_brokers(3)
async def test_one_call_gives_messages_of_the_whole_topic(cluster):
    await cluster.make_queue()
    for number in range(PARTITIONS):
        await cluster.put(number, b"%d" % number)
    broker = cluster.brokers[1]
    messages = await broker.receive(max=100)
    assert values(messages) == [str(number) for number in range(PARTITIONS)]
    results = await cluster.brokers[2].settle(ack=[one["receipt"] for one in messages])
    assert all(one["ok"] for one in results), "receipts are settled at any broker"
    assert [one.start for one in (await cluster.states()).values()] == [1] * PARTITIONS
    assert await cluster.brokers[3].receive(max=100) == []


@with_brokers(2)
async def test_a_topic_that_another_broker_has_just_created_is_there(cluster):
    await cluster.make_queue()
    for number in range(PARTITIONS):
        await cluster.put(number, b"%d" % number)
    topics = cluster.brokers[2].node.topics
    topics._remove(topics.get(TOPIC))  # as if its watch had not delivered it
    messages = await cluster.brokers[2].receive(max=100)
    assert {int(one["value"]) for one in messages} >= {
        number for number, owner in enumerate(cluster.topic_owners()) if owner == 1
    }


@with_brokers(2)
async def test_an_owner_that_learns_late_of_a_new_topic_is_waited_for(cluster):
    one, other = cluster.brokers[1].node, cluster.brokers[2].node
    loop, apply = asyncio.get_running_loop(), other.topics.apply

    def apply_late(key, entry):
        loop.call_later(0.1, apply, key, entry)

    cluster.patch.setattr(other.topics, "apply", apply_late)
    await one.topics.create(TOPIC, PARTITIONS, 1, {})
    (there,) = [broker for broker in one.cluster.brokers() if broker.id == other.config.broker_id]
    topic_id = one.topics.get(TOPIC).id
    assert topic_id not in other.topics.by_id
    answered = await one.queue_owners.peers.describe(there, topic_id, GROUP, [0])
    assert [*answered] == [0]


@with_brokers(2)
async def test_a_topic_is_received_from_at_once_though_its_owners_begin_late(cluster):
    """Each broker knows the owners, which are in the metadata, before the owners serve."""
    loop = asyncio.get_running_loop()

    def late(apply):
        return lambda *asked: loop.call_later(0.3, apply, *asked)

    for turn, (hears_late, asked) in enumerate([(1, 1), (2, 1), (1, 2), (2, 2)]):
        with cluster.patch.context() as patch:
            ownership = cluster.brokers[hears_late].node.ownership
            patch.setattr(ownership, "_reconcile", late(ownership._reconcile))
            name = f"new-{turn}"
            await cluster.brokers[1].node.topics.create(name, PARTITIONS, 1, {})
            path = f"/v1/queues/{name}/{GROUP}/receive"
            status, answer = await cluster.brokers[asked].ask("POST", path, {"max": 10})
            assert (status, answer.get("failed")) == (200, None), (turn, answer)
            status, answer = await cluster.brokers[asked].ask("GET", f"/v1/queues/{name}/{GROUP}")
            assert len(answer["partitions"]) == PARTITIONS, "it has begun on all of them"


@with_brokers(2)
async def test_a_receive_follows_a_partition_that_has_just_moved(cluster):
    await cluster.make_queue()
    for number in range(PARTITIONS):
        await cluster.put(number, b"%d" % number)
    calls = cluster.brokers[1].node.queue_owners.peers
    theirs = [number for number, owner in enumerate(cluster.topic_owners()) if owner == 2]
    refusals = 3

    async def moving(broker, topic_id, asked, ends):
        nonlocal refusals
        if refusals:
            refusals -= 1
            return dict.fromkeys(ends, NotOwner("it has moved"))
        return await type(calls).receive(calls, broker, topic_id, asked, ends)

    cluster.patch.setattr(calls, "receive", moving)
    await cluster.brokers[1].receive(max=100)  # what this broker has
    assert values(await cluster.brokers[1].receive(max=100)) == [str(one) for one in theirs]


@with_brokers(2)
async def test_each_kind_of_settlement_reaches_the_owner(cluster):
    await cluster.make_queue()
    asked = cluster.brokers[1]
    number = cluster.topic_owners().index(2)
    await cluster.put(number, b"ack", b"nack", b"dead", b"extend")
    held = {one["value"]: one["receipt"] for one in await asked.receive(max=10)}
    results = await asked.settle(
        ack=[held["ack"]],
        nack=[{"receipt": held["nack"], "delay_ms": 0}],
        dead_letter=[{"receipt": held["dead"], "reason": "unreadable"}],
        extend=[{"receipt": held["extend"], "lock_ms": 60_000}],
    )
    assert all(one["ok"] for one in results), results
    (again,) = await asked.receive(max=10)
    assert (again["value"], again["deliveries"]) == ("nack", 2)
    (stale,) = await asked.settle(ack=[held["nack"]])
    assert (stale["ok"], stale["retriable"]) == (False, False)
    mixed = await asked.settle(ack=[held["extend"], held["nack"], again["receipt"]])
    assert [one["ok"] for one in mixed] == [True, False, True], "each stands for itself"


@with_brokers(2)
async def test_no_more_are_received_than_were_asked_for(cluster):
    await cluster.make_queue()
    for number in range(PARTITIONS):
        await cluster.put(number, *[b"x"] * 10)
    seen = Counter()
    while messages := await cluster.brokers[1].receive(max=7):
        assert len(messages) <= 7
        seen.update((one["partition"], one["offset"], one["deliveries"]) for one in messages)
    assert len(seen) == PARTITIONS * 10
    assert {*seen.values()} == {1}
    assert {deliveries for _, _, deliveries in seen} == {1}


@with_brokers(2)
async def test_a_long_poll_ends_with_the_first_message_of_another_broker(cluster):
    cluster.patch.setattr(queue_owners, "WATCH_S", 1_000)  # it is woken, and does not ask again
    await cluster.make_queue()
    asked, number = cluster.brokers[1], cluster.topic_owners().index(2)
    for turn in range(3):
        waiting = asyncio.create_task(asked.receive(max=10, wait_ms=30_000))
        shares = cluster.brokers[2].node.shares
        hosted = await shares.watched(cluster.brokers[2].node.topics.get(TOPIC), number)
        await until(lambda hosted=hosted: bool(hosted.data.waiters))
        await cluster.put(number, b"%d" % turn)
        (message,) = await waiting
        assert message["value"] == str(turn)


@with_brokers(2)
async def test_a_long_poll_ends_when_a_delay_at_another_broker_is_over(cluster):
    cluster.patch.setattr(queue_owners, "WATCH_S", 1_000)
    await cluster.make_queue()
    asked, number = cluster.brokers[1], cluster.topic_owners().index(2)
    await cluster.put(number, b"later")
    (message,) = await asked.receive(max=1)
    await asked.settle(nack=[{"receipt": message["receipt"], "delay_ms": 300}])
    began_s = asyncio.get_running_loop().time()
    (again,) = await asked.receive(max=1, wait_ms=30_000)
    assert again["deliveries"] == 2
    assert asyncio.get_running_loop().time() - began_s > 0.2


@with_brokers(2)
async def test_messages_received_for_a_disconnected_client_are_released(cluster):
    await cluster.make_queue()
    for number in range(PARTITIONS):
        await cluster.put(number, b"%d" % number)

    async def at_once():
        return

    lost = await cluster.brokers[1].abandoned(at_once, max=100)
    assert lost["messages"] == []
    again = {}
    async with asyncio.timeout(LIMIT_S):
        while len(again) < PARTITIONS:
            more = await cluster.brokers[2].receive(max=100)
            again |= {one["value"]: one["deliveries"] for one in more}
            await asyncio.sleep(0.01)
    assert {*again.values()} == {1}, "it does not count as a delivery"


@with_brokers(2)
async def test_a_client_that_goes_while_it_waits_takes_nothing_with_it(cluster):
    await cluster.make_queue()
    gone = asyncio.Event()
    waiting = asyncio.create_task(cluster.brokers[1].abandoned(gone.wait, max=100, wait_ms=20_000))
    await asyncio.sleep(0.1)
    gone.set()
    assert (await waiting)["messages"] == [], "it ends at once"
    for number in range(PARTITIONS):
        await cluster.put(number, b"%d" % number)
    assert len(await cluster.brokers[2].receive(max=100, wait_ms=5_000)) == PARTITIONS


@with_brokers(2)
async def test_an_answer_that_never_came_is_followed_by_a_release(cluster):
    cluster.patch.setattr(queue_owners, "RELEASE_PAUSES_S", (0.01, 0.1))
    await cluster.make_queue()
    number = cluster.topic_owners().index(2)
    await cluster.put(number, b"x")
    node = cluster.brokers[1].node
    calls = node.queue_owners.peers

    async def lose(*asked):
        answered = await type(calls).receive(calls, *asked)
        if any(getattr(one, "acquired", ()) for one in answered.values()):
            raise BrokerUnreachable("the answer was lost")
        return answered

    cluster.patch.setattr(calls, "receive", lose)
    status, problem = await cluster.brokers[1].ask("POST", f"{QUEUE}/receive", {"max": 10})
    assert (status, problem["retriable"]) == (503, True)
    (message,) = await cluster.brokers[2].receive(max=10, wait_ms=5_000)
    assert message["deliveries"] == 2, "long before its lock ends"


@with_brokers(2)
async def test_while_an_owner_is_away_the_messages_of_the_others_come(cluster):
    cluster.patch.setattr(queue_receive, "RETRY_S", 0.05)
    await cluster.make_queue()
    owners = cluster.topic_owners()
    for number in range(PARTITIONS):
        await cluster.put(number, b"%d" % number)

    async def silent(*_asked):
        raise BrokerUnreachable("broker at 127.0.0.1:1 gave no answer")

    cluster.patch.setattr(cluster.brokers[1].node.queue_owners.peers, "_call", silent)
    status, answer = await cluster.brokers[1].ask("POST", f"{QUEUE}/receive", {"max": 100})
    assert status == 200
    there = [number for number, owner in enumerate(owners) if owner == 2]
    here = [str(number) for number, owner in enumerate(owners) if owner == 1]
    assert values(answer["messages"]) == here
    assert [one["partition"] for one in answer["failed"]] == there
    assert all(one["error"]["retriable"] for one in answer["failed"])
    asked = {"max": 100, "wait_ms": 200}
    status, problem = await cluster.brokers[1].ask("POST", f"{QUEUE}/receive", asked)
    assert (status, problem["status"], problem["retriable"]) == (503, 503, True)
    assert "127.0.0.1" in problem["detail"]
    receipt = answer["messages"][0]["receipt"].split(".", 1)[1]
    results = await cluster.brokers[1].settle(ack=[f"{there[0]}.{receipt}"])
    assert (results[0]["ok"], results[0]["retriable"]) == (False, True)


@with_brokers(2)
async def test_after_a_takeover_what_was_not_acknowledged_is_delivered_again(cluster):
    await cluster.make_queue()
    number = cluster.topic_owners().index(2)
    await cluster.put(number, b"done", b"held")
    held = {one["value"]: one["receipt"] for one in await cluster.brokers[1].receive(max=10)}
    assert (await cluster.brokers[1].settle(ack=[held["done"]]))[0]["ok"]
    waiting = asyncio.create_task(cluster.brokers[1].receive(max=10, wait_ms=20_000))
    await asyncio.sleep(0.05)
    await cluster.kill(2)
    (message,) = await waiting
    assert message["value"] == "held"
    (stale,) = await cluster.brokers[1].settle(ack=[held["held"]])
    assert not stale["ok"], "the delivery was the former owner's"
    assert (await cluster.brokers[1].settle(ack=[message["receipt"]]))[0]["ok"]


@with_brokers(2)
async def test_a_group_begins_at_every_broker_though_one_has_enough(cluster):
    await cluster.make_queue(**{"share.auto.offset.reset": "latest"})
    assert await cluster.brokers[1].receive(max=1) == []
    assert set(await cluster.states()) == set(range(PARTITIONS))
    for number in range(PARTITIONS):
        await cluster.put(number, b"%d" % number)
    assert len(await cluster.brokers[1].receive(max=100)) == PARTITIONS


@with_brokers(2)
async def test_a_bounded_receive_ends_there_on_all_brokers(cluster):
    await cluster.make_queue()
    for number in range(PARTITIONS):
        await cluster.put(number, b"a", b"b")
    ends = [{"partition": number, "offset": 1} for number in range(PARTITIONS)]
    asked = {"max": 100, "ends": ends}
    _, answer = await cluster.brokers[1].ask("POST", f"{QUEUE}/receive", asked)
    assert values(answer["messages"]) == ["a"] * PARTITIONS
    assert "failed" not in answer


@with_brokers(2)
async def test_a_second_consumer_is_refused_by_the_owner_at_another_broker(cluster):
    await cluster.make_queue(**{"headrace.share.subscription": "exclusive"})
    number = cluster.topic_owners().index(2)
    await cluster.put(number, b"x")
    (message,) = await cluster.brokers[2].receive(consumer="a")
    assert message["value"] == "x"
    status, problem = await cluster.brokers[1].ask(
        "POST", f"{QUEUE}/receive", {"consumer": "b", "wait_ms": 100}
    )
    assert status == 409, problem
    assert "another consumer has this partition" in problem["detail"]


# --- administration -------------------------------------------------------------------------


@with_brokers(3)
async def test_any_broker_says_where_a_group_stands_on_the_whole_topic(cluster):
    await cluster.make_queue()
    for broker in cluster.brokers.values():
        _, answer = await broker.ask("GET", QUEUE)
        assert answer["partitions"] == [], "it has not begun"
    for number in range(PARTITIONS):
        await cluster.put(number, b"a", b"b", b"c")
    first = await cluster.brokers[1].receive(max=100)
    acked = [one["receipt"] for one in first if one["value"] == "a"]
    assert all(one["ok"] for one in await cluster.brokers[2].settle(ack=acked))
    for broker in cluster.brokers.values():
        _, answer = await broker.ask("GET", QUEUE)
        assert answer["partitions"] == [
            {
                "partition": number,
                "start_offset": 1,
                "end_offset": 3,
                "in_flight": 2,
                "waiting_for_dead_letter_copy": 0,
                "lag": 2,
                "redelivered": 0,
            }
            for number in range(PARTITIONS)
        ]
        assert "failed" not in answer


@with_brokers(2)
async def test_keys_are_parked_listed_and_released_through_any_broker(cluster):
    await cluster.make_queue(**{"headrace.share.key.order": "true"})
    one, other = cluster.brokers[1], cluster.brokers[2]
    body = {"keys": ["hot", "é", "hot"]}
    _, answer = await other.ask("POST", f"{QUEUE}/park?dry_run=true", body)
    assert (answer["parked"], answer["records"]) == (2, 0)
    status, answer = await one.ask("POST", f"{QUEUE}/park", {"keys": ["hot", "é"]})
    assert (status, answer) == (
        200,
        {"topic": TOPIC, "group": GROUP, "dry_run": False, "parked": 2},
    )
    for broker in (one, other):
        _, answer = await broker.ask("GET", f"{QUEUE}/parked")
        listed = sorted((item["partition"], item["key"]) for item in answer["parked"])
        assert listed == [(number, key) for number in range(PARTITIONS) for key in ("hot", "é")]
    assert set(await cluster.states()) == set(range(PARTITIONS)), "it has begun everywhere"
    _, answer = await other.ask("POST", f"{QUEUE}/unpark", {"keys": ["other", "hot", "hot"]})
    assert (answer["released"], answer["keys"]) == (1, ["hot"])
    _, answer = await one.ask("GET", f"{QUEUE}/parked")
    assert {item["key"] for item in answer["parked"]} == {"é"}
    status, _ = await one.ask("POST", f"{QUEUE.replace(GROUP, 'x')}/park", {"keys": ["hot"]})
    assert status == 409, "its settings allow none"


@with_brokers(2)
async def test_parked_keys_are_listed_page_by_page_in_one_order(cluster):
    await cluster.make_queue(**{"headrace.share.key.order": "true"})
    await cluster.brokers[1].ask("POST", f"{QUEUE}/park", {"keys": ["b", "é", "a", "c"]})
    _, whole = await cluster.brokers[1].ask("GET", f"{QUEUE}/parked?limit=1000")
    assert [(one["partition"], one["key"]) for one in whole["parked"]] == [
        (number, key) for number in range(PARTITIONS) for key in ("a", "b", "c", "é")
    ]
    found, token = [], ""
    for turn in range(PARTITIONS * 4):
        broker = cluster.brokers[1 + turn % 2]
        _, answer = await broker.ask("GET", f"{QUEUE}/parked?limit=3{token}")
        assert len(answer["parked"]) <= 3
        found += answer["parked"]
        if "next_page_token" not in answer:
            break
        token = f"&page_token={answer['next_page_token']}"
    assert found == whole["parked"]
    status, _ = await cluster.brokers[1].ask("GET", f"{QUEUE}/parked?page_token=!")
    assert status == 409


@with_brokers(2)
async def test_parked_keys_that_do_not_fit_one_answer_are_listed_all_the_same(cluster):
    cluster.patch.setattr(forwarded_queues, "LISTED_BYTES_MAX", 1)
    await cluster.make_queue(**{"headrace.share.key.order": "true"})
    await cluster.brokers[1].ask("POST", f"{QUEUE}/park", {"keys": ["hot"]})
    _, answer = await cluster.brokers[1].ask("GET", f"{QUEUE}/parked")
    assert [item["partition"] for item in answer["parked"]] == list(range(PARTITIONS))


@with_brokers(2)
async def test_partitions_whose_owner_is_silent_are_listed_as_failed(cluster):
    await cluster.make_queue(**{"headrace.share.key.order": "true"})
    one = cluster.brokers[1]
    assert (await one.ask("POST", f"{QUEUE}/park", {"keys": ["hot"]}))[0] == 200

    async def silent(*_asked):
        raise BrokerUnreachable("broker at 127.0.0.1:1 gave no answer")

    cluster.patch.setattr(one.node.queue_owners.peers, "_call", silent)
    asked = (
        ("GET", QUEUE, None, "partitions"),
        ("GET", f"{QUEUE}/parked", None, "parked"),
        ("POST", f"{QUEUE}/park", {"keys": ["hot"]}, None),
        ("POST", f"{QUEUE}/unpark", {"keys": ["hot"]}, None),
    )
    for method, path, body, listed in asked:
        owners: list[int] = []
        async with asyncio.timeout(60):  # a partition may move to a broker that has just joined
            while not owners or owners != cluster.topic_owners():
                owners = cluster.topic_owners()
                status, answer = await one.ask(method, path, body)
        there = [number for number, owner in enumerate(owners) if owner == 2]
        here = [number for number, owner in enumerate(owners) if owner == 1]
        assert status == 200, answer
        assert [item["partition"] for item in answer["failed"]] == there
        assert all(item["error"]["retriable"] for item in answer["failed"])
        if listed:
            assert [item["partition"] for item in answer[listed]] == here


@with_brokers(2)
async def test_a_frozen_owner_is_waited_for_once(cluster):
    """And not by each call that follows; they name it, and what it owns is failed."""
    await cluster.make_queue()
    one = cluster.brokers[1]
    there = [number for number, owner in enumerate(cluster.topic_owners()) if owner == 2]
    waits = 0

    async def frozen(*_asked):
        nonlocal waits
        waits += 1
        await asyncio.sleep(1)  # as long as it is suspected then
        raise BrokerUnreachable("broker 2 at 127.0.0.1:1 gave no answer in time")

    peers, genuine = one.node.queue_owners.peers, one.node.queue_owners.peers._call
    cluster.patch.setattr(peers, "_call", frozen)
    for _ in range(3):
        status, answer = await one.ask("GET", QUEUE)
        assert status == 200
        assert [item["partition"] for item in answer["failed"]] == there
        assert all("broker 2" in item["error"]["detail"] for item in answer["failed"])
    assert waits == 1
    cluster.patch.setattr(peers, "_call", genuine)
    async with asyncio.timeout(10):
        while "failed" in (await one.ask("GET", QUEUE))[1]:
            await asyncio.sleep(0.1)


@with_brokers(2)
async def test_where_no_owner_can_be_asked_the_answer_is_a_problem(cluster):
    await cluster.make_queue()
    one = cluster.brokers[1]

    async def silent(*_asked):
        raise BrokerUnreachable("broker at 127.0.0.1:1 gave no answer")

    async def slow(*_asked):
        raise StorageUnavailable("the disk does not answer")

    cluster.patch.setattr(one.node.queue_owners.peers, "_call", silent)
    cluster.patch.setattr(one.node.shares, "describe", slow)
    status, problem = await one.ask("GET", QUEUE)
    assert (status, problem["retriable"]) == (503, True)


@with_brokers(2)
async def test_a_partition_that_has_just_moved_is_asked_for_at_its_new_owner(cluster):
    cluster.patch.setattr(queue_owners, "MOVING_PAUSES_S", (0, 0.01, 0.01))
    await cluster.make_queue()
    for number in range(PARTITIONS):
        await cluster.put(number, b"a")
    assert len(await cluster.brokers[1].receive(max=100)) == PARTITIONS
    calls = cluster.brokers[1].node.queue_owners.peers
    refusals = [NotOwner("it has moved"), NotOwner("it has moved")]

    async def moving(*asked):
        answered = await type(calls).describe(calls, *asked)
        if refusals:
            error = refusals.pop()
            return dict.fromkeys(answered, error)
        return answered

    cluster.patch.setattr(calls, "describe", moving)
    _, answer = await cluster.brokers[1].ask("GET", QUEUE)
    assert len(answer["partitions"]) == PARTITIONS
    assert "failed" not in answer
    assert not refusals


@with_brokers(2)
async def test_a_peer_refuses_what_no_broker_would_ask(cluster):
    await cluster.make_queue()
    one, other = cluster.brokers[1].node, cluster.brokers[2].node
    peers, topic_id = one.queue_owners.peers, one.topics.get(TOPIC).id
    (there,) = [broker for broker in one.cluster.brokers() if broker.id == other.config.broker_id]
    mine = cluster.topic_owners().index(1)
    (refused,) = (await peers.describe(there, topic_id, GROUP, [mine])).values()
    assert isinstance(refused, NotOwner)
    with pytest.raises(TopicUnknown):
        await peers.describe(there, topic_id, GROUP, [PARTITIONS])
    with pytest.raises(TopicIdUnknown):
        await peers.list_parked(there, UUID(int=77), GROUP, [0])
    for group_id in ("", "x" * 300):
        with pytest.raises(GroupIdInvalid):
            await peers.list_parked(there, topic_id, group_id, [0])
    for keys in ([b"x"] * 101, [b"x" * 20_000]):
        for call in (peers.park, peers.unpark):
            (refused,) = (await call(there, topic_id, GROUP, keys, [0])).values()
            assert isinstance(refused, RequestInvalid)


# --- groups ----------------------------------------------------------------------------------


@with_brokers(3)
async def test_any_broker_lists_the_groups_of_all(cluster):
    await cluster.make_queue()
    assert await cluster.brokers[1].receive() == []
    for broker in cluster.brokers.values():
        _, answer = await broker.ask("GET", "/v1/groups")
        assert [(one["group"], one["type"]) for one in answer["groups"]] == [(GROUP, "share")]
        assert "failed" not in answer
    _, answer = await cluster.brokers[2].ask("GET", "/v1/groups?type=classic")
    assert answer["groups"] == []


@with_brokers(2)
async def test_groups_are_listed_without_those_of_a_broker_that_cannot_be_asked(cluster):
    await cluster.make_queue()
    assert await cluster.brokers[1].receive() == []

    async def silent(*_asked):
        raise BrokerUnreachable("broker at 127.0.0.1:1 gave no answer")

    peers = cluster.brokers[1].node.services.share_groups.peers
    cluster.patch.setattr(peers, "_call", silent)
    status, answer = await cluster.brokers[1].ask("GET", "/v1/groups")
    assert (status, [one["group"] for one in answer["groups"]]) == (200, [GROUP])
    assert [one["broker"] for one in answer["failed"]] == [2]
