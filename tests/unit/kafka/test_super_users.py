"""Credentials of super users over Kafka's protocol."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit import kafka_client
from tests.kit.broker import broker
from tests.unit.kafka.access_rig import NamedClient

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.acls import Acl, Entry, Pattern, Permission
from headrace.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.services.user_administration import NewPassword
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    DELEGATION_TOKEN_OWNER_MISMATCH,
    POLICY_VIOLATION,
)
from headrace.runtime.scram import HASHES, SHA_256, salted_password

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kit.broker import BrokerHarness


CONFIG = BrokerConfig(authorizer="acl", super_users="User:alice;User:root")


@pytest.fixture(autouse=True)
def _own_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """kio cannot read the -1 that stands for no time in Kafka's answers."""
    monkeypatch.setattr(kafka_client, "is_in_kio", lambda _api_key, _version: False)


@asynccontextmanager
async def secured() -> AsyncIterator[BrokerHarness]:
    """A broker with the super user alice, who has a password, and bob, who may administer."""
    async with broker(CONFIG) as rig:
        services = rig.node.services
        await services.authentication.logins.secret.load()
        await services.users.create("alice", NewPassword("of alice"))
        assert services.access is not None
        cluster = Pattern(ResourceType.CLUSTER, CLUSTER_NAME)
        users = Pattern(ResourceType.USER, "*")
        for pattern, right in (
            (cluster, Operation.ALTER),
            (users, Operation.CREATE_TOKENS),
            (users, Operation.DESCRIBE_TOKENS),
        ):
            entry = Entry("User:bob", "*", right, Permission.ALLOW)
            assert await services.access.create([Acl(pattern, entry)]) == [None]
        yield rig


def client_of(rig: BrokerHarness, user: str, mechanism: str = SHA_256) -> NamedClient:
    return NamedClient(rig, Principal(user, mechanism=mechanism))


async def alter(
    client: NamedClient,
    *,
    sets: str = "",
    removes: tuple[str, ...] = (),
    mechanisms: tuple[int, ...] = tuple(range(1, 1 + len(HASHES))),
) -> Any:
    """The results, by user."""
    salted = salted_password(SHA_256, "new", b"salt", 4_096)
    change = {"mechanism": 1, "iterations": 4_096, "salt": b"salt", "salted_password": salted}
    deletions = [{"name": one, "mechanism": number} for one in removes for number in mechanisms]
    answer = await client.ask(
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        0,
        {"deletions": deletions, "upsertions": [{"name": sets, **change}] if sets else []},
    )
    return {one.user: (int(one.error_code), one.error_message) for one in answer.results}


async def test_only_a_super_user_changes_the_password_of_one():
    async with secured() as rig:
        bob, alice = client_of(rig, "bob"), client_of(rig, "alice")
        users = rig.node.services.authentication.users
        before = users.credential("alice", SHA_256)
        for results in (
            await alter(bob, sets="alice"),
            await alter(bob, sets="root"),
            await alter(bob, removes=("alice",)),
        ):
            ((code, message),) = results.values()
            assert code == CLUSTER_AUTHORIZATION_FAILED
            assert "super.users" in message
        assert users.credential("alice", SHA_256) == before
        assert not users.has_user("root")
        assert (await alter(bob, sets="carol"))["carol"][0] == 0
        assert (await alter(alice, sets="root"))["root"][0] == 0
        assert (await alter(alice, sets="alice"))["alice"][0] == 0


async def test_the_last_super_user_with_a_password_cannot_remove_it():
    async with secured() as rig:
        alice, users = client_of(rig, "alice"), rig.node.services.authentication.users
        code, message = (await alter(alice, removes=("alice",)))["alice"]
        assert code == POLICY_VIOLATION
        assert "headrace user remove alice --data-dir" in message
        assert (await alter(alice, sets="root"))["root"][0] == 0
        # Root has one credential of two: the deletion of the other is refused as unknown.
        await rig.node.services.users.set_password("root", NewPassword("of root"))
        results = await alter(alice, removes=("alice", "root"))
        assert (results["root"][0], results["alice"][0]) == (0, POLICY_VIOLATION)
        assert users.has_user("alice")
        by_certificate = client_of(rig, "alice", "SSL")
        assert (await alter(by_certificate, removes=("alice",)))["alice"][0] == 0
        assert not users.has_user("alice")


async def test_only_a_super_user_makes_and_sees_the_tokens_of_one():
    async with secured() as rig:
        bob, alice = client_of(rig, "bob"), client_of(rig, "alice")

        async def create(client: NamedClient, owner: str) -> Any:
            body = {
                "renewers": [],
                "max_lifetime_ms": -1,
                "owner_principal_type": "User",
                "owner_principal_name": owner,
            }
            return await client.ask(apis.CREATE_DELEGATION_TOKEN, 3, body)

        assert int((await create(bob, "alice")).error_code) == DELEGATION_TOKEN_AUTHORIZATION_FAILED
        assert int((await create(bob, "carol")).error_code) == 0
        token = await create(alice, "alice")
        assert int(token.error_code) == 0
        assert int((await create(alice, "root")).error_code) == 0
        seen = (await bob.ask(apis.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})).tokens
        assert [one.principal_name for one in seen] == ["carol"], "a token's HMAC is a password"
        seen = (await alice.ask(apis.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})).tokens
        assert sorted(one.principal_name for one in seen) == ["alice", "carol", "root"]
        for api, period in (
            (apis.RENEW_DELEGATION_TOKEN, "renew_period_ms"),
            (apis.EXPIRE_DELEGATION_TOKEN, "expiry_time_period_ms"),
        ):
            answer = await bob.ask(api, 2, {"hmac": token.hmac, period: -1})
            assert int(answer.error_code) == DELEGATION_TOKEN_OWNER_MISMATCH


async def test_a_renewer_of_a_super_users_token_gets_no_password_of_it():
    async with secured() as rig:
        bob, alice = client_of(rig, "bob"), client_of(rig, "alice")
        renewers = [{"principal_type": "User", "principal_name": "bob"}]
        hmacs = {}
        for owner in ("alice", "carol"):
            body = {
                "renewers": renewers,
                "max_lifetime_ms": -1,
                "owner_principal_type": "User",
                "owner_principal_name": owner,
            }
            hmacs[owner] = (await alice.ask(apis.CREATE_DELEGATION_TOKEN, 3, body)).hmac
        seen = (await bob.ask(apis.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})).tokens
        assert {one.principal_name: one.hmac for one in seen} == {**hmacs, "alice": b""}
        body = {"hmac": hmacs["alice"], "renew_period_ms": -1}
        renewed = await bob.ask(apis.RENEW_DELEGATION_TOKEN, 2, body)
        assert int(renewed.error_code) == 0, "given the token, it renews it"


@pytest.mark.parametrize("removed", ["each other", "by each, itself", "each by half"])
async def test_super_users_who_are_removed_at_once_leave_one(removed):
    async with secured() as rig:
        await rig.node.services.users.create("root", NewPassword("of root"))
        alice, root = client_of(rig, "alice"), client_of(rig, "root")
        if removed == "each other":
            steps = alter(alice, removes=("root",)), alter(root, removes=("alice",))
        elif removed == "by each, itself":
            steps = alter(alice, removes=("alice",)), alter(root, removes=("root",))
        else:
            await alter(alice, removes=("root",))
            steps = (
                alter(alice, removes=("alice",), mechanisms=(1,)),
                alter(client_of(rig, "alice"), removes=("alice",), mechanisms=(2,)),
            )
        results = [one for found in await asyncio.gather(*steps) for one in found.values()]
        assert sorted(code for code, _ in results) == [0, POLICY_VIOLATION]
        assert len(rig.node.services.users.super_users.with_password()) == 1


async def test_a_super_user_that_was_just_removed_does_not_remove_the_last_one():
    async with secured() as rig:
        await rig.node.services.users.create("root", NewPassword("of root"))
        assert (await alter(client_of(rig, "alice"), removes=("root",)))["root"][0] == 0
        code, _ = (await alter(client_of(rig, "root"), removes=("alice",)))["alice"]
        assert code == POLICY_VIOLATION
