"""Credentials of super users over Kafka's protocol."""

from __future__ import annotations

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


async def alter(client: NamedClient, *, sets: str = "", removes: tuple[str, ...] = ()) -> Any:
    """The results, by user."""
    salted = salted_password(SHA_256, "new", b"salt", 4_096)
    change = {"mechanism": 1, "iterations": 4_096, "salt": b"salt", "salted_password": salted}
    deletions = [{"name": one, "mechanism": 1 + i} for one in removes for i in range(len(HASHES))]
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
