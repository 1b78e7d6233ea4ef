"""Logins of commands that a broker runs for a client: whom they act as, and which are refused."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.kafka.test_sasl import MINUTE_MS, SASL, SaslClient, sasl_broker, set_password

from headrace.broker.security import helper_logins
from headrace.broker.security.authentication import Authentication
from headrace.broker.security.broker_secret import BrokerSecret
from headrace.broker.security.helper_logins import (
    HELPER_MECHANISM,
    LIFETIME_MS,
    NAME_LENGTH_MAX,
    HelperLogins,
)
from headrace.broker.security.oauthbearer import OAUTHBEARER
from headrace.broker.security.plain import PLAIN, NamedPassword, write_plain
from headrace.broker.security.principal import ANONYMOUS, BROKER, Principal
from headrace.broker.security.users import RESERVED_PREFIX, check_name
from headrace.errors import AuthenticationFailed, CredentialInvalid, RequestInvalid
from headrace.kafka import apis
from headrace.kafka.dispatch import KafkaFace
from headrace.kafka.error_codes import (
    SASL_AUTHENTICATION_FAILED,
    UNACCEPTABLE_CREDENTIAL,
    UNSUPPORTED_SASL_MECHANISM,
)
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.scram import SHA_256, SHA_512, ScramClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.kit.broker import BrokerHarness

ALICE = Principal("alice", mechanism=PLAIN)
HOST = "10.0.0.9"


@asynccontextmanager
async def helped(
    *mechanisms: str, helper_listener: str = SASL.name
) -> AsyncIterator[BrokerHarness]:
    """A broker whose users may log in by `mechanisms`, and whose helpers log in too."""
    async with sasl_broker() as rig:
        services = rig.node.services
        services.authentication = Authentication(
            services.authentication.logins,
            {SASL.name: mechanisms or (PLAIN,)},
            is_required=True,
            helper_listener=helper_listener,
        )
        await rig.face.close()
        rig.face = KafkaFace(rig.node)
        yield rig


def helpers_of(rig: BrokerHarness) -> HelperLogins:
    return rig.node.services.authentication.logins.helpers


async def log_in(
    rig: BrokerHarness, login: NamedPassword, mechanism: str = SHA_256
) -> SaslClient | None:
    """The client of a helper; None: it was refused."""
    client = SaslClient(rig.face)
    answer = await client.handshake(mechanism)
    if mechanism == PLAIN:
        answer = await client.authenticate(write_plain(*login))
    else:
        scram = ScramClient(mechanism, *login, "nonce")
        answer = await client.authenticate(scram.first())
        if int(answer.error_code) == 0:
            answer = await client.authenticate(scram.final(answer.auth_bytes))
    if int(answer.error_code) == 0:
        return client
    assert int(answer.error_code) == SASL_AUTHENTICATION_FAILED
    assert "invalid credentials" in answer.error_message
    assert await client.is_closed()
    return None


@pytest.mark.parametrize("mechanisms", [(PLAIN,), (SHA_256,), (OAUTHBEARER,)])
@pytest.mark.parametrize(
    "principal",
    [
        ALICE,
        ANONYMOUS,
        Principal('CN=a,b=c;\N{SNOWMAN}\n "x" =2C \x00', mechanism="SSL"),
        Principal("headrace-helper:x.y", mechanism=OAUTHBEARER),
    ],
)
async def test_a_helper_acts_as_its_client_whatever_is_enabled_for_users(mechanisms, principal):
    async with helped(*mechanisms) as rig:
        client = await log_in(rig, helpers_of(rig).issue(principal, HOST))
        assert client is not None
        session = client.connection.session
        assert (session.principal, session.client_host) == (principal, HOST)
        assert LIFETIME_MS - MINUTE_MS < session.lifetime_ms <= LIFETIME_MS
        assert await client.topics() == ()


async def test_each_broker_of_the_cluster_takes_the_login():
    async with helped() as rig:
        secret = BrokerSecret(rig.metadata, SystemRandomness(), 2)
        await secret.load()
        users = rig.node.services.authentication.users
        other = HelperLogins(users, secret, rig.clock)
        assert await log_in(rig, other.issue(ALICE, HOST)) is not None


def test_a_forged_name_or_password_is_refused(caplog):
    """Whatever is changed of a login: the name says for whom it is, and no other principal can
    create it."""

    async def scenario() -> None:
        async with helped() as rig:
            helpers = helpers_of(rig)
            name, password = helpers.issue(ALICE, HOST)
            payload, tag = name.removeprefix(RESERVED_PREFIX).split(".")
            values = json.loads(base64.urlsafe_b64decode(payload + "=="))
            root = json.dumps([*values[:3], "root", "", "SSL"]).encode()
            other = base64.urlsafe_b64encode(root).decode().rstrip("=")
            names = [
                f"{RESERVED_PREFIX}{other}.{tag}",
                f"{RESERVED_PREFIX}{payload}",
                f"{RESERVED_PREFIX}{payload}.",
                f"{RESERVED_PREFIX}{payload}.{tag[:-1]}",
                f"{RESERVED_PREFIX}{payload}.{tag}0",
                f"{RESERVED_PREFIX}{payload[:-1]}.{tag}",
                f"{RESERVED_PREFIX}.{tag}",
                RESERVED_PREFIX,
                f"{RESERVED_PREFIX}\N{SNOWMAN}.\N{SNOWMAN}",
                f"{RESERVED_PREFIX}{'x' * NAME_LENGTH_MAX}.{tag}",
            ]
            for forged in names:
                assert helpers.find(forged) is None
                assert await log_in(rig, NamedPassword(forged, password)) is None, forged
            for wrong in ("x", password[:-1], "0" * 64, tag):
                assert await log_in(rig, NamedPassword(name, wrong)) is None
            bob = helpers.issue(Principal("bob", mechanism="SSL"), HOST)
            assert await log_in(rig, NamedPassword(name, bob.password)) is None
            assert len(helpers._remembered) == 1, "forged names cost no password hash"
            assert await log_in(rig, NamedPassword(name, password)) is not None
            assert password not in caplog.text

    caplog.set_level(logging.DEBUG)
    asyncio.run(scenario())


async def test_a_login_ends_with_its_time(monkeypatch):
    async with helped() as rig:
        login = helpers_of(rig).issue(ALICE, HOST)
        rig.clock.ahead_ms += LIFETIME_MS
        assert await log_in(rig, login) is None
        monkeypatch.setattr(helper_logins, "LIFETIME_MS", 1_000)  # of a busy machine
        client = await log_in(rig, helpers_of(rig).issue(ALICE, HOST))
        assert client is not None
        await asyncio.sleep(1.05)
        assert client.connection.session.is_expired
        client.send(apis.METADATA, 1, {"topics": None})
        assert await client.is_closed()


@pytest.mark.parametrize("password", [None, "another"])
async def test_a_login_ends_when_its_user_is_removed_or_changed(password):
    async with helped() as rig:
        login = helpers_of(rig).issue(ALICE, HOST)
        client = await log_in(rig, login)
        assert client is not None
        await set_password(rig, "alice", password)
        assert await client.is_closed()
        assert await log_in(rig, login) is None
        if password is None:
            with pytest.raises(AuthenticationFailed, match="no longer exists"):
                helpers_of(rig).issue(ALICE, HOST)


async def test_no_login_acts_as_a_broker_nor_has_a_name_without_bounds():
    async with helped() as rig:
        helpers = helpers_of(rig)
        with pytest.raises(AssertionError):
            helpers.issue(Principal("1", BROKER), HOST)
        with pytest.raises(RequestInvalid, match="5000 characters"):
            helpers.issue(Principal("x" * 5_000), HOST)
        payload = base64.urlsafe_b64encode(json.dumps([2**50, HOST, BROKER, "1", "", ""]).encode())
        text = payload.decode().rstrip("=")
        with pytest.raises(AuthenticationFailed, match="as a broker"):
            helpers.find(f"{RESERVED_PREFIX}{text}.{helpers._tag(text)}")
        with pytest.raises(AuthenticationFailed, match="another version"):
            helpers.find(f"{RESERVED_PREFIX}AA.{helpers._tag('AA')}")


async def test_helpers_alone_log_in_by_a_mechanism_that_is_not_enabled(caplog):
    async with helped() as rig:
        assert await log_in(rig, NamedPassword("alice", "secret")) is None
        assert "not enabled for users" in caplog.text
        assert await log_in(rig, NamedPassword("mallory", "secret")) is None
        answer = await SaslClient(rig.face).handshake(SHA_512)
        assert int(answer.error_code) == UNSUPPORTED_SASL_MECHANISM
    async with helped(helper_listener="ANOTHER") as rig:
        answer = await SaslClient(rig.face).handshake(HELPER_MECHANISM)
        assert int(answer.error_code) == UNSUPPORTED_SASL_MECHANISM


async def test_a_helper_logs_in_by_its_own_mechanism_alone():
    async with helped(PLAIN, SHA_256, SHA_512) as rig:
        login = helpers_of(rig).issue(ALICE, HOST)
        assert await log_in(rig, login, SHA_512) is None
        assert await log_in(rig, login, PLAIN) is None
        with pytest.raises(AuthenticationFailed):
            await rig.node.services.authentication.logins.check_password(login)
        assert await log_in(rig, login) is not None


async def test_no_user_has_a_reserved_name():
    name = f"{RESERVED_PREFIX}x"
    with pytest.raises(CredentialInvalid, match="reserved"):
        check_name(name)

    async with helped(SHA_256) as rig:
        admin = SaslClient(rig.face)
        await admin.log_in(SHA_256)
        upsertion: Any = {"name": name, "mechanism": 1, "iterations": 4_096}
        upsertion |= {"salt": b"salt", "salted_password": b"x" * 32}
        request = {"deletions": [], "upsertions": [upsertion]}
        answer = await admin.ask(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
        assert [int(one.error_code) for one in answer.results] == [UNACCEPTABLE_CREDENTIAL]
