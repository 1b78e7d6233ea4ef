"""Real clients enter secured listeners: each by every mechanism over TLS, and by certificate.

One broker has a listener with logins and one that asks for certificates. Every client is tested
in every way; docs/SECURITY.md has the same table. A third listener is a tenant's own, where some of
them log in as users of the tenant.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiokafka
import kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate
from joserfc import jwt
from joserfc.jwk import RSAKey
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokens
from tests.integration.broker import Broker
from tests.integration.certificates import Certificates
from tests.integration.clients import Kcat
from tests.integration.foreign import (
    JAVA_VERSIONS,
    go_family_program,
    go_program,
    java_family_program,
    node_program,
    require_javac,
    rust_family_program,
    rust_program,
)
from tests.integration.test_sasl import AUDIENCE, ISSUER, headrace
from tests.integration.test_transactions import fresh
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = RSAKey.generate_key(2048, {"kid": "one"})
USER, PASSWORD = "admin", "of the admin"
CERTIFICATE = "certificate"
TENANT, MEMBER = "acme", "member"
"""A tenant with a user of its own, who is called as the operator, and a principal of it."""
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS = (*PASSWORDS, "OAUTHBEARER", CERTIFICATE)
TEAM_WAYS = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")
TEAM_CLIENTS = ("librdkafka", "franz-go")
AT_TEAM = "a tenant's "
JAVA_TEAM_WAYS = tuple(AT_TEAM + way for way in TEAM_WAYS if way in PASSWORDS)
JAVA_CLIENTS = (JAVA_VERSIONS[0], "3.3.2", JAVA_VERSIONS[-1])
TIMEOUT_S = 120
JAVA_TIMEOUT_S = 400


LISTENERS = ("LOGIN", "CERTIFIED", "TEAM")


class Entrance:
    """The broker, and what a client needs to enter it."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder / "certificates")
        self.certificate = self.certificates.client(USER)
        keys = folder / "keys.json"
        keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
        self.broker = Broker(
            folder,
            *self.certificates.options(),
            *("--listener-security-protocol-map", "LOGIN:SASL_SSL,CERTIFIED:SSL,TEAM:SASL_SSL"),
            *("--listener-setting", f"listener.name.team.headrace.tenant={TENANT}"),
            *("--tenants", f"{TENANT}=User:{MEMBER}"),
            *("--listener-setting", "listener.name.certified.ssl.client.auth=required"),
            *("--sasl-enabled-mechanisms", ",".join(WAYS[:-1])),
            *("--sasl-oauthbearer-jwks-endpoint-url", keys.as_uri()),
            *("--sasl-oauthbearer-expected-issuer", ISSUER),
            *("--sasl-oauthbearer-expected-audience", AUDIENCE),
            *("--super-users", f"User:{USER};User:CN={USER}"),
        )
        self.broker.listen(*LISTENERS)
        where = ("--password-file", "-", "--data-dir", str(self.broker.data_dir))
        headrace("user", "add", USER, *where, text=f"{PASSWORD}\n")
        headrace("user", "add", USER, "--tenant", TENANT, *where, text=f"{PASSWORD}\n")
        self.broker.start()
        self.listeners = self.broker.listeners

    def address(self, way: str) -> str:
        return self.listeners["CERTIFIED" if way == CERTIFICATE else "LOGIN"]

    def operator(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.address(CERTIFICATE), **self.certificate})

    def create_topic(self, topic: str) -> None:
        admin = self.operator()  # one that is dropped ends its requests
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)

    def secret(self, way: str, user: str = USER) -> str:
        """The password, or a token."""
        if way != "OAUTHBEARER":
            return PASSWORD
        now_s = int(time.time())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": user, "iat": now_s, "exp": now_s + 600}
        return jwt.encode({"alg": "RS256", "kid": "one"}, claims, KEY)

    def files(self, way: str) -> list[str]:
        """The CA, and the client's certificate and key where they are asked for."""
        names = ["ssl.ca.location"]
        if way == CERTIFICATE:
            names += ["ssl.certificate.location", "ssl.key.location"]
        return [self.certificate[name] for name in names]


class Team(Entrance):
    """The tenant's own listener."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self.certificate = entrance.certificate

    def address(self, _way: str) -> str:
        return self._entrance.listeners["TEAM"]

    def secret(self, way: str, user: str = MEMBER) -> str:
        return self._entrance.secret(way, user)

    def operator(self) -> AdminClient:
        """The tenant's own user: it creates topics of the tenant."""
        return AdminClient(librdkafka_login(self, "SCRAM-SHA-512"))


@pytest.fixture(scope="module")
def entrance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entrance]:
    made = Entrance(tmp_path_factory.mktemp("entrance"))
    yield made
    made.broker.stop()


def librdkafka_login(entrance: Entrance, way: str) -> dict[str, Any]:
    login: dict[str, Any] = {"bootstrap.servers": entrance.address(way), "log_level": 0}
    if way == CERTIFICATE:
        login |= entrance.certificate
    else:
        login |= {"security.protocol": "SASL_SSL", "ssl.ca.location": entrance.files(way)[0]}
        login |= {"sasl.mechanism": way, "sasl.username": USER, "sasl.password": PASSWORD}
    if way == "OAUTHBEARER":
        login["oauth_cb"] = lambda _: (entrance.secret(way), time.time() + 600)
    return login


def with_librdkafka(entrance: Entrance, way: str, topic: str) -> str:
    login = librdkafka_login(entrance, way)
    producer = Producer(login)
    producer.produce(topic, b"v")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer({**login, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = wait_until(lambda: consumer.poll(1), TIMEOUT_S)
    consumer.close()
    return found.value().decode()


def with_kafka_python(entrance: Entrance, way: str, topic: str) -> str:
    class Tokens(KafkaPythonTokens):
        def token(self) -> str:
            return entrance.secret(way)

    login: dict[str, Any] = {"bootstrap_servers": entrance.address(way)}
    names = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
    login |= dict(zip(names, entrance.files(way), strict=False))
    login["security_protocol"] = "SSL" if way == CERTIFICATE else "SASL_SSL"
    if way in PASSWORDS:
        login |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    if way != CERTIFICATE:
        login["sasl_mechanism"] = way
    if way == "OAUTHBEARER":
        login["sasl_oauth_token_provider"] = Tokens()
    producer = kafka.KafkaProducer(**login)
    producer.send(topic, b"v").get(TIMEOUT_S)
    producer.close()
    limit = {"auto_offset_reset": "earliest", "consumer_timeout_ms": TIMEOUT_S * 1000}
    consumer = kafka.KafkaConsumer(topic, **limit, **login)
    found = next(consumer).value.decode()
    consumer.close()
    return found


def with_aiokafka(entrance: Entrance, way: str, topic: str) -> str:
    class Tokens(AbstractTokenProvider):
        async def token(self) -> str:
            return entrance.secret(way)

    async def run() -> str:
        ca, *own = entrance.files(way)
        context = ssl.create_default_context(cafile=ca)
        if own:
            context.load_cert_chain(*own)
        login: dict[str, Any] = {"bootstrap_servers": entrance.address(way)}
        login |= {"ssl_context": context, "security_protocol": "SASL_SSL" if not own else "SSL"}
        if way in PASSWORDS:
            login |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        if way != CERTIFICATE:
            login["sasl_mechanism"] = way
        if way == "OAUTHBEARER":
            login["sasl_oauth_token_provider"] = Tokens()
        async with aiokafka.AIOKafkaProducer(**login) as producer:
            await producer.send_and_wait(topic, b"v")
        consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **login)
        async with consumer, asyncio.timeout(TIMEOUT_S):
            return (await consumer.getone()).value.decode()

    return asyncio.run(run())


def read_by(command: list[str], secret: str, **environment: str) -> str:
    """What a program has read."""
    secrets = {"SASL_USER": USER, "SASL_PASSWORD": secret}
    done = subprocess.run(
        command, env={**os.environ, **environment, **secrets}, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found.get("read") or found["error"]


def with_go(entrance: Entrance, way: str, topic: str, library: str) -> str:
    (program,), _ = go_program()
    where = ["-library", library, "-bootstrap", entrance.address(way), "-topic", topic]
    pairs = zip(("-ca", "-cert", "-key"), entrance.files(way), strict=False)
    login = [] if way == CERTIFICATE else ["-mechanism", way, "-user", USER]
    files = [word for pair in pairs for word in pair]
    return read_by([program, "login", *where, *files, *login], entrance.secret(way))


def with_node(entrance: Entrance, way: str, topic: str, library: str) -> str:
    (node, script), environment = node_program()
    program = str(Path(script).with_name("login.mjs"))
    mechanism = "none" if way == CERTIFICATE else way
    where = [library, mechanism, entrance.address(way), topic, *entrance.files(way)]
    return read_by([node, program, *where], entrance.secret(way), **environment)


def with_rust(entrance: Entrance, way: str, topic: str) -> str:
    mechanism = "none" if way == CERTIFICATE else way
    where = ["login", mechanism, entrance.address(way), topic, *entrance.files(way)]
    return read_by([*rust_program(), *where], entrance.secret(way))


CLIENTS: dict[str, Any] = {
    "librdkafka": with_librdkafka,
    "kafka-python": with_kafka_python,
    "aiokafka": with_aiokafka,
    "franz-go": lambda *given: with_go(*given, "franz-go"),
    "sarama": lambda *given: with_go(*given, "sarama"),
    "kafkajs": lambda *given: with_node(*given, "kafkajs"),
    "platformatic": lambda *given: with_node(*given, "platformatic"),
    "rskafka": with_rust,
}


@pytest.mark.timeout(900)  # a program may have to be built first
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_enters_writes_and_reads(entrance: Entrance, client: str, way: str) -> None:
    topic = fresh("entered")
    entrance.create_topic(topic)
    assert CLIENTS[client](entrance, way, topic) == "v"


@pytest.mark.parametrize("way", [*PASSWORDS, CERTIFICATE])
def test_an_old_librdkafka_enters_writes_and_reads(entrance: Entrance, way: str) -> None:
    """Before 2.6.1 its SCRAM repeats the nonce in its own way."""
    topic = fresh("entered")
    entrance.create_topic(topic)
    login = {name: str(value) for name, value in librdkafka_login(entrance, way).items()}
    bootstrap = login.pop("bootstrap.servers")
    options = [word for name, value in login.items() for word in ("-X", f"{name}={value}")]
    Kcat.run(bootstrap, *options, "-P", "-t", topic, text=b"v\n")
    assert Kcat.run(bootstrap, *options, "-C", "-t", topic, "-c", "1") == b"v\n"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("library", "age", "way"),
    [
        ("franz", "oldest", "PLAIN"),  # before 1.2.5, its SCRAM lacks the broker's nonce
        *(("franz", "middle", way) for way in PASSWORDS),
        *(("sarama", age, way) for age in ("oldest", "middle") for way in PASSWORDS),
    ],
)
def test_an_old_client_in_go_enters_writes_and_reads_in_a_group(
    entrance: Entrance, library: str, age: str, way: str
) -> None:
    program = go_family_program(library, age)
    topic = fresh(f"{library}-{age}-{way}")
    entrance.create_topic(topic)
    done = subprocess.run(
        [program, entrance.address(way), topic, "30", way, entrance.files(way)[0]],
        env=os.environ | {"SASL_USER": USER, "SASL_PASSWORD": PASSWORD},
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.split()[-1] == "ok"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["PLAIN", CERTIFICATE])
def test_an_old_rskafka_enters_writes_and_reads(entrance: Entrance, way: str) -> None:
    """Before 0.5 it has no SASL, and before 0.4 checks no certificate of an address."""
    program = rust_family_program("middle")
    topic = fresh(f"rskafka-{way}".lower())
    entrance.create_topic(topic)
    mechanism = "none" if way == CERTIFICATE else way
    done = subprocess.run(
        [program, entrance.address(way), topic, "30", mechanism, *entrance.files(way)],
        env=os.environ | {"SASL_USER": USER, "SASL_PASSWORD": PASSWORD},
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.split()[-1] == "ok"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", PASSWORDS)
@pytest.mark.parametrize("age", ["oldest", "middle"])
def test_an_old_kafkajs_enters_writes_and_reads(entrance: Entrance, age: str, way: str) -> None:
    topic = fresh(f"kafkajs-{age}-{way}")
    entrance.create_topic(topic)
    assert with_node(entrance, way, topic, f"kafkajs-{age}") == "v"


@pytest.mark.parametrize("way", TEAM_WAYS)
@pytest.mark.parametrize("client", TEAM_CLIENTS)
def test_a_client_of_a_tenant_enters_at_its_listener(
    entrance: Entrance, client: str, way: str
) -> None:
    topic, team = fresh("entered"), Team(entrance)
    team.create_topic(topic)
    assert CLIENTS[client](team, way, topic) == "v"
    check_owner(entrance, topic)


def check_owner(entrance: Entrance, topic: str) -> None:
    """An operator sees it as the tenant's."""
    admin = entrance.operator()
    topics = admin.list_topics(timeout=TIMEOUT_S).topics
    assert f"«{TENANT}»{topic}" in topics
    assert topic not in topics


class Stores:
    """Java's files: clients before 2.7 read no PEM."""

    def __init__(self, entrance: Entrance, folder: Path) -> None:
        self._folder = folder
        self._trusted, self._own = folder / "trusted.p12", folder / "own.p12"
        keytool = str(Path(require_javac()[1]).with_name("keytool"))
        kind = ("-storetype", "PKCS12", "-storepass", PASSWORD, "-keystore", str(self._trusted))
        ca, certificate, key = entrance.files(CERTIFICATE)
        subprocess.run(
            [keytool, "-importcert", "-noprompt", "-alias", "ca", *kind, "-file", ca],
            capture_output=True, check=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        own = pkcs12.serialize_key_and_certificates(
            b"own",
            load_pem_private_key(Path(key).read_bytes(), None),  # type: ignore[arg-type]
            load_pem_x509_certificate(Path(certificate).read_bytes()),
            None,
            BestAvailableEncryption(PASSWORD.encode()),
        )
        self._own.write_bytes(own)

    def settings(self, way: str, place: Entrance) -> Path:
        """A file of a client's properties."""
        is_login = way != CERTIFICATE
        lines = {
            "bootstrap.servers": place.address(way),
            "security.protocol": "SASL_SSL" if is_login else "SSL",
            "ssl.truststore.type": "PKCS12",
            "ssl.truststore.location": str(self._trusted),
            "ssl.truststore.password": PASSWORD,
        }
        modules = {"PLAIN": "plain.Plain", "OAUTHBEARER": "oauthbearer.OAuthBearer"}
        module = f"org.apache.kafka.common.security.{modules.get(way, 'scram.Scram')}LoginModule"
        if is_login:
            user = f'username="{USER}" password="{PASSWORD}"' if way in PASSWORDS else ""
            lines |= {"sasl.mechanism": way, "sasl.jaas.config": f"{module} required {user};"}
        else:
            lines |= {
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(self._own),
                "ssl.keystore.password": PASSWORD,
                "ssl.key.password": PASSWORD,
            }
        if way == "OAUTHBEARER":
            lines["sasl.login.callback.handler.class"] = "FamilyLogin$Tokens"
        path = self._folder / f"{way}-{place.address(way).rpartition(':')[2]}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path


@pytest.fixture(scope="module")
def java_outcomes(entrance: Entrance, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one JVM says of each version and way; they run one after the other."""
    command, jars = java_family_program("FamilyLogin")
    stores, team = Stores(entrance, tmp_path_factory.mktemp("stores")), Team(entrance)
    by_version = dict(zip(JAVA_VERSIONS, jars, strict=True))
    topics = {
        way: fresh(f"java-{way.rpartition(' ')[2]}").lower() for way in (*WAYS, *JAVA_TEAM_WAYS)
    }
    files = []
    for way, topic in topics.items():
        place = team if way in JAVA_TEAM_WAYS else entrance
        place.create_topic(topic)
        files.append(f"{topic}={stores.settings(way.removeprefix(AT_TEAM), place)}")
    versions = [f"{version}={by_version[version]}" for version in JAVA_CLIENTS]
    done = subprocess.run(
        [*command, *versions, "--", *files],
        env={**os.environ, "TOKEN": entrance.secret("OAUTHBEARER")},
        capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False,
    )  # fmt: skip
    said = {}
    for line in done.stdout.splitlines():
        version, topic, what = line.split(" ", 2)
        said[version, topic] = what
    for way in JAVA_TEAM_WAYS:
        check_owner(entrance, topics[way])
    found = {
        f"{version} {way}": said.get((version, topic), "nothing")
        for version in JAVA_CLIENTS
        for way, topic in topics.items()
    }
    return found | {"": done.stderr[-6000:]}


@pytest.mark.java
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", [*WAYS, *JAVA_TEAM_WAYS])
@pytest.mark.parametrize("version", JAVA_CLIENTS)
def test_a_java_client_enters_writes_and_reads(
    java_outcomes: dict[str, str], version: str, way: str
) -> None:
    assert java_outcomes[f"{version} {way}"] == "ok", java_outcomes[""]
