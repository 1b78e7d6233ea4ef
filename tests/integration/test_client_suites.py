"""The own suites of other clients, unchanged, against Headrace: what passes is counted.

They are long, and left out of the ordinary run (`-m long`). docs/CLIENT-SUITES.md has the counts,
and says of each test that does not pass what it demands.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.integration.broker import Broker, free_ports
from tests.integration.certificates import Certificates
from tests.integration.foreign import HERE, run
from tests.integration.test_sasl import AUDIENCE, ISSUER, KEY, headrace

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
            *("--super-users", f"User:{USER}", "--partitions", "4"),
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


def go_module(module: str) -> Path:
    """The folder of a module in the version that the client programs pin."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("no Go compiler on the PATH (package golang-go)")
    listed = subprocess.run(
        [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module],
        cwd=HERE / "go_clients", env=os.environ | {"GOWORK": "off"}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    return Path(listed.stdout.strip())


def go_tests(folder: Path, *arguments: str, **environment: str) -> dict[str, str]:
    """The outcome of each test of a package, without those inside other tests."""
    done = subprocess.run(
        ["go", "test", "-json", "-count=1", f"-timeout={SUITE_TIMEOUT_S}s", *arguments, "."],
        cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False,
        timeout=SUITE_TIMEOUT_S + 600,
    )  # fmt: skip
    ends = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    outcomes = {
        event["Test"]: ends[event["Action"]]
        for event in events
        if event["Action"] in ends and "/" not in event.get("Test", "/")
    }
    assert outcomes, done.stdout[-4000:] + done.stderr[-4000:]
    return outcomes


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
