"""Sessions and listeners: advertised addresses, admission, throttling."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import ADDRESS, broker, metrics_of
from tests.kit.kafka_client import Client
from tests.kit.records import batch

from headrace.broker.security.listener import ListenerSecurity
from headrace.broker.security.principal import ANONYMOUS, Principal
from headrace.broker.security.sessions import ClientSession
from headrace.kafka import apis
from headrace.kafka.connection import KafkaConnection, Reply
from headrace.kafka.dispatch import KafkaFace
from headrace.kafka.error_codes import ILLEGAL_SASL_STATE
from headrace.metadata.endpoints import HTTP, KAFKA, Endpoint
from headrace.metadata.facts import BrokerFact
from headrace_verify.kafka_wire import is_in_kio

if TYPE_CHECKING:
    from tests.kit.broker import BrokerHarness

INSIDE, OUTSIDE = ("127.0.0.1", 19_092), ("broker.example", 29_092)


class ListenerClient(Client):
    """A client that came through a listener."""

    def __init__(self, face: KafkaFace, listener: str) -> None:
        super().__init__(face)
        self.connection = KafkaConnection(
            face, asyncio.get_running_loop(), ListenerSecurity(listener)
        )
        self.transport.connection = self.connection
        self.connection.connection_made(self.transport)


def _give_endpoints(rig: BrokerHarness) -> None:
    rig.node.cluster.endpoints += [
        Endpoint(KAFKA, "INSIDE", *INSIDE),
        Endpoint(KAFKA, "OUTSIDE", *OUTSIDE),
        Endpoint(HTTP, "INSIDE", "127.0.0.1", 9_180),
    ]


@pytest.mark.parametrize(
    ("listener", "address"), [("INSIDE", INSIDE), ("OUTSIDE", OUTSIDE), ("OTHER", ADDRESS)]
)
async def test_a_client_gets_the_addresses_of_the_listener_it_connected_to(listener, address):
    async with broker() as rig:
        _give_endpoints(rig)
        client = ListenerClient(rig.face, listener)
        for version in (1, 12):
            answer = await client.ask(apis.METADATA, version, {"topics": None})
            assert [(one.host, one.port) for one in answer.brokers] == [address]
        answer = await client.ask(apis.DESCRIBE_CLUSTER, 1, {})
        assert [(one.host, one.port) for one in answer.brokers] == [address]
        answer = await client.ask(apis.FIND_COORDINATOR, 2, {"key": "g"})
        assert (answer.host, answer.port) == address


def test_a_broker_of_an_earlier_version_is_reached_at_its_one_address():
    fact = BrokerFact(1, "old.example", 9_092, "old.example", 9_180, 0)
    read = BrokerFact.decode(fact.encode())
    assert read.endpoints is None
    assert read.kafka_address("OUTSIDE") == ("old.example", 9_092)
    newer = BrokerFact(1, "a", 1, "a", 2, 0, endpoints=[Endpoint(KAFKA, "OUTSIDE", "b", 3)])
    stored = BrokerFact.decode(newer.encode())
    assert stored == newer
    assert stored.kafka_address("OUTSIDE") == ("b", 3)
    assert stored.kafka_address("INSIDE") == ("a", 1)


async def test_two_listeners_of_one_broker_take_clients_and_tell_each_its_own_address():
    async with broker() as rig:
        rig.node.cluster.kafka_address = ("", 0)
        first = await rig.face.listen("127.0.0.1", 0, ListenerSecurity("INSIDE"))
        second = await rig.face.listen("127.0.0.1", 0, ListenerSecurity("OUTSIDE"), OUTSIDE)
        assert first != second
        assert rig.node.cluster.kafka_address == first
        assert [(one.listener, one.host, one.port) for one in rig.node.cluster.endpoints] == [
            ("INSIDE", *first),
            ("OUTSIDE", *OUTSIDE),
        ]
        for address in (first, second):
            _, writer = await asyncio.open_connection(*address)
            writer.write((0).to_bytes(0, "big"))
            while len(rig.face.connections) == 0:
                await asyncio.sleep(0)
            (connection,) = rig.face.connections
            name = "INSIDE" if address == first else "OUTSIDE"
            assert connection.session.listener == name
            assert connection.session.principal == ANONYMOUS
            writer.transport.abort()
            while rig.face.connections:
                await asyncio.sleep(0)


async def test_name_and_version_of_client_software_are_kept_with_its_session():
    async with broker() as rig:
        client = rig.client()
        request = {"client_software_name": "a-client", "client_software_version": "1.2"}
        await client.ask(apis.API_VERSIONS, 3, request)
        session = client.connection.session
        assert (session.software_name, session.software_version) == ("a-client", "1.2")
        assert session.client_id == "t"
        await client.ask(apis.API_VERSIONS, 0, {})
        assert client.connection.session.software_name == ""


async def test_little_is_kept_of_long_names_of_client_software():
    """They are labels of /metrics, and a request may have 8 MiB."""
    async with broker() as rig:
        client = rig.client()
        request = {"client_software_name": "n" * 30_000, "client_software_version": "v" * 30_000}
        await client.ask(apis.API_VERSIONS, 3, request)
        text, _ = metrics_of(rig).render()
        assert max(map(len, text.splitlines())) < 1_000
        session = client.connection.session
        assert len(session.software_name) == len(session.software_version) == 200


@pytest.mark.parametrize("version", range(3))
async def test_a_client_that_expects_sasl_is_refused_at_once(version):
    """With Kafka's error, and the mechanisms that the listener has: none."""

    async with broker() as rig:
        client = rig.client()
        if version <= 1:
            answer = await client.ask(apis.SASL_HANDSHAKE, version, {"mechanism": "PLAIN"})
            assert (int(answer.error_code), answer.mechanisms) == (ILLEGAL_SASL_STATE, ())
        answer = await client.ask(apis.SASL_AUTHENTICATE, version, {"auth_bytes": b"x"})
        assert int(answer.error_code) == ILLEGAL_SASL_STATE
        assert (await client.ask(apis.METADATA, 1, {"topics": None})).topics == ()


# --- admission -------------------------------------------------------------------------------


class Strict:
    """Admits ApiVersions alone, until a test authenticates the session."""

    def open(self, listener: Any, client_host: str, certified: Any) -> ClientSession:
        return ClientSession(listener, client_host)

    def admits(self, session: ClientSession, api_key: int) -> bool:
        return api_key == apis.API_VERSIONS


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: api.name)
async def test_no_request_reaches_a_handler_before_its_session_is_admitted(api):
    async with broker() as rig:
        await rig.node.topics.create("t")
        face = KafkaFace(rig.node, admission=Strict())
        client = Client(face)
        versions = range(api.version_min, api.version_max + 1)
        client.send(api.key, max(one for one in versions if is_in_kio(api.key, one)), {})
        await asyncio.sleep(0)
        is_served = api.key == apis.API_VERSIONS
        assert client.transport.is_over is not is_served
        assert face.request_counts[api.key] == is_served
        await face.close()


async def test_an_authenticated_session_is_not_asked_about_again():
    async with broker() as rig:
        face = KafkaFace(rig.node, admission=Strict())
        client = Client(face)
        await client.ask(apis.API_VERSIONS, 0, {})
        client.connection.session.principal = Principal("someone")
        answer = await client.ask(apis.METADATA, 1, {"topics": None})
        assert answer.topics == ()
        assert not client.connection.must_be_admitted
        await face.close()


# --- throttling ------------------------------------------------------------------------------


class Fixed:
    """Throttles the first request of an API."""

    is_active = True

    def __init__(self, api_key: int, throttle_ms: int) -> None:
        self.api_key = api_key
        self.left_ms = throttle_ms

    def charge(self, session: ClientSession, api_key: int, size_bytes: int) -> int:
        assert size_bytes > 0
        if api_key != self.api_key:
            return 0
        throttle_ms, self.left_ms = self.left_ms, 0
        return throttle_ms

    def spent(self, session: ClientSession, api_key: int, time_ns: int) -> int:
        assert time_ns >= 0
        return 0


def _requests() -> list[Any]:
    data = {"name": "t", "partition_data": [{"index": 0, "records": batch(b"v")}]}
    produce = {"acks": -1, "timeout": 1000, "transactional_id": None, "topic_data": [data]}
    fetch = {"max_wait_ms": 0, "max_bytes": 1 << 20, "session_epoch": -1, "topics": []}
    return [
        *((apis.PRODUCE, version, produce) for version in (3, 8, 9, 12)),
        *((apis.FETCH, version, fetch) for version in (4, 7, 12)),
        *((apis.METADATA, version, {"topics": None}) for version in (3, 12)),
    ]


@pytest.mark.parametrize(("api_key", "version", "request_"), _requests())
async def test_a_throttled_answer_says_so_and_its_connection_is_muted_for_so_long(
    api_key, version, request_
):
    async with broker() as rig:
        await rig.node.topics.create("t")
        face = KafkaFace(rig.node, quotas=Fixed(api_key, 300))
        client = Client(face)
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        answer = await client.ask(api_key, version, request_)
        throttled = answer.throttle_time
        milliseconds = round(throttled.total_seconds() * 1000)
        assert milliseconds == 300
        assert client.transport.is_paused
        # What the client sends all the same waits until then.
        client.send(api_key, version, request_)
        while len(client.answers()) < 2:
            assert client.transport.is_paused or loop.time() - asked_at > 0.29
            await asyncio.sleep(0.005)
        assert loop.time() - asked_at > 0.29
        assert not client.transport.is_paused
        again = client.answers()[1]
        assert again.throttle_time.total_seconds() == 0
        await face.close()


async def test_a_muted_connection_that_ends_leaves_no_timer():
    async with broker() as rig:
        face = KafkaFace(rig.node, quotas=Fixed(apis.METADATA, 60_000))
        client = Client(face)
        await client.ask(apis.METADATA, 12, {"topics": None})
        timer = client.connection._muted
        assert timer is not None
        client.transport.abort()
        await asyncio.sleep(0)
        assert timer.cancelled()
        await face.close()


async def test_a_shorter_throttle_does_not_end_a_longer_one():
    async with broker() as rig:
        face = KafkaFace(rig.node)
        client = Client(face)
        for throttle_ms in (60_000, 1):
            client.connection.throttle_ms = throttle_ms
            reply = Reply(client.connection, 0)
            client.connection._replies.append(reply)
            reply.send([])
            await asyncio.sleep(0.02)
        assert client.transport.is_paused
        client.transport.abort()
        await face.close()


async def test_a_producer_that_wants_no_answers_is_muted_too():
    async with broker() as rig:
        await rig.node.topics.create("t")
        face = KafkaFace(rig.node, quotas=Fixed(apis.PRODUCE, 60_000))
        client = Client(face)
        data = {"name": "t", "partition_data": [{"index": 0, "records": batch(b"v")}]}
        client.send(apis.PRODUCE, 9, {"acks": 0, "timeout": 1_000, "topic_data": [data]})
        await asyncio.sleep(0)
        assert client.transport.is_paused
        client.transport.abort()
        await face.close()


async def test_a_connection_that_is_accepted_while_the_broker_stops_is_closed():
    async with broker() as rig:
        await rig.face.close()
        assert rig.client().transport.is_over
        await asyncio.sleep(0)
        assert not rig.face.connections
