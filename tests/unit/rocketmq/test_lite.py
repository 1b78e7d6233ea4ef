"""Lite topics: many small queues in one topic, of which each client gets those it names."""

from __future__ import annotations

import asyncio

import pytest
from tests.kit.records import TIMESTAMP_MS, append
from tests.unit.rocketmq.rocketmq_rig import on_rocketmq, receive_request
from tests.unit.rocketmq.test_lanes import Telemetry

from headrace.broker.services import configurations
from headrace.broker.services.configurations import ConfigChange
from headrace.broker.services.topic_service import NewTopic
from headrace.broker.shares.share_receive import ReceiveRequest
from headrace.broker.topics import topic_checks
from headrace.coordination.shares import lite_decisions
from headrace.errors import (
    ConfigInvalid,
    CoordinatorLoading,
    GroupKindMismatch,
    PartitionsInvalid,
)
from headrace.metadata.facts import CompanionKind
from headrace.records.attributes import LITE_TOPIC
from headrace.records.codec import Record, encode_batch
from headrace.rocketmq import codes, lite, wire

PARENT = "parent"
GROUP = "lite-workers"
WHERE = {"topic": {"name": PARENT}, "group": {"name": GROUP}}
ADD, REMOVE, SET, LEAVE = range(4)
LOCK_MS = 600_000
"""Of messages that are to be settled: an acknowledgement after the lock's end is refused."""


class Lite:
    """A lite consumer, and a producer of lite topics."""

    def __init__(self, rocket, client_id, group=GROUP) -> None:
        self.rocket, self.client_id, self.group = rocket, client_id, group

    @classmethod
    async def open(cls, rocket, client_id, group=GROUP):
        found = cls(rocket, client_id, group)
        kind = wire.LITE_PUSH_CONSUMER
        assert await rocket.code("Heartbeat", client_id, client_type=kind) == codes.OK
        return found

    async def sync(self, *names, action=ADD, **more):
        fields = WHERE | {"group": {"name": self.group}, "lite_topic_set": names} | more
        return await self.rocket.code(
            "SyncLiteSubscription", self.client_id, action=action, **fields
        )

    async def receive(self, **fields):
        request = receive_request(PARENT, self.group, **fields)
        call = self.rocket.begin("ReceiveMessage", request, self.client_id)
        await asyncio.wait_for(call.over.wait(), 60)
        parts = [wire.response_of("ReceiveMessage").FromString(one) for one in call.sent]
        assert parts[0].status.code in {codes.OK, codes.MESSAGE_NOT_FOUND}, parts[0].status
        return [one.message for one in parts if one.HasField("message")]

    async def give_back(self, message):
        """Have it delivered again: at once, unless its owner has changed, which forgets locks."""
        where = WHERE | {"group": {"name": self.group}}
        receipt = message.system_properties.receipt_handle
        await self.rocket.ask("ChangeInvisibleDuration", **where, receipt_handle=receipt)

    async def bodies(self, **fields):
        return sorted(one.body.decode() for one in await self.receive(**fields))

    async def take(self, **fields):
        """Receive and acknowledge, however long this process is held up in between."""
        got = await self.receive(**{"invisible_ms": LOCK_MS} | fields)
        if got:
            found = await self.rocket.acknowledge(PARENT, self.group, *got)
            assert set(found) == {codes.OK}
        return [one.body.decode() for one in got]


def subscriptions(rocket, client_id):
    """What the client's broker counts."""
    (client,) = [one for one in rocket.messaging.clients if one.id == client_id]
    return client.lite


async def send(rocket, name, *bodies):
    for body in bodies:
        kind = {"message_type": wire.LITE, "lite_topic": name}
        await rocket.send(PARENT, body.encode(), **kind)


@on_rocketmq
async def test_a_client_gets_the_lite_topics_that_it_names_and_each_from_its_first_message(rocket):
    await rocket.create(PARENT, "lite", 4)
    for name in "abc":
        await send(rocket, name, *(f"{name}{n}" for n in range(3)))
    one = await Lite.open(rocket, "one")
    assert await one.sync("a", "b") == codes.OK
    got = await one.receive()
    assert sorted(one.body for one in got) == [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]
    for message in got:
        system = message.system_properties
        assert (system.message_type, system.lite_topic) == (wire.LITE, message.body.decode()[:1])
        assert (system.delivery_attempt, list(system.keys)) == (1, [])
    assert await one.receive() == [], "nothing comes twice"
    assert set(await rocket.acknowledge(PARENT, GROUP, *got)) == {codes.OK}
    await send(rocket, "a", "a3")
    await send(rocket, "c", "c3")
    assert await one.take() == ["a3"]
    assert await one.sync("b", action=REMOVE) == codes.OK
    await send(rocket, "b", "b3", "b4")
    assert await one.take() == []
    assert await one.sync("b") == codes.OK
    assert await one.take() == ["b3", "b4"], "the group has its position in b"
    other = await Lite.open(rocket, "other", "another group")
    assert await other.sync("b", "c", action=SET) == codes.OK
    assert await other.take(batch_size=3) != []
    simple = await rocket.receive(PARENT, "all", batch_size=32)
    assert len(simple) == 13, "they are messages of the parent, too"


@on_rocketmq
async def test_of_two_clients_one_at_a_time_gets_a_lite_topic_and_in_order(rocket):
    await rocket.create(PARENT, "lite")
    one, two = await Lite.open(rocket, "one"), await Lite.open(rocket, "two")
    for client in (one, two):
        assert await client.sync("a") == codes.OK
    await send(rocket, "a", "a0", "a1")
    (first,) = await one.receive(batch_size=1)
    assert await two.take() == [], "one has a0"
    await send(rocket, "a", "a2")
    await rocket.acknowledge(PARENT, GROUP, first)
    assert await two.take() == ["a1", "a2"]
    assert await one.sync(action=LEAVE) == codes.OK
    await send(rocket, "a", "a3")
    assert await one.take() == []
    assert await rocket.code("NotifyClientTermination", "two") == codes.OK
    while (
        rocket.node.shares.lite._host.get(rocket.node.topics.get(PARENT), 0)
        .shard.machine.groups[GROUP]
        .clients
    ):
        await asyncio.sleep(0)
    two = await Lite.open(rocket, "two")
    assert await two.take() == [], "it has ended"


@on_rocketmq
async def test_what_is_not_acknowledged_comes_again_before_what_follows(rocket):
    await rocket.create(PARENT, "lite")
    await rocket.create("dlq.lite-workers")
    one = await Lite.open(rocket, "one")
    assert await one.sync("a", "b") == codes.OK
    await send(rocket, "a", "a0", "a1")
    (first,) = await one.receive(batch_size=1)
    handle = {"receipt_handle": first.system_properties.receipt_handle}
    changed = wire.request_of("ChangeInvisibleDuration")(**WHERE, **handle)
    wire.set_ms(changed.invisible_duration, 50)
    call = rocket.begin("ChangeInvisibleDuration", changed, "one")
    await asyncio.wait_for(call.over.wait(), 30)
    again = await one.receive(wait_ms=30_000)
    assert [one.body for one in again] == [b"a0", b"a1"]
    assert [one.system_properties.delivery_attempt for one in again] == [2, 1]
    forwarded = await rocket.code(
        "ForwardMessageToDeadLetterQueue", "one", **WHERE,
        receipt_handle=again[0].system_properties.receipt_handle,
    )  # fmt: skip
    assert forwarded == codes.OK
    assert await rocket.acknowledge(PARENT, GROUP, again[1]) == [codes.OK]
    assert await rocket.acknowledge(PARENT, GROUP, again[1]) == [codes.OK], "as before"
    (letter,) = await rocket.receive("dlq.lite-workers", "readers", wait_ms=30_000)
    assert letter.body == b"a0"
    await send(rocket, "a", "a2")
    assert await one.take(wait_ms=30_000) == ["a2"]


@on_rocketmq
async def test_a_waiting_client_gets_what_comes_and_a_repeated_receive_the_same(rocket):
    await rocket.create(PARENT, "lite", 2)
    one = await Lite.open(rocket, "one")
    assert await one.sync("a") == codes.OK
    waiting = asyncio.ensure_future(one.receive(wait_ms=60_000, auto_renew=True, attempt_id="x"))
    await asyncio.sleep(0)
    await send(rocket, "b", "b0")
    await send(rocket, "a", "a0")
    assert [one.body for one in await waiting] == [b"a0"]
    again = await one.receive(auto_renew=True, attempt_id="x")
    assert [one.system_properties.delivery_attempt for one in again] == [1]


@on_rocketmq
async def test_what_cannot_be_had_is_refused_with_its_code(rocket):
    await rocket.create(PARENT, "lite")
    await rocket.create("jobs")
    one = await Lite.open(rocket, "one")
    for name in ("a.b", "a/b", "x" * 65, " "):
        kind = {"message_type": wire.LITE, "lite_topic": name}
        assert await rocket.send_code(PARENT, **kind) == codes.ILLEGAL_LITE_TOPIC
        assert await one.sync(name) == codes.ILLEGAL_LITE_TOPIC
    assert await one.sync("x" * 64) == codes.OK
    conflict = codes.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert await rocket.send_code(PARENT) == conflict
    kind = {"message_type": wire.LITE, "lite_topic": "a"}
    assert await rocket.send_code("jobs", **kind) == conflict
    on_jobs = WHERE | {"topic": {"name": "jobs"}}
    assert await rocket.code("SyncLiteSubscription", **on_jobs) == codes.ILLEGAL_TOPIC
    assert await one.sync("a", action=7) == codes.BAD_REQUEST
    assert await one.sync("a", offset_option={"policy": 2}) == codes.UNSUPPORTED
    assert await one.sync("a", offset_option={"policy": 0}) == codes.OK
    many = [f"{number:036}" for number in range(lite.SUBSCRIPTIONS_MAX)]
    assert await one.sync(*many, action=SET) == codes.OK, "clients repeat all at once"
    assert await one.sync("one-more") == codes.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await one.sync(*many, "one-more", action=SET) == codes.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert await one.sync(*many, *many) == codes.BAD_REQUEST
    assert await one.sync(many[0], action=REMOVE) == codes.OK
    assert await one.sync("one-more") == codes.OK
    request = receive_request(PARENT, GROUP)
    code, _none = await rocket.stream("ReceiveMessage", request, client_id="plain")
    assert code == codes.ILLEGAL_CONSUMER_GROUP, "a plain consumer in a group of lite topics"
    assert await rocket.receive(PARENT, "plain group") == []
    assert await Lite(rocket, "one", "plain group").sync("a") == codes.ILLEGAL_CONSUMER_GROUP
    topic = rocket.node.topics.get(PARENT)
    asked = ReceiveRequest(GROUP, "member", 1, 1_000, owner="http:worker")
    with pytest.raises(GroupKindMismatch):
        await rocket.node.shares.receive(topic, 0, asked)
    with pytest.raises(GroupKindMismatch):
        await rocket.node.shares.begin(topic, 0, GROUP)
    with pytest.raises(CoordinatorLoading):  # an owner that does not know the settings yet
        await rocket.node.shares.begin(topic, 0, "new group", takes_lite=True)
    settings = {"headrace_share_lite": "true", "errors_deadletterqueue_topic_name": PARENT}
    await rocket.set_group("own letters", **settings)
    two = await Lite.open(rocket, "two", "own letters")
    assert await two.sync("a") == codes.BAD_REQUEST
    assert not rocket.node.services.share_groups.has("own letters")
    with pytest.raises(GroupKindMismatch):
        await rocket.node.shares.move_start(topic, 0, GROUP, 0)
    with pytest.raises(PartitionsInvalid):
        await rocket.node.services.topics.add_partitions(PARENT, 2)


@on_rocketmq
async def test_a_client_that_returns_at_once_keeps_what_it_subscribes_to_then(rocket):
    await rocket.create(PARENT, "lite", 2)
    one = await Lite.open(rocket, "one")
    assert await one.sync("a", "b") == codes.OK
    subscriptions = rocket.node.services.lite_subscriptions
    sync, leaves, may_leave = subscriptions.sync, [], asyncio.Event()

    async def late(*asked):
        if asked[3] == LEAVE:
            leaves.append(asyncio.current_task())
            await may_leave.wait()
        await sync(*asked)

    subscriptions.sync = late
    assert await rocket.code("NotifyClientTermination", "one") == codes.OK
    again = await Lite.open(rocket, "one")
    assert await again.sync("b", "c") == codes.OK
    may_leave.set()
    (leave,) = leaves
    await leave
    for name in "abc":
        await send(rocket, name, name)
    assert sorted(await again.take()) == ["b", "c"]


async def lag(rocket):
    """(as a queue's position, as a group's offset) of the partition, and in what is in memory."""
    services, topic = rocket.node.services, rocket.node.topics.get(PARENT)
    position = (await services.queues.describe(topic, GROUP))[0]
    (offset,) = await services.all_groups.offsets(GROUP)
    (now,), _is_cut, _failed = await services.lags.now()
    assert (position.lag, position.start_offset) == (offset.lag, offset.offset)
    assert now.group == GROUP
    return position, now.records


@on_rocketmq
async def test_the_lag_of_a_group_is_what_is_left_of_its_lite_topics(rocket):
    await rocket.create(PARENT, "lite")
    one = await Lite.open(rocket, "one")
    for name in "abc":
        await send(rocket, name, *(f"{name}{n}" for n in range(3)))
    assert await one.sync("a", "b") == codes.OK
    (first,) = await one.receive(batch_size=1)
    position, records = await lag(rocket)
    assert (position.start_offset, position.lag, position.in_flight, records) == (0, 6, 1, 6)
    await rocket.acknowledge(PARENT, GROUP, first)
    assert await lag(rocket) == (position._replace(start_offset=1, lag=5, in_flight=0), 5)
    assert len(await one.take()) == 5
    assert await lag(rocket) == (
        position._replace(start_offset=9, lag=0, in_flight=0), 0,
    )  # fmt: skip
    assert await rocket.code("NotifyClientTermination", "one") == codes.OK
    await send(rocket, "a", "a3", "a4")
    await send(rocket, "c", "c3")
    assert (await rocket.node.services.lags.now())[0][0].records == 0, "known the next time"
    position, records = await lag(rocket)
    assert (position.start_offset, position.lag, records) == (9, 2, 2), "c is not the group's"


@on_rocketmq
async def test_in_an_exclusive_group_the_last_client_is_the_only_one_and_the_former_is_told(rocket):
    await rocket.create(PARENT, "lite", 4)
    stream = Telemetry(rocket)
    settings = {"client_type": wire.LITE_PUSH_CONSUMER, "subscription": {"group": WHERE["group"]}}
    answer = (await stream.ask(settings)).settings.subscription
    assert (answer.fifo, answer.lite_subscription_quota, answer.max_lite_topic_size) == (
        True, 2_000, 64,
    )  # fmt: skip
    await rocket.set_group(GROUP, **{"headrace.share.subscription": "exclusive"})
    one, two = Lite(rocket, "client@1"), await Lite.open(rocket, "two")
    assert await one.sync("a", "b") == codes.OK
    await rocket.create("other", "lite")
    assert await one.sync("a", topic={"name": "other"}) == codes.OK
    stream.call.arrived.clear()
    assert await two.sync("a") == codes.OK
    await asyncio.wait_for(stream.call.arrived.wait(), 30)
    command = wire.TelemetryCommand.FromString(stream.call.sent[-1])
    assert command.notify_unsubscribe_lite_command.lite_topic == "a"
    assert subscriptions(rocket, "client@1") == {(PARENT, GROUP): {"b"}, ("other", GROUP): {"a"}}
    await send(rocket, "a", "a0")
    await send(rocket, "b", "b0")
    assert await one.take() == ["b0"]
    assert await two.take() == ["a0"]


@on_rocketmq
async def test_a_client_that_waits_is_woken_by_its_own_lite_topics_alone(rocket):
    await rocket.create(PARENT, "lite")
    one, two = await Lite.open(rocket, "one"), await Lite.open(rocket, "two")
    assert await one.sync("a") == codes.OK
    assert await two.sync("b") == codes.OK
    receives = 0
    lite_receive = rocket.node.shares.lite.receive

    async def counted(*arguments):
        nonlocal receives
        receives += 1
        return await lite_receive(*arguments)

    rocket.node.shares.lite.receive = counted
    waiting = asyncio.ensure_future(one.bodies(wait_ms=60_000))
    while not receives:
        await asyncio.sleep(0)
    for number in range(20):
        await send(rocket, "b", f"b{number}")
    assert len(await two.take()) == 20
    assert receives == 2, "the first one of each"
    await send(rocket, "a", "a0")
    assert await waiting == ["a0"]
    assert receives == 3


async def append_named(rocket, *names, timestamp_ms=TIMESTAMP_MS):
    """One batch of a producer that is not RocketMQ's, whose headers are not checked."""
    records = [
        Record(at, timestamp_ms, name, b"%d" % at, [(LITE_TOPIC, name)])
        for at, name in enumerate(names)
    ]
    log = rocket.node.topics.get(PARENT).require_log(0)
    return await append(log, encode_batch(records))


@on_rocketmq
async def test_a_record_without_a_legal_name_is_skipped_and_hides_no_other_one(rocket):
    await rocket.create(PARENT, "lite")
    one = await Lite.open(rocket, "one")
    assert await one.sync("a", "b") == codes.OK
    long = b"x" * 400_000
    await append_named(rocket, b"a", b"\xff", b"", None, long, b"no name", b"b")
    assert await one.bodies() == ["0", "6"]
    await append_named(rocket, b"\xff")
    assert await one.bodies() == []
    hosted = rocket.node.shares.lite._host.get(rocket.node.topics.get(PARENT), 0)
    assert {*hosted.shard.machine.index.oldest()} == {"a", "b"}
    assert hosted.lite.skipped_count == 4


@on_rocketmq
async def test_what_compaction_or_retention_removed_is_passed_over(rocket):
    await rocket.create(PARENT, "lite")
    node = rocket.node
    topic = node.topics.get(PARENT)
    compact = ConfigChange("cleanup.policy", configurations.SET, "compact")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_checks, "check_lite", lambda *_configs: None)  # as an earlier version
        await node.services.configurations.change_topic(PARENT, [compact])
    one = await Lite.open(rocket, "one")
    assert await one.sync("a", "b") == codes.OK
    await send(rocket, "a", *(f"a{number}" for number in range(50)))
    await send(rocket, "b", "b0", "b1")
    assert await one.take(batch_size=1) == ["a0"], "all are known"
    log = topic.require_log(0)
    await log.lifecycle_host.roll_now()
    await node.compactor.round()
    assert node.compactor.removed_records == 50
    assert await one.bodies(batch_size=1) == ["b1"]
    assert await one.bodies(batch_size=1) == ["a49"]
    two = await Lite.open(rocket, "two", "another group")
    assert await two.sync("a", "b") == codes.OK
    await log.trim(50)
    assert await two.bodies() == ["b1"]
    await log.trim(52)
    await send(rocket, "a", "a5")
    assert await two.take() == ["a5"]


@on_rocketmq
async def test_only_what_needs_the_group_begins_it_and_a_deleted_one_stays_so(rocket):
    await rocket.create(PARENT, "lite")
    groups, topic = rocket.node.services.share_groups, rocket.node.topics.get(PARENT)
    one = await Lite.open(rocket, "one")
    for action in (REMOVE, LEAVE):
        assert await one.sync("a", action=action) == codes.OK
        assert not groups.has(GROUP)
    assert not topic.require_log(0).has_companion(CompanionKind.LITE)
    assert await one.sync("a") == codes.OK
    assert groups.has(GROUP)
    await send(rocket, "a", "a0")
    (held,) = await one.receive()
    (result,) = await rocket.node.services.groups.delete([GROUP])
    assert result.error is None
    assert not groups.has(GROUP)
    for action in (REMOVE, LEAVE):
        assert await one.sync("a", action=action) == codes.OK
    found = await rocket.acknowledge(PARENT, GROUP, held)
    assert found == [codes.INVALID_RECEIPT_HANDLE]
    assert not groups.has(GROUP)
    assert not rocket.node.shares.lite._host.get(topic, 0).shard.machine.groups
    assert await one.sync("a", action=SET) == codes.OK
    assert groups.has(GROUP)
    assert await one.take() == ["a0"]


@on_rocketmq
async def test_the_limit_is_of_all_that_a_client_subscribes_to_however_it_asks(rocket):
    await rocket.create(PARENT, "lite", 2)
    await rocket.create("other", "lite")
    one, also = await Lite.open(rocket, "one"), Lite(rocket, "one", "another group")
    parts = [[f"{part}-{number}" for number in range(900)] for part in range(4)]
    refused = codes.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    found = await asyncio.gather(*(one.sync(*names) for names in parts))
    assert sorted(found) == sorted([codes.OK, codes.OK, refused, refused])
    assert len(subscriptions(rocket, "one")[PARENT, GROUP]) == 1_800
    assert await also.sync(*parts[0]) == refused
    assert await one.sync(*parts[0], topic={"name": "other"}) == refused
    assert await one.sync(*parts[0][:200], topic={"name": "other"}) == codes.OK
    assert await one.sync("one-more") == refused
    assert await one.sync(*parts[3], "one-more", action=SET) == codes.OK
    assert subscriptions(rocket, "one")[PARENT, GROUP] == {*parts[3], "one-more"}
    assert await also.sync(*parts[0]) == refused
    assert await one.sync(action=LEAVE) == codes.OK
    assert await also.sync(*parts[0]) == codes.OK


@on_rocketmq
async def test_what_owners_do_not_confirm_does_not_grow_however_often_a_client_repeats_it(rocket):
    await rocket.create(PARENT, "lite")
    one = await Lite.open(rocket, "one")
    assert await one.sync("a") == codes.OK

    async def fail(*_arguments):
        raise CoordinatorLoading("the owner cannot say")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocket.node.services.lite_subscriptions, "sync", fail)
        for turn in range(9):
            names = [f"{turn}-{number}" for number in range(lite.SUBSCRIPTIONS_MAX)]
            assert await one.sync(*names, action=SET) != codes.OK
    assert len(subscriptions(rocket, "one")[PARENT, GROUP]) <= 2 * lite.SUBSCRIPTIONS_MAX
    held = [one for one in subscriptions(rocket, "one")[PARENT, GROUP] if one != "a"]
    assert await one.sync(*held[:2], action=SET) == codes.OK
    assert subscriptions(rocket, "one")[PARENT, GROUP] == set(held[:2])


@on_rocketmq
async def test_a_client_that_is_displaced_while_it_subscribes_is_not_counted_as_before(rocket):
    await rocket.create(PARENT, "lite")
    one, two = await Lite.open(rocket, "one"), await Lite.open(rocket, "two")
    assert await one.sync("a") == codes.OK
    await rocket.set_group(GROUP, **{"headrace.share.subscription": "exclusive"})
    subscribe = rocket.node.services.lite_subscriptions.sync

    async def slow(*arguments):
        await subscribe(*arguments)
        rocket.node.services.lite_subscriptions.sync = subscribe
        assert await two.sync("a") == codes.OK

    rocket.node.services.lite_subscriptions.sync = slow
    assert await one.sync("b") == codes.OK
    assert subscriptions(rocket, "one") == {(PARENT, GROUP): {"b"}}
    assert subscriptions(rocket, "two") == {(PARENT, GROUP): {"a"}}


@on_rocketmq
async def test_what_a_client_subscribes_to_outlives_a_reload_of_the_partitions_state(rocket):
    await rocket.create(PARENT, "lite")
    one = await Lite.open(rocket, "one")
    assert await one.sync("a", "b") == codes.OK
    assert await one.sync("b", action=REMOVE) == codes.OK
    hosted = rocket.node.shares.lite._host.get(rocket.node.topics.get(PARENT), 0)
    hosted.shard._drop(CoordinatorLoading("the log accepts nothing"))
    for name in "ab":
        await send(rocket, name, name)
    assert await one.take(wait_ms=30_000) == ["a"]
    assert await one.take() == []


@on_rocketmq
async def test_a_request_that_an_owner_refuses_adds_nothing_anywhere(rocket):
    await rocket.create(PARENT, "lite", 2)
    one = await Lite.open(rocket, "one")
    assert await one.sync("a") == codes.OK
    names = [f"n{number}" for number in range(8)]
    with pytest.MonkeyPatch.context() as patch:
        # There is room for them in neither, or in one partition only.
        for most in range(1, len(names) + 2):
            patch.setattr(lite_decisions, "SUBSCRIPTIONS_MAX", most)
            if await one.sync(*names) == codes.OK:
                break
            assert subscriptions(rocket, "one") == {(PARENT, GROUP): {"a"}}
            for number in range(2):
                topic = rocket.node.topics.get(PARENT)
                hosted = rocket.node.shares.lite._host.get(topic, number)
                group = hosted.shard.machine.groups.get(GROUP)
                assert group is None or not {*group.subscribers} - {"a"}
        else:
            pytest.fail("all are refused")
    assert most > 1
    assert subscriptions(rocket, "one") == {(PARENT, GROUP): {"a", *names}}


@on_rocketmq
async def test_a_topic_of_lite_topics_is_not_compacted_whichever_comes_first(rocket):
    topics, configs = rocket.node.services.topics, rocket.node.services.configurations
    lite_type = {"headrace.message.type": "lite"}
    compacted = {"cleanup.policy": "compact,delete"}
    with pytest.raises(ConfigInvalid, match="keeps one message of each lite topic"):
        await topics.create(NewTopic("both", 1, -1, lite_type | compacted))
    for name, first, then in (("one", lite_type, compacted), ("two", compacted, lite_type)):
        await topics.create(NewTopic(name, 1, -1, first))
        ((key, value),) = then.items()
        change = ConfigChange(key, configurations.SET, value)
        with pytest.raises(ConfigInvalid, match="keeps one message of each lite topic"):
            await configs.change_topic(name, [change])
    await rocket.create("neither", "lite")


@on_rocketmq
async def test_a_trace_shows_the_state_of_a_message_in_each_group_of_its_lite_topic(rocket):
    await rocket.create(PARENT, "lite")
    one = await Lite.open(rocket, "one")
    await Lite.open(rocket, "other", "another group")
    assert await one.sync("a") == codes.OK
    await send(rocket, "a", "a0", "a1", "a2")
    await send(rocket, "b", "b0")
    taken = await one.receive(batch_size=2)
    await rocket.acknowledge(PARENT, GROUP, taken[0])

    async def states(offset):
        topic = rocket.node.topics.get(PARENT)
        trace = await rocket.node.services.search.trace_by_offset(topic, 0, offset, 5_000)
        (message,) = trace.messages
        return [(state.group_id, state.state, state.deliveries) for state in message.groups]

    assert await states(0) == [(GROUP, "finished", 0)]
    assert await states(1) == [(GROUP, "acquired", 1)]
    assert await states(2) == [(GROUP, "waiting", 0)]
    assert await states(3) == [], "no group has to do with b"


@on_rocketmq
async def test_the_subscriptions_of_a_user_leave_room_for_others(rocket):
    await rocket.create(PARENT, "lite")
    names, full = [f"n{number}" for number in range(12)], codes.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    clients = [await Lite.open(rocket, f"{n}", f"g{n}") for n in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lite, "ALL_SUBSCRIPTIONS_MAX", 30)
        found = [await one.sync(*names, action=SET) for one in clients]
        assert found == [codes.OK, codes.OK, full]
        assert await clients[0].sync(*names, action=SET) == codes.OK, "it repeats what it has"
        assert await clients[0].sync(*names[:2], action=SET) == codes.OK
        assert await clients[2].sync(*names[:6]) == codes.OK
        assert await clients[2].sync(*names[6:]) == full
        rocket.messaging.clients.leave(next(o.key for o in rocket.messaging.clients if o.id == "1"))
        assert await clients[2].sync(*names[6:]) == codes.OK, "one that has left holds none"
