"""Real clients log in by every mechanism, and learn from the broker's answer when they may not.

One broker authenticates clients on its only listener. The first user is made by the command line
before the broker starts, others by admin clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiokafka
import kafka
import pytest
from aiokafka.errors import AuthenticationFailedError
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from joserfc import jwt
from joserfc.jwk import RSAKey
from kafka.errors import KafkaTimeoutError, SaslAuthenticationFailedError
from kafka.net.compat import KafkaNetClient
from tests.integration.broker import Broker
from tests.integration.foreign import node_program
from tests.integration.test_transactions import fresh
from tests.waiting import wait_until

from headrace.errors import AuthenticationFailed
from headrace.pipeline.direct import is_possible, read_directly
from headrace.pipeline.options import SourceOptions
from headrace.pipeline.planning import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterator

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PASSWORD = "pä ss,=word"
KEY = RSAKey.generate_key(2048, {"kid": "one"})
ISSUER, AUDIENCE = "https://issuer.example", "headrace"
TIMEOUT_S = 120


def headrace(*arguments: str, text: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Secured:
    """A broker whose only listener authenticates, with the super user admin."""

    def __init__(self, folder: Path, *options: str) -> None:
        keys = folder / "keys.json"
        keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
        self.broker = Broker(
            folder,
            *("--listener-security-protocol-map", "PLAINTEXT:SASL_PLAINTEXT"),
            *("--sasl-enabled-mechanisms", ",".join([*MECHANISMS, "OAUTHBEARER"])),
            *("--sasl-oauthbearer-jwks-endpoint-url", keys.as_uri()),
            *("--sasl-oauthbearer-expected-issuer", ISSUER),
            *("--sasl-oauthbearer-expected-audience", AUDIENCE),
            *("--super-users", "User:admin"),
            *options,
        )
        where = ("--password-file", "-", "--data-dir", str(self.broker.data_dir))
        headrace("user", "add", "admin", *where, text=f"{PASSWORD}\n")
        self.broker.start()

    @property
    def bootstrap(self) -> str:
        return self.broker.kafka

    def settings(
        self, mechanism: str = "SCRAM-SHA-256", user: str = "admin", password: str = PASSWORD
    ) -> dict[str, Any]:
        """Settings of librdkafka."""
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def admin(self) -> AdminClient:
        return AdminClient(self.settings())

    def create_topic(self, stem: str) -> str:
        topic = fresh(stem)
        admin = self.admin()  # it must live until the answer is there
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)
        return topic

    def set_password(self, user: str, password: str | None) -> None:
        kinds = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
        changes: list[Any] = [
            UserScramCredentialDeletion(user, kind)
            if password is None
            else UserScramCredentialUpsertion(
                user, ScramCredentialInfo(kind, 4096), password.encode()
            )
            for kind in kinds
        ]
        admin = self.admin()
        admin.alter_user_scram_credentials(changes)[user].result(TIMEOUT_S)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    yield made
    made.broker.stop()


# --- each client by each mechanism -----------------------------------------------------------


def with_librdkafka(secured: Secured, mechanism: str, topic: str) -> list[bytes]:
    producer = Producer(secured.settings(mechanism))
    producer.produce(topic, b"v")
    assert producer.flush(TIMEOUT_S) == 0
    group = {"group.id": fresh("g"), "auto.offset.reset": "earliest"}
    consumer = Consumer({**secured.settings(mechanism), **group})
    consumer.subscribe([topic])
    found = wait_until(lambda: consumer.poll(1), TIMEOUT_S)
    consumer.close()
    return [found.value()]


def with_kafka_python(secured: Secured, mechanism: str, topic: str) -> list[bytes]:
    login = of_python(secured, mechanism)
    producer = kafka.KafkaProducer(**login)
    producer.send(topic, b"v").get(TIMEOUT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000, **login
    )
    found = [next(consumer).value]
    consumer.close()
    return found


def with_aiokafka(secured: Secured, mechanism: str, topic: str) -> list[bytes]:
    async def run() -> list[bytes]:
        login = of_python(secured, mechanism)
        async with aiokafka.AIOKafkaProducer(**login) as producer:
            await producer.send_and_wait(topic, b"v")
        consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **login)
        async with consumer, asyncio.timeout(TIMEOUT_S):
            return [(await consumer.getone()).value]

    return asyncio.run(run())


def with_pipeline(secured: Secured, mechanism: str, topic: str) -> list[bytes]:
    producer = Producer(secured.settings(mechanism))
    producer.produce(topic, b"v")
    assert producer.flush(TIMEOUT_S) == 0
    client = {name: str(value) for name, value in secured.settings(mechanism).items()}
    assert is_possible(client)
    batches = read_directly(OffsetRange(topic, 0, 0, 1), SourceOptions(client=client))
    return [row["value"] for batch in batches for row in batch.to_pylist()]


def of_python(secured: Secured, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "bootstrap_servers": secured.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "admin",
        "sasl_plain_password": password,
    }


CLIENTS = {
    "librdkafka": with_librdkafka,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
    "pipeline": with_pipeline,
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_logs_in_writes_and_reads(secured, client, mechanism):
    topic = secured.create_topic("logged-in")
    assert CLIENTS[client](secured, mechanism, topic) == [b"v"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_pipeline_learns_of_a_wrong_password_and_does_not_repeat_it(secured, mechanism):
    topic = secured.create_topic("refused")
    client = {
        name: str(value)
        for name, value in secured.settings(mechanism, password="not-this-one").items()
    }
    with pytest.raises(AuthenticationFailed) as caught:  # retries would end in ReadStalled
        list(read_directly(OffsetRange(topic, 0, 0, 1), SourceOptions(client=client)))
    assert "not-this-one" not in str(caught.value)


def node(secured: Secured, library: str, mechanism: str, password: str) -> dict[str, Any]:
    """What the program in JavaScript prints: the number of brokers, or its error."""
    (program, script), environment = node_program()
    done = subprocess.run(
        [program, str(Path(script).with_name("login.mjs")), library, mechanism, secured.bootstrap],
        env={**os.environ, **environment, "SASL_USER": "admin", "SASL_PASSWORD": password},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("library", ["kafkajs", "platformatic"])
def test_a_client_in_javascript_logs_in_and_is_refused(secured, library, mechanism):
    assert node(secured, library, mechanism, PASSWORD) == {"brokers": 1}
    assert "uthentication" in node(secured, library, mechanism, "wrong")["error"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_reports_a_wrong_password(secured, mechanism):
    errors: list[KafkaError] = []
    producer = Producer(
        {**secured.settings(mechanism, password="wrong"), "error_cb": errors.append}
    )
    wait_until(lambda: producer.poll(0.1) or errors, TIMEOUT_S)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "invalid credentials" in errors[0].str()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_reports_a_wrong_password(secured, mechanism, caplog):
    """The client itself tries again for as long as it may; each attempt gets the answer."""
    settings = of_python(secured, mechanism, "wrong")
    with contextlib.ExitStack() as stack:

        def connections(**given: Any) -> KafkaNetClient:
            return stack.enter_context(contextlib.closing(KafkaNetClient(**given)))

        # A producer that cannot be made leaves them open.
        settings |= {"bootstrap_timeout_ms": 500, "kafka_client": connections}
        with pytest.raises((SaslAuthenticationFailedError, KafkaTimeoutError)):
            kafka.KafkaProducer(**settings)
    assert "invalid credentials" in caplog.text
    assert "socket disconnected" not in caplog.text


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_reports_a_wrong_password(secured, mechanism, caplog):
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(**of_python(secured, mechanism, "wrong"))
        try:
            await producer.start()
        finally:
            await producer.stop()

    with pytest.raises((AuthenticationFailedError, aiokafka.errors.KafkaConnectionError)):
        asyncio.run(run())
    assert "invalid credentials" in caplog.text


# --- sessions --------------------------------------------------------------------------------


def a_token(lifetime_s: float, user: str = "admin") -> tuple[str, float]:
    now_s = time.time()
    claims = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": user,
        "iat": int(now_s),
        "exp": now_s + lifetime_s,
    }
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY), now_s + lifetime_s


def test_librdkafka_renews_its_token_and_its_session_without_a_pause(secured):
    """Tokens of 10 s: a connection that was not authenticated again would be closed. The client
    looks once a second whether its token is old, so that shorter ones expire in its hands."""
    topic = secured.create_topic("tokens")
    renewals, errors = [], []

    def renew(_config: str) -> tuple[str, float]:
        renewals.append(time.monotonic())
        return a_token(10)

    producer = Producer(
        {
            "bootstrap.servers": secured.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": renew,
            "error_cb": errors.append,
            "log_level": 0,
        }
    )
    failed: list[Any] = []
    end_s = time.monotonic() + 14
    count = 0
    while time.monotonic() < end_s:
        producer.produce(topic, b"v", on_delivery=lambda error, _: failed.append(error))
        count += 1
        producer.poll(0.05)
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == [None] * count
    assert len(renewals) >= 2
    assert errors == []


def test_a_token_of_another_issuer_is_refused(secured):
    errors: list[KafkaError] = []
    other = RSAKey.generate_key(2048, {"kid": "one"})
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "admin", "iat": 1, "exp": time.time() + 60}
    forged = jwt.encode({"alg": "RS256", "kid": "one"}, claims, other)
    producer = Producer(
        {
            "bootstrap.servers": secured.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": lambda _: (forged, time.time() + 60),
            "error_cb": errors.append,
            "log_level": 0,
        }
    )
    wait_until(lambda: producer.poll(0.1) or errors, TIMEOUT_S)
    assert errors[0].code() == KafkaError._AUTHENTICATION


def test_librdkafka_authenticates_again_before_its_session_ends(tmp_path):
    secured = Secured(tmp_path, "--connections-max-reauth-ms", "1500")
    try:
        topic = secured.create_topic("reauth")
        errors: list[Any] = []
        producer = Producer({**secured.settings(), "error_cb": errors.append})
        failed: list[Any] = []
        end_s = time.monotonic() + 6
        count = 0
        while time.monotonic() < end_s:
            producer.produce(topic, b"v", on_delivery=lambda error, _: failed.append(error))
            count += 1
            producer.poll(0.05)
        assert producer.flush(TIMEOUT_S) == 0
        assert (failed, errors) == ([None] * count, [])
    finally:
        secured.broker.stop()


def test_a_changed_password_ends_the_connections_and_the_new_one_serves_without_loss(secured):
    """What is acknowledged before, during and after the change is there once."""
    topic = secured.create_topic("rotated")
    secured.set_password("carol", "first")
    rights = ("--bootstrap", secured.bootstrap)
    login = [
        f"-X{name}={value}"
        for name, value in secured.settings().items()
        if name not in {"bootstrap.servers", "log_level"}
    ]
    acl = (
        "acl",
        "add",
        *rights,
        "--principal",
        "User:carol",
        "--operation",
        "WRITE",
        "--topic",
        topic,
    )
    headrace(*acl, *login)
    acknowledged: list[int] = []
    errors: list[KafkaError] = []
    stop = threading.Event()

    def write(password: str, first: int) -> None:
        producer = Producer(
            {
                **secured.settings(user="carol", password=password),
                "error_cb": errors.append,
                "message.timeout.ms": 20_000,
                "enable.idempotence": True,
            }
        )
        number = first
        while not stop.is_set() and not errors:

            def noted(error: Any, _message: Any, number: int = number) -> None:
                if error is None:
                    acknowledged.append(number)

            producer.produce(topic, str(number).encode(), on_delivery=noted)
            number += 1
            producer.poll(0.002)
        stop.clear()
        if errors:
            producer.purge()
        producer.flush(TIMEOUT_S)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, "first", 0)
        wait_until(lambda: len(acknowledged) > 100, TIMEOUT_S)
        secured.set_password("carol", "second")
        wait_until(lambda: errors, TIMEOUT_S)
        assert {error.code() for error in errors} <= {
            KafkaError._AUTHENTICATION,
            KafkaError._ALL_BROKERS_DOWN,
            KafkaError._TRANSPORT,
        }
        writing.result(TIMEOUT_S)
        errors.clear()
        writing = pool.submit(write, "second", 1_000_000)
        wait_until(lambda: any(number >= 1_000_100 for number in acknowledged), TIMEOUT_S)
        stop.set()
        writing.result(TIMEOUT_S)
    consumer = Consumer(
        {**secured.settings(), "group.id": fresh("g"), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[int] = []
    while set(acknowledged) - set(found):
        message = wait_until(lambda: consumer.poll(1), TIMEOUT_S)
        found.append(int(message.value()))
    consumer.close()
    assert len(found) == len(set(found))


def test_a_login_flood_stops_no_client_that_is_logged_in(secured, tmp_path):
    """Records are acknowledged one after another while logins of 400 connections are refused. That
    the event loop computes no password's hash is shown in tests/unit/http/test_logins.py."""
    topic = secured.create_topic("flooded")
    producer = Producer({**secured.settings(), "linger.ms": 0})

    def produce(count: int) -> None:
        for _ in range(count):
            producer.produce(topic, b"v")
            assert producer.flush(TIMEOUT_S) == 0

    produce(20)
    path = tmp_path / "refused"
    command = [sys.executable, str(Path(__file__).with_name("login_flood.py"))]
    with open(path, "wb") as out:
        flood = subprocess.Popen([*command, secured.bootstrap, "400"], stdout=out)
    try:
        wait_until(lambda: path.stat().st_size, TIMEOUT_S)
        produce(200)
        refused = path.stat().st_size
        wait_until(lambda: path.stat().st_size > refused, TIMEOUT_S)  # the flood has not ended
    finally:
        flood.kill()
        flood.wait()


def test_brokers_know_each_other_where_clients_have_to_log_in(tmp_path):
    """A transaction over partitions of both brokers: their requests to each other are served."""
    secured = Secured(tmp_path, "--workers", "2")
    try:
        topic = fresh("of-two")
        admin = secured.admin()
        admin.create_topics([NewTopic(topic, 6, 1)])[topic].result(TIMEOUT_S)
        producer = Producer({**secured.settings(), "transactional.id": "t"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for partition in range(6):
            producer.produce(topic, b"v", partition=partition)
        producer.commit_transaction(TIMEOUT_S)
        consumer = Consumer(
            {
                **secured.settings(),
                "group.id": fresh("g"),
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([topic])
        found: list[int] = []
        while len(found) < 6:
            message = wait_until(lambda: consumer.poll(1), TIMEOUT_S)
            assert message.error() is None
            found.append(message.partition())
        consumer.close()
        assert sorted(found) == list(range(6))
        leaders = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        assert {one.leader for one in leaders.values()} == {0, 1}
        log = secured.broker.log()
        assert "only brokers" not in log
        assert "before it was authenticated" not in log
        assert "login between brokers failed" not in log
    finally:
        secured.broker.stop()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_command_line_logs_in_on_every_transport_and_names_a_wrong_password(
    tmp_path, mechanism
):
    """Through the client library (topics), raw requests (quotas) and HTTP (searches)."""
    secured = Secured(tmp_path, "--http-security-protocol", "SASL_PLAINTEXT")
    try:
        topic = secured.create_topic("commands")
        options = ["--bootstrap", secured.bootstrap, "-Xsecurity.protocol=SASL_PLAINTEXT"]
        options += [f"-Xsasl.mechanism={mechanism}", "-Xsasl.username=admin"]
        right, wrong = f"-Xsasl.password={PASSWORD}", "-Xsasl.password=wrong"
        commands = (("topic", "list"), ("quota", "list"), ("dead", "list", topic))
        for command in (*commands, ("user", "list")):
            headrace(*command, *options, right)
            done = subprocess.run(
                [sys.executable, "-m", "headrace.cli.main", *command, *options, wrong],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 1
            assert "invalid credentials" in done.stderr
            assert "wrong" not in done.stderr
    finally:
        secured.broker.stop()


def test_api_keys_by_the_command_line(tmp_path):
    """Made, used by another program, listed and revoked."""
    secured = Secured(tmp_path, "--http-security-protocol", "SASL_PLAINTEXT")
    try:
        topic, other = secured.create_topic("keys"), secured.create_topic("keys")
        login = ["--bootstrap", secured.bootstrap, "-Xsecurity.protocol=SASL_PLAINTEXT"]
        login += ["-Xsasl.mechanism=PLAIN", "-Xsasl.username=admin", f"-Xsasl.password={PASSWORD}"]
        scope = ("--scope", f"DESCRIBE,DESCRIBE_CONFIGS topic {topic}", "--expires", "1h")
        key = headrace("key", "create", "nightly", *scope, *login).strip()

        def status(name: str) -> int:
            host, _, port = secured.broker.http.rpartition(":")
            connection = http.client.HTTPConnection(host, int(port), timeout=TIMEOUT_S)
            headers = {"Authorization": f"Bearer {key}"}
            connection.request("GET", f"/v1/topics/{name}", headers=headers)
            found = connection.getresponse().status
            connection.close()
            return found

        assert (status(topic), status(other)) == (200, 403)
        (listed,) = json.loads(headrace("key", "list", "--json", *login))["keys"]
        assert (listed["name"], listed["principal"]) == ("nightly", "User:admin")
        assert key not in str(listed)
        assert listed["id"] in key
        headrace("key", "revoke", listed["id"], "--yes", *login)
        assert status(topic) == 401
        assert key.split("_", 2)[2] not in secured.broker.log()
    finally:
        secured.broker.stop()
