"""Calls that are signed with access keys: which are accepted, how long, and what others learn."""

from __future__ import annotations

import asyncio
import hmac
import time
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.kit.broker import broker
from tests.unit.rocketmq.rocketmq_rig import Rocket, receive_request

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.security.acls import Acl, Entry, Pattern, PatternType, Permission
from headrace.broker.security.api_keys import HTTP, ROCKETMQ, NewKey, ScopeRule
from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.principal import Principal
from headrace.broker.security.users import CredentialChange
from headrace.broker.services.record_sends import Outgoing
from headrace.errors import PolicyViolation
from headrace.grpc.service import Status
from headrace.records.codec import Record
from headrace.rocketmq import codes, wire
from headrace.rocketmq.signed import KEYS_MAX, REFUSED, SignedConnection
from headrace.runtime.scram import SHA_256, new_credential, salt_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ALICE, ROOT = Principal("alice"), Principal("root")
ACL = {"offsets_partition_count": 2, "authorizer": "acl", "super_users": "User:root"}
MINUTE = timedelta(minutes=1)
DAY_MS = 86_400_000


class Key(NamedTuple):
    id: str
    secret: str


class Signing:
    """A broker whose clients sign, and a topic that is there."""

    def __init__(self, rocket: Rocket) -> None:
        self.rocket = rocket
        self.services = rocket.node.services
        self.connection = self.connect()
        self.keys_made = 0

    def connect(self, host: str = "10.0.0.7") -> SignedConnection:
        return SignedConnection(self.services, "ROCKETMQ", host)

    async def key(self, owner: Principal = ALICE, **more: Any) -> Key:
        self.keys_made += 1
        name = f"key-{self.keys_made}"
        new = NewKey(name, owner, kind=more.pop("kind", ROCKETMQ), **more)
        secret, key = await self.services.issuers.keys.create(new)
        return Key(key.id, secret)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.rocket.rig.clock.now_ms() / 1_000, UTC)

    def headers(
        self, key: Key, at: datetime | None = None, text: str = "%Y%m%dT%H%M%SZ"
    ) -> dict[bytes, bytes]:
        date_time = (at or self.now()).strftime(text).encode()
        signature = hmac.digest(key.secret.encode(), date_time, "sha1").hex()
        signed = f"Credential={key.id}, SignedHeaders=x-mq-date-time, Signature={signature}"
        return {
            b"authorization": f"MQv2-HMAC-SHA1 {signed}".encode(),
            b"x-mq-date-time": date_time,
        }

    async def status(self, headers: dict[bytes, bytes], **more: Any) -> Any:
        """Of a route to the topic."""
        request = wire.request_of("QueryRoute")(topic={"name": more.pop("topic", "orders")})
        session = more.pop("session", self.connection)
        call = self.rocket.begin("QueryRoute", request, session=session, headers=headers)
        await asyncio.wait_for(call.over.wait(), 30)
        return wire.response_of("QueryRoute").FromString(call.sent[0]).status

    async def code(self, headers: dict[bytes, bytes], **more: Any) -> int:
        return int((await self.status(headers, **more)).code)


@asynccontextmanager
async def signing(**config: Any) -> AsyncIterator[Signing]:
    async with broker(BrokerConfig(**(ACL | config))) as rig:
        await rig.node.services.authentication.logins.secret.load()
        rocket = Rocket(rig)
        await rocket.create("orders")
        await rocket.create("secrets")
        made = Signing(rocket)
        yield made


def rule(name: str, operation: Operation, kind: ResourceType = ResourceType.TOPIC) -> Acl:
    entry = Entry("User:alice", "*", operation, Permission.ALLOW)
    return Acl(Pattern(kind, name), entry)


async def test_a_signature_of_its_time_is_taken_and_older_ones_are_not():
    async with signing() as made:
        key = await made.key(ROOT)
        begun = made.now()
        for minutes in (0, 4.9, -4.9):
            headers = made.headers(key, begun + minutes * MINUTE)
            assert await made.code(headers) == codes.OK, minutes
        for minutes in (5.2, -5.2, 60, -60, 365 * 24 * 60):
            headers = made.headers(key, begun + minutes * MINUTE)
            assert await made.code(headers) == codes.UNAUTHORIZED, minutes


async def test_a_repeated_signature_ends_with_its_window_also_where_it_was_taken_before():
    async with signing() as made:
        headers = made.headers(await made.key(ROOT))
        assert await made.code(headers) == codes.OK
        made.rocket.rig.clock.ahead_ms += 240_000
        assert await made.code(headers) == codes.OK
        made.rocket.rig.clock.ahead_ms += 70_000
        assert await made.code(headers) == codes.UNAUTHORIZED
        assert await made.code(headers, session=made.connect()) == codes.UNAUTHORIZED


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/St_Johns"])
def test_the_brokers_local_time_counts_since_clients_send_theirs_as_utc(zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()

    async def scenario() -> None:
        async with signing() as made:
            key = await made.key(ROOT)
            local = made.now().astimezone()
            assert await made.code(made.headers(key, local)) == codes.OK
            assert await made.code(made.headers(key, made.now())) == codes.OK
            other = made.headers(key, made.now() + timedelta(hours=5))
            assert await made.code(other) == codes.UNAUTHORIZED
        async with signing(signature_offsets_s=(5 * 3600,)) as made:
            key = await made.key(ROOT)
            other = made.headers(key, made.now() + timedelta(hours=5))
            assert await made.code(other) == codes.OK

    try:
        asyncio.run(scenario())
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_the_forms_of_all_clients_are_read():
    async with signing() as made:
        key = await made.key(ROOT)
        given = made.headers(key)
        signed = given[b"authorization"]
        head, _, signature = signed.rpartition(b"=")
        for text in (
            signed.replace(b",", b"//RocketMQ,", 1),  # Go
            signed.replace(b",", b"//Rocketmq,", 1),  # C++
            head + b"=" + signature.upper(),  # Node
        ):
            headers = given | {b"authorization": text}
            assert await made.code(headers, session=made.connect()) == codes.OK, text
        rust = made.headers(key, text="%Y-%m-%dT%H:%M:%S.123456789+00:00")
        assert await made.code(rust, session=made.connect()) == codes.OK


async def test_whatever_is_wrong_gets_the_same_answer():
    async with signing() as made:
        made.services.authentication.failures._sleep = _no_wait  # type: ignore[method-assign]
        key = await made.key(ROOT)
        http = await made.key(ROOT, kind=HTTP)
        right = made.headers(key)
        other_time = made.headers(key, made.now() - MINUTE)[b"x-mq-date-time"]
        wrong = [
            {},
            {b"x-mq-date-time": right[b"x-mq-date-time"]},
            {b"authorization": right[b"authorization"]},
            right | {b"x-mq-date-time": other_time},
            made.headers(Key(key.id, "hrs_" + "x" * 43)),
            made.headers(Key(key.id, "")),
            made.headers(Key("0" * 16, key.secret)),
            made.headers(Key(http.id, http.secret)),
            made.headers(Key(http.id, made.services.issuers.keys.access_secret(http.id))),
            made.headers(Key("", "")),
            right | {b"authorization": b"Basic cm9vdDpyb290"},
            right | {b"authorization": b"Bearer " + http.secret.encode()},
            right | {b"authorization": right[b"authorization"] * 2},
            right | {b"authorization": right[b"authorization"] + b"," + b"x" * 100_000},
            right | {b"x-mq-date-time": b"\xff\xfe"},
            right | {b"x-mq-date-time": b"9" * 10_000},
        ]
        found = []
        for headers in wrong:
            for topic in ("orders", "no-such-topic"):
                found.append(await made.status(headers, topic=topic))
        assert {(one.code, one.message) for one in found} == {(codes.UNAUTHORIZED, REFUSED)}
        assert await made.code(right) == codes.OK
        figures = made.services.authentication.logins.figures
        assert figures.failed["ACCESS-KEY"] == len(found)
        assert figures.succeeded["ACCESS-KEY"] == 1


async def _no_wait(_ms: int) -> None:
    return


async def test_failed_signatures_are_slowed_and_valid_ones_are_not():
    async with signing() as made:
        key = await made.key(ROOT)
        assert await made.code(made.headers(key)) == codes.OK
        waited: list[int] = []

        async def note(wait_ms: int) -> None:
            waited.append(wait_ms)

        made.services.authentication.failures._sleep = note  # type: ignore[method-assign]
        stranger = made.connect()
        for _ in range(30):
            assert await made.code({}, session=stranger) == codes.UNAUTHORIZED
        assert waited[0] == 100
        assert waited[-1] > 1_000
        count = len(waited)
        made.rocket.rig.clock.ahead_ms += 1_000
        assert await made.code(made.headers(key)) == codes.OK
        assert len(waited) == count


async def test_a_key_acts_as_its_user_within_its_scope_and_the_rules():
    async with signing() as made:
        await made.services.access.create([rule("orders", Operation.DESCRIBE)])
        key = await made.key()
        headers = made.headers(key)
        assert await made.code(headers) == codes.OK
        denied = await made.status(headers, topic="secrets")
        assert denied.code == codes.FORBIDDEN
        absent = await made.status(headers, topic="absents")
        assert absent.code == codes.FORBIDDEN
        assert denied.message.replace("secrets", "X") == absent.message.replace("absents", "X")
        # A scope narrows even a super user.
        pattern = Pattern(ResourceType.TOPIC, "sec", PatternType.PREFIXED)
        narrow = await made.key(ROOT, rules=[ScopeRule(pattern, Operation.READ)])
        headers = made.headers(narrow)
        assert await made.code(headers) == codes.FORBIDDEN
        assert await made.code(headers, topic="secrets") == codes.OK


async def test_keys_on_one_connection_do_not_act_with_each_others_rights():
    async with signing() as made:
        mighty, weak = made.headers(await made.key(ROOT)), made.headers(await made.key())
        for _ in range(3):
            assert await made.code(mighty) == codes.OK
            assert await made.code(weak) == codes.FORBIDDEN
        for _ in range(KEYS_MAX - 2):
            assert await made.code(made.headers(await made.key(ROOT))) == codes.OK
        one_more = made.headers(await made.key(ROOT))
        assert await made.code(one_more) == codes.UNAUTHORIZED


@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_a_key_that_ended_makes_room_for_another_one_on_its_connection(ends):
    async with signing() as made:
        keys = [await made.key(ROOT, lifetime_ms=DAY_MS)]
        keys += [await made.key(ROOT) for _ in range(KEYS_MAX - 1)]
        for key in keys:
            assert await made.code(made.headers(key)) == codes.OK
        if ends == "revoked":
            await made.services.issuers.keys.revoke(keys[0].id)
        else:
            made.rocket.rig.clock.ahead_ms += DAY_MS
        assert await made.code(made.headers(await made.key(ROOT))) == codes.OK
        assert await made.code(made.headers(keys[0])) == codes.UNAUTHORIZED
        assert await made.code(made.headers(keys[1])) == codes.OK
        assert await made.code(made.headers(await made.key(ROOT))) == codes.UNAUTHORIZED


@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_a_key_that_ends_ends_what_waits(ends):
    async with signing() as made:
        key = await made.key(ROOT)
        headers = made.headers(key)
        waiting = made.rocket.begin(
            "ReceiveMessage",
            receive_request("orders", "workers", wait_ms=20_000),
            session=made.connection,
            headers=headers,
        )
        await asyncio.sleep(0.1)
        if ends == "revoked":
            await made.services.issuers.keys.revoke(key.id)
        else:
            made.rocket.rig.clock.ahead_ms += 91 * 86_400_000
        topic = made.services.topics.get("orders")
        record = Record(0, made.rocket.rig.clock.now_ms(), None, b"late", [])
        await made.services.sends.send(topic, [Outgoing(record)])
        await asyncio.wait_for(waiting.over.wait(), 20)
        (answer,) = waiting.sent
        status = wire.response_of("ReceiveMessage").FromString(answer).status
        assert status.code == codes.UNAUTHORIZED
        assert await made.code(made.headers(key)) == codes.UNAUTHORIZED


class Producer:
    """A stream of settings, and what it is answered."""

    def __init__(self, made: Signing, key: Key) -> None:
        path = f"/{wire.SERVICE}/Telemetry"
        self.call = made.rocket.stream_call("Telemetry", made.connection, made.headers(key))
        self._requests: Any = made.rocket.messaging.methods[path].handler(self.call)
        self._command = wire.TelemetryCommand()
        self._command.settings.client_type = wire.PRODUCER
        self._command.settings.publishing.topics.add(name="orders")

    async def code(self) -> int:
        """What settings are answered with."""
        self.call.arrived.clear()
        self._requests.message(self._command.SerializeToString())
        await asyncio.wait_for(self.call.arrived.wait(), 20)
        return int(wire.TelemetryCommand.FromString(self.call.sent[-1]).status.code)


async def test_a_stream_is_signed_once_and_refused_when_its_key_has_expired():
    async with signing() as made:
        producer = Producer(made, await made.key(ROOT, lifetime_ms=DAY_MS))
        assert await producer.code() == codes.OK
        made.rocket.rig.clock.ahead_ms += 3_600_000
        assert await producer.code() == codes.OK, "settings are sent again every five minutes"
        made.rocket.rig.clock.ahead_ms += DAY_MS
        assert await producer.code() == codes.UNAUTHORIZED


@pytest.mark.parametrize("ends", ["its key", "its user"])
async def test_a_quiet_stream_ends_with_its_key(ends):
    async with signing() as made:
        users, keys = made.services.authentication.users, made.services.issuers.keys
        credential = new_credential(SHA_256, "a password", salt_text(1))
        await users.change([CredentialChange("root", SHA_256, credential)])
        ended, other = await made.key(ROOT), await made.key()
        streams = Producer(made, ended), Producer(made, other), Producer(made, ended)
        for one in streams[:2]:
            assert await one.code() == codes.OK
        if ends == "its key":
            await keys.revoke(ended.id)
        else:
            await users.change([CredentialChange("root", SHA_256, None)])
        await asyncio.wait_for(streams[0].call.over.wait(), 20)
        assert streams[0].call.status == Status.UNAUTHENTICATED
        assert await streams[1].code() == codes.OK, "of another key on the same connection"
        assert await streams[2].code() == codes.UNAUTHORIZED, "it had said nothing so far"


async def test_a_key_is_refused_where_no_listener_authenticates():
    async with broker() as rig:
        with pytest.raises(PolicyViolation, match="nothing was created"):
            await rig.node.services.issuers.keys.create(NewKey("x", ROOT, kind=ROCKETMQ))
