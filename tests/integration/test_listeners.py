"""Several listeners on one broker, as real clients meet them."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from tests.integration.broker import Broker
from tests.integration.certificates import Certificates
from tests.integration.clients import round_trip

TIMEOUT_S = 30
SERVE = [sys.executable, "-m", "headrace.cli.main", "serve"]


def ready(broker: Broker) -> dict:
    return json.loads((broker.log_path.parent / "ready.json").read_text())


def addresses_after_round_trip(bootstrap: str, topic: str) -> set[str]:
    """The addresses that the cluster's metadata names."""
    from confluent_kafka.admin import AdminClient

    round_trip(bootstrap, {}, topic)
    brokers = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S).brokers
    return {f"{one.host}:{one.port}" for one in brokers.values()}


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_client_stays_on_the_listener_that_it_came_through(tmp_path, workers) -> None:
    broker = Broker(tmp_path, "--workers", workers)
    broker.kafka = "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.2:0"
    broker.start()
    try:
        if workers == "1":
            listeners = ready(broker)["listeners"]
            assert list(listeners) == ["INSIDE", "OUTSIDE"]
            assert listeners["INSIDE"] == broker.kafka
            for name, address in listeners.items():
                assert addresses_after_round_trip(address, f"by-{name}") == {address}
        else:
            told = addresses_after_round_trip(broker.kafka, "inside")
            assert told == set(broker.kafka.split(","))
    finally:
        broker.stop()


def test_a_listener_is_advertised_under_another_address(tmp_path) -> None:
    broker = Broker(tmp_path, "--advertise", "OUTSIDE://localhost:1")
    broker.kafka = "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0"
    broker.start()
    try:
        from confluent_kafka.admin import AdminClient

        listeners = ready(broker)["listeners"]
        for name, told in (("INSIDE", listeners["INSIDE"]), ("OUTSIDE", "localhost:1")):
            client = AdminClient({"bootstrap.servers": listeners[name], "log_level": 0})
            (one,) = client.list_topics(timeout=TIMEOUT_S).brokers.values()
            assert f"{one.host}:{one.port}" == told
    finally:
        broker.stop()


def test_rocketmqs_clients_are_sent_to_another_address_by_other_brokers(tmp_path) -> None:
    """At the broker itself they get the address by which they asked."""
    advertised = "PLAINTEXT://127.0.0.1:1,ROCKETMQ://mq.example:8081"
    broker = Broker(tmp_path, "--advertise", advertised, "--rocketmq", "127.0.0.1:0")
    broker.start()
    try:
        status, text = _get(broker.http, "/v1/brokers")
        assert status == 200
        (one,) = json.loads(text)["brokers"]
        (found,) = [at for at in one["endpoints"] if at["face"] == "rocketmq"]
        assert found["address"] == "mq.example:8081"
    finally:
        broker.stop()


def test_an_address_is_advertised_only_for_a_listener_that_is_there(tmp_path) -> None:
    broker = Broker(tmp_path, "--advertise", "PLAINTEXT://127.0.0.1:1,ROCKETMQ://mq.example:8081")
    with pytest.raises(AssertionError):
        broker.start()
    assert "--advertise names the listener ROCKETMQ, which --rocketmq does not have" in broker.log()


def _get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_health_and_metrics_are_served_to_the_network_and_nothing_else(tmp_path, workers) -> None:
    options = ["--admin-address", "0.0.0.0:0", "--workers", workers]
    broker = Broker(tmp_path, *options).start()
    try:
        admins = ready(broker)["admin"].split(",")
        assert len(admins) == int(workers)
        for admin in admins:
            port = admin.rpartition(":")[2]
            for host in ("127.0.0.1", "127.0.0.2"):  # both are "the network" of a wildcard
                assert _get(f"{host}:{port}", "/healthz") == (200, "ok\n")
                assert _get(f"{host}:{port}", "/readyz") == (200, '{"ready":true}')
                status, figures = _get(f"{host}:{port}", "/metrics")
                assert status == 200
                assert "headrace_topics" in figures
            for path in ("/v1/topics", "/openapi.json", "/v1/topics/t/records"):
                status, problem = _get(f"127.0.0.1:{port}", path)
                assert status == 404
                assert "--http" in problem
        # operations stay on loopback, and the admin address is not what brokers are told
        first = broker.http.split(",")[0]
        assert _get(first, "/v1/topics")[0] == 200
        assert "not authenticated" not in broker.log()
    finally:
        broker.stop()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_http_listens_at_several_addresses_one_of_them_with_tls(tmp_path, workers) -> None:
    certificates = Certificates(tmp_path / "certificates")
    options = ["--http", "127.0.0.2:0", "--listener-security-protocol-map", "HTTP_2:SSL"]
    options += ["--listener-setting", "listener.name.http_2.ssl.client.auth=required"]
    options += ["--workers", workers, "--super-users", "User:ANONYMOUS", *certificates.options()]
    broker = Broker(tmp_path, *options).start()
    try:
        addresses = broker.http.split(",")
        assert len(addresses) == 2 * int(workers)
        certificates.client("alice")
        context = ssl.create_default_context(cafile=str(certificates.ca))
        context.check_hostname = False  # made for 127.0.0.1
        chain = certificates.folder / "alice.pem", certificates.folder / "alice.key"
        context.load_cert_chain(*chain)
        for plain, encrypted in zip(addresses[::2], addresses[1::2], strict=True):
            assert _get(plain, "/v1/topics")[0] == 200
            url = f"https://{encrypted}/v1/topics"
            with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context) as answer:
                assert answer.status == 200
            status, told = _get(plain, "/v1/brokers")
            assert status == 200, told
            endpoints = [one["endpoints"] for one in json.loads(told)["brokers"]]
            https = [[e["address"] for e in some if e["face"] == "http"] for some in endpoints]
            assert [plain, encrypted] in https, "brokers and commands use the first one"
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("super_users", "status"), [("User:admin;User:ANONYMOUS", 200), ("User:admin", 403)]
)
def test_with_logins_elsewhere_loopback_is_open_to_anonymous_super_users(
    tmp_path, super_users, status
) -> None:
    """The example of docs/HTTP.md."""
    certificates = Certificates(tmp_path / "certificates")
    options = ["--http", "127.0.0.2:0", "--listener-security-protocol-map", "HTTP_2:SASL_SSL"]
    options += ["--super-users", super_users, *certificates.options()]
    broker = Broker(tmp_path, *options).start()
    try:
        plain, encrypted = broker.http.split(",")
        assert _get(plain, "/v1/brokers")[0] == status
        context = ssl.create_default_context(cafile=str(certificates.ca))
        context.check_hostname = False  # made for 127.0.0.1
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"https://{encrypted}/v1/brokers", context=context)
        with refused.value as answer:
            assert answer.code == 401
    finally:
        broker.stop()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--http", "127.0.0.1:9180", "--http", "127.0.0.1:9180"], "several distinct ones"),
        (["--kafka", "HTTP_2://127.0.0.1:0"], "not HTTP"),
        (["--kafka", "127.0.0.1:0", "--http", "0.0.0.0:0"], "HTTP listener 0.0.0.0:0"),
        (
            ["--kafka", "127.0.0.1:0", "--listener-security-protocol-map", "HTTP_2:SSL"],
            "neither --kafka nor --http has",
        ),
        (["--kafka", "A://127.0.0.1:0,A://127.0.0.1:0"], "distinct names"),
        (["--kafka", "HTTP://127.0.0.1:0"], "not HTTP"),
        (
            ["--kafka", "A://127.0.0.1:0", "--listener-security-protocol-map", "B:SSL"],
            "does not name the listener A",
        ),
        (["--kafka", "127.0.0.1:0", "--listener-security-protocol-map", "A:TLS"], "NAME:PROTOCOL"),
        (["--kafka", "127.0.0.1:0", "--advertise", "B://h:1"], "which --kafka does not have"),
        (["--kafka", "A://127.0.0.1:0,B://0.0.0.0:0"], "--insecure"),
    ],
)
def test_listeners_that_cannot_be_are_refused(tmp_path, arguments, message) -> None:
    command = [*SERVE, "--data-dir", str(tmp_path / "data"), "--http", "127.0.0.1:0", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode in {1, 2}
    assert message in ran.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("option", "address", "message"),
    [
        ("--http", "127.0.0.1:{port}", "of --http is in use"),
        ("--kafka", "127.0.0.1:{port}", "of --kafka is in use"),
        ("--admin-address", "127.0.0.1:{port}", "of --admin-address is in use"),
        ("--http", "192.0.2.1:0", "of --http is not an address of this machine"),
        ("--kafka", "A://192.0.2.1:0", "of --kafka is not an address of this machine"),
        ("--kafka", "A://no-such-host.invalid:0", "of --kafka cannot be resolved"),
        ("--http", "no-such-host.invalid:0", "of --http cannot be resolved"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named_with_its_reason(
    tmp_path, option, address, message
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        given = {"--kafka": "127.0.0.1:0", "--http": "127.0.0.1:0"}
        given[option] = address.format(port=taken.getsockname()[1])
        arguments = [part for pair in given.items() for part in pair]
        done = subprocess.run(
            [*SERVE, "--insecure", "--data-dir", str(tmp_path / "data"), *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert done.returncode == 1
    assert message in done.stderr
    assert given[option].rpartition("/")[2] in done.stderr
    assert "Traceback" not in done.stderr
