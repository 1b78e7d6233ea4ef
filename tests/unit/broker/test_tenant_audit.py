"""Audit logs of tenants: what they say, by the tenant's names, and nothing of others'."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import broker
from tests.unit.broker.test_tenant_processor_time import as_user
from tests.unit.http.test_authorization import guarded
from tests.unit.http.test_logins import ask, basic, get, served
from tests.unit.http.test_tenant_users import ACME, prepare
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.listener import TenantPlace
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.tenants import Tenants
from headrace.broker.services import audit_topic, tenant_audit
from headrace.broker.services.topic_service import NewTopic
from headrace.broker.services.user_administration import NewPassword
from headrace.errors import CredentialUnknown, DiskFull, RequestInvalid
from headrace.kafka import apis
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.tenant_facts import TenantFact
from headrace.records.codec import decode_batch

if TYPE_CHECKING:
    from headrace.broker.node import Node

CONFIG = BrokerConfig(
    authorizer="acl",
    super_users="User:root",
    offsets_partition_count=1,
    tenants="acme=User:alice;beta=User:carol",
)
KEY = "«acme»audit"


def session(name: str, place: TenantPlace | None = None) -> ClientSession:
    found = ClientSession("INTERNAL-SECRET", "10.0.0.1", Principal(name))
    found.place = place
    return found


def deny(node: Node, who: ClientSession, name: str) -> None:
    node.audit.denied(who, Operation.READ, ResourceType.TOPIC, name, "Fetch")


async def lines(node: Node, count: int, key: str = KEY) -> list[dict[str, Any]]:
    """Those in the topic, once there are so many."""
    await until(lambda: key in node.topics.by_name)
    log = node.topics.get(key).require_log(0)
    await until(lambda: log.is_loaded and log.high_watermark >= count)
    found: list[dict[str, Any]] = []
    while len(found) < log.high_watermark:
        batch = decode_batch(await log.reader.read(len(found), 1))
        found += [json.loads(one.value or b"") for one in batch]
    return found


async def test_a_tenants_topic_has_its_denials_changes_and_failed_logins_by_its_names():
    async with broker(CONFIG) as rig:
        node = rig.node
        await node.access.tenants.set_audit_topic("acme", "audit")
        own = session("«acme»boss")
        deny(node, own, "«acme»orders")
        node.audit.changed(own, "CreateAcls", [("«acme»orders", " ", "User:bob")], 0)
        failed = session("x", TenantPlace("acme", is_given=False))
        failed.principal = None
        await node.services.users.create("«acme»own", NewPassword("of own"))
        named = ("alice", "own", "«acme»own", "carol", "root", "mallory", "")
        for name in named:
            node.audit.login_failed(failed, name, "PLAIN")
        denied, changed, *logins = await lines(node, 2 + len(named))
        assert (denied["principal"], denied["resource"]) == ("User:boss", "TOPIC:orders")
        assert (denied["operation"], denied["request"]) == ("READ", "Fetch")
        assert (changed["event"], changed["resources"]) == ("changed", ["orders User:bob"])
        assert {(one["event"], one["principal"]) for one in logins} == {("login_failed", "")}
        # Who else exists is not the tenant's to know: "carol" and "root" are as "mallory".
        assert [one["user"] for one in logins] == ["alice", "own", "own", "", "", "", ""]
        assert node.topics.get(KEY).fact.partition_count == 1


async def test_kafka_clients_of_the_tenant_find_their_changes_in_the_topic():
    async with broker(CONFIG) as rig:
        await rig.node.access.tenants.set_audit_topic("acme", "audit")
        for name in ("carol", "alice"):
            client = as_user(rig.client(), name)
            topic = {"name": f"of-{name}", "num_partitions": 1, "replication_factor": 1}
            await client.ask(apis.CREATE_TOPICS, 6, {"topics": [topic], "timeout_ms": 1_000})
        (line,) = await lines(rig.node, 1)
        assert (line["principal"], line["resources"]) == ("User:alice", ["of-alice"])


async def test_nothing_of_others_is_in_it():
    """Whatever a client of the tenant, of another one or an operator does or names."""
    async with broker(CONFIG) as rig:
        node = rig.node
        await node.access.tenants.set_audit_topic("acme", "audit")
        alice, at_acme = session("alice"), TenantPlace("acme", is_given=False)
        others = (session("carol"), session("carol", at_acme), session("dave"), session("root"))
        for one in others:
            deny(node, one, "«acme»orders")
            node.audit.changed(one, "DeleteTopics", ["«beta»plans", "secret-topic"], 0)
            node.audit.changed(one, "CreateAcls", [("«beta»plans", " ", "User:carol")], 0)
            node.audit.login_failed(one if one.place is None else session("x"), "carol", "PLAIN")
        assert node.tenant_audit is not None
        assert not node.tenant_audit._lines, "nothing yet"
        foreign = ("«beta»plans", "User:«beta»carol", "secret-topic", "User:root", "User:carol")
        for name in foreign:
            deny(node, alice, name)
        node.audit.changed(alice, "DeleteTopics", ["«beta»plans", "«acme»orders"], 1)
        node.audit.changed(alice, "CreateAcls", [("«acme»orders", " ", "User:«beta»carol")], 0)
        node.audit.login_failed(session("x", at_acme), "«beta»carol", "PLAIN")
        mixed = ["«beta»plans", "«acme»orders", "secret-topic", ("«acme»t", " ", "User:carol")]
        node.audit.changed(session("root"), "DeleteTopics", mixed, 0)
        deny(node, session("root"), "«acme»orders")
        found = await lines(node, len(foreign) + 4)
        text = json.dumps(found, ensure_ascii=False)
        for secret in ("beta", "plans", "carol", "secret", "root", "dave", "SECRET", "«", "»"):
            assert secret not in text, text
        assert [one["resource"] for one in found[: len(foreign)]] == ["TOPIC:"] * len(foreign)
        dropped, acl, login, operators = found[len(foreign) :]
        assert (dropped["resources"], dropped["further"], dropped["failed"]) == (["orders"], 1, 1)
        assert (acl["resources"], acl["further"]) == ([], 1)
        assert login["user"] == ""
        assert operators["resources"] == ["orders", "t"]
        assert operators["by_operator"]
        assert "principal" not in operators


async def test_a_failed_login_at_one_tenants_place_hides_none_at_anothers():
    """Of the same user from the same address, at the same moment."""
    async with broker(CONFIG) as rig:
        await rig.node.access.tenants.set_audit_topic("acme", "audit")
        for tenant in ("beta", "acme"):
            failed = ClientSession("SASL", "10.0.0.1")
            failed.place = TenantPlace(tenant, is_given=False)
            rig.node.audit.login_failed(failed, "alice", "PLAIN")
        (line,) = await lines(rig.node, 1)
        assert line["user"] == "alice"


async def test_what_super_users_change_of_the_tenant_is_in_it_over_http_too(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        await web.ask("POST", "/v1/tenants", {"name": "acme", "principals": ["User:alice"]})
        status, changed = await web.ask("PATCH", "/v1/tenants/acme", {"audit_topic": "audit"})
        assert (status, changed["tenant"]["audit_topic"]) == (200, "audit")
        await web.ask("PATCH", "/v1/tenants/acme", {"limits": {"topics": 9}})
        assert (await web.ask("POST", "/v1/topics", {"name": "acme/orders"}))[0] == 201
        found = await lines(web.node, 3)
        assert [(one["request"], one["resources"]) for one in found] == [
            ("changeTenant", []),
            ("changeTenant", []),
            ("createTopic", ["orders"]),
        ]
        status, changed = await web.ask("PATCH", "/v1/tenants/acme", {"audit_topic": ""})
        assert "audit_topic" not in changed["tenant"]
        wrong = {"audit_topic": "a b", "limits": {"topics": 7}}
        assert (await web.ask("PATCH", "/v1/tenants/acme", wrong))[0] == 400
        assert (await web.ask("GET", "/v1/tenants/acme"))[1]["limits"] == {"topics": 9}


async def test_the_topic_is_stored_followed_and_ends_with_the_tenant():
    store = MemoryMetadataStore()
    one, other = Tenants(store), Tenants(store)
    await one.create("acme", [])
    await one.set_audit_topic("acme", "audit", is_dry_run=True)
    assert not one.has_audit_topics
    await one.set_audit_topic("acme", "audit")
    await one.change("acme", ["User:bob"])
    for entry in await store.list("/tenants/"):
        other.apply(entry.key, entry)
    assert other.audit_topic("acme") == "audit"
    for wrong in ("a b", "«beta»x", "__consumer_offsets"):
        with pytest.raises(RequestInvalid):
            await one.set_audit_topic("acme", wrong)
    with pytest.raises(CredentialUnknown):
        await one.set_audit_topic("beta", "audit")
    await other.delete("acme", is_forced=True)
    await other.create("acme", [])
    assert not other.has_audit_topics
    fact = TenantFact.decode(TenantFact("active", [], audit_topic="audit").encode())
    assert (fact.audit_topic, fact.unknown) == ("audit", {})


async def test_lines_that_wait_have_a_bound_and_hold_up_no_other_tenant(monkeypatch):
    monkeypatch.setattr(tenant_audit, "TENANT_WAITING_MAX", 3)
    monkeypatch.setattr(audit_topic, "RETRY_S", 0.01)
    async with broker(CONFIG) as rig:
        node, is_full = rig.node, True
        sends = node.services.sends
        send = sends.send

        async def guarded_send(topic: Any, records: Any) -> Any:
            if is_full and topic.name == KEY:
                return [DiskFull("full")] * len(records)
            return await send(topic, records)

        monkeypatch.setattr(sends, "send", guarded_send)
        for tenant in ("acme", "beta"):
            await node.access.tenants.set_audit_topic(tenant, "audit")
        for number in range(5):
            deny(node, session("alice"), f"«acme»t{number}")
        deny(node, session("carol"), "«beta»t")
        assert [one["resource"] for one in await lines(node, 1, "«beta»audit")] == ["TOPIC:t"]
        is_full = False
        found = await lines(node, 3)
        assert [one["resource"] for one in found] == ["TOPIC:t0", "TOPIC:t1", "TOPIC:t2"]
        deny(node, session("alice"), "«acme»later")
        assert (await lines(node, 4))[-1]["dropped_before"] == 2


async def test_lines_of_a_tenant_that_wants_none_any_more_are_dropped(monkeypatch):
    monkeypatch.setattr(audit_topic, "RETRY_S", 0.01)
    async with broker(CONFIG) as rig:
        node = rig.node
        own = node.tenant_audit
        assert own is not None
        await node.access.tenants.set_audit_topic("acme", "audit")
        await node.access.tenants.change("acme", limits={"topics": 1})
        await node.services.topics.create(NewTopic("«acme»only", 1, -1, {}))
        deny(node, session("alice"), "«acme»t")
        (waiting,) = own._lines.values()
        await node.access.tenants.set_audit_topic("acme", "")
        await until(lambda: not waiting.has_writer)
        assert (len(own._lines), own._count.count) == (0, 0)
        assert KEY not in node.topics.by_name


async def test_failed_logins_over_http_at_a_listener_of_the_tenant_are_in_it():
    async with served(listener=ACME, authorizer="acl", super_users="User:root") as address:
        await prepare(address)
        node = address.node
        await node.access.tenants.set_audit_topic("acme", "audit")
        for name in ("alice", "root"):
            assert (await get(address, "/v1/topics", basic(name, "wrong")))[0] == 401
            signing_in = {"user": name, "password": "wrong"}
            assert (await ask(address, "POST", "/v1/session", body=signing_in))[0] == 401
        found = await lines(node, 4)
        assert {one["event"] for one in found} == {"login_failed"}
        assert [one["user"] for one in found] == ["alice", "alice", "", ""]
