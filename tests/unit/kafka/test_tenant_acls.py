"""Rules of a tenant's own: what people who administer a tenant may do with them, and what not."""

from __future__ import annotations

import json
import logging
from contextlib import asynccontextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.unit.kafka.access_rig import NamedClient, codes_in

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.acls import (
    ANY,
    Acl,
    AclFilter,
    Entry,
    Pattern,
    PatternType,
    Permission,
    Question,
)
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.sessions import ClientSession
from headrace.broker.services import access_control, tenant_quotas
from headrace.broker.services.tenant_acls import TenantAcls, own_cluster
from headrace.errors import ClusterUnauthorized, HeadraceError, PolicyViolation, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_REQUEST,
    POLICY_VIOLATION,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY, BETA = "«acme»", "«beta»"
BOSS, BOB, CAROL = Principal("boss"), Principal("bob"), Principal("carol")
OWN = Principal(f"{KEY}alice")
TOPIC, GROUP, USER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.USER
CLUSTER = ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
CONFIG: dict[str, Any] = {
    "authorizer": "acl",
    "super_users": "User:root",
    "tenants": "acme=User:boss;acme=User:bob;beta=User:carol",
}
ADMINISTER = Acl(
    Pattern(CLUSTER, own_cluster("acme")), Entry("User:boss", "*", Operation.ALTER, ALLOW)
)


@asynccontextmanager
async def acme() -> AsyncIterator[tuple[BrokerHarness, TenantAcls]]:
    """A broker with two tenants of which one, acme, has a boss and gives only what rules allow."""
    async with broker(BrokerConfig(**CONFIG)) as rig:
        access = rig.node.access
        assert access is not None
        assert await access.create([ADMINISTER]) == [None]
        await access.tenants.change("acme", access="rules")
        users = rig.node.services.authentication.users
        yield rig, TenantAcls(access, "acme", users, None)


def rule(
    kind: ResourceType,
    name: str,
    who: str = "User:bob",
    operation: Operation = Operation.READ,
    permission: Permission = ALLOW,
    pattern: PatternType = LITERAL,
) -> Acl:
    return Acl(Pattern(kind, name, pattern), Entry(who, "*", operation, permission))


def item_of(acl: Acl) -> dict[str, Any]:
    (kind, name, pattern), (principal, host, operation, permission) = acl
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": principal,
        "host": host,
        "operation": operation,
        "permission_type": permission,
    }


def filter_of(**more: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
        **more,
    }


async def created(rig: BrokerHarness, who: Principal, *acls: Acl) -> list[int]:
    request = {"creations": [item_of(one) for one in acls]}
    answer = await NamedClient(rig, who).ask(apis.CREATE_ACLS, 3, request)
    assert KEY not in repr(answer)
    assert BETA not in repr(answer)
    return [one.error_code for one in answer.results]


async def described(rig: BrokerHarness, who: Principal, **more: Any) -> list[tuple[Any, ...]]:
    answer = await NamedClient(rig, who).ask(apis.DESCRIBE_ACLS, 3, filter_of(**more))
    assert answer.error_code == 0
    assert "«" not in repr(answer)
    return sorted(
        (one.resource_type, one.resource_name, one.pattern_type, acl.principal, acl.operation)
        for one in answer.resources
        for acl in one.acls
    )


async def test_people_who_administer_a_tenant_make_see_and_remove_its_rules_by_its_names():
    async with acme() as (rig, _):
        access = rig.node.access
        assert access is not None
        made = [
            rule(TOPIC, "orders"),
            rule(TOPIC, "raw.", pattern=PREFIXED),
            rule(GROUP, "*"),
            rule(USER, "User:alice", operation=Operation.ALTER),
        ]
        assert await created(rig, BOSS, *made) == [0] * 4
        for name, allowed in (("orders", True), ("raw.x", True), ("other", False)):
            session = ClientSession("KAFKA", "10.0.0.7", BOB)
            assert access.allows(session, Operation.READ, TOPIC, KEY + name) == allowed
            assert not access.allows(session, Operation.READ, TOPIC, BETA + name)
            assert not access.allows(session, Operation.READ, TOPIC, name)
        seen = await described(rig, BOSS)
        assert seen == [
            (TOPIC, "orders", LITERAL, "User:bob", Operation.READ),
            (TOPIC, "raw.", PREFIXED, "User:bob", Operation.READ),
            (GROUP, "*", LITERAL, "User:bob", Operation.READ),
            (CLUSTER, CLUSTER_NAME, LITERAL, "User:boss", Operation.ALTER),
            (USER, "User:alice", LITERAL, "User:bob", Operation.ALTER),
        ]
        matching = {"resource_type_filter": TOPIC, "pattern_type_filter": PatternType.MATCH}
        found = await described(rig, BOSS, **matching, resource_name_filter="raw.x")
        assert [one[1] for one in found] == ["raw."]
        client = NamedClient(rig, BOSS)
        answer = await client.ask(apis.DELETE_ACLS, 3, {"filters": [filter_of()]})
        (result,) = answer.filter_results
        assert [one.resource_name for one in result.matching_acls] == [
            one[1] for one in seen[:3]
        ] + ["User:alice"]
        assert "«" not in repr(answer)
        assert access.find(AclFilter()) == [ADMINISTER]


async def test_nobody_else_may():
    """Not its other people, those of another tenant, or by a right to all of the cluster that is
    written in any way, and not everybody."""
    async with acme() as (rig, _):
        access = rig.node.access
        assert access is not None
        everything = Operation.ALL
        operators = [
            rule(CLUSTER, CLUSTER_NAME, "User:bob", everything),
            rule(CLUSTER, "*", "User:bob", everything),
            rule(CLUSTER, CLUSTER_NAME, "User:*", everything),
            rule(CLUSTER, own_cluster("acme"), "User:*", everything),
            rule(CLUSTER, own_cluster("beta"), "User:bob", everything),
            rule(CLUSTER, own_cluster("acme"), "User:carol", everything),
        ]
        assert await access.create(operators) == [None] * 6
        before = access.find(AclFilter())
        for who in (BOB, CAROL, OWN):
            client = NamedClient(rig, who)
            for key, request in (
                (apis.CREATE_ACLS, {"creations": [item_of(rule(TOPIC, "orders"))]}),
                (apis.DESCRIBE_ACLS, filter_of()),
                (apis.DELETE_ACLS, {"filters": [filter_of()]}),
            ):
                answer = await client.ask(key, 3, request)
                assert codes_in(answer) == {CLUSTER_AUTHORIZATION_FAILED}, who
                assert "«" not in repr(answer)
            assert access.find(AclFilter()) == before


ODD = ("", "«", "»", "«beta»orders", "«acme»orders", "a«b»c", "«beta»")


async def test_no_rule_of_a_tenant_reaches_beyond_it():
    """Whatever is written as name and principal, as literal and as prefix."""
    async with acme() as (rig, _):
        access = rig.node.access
        assert access is not None
        names = (*ODD, "*", "o", "User:", "User:*", "User:«beta»x", "beta/orders", "a" * 990)
        for kind, name, pattern, who in product(
            (TOPIC, GROUP, ResourceType.TRANSACTIONAL_ID, USER, CLUSTER),
            (*names, CLUSTER_NAME),
            (LITERAL, PREFIXED),
            ("User:bob", "User:carol", "User:*", "User:root", "User:«beta»carol", "bob", "User:"),
        ):
            await created(rig, BOSS, rule(kind, name, who, Operation.ALL, ALLOW, pattern))
        for acl in access.find(AclFilter()):
            assert acl.pattern.tenant == "acme", acl
            assert acl.pattern.kind != CLUSTER or acl == ADMINISTER
            assert "beta" not in acl.entry.principal
        for who, host in product((CAROL, Principal("dave"), Principal("root")), ("10.0.0.7",)):
            session = ClientSession("KAFKA", host, who)
            for kind, name in product((TOPIC, GROUP), ("orders", KEY + "orders", BETA + "orders")):
                own = BETA if who == CAROL else ""
                may = who.name == "root" or (bool(own) and name.startswith(own))
                assert access.allows(session, Operation.READ, kind, name) == may, (who, name)
        bob = ClientSession("KAFKA", "10.0.0.7", BOB)
        assert not access.allows(bob, Operation.ALTER, CLUSTER, own_cluster("acme"))
        assert not access.allows(bob, Operation.ALTER, CLUSTER, CLUSTER_NAME)
        assert access.allows(bob, Operation.ALTER, USER, f"User:{KEY}alice")
        assert not access.allows(bob, Operation.ALTER, USER, f"User:{BETA}alice")


async def test_rights_to_administer_are_not_the_tenants_to_give_or_take():
    async with acme() as (rig, own):
        access = rig.node.access
        assert access is not None
        refused = await created(rig, BOSS, rule(CLUSTER, CLUSTER_NAME, operation=Operation.ALTER))
        assert refused == [CLUSTER_AUTHORIZATION_FAILED]
        token = await created(rig, BOSS, rule(ResourceType.DELEGATION_TOKEN, "x"))
        assert token == [CLUSTER_AUTHORIZATION_FAILED]
        with pytest.raises(ClusterUnauthorized, match="ask them"):
            await own.delete(AclFilter(kind=CLUSTER))
        assert await own.delete(AclFilter()) == []
        assert access.find(AclFilter()) == [ADMINISTER]
        looking = ADMINISTER.entry._replace(operation=Operation.DESCRIBE)
        await access.delete(AclFilter())
        assert await access.create([Acl(ADMINISTER.pattern, looking)]) == [None]
        assert await described(rig, BOSS) != []
        assert await created(rig, BOSS, rule(TOPIC, "orders")) == [CLUSTER_AUTHORIZATION_FAILED]


async def test_what_is_of_no_concern_to_a_tenant_is_not_shown():
    """Rules about other names, and of principals that are another tenant's."""
    async with acme() as (rig, own):
        access = rig.node.access
        assert access is not None
        hidden = [
            rule(TOPIC, "orders"),
            rule(TOPIC, "*"),
            rule(TOPIC, "«", pattern=PREFIXED),
            rule(TOPIC, KEY[:-1], pattern=PREFIXED),
            rule(TOPIC, BETA + "orders"),
            rule(TOPIC, KEY + "orders", f"User:{BETA}carol"),
            rule(CLUSTER, CLUSTER_NAME),
            rule(USER, "User:", pattern=PREFIXED),
            rule(USER, f"User:{BETA}", pattern=PREFIXED),
        ]
        assert await access.create(hidden) == [None] * len(hidden)
        assert len(own.find(AclFilter())) == 1
        assert await own.delete(AclFilter()) == []
        assert len(access.find(AclFilter())) == 1 + len(hidden)
        (error,) = await access.create([rule(TOPIC, f"{KEY}*")])
        assert "prefix acme/" in str(error)


async def test_a_principal_is_one_name_whether_it_is_the_tenants_own_or_was_given():
    async with acme() as (rig, own):
        access = rig.node.access
        assert access is not None
        assert await own.create([rule(TOPIC, "orders", "User:alice")]) == [None]
        for who, place in ((OWN, None), (Principal("alice"), "acme")):
            session = ClientSession("KAFKA", "10.0.0.7", who)
            if place is not None:
                await access.tenants.change("acme", [str(who)])
            assert access.allows(session, Operation.READ, TOPIC, KEY + "orders"), who
        assert own.find(AclFilter(kind=TOPIC)) == [rule(TOPIC, "orders", "User:alice")]
        removed = await own.delete(AclFilter(principal="User:alice"))
        assert removed == [rule(TOPIC, "orders", "User:alice")]
        assert access.find(AclFilter()) == [ADMINISTER]


async def test_an_explanation_is_of_the_tenant_alone():
    async with acme() as (rig, own):
        access = rig.node.access
        assert access is not None
        assert await own.create([rule(TOPIC, "orders")]) == [None]
        asked = Question("User:bob", "*", Operation.READ, TOPIC, "orders")
        found = own.explain(asked)
        assert (found.is_allowed, found.rules) == (True, [rule(TOPIC, "orders")])
        assert found.reason == "this rule decides: allow User:bob READ from * on topic orders"
        # Whether it is another tenant's, a super user, or nobody.
        others = [
            own.explain(asked._replace(principal=f"User:{who}")) for who in ("carol", "root", "no")
        ]
        assert len({(one.is_allowed, one.code, str(one.rules)) for one in others}) == 1
        await access.create([rule(TOPIC, "*", "User:*", permission=DENY)])
        denied = own.explain(asked)
        assert (denied.is_allowed, denied.code) == (False, "operators_rule")
        assert denied.rules == [rule(TOPIC, "orders")]
        administering = asked._replace(
            principal="User:boss", operation=Operation.ALTER, kind=CLUSTER, name=CLUSTER_NAME
        )
        assert own.explain(administering).is_allowed
        assert not own.explain(administering._replace(principal="User:bob")).is_allowed
        with pytest.raises(RequestInvalid):
            own.explain(asked._replace(name=f"{BETA}orders"))


@pytest.mark.parametrize("operation", [one for one in Operation if one != Operation.ALL])
async def test_an_explanation_says_what_can_be_done_with_a_tenant_itself(operation):
    """A rule about all operations gives no others."""
    async with acme() as (rig, own):
        access, key = rig.node.access, own_cluster("acme")
        assert access is not None
        everything = Entry("User:boss", "*", Operation.ALL, ALLOW)
        assert await access.create([Acl(Pattern(CLUSTER, key), everything)]) == [None]
        may = access.allows(ClientSession("KAFKA", "10.0.0.7", BOSS), operation, CLUSTER, key)
        asked = Question("User:boss", "10.0.0.7", operation, CLUSTER, CLUSTER_NAME)
        assert own.explain(asked).is_allowed == may
        assert access.explain(asked._replace(name=key)).is_allowed == may


async def test_one_tenant_leaves_room_for_the_rules_of_others(monkeypatch):
    monkeypatch.setattr(access_control, "ACLS_MAX", 100)
    async with acme() as (rig, own):
        access = rig.node.access
        assert access is not None
        results: list[HeadraceError | None] = []
        for number in range(8):
            results += await own.create([rule(TOPIC, f"t{number}")])
        assert [type(one) for one in results] == [type(None)] * 4 + [PolicyViolation] * 4
        assert "limit of one tenant" in str(results[-1])
        other = TenantAcls(access, "beta", rig.node.services.authentication.users, None)
        assert await other.create([rule(TOPIC, "t")]) == [None]
        assert (
            await access.create([rule(TOPIC, f"t{number}") for number in range(50)]) == [None] * 50
        )
        assert await own.delete(AclFilter(name="t0")) != []
        assert await own.create([rule(TOPIC, "t9")]) == [None]


@pytest.mark.parametrize("number", range(3))
async def test_requests_of_too_many_are_refused_and_others_are_answered_by_one(number):
    async with acme() as (rig, _):
        acls = [rule(TOPIC, f"t{one}") for one in range(3)]
        acls[number] = rule(TOPIC, "«beta»x")
        expected = [0] * 3
        expected[number] = INVALID_REQUEST
        assert await created(rig, BOSS, *acls) == expected


def quota(user: str | None, value: float | None = 1_000.0, **more: str | None) -> dict[str, Any]:
    parts = {"user": user, **{kind.replace("_", "-"): name for kind, name in more.items()}}
    if user == "":
        del parts["user"]
    operation = {"key": "producer_byte_rate", "value": value or 0.0, "remove": value is None}
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in parts.items()]
    return {"entity": entity, "ops": [operation]}


async def test_people_of_a_tenant_set_quotas_of_its_users_alone(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "headrace.audit")
    every = {"components": [], "strict": False}
    async with acme() as (rig, _):
        access, quotas = rig.node.access, rig.node.services.quotas
        assert access is not None
        client = NamedClient(rig, BOSS)

        async def altered(*entries: dict[str, Any], dry: bool = False) -> list[int]:
            request = {"entries": list(entries), "validate_only": dry}
            answer = await client.ask(apis.ALTER_CLIENT_QUOTAS, 1, request)
            return [one.error_code for one in answer.entries]

        async def seen() -> set[tuple[tuple[str, str | None], ...]]:
            answer = await client.ask(apis.DESCRIBE_CLIENT_QUOTAS, 1, every)
            assert "«" not in repr(answer)
            return {
                tuple((part.entity_type, part.entity_name) for part in one.entity)
                for one in answer.entries or ()
            }

        refused = CLUSTER_AUTHORIZATION_FAILED
        assert await altered(quota("bob")) == [refused]
        settings = ADMINISTER.entry._replace(operation=Operation.ALTER_CONFIGS)
        await access.create([Acl(ADMINISTER.pattern, settings)])
        for of_others in (("carol",), (f"{BETA}alice",), (None,), ("dave",)):
            await quotas.change([("user", of_others[0])], {"producer_byte_rate": 5.0})
        await quotas.change([("ip", "10.0.0.1")], {"connection_creation_rate": 5.0})
        before = quotas.find()
        results = await altered(
            quota(None),
            quota("", client_id="x"),
            quota("", ip="10.0.0.1"),
            quota("bob", ip="10.0.0.1"),
            quota(f"{BETA}alice"),
            quota(f"{KEY}alice"),
        )
        assert all(results)
        assert set(results[:3]) == {refused}
        assert await altered(quota("alice"), dry=True) == [0]
        assert quotas.find() == before
        assert await seen() == set()
        made = (quota("alice"), quota("bob"), quota("carol"), quota("bob", client_id=None))
        caplog.clear()
        assert await altered(*made) == [0] * 4
        (line,) = (one for one in caplog.records if one.name == "headrace.audit")
        named = [f"user=acme/{name}" for name in ("alice", "bob", "carol")]
        assert json.loads(line.getMessage())["resources"] == [*named, "client-id=<default>"]
        users = {name for entity, _ in quotas.find() for kind, name in entity if kind == "user"}
        own = {f"{KEY}{name}" for name in ("alice", "bob", "carol")}
        assert users == own | {"bob", "carol", f"{BETA}alice", None, "dave"}
        assert dict(quotas.find())[(("user", "carol"),)] == {"producer_byte_rate": 5.0}
        one = {(("user", name),) for name in ("alice", "bob", "carol")}
        assert await seen() == one | {(("client-id", None), ("user", "bob"))}
        monkeypatch.setattr(tenant_quotas, "QUOTAS_MAX", 50)
        assert await altered(quota("dora"), quota("eve")) == [0, POLICY_VIOLATION]
        gone = [quota(name, None) for name in ("alice", "bob", "carol", "dora")]
        assert await altered(*gone, quota("bob", None, client_id=None)) == [0] * 5
        assert quotas.find() == before
        cluster = {"include_cluster_authorized_operations": True, "endpoint_type": 1}
        answer = await client.ask(apis.DESCRIBE_CLUSTER, 1, cluster)
        bits = answer.cluster_authorized_operations
        rights = {one for one in Operation if one != Operation.ALL and bits >> one & 1}
        assert {one.name for one in rights} == {
            *("ALTER", "DESCRIBE", "ALTER_CONFIGS", "DESCRIBE_CONFIGS")
        }


async def test_people_of_a_tenant_do_not_search_the_quotas_of_others(monkeypatch):
    """They would hold the event loop for half a second of 100,000."""
    async with acme() as (rig, _):
        quotas, access = rig.node.services.quotas, rig.node.access
        assert access is not None
        own = tenant_quotas.TenantQuotas(quotas, access.tenants, "acme")
        for user in (*(f"{BETA}u{number}" for number in range(20)), f"{KEY}alice", "bob", "dave"):
            await quotas.change([("user", user)], {"producer_byte_rate": 5.0})
        seen: list[Any] = []
        shown = tenant_quotas.TenantQuotas._shown

        def note(self, entity):
            seen.append(entity)
            return shown(self, entity)

        monkeypatch.setattr(tenant_quotas.TenantQuotas, "_shown", note)
        found = [entity for entity, _ in own.find()]
        assert found == [(("user", "alice"),), (("user", "bob"),)]
        assert len(seen) == 3
        await quotas.change([("user", f"{KEY}alice")], {"producer_byte_rate": None})
        assert [entity for entity, _ in own.find()] == [(("user", "bob"),)]
