"""sarama's functional tests, unchanged, against five brokers behind toxiproxy.

Invariants: the brokers have the ids, racks, addresses and settings that the suite's own
docker-compose.yml gives to Kafka's. What needs docker (to stop a broker, read its log or run Java)
is left out; docs/CLIENT-SUITES.md has the count, and says what the tests that fail demand.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cluster.brokers import Brokers
from tests.integration.foreign import go_module, go_tests
from tests.waiting import wait_until

from headrace.dev_cluster.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.long, pytest.mark.timeout(5_400)]

ROOT = Path(__file__).parents[2]
BROKERS = range(1, 6)
SUITE_PORT = 29_090
"""The suite connects to this one plus a broker's id."""
NEED_DOCKER = {
    "TestConsumerFetchFollowerFailover",
    "TestFuncAdminListConsumerGroupOffsets",
    "TestFuncIdempotentBufferedSequence",
    "TestFuncTxnProduceWithBrokerFailure",
}
FAILING = {"TestFuncAdminAlterPartitionReassignments"}
"""It adds a second replica to a partition: the storage determines how many copies are kept."""


@contextmanager
def toxiproxy(folder: Path, upstreams: dict[int, str]) -> Iterator[str]:
    """The address of a toxiproxy with a proxy for each broker."""
    subprocess.run(["sh", "scripts/go-tool.sh", "toxiproxy"], cwd=ROOT, check=True)
    programs = sorted((ROOT / ".cache" / "bin").glob("toxiproxy-*"))
    if not programs:
        pytest.skip("NO TOXIPROXY: sh scripts/go-tool.sh toxiproxy builds it (it needs Go)")
    port = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with (folder / "toxiproxy.log").open("wb") as log:
        process = subprocess.Popen([str(programs[-1]), "-port", str(port)], stdout=log, stderr=log)
    try:
        wait_until(lambda: is_up(url))
        for broker_id, upstream in upstreams.items():
            proxy = {
                "name": f"kafka{broker_id}",
                "listen": f"127.0.0.1:{SUITE_PORT + broker_id}",
                "upstream": upstream,
                "enabled": True,
            }
            made = urllib.request.Request(
                f"{url}/proxies", json.dumps(proxy).encode(), {"Content-Type": "application/json"}
            )
            urllib.request.urlopen(made, timeout=60).close()
        yield url
    finally:
        process.kill()
        process.wait()


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/version", timeout=60):
            return True
    except OSError:
        return False


def test_sarama(tmp_path: Path, shared_cluster) -> None:
    first = free_ports(len(BROKERS))
    bound = {broker_id: f"127.0.0.1:{first + broker_id - 1}" for broker_id in BROKERS}
    brokers = Brokers(
        tmp_path, shared_cluster.zookeeper.address, 0,
        *("--listener-security-protocol-map", "INTERNAL:PLAINTEXT"),
        *("--zookeeper-root", f"/{tmp_path.name}", "--partitions", "4"),
        *("--no-auto-create-topics", "--no-balance"),
    )  # fmt: skip
    try:
        for broker_id in BROKERS:
            advertised = f"PLAINTEXT://127.0.0.1:{SUITE_PORT + broker_id}"
            broker = brokers.prepare(broker_id, "--rack", str(broker_id), "--advertise", advertised)
            broker.kafka = f"INTERNAL://127.0.0.1:0,PLAINTEXT://{bound[broker_id]}"
            brokers.add(broker_id)
        folder = go_module("github.com/IBM/sarama")
        sources = "".join(path.read_text() for path in folder.glob("functional_*_test.go"))
        names = set(re.findall(r"^func (Test\w+)\(t ", sources, re.MULTILINE))
        with toxiproxy(tmp_path, bound) as url:
            outcomes = go_tests(
                folder, "-tags=functional", f"-run=^({'|'.join(sorted(names - NEED_DOCKER))})$",
                TOXIPROXY_ADDR=url, KAFKA_VERSION="4.1.0",
            )  # fmt: skip
    finally:
        brokers.close()
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed == FAILING
    # Four more tests skip themselves without docker, and one was switched off by its authors.
    assert list(outcomes.values()).count("passed") == 61, outcomes
