"""Every RPC of RocketMQ's, with a client without rights, and with just those of its row."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.kit.broker import broker
from tests.unit.rocketmq.rocketmq_rig import Rocket, TestConnection, receive_request
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.access import unauthorized
from headrace.broker.security.acls import Acl, Entry, Pattern, Permission
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services import client_quotas, fair_shares
from headrace.broker.services.client_quotas import ThrottleFigures
from headrace.broker.services.topic_shares import TopicShares
from headrace.coordination.quotas.entities import PRODUCER
from headrace.errors import GroupKindMismatch
from headrace.metadata.facts import CompanionKind
from headrace.rocketmq import codes, wire
from headrace.rocketmq.access import ACCESS
from headrace.rocketmq.messaging import STORED
from headrace.rocketmq.names import DEAD_LETTERS

TOPIC, GROUP = "secret-topic", "secret-group"
NAMES = {ResourceType.TOPIC: TOPIC, ResourceType.GROUP: GROUP}
CONFIG = {"offsets_partition_count": 2, "authorizer": "acl", "super_users": "User:root"}
OF_CLIENTS = ("Heartbeat", "NotifyClientTermination", "Telemetry")
"""Everybody may call these; what a client learns by them depends on its rights."""


def request_for(rpc: str, topic: str = TOPIC) -> object:
    """A request that names the topic and the group wherever it can."""
    request = wire.request_of(rpc)()
    fields = request.DESCRIPTOR.fields_by_name
    if "group" in fields:
        request.group.name = GROUP
    if "topic" in fields:
        request.topic.name = topic
    if "message_queue" in fields:
        request.message_queue.topic.name = topic
    if "messages" in fields:
        request.messages.add().topic.name = topic
    if rpc == "ReceiveMessage":
        request.invisible_duration.seconds = 10
        request.long_polling_timeout.seconds = 0
    return request


async def code_of(rocket: Rocket, rpc: str, name: str, topic: str = TOPIC) -> int:
    session = ClientSession("ROCKETMQ", "10.0.0.7", Principal(name))
    call = rocket.begin(rpc, request_for(rpc, topic), session=session)
    await asyncio.wait_for(call.over.wait(), 30)
    return int(wire.response_of(rpc).FromString(call.sent[0]).status.code)


def rules(name: str, needs) -> list[Acl]:
    return [
        Acl(
            Pattern(need.kind, NAMES[need.kind]),
            Entry(f"User:{name}", "*", need.operation, Permission.ALLOW),
        )
        for need in needs
    ]


async def test_every_rpc_has_a_row():
    async with broker() as rig:
        served = {path.rpartition("/")[2] for path in Rocket(rig).messaging.methods}
        assert served >= STORED
        assert served == set(ACCESS)


@pytest.mark.parametrize("rpc", [name for name in ACCESS if name not in OF_CLIENTS])
async def test_an_rpc_needs_just_the_rights_of_its_row(rpc):
    async with broker(BrokerConfig(**CONFIG)) as rig:
        rocket = Rocket(rig)
        await rocket.create(TOPIC)
        assert await code_of(rocket, rpc, "nobody") == codes.FORBIDDEN
        missing = await code_of(rocket, rpc, "nobody", "no-such-topic")
        assert missing == codes.FORBIDDEN, "nothing is learned of what exists"
        needs = ACCESS[rpc].needs
        for left_out in range(len(needs)):
            name = f"without-{left_out}"
            some = rules(name, needs[:left_out] + needs[left_out + 1 :])
            await rig.node.services.access.create(some)
            assert await code_of(rocket, rpc, name) == codes.FORBIDDEN
        await rig.node.services.access.create(rules("alice", needs))
        assert await code_of(rocket, rpc, "alice") != codes.FORBIDDEN
        assert await code_of(rocket, rpc, "root") != codes.FORBIDDEN


@pytest.mark.parametrize("rpc", [name for name in ACCESS if name not in OF_CLIENTS])
async def test_a_client_learns_nothing_of_what_another_tenant_has(rpc):
    """Neither one of a tenant nor one of the default tenant with all rights there. The tenant's own
    client uses the same names."""

    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice;beta=User:bob")) as rig:
        rocket = Rocket(rig)
        await rocket.create(f"«acme»{TOPIC}")
        await rocket.set_group(f"«acme»{GROUP}", share_auto_offset_reset="earliest")
        await rig.node.services.access.create(
            [
                Acl(Pattern(kind, "*"), Entry("User:dave", "*", one, Permission.ALLOW))
                for kind in NAMES
                for one in Operation
                if one > Operation.ALL
            ]
        )
        for who in ("bob", "dave"):
            for prefix in ("", "«acme»"):
                sees = await answer_of(rocket, rpc, who, prefix + TOPIC)
                absent = await answer_of(rocket, rpc, who, prefix + "absent-topic")
                assert sees.replace(TOPIC, "absent-topic") == absent
                assert prefix or "«" not in sees
                assert who == "dave" or rig.node.cluster_id not in sees + absent
        own = await answer_of(rocket, rpc, "alice", TOPIC)
        assert "«" not in own
        assert rig.node.cluster_id not in own
        code = await code_of(rocket, rpc, "alice")
        assert code not in {codes.FORBIDDEN, codes.TOPIC_NOT_FOUND}
        assert TOPIC not in rig.node.topics.by_name


async def answer_of(rocket: Rocket, rpc: str, name: str, topic: str) -> str:
    session = ClientSession("ROCKETMQ", "10.0.0.7", Principal(name))
    call = rocket.begin(rpc, request_for(rpc, topic), session=session)
    await asyncio.wait_for(call.over.wait(), 30)
    return repr([str(wire.response_of(rpc).FromString(one)) for one in call.sent])


async def test_tenants_with_equal_names_send_receive_settle_and_dead_letter_apart():
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice;beta=User:bob")) as rig:
        rocket = Rocket(rig)
        tenants = {"acme": "alice", "beta": "bob"}
        for tenant in tenants:
            await rocket.create(f"«{tenant}»{TOPIC}", "mixed")
        for tenant, name in tenants.items():
            rocket.session = ClientSession("ROCKETMQ", "10.0.0.7", Principal(name))
            await rocket.send(TOPIC, tenant.encode())
            half = await rocket.send(TOPIC, b"half", message_type=wire.TRANSACTION)
            assert half.transaction_id
        hosted = [
            one for one in rig.node.timers.host.hosted if one.topic.name[-len(TOPIC) :] == TOPIC
        ]
        halves = [(one, half) for one in hosted for half in one.state.halves.saved()]
        assert len(halves) == 2
        for one, half in halves:  # as if their check-backs were due
            one.state.halves._asked.setdefault(half.group, {})[half.number] = None
        for tenant, name in tenants.items():
            rocket.session = ClientSession("ROCKETMQ", "10.0.0.7", Principal(name))
            (message,) = await rocket.receive(TOPIC, GROUP, wait_ms=30_000)
            assert (message.body, message.topic.name) == (tenant.encode(), TOPIC)
            receipt = message.system_properties.receipt_handle
            where = {"group": {"name": GROUP}, "topic": {"name": TOPIC}}
            forwarded = await rocket.ask(
                "ForwardMessageToDeadLetterQueue", **where, receipt_handle=receipt
            )
            assert forwarded.status.code == codes.OK
            letters = f"{DEAD_LETTERS}{GROUP}"
            name_of_letters = f"«{tenant}»dlq.{GROUP}"
            while name_of_letters not in rig.node.topics.by_name:
                await asyncio.sleep(0.01)
            (letter,) = await rocket.receive(letters, "readers", wait_ms=30_000)
            assert letter.body == tenant.encode()
            assert "«" not in str(letter)
            polled, _failed = await rig.node.services.timers.poll_checks(
                f"«{tenant}»{TOPIC}", 10, 0
            )
            assert all(one.topic == f"«{tenant}»{TOPIC}" for one in polled)


async def test_a_dead_letter_topic_needs_rights_by_its_own_name():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        rocket = Rocket(rig)
        name = f"{DEAD_LETTERS}{GROUP}"
        assert await code_of(rocket, "QueryRoute", "nobody", name) == codes.FORBIDDEN
        assert await code_of(rocket, "QueryRoute", "root", name) == codes.TOPIC_NOT_FOUND


def test_the_error_of_a_missing_right_is_forbidden():
    session = ClientSession("ROCKETMQ", "10.0.0.7", Principal("nobody"))
    for need in ACCESS["ReceiveMessage"].needs:
        error = unauthorized(session, need.operation, need.kind, "x")
        assert codes.code_of(error) == codes.FORBIDDEN


async def test_a_slowed_tenants_message_is_stored_at_once_and_answered_late(monkeypatch):
    """While it waited, it would hold memory that all clients share."""
    monkeypatch.setattr(client_quotas, "ANSWER_WAIT_MS_MAX", 600_000)
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice")) as rig:
        rocket = Rocket(rig)
        await rocket.create(f"«acme»{TOPIC}")
        rocket.session = ClientSession("ROCKETMQ", "10.0.0.7", Principal("alice"))
        limits = {"stored_bytes": 1_000_000}
        await rig.node.access.tenants.change("acme", limits=limits, when_full="slow")
        monkeypatch.setattr(rig.node.tenant_rates.counts, "slowed_ms", lambda _tenant: 900_000)
        request = wire.request_of("SendMessage")(messages=[rocket.message(TOPIC)])
        call = rocket.begin("SendMessage", request)
        throttled = rig.node.quotas.throttled[PRODUCER]
        await until(lambda: throttled == ThrottleFigures(1, 600_000))
        assert rig.node.topics.get(f"«acme»{TOPIC}").partitions[0].high_watermark == 1
        await until(lambda: rocket.messaging.in_progress.bytes == 0)
        assert not call.is_finished
        call.cancel()


async def test_a_client_over_its_quota_is_answered_late_before_it_is_refused():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        rocket = Rocket(rig)
        await rocket.create(TOPIC)
        rocket.session = ClientSession("ROCKETMQ", "10.0.0.7", Principal("root"))
        await rig.node.quotas.change([("user", "root")], {PRODUCER: 1_000})
        throttled = rig.node.quotas.throttled[PRODUCER]
        assert await rocket.send_code(TOPIC, b"x" * 100) == codes.OK
        assert throttled.count == 0  # within the burst
        assert await rocket.send_code(TOPIC, b"x" * 1_500) == codes.OK
        assert throttled.count == 1
        assert await rocket.send_code(TOPIC, b"x" * 100_000) == codes.OK  # it has paid meanwhile
        assert throttled.count == 2
        assert await rocket.send_code(TOPIC) == codes.TOO_MANY_REQUESTS
        rig.clock.ahead_ms += 200_000
        assert await rocket.send_code(TOPIC) == codes.OK


async def test_a_connection_above_its_tenants_limit_is_not_served():
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice")) as rig:
        rocket = Rocket(rig)
        await rocket.create(f"«acme»{TOPIC}")
        await rig.node.access.tenants.change("acme", limits={"connections": 1})
        codes_of = []
        for _ in range(2):
            rocket.session = ClientSession("ROCKETMQ", "10.0.0.7", Principal("alice"))
            rocket.connection = TestConnection()
            rig.node.services.connections.open(rocket.connection, "ROCKETMQ", "10.0.0.7")
            answer = await rocket.ask("QueryRoute", topic=wire.Resource(name=TOPIC))
            codes_of.append(answer.status.code)
        assert codes_of == [codes.OK, codes.FORBIDDEN]


async def test_the_stream_of_a_client_counts_as_a_connection_of_its_tenant():
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice")) as rig:
        await rig.node.access.tenants.change("acme", limits={"connections": 1})
        rocket, connections = Rocket(rig), rig.node.services.connections

        async def open_stream() -> int:
            session = ClientSession("ROCKETMQ", "10.0.0.7", Principal("alice"))
            call = rocket.stream_call("Telemetry", session, {})
            assert connections.open(call.connection, "ROCKETMQ", "10.0.0.7") == ""
            handler: Any = rocket.messaging.methods[call.path].handler
            settings = wire.TelemetryCommand()
            settings.settings.client_type = wire.PRODUCER
            settings.settings.publishing.SetInParent()
            handler(call).message(settings.SerializeToString())
            await asyncio.wait_for(call.arrived.wait(), 30)
            return int(wire.TelemetryCommand.FromString(call.sent[0]).status.code)

        assert await open_stream() == codes.OK
        assert dict(connections.of_clients) == {("User:alice", None): 1}
        assert await open_stream() == codes.FORBIDDEN


async def test_a_message_waits_for_its_tenants_share(monkeypatch):
    monkeypatch.setattr(fair_shares, "STALLED_S", 3_600)
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice;beta=User:bob")) as rig:
        rocket, shares = Rocket(rig), rig.node.services.fair_shares
        for tenant in ("acme", "beta"):
            await rocket.create(f"«{tenant}»{TOPIC}")
        alice, bob = (ClientSession("ROCKETMQ", "10.0.0.7", Principal(x)) for x in ("alice", "bob"))
        share = shares.of(alice)
        assert share is not None
        for session in (bob, alice):
            rocket.session = session
            await rocket.send(TOPIC)
        assert share.held_bytes == 0
        held = share.take_now(rig.config.tenant_request_bytes_max)
        assert held is not None
        request = wire.request_of("SendMessage")(messages=[rocket.message(TOPIC)])
        calls = [rocket.begin("SendMessage", request, session=alice) for _ in range(2)]
        await until(lambda: share.waiting_count == shares.waits_total == 2)
        rocket.session = bob
        await rocket.send(TOPIC)
        monkeypatch.setattr(fair_shares, "TENANT_WAITING_BYTES_MAX", 1)
        assert await code_of(rocket, "SendMessage", "alice") == codes.TOO_MANY_REQUESTS
        assert not any(call.is_finished for call in calls)
        held.release()
        for call in calls:
            await asyncio.wait_for(call.over.wait(), 60)
        await until(lambda: rocket.messaging.in_progress.bytes == 0)
        assert share.held_bytes == share.waiting_count == 0
        assert rig.node.topics.get(f"«acme»{TOPIC}").partitions[0].high_watermark == 3


async def share_a_topic(rocket: Rocket, name: str) -> TopicShares:
    """Acme's topic, which beta has accepted by a name of its own."""
    await rocket.create("«acme»canary-orders", "mixed")
    shares = TopicShares(rocket.rig.node.services)
    await shares.share("«acme»canary-orders", "beta")
    await shares.accept(f"«beta»{name}", "«acme»canary-orders", is_operator=False)
    return shares


async def test_a_tenant_receives_a_topic_that_another_shares():
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice;beta=User:bob")) as rig:
        rocket = Rocket(rig)
        shares = await share_a_topic(rocket, TOPIC)
        alice, bob = (ClientSession("ROCKETMQ", "10.0.0.7", Principal(n)) for n in ("alice", "bob"))
        rocket.session = alice
        await rocket.send("canary-orders", b"of acme")
        rocket.session = bob
        await rocket.set_group(f"«beta»{GROUP}", share_auto_offset_reset="earliest")
        (message,) = await rocket.receive(TOPIC, GROUP, wait_ms=30_000)
        assert (message.body, message.topic.name) == (b"of acme", TOPIC)
        assert "canary" not in str(message)
        answer = await rocket.ask("SendMessage", messages=[message])
        assert answer.status.code == codes.FORBIDDEN
        await shares.unshare("«acme»canary-orders", "beta")
        rocket.session = alice
        await rocket.send("canary-orders", b"of later")
        rocket.session = bob
        answers = await answer_of(rocket, "ReceiveMessage", "bob", TOPIC)
        assert "TOPIC_NOT_FOUND" in answers


async def test_a_receive_that_waits_ends_once_the_topic_is_shared_no_longer():
    """And what was delivered before is settled no more, by the old name or by a new one."""
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice;beta=User:bob")) as rig:
        rocket, source = Rocket(rig), "«acme»canary-orders"
        shares = await share_a_topic(rocket, TOPIC)
        alice, bob = (ClientSession("ROCKETMQ", "10.0.0.7", Principal(n)) for n in ("alice", "bob"))
        await rocket.set_group(f"«beta»{GROUP}", share_auto_offset_reset="earliest")
        rocket.session = alice
        await rocket.send("canary-orders", b"of acme")
        rocket.session = bob
        (message,) = await rocket.receive(TOPIC, GROUP, wait_ms=30_000)
        call = rocket.begin("ReceiveMessage", receive_request(TOPIC, GROUP, wait_ms=30_000))
        await asyncio.sleep(0.05)
        assert not call.is_finished
        assert await shares.unshare(source, "beta")
        await rocket.code("SendMessage")  # bob's, refused
        rocket.session = alice
        await rocket.send("canary-orders", b"of later")
        await asyncio.wait_for(call.over.wait(), 10)
        answers = str([wire.response_of("ReceiveMessage").FromString(one) for one in call.sent])
        assert "TOPIC_NOT_FOUND" in answers
        for foreign in ("of later", "canary", "«", rig.node.cluster_id):
            assert foreign not in answers
        rocket.session = bob
        handle = {"receipt_handle": message.system_properties.receipt_handle}
        await shares.share(source, "beta")
        await shares.leave(f"«beta»{TOPIC}")
        for rpc in ("AckMessage", "ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"):
            fields = {"entries": [handle]} if rpc == "AckMessage" else handle
            where = {"group": {"name": GROUP}, "topic": {"name": TOPIC}}
            assert await rocket.code(rpc, **where, **fields) == codes.TOPIC_NOT_FOUND
        await shares.accept("«beta»renamed", source, is_operator=False)
        (later,) = await rocket.receive("renamed", GROUP, wait_ms=30_000)
        assert (later.body, later.topic.name) == (b"of later", "renamed")


@pytest.mark.parametrize("rpc", [name for name in ACCESS if name not in OF_CLIENTS])
async def test_what_is_shared_no_longer_is_answered_as_what_never_was(rpc):
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice;beta=User:bob")) as rig:
        rocket = Rocket(rig)
        shares = await share_a_topic(rocket, TOPIC)
        await rocket.set_group(f"«beta»{GROUP}", share_auto_offset_reset="earliest")
        assert "canary" not in await answer_of(rocket, rpc, "bob", TOPIC)
        await shares.unshare("«acme»canary-orders", "beta")
        sees = await answer_of(rocket, rpc, "bob", TOPIC)
        absent = await answer_of(rocket, rpc, "bob", "absent-topic")
        assert sees.replace(TOPIC, "absent-topic") == absent
        assert "canary" not in sees
        topic = rig.node.topics.get("«acme»canary-orders")
        assert topic.require_log(0).high_watermark == 0


async def test_lite_topics_of_another_tenant_are_not_shared():
    async with broker(BrokerConfig(**CONFIG, tenants="acme=User:alice;beta=User:bob")) as rig:
        rocket = Rocket(rig)
        await rocket.create("«acme»parent", "lite")
        shares = TopicShares(rig.node.services)
        await shares.share("«acme»parent", "beta")
        await shares.accept(f"«beta»{TOPIC}", "«acme»parent", is_operator=False)
        shown = rig.node.topics.readable.get(f"«beta»{TOPIC}")
        home = rig.node.topics.get("«acme»parent")
        where = {"topic": {"name": TOPIC}, "group": {"name": GROUP}, "lite_topic_set": ["one"]}
        rocket.session = ClientSession("ROCKETMQ", "10.0.0.7", Principal("bob"))
        answer = await rocket.ask("SyncLiteSubscription", action=0, **where)
        assert answer.status.code == codes.ILLEGAL_TOPIC
        with pytest.raises(GroupKindMismatch):
            await rig.node.shares.lite.begin(shown, 0, f"«beta»{GROUP}")
        assert not home.require_log(0).has_companion(CompanionKind.LITE)
