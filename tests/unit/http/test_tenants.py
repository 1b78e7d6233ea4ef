"""Tenants over HTTP: created, listed, changed and deleted, effective at once for open sessions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.kit.broker import broker
from tests.unit.http.http_rig import Web, on_the_web
from tests.unit.http.test_authorization import CONFIG, guarded
from tests.waiting import until

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.acls import Acl, Entry, Pattern, Permission
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.security.tenant_ownership import NOBODY
from headrace.broker.security.tenants import PRINCIPALS_MAX, TenantNotEmpty, Tenants, refuse_tenants
from headrace.broker.services.access_control import AccessControl
from headrace.broker.services.topic_service import NewTopic
from headrace.coordination.quotas.entities import PRODUCER
from headrace.errors import (
    CredentialUnknown,
    DataCorrupt,
    FormatUnsupported,
    PolicyViolation,
)
from headrace.http.connection import CONNECTION, LOGIN
from headrace.http.logins import HttpLogin
from headrace.metadata.memory import MemoryMetadataStore
from headrace.metadata.store import ABSENT, MetadataEntry
from headrace.metadata.tenant_facts import TenantFact, TenantPrincipal, tenant_key

ACME = {"name": "acme", "principals": ["User:alice"]}


async def test_tenants_are_created_listed_changed_and_deleted(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        before = web.node.audit.changed_total
        status, dry = await web.ask("POST", "/v1/tenants?dry_run=true", ACME)
        assert (status, dry["existed"]) == (200, False)
        assert (await web.ask("GET", "/v1/tenants"))[1]["tenants"] == []
        assert web.node.audit.changed_total == before
        assert (await web.ask("POST", "/v1/tenants", ACME))[1]["existed"] is False
        assert (await web.ask("POST", "/v1/tenants", ACME))[1]["existed"] is True
        assert web.node.audit.changed_total == before + 2
        _, listed = await web.ask("GET", "/v1/tenants")
        assert listed["tenants"] == [
            ACME | {"limits": {}, "when_full": "reject", "access": "all", "in_setting": False}
        ]
        limits = {"limits": {"topics": 3, "producer_byte_rate": 1_000}}
        _, limited = await web.ask("PATCH", "/v1/tenants/acme", limits)
        assert limited["tenant"]["limits"] == limits["limits"]
        await web.ask("PATCH", "/v1/tenants/acme", {"limits": {"topics": None}})
        _, shown = await web.ask("GET", "/v1/tenants/acme")
        assert shown["limits"] == {"producer_byte_rate": 1_000}
        full = {"limits": {"stored_bytes": 9, "topics": 1}, "when_full": "slow"}
        await web.ask("PATCH", "/v1/tenants/acme", full)
        _, shown = await web.ask("GET", "/v1/tenants/acme")
        assert shown["when_full"] == "slow"
        assert shown["used"] == {"producer_byte_rate": 0, "stored_bytes": 0, "topics": 0}
        full = {"limits": {"stored_bytes": None}, "when_full": "burn"}
        assert (await web.ask("PATCH", "/v1/tenants/acme", full))[0] == 400
        for wrong in ({"members": 1}, {"topics": 0}, {"topics": "1"}):
            assert (await web.ask("PATCH", "/v1/tenants/acme", {"limits": wrong}))[0] == 400
        assert (await web.ask("PATCH", "/v1/tenants/acme", {"access": "some"}))[0] == 400
        _, changed = await web.ask("PATCH", "/v1/tenants/acme", {"access": "rules"})
        assert changed["tenant"]["access"] == "rules"
        await web.ask("POST", "/v1/tenants", ACME | {"access": "all"})
        assert (await web.ask("GET", "/v1/tenants/acme"))[1]["access"] == "all"
        change = {"add": ["User:bob", "User:ann"], "remove": ["User:alice"]}
        _, changed = await web.ask("PATCH", "/v1/tenants/acme", change)
        assert changed["tenant"]["principals"] == ["User:ann", "User:bob"]
        status, refused = await web.ask("DELETE", "/v1/tenants/acme")
        assert (status, "2 principals" in refused["detail"]) == (409, True)
        await web.ask("PATCH", "/v1/tenants/acme", {"remove": ["User:ann", "User:bob"]})
        assert (await web.ask("DELETE", "/v1/tenants/acme?dry_run=true"))[0] == 200
        assert (await web.ask("GET", "/v1/tenants/acme"))[0] == 200
        assert (await web.ask("DELETE", "/v1/tenants/acme"))[0] == 200
        assert (await web.ask("DELETE", "/v1/tenants/acme"))[0] == 404
        assert (await web.ask("GET", "/v1/tenants/acme"))[0] == 404
        assert (await web.ask("PATCH", "/v1/tenants/acme", change))[0] == 404
        assert (await web.ask("POST", "/v1/tenants", ACME))[1]["existed"] is False


async def test_a_limit_of_tenants_says_what_to_do(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        full = {"name": "acme", "principals": [f"User:{n}" for n in range(PRINCIPALS_MAX)]}
        assert (await web.ask("POST", "/v1/tenants", full))[0] == 200
        change = {"add": ["User:alice"]}
        status, problem = await web.ask("PATCH", "/v1/tenants/acme", change)
        assert (status, "remove some first" in problem["detail"]) == (403, True)
        assert problem["next_step"].startswith("do what the detail says")
        change["remove"] = ["User:0"]
        assert (await web.ask("PATCH", "/v1/tenants/acme", change))[0] == 200


@pytest.mark.parametrize(
    ("principal", "status"),
    [
        ("alice", 400),
        ("User:*", 409),
        ("User:ANONYMOUS", 409),
        ("Broker:1", 409),
        ("User:root", 409),
        ("User:carol", 409),
    ],
)
async def test_a_principal_that_can_be_of_no_tenant_or_is_of_another_is_refused(
    principal, status, monkeypatch
):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        await web.ask("POST", "/v1/tenants", {"name": "beta", "principals": ["User:carol"]})
        body = {"name": "acme", "principals": ["User:alice", principal]}
        assert (await web.ask("POST", "/v1/tenants", body))[0] == status
        assert (await web.ask("GET", "/v1/tenants/acme"))[0] == 404


def test_without_access_control_lists_there_are_no_tenants():
    async def scenario(web: Web) -> None:
        assert (await web.ask("POST", "/v1/tenants", ACME))[0] == 409

    on_the_web(scenario)()


async def test_a_broker_without_access_control_lists_does_not_serve_what_tenants_have():
    async with broker(BrokerConfig(**CONFIG)) as rig:
        assert rig.node.access is not None
        await rig.node.access.tenants.create("acme", [])
        with pytest.raises(PolicyViolation, match=r"headrace\.authorizer=acl"):
            await refuse_tenants(rig.node.metadata)
        await rig.node.access.tenants.delete("acme")
        await refuse_tenants(rig.node.metadata)


async def test_a_tenant_that_has_topics_is_deleted_only_by_force(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        await web.ask("POST", "/v1/tenants", ACME)
        await web.node.topics.create("«acme»orders")
        _, shown = await web.ask("GET", "/v1/tenants/acme")
        assert (shown["topics"], shown["groups"]) == (1, 0)
        status, refused = await web.ask("DELETE", "/v1/tenants/acme")
        assert (status, "1 topics, 1 principals" in refused["detail"]) == (409, True)
        assert (await web.ask("GET", "/v1/tenants/acme"))[0] == 200
        status, gone = await web.ask("DELETE", "/v1/tenants/acme?force=true")
        assert (status, gone["topics"]) == (200, 1)
        assert (await web.ask("GET", "/v1/tenants/acme"))[0] == 404
        assert "«acme»orders" in web.node.topics.by_name
        assert web.node.authorizer.has_tenants  # its groups are not the default tenant's now


async def test_every_broker_follows_and_a_principal_of_two_tenants_has_no_rights():
    """As two brokers may store at once."""

    store = MemoryMetadataStore()
    one, other = Tenants(store), Tenants(store)
    await one.create("acme", ["User:alice", "User:bob"])
    await other.create("beta", ["User:alice"])
    for tenants in (one, other):
        for entry in await store.list("/tenants/"):
            tenants.apply(entry.key, entry)
        assert tenants.names() == ["acme", "beta"]
        assert tenants.of("User:alice") == NOBODY
        assert tenants.of("User:bob") == "acme"
        assert tenants.of("User:carol") == ""
    await other.change("beta", (), ["User:alice"])
    assert other.of("User:alice") == "acme"
    with pytest.raises(PolicyViolation):
        await one.change("acme", [f"User:{n}" for n in range(PRINCIPALS_MAX)], ())


async def test_a_change_does_not_bring_back_what_another_broker_deleted():
    """Before a broker knows the other's change."""

    store = MemoryMetadataStore()
    one, other = Tenants(store), Tenants(store)
    await one.create("acme", [])
    for entry in await store.list("/tenants/"):
        other.apply(entry.key, entry)
    await one.delete("acme")
    assert other.names() == ["acme"]
    with pytest.raises(CredentialUnknown):
        await other.change("acme", ["User:alice"], ())
    with pytest.raises(CredentialUnknown):
        await other.delete("acme")
    (entry,) = await store.list("/tenants/")
    other.apply(entry.key, entry)
    assert other.names() == []
    assert await other.create("acme", ["User:alice"]) is False


async def test_without_force_no_tenant_is_deleted_whose_principals_another_broker_stored():
    store = MemoryMetadataStore()
    one, other = Tenants(store), Tenants(store)
    await one.create("acme", [])
    for entry in await store.list("/tenants/"):
        other.apply(entry.key, entry)
    await one.change("acme", ["User:alice"], ())
    assert other.principals("acme") == []
    with pytest.raises(TenantNotEmpty, match="has 1 principals"):
        await other.delete("acme")
    assert one.of("User:alice") == "acme"
    await other.delete("acme", is_forced=True)
    assert other.names() == []


async def test_a_tenant_stored_by_a_newer_version_is_not_overwritten():
    store = MemoryMetadataStore()
    value = b'{"v":1,"state":"later","principals":[]}'
    await store.put(tenant_key("acme"), value, ABSENT)
    with pytest.raises(FormatUnsupported):
        await Tenants(store).create("acme", ["User:alice"])
    (entry,) = await store.list("/tenants/")
    assert entry.value == value


@pytest.mark.parametrize("query", ["", "?dry_run=true", "?force=true", "?force=true&dry_run=true"])
async def test_a_tenant_of_the_setting_is_not_deleted_even_dry(query, monkeypatch):
    async with guarded(monkeypatch, tenants="acme=User:alice") as web:
        web.principal = "root"
        status, refused = await web.ask("DELETE", "/v1/tenants/acme" + query)
        assert (status, "headrace.tenants" in refused["detail"]) == (403, True)


async def test_principals_of_the_setting_stay_when_commands_remove_them():
    tenants = Tenants(MemoryMetadataStore(), ("User:root",), {"User:alice": "acme"})
    await tenants.change("acme", ["User:alice", "User:bob"], ())
    await tenants.change("acme", (), ["User:alice", "User:bob"])
    assert (tenants.of("User:alice"), tenants.of("User:bob")) == ("acme", "")
    key = tenant_key("beta")
    taken = TenantFact("active", [TenantPrincipal("User:alice"), TenantPrincipal("User:root")])
    tenants.apply(key, MetadataEntry(key, taken.encode(), 0))
    assert (tenants.of("User:alice"), tenants.of("User:root")) == (NOBODY, "")
    tenants.apply(key, None)
    assert tenants.of("User:alice") == "acme"


def test_a_broker_applies_many_tenants_at_a_cost_of_each():
    tenants = Tenants(MemoryMetadataStore())
    begun = time.process_time()
    for number in range(3_000):
        key, is_old = tenant_key(f"t{number}"), number % 2
        fact = TenantFact("deleted" if is_old else "active", [TenantPrincipal(f"User:{number}")])
        tenants.apply(key, MetadataEntry(key, fact.encode(), 0))
    assert time.process_time() - begun < 2  # of CPU; in all of them each time: over 10
    assert tenants.of("User:2998") == "t2998"
    assert len(tenants.names()) == 1_500


@pytest.mark.parametrize("value", [b"{", b'{"v":1,"state":"later","principals":[]}', b'{"v":2}'])
async def test_while_a_tenant_cannot_be_read_no_unknown_principal_has_rights(value, monkeypatch):
    async with guarded(monkeypatch) as web:
        access = web.node.access
        assert access is not None
        topic = Pattern(ResourceType.TOPIC, "*")
        await access.create([Acl(topic, Entry("User:*", "*", Operation.ALL, Permission.ALLOW))])

        def may(name: str) -> bool:
            session = ClientSession("HTTP", "127.0.0.1", Principal(name))
            return access.allows(session, Operation.READ, ResourceType.TOPIC, "secret-topic")

        assert may("alice")
        key = tenant_key("acme")
        with pytest.raises((DataCorrupt, FormatUnsupported)):
            access.tenants.apply(key, MetadataEntry(key, value, 0))
        assert not may("alice")
        assert may("root")
        fact = TenantFact("active", [TenantPrincipal("User:bob")])
        access.tenants.apply(key, MetadataEntry(key, fact.encode(), 1))
        assert may("alice")
        assert not may("bob")


async def test_a_principal_that_is_moved_is_never_one_of_the_default_tenant(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        tenants = web.node.access.tenants
        for name, user in (("acme", "alice"), ("beta", "carol")):
            body = {"name": name, "principals": [f"User:{user}"]}
            await web.ask("POST", "/v1/tenants", body)
        seen = [tenants.of("User:alice")]
        tenants.on_change(lambda: seen.append(tenants.of("User:alice")))
        dry = await web.ask("PATCH", "/v1/tenants/beta?dry_run=true", {"move": ["User:alice"]})
        assert (dry[0], tenants.of("User:alice")) == (200, "acme")
        move = {"move": ["User:alice", "User:new"], "limits": {"topics": 3}}
        status, moved = await web.ask("PATCH", "/v1/tenants/beta", move)
        expected = ["User:alice", "User:carol", "User:new"]
        assert (status, moved["tenant"]["principals"]) == (200, expected)
        assert (await web.ask("GET", "/v1/tenants/acme"))[1]["principals"] == []
        assert seen == ["acme", "acme", NOBODY, "beta"]
        for wrong, code in (("User:root", 409), ("Broker:1", 409)):
            given = {"move": [wrong], "add": ["User:x"], "limits": {"topics": 9}}
            assert (await web.ask("PATCH", "/v1/tenants/beta", given))[0] == code
            kept = (await web.ask("GET", "/v1/tenants/beta"))[1]
            assert (kept["limits"], kept["principals"]) == ({"topics": 3}, expected)
        move = {"move": ["User:alice"]}
        assert (await web.ask("PATCH", "/v1/tenants/gamma", move))[0] == 404
        assert tenants.of("User:alice") == "beta"


async def test_a_slowed_tenants_write_waits_once_before_it_is_stored(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        await web.ask("POST", "/v1/tenants", ACME)
        await web.node.services.topics.create(NewTopic("«acme»a", 1, -1, {}))
        limits = {"limits": {"stored_bytes": 1_000_000}, "when_full": "slow"}
        assert (await web.ask("PATCH", "/v1/tenants/acme", limits))[0] == 200
        log = web.node.topics.get("«acme»a").partitions[0]
        throttled = web.node.quotas.throttled[PRODUCER]
        path, write = "/v1/topics/a/records", {"records": [{"value": "v"}]}
        web.principal = "alice"
        slowed_ms = 1
        monkeypatch.setattr(web.node.tenant_rates.counts, "slowed_ms", lambda _tenant: slowed_ms)
        assert (await web.ask("POST", path, write))[0] == 200
        assert (throttled.count, throttled.time_ms) == (1, 1)
        slowed_ms = 3_600_000
        waiting = asyncio.ensure_future(web.ask("POST", path, write))
        await until(lambda: throttled.count == 2)
        assert throttled.time_ms == 1 + 5_000, "its connection is not read meanwhile"
        assert log.high_watermark == 1
        waiting.cancel()


async def test_a_login_that_ends_while_a_write_waits_stores_nothing(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        await web.ask("POST", "/v1/tenants", ACME)
        await web.node.services.topics.create(NewTopic("«acme»a", 1, -1, {}))
        limits = {"limits": {"stored_bytes": 1_000_000}, "when_full": "slow"}
        assert (await web.ask("PATCH", "/v1/tenants/acme", limits))[0] == 200
        monkeypatch.setattr(web.node.tenant_rates.counts, "slowed_ms", lambda _tenant: 1)
        throttled, served = web.node.quotas.throttled[PRODUCER], web.app
        login = HttpLogin(Principal("alice"), "password", lambda: not throttled.count)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope["state"] = {LOGIN: login}
            await served(scope, receive, send)

        web.app, web.principal = app, "alice"
        write = {"records": [{"value": "v"}]}
        status, _ = await web.ask("POST", "/v1/topics/a/records", write)
        assert throttled.count == 1
        assert status == 401
        assert web.node.topics.get("«acme»a").partitions[0].high_watermark == 0


async def test_a_connection_above_its_tenants_limit_is_not_served(monkeypatch):
    async with guarded(monkeypatch) as web:
        web.principal = "root"
        await web.ask("POST", "/v1/tenants", ACME)
        await web.ask("PATCH", "/v1/tenants/acme", {"limits": {"connections": 1}})
        connections, served, connection = web.node.services.connections, web.app, "first"
        for one in ("first", "second"):
            assert connections.open(one, "HTTP", "127.0.0.1") == ""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            scope["state"] = {CONNECTION: connection}
            await served(scope, receive, send)

        web.app = app
        web.principal = "alice"
        assert [(await web.ask("GET", "/v1/topics"))[0] for _ in range(2)] == [200] * 2
        connection = "second"
        status, refused = await web.ask("GET", "/v1/topics")
        assert status == 403
        assert "2 connections, and may have 1" in refused["detail"]
        web.principal = "root"
        assert (await web.ask("GET", "/v1/topics"))[0] == 200
        connections.close("first")
        web.principal = "alice"
        await until(lambda: not connections.of_clients.get(("User:alice", None)))
        async with asyncio.timeout(60):
            while (await web.ask("GET", "/v1/topics"))[0] != 200:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize("value", [b"{", b'{"v":1,"state":"later","principals":[]}'])
async def test_own_users_of_a_tenant_that_was_never_read_have_what_rules_allow(value):
    """A broker that starts cannot know whether the tenant is closed."""
    access = AccessControl(MemoryMetadataStore())
    session = ClientSession("HTTP", "127.0.0.1", Principal("«acme»alice"))

    def may() -> bool:
        return access.allows(session, Operation.READ, ResourceType.TOPIC, "«acme»orders")

    key = tenant_key("acme")
    with pytest.raises((DataCorrupt, FormatUnsupported)):
        access.tenants.apply(key, MetadataEntry(key, value, 0))
    assert not may()
    access.tenants.apply(key, MetadataEntry(key, TenantFact("active", []).encode(), 1))
    assert may()
    with pytest.raises((DataCorrupt, FormatUnsupported)):
        access.tenants.apply(key, MetadataEntry(key, value, 2))
    assert may(), "as the fact said that could be read"
