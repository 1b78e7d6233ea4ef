"""Credentials of super users: super users alone make, change and remove them, and keep the last."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.http.test_logins import basic, served
from tests.unit.http.test_users import call, may_log_in

from headrace.broker.security.acls import Acl, Entry, Pattern, PatternType, Permission
from headrace.broker.security.api_keys import NewKey
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.services.user_administration import NewPassword

if TYPE_CHECKING:
    from tests.unit.http.test_logins import Address

BOB = f"Authorization: {basic('bob', 'of bob')}"
CONFIG: dict[str, Any] = {
    "authorizer": "acl",
    "super_users": "User:alice;User:root;User:CN=ops,O=acme",
}


async def administrator(address: Address) -> None:
    """Bob, who may alter the cluster and make keys for everybody."""
    services = address.node.services
    await services.users.create("bob", NewPassword("of bob"))
    assert services.access is not None
    cluster = Pattern(ResourceType.CLUSTER, CLUSTER_NAME)
    users = Pattern(ResourceType.USER, "*", PatternType.LITERAL)
    rights = (
        *((cluster, one) for one in (Operation.ALTER, Operation.DESCRIBE)),
        *((users, one) for one in (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS)),
    )
    for pattern, right in rights:
        entry = Entry("User:bob", "*", right, Permission.ALLOW)
        assert await services.access.create([Acl(pattern, entry)]) == [None]


@pytest.mark.parametrize("dry_run", ["", "?dry_run=true"])
async def test_only_a_super_user_changes_the_credentials_of_one(dry_run, caplog):
    async with served(**CONFIG) as address:
        await administrator(address)
        caplog.set_level(logging.INFO, "headrace.audit")
        for method, path, body in (
            ("POST", "/v1/users", {"user": "root", "password": "x"}),
            ("POST", "/v1/users", {"user": "CN=ops,O=acme", "password": "x"}),
            ("PUT", "/v1/users/alice/password", {"password": "x"}),
            ("DELETE", "/v1/users/alice", None),
        ):
            status, answer = await call(address, method, path + dry_run, body, BOB)
            assert (status, answer["code"]) == (403, "Unauthorized"), (method, path)
            assert "super.users" in answer["detail"]
            assert "log in as a super user" in answer["detail"]
        assert not await may_log_in(address, "root", "x")
        assert await may_log_in(address, "alice", "pä:ss")
        denied = [
            line["resource"]
            for one in caplog.records
            if one.name == "headrace.audit"
            and (line := json.loads(one.getMessage()))["event"] == "denied"
        ]
        names = ["root", "CN=ops,O=acme", "alice", "alice"]
        assert denied == [f"USER:User:{one}" for one in names]
        status, _ = await call(address, "POST", "/v1/users", {"user": "carol"}, BOB)
        assert status == 201, "users without that right as before"
        status, _ = await call(address, "POST", "/v1/users", {"user": "root"})
        assert status == 201, "a super user makes one"


async def test_only_a_super_user_makes_and_revokes_keys_of_one():
    async with served(**CONFIG) as address:
        await administrator(address)
        keys = address.node.services.issuers.keys
        _, of_alice = await keys.create(NewKey("hers", Principal("alice")))
        _, of_carol = await keys.create(NewKey("hers", Principal("carol")))
        for method, path, body in (
            ("POST", "/v1/keys", {"name": "x", "user": "alice"}),
            ("DELETE", f"/v1/keys/{of_alice.id}", None),
        ):
            status, answer = await call(address, method, path, body, BOB)
            assert (status, answer["code"]) == (403, "Unauthorized"), (method, path)
            assert "super.users" in answer["detail"]
        assert keys.is_valid(of_alice.id)
        assert (await call(address, "DELETE", f"/v1/keys/{of_carol.id}", None, BOB))[0] == 200
        body = {"name": "x", "user": "root"}
        assert (await call(address, "POST", "/v1/keys", body))[0] == 201


async def test_the_last_super_user_with_a_password_is_removed_only_if_that_is_forced():
    async with served(**CONFIG) as address:
        for dry_run in ("?dry_run=true", ""):
            status, answer = await call(address, "DELETE", f"/v1/users/alice{dry_run}")
            assert (status, answer["code"]) == (403, "PolicyViolation"), answer
            assert "no other super user has a password" in answer["detail"]
            assert "force=true" in answer["detail"]
        assert await may_log_in(address, "alice", "pä:ss")
        assert (await call(address, "POST", "/v1/users", {"user": "root"}))[0] == 201
        assert (await call(address, "DELETE", "/v1/users/alice?dry_run=true"))[0] == 200
        assert (await call(address, "DELETE", "/v1/users/root"))[0] == 200, "alice is logged in"
        assert (await call(address, "DELETE", "/v1/users/alice?force=true"))[0] == 200
        assert not await may_log_in(address, "alice", "pä:ss")


async def test_a_super_user_who_has_shown_a_token_removes_its_own_password():
    async with served(**CONFIG) as address:
        who = "Authorization: Bearer good"
        assert (await call(address, "DELETE", "/v1/users/alice", None, who))[0] == 200
        assert not await may_log_in(address, "alice", "pä:ss")
