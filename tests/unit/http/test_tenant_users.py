"""Users of a tenant's own over HTTP: by password, browser session and API key, without a prefix.
And operators, who write `acme/orders`."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.http.test_logins import HTTP, ask, basic, get, served

from headrace.broker.security import api_keys, browser_sessions, tenant_shares, users
from headrace.broker.security.acls import Acl, AclFilter, Entry, Pattern, Permission
from headrace.broker.security.api_keys import NewKey
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.listener import ListenerSecurity
from headrace.broker.security.principal import Principal
from headrace.broker.security.tenant_shares import TenantShares
from headrace.broker.security.users import CredentialChange
from headrace.errors import PolicyViolation
from headrace.http.face import HttpFace
from headrace.runtime.scram import SHA_256, new_credential, salt_text
from headrace.runtime.security_protocols import SASL_PLAINTEXT

if TYPE_CHECKING:
    from tests.unit.http.test_logins import Address

ACME = ListenerSecurity("HTTP", SASL_PLAINTEXT, tenant="acme")
KEYS = {"«acme»alice": "of acme", "«beta»alice": "of beta", "root": "of root"}


async def prepare(address: Address) -> None:
    services = address.node.services
    assert services.access is not None
    for tenant in ("acme", "beta"):
        await services.access.tenants.create(tenant, [])
    for user, password in KEYS.items():
        change = CredentialChange(user, SHA_256, new_credential(SHA_256, password, salt_text(1)))
        assert await services.authentication.users.change([change]) == {user: None}


def body_of(answer: str) -> Any:
    return json.loads(answer.partition("\r\n\r\n")[2])


async def test_a_tenants_own_user_is_known_by_its_name_in_all_ways_of_logging_in():
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(listener=ACME, **config) as address:
        await prepare(address)
        alice = basic("alice", "of acme")
        topic = {"name": "orders", "partitions": 1}
        headers = (f"Authorization: {alice}",)
        assert (await ask(address, "POST", "/v1/topics", *headers, body=topic))[0] == 201
        assert "«acme»orders" in address.node.topics.by_name
        answers = [(await get(address, "/v1/session", alice))[1]]
        signing_in = {"user": "alice", "password": "of acme"}
        status, signed_in = await ask(address, "POST", "/v1/session", body=signing_in)
        assert status == 200
        answers.append(signed_in)
        assert {body_of(one)["principal"] for one in answers} == {"User:alice"}
        assert "set-cookie" in signed_in.lower()
        answers.append((await get(address, "/v1/cluster", alice))[1])
        assert not [one for one in answers if address.node.cluster_id in one]
        new = {"name": "mine", "user": "alice"}
        status, made = await ask(address, "POST", "/v1/keys", *headers, body=new)
        assert (status, body_of(made)["principal"]) == (201, "User:alice")
        bearer = f"Bearer {body_of(made)['key']}"
        listed = (await get(address, "/v1/topics", bearer))[1]
        assert [one["name"] for one in body_of(listed)["topics"]] == ["orders"]
        status, refused = await get(address, "/v1/acls", alice)
        assert status == 403
        assert "User:alice may not" in body_of(refused)["detail"]
        answers += [made, listed, refused, (await get(address, "/v1/keys", alice))[1]]
        assert not [one for one in answers if "«" in one or "\\u00ab" in one]
        # Whose password it is elsewhere, or how the name is written, gives nothing.
        for name, password in (
            *(("alice", "of beta"), ("«beta»alice", "of beta"), ("beta/alice", "of beta")),
            *(("«acme»alice", "of acme"), ("alice", "pä:ss")),
        ):
            assert (await get(address, "/v1/topics", basic(name, password)))[0] == 401, name
        status, all_topics = await get(address, "/v1/topics", basic("root", "of root"))
        assert (status, body_of(all_topics)["topics"][0]["name"]) == (200, "acme/orders")
        status, kept = await ask(
            *(address, "DELETE", "/v1/tenants/beta"),
            f"Authorization: {basic('root', 'of root')}",
        )
        assert (status, "the tenant has 1 users" in kept) == (409, True)


async def test_a_rule_of_a_key_about_a_user_names_the_tenants_own():
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(listener=ACME, **config) as address:
        await prepare(address)
        services = address.node.services
        rule = {"operation": "DESCRIBE", "resource": "user", "name": "User:carol"}
        scope = [rule, rule | {"name": "User:", "pattern": "prefixed"}, rule | {"name": "*"}]
        for who, own in (("alice", "«acme»"), ("root", "")):
            header = f"Authorization: {basic(who, KEYS.get(f'«acme»{who}') or KEYS[who])}"
            new = {"name": "k", "scope": scope}
            status, made = await ask(address, "POST", "/v1/keys", header, body=new)
            assert status == 201, made
            key = services.issuers.keys.get(body_of(made)["id"])
            assert key is not None
            assert key.scope is not None
            names = [one.pattern.name for one in key.scope.rules]
            assert names == [f"User:{own}carol", f"User:{own}", "*"]
            assert [one["name"] for one in body_of(made)["scope"]] == ["User:carol", "User:", "*"]


async def test_keys_and_sessions_of_own_users_count_where_their_passwords_do():
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(listener=ACME, **config) as address:
        await prepare(address)
        services = address.node.services
        assert services.access is not None
        everybody = Entry("User:*", "*", Operation.ALL, Permission.ALLOW)
        topics = Pattern(ResourceType.TOPIC, "*")
        assert await services.access.create([Acl(topics, everybody)]) == [None]
        signed_in = await ask(
            address, "POST", "/v1/session", body={"user": "alice", "password": "of acme"}
        )
        cookie = signed_in[1].partition("set-cookie: ")[2].partition(";")[0]
        assert cookie
        key, _ = await services.issuers.keys.create(NewKey("k", Principal("«acme»alice")))
        shown = (f"Cookie: {cookie}", f"Authorization: Bearer {key}")
        face = HttpFace(services, address.node.tasks, address.kafka)
        beta = ListenerSecurity("HTTP", SASL_PLAINTEXT, tenant="beta")
        places = [(address, 200)]
        places += [(await face.listen("127.0.0.1", 0, one), 401) for one in (HTTP, beta)]
        face.serve_ready()
        try:
            for place, status in places:
                for header in shown:
                    found = await ask(place, "GET", "/v1/topics", header)
                    assert found[0] == status, (place, header)
        finally:
            await face.close()


async def test_operators_write_a_slash_between_tenant_and_topic():
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(**config) as address:
        await prepare(address)
        root = f"Authorization: {basic('root', 'of root')}"

        async def operate(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            status, answer = await ask(address, method, path, root, body=body)
            return status, body_of(answer)

        made = {"name": "acme/orders", "partitions": 1}
        assert (await operate("POST", "/v1/topics", made))[0] == 201
        assert "«acme»orders" in address.node.topics.by_name
        sent = {"records": [{"value": "v"}]}
        assert (await operate("POST", "/v1/topics/acme%2Forders/records", sent))[0] == 200
        status, found = await operate("GET", "/v1/topics/acme%2Forders")
        assert (status, found["name"]) == (200, "acme/orders")
        _, listed = await operate("GET", "/v1/topics?prefix=acme/or")
        assert [one["name"] for one in listed["topics"]] == ["acme/orders"]
        # Groups may have slashes: theirs are names of the default tenant.
        queue = "/v1/queues/acme%2Forders/acme%2Fg"
        assert (await operate("POST", f"{queue}/receive", {}))[0] == 200
        _, groups = await operate("GET", "/v1/groups")
        assert [one["group"] for one in groups["groups"]] == ["acme/g"]
        status, refused = await operate("POST", "/v1/topics", made | {"name": "nobody/orders"})
        assert (status, "there is no tenant 'nobody'" in refused["detail"]) == (409, True)
        # Others have no rights to it, and learn nothing of it.
        alice = f"Authorization: {basic('alice', 'pä:ss')}"
        told = {
            (await ask(address, "GET", f"/v1/topics/acme%2F{name}", alice))[1].replace(name, "")
            for name in ("orders", "absent")
        }
        assert len({one.partition("\r\n\r\n")[2] for one in told}) == 1
    async with served(**config) as address:  # without tenants a slash is in no topic's name
        change = CredentialChange("root", SHA_256, new_credential(SHA_256, "x", salt_text(1)))
        await address.node.services.authentication.users.change([change])
        root = f"Authorization: {basic('root', 'x')}"
        status, answer = await ask(address, "POST", "/v1/topics", root, body=made)
        assert (status, "'acme/orders' is not a valid topic name" in answer) == (409, True)


async def test_what_a_tenants_users_have_leaves_room_for_the_operators(monkeypatch):
    """20 in all: 2 for a tenant, 18 for all tenants."""
    names = {browser_sessions: ["SESSIONS"], api_keys: ["KEYS"], users: ["USERS"]}
    names[tenant_shares] = ["EMPTY"]
    for module, name in ((module, name) for module, found in names.items() for name in found):
        monkeypatch.setattr(module, f"{name}_MAX", 20)
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(listener=ACME, **config) as address:
        await prepare(address)
        services = address.node.services

        async def sign_in(user: str) -> tuple[int, str]:
            body = {"user": user, "password": KEYS.get(f"«acme»{user}", f"of {user}")}
            return await ask(address, "POST", "/v1/session", body=body)

        assert [(await sign_in("alice"))[0] for _ in range(3)] == [200, 200, 403]
        assert "the tenant has 2 browser sessions, the limit of one" in (await sign_in("alice"))[1]
        assert (await sign_in("root"))[0] == 200
        tenants, keys = services.access.tenants, services.issuers.keys
        await tenants.change("acme", ["User:bob"])
        await keys.create(NewKey("1", Principal("bob")))
        await keys.create(NewKey("2", Principal("«acme»alice")))
        with pytest.raises(PolicyViolation, match="the tenant has 2 API keys"):
            await keys.create(NewKey("3", Principal("bob")))
        await keys.create(NewKey("3", Principal("root")))
        await tenants.move("beta", ["User:bob"])
        await keys.create(NewKey("3", Principal("«acme»alice")))
        credential = new_credential(SHA_256, "x", salt_text(1))
        new = {f"«acme»u{number}": SHA_256 for number in range(2)} | {"u": SHA_256}
        changes = [CredentialChange(user, one, credential) for user, one in new.items()]
        errors = await services.authentication.users.change(changes)
        assert [str(one or "")[:38] for one in errors.values()] == [
            *("", "the tenant has 2 users, the limit of o", "")
        ]
        # Of users that come and go something stays for a while, which is bounded, too.
        change, refused = services.authentication.users.change, ""
        for number in range(10):
            name = f"«beta»v{number}"
            (error,) = (await change([CredentialChange(name, SHA_256, credential)])).values()
            if error is not None:
                refused = str(error)
                break
            await change([CredentialChange(name, SHA_256, None)])
        assert "tenant has 2 names of removed users, the limit of one tenant" in refused
        assert "use one of them again" in refused
        again = [CredentialChange("«beta»v0", SHA_256, credential)]
        assert await change(again) == {"«beta»v0": None}
        assert await change([CredentialChange("«beta»v0", SHA_256, None)]) == {"«beta»v0": None}
        for _ in range(2):
            await services.authentication.users.facts.sweep(lambda: True)
        afterwards = [CredentialChange("«beta»v9", SHA_256, credential)]
        assert await change(afterwards) == {"«beta»v9": None}


@pytest.mark.parametrize(
    ("tenant", "counts", "excess"),
    [
        ("", {"a": 10, "b": 80}, ""),
        ("c", {"a": 10, "b": 80}, "tenants have 90 users, the limit of all tenants together"),
        ("a", {"a": 10}, "the tenant has 10 users, the limit of one tenant"),
        ("b", {"a": 10, "": 80}, ""),
        ("b", {"a": 10, "": 90}, "the cluster has 100 users, its limit"),
        ("", {"a": 10, "": 90}, "the cluster has 100 users, its limit"),
    ],
)
def test_a_limit_says_whose_it_is(tenant, counts, excess):
    assert TenantShares("users", 100).excess(tenant, counts) == excess


async def test_problems_name_what_tenants_have_as_operators_write_it():
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(**config) as address:
        await prepare(address)
        address.node.topics.damaged_facts["/topics/«acme»x"] = "«acme»x is damaged: restore it"
        _status, answer = await get(address, "/readyz", basic("root", "of root"))
        problem = {"what": "/topics/acme/x", "reason": "acme/x is damaged: restore it"}
        assert body_of(answer)["problems"] == [problem | {"is_passing": False}]


async def test_people_who_administer_a_tenant_have_its_users_and_rules_alone(caplog):
    caplog.set_level(logging.INFO, "headrace.audit")
    """By one right, which an operator gives them by name; also by a key with no more than that."""
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(listener=ACME, **config) as address:
        await prepare(address)
        root, alice = (
            (f"Authorization: {basic(who, password)}",)
            for who, password in (("root", "of root"), ("alice", "of acme"))
        )
        given = {"permission": "allow", "principal": "User:acme/alice", "operation": "ALL"}
        given |= {"resource": "cluster", "name": "acme/kafka-cluster"}
        own = {"permission": "allow", "principal": "User:bob", "operation": "READ"}
        own |= {"resource": "topic", "name": "orders"}
        for body in (given, own):
            assert (await ask(address, "POST", "/v1/acls", *alice, body=body))[0] == 403
        status, made = await ask(address, "POST", "/v1/acls", *root, body=given)
        assert (status, body_of(made)["acl"]["name"]) == (200, "acme/kafka-cluster")
        changes = address.node.audit.changed_total
        answers = []
        for path, body, expected in (
            ("/v1/acls?dry_run=true", own, 200),
            ("/v1/acls?dry_run=true", given | {"name": "kafka-cluster"}, 403),
            ("/v1/acls", own | {"name": "«beta»orders"}, 400),
            ("/v1/acls", own, 200),
            ("/v1/acls", own | {"name": "*", "operation": "WRITE"}, 200),
            ("/v1/users", {"user": "dora", "password": "of dora"}, 201),
        ):
            status, answer = await ask(address, "POST", path, *alice, body=body)
            assert status == expected, answer
            answers.append(answer)
        assert address.node.audit.changed_total == changes + 4  # with one that failed
        quota = {"user": "dora", "set": {"producer_byte_rate": 9}}
        for body, expected in ((quota, 200), ({"default_user": True} | {"set": quota["set"]}, 403)):
            status, answer = await ask(address, "PATCH", "/v1/quotas", *alice, body=body)
            assert status == expected, answer
        status, listed = await ask(address, "GET", "/v1/quotas", *alice)
        assert [one["id"] for one in body_of(listed)["quotas"]] == ["user=dora"]
        answers += [answer, listed]
        status, listed = await ask(address, "GET", "/v1/quotas", *root)
        assert [one["entity"]["user"] for one in body_of(listed)["quotas"]] == ["acme/dora"]
        status, _ = await ask(address, "DELETE", "/v1/quotas?user=dora", *alice)
        assert (status, address.node.services.quotas.find()) == (200, [])
        texts = [one.getMessage() for one in caplog.records if one.name == "headrace.audit"]
        lines = [json.loads(text) for text in texts]
        noted = [one["resources"] for one in lines if "Quota" in one.get("request", "")]
        assert noted == [["acme/dora"], ["kafka-cluster"], ["acme/dora"]]
        assert address.node.access is not None
        patterns = {str(one.pattern) for one in address.node.access.find(AclFilter())}
        assert patterns == {
            *("cluster «acme»kafka-cluster", "topic «acme»orders", "topic «acme» (prefix)")
        }
        question = {one: own[one] for one in ("principal", "operation", "resource", "name")}
        status, found = await ask(address, "POST", "/v1/acl-explanations", *alice, body=question)
        assert (status, body_of(found)["allowed"]) == (200, True)
        new = {"name": "k", "scope": [{"operation": "ALTER", "resource": "cluster"}]}
        new["scope"][0]["name"] = "kafka-cluster"
        status, key = await ask(address, "POST", "/v1/keys", *alice, body=new)
        assert (status, body_of(key)["scope"][0]["name"]) == (201, "kafka-cluster")
        bearer = (f"Authorization: Bearer {body_of(key)['key']}",)
        status, listed = await ask(address, "GET", "/v1/acls", *bearer)
        shown = {(one["name"], one["principal"]) for one in body_of(listed)["acls"]}
        assert shown == {("kafka-cluster", "User:alice"), ("orders", "User:bob"), ("*", "User:bob")}
        removed = {}
        for one in body_of(listed)["acls"]:
            path = f"/v1/acls/{one['id']}"
            for query in ("?dry_run=true", ""):
                status, answer = await ask(address, "DELETE", path + query, *bearer)
                answers.append(answer)
                removed[one["name"], query] = status
        dry = {(name, "?dry_run=true"): status for (name, _), status in removed.items()}
        assert removed == dry | {
            (name, ""): 403 if name == "kafka-cluster" else 200 for name, _ in removed
        }
        answers += [found, key, listed]
        assert not [one for one in answers if "«acme" in one or "\\u00abacme" in one]
        assert len(address.node.access.find(AclFilter())) == 1


async def test_a_tenant_is_closed_only_if_all_brokers_know_what_that_is(monkeypatch):
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(**config) as address:
        root = f"Authorization: {basic('root', 'of root')}"
        await prepare(address)
        cluster = address.node.services.cluster
        own = cluster.brokers()[0]
        older = replace(own, facts_version=1)
        monkeypatch.setattr(cluster, "brokers", lambda: [own, older])
        for method, path, body in (
            ("POST", "/v1/tenants", {"name": "gamma", "access": "rules"}),
            ("PATCH", "/v1/tenants/acme", {"access": "rules"}),
        ):
            status, answer = await ask(address, method, path, root, body=body)
            assert (status, "all brokers have this version" in answer) == (403, True)
        status, _ = await ask(address, "PATCH", "/v1/tenants/acme", root, body={"access": "all"})
        assert status == 200
        monkeypatch.setattr(cluster, "brokers", lambda: [own, own])
        body = {"access": "rules"}
        assert (await ask(address, "PATCH", "/v1/tenants/acme", root, body=body))[0] == 200
