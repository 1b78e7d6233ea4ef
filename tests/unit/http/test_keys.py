"""API keys: what they may do, and when they end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.unit.http.test_logins import Address, ask, basic, get, served, set_password
from tests.unit.http.test_sessions import sign_in

from headrace.broker.security import api_keys
from headrace.metadata.issued_facts import API_KEYS

ALICE = f"Authorization: {basic('alice', 'pä:ss')}"
READ_ORDERS = {"operation": "READ", "resource": "topic", "name": "orders"}


async def create(address: Address, name: str = "nightly", **more: Any) -> dict[str, Any]:
    """What the broker answers when alice creates a key."""
    status, answer = await ask(address, "POST", "/v1/keys", ALICE, body={"name": name, **more})
    assert status == 201, answer
    made: dict[str, Any] = json.loads(answer.rpartition("\r\n\r\n")[2])
    return made


def bearer(made: dict[str, Any]) -> str:
    return f"Bearer {made['key']}"


async def make_topics(address: Address) -> None:
    for name in ("orders", "orders-eu", "secrets"):
        await address.node.topics.create(name)


async def listed(address: Address, key: dict[str, Any]) -> list[str]:
    status, answer = await get(address, "/v1/topics", bearer(key))
    assert status == 200, answer
    return [one["name"] for one in json.loads(answer.rpartition("\r\n\r\n")[2])["topics"]]


async def test_a_key_acts_as_its_user_until_it_is_revoked():
    async with served() as address:
        made = await create(address)
        assert made["principal"] == "User:alice"
        status, answer = await get(address, "/v1/session", bearer(made))
        assert '"by":"key"' in answer
        assert (await get(address, "/v1/topics", bearer(made)))[0] == 200
        status, answer = await ask(address, "GET", "/v1/keys", ALICE)
        assert made["id"] in answer
        assert made["key"] not in answer
        path = f"/v1/keys/{made['id']}"
        assert (await ask(address, "DELETE", path, ALICE))[0] == 200
        status, answer = await get(address, "/v1/topics", bearer(made))
        assert status == 401
        assert "the credentials are not valid" in answer
        assert (await ask(address, "DELETE", path, ALICE))[0] == 404


@pytest.mark.parametrize("authorizer", ["none", "acl"])
async def test_a_scope_narrows_what_the_user_may_do(authorizer):
    config = {"authorizer": authorizer, "super_users": "User:alice"}
    async with served(**config) as address:
        await make_topics(address)
        key = await create(address, scope=[READ_ORDERS])
        assert await listed(address, key) == ["orders"]
        prefixed = await create(
            address, "eu", scope=[READ_ORDERS | {"name": "orders-", "pattern": "prefixed"}]
        )
        assert await listed(address, prefixed) == ["orders-eu"]
        for method, path, body in (
            ("GET", "/v1/topics/secrets", None),
            ("DELETE", "/v1/topics/orders", None),
            ("POST", "/v1/topics/orders/records", {"records": [{"value": "x"}]}),
            ("GET", "/metrics", None),
            ("GET", "/v1/quotas", None),
        ):
            given = f"Authorization: {bearer(key)}"
            status, answer = await ask(address, method, path, given, body=body)
            assert status == 403, (path, answer)
            if path.startswith("/v1"):
                assert "by its scope" in answer, "no rule would help"
                assert "headrace key create" in answer
        records = "/v1/topics/orders/records?partition=0&offset=0"
        assert (await get(address, records, bearer(key)))[0] == 200


async def test_a_scope_gives_no_right_that_the_user_lacks():
    async with served(authorizer="acl") as address:
        await make_topics(address)
        every = READ_ORDERS | {"name": "*", "operation": "ALL"}
        key = await create(address, scope=[every])
        assert await listed(address, key) == []
        status, answer = await get(address, "/v1/topics/secrets", bearer(key))
        assert (status, "headrace acl add" in answer) == (403, True)


async def test_a_key_makes_no_keys_and_no_session():
    async with served() as address:
        made = await create(address)
        given = f"Authorization: {bearer(made)}"
        body = {"name": "another"}
        assert (await ask(address, "POST", "/v1/keys", given, body=body))[0] == 403
        path = f"/v1/keys/{made['id']}"
        assert (await ask(address, "DELETE", path, given))[0] == 403
        page = await sign_in(address)
        status, answer = await ask(address, "POST", "/v1/keys", page.cookie, page.csrf, body=body)
        assert status == 201, answer


async def test_keys_of_others_need_a_right_and_are_not_shown_without():
    async with served(authorizer="acl") as address:
        body = {"name": "x", "user": "bob"}
        status, answer = await ask(address, "POST", "/v1/keys", ALICE, body=body)
        assert status == 403, answer
        new = api_keys.NewKey("of-bob", api_keys.Principal("bob"))
        _, key = await address.node.services.issuers.keys.create(new)
        _, answer = await ask(address, "GET", "/v1/keys", ALICE)
        assert key.id not in answer
        absent = await ask(address, "DELETE", f"/v1/keys/{'0' * 16}", ALICE)
        hidden = await ask(address, "DELETE", f"/v1/keys/{key.id}", ALICE)
        assert hidden[0] == absent[0] == 404
        assert hidden[1].rpartition("\r\n\r\n")[2] == absent[1].rpartition("\r\n\r\n")[2]


async def test_a_dry_run_makes_and_revokes_no_key_and_refuses_what_would_be(monkeypatch):
    monkeypatch.setattr(api_keys, "KEYS_OF_OWNER_MAX", 1)
    async with served() as address:
        keys = address.node.services.issuers.keys
        path, body = "/v1/keys?dry_run=true", {"name": "nightly", "scope": [READ_ORDERS]}
        status, answer = await ask(address, "POST", path, ALICE, body=body)
        shown = json.loads(answer.rpartition("\r\n\r\n")[2])
        assert (status, shown["dry_run"], shown["name"]) == (200, True, "nightly")
        assert shown["scope"] == [READ_ORDERS | {"pattern": "literal"}]
        assert not {"id", "key", "secret"} & {*shown}
        assert [*keys.all()] == []
        assert (await ask(address, "POST", path, ALICE, body={"name": "bad\n"}))[0] == 400
        made = await create(address)
        assert made["dry_run"] is False
        status, answer = await ask(address, "POST", path, ALICE, body={"name": "another"})
        assert (status, "revoke some first" in answer) == (403, True)
        revoked = f"/v1/keys/{made['id']}?dry_run=true"
        status, answer = await ask(address, "DELETE", revoked, ALICE)
        assert (status, '"dry_run":true' in answer) == (200, True)
        assert keys.is_valid(made["id"])
        assert (await ask(address, "DELETE", f"/v1/keys/{'0' * 16}?dry_run=true", ALICE))[0] == 404


async def test_a_key_ends_with_its_user_and_does_not_come_back():
    async with served() as address:
        made = await create(address)
        await set_password(address.node, "another")
        assert (await get(address, "/v1/topics", bearer(made)))[0] == 200
        await set_password(address.node, None)
        assert (await get(address, "/v1/topics", bearer(made)))[0] == 401
        async with asyncio.timeout(5):
            while await address.node.metadata.list(API_KEYS):
                await asyncio.sleep(0.01)
        await set_password(address.node, "another")
        assert (await get(address, "/v1/topics", bearer(made)))[0] == 401


async def test_a_key_expires_and_only_a_hash_of_it_is_stored_and_nothing_is_logged(caplog):
    caplog.set_level("DEBUG")

    async with served() as address:
        made = await create(address, lifetime_ms=60_000)
        secret = made["key"].split("_", 2)[2]
        (entry,) = await address.node.metadata.list(API_KEYS)
        assert secret not in entry.key + entry.value.decode()
        assert secret not in caplog.text
        for wrong in (made["key"][:-1] + "!", f"hrk_{made['id']}_{'A' * 43}", "hrk_", "hrk_é"):
            assert (await get(address, "/v1/topics", f"Bearer {wrong}"))[0] == 401
        short = await create(address, "short", lifetime_ms=1)
        await asyncio.sleep(0.01)
        assert (await get(address, "/v1/topics", bearer(short)))[0] == 401


async def test_keys_are_limited_in_number_and_their_names_are_unique(monkeypatch):
    monkeypatch.setattr(api_keys, "KEYS_OF_OWNER_MAX", 2)

    async with served() as address:
        await create(address, "one")
        for name in ("one", "bad\n"):
            status, _ = await ask(address, "POST", "/v1/keys", ALICE, body={"name": name})
            assert status in {400, 403}
        await create(address, "two")
        assert (await ask(address, "POST", "/v1/keys", ALICE, body={"name": "three"}))[0] == 403
