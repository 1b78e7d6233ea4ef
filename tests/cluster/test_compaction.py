"""Log compaction over a real BookKeeper: real clients, a broker killed while it compacts."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tests.cluster.brokers import Brokers
from tests.integration.clients import create_topic, watermarks
from tests.integration.test_compaction import KEYS, ROUNDS, SEGMENT_BYTES, read, write
from tests.waiting import wait_until

OPTIONS = ("--compaction-interval-ms", "100", "--log-cleaner-process-bytes-min", "0")
"""The grace of the sweep is an hour: what was replaced is still there."""


@pytest.fixture
def brokers(tmp_path, shared_cluster):
    root = ("--zookeeper-root", f"/{tmp_path.name}")
    made = Brokers(tmp_path, shared_cluster.zookeeper.address, 2, *root, *OPTIONS)
    yield made
    made.close()


def run_cluster(brokers: Brokers, tmp_path, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = ("--zookeeper-root", f"/{tmp_path.name}")
    address = brokers._zookeeper
    command = [sys.executable, "-m", "headrace", "cluster", *arguments]
    return subprocess.run(
        [*command, "--zookeeper", address, *root], capture_output=True, text=True, check=False
    )


def test_a_compacted_topic_keeps_its_table_when_owners_die_and_when_its_chain_is_lost(
    brokers, tmp_path
):
    create_topic(
        brokers.bootstrap,
        "table",
        cleanup_policy="compact",
        segment_bytes=SEGMENT_BYTES,
        min_cleanable_dirty_ratio=0.01,
        delete_retention_ms=0,
    )
    left = write(brokers.bootstrap, "table", ROUNDS)
    end = watermarks(brokers.bootstrap, "table")
    wait_until(lambda: read(brokers.bootstrap, "table")[0] < KEYS * ROUNDS // 2)
    assert read(brokers.bootstrap, "table")[1] == left

    write(brokers.bootstrap, "table", ROUNDS)  # the owner dies with a round under way or due
    end = watermarks(brokers.bootstrap, "table")
    owner = brokers.leaders("table")[0]
    brokers.by_id[owner].crash()
    assert read(brokers.bootstrap, "table")[1] == left
    assert watermarks(brokers.bootstrap, "table") == end
    wait_until(lambda: read(brokers.bootstrap, "table")[0] < KEYS * ROUNDS // 2)
    assert read(brokers.bootstrap, "table")[1] == left

    found = run_cluster(brokers, tmp_path, "verify", "--json")
    assert json.loads(found.stdout)["orphans"], found
    assert not [p for p in json.loads(found.stdout)["problems"] if "table" in p]
    for broker in brokers.by_id.values():
        assert " ERROR " not in broker.log()
