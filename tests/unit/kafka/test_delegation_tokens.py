"""Delegation tokens: creating, renewing and listing them, and what they log in as."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit import kafka_client
from tests.kit.kafka_client import Client
from tests.unit.kafka.test_sasl import AUDIT, SaslClient, sasl_broker, set_password

from headrace.broker.security import delegation_tokens as tokens
from headrace.broker.security.delegation_tokens import TOKEN_MECHANISM, DelegationTokens
from headrace.broker.security.principal import Principal
from headrace.kafka import apis
from headrace.kafka.handlers import delegation_tokens
from headrace.metadata.issued_facts import DELEGATION_TOKENS
from headrace.runtime.scram import HASHES, SHA_256, ScramClient
from headrace_verify.kafka_wire import is_in_kio

if TYPE_CHECKING:
    from tests.kit.broker import BrokerHarness

UNKNOWN, MISMATCH, FORBIDDEN, BAD_TYPE = 62, 63, 64, 67
DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def _own_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """kio cannot read the -1 that stands for no time in Kafka's answers."""

    def is_read_by_kio(api_key: int, version: int) -> bool:
        return api_key not in delegation_tokens.HANDLERS and is_in_kio(api_key, version)

    monkeypatch.setattr(kafka_client, "is_in_kio", is_read_by_kio)


async def client_of(rig: BrokerHarness, user: str = "alice") -> SaslClient:
    client = SaslClient(rig.face)
    assert not int((await client.log_in(SHA_256, user)).error_code)
    return client


async def create(client: Client, lifetime_ms: int = -1, *renewers: str, **more: Any) -> Any:
    body = {
        "renewers": [{"principal_type": "User", "principal_name": one} for one in renewers],
        "max_lifetime_ms": lifetime_ms,
        "owner_principal_type": "User" if more else None,
        "owner_principal_name": more.get("owner"),
    }
    return await client.ask(apis.CREATE_DELEGATION_TOKEN, 3, body)


async def renew(client: Client, hmac: bytes, period_ms: int = -1) -> Any:
    body = {"hmac": hmac, "renew_period_ms": period_ms}
    return await client.ask(apis.RENEW_DELEGATION_TOKEN, 2, body)


async def expire(client: Client, hmac: bytes, period_ms: int = -1) -> Any:
    body = {"hmac": hmac, "expiry_time_period_ms": period_ms}
    return await client.ask(apis.EXPIRE_DELEGATION_TOKEN, 2, body)


async def described(client: Client, *owners: str) -> Any:
    named = [{"principal_type": "User", "principal_name": one} for one in owners]
    body = {"owners": named or None}
    return await client.ask(apis.DESCRIBE_DELEGATION_TOKEN, 3, body)


async def by_token(
    rig: BrokerHarness, token: Any, mechanism: str = SHA_256
) -> tuple[SaslClient, Any]:
    client = SaslClient(rig.face)
    password = base64.b64encode(token.hmac).decode()
    return client, await client.log_in(mechanism, token.token_id, password, is_token=True)


@pytest.mark.parametrize("mechanism", HASHES)
async def test_a_token_logs_in_as_its_owner_until_it_is_expired(mechanism):
    async with sasl_broker() as rig:
        alice = await client_of(rig)
        token = await create(alice)
        assert int(token.error_code) == 0
        assert (token.principal_name, token.token_requester_principal_name) == ("alice",) * 2
        assert len(token.hmac) == 64
        assert token.expiry_timestamp_ms - token.issue_timestamp_ms == DAY_MS
        assert token.max_timestamp_ms - token.issue_timestamp_ms == 7 * DAY_MS
        helper, answer = await by_token(rig, token, mechanism)
        assert int(answer.error_code) == 0
        assert 0 < answer.session_lifetime.total_seconds() <= DAY_MS / 1_000
        found = helper.connection.session.principal
        assert found == Principal("alice", mechanism=TOKEN_MECHANISM)
        assert await helper.topics() == ()
        for ask in (create(helper), renew(helper, token.hmac), described(helper)):
            assert int((await ask).error_code) == FORBIDDEN, "a token makes no tokens"
        assert int((await expire(alice, token.hmac)).error_code) == 0
        assert await helper.is_closed(), "its connections end with it"
        _, answer = await by_token(rig, token, mechanism)
        assert int(answer.error_code) == 58
        assert not await rig.node.metadata.list(DELEGATION_TOKENS)


async def test_the_hash_of_a_token_is_made_beside_the_event_loop(monkeypatch):
    """Whoever has many tokens, or knows the ids of many, has others wait for none."""
    threads: list[bool] = []
    new_credential = tokens.new_credential

    def noting(*arguments: Any) -> Any:
        threads.append(threading.current_thread() is threading.main_thread())
        return new_credential(*arguments)

    async with sasl_broker() as rig:
        alice = await client_of(rig)
        token = await create(alice)
        monkeypatch.setattr(tokens, "new_credential", noting)
        for remembered in (1_000, 1_000, 0):  # with 0 another login has just displaced it
            monkeypatch.setattr(tokens, "_REMEMBERED_MAX", remembered or 1)
            client = SaslClient(rig.face)
            scram = ScramClient(SHA_256, token.token_id, "wrong", "nonce", is_token=True)
            await client.handshake(SHA_256)
            first = await client.authenticate(scram.first())
            if not remembered:
                rig.node.authentication.logins.delegation._credentials.clear()
            assert int((await client.authenticate(scram.final(first.auth_bytes))).error_code) == 58
        helper, answer = await by_token(rig, token)
        assert int(answer.error_code) == 0
        helper.transport.close()
    assert threads == [False, False]


async def test_only_owner_and_renewers_change_a_token_and_only_within_its_lifetime(caplog):
    caplog.set_level(logging.INFO, "headrace.audit")
    async with sasl_broker() as rig:
        for user in ("bob", "carol"):
            await set_password(rig, user, "secret")
        alice, bob, carol = [await client_of(rig, one) for one in ("alice", "bob", "carol")]
        token = await create(alice, 2 * DAY_MS, "bob")
        assert int((await renew(carol, token.hmac)).error_code) == MISMATCH
        assert int((await expire(carol, token.hmac)).error_code) == MISMATCH
        assert int((await renew(alice, b"x" * 64)).error_code) == UNKNOWN
        renewed = await renew(bob, token.hmac, 100 * DAY_MS)
        assert renewed.expiry_timestamp_ms == token.max_timestamp_ms
        shorter = await expire(bob, token.hmac, 60_000)
        assert int(shorter.error_code) == 0
        assert shorter.expiry_timestamp_ms < token.max_timestamp_ms
        lines = [json.loads(one.getMessage()) for one in caplog.records if one.name == AUDIT]
        changes = [(one["principal"], one["request"], one["resources"]) for one in lines]
        assert ("User:bob", "RenewDelegationToken", [token.token_id]) in changes
        assert ("User:bob", "ExpireDelegationToken", [token.token_id]) in changes
        assert ("User:carol", "RenewDelegationToken", []) in changes


async def test_a_token_is_found_by_its_hmac_without_a_look_at_the_others(monkeypatch):
    async with sasl_broker() as rig:
        alice = await client_of(rig)
        tokens = [await create(alice) for _ in range(20)]
        assert int((await renew(alice, b"x" * 64)).error_code) == UNKNOWN
        assert int((await expire(alice, tokens[7].hmac)).error_code) == 0
        monkeypatch.setattr(DelegationTokens, "hmac_of", lambda *_: pytest.fail("looked at"))
        assert int((await renew(alice, b"x" * 64)).error_code) == UNKNOWN
        assert int((await renew(alice, tokens[7].hmac)).error_code) == UNKNOWN, "expired"
        assert int((await renew(alice, tokens[8].hmac)).error_code) == 0


async def test_nothing_is_kept_of_a_token_that_was_renewed_and_has_ended():
    async with sasl_broker() as rig:
        alice, tokens = await client_of(rig), rig.node.issuers.tokens
        token = await create(alice)
        assert int((await renew(alice, token.hmac)).error_code) == 0
        await tokens.issued.revoke(token.token_id.encode().hex())
        assert (tokens._by_hmac, tokens._unindexed) == ({}, {})


async def test_a_client_sees_its_own_tokens_and_those_that_it_may_renew():
    async with sasl_broker() as rig:
        await set_password(rig, "bob", "secret")
        alice, bob = await client_of(rig), await client_of(rig, "bob")
        first, second = await create(alice), await create(alice, -1, "bob")
        mine = await described(alice)
        assert {one.token_id for one in mine.tokens} == {first.token_id, second.token_id}
        assert {one.hmac for one in mine.tokens} == {first.hmac, second.hmac}
        # As in Kafka, the filter is for those who may renew a token, too.
        assert ids_in(await described(alice, "bob")) == {second.token_id}
        assert ids_in(await described(alice, "carol")) == set()
        rig.node.services.authorizer.allows = lambda *_: False  # type: ignore[method-assign]
        assert ids_in(await described(bob)) == {second.token_id}
        refused = await create(bob, -1, owner="alice")
        assert int(refused.error_code) == 65


def ids_in(answer: Any) -> set[str]:
    return {one.token_id for one in answer.tokens}


async def test_a_token_ends_with_its_owner_and_for_good():
    async with sasl_broker() as rig:
        token = await create(await client_of(rig))
        helper, answer = await by_token(rig, token)
        assert int(answer.error_code) == 0
        await set_password(rig, "alice", None)
        assert await helper.is_closed()
        await set_password(rig, "alice", "secret")
        _, answer = await by_token(rig, token)
        assert int(answer.error_code) == 58


async def test_wrong_tokens_fail_as_wrong_passwords_do_and_names_and_tokens_are_apart():
    async with sasl_broker() as rig:
        alice = await client_of(rig)
        token = await create(alice)
        password = base64.b64encode(token.hmac).decode()
        texts = set()
        for user, given, is_token in (
            (token.token_id, "wrong", True),
            (token.token_id, password, False),
            ("alice", "secret", True),
            ("x" * 4_000, "x", True),
        ):
            client = SaslClient(rig.face)
            answer = await client.log_in(SHA_256, user, given, is_token=is_token)
            assert int(answer.error_code) == 58
            texts.add(answer.error_message)
        assert len(texts) == 1


async def test_tokens_are_not_for_the_anonymous_nor_for_other_types_of_principals():
    async with sasl_broker() as rig:
        plain = Client(rig.face)
        for ask in (create(plain), renew(plain, b"x"), expire(plain, b"x"), described(plain)):
            assert int((await ask).error_code) == FORBIDDEN
        alice = await client_of(rig)
        body = {
            "renewers": [{"principal_type": "Group", "principal_name": "x"}],
            "max_lifetime_ms": -1,
            "owner_principal_type": None,
            "owner_principal_name": None,
        }
        answer = await alice.ask(apis.CREATE_DELEGATION_TOKEN, 3, body)
        assert int(answer.error_code) == BAD_TYPE


async def test_a_token_expires(caplog):
    caplog.set_level("DEBUG")

    async with sasl_broker() as rig:
        alice = await client_of(rig)
        token = await create(alice, 1)
        await asyncio.sleep(0.01)
        _, answer = await by_token(rig, token)
        assert int(answer.error_code) == 58
        assert int((await renew(alice, token.hmac)).error_code) == UNKNOWN
        assert not (await described(alice)).tokens
        assert base64.b64encode(token.hmac).decode() not in caplog.text
        stored = await rig.node.metadata.list(DELEGATION_TOKENS)
        assert token.hmac.hex() not in str(stored)
