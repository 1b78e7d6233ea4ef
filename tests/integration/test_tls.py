"""TLS and mutual TLS, as real clients meet them."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
from tests.integration.broker import Broker
from tests.integration.certificates import LOOPBACK, Certificates
from tests.integration.clients import round_trip
from tests.waiting import wait_until

from headrace.dev_cluster.ports import free_ports
from headrace.runtime.new_certificates import Authority

TIMEOUT_S = 60
SERVE = [sys.executable, "-m", "headrace.cli.main", "serve"]


@pytest.fixture
def certificates(tmp_path):
    return Certificates(tmp_path / "certificates")


def tls_broker(tmp_path, certificates, *options, client_auth="required", kafka="SSL") -> Broker:
    rights = ("--authorizer", "none")  # these tests are about connections, not about rights
    broker = Broker(tmp_path / "broker", *certificates.options(client_auth), *rights, *options)
    broker.kafka = f"{kafka}://127.0.0.1:0"
    return broker.start()


def is_refused(bootstrap: str, settings: dict[str, str]) -> bool:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
    try:
        client.list_topics(timeout=3)
    except KafkaException:
        return True
    return False


def is_closed(address: str, settings: dict[str, str]) -> bool:
    """Whether the broker ends one connection of a client with these settings without a byte."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as plain:
        try:
            if settings["security.protocol"] == "PLAINTEXT":
                plain.sendall(bytes(64))
                return not plain.recv(64).startswith(bytes(4))
            context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
            if "ssl.key.location" in settings:
                context.load_cert_chain(
                    settings["ssl.certificate.location"], settings["ssl.key.location"]
                )
            with context.wrap_socket(plain, server_hostname=host) as encrypted:
                return not encrypted.recv(1)
        except (ssl.SSLError, ConnectionError):
            return True


def test_librdkafka_over_mutual_tls_and_clients_that_are_refused(tmp_path, certificates) -> None:
    broker = tls_broker(tmp_path, certificates)
    try:
        round_trip(broker.kafka, certificates.client("alice"), "mutual")
        refused = {
            "without a certificate": certificates.anonymous(),
            "foreign": certificates.client("mallory", is_foreign=True),
            "expired": certificates.client("old", days=-1),
            "without TLS": {"security.protocol": "PLAINTEXT"},
        }
        for name, settings in refused.items():
            assert is_closed(broker.kafka, settings), name
        log = broker.log()
        assert "it has shown no certificate" in log
        assert "its certificate is not accepted" in log
        assert "certificate has expired" in log
        assert "it sent no TLS: set security.protocol=SSL" in log
        assert "Traceback" not in log
        for name, settings in refused.items():  # many times: librdkafka tries again
            assert is_refused(broker.kafka, settings), name
    finally:
        broker.stop()


def test_a_client_that_speaks_tls_to_a_plain_listener_is_explained(tmp_path, certificates) -> None:
    broker = Broker(tmp_path / "broker").start()
    try:
        assert is_refused(broker.kafka, certificates.anonymous())
        assert "it is the start of a TLS handshake" in broker.log()
        host, _, port = broker.http.rpartition(":")
        context = ssl.create_default_context(cafile=certificates.ca)
        with (
            socket.create_connection((host, int(port)), 5) as plain,
            pytest.raises((ssl.SSLError, ConnectionError, urllib.error.URLError)),
        ):
            context.wrap_socket(plain, server_hostname="localhost")
        assert "a TLS handshake on the HTTP listener" in broker.log()
    finally:
        broker.stop()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_only_enabled_versions_are_spoken(tmp_path, certificates, version) -> None:
    option = ("--ssl-enabled-protocols", version)
    broker = tls_broker(tmp_path, certificates, *option, client_auth="none")
    try:
        for offered in ("TLSv1_2", "TLSv1_3"):
            context = ssl.create_default_context(cafile=certificates.ca)
            context.minimum_version = context.maximum_version = ssl.TLSVersion[offered]
            host, _, port = broker.kafka.rpartition(":")
            with socket.create_connection((host, int(port)), 5) as plain:
                if offered == version.replace(".", "_"):
                    with context.wrap_socket(plain, server_hostname=host) as encrypted:
                        assert encrypted.version() == version
                else:
                    with pytest.raises((ssl.SSLError, ConnectionError, urllib.error.URLError)):
                        context.wrap_socket(plain, server_hostname=host)
    finally:
        broker.stop()


def test_kafka_python_and_aiokafka_over_mutual_tls(tmp_path, certificates) -> None:
    broker = tls_broker(tmp_path, certificates)
    files = certificates.client("alice")
    try:
        from kafka import KafkaConsumer, KafkaProducer

        settings = {
            "bootstrap_servers": broker.kafka,
            "security_protocol": "SSL",
            "ssl_cafile": files["ssl.ca.location"],
            "ssl_certfile": files["ssl.certificate.location"],
            "ssl_keyfile": files["ssl.key.location"],
        }
        producer = KafkaProducer(**settings)
        producer.send("python", b"value").get(TIMEOUT_S)
        producer.close()
        consumer = KafkaConsumer(
            "python", auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_S * 1000, **settings
        )
        assert next(iter(consumer)).value == b"value"
        consumer.close()
        asyncio.run(_aiokafka(broker.kafka, files))
    finally:
        broker.stop()


async def _aiokafka(bootstrap: str, files: dict[str, str]) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    context = ssl.create_default_context(cafile=files["ssl.ca.location"])
    context.load_cert_chain(files["ssl.certificate.location"], files["ssl.key.location"])
    settings = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SSL",
        "ssl_context": context,
    }
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("aio", b"value")
    consumer = AIOKafkaConsumer("aio", auto_offset_reset="earliest", **settings)
    async with consumer:
        message = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
        assert message.value == b"value"


def test_the_rules_name_principals_and_a_name_that_none_fits_is_refused(
    tmp_path, certificates
) -> None:
    rules = ("--ssl-principal-mapping-rules", "RULE:^CN=(svc-[a-z]+)$/$1/U")
    broker = tls_broker(tmp_path, certificates, *rules)
    try:
        round_trip(broker.kafka, certificates.client("svc-orders"), "named")
        assert is_refused(broker.kafka, certificates.client("someone"))
        assert "no rule of ssl.principal.mapping.rules fits the name" in broker.log()
        assert "CN=someone" in broker.log()
    finally:
        broker.stop()


def test_listeners_differ_by_their_own_settings(tmp_path, certificates) -> None:
    broker = Broker(
        tmp_path / "broker",
        *certificates.options("required"),
        *("--authorizer", "none"),
        *("--listener-security-protocol-map", "INSIDE:PLAINTEXT,OPEN:SSL,CLOSED:SSL"),
        *("--listener-setting", "listener.name.open.ssl.client.auth=none"),
    )
    broker.kafka = "INSIDE://127.0.0.1:0,OPEN://127.0.0.1:0,CLOSED://127.0.0.1:0"
    broker.start()
    try:
        ready = json.loads((broker.log_path.parent / "ready.json").read_text())["listeners"]
        round_trip(ready["INSIDE"], {}, "inside")
        round_trip(ready["OPEN"], certificates.anonymous(), "open")
        round_trip(ready["CLOSED"], certificates.client("alice"), "closed")
        assert is_refused(ready["CLOSED"], certificates.anonymous())
    finally:
        broker.stop()


def certificate_for(address: str, server_name: str, context: ssl.SSLContext) -> bytes | None:
    """What a listener shows to a client that asks for a server name."""
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), TIMEOUT_S) as connection,
        context.wrap_socket(connection, server_hostname=server_name) as secured,
    ):
        return secured.getpeercert(binary_form=True)


def test_a_listener_and_a_server_name_are_for_one_tenant(tmp_path, certificates) -> None:
    """With librdkafka and over HTTP: alice is of acme, bob of beta, and carol of no tenant, who is
    of acme at a listener for acme, whose CA vouches for her, but not by a server name alone."""
    from confluent_kafka.admin import AdminClient, NewTopic

    named = certificates.authority.sign("named", ("localhost", "acme.test"))
    path = certificates.write("named.pem", named.key + named.certificate)
    of_listeners = {
        "team.headrace.tenant": "acme",
        "http.headrace.tenant": "acme",
        "names.headrace.sni.tenants": "localhost=acme;acme.test=acme",
        "names.headrace.sni.certificates": f"localhost={path};acme.test={path}",
    }
    broker = Broker(
        tmp_path / "broker",
        *certificates.options("required"),
        *("--authorizer", "acl", "--super-users", "User:ANONYMOUS"),
        *("--tenants", "acme=User:CN=alice;beta=User:CN=bob"),
        *("--listener-security-protocol-map", "INSIDE:PLAINTEXT,TEAM:SSL,NAMES:SSL"),
        *("--http-security-protocol", "SSL"),
        *(f"--listener-setting=listener.name.{one}={value}" for one, value in of_listeners.items()),
    )
    port = free_ports(3)
    listeners = f"INSIDE://127.0.0.1:{port},TEAM://127.0.0.1:{port + 1}"
    broker.kafka = f"{listeners},NAMES://127.0.0.1:{port + 2}"
    # Clients ask for the name at which they connect.
    broker.options += ("--advertise", f"{listeners},NAMES://localhost:{port + 2}")
    broker.start()
    try:
        ready = json.loads((broker.log_path.parent / "ready.json").read_text())["listeners"]
        clients = {name: certificates.client(name) for name in ("alice", "bob", "carol")}

        @functools.cache  # one that is dropped ends its requests
        def admin(listener: str, name: str) -> AdminClient:
            more = clients.get(name, {})
            return AdminClient({"bootstrap.servers": ready[listener], "log_level": 0, **more})

        def seen(listener: str, name: str) -> set[str]:
            return set(admin(listener, name).list_topics(timeout=TIMEOUT_S).topics)

        admin("TEAM", "alice").create_topics([NewTopic("orders", 1)])["orders"].result(TIMEOUT_S)
        assert seen("INSIDE", "") == {"«acme»orders"}
        for listener, name, expected in (
            ("TEAM", "alice", {"orders"}),
            ("TEAM", "carol", {"orders"}),
            ("TEAM", "bob", set()),
            ("NAMES", "alice", {"orders"}),
            ("NAMES", "carol", set()),
            ("NAMES", "bob", set()),
        ):
            assert seen(listener, name) == expected, (listener, name)
        made = admin("NAMES", "bob").create_topics([NewTopic("x", 1)])["x"]
        assert "AUTHORIZATION_FAILED" in str(made.exception(TIMEOUT_S))
        for name, topics in (("alice", ["orders"]), ("carol", ["orders"]), ("bob", [])):
            context = ssl.create_default_context(cafile=certificates.ca)
            files = clients[name]["ssl.certificate.location"], clients[name]["ssl.key.location"]
            context.load_cert_chain(*files)
            _, body = get(f"https://{broker.http}/v1/topics", context)
            assert [one["name"] for one in json.loads(body)["topics"]] == topics, name
        shown = {one: certificate_for(ready["NAMES"], one, context) for one in LOOPBACK}
        assert shown["localhost"] == ssl.PEM_cert_to_DER_cert(named.certificate.decode())
        assert shown["127.0.0.1"] not in {None, shown["localhost"]}
        assert certificate_for(ready["NAMES"], "ACME.test", context) == shown["localhost"]
    finally:
        broker.stop()


def get(url: str, context: ssl.SSLContext | None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10, context=context) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_https_and_its_metric_of_expiry(tmp_path, certificates) -> None:
    options = ("--http-security-protocol", "SSL")
    broker = Broker(tmp_path / "broker", *certificates.options(), *options).start()
    try:
        context = ssl.create_default_context(cafile=certificates.ca)
        assert get(f"https://{broker.http}/readyz", context)[0] == 200
        assert get(f"https://{broker.http}/v1/topics", context)[0] == 200
        metrics = get(f"https://{broker.http}/metrics", context)[1].decode()
        (line,) = [one for one in metrics.splitlines() if one.startswith("headrace_certificate_")]
        assert 'listener="HTTP"' in line
        assert 364 * 86_400 < float(line.split()[-1]) <= 365 * 86_400
        with pytest.raises((ssl.SSLError, ConnectionError, urllib.error.URLError)):
            get(f"http://{broker.http}/readyz", None)
        assert "it sent HTTP without TLS: use https" in broker.log()
    finally:
        broker.stop()


def serial_of(address: str, ca) -> int:
    """The serial number of the certificate that a listener shows."""
    from cryptography import x509

    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection((host, int(port)), 5) as plain,
        context.wrap_socket(plain, server_hostname=host) as encrypted,
    ):
        return x509.load_der_x509_certificate(encrypted.getpeercert(binary_form=True)).serial_number


def test_certificates_rotate_under_load_without_loss(tmp_path, certificates) -> None:
    from confluent_kafka import Producer

    broker = tls_broker(tmp_path, certificates, client_auth="none")
    acknowledged: list[int] = []
    failed: list[str] = []
    stop = threading.Event()

    def produce() -> None:
        number = 0
        settings = {**certificates.anonymous(), "log_level": 0, "enable.idempotence": True}
        while not stop.is_set():  # a new connection for each batch, and one that stays
            producer = Producer({"bootstrap.servers": broker.kafka, **settings})
            for _ in range(200):

                def answered(error, message, number=number) -> None:
                    (failed if error else acknowledged).append(number if not error else str(error))

                producer.produce("rotated", str(number), on_delivery=answered)
                number += 1
            assert producer.flush(TIMEOUT_S) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        wait_until(lambda: len(acknowledged) > 200)
        seen = {serial_of(broker.kafka, certificates.ca)}
        for turn in range(3):
            before = serial_of(broker.kafka, certificates.ca)
            certificates.write_broker(certificates.authority.sign("broker", LOOPBACK))
            if turn == 0:
                os.kill(broker.process.pid, signal.SIGHUP)  # at once, rather than by the watcher
            wait_until(lambda before=before: serial_of(broker.kafka, certificates.ca) != before)
            seen.add(serial_of(broker.kafka, certificates.ca))
        assert len(seen) == 4
        shown = serial_of(broker.kafka, certificates.ca)
        certificates.write("broker.pem", b"-----BEGIN nothing of use")
        wait_until(lambda: "the new certificates are not used" in broker.log())
        assert serial_of(broker.kafka, certificates.ca) == shown
        count = len(acknowledged)
        wait_until(lambda: len(acknowledged) > count + 400)
    finally:
        stop.set()
        thread.join()
        broker.stop()
    assert not failed
    assert acknowledged == list(range(len(acknowledged)))
    certificates.write_broker(certificates.authority.sign("broker", LOOPBACK))
    broker.kafka = f"SSL://{broker.kafka}"
    broker.start()
    try:
        assert _values(broker.kafka, certificates.anonymous()) == acknowledged
    finally:
        broker.stop()


def _values(bootstrap: str, settings: dict[str, str]) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    common = {"bootstrap.servers": bootstrap, "group.id": "g", **settings}
    consumer = Consumer(common)
    try:
        end = consumer.get_watermark_offsets(TopicPartition("rotated", 0), TIMEOUT_S)[1]
        consumer.assign([TopicPartition("rotated", 0, 0)])
        found: list[int] = []
        while len(found) < end:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            found.append(int(message.value()))
        return found
    finally:
        consumer.close()


def test_a_change_to_the_same_file_reads_it_again_and_to_another_is_refused(
    tmp_path, certificates
) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    broker = tls_broker(tmp_path, certificates, client_auth="none")
    name = "ssl.keystore.location"
    admin = AdminClient({"bootstrap.servers": broker.kafka, **certificates.anonymous()})

    def alter(value) -> None:
        entry = ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("broker", "0", incremental_configs=[entry])
        (future,) = admin.incremental_alter_configs([resource]).values()
        future.result(TIMEOUT_S)

    try:
        before = serial_of(broker.kafka, certificates.ca)
        certificates.write_broker(certificates.authority.sign("broker", LOOPBACK))
        alter(certificates.broker)
        assert serial_of(broker.kafka, certificates.ca) != before
        shown = serial_of(broker.kafka, certificates.ca)
        other = certificates.authority.sign("other", LOOPBACK)
        for bad, message in (
            (certificates.write("other.pem", other.key + other.certificate), "cannot be changed"),
            ("/etc/passwd", "cannot be changed"),
        ):
            with pytest.raises(Exception, match=message):
                alter(bad)
        certificates.write("broker.pem", other.key + certificates.authority.certificate)
        with pytest.raises(Exception, match="cannot be used"):  # the key of another certificate
            alter(certificates.broker)
        assert serial_of(broker.kafka, certificates.ca) == shown
    finally:
        certificates.write_broker(certificates.authority.sign("broker", LOOPBACK))
        broker.stop()


def test_a_certificate_that_expires_soon_is_reported(tmp_path, certificates) -> None:
    certificates.write_broker(certificates.authority.sign("broker", LOOPBACK, days=20))
    authority = certificates.authority

    def write_named(days: int) -> str:
        named = authority.sign("named", ("named.test",), days=days)
        return str(certificates.write("named.pem", named.key + named.certificate))

    of_names = f"listener.name.ssl.headrace.sni.certificates=named.test={write_named(10)}"
    options = ("--listener-setting", of_names)
    broker = tls_broker(tmp_path, certificates, *options, client_auth="none")
    context = ssl.create_default_context(cafile=certificates.ca)
    try:
        wait_until(lambda: re.search("of listener SSL expires in (19|20) days", broker.log()))
        wait_until(lambda: re.search("name named.test expires in (9|10) days", broker.log()))
        shown = certificate_for(broker.kafka, "named.test", context)
        metrics = get(f"http://{broker.http}/metrics", None)[1].decode()
        left_s = {
            line.partition("}")[0]: float(line.split()[-1])
            for line in metrics.splitlines()
            if line.startswith("headrace_certificate_expires_seconds{")
        }
        assert len(left_s) == 2
        assert {round(one / 86_400) for one in left_s.values()} == {10, 20}
        assert " CN=ca, which" not in broker.log(), "it lasts longer"
        fresh = certificates.authority.certificate
        certificates.ca.write_bytes(
            fresh + Authority("old", time.time_ns() // 1_000_000, days=9).certificate
        )
        wait_until(lambda: re.search("the CA CN=old, which.* expires in [89] days", broker.log()))
        (left,) = re.findall(
            r'headrace_trusted_ca_expires_seconds{listener="SSL"} (\S+)',
            get(f"http://{broker.http}/metrics", None)[1].decode(),
        )
        assert 8 <= float(left) / 86_400 <= 9
        certificates.write_broker(certificates.authority.sign("broker", LOOPBACK, days=-1))
        os.kill(broker.process.pid, signal.SIGHUP)
        wait_until(lambda: "has read its certificates again" in broker.log())
        write_named(100)  # read without a restart
        wait_until(lambda: certificate_for(broker.kafka, "named.test", context) != shown)
    finally:
        broker.stop()


def test_a_handshake_that_is_not_finished_ends(tmp_path, certificates) -> None:
    broker = tls_broker(tmp_path, certificates, client_auth="none")
    host, _, port = broker.kafka.rpartition(":")
    try:
        silent = [socket.create_connection((host, int(port)), 30) for _ in range(50)]
        round_trip(broker.kafka, certificates.anonymous(), "beside")
        for one in silent:
            with one:
                assert one.recv(1) == b""
    finally:
        broker.stop()


def test_a_ca_that_is_no_longer_trusted_is_refused_after_the_reload(tmp_path, certificates) -> None:
    broker = tls_broker(tmp_path, certificates)
    old = certificates.client("alice")
    try:
        round_trip(broker.kafka, old, "trusted")
        # The broker's own certificate stays; clients must come from another CA from now on.
        newer = Certificates(tmp_path / "newer")
        certificates.ca.write_bytes(newer.authority.certificate)
        old["ssl.ca.location"] = str(
            certificates.write("old.pem", certificates.authority.certificate)
        )
        wait_until(lambda: is_refused(broker.kafka, old))
        fresh = newer.client("bob") | {"ssl.ca.location": old["ssl.ca.location"]}
        round_trip(broker.kafka, fresh, "trusted")
    finally:
        broker.stop()


def test_workers_reach_each_other_over_mutual_tls(tmp_path, certificates) -> None:
    """Workers are each other's clients: coordinators, queues and death notices."""
    options = ("--workers", "2", "--partitions", "4")
    broker = tls_broker(tmp_path, certificates, *options)
    settings = certificates.client("alice")
    try:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": broker.kafka.split(",")[0],
                "transactional.id": "t",
                "log_level": 0,
                **settings,
            }
        )
        producer.init_transactions(TIMEOUT_S)
        for _ in range(3):  # markers go to the owners of all partitions
            producer.begin_transaction()
            for partition in range(4):
                producer.produce("shared", b"value", partition=partition)
            producer.commit_transaction(TIMEOUT_S)
        log = broker.log()
        assert "did not answer" not in log
        assert "is refused" not in log
    finally:
        broker.stop()


def test_an_encrypted_key_and_inline_pem_come_from_a_file_of_settings(
    tmp_path, certificates
) -> None:
    pem = certificates.authority.sign("broker", LOOPBACK, password="a-canary-secret")
    config = tmp_path / "headrace.toml"
    config.write_text(
        "[serve]\n"
        f'ssl.keystore.certificate.chain = """{pem.certificate.decode()}"""\n'
        f'ssl.keystore.key = """{pem.key.decode()}"""\n'
        'ssl.key.password = "a-canary-secret"\n'
        'listener.name.ssl.ssl.client.auth = "none"\n'
    )
    broker = Broker(
        tmp_path / "broker", "--config", str(config), "--workers", "2", "--log-level", "debug"
    )
    broker.kafka = "SSL://127.0.0.1:0"
    broker.options += ("--ssl-truststore-location", str(certificates.ca))
    broker.start()
    try:
        round_trip(broker.kafka, certificates.anonymous(), "inline")
        import psutil

        for process in [
            psutil.Process(broker.process.pid),
            *psutil.Process(broker.process.pid).children(),
        ]:
            assert "a-canary-secret" not in " ".join(process.cmdline())
            assert "PRIVATE KEY" not in " ".join(process.cmdline())
        assert "a-canary-secret" not in broker.log()
        from confluent_kafka.admin import AdminClient, ConfigResource

        admin = AdminClient({"bootstrap.servers": broker.kafka, **certificates.anonymous()})
        (future,) = admin.describe_configs([ConfigResource("broker", "0")]).values()
        shown = {name: entry.value for name, entry in future.result(TIMEOUT_S).items()}
        assert not shown["ssl.key.password"]
        assert not shown["ssl.keystore.key"]
        assert shown["listener.name.ssl.ssl.client.auth"] == "none"
        assert "a-canary-secret" not in str(shown)
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kafka", "SSL://127.0.0.1:0"], "it has no certificate"),
        (
            ["--kafka", "SSL://127.0.0.1:0", "--ssl-keystore-location", "{ca}"],
            "cannot be used",
        ),
        (
            [
                "--kafka",
                "SSL://127.0.0.1:0",
                "--ssl-keystore-location",
                "{broker}",
                "--ssl-client-auth",
                "required",
            ],
            "needs the CAs of the clients",
        ),
        (
            [
                "--kafka",
                "SSL://127.0.0.1:0",
                "--ssl-keystore-location",
                "{broker}",
                "--ssl-principal-mapping-rules",
                "RULE:(?=x)/y/",
            ],
            "cannot be used",
        ),
        (["--ssl-key-password", "a-canary-secret"], "can be read by other users"),
        (
            ["--listener-setting", "listener.name.a.ssl.key.password=a-canary-secret"],
            "can be read by others",
        ),
        (["--listener-setting", "listener.name.a.num.partitions=3"], "unknown broker setting"),
        (["--inter-broker-listener-name", "OTHER"], "is not a Kafka listener"),
        (["--ssl-keystore-type", "JKS"], "PEM"),
        (["--listener-setting", "listener.name.plaintext.headrace.tenant=acme"], "authorizer=acl"),
        (
            ["--authorizer=acl", "--listener-setting=listener.name.plaintext.headrace.tenant=A!"],
            "is not a valid tenant name",
        ),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, certificates, options, message) -> None:
    named = [one.format(ca=certificates.ca, broker=certificates.broker) for one in options]
    command = [*SERVE, "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0"]
    command += [] if "--kafka" in named else ["--kafka", "127.0.0.1:0"]
    ran = subprocess.run([*command, *named], capture_output=True, text=True, check=False)
    assert ran.returncode in {1, 2}, ran.stderr
    assert message in ran.stderr
    assert "a-canary-secret" not in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "data").exists()


def command(*arguments: str, env: dict[str, str] | None = None, code: int = 0) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "headrace.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (env or {}),
        umask=0o022,
    )
    assert ran.returncode == code, ran.stderr
    return ran.stdout + ran.stderr


def test_the_command_line_reaches_a_broker_with_made_certificates(tmp_path) -> None:
    folder = tmp_path / "made"
    printed = command("cert", "dev", str(folder))
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    readable = {"ca.pem": 0o644, "client.pem": 0o644}
    assert modes == readable | dict.fromkeys(("ca.key", "broker.pem", "client.key"), 0o600)
    assert "exists; nothing was written" in command("cert", "dev", str(folder), code=2)
    # The printed commands, at free ports.
    printed = printed.replace("\\\n", " ")
    given = shlex.split(printed[printed.index("headrace serve") : printed.index("Reach it")])
    options = given[given.index("--http-security-protocol") :]
    broker = Broker(tmp_path / "broker", *options)
    broker.kafka = "SSL://127.0.0.1:0"
    broker.start()
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    try:
        files = [f"--{name}={folder / file}" for name, file in
                 (("ca", "ca.pem"), ("cert", "client.pem"), ("key", "client.key"))]  # fmt: skip
        command("context", "add", "dev", "--bootstrap", broker.kafka, *files, env=env)
        command("topic", "create", "orders", env=env)  # the client library
        assert "orders" in command("topic", "list", env=env)
        assert "Kafka APIs" in command("info", env=env)
        shown = command("config", "list", "--all", env=env)  # our own client
        assert "ssl.client.auth" in shown
        command("queue", "receive", "orders", "workers", env=env)  # HTTP
        refused = command("-b", broker.kafka, "topic", "list", env=env, code=4)
        assert "orders" not in refused
        # A certificate that the same CA signed later is trusted, and its client has no rights yet.
        command("cert", "issue", str(folder), "alice")
        own = [
            f"--{name}={folder / f'alice.{end}'}" for name, end in (("cert", "pem"), ("key", "key"))
        ]
        command("context", "add", "alice", "--bootstrap", broker.kafka, files[0], *own, env=env)
        assert "orders" not in command("--context", "alice", "topic", "list", env=env)
    finally:
        broker.stop()


def test_a_secure_broker_is_made_by_one_command(tmp_path) -> None:
    made = tmp_path / 'a "broker"'
    env = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    printed = command("init", "--secure", str(made), "--admin", "boss", env=env)
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()}
    assert modes.pop("data") & 0o077 == 0
    secrets = dict.fromkeys(("broker.pem", "ca.key", "headrace.toml"), 0o600)
    assert modes == {"ca.pem": 0o644} | secrets
    assert f"is in {made / 'ca.key'}, for its owner alone" in printed
    assert "is not empty; nothing was written" in command("init", str(made), env=env, code=2)
    password = printed[printed.index("shown again:") :].split()[2]
    broker = Broker(made, "--config", str(made / "headrace.toml"))
    broker.kafka = "SASL_SSL://127.0.0.1:0"
    broker.start()
    try:
        given = printed[printed.index("context add") : printed.index("Then add")].splitlines()[0]
        words = shlex.split(given)
        words[words.index("--bootstrap") + 1] = broker.kafka
        command(*words, env=env)
        as_boss = env | {"HEADRACE_PASSWORD": password}
        command("topic", "create", "orders", env=as_boss)
        command("queue", "receive", "orders", "workers", env=as_boss)  # HTTP
        (tmp_path / "password").write_text("alice's own")
        command("user", "add", "alice", "--password-file", str(tmp_path / "password"), env=as_boss)
        command("context", "add", "alice", *words[words.index("--bootstrap") :][:4],
                "--user", "alice", env=env)  # fmt: skip
        as_alice = env | {"HEADRACE_PASSWORD": "alice's own"}
        listed = ("--context", "alice", "topic", "list")
        assert "orders" not in command(*listed, env=as_alice), "nobody has a right unasked"
        command("acl", "add", "--principal", "User:alice", "--operation", "READ",
                "--topic", "orders", env=as_boss)  # fmt: skip
        assert "orders" in command(*listed, env=as_alice)
        command(*listed, env=as_boss, code=1)  # with the wrong password
        command("-b", broker.kafka, "topic", "list", env=env, code=4)
        command("context", "add", "system", *words[words.index("--bootstrap") :][:2], "--tls",
                "--user", "boss", env=env)  # fmt: skip
        refused = command("--context", "system", "topic", "list", env=as_boss, code=4)
        assert "Name the CA" in refused
        assert "headrace serve" not in refused
    finally:
        broker.stop()


def test_a_configuration_without_security_listens_on_this_machine_alone(tmp_path) -> None:
    made = tmp_path / "made"
    command("init", str(made))
    broker = Broker(made, "--config", str(made / "headrace.toml")).start()
    try:
        round_trip(broker.kafka, {}, "orders")
    finally:
        broker.stop()
    options = ("--host", "broker.example")
    assert "nothing was written" in command("init", str(tmp_path / "b"), *options, code=2)
    everywhere = ("--secure", "--kafka", "0.0.0.0:9092")
    assert "nothing was written" in command("init", str(tmp_path / "c"), *everywhere, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]
