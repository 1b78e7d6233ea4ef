"""The own suites of other clients, unchanged, against Headrace: what passes is counted.

They are long, and left out of the ordinary run (`-m long`). docs/CLIENT-SUITES.md has the counts,
and says of each test that does not pass what it demands.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from tests.integration.broker import Broker
from tests.integration.certificates import Certificates
from tests.integration.client_suites.token_server import TokenServer
from tests.integration.foreign import HERE, go_module, go_tests, run
from tests.integration.test_sasl import AUDIENCE, ISSUER, KEY, headrace

from headrace.dev_cluster.ports import free_ports
from headrace_bench.kafka_parts import java, kafka_classpath

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.long, pytest.mark.timeout(5_400)]

USER, PASSWORD = "alice", "alice-secret"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SUITE_TIMEOUT_S = 2_400
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL")
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Served:
    """A broker, or workers, as the suites configure Kafka: ACLs on, open where none is set."""

    def __init__(self, folder: Path, *options: str, workers: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.certificates = Certificates(folder / "certificates")
        shutil.copy(self.certificates.ca, self.certificates.folder / "ca-cert")
        keys = folder / "keys.json"
        keys.write_text(json.dumps({"keys": [KEY.as_dict(private=False)]}))
        self.broker = Broker(
            folder,
            *self.certificates.options(),
            *("--sasl-enabled-mechanisms", ",".join((*MECHANISMS, "OAUTHBEARER"))),
            *("--sasl-oauthbearer-jwks-endpoint-url", keys.as_uri()),
            *("--sasl-oauthbearer-expected-issuer", ISSUER),
            *("--sasl-oauthbearer-expected-audience", AUDIENCE),
            *("--authorizer", "acl", "--allow-everyone-if-no-acl-found"),
            *("--super-users", "User:admin", "--partitions", "4"),
            *("--group-min-session-timeout-ms", "3000"),
            *("--workers", str(workers)) if workers > 1 else (),
            *options,
        )
        first = free_ports(len(LISTENERS) * workers + workers)
        starts = range(first, first + len(LISTENERS) * workers, workers)
        self.addresses = {
            name: f"127.0.0.1:{port}" for name, port in zip(LISTENERS, starts, strict=True)
        }
        self.broker.kafka = ",".join(f"{name}://{at}" for name, at in self.addresses.items())
        self.broker.http = f"127.0.0.1:{first + len(LISTENERS) * workers}"
        where = ("--password-file", "-", "--data-dir", str(self.broker.data_dir))
        headrace("user", "add", USER, *where, text=f"{PASSWORD}\n")
        self.broker.start()


def counted(outcomes: dict[str, str], *, failing: set[str]) -> Counter[str]:
    """How many passed, failed and were skipped; those that fail must be the known ones."""
    failed = {name for name, outcome in outcomes.items() if outcome == FAILED}
    assert failed == failing, f"failed: {sorted(failed)}, known: {sorted(failing)}"
    return Counter(outcomes.values())


# --- kafka-python --------------------------------------------------------------------------------

KAFKA_PYTHON = (
    "kafka-python==3.0.12"
    " --hash=sha256:4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65\n"
)
NO_QUORUM = "test.integration.test_admin_integration.test_describe_metadata_quorum"


@pytest.fixture(scope="module")
def kafka_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, which has the integration tests."""
    folder = tmp_path_factory.mktemp("kafka-python")
    (folder / "pinned.txt").write_text(KAFKA_PYTHON)
    fetch = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes"]
    run([*fetch, "--no-binary", ":all:", "-r", "pinned.txt"], folder)
    (archive,) = folder.glob("kafka_python-*.tar.gz")
    shutil.unpack_archive(archive, folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    (source / "test" / "__init__.py").touch()  # else `test` is that of the standard library
    return source


def test_kafka_python(tmp_path: Path, kafka_python: Path) -> None:
    served = Served(tmp_path / "broker")
    environment = os.environ | {
        "SUITE_LISTENERS": json.dumps(served.addresses),
        "SUITE_CA": str(served.certificates.folder / "ca-cert"),
        "KAFKA_VERSION": "4.3",
        "PYTHONPATH": os.pathsep.join([str(kafka_python), str(HERE / "client_suites")]),
    }
    report = tmp_path / "report.xml"
    plain = ("-c", os.devnull, "--rootdir", str(kafka_python), "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *plain, "-p", "kafka_python_broker", "-q"]
    done = subprocess.run(
        [*command, "--timeout", "300", f"--junit-xml={report}", "test/integration"],
        cwd=kafka_python, env=environment, capture_output=True, text=True, check=False,
        timeout=SUITE_TIMEOUT_S,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        inner = {child.tag for child in case}
        outcome = (
            SKIPPED if "skipped" in inner else FAILED if inner & {"failure", "error"} else PASSED
        )
        outcomes[f"{case.get('classname')}.{case.get('name')}"] = outcome
    served.broker.stop()
    # Skipped: a test of brokers older than 0.10.1, and two of snappy where its library is missing.
    assert counted(outcomes, failing={NO_QUORUM})[PASSED] >= 63, done.stdout[-4000:]


# --- franz-go ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", ["256", "512"])
def test_kgo_scram(tmp_path: Path, bits: str) -> None:
    served = Served(tmp_path / "broker")
    outcomes = go_tests(
        go_module("github.com/twmb/franz-go") / "pkg" / "kgo", "-run=^TestSCRAM",
        KGO_TEST_SCRAM_SEEDS=served.addresses["SASL_PLAINTEXT"],
        KGO_TEST_SCRAM=f"{USER}:{PASSWORD}:{bits}",
    )  # fmt: skip
    served.broker.stop()
    assert counted(outcomes, failing=set()) == {PASSED: 2}


# --- librdkafka ----------------------------------------------------------------------------------

KERBEROS = {"do_test_AlterConfigs", "do_test_IncrementalAlterConfigs"}
"""They set `sasl.kerberos.min.time.before.relogin`: there is no Kerberos, so it is refused."""


@pytest.fixture(scope="module")
def programs() -> Path:
    """The folder of librdkafka's test programs."""
    folder = os.environ.get("LIBRDKAFKA_TESTS")
    if folder is None or not (Path(folder) / "test-runner").exists():
        pytest.skip("LIBRDKAFKA_TESTS is not the folder of a built test-runner (CLIENT-SUITES.md)")
    return Path(folder)


class Librdkafka:
    """Runs programs against a broker, and reads what passed."""

    def __init__(self, programs: Path, folder: Path, served: Served) -> None:
        self.programs, self.folder, self.served = programs, folder, served
        tool = folder / "kafka" / "bin" / "kafka-acls.sh"
        tool.parent.mkdir(parents=True)
        main = f"'{kafka_classpath()}' org.apache.kafka.tools.AclCommand"
        tool.write_text(f'#!/bin/sh\nexec {java()} -XX:TieredStopAtLevel=1 -cp {main} "$@"\n')
        tool.chmod(0o755)

    def run(self, test: str, settings: dict[str, str], subtest: str = "", **more: str) -> str:
        """The log of one program. Raises unless all that ran of it has passed."""
        listener = settings.get("security.protocol", LISTENERS[0])
        settings = {"bootstrap.servers": self.served.addresses[listener], **settings}
        settings["test.timeout.multiplier"] = "3"
        path = self.folder / "test.conf"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        environment = os.environ | {
            "RDKAFKA_TEST_CONF": str(path),
            "TESTS": test,
            "TEST_KAFKA_VERSION": "4.1.0",
            "KAFKA_PATH": str(self.folder / "kafka"),
            "BROKERS": self.served.addresses[LISTENERS[0]],
            "LD_LIBRARY_PATH": os.pathsep.join(["../src", "../src-cpp"]),
            **({"SUBTESTS": subtest} if subtest else {}),
            **more,
        }
        done = subprocess.run(
            ["./test-runner", "-L"], cwd=self.programs, env=environment, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SUITE_TIMEOUT_S,
        )  # fmt: skip
        log = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.decode(errors="replace"))
        assert re.search(rf"\| {test}_\w+ +\| +PASSED ", log), log[-6000:]
        return log

    def login(self, mechanism: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }


@pytest.fixture(scope="module")
def one_broker(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Librdkafka]:
    folder = tmp_path_factory.mktemp("one")
    served = Served(folder / "broker")
    yield Librdkafka(programs, folder, served)
    served.broker.stop()


@pytest.fixture(scope="module")
def three_workers(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Librdkafka]:
    """For tests that ask for a replication factor of 3."""
    folder = tmp_path_factory.mktemp("three")
    served = Served(folder / "broker", "--connections-max-reauth-ms", "10000", workers=3)
    yield Librdkafka(programs, folder, served)
    served.broker.stop()


def test_librdkafka_administration(one_broker: Librdkafka) -> None:
    source = (one_broker.programs / "0081-admin.c").read_text()
    subtests = set(re.findall(r"^(?:static void )?(do_test_[A-Za-z]+)\(", source, re.MULTILINE))
    subtests -= {"do_test_apis", "do_test_unclean_destroy"}
    login = one_broker.login("SCRAM-SHA-256")
    passed = 0
    for subtest in sorted(subtests - KERBEROS):
        passed += one_broker.run("0081", login, f"{subtest}:").count(": PASS (")
    assert passed >= len(subtests - KERBEROS)


@pytest.mark.parametrize("test", ["0109", "0115"])
def test_librdkafka_rights(one_broker: Librdkafka, test: str) -> None:
    one_broker.run(test, {})


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_credentials(three_workers: Librdkafka, mechanism: str) -> None:
    three_workers.run("0135", three_workers.login(mechanism))


def test_librdkafka_logs_in_again(three_workers: Librdkafka) -> None:
    assert three_workers.run("0142", three_workers.login("SCRAM-SHA-512")).count(": PASS (") == 5


def test_librdkafka_oidc(three_workers: Librdkafka, tmp_path: Path) -> None:
    plain, encrypted = tmp_path / "key.pem", tmp_path / "encrypted.pem"
    plain.write_bytes(KEY.as_pem(private=True))
    encrypted.write_bytes(
        load_pem_private_key(plain.read_bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD.encode())
        )
    )
    with TokenServer() as tokens:
        settings = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.method": "OIDC",
            "sasl.oauthbearer.client.id": "client_id",
            "sasl.oauthbearer.client.secret": "secret",
            "sasl.oauthbearer.scope": "any",
            "sasl.oauthbearer.token.endpoint.url": f"{tokens.url}/valid",
        }
        log = three_workers.run(
            "0126", settings,
            VALID_OIDC_URL=f"{tokens.url}/valid",
            INVALID_OIDC_URL=f"{tokens.url}/invalid",
            EXPIRED_TOKEN_OIDC_URL=f"{tokens.url}/expired",
            OAUTHBEARER_CLIENT_PRIVATE_KEY=str(plain),
            OAUTHBEARER_CLIENT_PRIVATE_KEY_ENCRYPTED=str(encrypted),
            OAUTHBEARER_CLIENT_PRIVATE_KEY_PASSWORD=PASSWORD,
        )  # fmt: skip
    assert log.count(": PASS (") == 19
