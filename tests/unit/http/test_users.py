"""Users over HTTP: who may change them, and where passwords are."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.http.test_logins import ask, basic, get, served
from tests.unit.http.test_tenant_users import ACME, prepare

from headrace.broker.security.acls import Acl, Entry, Pattern, PatternType, Permission
from headrace.broker.security.authorizer import Operation, ResourceType

if TYPE_CHECKING:
    from tests.unit.http.test_logins import Address

ALICE = f"Authorization: {basic('alice', 'pä:ss')}"
ADMIN: dict[str, Any] = {"authorizer": "acl", "super_users": "User:alice"}


async def call(
    address: Address, method: str, path: str, body: Any = None, who: str = ALICE
) -> tuple[int, Any]:
    status, answer = await ask(address, method, path, who, body=body)
    return status, json.loads(answer.rpartition("\r\n\r\n")[2] or "null")


async def may_log_in(address: Address, user: str, password: str) -> bool:
    return (await get(address, "/v1/session", basic(user, password)))[0] == 200


async def test_a_user_is_created_gets_another_password_and_is_removed():
    async with served(**ADMIN) as address:
        new = {"user": "bob", "password": "first"}
        status, answer = await call(address, "POST", "/v1/users?dry_run=true", new)
        assert (status, answer["dry_run"]) == (200, True)
        assert not await may_log_in(address, "bob", "first")
        status, answer = await call(address, "POST", "/v1/users", new)
        assert (status, {*answer}) == (201, {"user", "mechanisms", "dry_run"})
        assert await may_log_in(address, "bob", "first")
        status, answer = await call(address, "POST", "/v1/users", new)
        assert (status, answer["code"]) == (409, "CredentialDuplicate")
        status, answer = await call(address, "GET", "/v1/users")
        assert [one["user"] for one in answer["users"]] == ["alice", "bob"]
        path = "/v1/users/bob/password"
        status, answer = await call(address, "PUT", path, {"mechanisms": ["SCRAM-SHA-512"]})
        assert (status, answer["mechanisms"]) == (200, {"SCRAM-SHA-512": 4096})
        assert not await may_log_in(address, "bob", "first")  # nor by the mechanism that it had
        assert await may_log_in(address, "bob", answer["password"])
        assert (await call(address, "DELETE", "/v1/users/bob?dry_run=true"))[0] == 200
        assert await may_log_in(address, "bob", answer["password"])
        assert (await call(address, "DELETE", "/v1/users/bob"))[0] == 200
        assert not await may_log_in(address, "bob", answer["password"])
        for method, path, body in (
            ("DELETE", "/v1/users/bob", None),
            ("PUT", "/v1/users/bob/password", {"password": "x"}),
        ):
            status, answer = await call(address, method, path, body)
            assert (status, answer["code"]) == (404, "CredentialUnknown")


async def test_a_password_is_in_one_answer_at_most_and_in_no_log(caplog):
    caplog.set_level(logging.DEBUG)
    async with served(**ADMIN) as address:
        given, answers = {"user": "bob", "password": "s3cret-of-bob"}, []
        for method, path in (("POST", "/v1/users"), ("POST", "/v1/users"), ("GET", "/v1/users")):
            answers.append((await ask(address, method, path, ALICE, body=given))[1])
        bad = {**given, "password": "s3cret-of-bob" * 100}
        for body in (bad, {**given, "other": 1}, {**given, "user": "\n"}):
            answers.append((await ask(address, "POST", "/v1/users", ALICE, body=body))[1])
        assert "s3cret-of-bob" not in str(answers)
        _, made = await ask(address, "PUT", "/v1/users/bob/password", ALICE, body={})
        assert "cache-control: no-store" in made.lower()
        password = json.loads(made.rpartition("\r\n\r\n")[2])["password"]
        assert len(password) == 24
        assert password not in str(await call(address, "GET", "/v1/users"))
    audited = [json.loads(one.message) for one in caplog.records if one.name == "headrace.audit"]
    assert [(one["request"], one["resources"]) for one in audited][-1] == ("setPassword", ["bob"])
    said = "\n".join(map(str, (one.getMessage() for one in caplog.records)))
    assert "s3cret-of-bob" not in said
    assert password not in said


async def test_who_changes_the_own_password_gets_the_answer_and_must_log_in_again():
    async with served(**ADMIN) as address:
        status, answer = await call(address, "PUT", "/v1/users/alice/password", {"password": "new"})
        assert status == 200, answer
        assert not await may_log_in(address, "alice", "pä:ss")
        assert await may_log_in(address, "alice", "new")


async def test_an_api_key_changes_no_users():
    async with served(**ADMIN) as address:
        _, key = await call(address, "POST", "/v1/keys", {"name": "robot"})
        who = f"Authorization: Bearer {key['key']}"
        assert (await call(address, "GET", "/v1/users", who=who))[0] == 200
        for method, path, body in (
            ("POST", "/v1/users", {"user": "bob"}),
            ("PUT", "/v1/users/alice/password", {"password": "x"}),
            ("DELETE", "/v1/users/alice", None),
        ):
            status, answer = await call(address, method, path, body, who)
            assert (status, answer["code"]) == (403, "Unauthorized")
        assert await may_log_in(address, "alice", "pä:ss")


@pytest.mark.parametrize("name", ["headrace-helper:x", "a\u0007", "x" * 101, ""])
async def test_names_that_no_user_may_have_are_refused(name):
    async with served(**ADMIN) as address:
        status, answer = await call(address, "POST", "/v1/users", {"user": name})
        assert status in {400, 409}, answer
        assert len(address.node.services.users.names()) == 1


async def test_people_of_a_tenant_administer_its_own_users_and_see_no_others():
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(listener=ACME, **config) as address:
        await prepare(address)
        who = f"Authorization: {basic('alice', 'of acme')}"
        assert (await call(address, "GET", "/v1/users", who=who))[0] == 403
        assert (await call(address, "POST", "/v1/users", {"user": "carol"}, who))[0] == 403
        pattern = Pattern(ResourceType.USER, "User:«acme»", PatternType.PREFIXED)
        access = address.node.services.access
        assert access is not None
        for right in (Operation.DESCRIBE, Operation.ALTER):
            await access.create(
                [Acl(pattern, Entry("User:«acme»alice", "*", right, Permission.ALLOW))]
            )
        status, made = await call(address, "POST", "/v1/users", {"user": "carol"}, who)
        assert (status, made["user"]) == (201, "carol")
        assert await may_log_in(address, "carol", made["password"])
        users = address.node.services.users
        assert {"«acme»carol", "«beta»alice"} <= {*users.names()}
        status, answer = await call(address, "GET", "/v1/users", who=who)
        assert [one["user"] for one in answer["users"]] == ["alice", "carol"]
        assert "«" not in str(answer)
        status, answer = await call(address, "DELETE", "/v1/users/root", who=who)
        assert (status, answer["code"]) == (404, "CredentialUnknown")
        assert (await call(address, "DELETE", "/v1/users/carol", who=who))[0] == 200
        assert "«acme»carol" not in users.names()
        root = f"Authorization: {basic('root', 'of root')}"
        status, answer = await call(address, "GET", "/v1/users", who=root)
        assert {"acme/alice", "alice", "beta/alice"} <= {one["user"] for one in answer["users"]}
        status, made = await call(address, "POST", "/v1/users", {"user": "acme/dave"}, root)
        assert (status, made["user"]) == (201, "acme/dave")
        assert await may_log_in(address, "dave", made["password"])
        status, answer = await call(address, "PUT", "/v1/users/acme%2Fdave/password", {}, root)
        assert (status, answer["user"]) == (200, "acme/dave")
        assert await may_log_in(address, "dave", answer["password"])
        assert (await call(address, "DELETE", "/v1/users/acme%2Fdave", who=root))[0] == 200
        assert "«acme»dave" not in users.names()


async def test_a_key_that_is_refused_is_in_the_audit_log_with_the_tenants_user(caplog):
    config: dict[str, Any] = {"authorizer": "acl", "super_users": "User:root"}
    async with served(listener=ACME, **config) as address:
        await prepare(address)
        access = address.node.services.access
        assert access is not None
        pattern = Pattern(ResourceType.USER, "User:«acme»", PatternType.PREFIXED)
        entry = Entry("User:«acme»alice", "*", Operation.ALTER, Permission.ALLOW)
        assert await access.create([Acl(pattern, entry)]) == [None]
        who = f"Authorization: {basic('alice', 'of acme')}"
        _, key = await call(address, "POST", "/v1/keys", {"name": "robot"}, who)
        who = f"Authorization: Bearer {key['key']}"
        caplog.set_level(logging.INFO, "headrace.audit")
        caplog.clear()
        for method, path, body in (
            ("POST", "/v1/users", {"user": "bob"}),
            ("PUT", "/v1/users/bob/password", {}),
            ("DELETE", "/v1/users/bob", None),
        ):
            assert (await call(address, method, path, body, who))[0] == 403
    lines = [json.loads(one.getMessage()) for one in caplog.records if one.name == "headrace.audit"]
    assert [(one["resources"], one["failed"]) for one in lines] == [(["acme/bob"], 1)] * 3


async def test_a_page_of_users_describes_no_others(monkeypatch):
    """There may be 100,000, and each page is asked for by itself."""
    async with served(**ADMIN) as address:
        for name in ("bob", "carol", "dave"):
            assert (await call(address, "POST", "/v1/users", {"user": name}))[0] == 201
        users, described = address.node.services.users, []
        describe = users.described

        def counted(user: str, prefix: str = "") -> Any:
            described.append(user)
            return describe(user, prefix)

        monkeypatch.setattr(users, "described", counted)
        _, first = await call(address, "GET", "/v1/users?limit=2")
        token = first["next_page_token"]
        _, rest = await call(address, "GET", f"/v1/users?limit=2&page_token={token}")
        found = [*first["users"], *rest["users"]]
        assert [one["user"] for one in found] == described == ["alice", "bob", "carol", "dave"]
        assert all(one["mechanisms"] for one in found)
