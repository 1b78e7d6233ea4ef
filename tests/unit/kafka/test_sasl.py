"""SASL on Kafka connections: logins, refusals, re-authentication, limits before the login."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.kit.kafka_client import Client
from tests.kit.records import batch
from tests.waiting import until

from headrace.broker.security.authentication import Authentication
from headrace.broker.security.broker_secret import BROKER_MECHANISM
from headrace.broker.security.listener import OPEN, ListenerSecurity
from headrace.broker.security.logins import MECHANISMS
from headrace.broker.security.oauthbearer import INVALID_TOKEN, OAUTHBEARER
from headrace.broker.security.plain import PLAIN, write_plain
from headrace.broker.security.principal import ANONYMOUS, BROKER, Principal
from headrace.broker.security.tokens import TokenUser
from headrace.broker.security.users import CredentialChange
from headrace.errors import AuthenticationFailed
from headrace.kafka import apis, login_connections
from headrace.kafka.connection import KafkaConnection
from headrace.kafka.dispatch import KafkaFace
from headrace.kafka.error_codes import (
    DUPLICATE_RESOURCE,
    ILLEGAL_SASL_STATE,
    RESOURCE_NOT_FOUND,
    SASL_AUTHENTICATION_FAILED,
    UNACCEPTABLE_CREDENTIAL,
    UNSUPPORTED_SASL_MECHANISM,
)
from headrace.metadata.user_facts import user_key
from headrace.runtime.scram import (
    HASHES,
    ITERATIONS,
    SHA_256,
    SHA_512,
    ScramClient,
    new_credential,
    salt_text,
    salted_password,
)
from headrace.runtime.security_protocols import SASL_PLAINTEXT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SASL = ListenerSecurity("SASL", SASL_PLAINTEXT)
MINUTE_MS = 60_000
AUDIT = "headrace.audit"


class KnownTokens:
    """Stands for an issuer: `good` is alice's token, `bob` is bob's."""

    def __init__(self, rig: BrokerHarness) -> None:
        self.rig = rig

    async def judge(self, token: str) -> TokenUser:
        if token not in {"good", "bob"}:
            raise AuthenticationFailed("forged")
        expires_ms = self.rig.clock.now_ms() + MINUTE_MS
        return TokenUser("alice" if token == "good" else token, expires_ms)


@asynccontextmanager
async def sasl_broker(lifetime_ms: int = 0) -> AsyncIterator[BrokerHarness]:
    """A broker with a SASL listener and a PLAINTEXT one, and the user alice."""
    async with broker() as rig:
        node = rig.node
        tokens: Any = KnownTokens(rig)
        logins = node.services.authentication.logins.with_tokens(tokens)
        await logins.secret.load()
        node.services.authentication = Authentication(
            logins, {SASL.name: MECHANISMS}, {SASL.name: lifetime_ms}, is_required=True
        )
        await rig.face.close()
        rig.face = KafkaFace(node)
        await set_password(rig, "alice", "secret")
        yield rig


async def set_password(
    rig: BrokerHarness, user: str, password: str | None, iterations: int = ITERATIONS
) -> None:
    """Set or delete (None) both credentials of a user."""
    results = await rig.node.services.authentication.users.change(
        [
            CredentialChange(
                user,
                mechanism,
                None
                if password is None
                else new_credential(mechanism, password, salt_text(7), iterations),
            )
            for mechanism in HASHES
        ]
    )
    assert results == {user: None}


class SaslClient(Client):
    """A client of one listener."""

    def __init__(self, face: KafkaFace, listener: ListenerSecurity = SASL) -> None:
        super().__init__(face)
        self.transport.abort()
        self.connection = KafkaConnection(face, asyncio.get_running_loop(), listener)
        self.transport = type(self.transport)(self.connection)
        self.connection.connection_made(self.transport)

    async def handshake(self, mechanism: str, version: int = 1) -> Any:
        return await self.ask(apis.SASL_HANDSHAKE, version, {"mechanism": mechanism})

    async def authenticate(self, token: bytes, version: int = 2) -> Any:
        return await self.ask(apis.SASL_AUTHENTICATE, version, {"auth_bytes": token})

    async def log_in(
        self,
        mechanism: str,
        user: str = "alice",
        password: str = "secret",
        *,
        is_token: bool = False,
    ) -> Any:
        """The last answer."""
        answer = await self.handshake(mechanism)
        assert int(answer.error_code) == 0, answer
        if mechanism == PLAIN:
            return await self.authenticate(write_plain(user, password))
        if mechanism == OAUTHBEARER:
            message = f"n,,\x01auth=Bearer {password.replace('secret', 'good')}\x01\x01"
            return await self.authenticate(message.encode())
        scram = ScramClient(mechanism, user, password, "nonce", is_token=is_token)
        first = await self.authenticate(scram.first())
        final = await self.authenticate(scram.final(first.auth_bytes))
        if int(final.error_code) == 0:
            scram.check(final.auth_bytes)
        return final

    async def is_closed(self, within_s: float = 1.0) -> bool:
        """Whether the broker closes the connection in time."""
        deadline = asyncio.get_running_loop().time() + within_s
        while not self.transport.is_over and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.005)
        return self.transport.is_over

    async def topics(self) -> Any:
        return (await self.ask(apis.METADATA, 1, {"topics": None})).topics


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_client_logs_in_and_is_served_as_its_user(mechanism):
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        await client.ask(apis.API_VERSIONS, 3, {})
        answer = await client.log_in(mechanism)
        assert (int(answer.error_code), answer.error_message) == (0, None)
        assert client.connection.session.principal == Principal("alice", mechanism=mechanism)
        assert await client.topics() == ()
        assert not client.connection.must_be_admitted
        assert client.connection.frames.bytes_max == rig.face.request_bytes_max


@pytest.mark.parametrize("mechanism", [PLAIN, *HASHES])
@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("mallory", "secret")])
async def test_a_wrong_name_and_a_wrong_password_get_the_same_answer_and_the_connection_ends(
    mechanism, user, password, caplog
):
    caplog.set_level(logging.INFO, "headrace.audit")
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        begun_s = asyncio.get_running_loop().time()
        answer = await client.log_in(mechanism, user, password)
        assert asyncio.get_running_loop().time() - begun_s >= 0.09
        assert int(answer.error_code) == SASL_AUTHENTICATION_FAILED
        assert answer.error_message == (
            f"Authentication failed: invalid credentials with SASL mechanism {mechanism}"
        )
        assert await client.is_closed()
        assert client.connection.session.principal is None
        assert rig.node.services.authentication.logins.figures.failed == {mechanism: 1}
    (line,) = (json.loads(one.getMessage()) for one in caplog.records if one.name == AUDIT)
    assert (line["event"], line["user"]) == ("login_failed", user)
    assert (line["mechanism"], line["listener"]) == (mechanism, "SASL")
    assert password not in json.dumps({**line, "principal": ""})


async def test_a_refused_token_takes_two_steps():
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        answer = await client.log_in(OAUTHBEARER, password="bad")
        assert (int(answer.error_code), answer.auth_bytes) == (0, INVALID_TOKEN)
        assert client.connection.session.principal is None
        answer = await client.authenticate(b"\x01")
        assert int(answer.error_code) == SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


async def test_an_unknown_mechanism_is_answered_with_the_list_and_the_connection_ends():
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        answer = await client.handshake("GSSAPI")
        assert int(answer.error_code) == UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == MECHANISMS
        assert await client.is_closed()


async def test_sasl_requests_out_of_order_are_refused():
    async with sasl_broker() as rig:
        early = SaslClient(rig.face)
        assert int((await early.authenticate(b"x")).error_code) == ILLEGAL_SASL_STATE
        assert await early.is_closed()
        twice = SaslClient(rig.face)
        await twice.handshake(PLAIN)
        assert int((await twice.handshake(SHA_256)).error_code) == ILLEGAL_SASL_STATE
        assert await twice.is_closed()
        late = SaslClient(rig.face)
        await late.log_in(PLAIN)
        assert int((await late.handshake(PLAIN)).error_code) == ILLEGAL_SASL_STATE
        assert int((await late.authenticate(b"x")).error_code) == ILLEGAL_SASL_STATE
        assert await late.topics() == ()


@pytest.mark.parametrize("is_after_handshake", [False, True])
@pytest.mark.parametrize("api_key", [apis.PRODUCE, apis.FETCH, apis.METADATA, apis.QUEUE_RECEIVE])
async def test_nothing_else_is_parsed_before_the_login(api_key, is_after_handshake):
    """Also a Produce with acks=0, which has no answer that could show it."""

    async with sasl_broker() as rig:
        await rig.node.topics.create("t")
        client = SaslClient(rig.face)
        if is_after_handshake:
            await client.handshake(PLAIN)
        frame = api_key.to_bytes(2, "big") + b"\x00\x03" + b"\xff" * 100
        client.connection.data_received(len(frame).to_bytes(4, "big") + frame)
        assert client.transport.is_over
        assert rig.face.request_counts.get(api_key, 0) == 0
        produced = SaslClient(rig.face)
        data = {"name": "t", "partition_data": [{"index": 0, "records": batch(b"v")}]}
        produced.send(apis.PRODUCE, 3, {"acks": 0, "timeout": 1000, "topic_data": [data]})
        assert produced.transport.is_over
        assert rig.node.topics.get("t").require_log(0).high_watermark == 0


async def test_requests_that_are_pipelined_around_a_login_are_handled_in_their_order():
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        client.send(apis.API_VERSIONS, 0, {})
        client.send(apis.SASL_HANDSHAKE, 1, {"mechanism": PLAIN})
        client.send(apis.SASL_AUTHENTICATE, 2, {"auth_bytes": write_plain("alice", "secret")})
        assert (await client.ask(apis.METADATA, 1, {"topics": None})).topics == ()
        assert [int(one.error_code) for one in client.answers()[:3]] == [0, 0, 0]
        wrong = SaslClient(rig.face)
        wrong.send(apis.SASL_HANDSHAKE, 1, {"mechanism": PLAIN})
        wrong.send(apis.SASL_AUTHENTICATE, 2, {"auth_bytes": write_plain("alice", "wrong")})
        wrong.send(apis.METADATA, 1, {"topics": None})
        assert await wrong.is_closed()
        assert len(wrong.answers()) == 2
        assert int(wrong.answers()[1].error_code) == SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("password", ["secret", "wrong"])
async def test_after_the_first_version_of_the_handshake_raw_tokens_follow(password, caplog):
    caplog.set_level(logging.INFO, AUDIT)
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        assert int((await client.handshake(PLAIN, 0)).error_code) == 0
        token = write_plain("alice", password)
        client.connection.data_received(len(token).to_bytes(4, "big") + token)
        before = len(client.transport.out)
        if password == "wrong":
            assert await client.is_closed()
            assert AUDIT in {one.name for one in caplog.records}
            assert len(client.transport.out) == before
            return
        while len(client.transport.out) == before:
            await asyncio.sleep(0.005)
        assert client.transport.out[before:] == bytes(4)  # an empty token
        del client.transport.out[before:]
        assert await client.topics() == ()


async def test_raw_tokens_may_be_shorter_than_any_request_and_are_never_taken_for_one():
    async with sasl_broker() as rig:
        await set_password(rig, "a", "b")
        client = SaslClient(rig.face)
        await client.handshake(PLAIN, 0)
        client.connection.data_received(b"\x00\x00\x00\x04\x00a\x00b")
        while client.connection.session.principal is None:
            await asyncio.sleep(0.005)
        other = SaslClient(rig.face)
        await other.handshake(PLAIN, 0)
        other.send(apis.METADATA, 1, {"topics": None})
        assert await other.is_closed()


# --- sessions --------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", [SHA_256, OAUTHBEARER])
async def test_a_session_ends_unless_it_is_authenticated_again_in_time(mechanism):
    async with sasl_broker(2_000) as rig:  # three logins must fit in, on a busy machine, too
        kept, lost = SaslClient(rig.face), SaslClient(rig.face)
        for client in (kept, lost):
            answer = await client.log_in(mechanism)
            lifetime = answer.session_lifetime
            assert 0 < lifetime.total_seconds() <= 2
        assert not kept.connection.must_be_admitted
        assert int((await kept.log_in(mechanism)).error_code) == 0
        await until(lambda: lost.connection.session.is_expired)
        assert not lost.transport.is_over
        lost.send(apis.METADATA, 1, {"topics": None})
        assert lost.transport.is_over
        rig.clock.ahead_ms += 2_000
        assert int((await kept.log_in(mechanism)).error_code) == 0, "an expired one may"
        assert await kept.topics() == ()


async def test_a_session_is_authenticated_again_as_the_same_user_by_the_same_mechanism():
    async with sasl_broker(MINUTE_MS) as rig:
        await set_password(rig, "bob", "secret")
        for mechanism, user in ((SHA_256, "bob"), (SHA_512, "alice"), (PLAIN, "alice")):
            client = SaslClient(rig.face)
            await client.log_in(SHA_256)
            rig.clock.ahead_ms += 2_000
            answer = await client.log_in(mechanism, user)
            assert int(answer.error_code) == SASL_AUTHENTICATION_FAILED
            assert await client.is_closed()
        often = SaslClient(rig.face)
        await often.log_in(SHA_256)
        rig.clock.ahead_ms += 2_000
        await often.log_in(SHA_256)
        assert int((await often.handshake(SHA_256)).error_code) == ILLEGAL_SASL_STATE


async def test_requests_in_the_middle_of_a_re_authentication_are_refused():
    async with sasl_broker(MINUTE_MS) as rig:
        client = SaslClient(rig.face)
        await client.log_in(SHA_256)
        await client.handshake(SHA_256)
        client.send(apis.METADATA, 1, {"topics": None})
        assert client.transport.is_over


@pytest.mark.parametrize("change", ["new password", None])
async def test_connections_of_a_user_that_is_changed_or_removed_are_closed(change):
    async with sasl_broker() as rig:
        await set_password(rig, "bob", "secret")
        clients = {mechanism: SaslClient(rig.face) for mechanism in MECHANISMS}
        for mechanism, client in clients.items():
            await client.log_in(mechanism)
        bob = SaslClient(rig.face)
        await bob.log_in(SHA_256, "bob")
        await set_password(rig, "alice", change)
        for mechanism, client in clients.items():
            # alice of the token issuer is somebody else's user.
            assert client.transport.is_over is (mechanism != OAUTHBEARER)
        assert await bob.topics() == ()


async def test_a_user_that_changes_its_own_password_gets_the_answer_and_is_disconnected():
    async with sasl_broker() as rig:
        client, other = SaslClient(rig.face), SaslClient(rig.face)
        for one in (client, other):
            await one.log_in(SHA_256)
        upsertions = [_upsertion("alice", 1, "new"), _upsertion("bob", 1, "other")]
        assert await _alter(client, deletions=[], upsertions=upsertions) == {"alice": 0, "bob": 0}
        assert other.transport.is_over
        answered = len(client.answers())
        client.send(apis.METADATA, 1, {"topics": None})
        await until(lambda: client.transport.is_over)
        assert len(client.answers()) == answered, "it is served no more"


async def test_a_user_that_another_broker_changes_is_known_here_within_a_second():
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        await client.log_in(SHA_256)
        entry = await rig.metadata.get(user_key("alice"))
        assert entry is not None
        await rig.metadata.put(user_key("alice"), b'{"v":1,"credentials":[]}', entry.version)
        assert await client.is_closed(1.0)


async def test_a_login_during_which_the_user_is_changed_fails():
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        await client.handshake(SHA_256)
        scram = ScramClient(SHA_256, "alice", "secret", "nonce")
        first = await client.authenticate(scram.first())
        await set_password(rig, "alice", None)
        answer = await client.authenticate(scram.final(first.auth_bytes))
        assert int(answer.error_code) == SASL_AUTHENTICATION_FAILED


# --- limits before the login -----------------------------------------------------------------


async def test_a_frame_before_the_login_is_small():
    async with sasl_broker() as rig:
        client = SaslClient(rig.face)
        client.connection.data_received((524_289).to_bytes(4, "big"))
        assert client.transport.is_over
        many = [SaslClient(rig.face) for _ in range(100)]
        many[0].connection.data_received((524_288).to_bytes(4, "big"))
        assert not many[0].transport.is_over
        many[99].connection.data_received((16_385).to_bytes(4, "big"))
        assert many[99].transport.is_over


async def test_half_open_connections_are_bounded_in_number_and_time(monkeypatch):
    monkeypatch.setattr(login_connections, "UNAUTHENTICATED_MAX", 20)
    monkeypatch.setattr(login_connections, "LOGIN_TIMEOUT_S", 0.2)

    async with sasl_broker() as rig:
        known = SaslClient(rig.face)
        await known.log_in(SHA_256)
        idle = [SaslClient(rig.face) for _ in range(100)]
        assert [one.transport.is_over for one in idle] == [True] * 80 + [False] * 20
        late = SaslClient(rig.face)
        assert int((await late.log_in(SHA_256)).error_code) == 0
        assert await idle[-1].is_closed()
        assert all(one.transport.is_over for one in idle)
        assert await late.topics() == ()
        assert await known.topics() == ()


# --- brokers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", [SASL, OPEN])
async def test_a_broker_logs_in_with_the_secret_of_the_cluster_on_every_listener(listener):
    async with sasl_broker() as rig:
        client = SaslClient(rig.face, listener)
        assert int((await client.handshake(BROKER_MECHANISM)).error_code) == 0
        scram = await rig.node.services.authentication.logins.secret.client()
        first = await client.authenticate(scram.first())
        final = await client.authenticate(scram.final(first.auth_bytes))
        scram.check(final.auth_bytes)
        principal = client.connection.session.principal
        assert principal == Principal("0", BROKER, mechanism=BROKER_MECHANISM)
        assert rig.node.services.authentication.admits_to_brokers(client.connection.session)


async def test_no_client_logs_in_as_a_broker():
    async with sasl_broker() as rig:
        await set_password(rig, "0", "secret")
        client = SaslClient(rig.face)
        answer = await client.log_in(SHA_256, "0")
        assert int(answer.error_code) == 0
        assert not rig.node.services.authentication.admits_to_brokers(client.connection.session)
        guess = SaslClient(rig.face)
        await guess.handshake(BROKER_MECHANISM)
        scram = ScramClient(SHA_256, "0", "secret", "nonce")
        first = await guess.authenticate(scram.first())
        answer = await guess.authenticate(scram.final(first.auth_bytes))
        assert int(answer.error_code) == SASL_AUTHENTICATION_FAILED
        assert await guess.is_closed()


@pytest.mark.parametrize("api_key", sorted(apis.BROKER_APIS))
async def test_inter_broker_requests_are_refused_to_users_and_anonymous_clients(api_key):
    async with sasl_broker() as rig:
        user, anonymous = SaslClient(rig.face), SaslClient(rig.face, OPEN)
        await user.log_in(SHA_256)
        assert anonymous.connection.session.principal == ANONYMOUS
        api = {**apis.APIS, **apis.OWN_APIS}[api_key]
        frame = api_key.to_bytes(2, "big") + api.version_max.to_bytes(2, "big") + bytes(20)
        for client in (user, anonymous):
            client.connection.data_received(len(frame).to_bytes(4, "big") + frame)
            assert client.transport.is_over


async def test_only_a_broker_can_tell_by_its_connection_that_a_broker_has_died():
    async with sasl_broker() as rig:
        ended: list[str] = []
        rig.node.cluster.line_ended = ended.append  # a spy
        for listener in (SASL, OPEN):
            client = SaslClient(rig.face, listener)
            if listener is SASL:
                await client.log_in(SHA_256)
            client.connection.session.client_id = "headrace-broker/1234"
            client.connection.connection_lost(None)
        assert ended == []


# --- users -----------------------------------------------------------------------------------


def _upsertion(name: str, mechanism: int, password: str, iterations: int = 4096) -> dict[str, Any]:
    kind = {1: SHA_256, 2: SHA_512}.get(mechanism, SHA_256)
    salted = salted_password(kind, password, b"salt", iterations)
    return {
        "name": name,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": b"salt",
        "salted_password": salted,
    }


async def _alter(client: Client, **request: Any) -> dict[str, int]:
    request = {"deletions": [], "upsertions": [], **request}
    answer = await client.ask(apis.ALTER_USER_SCRAM_CREDENTIALS, 0, request)
    return {one.user: int(one.error_code) for one in answer.results}


async def _described(client: Client, *names: str) -> dict[str, Any]:
    request = {"users": [{"name": name} for name in names] if names else None}
    answer = await client.ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, request)
    return {
        one.user: int(one.error_code)
        or {info.mechanism: info.iterations for info in one.credential_infos}
        for one in answer.results
    }


async def test_an_admin_client_makes_lists_and_removes_users():
    async with sasl_broker() as rig:
        admin = SaslClient(rig.face)
        await admin.log_in(SHA_256)
        made = await _alter(
            admin, upsertions=[_upsertion("bob", 1, "pw", 8192), _upsertion("bob", 2, "pw")]
        )
        assert made == {"bob": 0}
        assert await _described(admin) == {
            "alice": {1: 4096, 2: 4096},
            "bob": {1: 8192, 2: 4096},
        }
        for mechanism in (SHA_256, SHA_512, PLAIN):
            answer = await SaslClient(rig.face).log_in(mechanism, "bob", "pw")
            assert int(answer.error_code) == 0
        assert await _described(admin, "bob", "x") == {
            "bob": {1: 8192, 2: 4096},
            "x": RESOURCE_NOT_FOUND,
        }
        deletions = [{"name": "bob", "mechanism": one} for one in (1, 2)]
        assert await _alter(admin, deletions=deletions) == {"bob": 0}
        assert await _described(admin) == {"alice": {1: 4096, 2: 4096}}
        answer = await SaslClient(rig.face).log_in(SHA_256, "bob", "pw")
        assert int(answer.error_code) == SASL_AUTHENTICATION_FAILED


async def test_changes_that_cannot_be_stored_get_kafkas_errors_each_for_its_user():
    async with sasl_broker() as rig:
        admin = SaslClient(rig.face)
        await admin.log_in(SHA_256)
        few, many = _upsertion("few", 1, "pw"), _upsertion("many", 1, "pw")
        few["iterations"], many["iterations"] = 4095, 16385
        short = _upsertion("short", 2, "pw")
        short["salted_password"] = b"x"
        results = await _alter(
            admin,
            deletions=[{"name": "absent", "mechanism": 1}, {"name": "twice", "mechanism": 1}],
            upsertions=[
                *(few, many, short),
                _upsertion("", 1, "pw"),
                _upsertion("unknown", 3, "pw"),
                _upsertion("twice", 1, "pw"),
                _upsertion("x" * 101, 1, "pw"),
                _upsertion("good", 1, "pw"),
            ],
        )
        assert results == {
            "few": UNACCEPTABLE_CREDENTIAL,
            "many": UNACCEPTABLE_CREDENTIAL,
            "short": UNACCEPTABLE_CREDENTIAL,
            "": UNACCEPTABLE_CREDENTIAL,
            "x" * 101: UNACCEPTABLE_CREDENTIAL,
            "unknown": UNSUPPORTED_SASL_MECHANISM,
            "twice": DUPLICATE_RESOURCE,
            "absent": RESOURCE_NOT_FOUND,
            "good": 0,
        }
        assert await _described(admin, "few", "good", "good") == {
            "few": RESOURCE_NOT_FOUND,
            "good": DUPLICATE_RESOURCE,
        }
